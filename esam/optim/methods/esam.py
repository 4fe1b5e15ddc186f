"""ESAM (Du et al., ICLR 2022): perturb some tensors (SWP), then train on the samples that feel it most (SDS)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..batch import Batch
from ..buffers import has_batch_statistics
from ..checks import checked_choice, checked_function, checked_share
from ..flow import Plan
from ..gradients import Gradients
from ..mask import MASKS, DrawMask
from ..perturb import Radii, along, l2_ascent
from ..selection import RANKINGS, Candidates, Ranking, checked_scores, keep_highest, random
from ..step import SharpnessAware


@final
class ESAM(SharpnessAware):
    """Step like SAM for less: a random share of the tensors is perturbed, a chosen share of the samples trains.

    By its defaults it is Algorithm 1 of the paper. A free relative, ``METHODS["esam-random"]``, keeps a random half of
    the samples (``ranking="random"``) and draws tensors as a run to the output (``mask="suffix"``).

    Args:
        base, model, rho, m, perturbation, loss, seed: As for SAM; with ``m``, samples are selected in each group too.
        beta: Probability that a tensor is perturbed (SWP), in (0, 1]; 1 leaves SDS alone. The paper's 0.6, 0.5 for WRN.
        gamma: Share of the batch that takes the second pass (SDS), in (0, 1]; 1 leaves SWP alone. The paper's 0.5.
        ranking: How the samples are chosen: "exact" (by the rise of the loss, as the paper; one more forward pass),
            "random" (free), or a function of ``Candidates`` that returns one score a sample.
        mask: How tensors are drawn: "independent", each with probability beta, as the paper; "suffix", a run from a
            random depth to the output with mean share beta, so that the first backward stops early; or a function.
        norm: "full" divides by the norm of the whole gradient, a tensor not drawn counting with the norm it had when
            last drawn, so that eps is SAM's on average; "selected" by the norm of the drawn part, as released.

    >>> import torch
    >>> model = nn.Linear(4, 1)
    >>> optimizer = ESAM(torch.optim.SGD(model.parameters(), lr=0.1), model)
    >>> loss = optimizer.step(lambda x, y: (model(x).squeeze(1) - y) ** 2, torch.randn(8, 4), torch.randn(8))
    """

    remembered = ("norms",)

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module,
        *,
        rho: float = 0.05,
        beta: float = 0.6,
        gamma: float = 0.5,
        ranking: str | Ranking = "exact",
        mask: str | DrawMask = "independent",
        norm: Literal["full", "selected"] = "full",
        m: int | None = None,
        perturbation: Literal["rank", "global"] = "rank",
        **common: Any,
    ) -> None:
        self.beta, self.gamma = checked_share("beta", beta), checked_share("gamma", gamma)
        self.norm = checked_choice("norm", norm, ("full", "selected"))
        self.ranking = checked_function("ranking", ranking, RANKINGS, "of Candidates")
        self.draw_mask = checked_function("mask", mask, MASKS, "that draws a Mask")
        self.needs_losses = self.gamma < 1 and self.ranking is not random
        self.norms = torch.empty(0)
        """The norm that each tensor's gradient had when it was last drawn; -1: never."""
        super().__init__(base, model, rho=rho, m=m, perturbation=perturbation, **common)
        self._known: tuple[Tensor, set[int]] = (self.norms, set())

    @staticmethod
    def ineffective(settings: Mapping[str, Any]) -> set[str]:
        """Without SDS no ranking matters, without SWP no mask and no norm."""
        without_sds = {"ranking"} if settings["gamma"] == 1 else set()
        return without_sds | {"mask", "norm"} if settings["beta"] == 1 else without_sds

    def plan(self) -> Plan:
        """Draw the tensors to perturb: lines 3 and 4 of Algorithm 1."""
        return Plan(tensors=None if self.beta == 1 else self.draw(self.radii()))

    def finish(self, batch: Batch) -> None:
        """Perturb, select, and take the second pass: lines 5 to 11 of Algorithm 1; the base takes line 12."""
        with self.at(self.eps(batch)):  # 5-9
            batch.backward(keep=self.select if self.gamma < 1 else None)  # 10-11

    def draw(self, radii: Radii) -> Radii:
        """Draw tensors, in the order of the model, and divide each one's radius by the probability of its draw."""
        depth = {id(p): i for i, p in enumerate(self.model.parameters())}
        parameters = self.parameters()
        order = sorted(radii, key=lambda n: depth.get(id(parameters[n]), len(depth)))
        mask = self.draw_mask(len(order), self.beta, self.generator)
        picks, known = set(mask.picks), self.known()
        drawn: dict[int, float] = {}
        for i, n in enumerate(order):
            if self.norm == "full" and n not in known:  # taken for certain, so unscaled: it gets a norm to be known by
                drawn[n] = radii[n]
            elif i in picks:
                drawn[n] = radii[n] / mask.probabilities[i]
        return drawn

    def eps(self, batch: Batch) -> Gradients:
        """Return ``rho g / ||g||`` of the drawn tensors; the norm is the whole gradient's or that of the drawn part."""
        g = batch.first
        if self.beta == 1 or self.norm == "selected":
            return l2_ascent(g, batch.radii)
        drawn = g.norms()
        norms = drawn.new_full((len(self.parameters()),), -1.0)
        norms[: len(self.norms)] = self.norms.to(drawn)
        others = [n for n in self.radii() if n not in batch.radii]
        length = torch.linalg.vector_norm(torch.cat([drawn, norms[others].clamp(min=0)]))
        if batch.last:
            known = self.known() | set(g.index)
            seen = torch.full_like(norms, -1.0).index_copy(
                0, torch.tensor(g.index, dtype=torch.long, device=drawn.device), drawn
            )
            seen = self.ranks.mean_squares(seen)  # the same ones on every rank
            self.norms = torch.where(seen >= 0, seen, norms)
            alike = not self.ranks.replicated or not self.ranks.own_eps  # else another rank may know more
            self._known = (self.norms, known) if alike else (seen, set())
        return along(g, batch.radii, length)

    def select(self, batch: Candidates) -> Tensor:
        """Keep the share gamma with the highest scores."""
        scores = checked_scores(self.ranking(batch), batch)
        lonely = len(scores) > 1 and round(self.gamma * len(scores)) < 2
        return keep_highest(scores, self.gamma, least=2 if lonely and has_batch_statistics(self.model) else 1)

    def known(self) -> set[int]:
        """Return the tensors that have a norm; read back only where the norms are not those of the last step."""
        if self._known[0] is not self.norms:
            self._known = (self.norms, {n for n, norm in enumerate(self.norms.tolist()) if norm >= 0})
        return self._known[1]
