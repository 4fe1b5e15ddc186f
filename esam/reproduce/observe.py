"""What goes on inside a batch while a run trains? Looked at after some epochs, without disturbing the run.

The batches are training images without augmentation, the same ones each time, and the model is in eval mode.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from esam.analysis import ModelObjective, gradient_cosines, losses_along, sam_eps, select, swp_eps
from esam.analysis.directions import cosine_similarity, inner
from esam.analysis.objective import Parameters, moved, norm_of, value_and_gradient
from esam.files import write_atomically
from esam.train.data import Batches, Data
from esam.train.models import fastest_memory_format
from esam.train.record import encode

from .scale import Look

OBSERVATIONS = "observations.json"
LOOK = "look.json"


class Observer:
    """Looks into a run after the epochs that its look names, and keeps what it saw in a file by epoch."""

    def __init__(self, folder: Path, look: Look, last_epoch: int) -> None:
        self.path, self.look, self.epochs = folder / OBSERVATIONS, look, look.epochs(last_epoch)

    def __call__(self, epoch: int, model: nn.Module, data: Data) -> None:
        """Look, if it is time; an epoch that is trained again after an interruption is looked at again."""
        if epoch not in self.epochs:
            return
        seen = read_observations(self.path.parent)
        seen[epoch] = observed(model, data, self.look, seed=epoch)
        lines = {str(number): seen[number] for number in sorted(seen) if number <= epoch}
        write_atomically(self.path, encode(lines))


def read_observations(folder: Path) -> dict[int, dict[str, Any]]:
    """Return what was seen, by epoch; nothing if there is no file yet."""
    path = folder / OBSERVATIONS
    if not path.exists():
        return {}
    try:
        return {int(epoch): dict(values) for epoch, values in json.loads(path.read_bytes()).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{path} holds no observations ({error}); delete the folder {folder} to train it again"
        ) from error


def observed(model: nn.Module, data: Data, look: Look, *, seed: int = 0) -> dict[str, Any]:
    """Return what is seen in some batches now: one entry a batch for each kind of observation.

    ``seed`` decides masks and random halves; a look after another epoch draws others.
    """
    objective = ModelObjective(model, _batches(model, data, look))
    theta = objective.parameters
    seen: dict[str, list[Any]] = {"selection": [], "cosines": [], "along": [], "linearity": []}
    for number, part in enumerate(objective.parts(), start=1_000 * seed):
        selection = select(part, theta, gamma=look.gamma, rho=look.rho, seed=number)
        seen["selection"].append(selection.as_json())
        seen["cosines"].append(gradient_cosines(part, theta, selection))
        seen["along"].append(losses_along(part, theta, selection, ts=look.ts))
        seen["linearity"].append(_linearity(part, theta, look, seed=number))
    return {**seen, "expectation": _expectation(objective.parts()[0], theta, look, seed=seed)}


def _batches(model: nn.Module, data: Data, look: Look) -> list[tuple[Tensor, Tensor]]:
    # by lot: stored order may be sorted by class
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
    split = data.train.select(order[: look.batches * look.batch_size])
    device, layout = next(model.parameters()).device, fastest_memory_format(model)
    batches = Batches(split, look.batch_size, mean=data.mean, std=data.std, device=device, memory_format=layout)
    return list(batches.in_order())


def _linearity(objective: ModelObjective, theta: Parameters, look: Look, *, seed: int) -> dict[str, Any]:
    """Return zeta(eps, B) of SAM's eps, and of SWP's for each beta: divided by beta as in Algorithm 1, and not."""
    loss, gradient = value_and_gradient(objective, theta)
    start, generator = float(loss), torch.Generator().manual_seed(seed)

    def zeta(eps: Parameters, factor: float = 1.0) -> float:
        # esam.analysis.linearity for many eps of one gradient
        with torch.no_grad():
            end = float(objective(moved(theta, eps, factor)))
        return abs(end - start - factor * inner(eps, gradient))

    found: dict[str, Any] = {"sam": zeta(sam_eps(gradient, look.rho)), "divided": {}, "undivided": {}}
    for beta in look.betas:
        draws = [swp_eps(gradient, look.rho, beta=beta, generator=generator) for _ in range(look.draws)]
        found["divided"][f"{beta:g}"] = [zeta(eps) for eps in draws]
        found["undivided"][f"{beta:g}"] = [zeta(eps, beta) for eps in draws]
    return found


def _expectation(
    objective: ModelObjective, theta: Parameters, look: Look, *, seed: int, beta: float = 0.6
) -> dict[str, float]:
    """Hold the mean of many of SWP's perturbations against SAM's: cosine, norm, distance in SAM's norm."""
    _, gradient = value_and_gradient(objective, theta)
    generator = torch.Generator().manual_seed(seed)
    total = {name: torch.zeros_like(g) for name, g in gradient.items()}
    for _ in range(look.mean_draws):
        for name, part in swp_eps(gradient, look.rho, beta=beta, generator=generator).items():
            total[name] += part
    mean = {name: part / look.mean_draws for name, part in total.items()}
    eps = sam_eps(gradient, look.rho)
    length = float(norm_of(eps.values())) or math.nan  # no direction where the gradient is not finite
    apart = float(norm_of([mean[name] - eps[name] for name in eps]))
    return {
        "beta": beta,
        "draws": look.mean_draws,
        "cosine": cosine_similarity(mean, eps),
        "norm": float(norm_of(mean.values())) / length,
        "distance": apart / length,
        "expected distance": ((1 - beta) / (beta * look.mean_draws)) ** 0.5,
    }


def write_look(folder: Path, look: Look) -> None:
    """Put the look where the run's own process will read it."""
    write_atomically(folder / LOOK, json.dumps(asdict(look)).encode())


def read_look(folder: Path) -> Look:
    """Take back what ``write_look`` wrote."""
    values: dict[str, Any] = json.loads((folder / LOOK).read_bytes())
    return Look(**{**values, "betas": tuple(values["betas"]), "ts": tuple(values["ts"])})
