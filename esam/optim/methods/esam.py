"""ESAM (Du et al., ICLR 2022): perturb some tensors (SWP), then train on the samples that feel it most (SDS)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from ..ascent import Eps, l2_ascent, root_sum_of_squares
from ..buffers import has_batch_statistics
from ..checks import checked_share
from ..mask import DrawMask, checked_mask
from ..parallel import Gradients
from ..ranking import Candidates, Ranking, aligned, checked_ranking, checked_scores, exact, keep_highest, random
from ..step import SharpnessAware
from ..underway import Targets


class ESAM(SharpnessAware):
    """Step like SAM for less: a random share of the tensors is perturbed, a chosen share of the samples trains.

    By its defaults it is Algorithm 1 of the paper. A free relative, ``METHODS["esam-random"]``, keeps a random half of
    the samples (``ranking="random"``) and draws tensors as a run to the output (``mask="suffix"``).

    Args:
        base, model, rho, m, perturbation, seed: As for SAM; with ``m``, samples are selected in each group too.
        beta: Probability that a tensor is perturbed (SWP), in (0, 1]; 1 leaves SDS alone. The paper's 0.6, 0.5 for WRN.
        gamma: Share of the batch that takes the second pass (SDS), in (0, 1]; 1 leaves SWP alone. The paper's 0.5.
        ranking: How the samples are chosen: "exact" (by the rise of the loss, as the paper; one more forward pass),
            "aligned" (by the product of the sample's gradient with the batch's in the last linear layer; free),
            "random" (free), or a function of ``Candidates`` that returns one score a sample.
        mask: How tensors are drawn: "independent", each with probability beta, as the paper; "suffix", a run from a
            random depth to the output with mean share beta, so that the first backward stops early; or a function.
        norm: "full" divides by the norm of the whole gradient, a tensor not drawn counting with the norm it had when
            last drawn, so that eps is SAM's on average; "selected" by the norm of the drawn part, as released.

    >>> import torch
    >>> model = nn.Linear(4, 1)
    >>> x, y = torch.randn(8, 4), torch.randn(8)
    >>> optimizer = ESAM(torch.optim.SGD(model.parameters(), lr=0.1), model)
    >>> loss = optimizer.step(lambda keep: (model(x[keep]).squeeze(1) - y[keep]) ** 2)
    """

    memory_by_parameter = {"norms": "number"}

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
        seed: int | None = None,
    ) -> None:
        if norm not in ("full", "selected"):
            raise ValueError(f'norm must be "full" or "selected", got {norm!r}')
        self.beta, self.gamma, self.norm = checked_share("beta", beta), checked_share("gamma", gamma), norm
        self.ranking, self.draw_mask = checked_ranking(ranking), checked_mask(mask)
        self.reads_head = getattr(self.ranking, "reads_head", False)
        self.reads_losses = self.gamma < 1 and self.ranking is not random
        self.draws_samples = self.gamma < 1 and self.ranking not in (exact, aligned)
        super().__init__(base, model, rho=rho, m=m, perturbation=perturbation, seed=seed)
        self._norms: dict[int, float] = {}
        self._drawn: list[int] = []
        self._seen: dict[int, float] = {}

    @staticmethod
    def idle(settings: Mapping[str, Any]) -> set[str]:
        """Without SDS no ranking matters, without SWP no mask and no norm."""
        idle = {"ranking"} if settings["gamma"] == 1 else set()
        return idle | {"mask", "norm"} if settings["beta"] == 1 else idle

    def mask(self, targets: Targets) -> Targets:
        """Draw tensors, in the order of the model, and divide each one's radius by the probability of its draw."""
        self._drawn, self._seen = [], {}
        if self.beta == 1:
            return targets
        depth = {id(p): i for i, p in enumerate(self.model.parameters())}
        order = sorted(range(len(targets)), key=lambda i: depth.get(id(targets.weights[i]), len(depth)))
        targets = targets.only(order)
        mask = self.draw_mask(len(targets), self.beta, self.generator)
        # a tensor whose norm is not known yet is taken for certain, so unscaled
        new = {i for i, n in enumerate(targets.index) if self.norm == "full" and n not in self._norms}
        rho = [r if i in new else r / mask.probabilities[i] for i, r in enumerate(targets.rho)]
        drawn = replace(targets, rho=rho).only(sorted(new.union(mask.picks)))
        self._drawn = drawn.index
        return drawn

    def ascent(self, drawn: Targets, gradients: list[Tensor]) -> Eps:
        """Return ``rho g / ||g||``, the norm being that of the whole gradient or of the part drawn."""
        if self.beta == 1 or self.norm == "selected":
            return super().ascent(drawn, gradients)
        norms = self.parallel.norms(gradients)
        self._seen |= dict(zip(drawn.index, norms, strict=True))
        others = [self._norms.get(n, 0.0) for n in drawn.left_out]
        return l2_ascent(gradients, drawn.rho, root_sum_of_squares([*norms, *others]))

    def select(self, batch: Candidates) -> Tensor | None:
        """Keep the share gamma with the highest scores; the whole batch, unranked, if gamma is 1."""
        if self.gamma == 1:
            return None
        scores, share = checked_scores(self.ranking(batch), batch), self.kept_share()
        lonely = len(scores) > 1 and round(share * len(scores)) < 2
        return keep_highest(scores, share, least=2 if lonely and has_batch_statistics(self.model) else 1)

    def kept_share(self) -> float:
        """Return the share of this step's samples that takes the second pass."""
        return self.gamma

    def combine(self, first: Gradients | None, scale: float) -> None:
        """Remember the norms of this step: the same ones on every rank."""
        if self._seen or self._drawn:
            seen = [self._seen.get(n) for n in self._drawn]
            known = zip(self._drawn, self.parallel.mean_squares(seen), strict=True)
            self._norms = {**self._norms, **{n: norm for n, norm in known if norm is not None}}

    def memory(self) -> dict[str, Any]:
        """Return the norm that each tensor's gradient had when it was last drawn."""
        return {"norms": dict(self._norms)}

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Take back what ``memory`` returned."""
        self._norms = {n: norm for n, norm in memory.get("norms", {}).items() if norm >= 0}
        self._drawn, self._seen = [], {}
