"""What goes on inside a batch? Probed after an epoch in train mode, on the images that the run trains on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.func import functional_call

from esam.analysis import ModelObjective, gradient_cosines, sam_eps, select
from esam.analysis.directions import Direction, cosine_similarity, inner
from esam.analysis.objective import Parameters, moved, norm_of, value_and_gradient
from esam.optim import Gradients
from esam.optim.mask import independent
from esam.optim.perturb import along as along_direction
from esam.train import Config

from .data import WATCH
from .hyperparameters import Scale
from .store import Store

BETAS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
TS = (-0.5, 0.0, 0.5, 1.0, 1.5, 2.0)
"""Where on the line from theta (0) through theta + eps (1) the losses of B+ and B- are taken."""
MASKS = 3
MEAN_BETA = 0.6
EVERY = 20
"""Epochs between probes of zeta, losses along eps and mean perturbations."""


class TrainMode(ModelObjective):
    """The mean loss in train mode, as ``ModelObjective`` has it in eval mode; the net is only read."""

    def _losses(self, parameters: Parameters) -> Iterator[Tensor]:
        for x, y in self.batches:
            buffers = {name: b.clone() for name, b in self._buffers.items()}
            yield self.loss(functional_call(self.model, {**buffers, **parameters}, (x,)), y)


def inside(batch: TrainMode, rho: float, gamma: float, seed: int) -> dict[str, float]:
    """Return cosines of the gradients of B+, B- and a random half to B's at theta + eps, and what else A.2 says.

    "correlation" is that of a sample's rise with its loss; "alignment" the cosine of eps to the gradient of the samples
    that rise (alpha = 0).
    """
    theta = batch.parameters
    chosen = select(batch, theta, gamma=gamma, rho=rho, seed=seed)
    cosines = gradient_cosines(batch, theta, chosen)
    rise = chosen.perturbed_losses - chosen.losses
    rising = (rise > 0).nonzero().flatten()
    up = value_and_gradient(batch.only(rising), theta)[1] if len(rising) > 1 else chosen.eps
    return {
        "cosine B+": cosines["plus"],
        "cosine B-": cosines["minus"],
        "cosine random": cosines["random"],
        "correlation": float(spearmanr(rise, chosen.losses).statistic),
        "alignment": cosine_similarity(up, chosen.eps) if len(rising) > 1 else 0.0,
    }


def swp_eps(gradient: Parameters, rho: float, *, beta: float, generator: torch.Generator) -> Direction:
    """Return SWP's eps: each tensor of SAM's with probability beta, then divided by beta; at least one."""
    picks = independent(len(gradient), beta, generator).picks
    g = Gradients(range(len(gradient)), gradient.values())
    # divided by the norm of the whole gradient, so that the mean over draws is SAM's eps
    eps = dict(along_direction(g.only(set(picks)), dict.fromkeys(picks, rho / beta), g.norm()))
    return {name: eps.get(i, torch.zeros_like(part)) for i, (name, part) in enumerate(gradient.items())}


def along(batch: TrainMode, rho: float, gamma: float, masks: int, seed: int) -> dict[str, float]:
    """Return zeta of SAM's eps and of SWP's for each beta, their lengths, losses along eps, and SWP's mean eps."""
    theta, generator = batch.parameters, torch.Generator().manual_seed(seed)
    start, gradient = value_and_gradient(batch, theta)
    eps = sam_eps(gradient, rho)

    def zeta(direction: Direction, t: float = 1.0) -> float:
        with torch.no_grad():
            rise = float(batch(moved(theta, direction, t)) - start)
        return abs(rise - t * inner(direction, gradient))

    found = {"zeta sam": zeta(eps)}
    for beta in BETAS:
        drawn = [swp_eps(gradient, rho, beta=beta, generator=generator) for _ in range(MASKS)]
        found[f"zeta {beta:g}"] = sum(map(zeta, drawn)) / MASKS
        found[f"zeta {beta:g} undivided"] = sum(zeta(one, beta) for one in drawn) / MASKS
        found[f"length {beta:g}"] = sum(float(norm_of(one.values())) for one in drawn) / MASKS / rho
    chosen = select(batch, theta, gamma=gamma, rho=rho)
    with torch.no_grad():
        curve = {t: batch.losses(moved(theta, chosen.eps, t)).double() for t in TS}
    for name, which in (("B+", "plus"), ("B-", "minus")):
        found |= {f"{name} at {t:g}": float(losses[chosen.rows[which]].mean()) for t, losses in curve.items()}
    mean = {name: torch.zeros_like(g) for name, g in gradient.items()}
    for _ in range(masks):
        for name, part in swp_eps(gradient, rho, beta=MEAN_BETA, generator=generator).items():
            mean[name] += part / masks
    found["mean cosine"] = cosine_similarity(mean, eps)
    # by chance alone: each tensor's part of eps has the variance (1 - beta) / beta of its mask, over so many masks
    chance = rho * ((1 - MEAN_BETA) / MEAN_BETA / masks) ** 0.5
    found["mean distance"] = float(norm_of(mean[name] - eps[name] for name in eps)) / chance
    return found


class Observer:
    """Writes a line an epoch: the losses that the steps saw, and what probes find on the same batches every time."""

    def __init__(self, store: Store, name: str, config: Config, scale: Scale) -> None:
        self.store, self.name, self.config, self.scale = store, name, config, scale
        WATCH.epoch()  # forget what another run has left

    def __call__(self, epoch: int, model: nn.Module, data: Any) -> None:
        """Write an epoch's line; one that is trained again after a kill replaces its line."""
        seen = {name: [round(value, 5) for value in values] for name, values in WATCH.epoch().items()}
        before = [line for line in self.store.lines(self.name) or [] if line["epoch"] < epoch]
        self.store.write(self.name, [*before, {"epoch": epoch, **seen, **self.probed(epoch, model, data)}])

    def probed(self, epoch: int, model: nn.Module, data: Any) -> dict[str, list[float]]:
        """Return what is found in train mode, one value a batch."""
        (images, labels), count = data.train, self.scale.probed_batches
        rho, gamma = self.config.settings["rho"], self.config.settings["gamma"]
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        size, found, mode = min(self.config.batch_size, len(labels) // count), [], model.training
        model.train()
        for number, rows in enumerate(order[: count * size].view(count, size)):
            batch, seed = TrainMode(model, [(images[rows], labels[rows])]), 1_000 * epoch + number
            values = inside(batch, rho, gamma, seed)
            if epoch == 1 or epoch % EVERY == 0:
                values |= along(batch, rho, gamma, self.scale.mean_draws, seed)
            found.append(values)
        model.train(mode)
        return {name: [_short(values[name]) for values in found] for name in found[0]}


def _short(value: float) -> float:
    return float(f"{value:.4g}") if math.isfinite(value) else 0.0  # a cosine to nothing
