"""What goes on inside a batch while a run trains? Probed after some epochs, without disturbing the run.

The batches are training images without augmentation, the same ones each time, and the model is in eval mode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn

from esam.analysis import ModelObjective, gradient_cosines, losses_along, sam_eps, select, swp_eps
from esam.analysis.directions import cosine_similarity, inner
from esam.analysis.objective import Parameters, moved, norm_of, value_and_gradient
from esam.files import write_atomically
from esam.train.data import Batches, Data
from esam.train.models import fastest_memory_format

from .scale import Probe
from .values import encode

OBSERVATIONS = "observations.json"
PROBE = "probe.json"
Value = float | None
"""A number, None where it was not finite."""
Values = tuple[Value, ...]


@dataclass(frozen=True)
class SetProbe:
    """A set of a batch's samples: its mean loss at theta and at theta + eps, and at theta + t eps for each t."""

    loss: Value
    perturbed_loss: Value
    along: Values
    cosine: Value
    """Of its gradient to that of the whole batch, at theta + eps."""

    @property
    def rise(self) -> Value:
        """R of the set."""
        return None if self.loss is None or self.perturbed_loss is None else self.perturbed_loss - self.loss


@dataclass(frozen=True)
class Zetas:
    """zeta(eps, B) of SWP's perturbations for one beta: divided by beta as in Algorithm 1, and not."""

    beta: float
    divided: Values
    undivided: Values


@dataclass(frozen=True)
class BatchProbe:
    """What was seen in one batch: in the whole of it, B+, B- and a random half, and along perturbations."""

    all: SetProbe
    plus: SetProbe
    minus: SetProbe
    random: SetProbe
    sam_zeta: Value
    swp_zetas: tuple[Zetas, ...]


@dataclass(frozen=True)
class MeanPerturbation:
    """The mean of many of SWP's perturbations beside SAM's: cosine, and norm and distance in units of SAM's norm."""

    beta: float
    draws: int
    cosine: Value
    norm: Value
    distance: Value
    expected_distance: float
    """By chance alone."""


@dataclass(frozen=True)
class EpochProbe:
    """What was seen after one epoch."""

    epoch: int
    batches: tuple[BatchProbe, ...]
    mean_perturbation: MeanPerturbation


class Observer:
    """Probes a run after the epochs that its probe names, and keeps what it saw in a file."""

    def __init__(self, folder: Path, probe: Probe, last_epoch: int) -> None:
        self.path, self.probe, self.epochs = folder / OBSERVATIONS, probe, probe.epochs(last_epoch)

    def __call__(self, epoch: int, model: nn.Module, data: Data) -> None:
        """Probe, if it is time; an epoch that is trained again after an interruption is probed again."""
        if epoch in self.epochs:
            before = [seen for seen in read_observations(self.path.parent) if seen.epoch < epoch]
            write_atomically(self.path, encode([*before, observed(model, data, self.probe, epoch=epoch)]))


def read_observations(folder: Path) -> tuple[EpochProbe, ...]:
    """Return what was seen, by epoch; nothing if there is no file yet."""
    path = folder / OBSERVATIONS
    try:
        return msgspec.json.decode(path.read_bytes() if path.exists() else b"[]", type=tuple[EpochProbe, ...])
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} holds no observations ({error}); delete the folder to train the run again") from error


def observed(model: nn.Module, data: Data, probe: Probe, *, epoch: int) -> EpochProbe:
    """Return what is seen in some batches now; masks and random halves are drawn anew for each epoch."""
    objective = ModelObjective(model, _batches(model, data, probe))
    theta, parts = objective.parameters, objective.parts()
    batches = [_batch(part, theta, probe, seed=seed) for seed, part in enumerate(parts, start=1_000 * epoch)]
    return EpochProbe(epoch, tuple(batches), _mean_perturbation(parts[0], theta, probe, seed=epoch))


def _batch(objective: ModelObjective, theta: Parameters, probe: Probe, *, seed: int) -> BatchProbe:
    selection = select(objective, theta, gamma=probe.gamma, rho=probe.rho, seed=seed)
    figures = selection.as_json()
    cosines = gradient_cosines(objective, theta, selection)
    along = losses_along(objective, theta, selection, ts=probe.ts)

    def of(which: str) -> SetProbe:
        losses = figures[which]["loss"], figures[which]["perturbed_loss"]
        return SetProbe(*losses, along=tuple(along.get(which, ())), cosine=cosines.get(which))

    zetas = _zetas(objective, theta, probe, seed=seed)
    return BatchProbe(of("all"), of("plus"), of("minus"), of("random"), *zetas)


def _batches(model: nn.Module, data: Data, probe: Probe) -> list[tuple[Tensor, Tensor]]:
    # in random order: stored order may be sorted by class
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
    split = data.train.select(order[: probe.batches * probe.batch_size])
    device, layout = next(model.parameters()).device, fastest_memory_format(model)
    batches = Batches(split, probe.batch_size, mean=data.mean, std=data.std, device=device, memory_format=layout)
    return list(batches.in_order())


def _zetas(objective: ModelObjective, theta: Parameters, probe: Probe, *, seed: int) -> tuple[float, tuple[Zetas, ...]]:
    """Return zeta(eps, B) of SAM's eps, and of SWP's for each beta."""
    loss, gradient = value_and_gradient(objective, theta)
    start, generator = float(loss), torch.Generator().manual_seed(seed)

    def zeta(eps: Parameters, factor: float = 1.0) -> float:
        # esam.analysis.linearity for many eps of one gradient
        with torch.no_grad():
            end = float(objective(moved(theta, eps, factor)))
        return abs(end - start - factor * inner(eps, gradient))

    by_beta = []
    for beta in probe.betas:
        draws = [swp_eps(gradient, probe.rho, beta=beta, generator=generator) for _ in range(probe.draws)]
        by_beta.append(Zetas(beta, tuple(map(zeta, draws)), tuple(zeta(eps, beta) for eps in draws)))
    return zeta(sam_eps(gradient, probe.rho)), tuple(by_beta)


def _mean_perturbation(
    objective: ModelObjective, theta: Parameters, probe: Probe, *, seed: int, beta: float = 0.6
) -> MeanPerturbation:
    _, gradient = value_and_gradient(objective, theta)
    generator = torch.Generator().manual_seed(seed)
    total = {name: torch.zeros_like(g) for name, g in gradient.items()}
    for _ in range(probe.mean_draws):
        for name, part in swp_eps(gradient, probe.rho, beta=beta, generator=generator).items():
            total[name] += part
    mean = {name: part / probe.mean_draws for name, part in total.items()}
    eps = sam_eps(gradient, probe.rho)
    length = float(norm_of(eps.values())) or math.nan  # no direction where the gradient is not finite
    return MeanPerturbation(
        beta=beta,
        draws=probe.mean_draws,
        cosine=cosine_similarity(mean, eps),
        norm=float(norm_of(mean.values())) / length,
        distance=float(norm_of([mean[name] - eps[name] for name in eps])) / length,
        expected_distance=((1 - beta) / (beta * probe.mean_draws)) ** 0.5,
    )


def write_probe(folder: Path, probe: Probe) -> None:
    """Put the probe where the run's own process will read it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / PROBE, encode(probe))


def read_probe(folder: Path) -> Probe:
    """Take back what ``write_probe`` wrote."""
    return msgspec.json.decode((folder / PROBE).read_bytes(), type=Probe)
