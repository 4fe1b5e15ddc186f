"""What does the loss look like around the weights of a trained run?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from esam.analysis import (
    Landscape,
    ModelObjective,
    adaptive_sharpness,
    ascent_sharpness,
    even_axis,
    gradient_cosines,
    landscape,
    linearity,
    m_sharpness,
    random_plane,
    select,
    sharpness,
    spectral_density,
    top_eigenvalues,
    trace,
)
from esam.analysis.landscape import Progress
from esam.measures import training_objective
from esam.train.checkpoint import Checkpoint
from esam.train.config import Config
from esam.train.record import RECORD_NAME, RunRecord, environment, read_record
from esam.train.runs import chosen_device, configured_data, prepared_model

ADAPTIVE_RHO = 0.5
"""ASAM's own radius, which means about what SAM's 0.05 does."""


@dataclass(frozen=True)
class TrainedRun:
    """A run as its folder tells it: the record, the weights of the checkpoint, and the images they were trained on."""

    record: RunRecord
    epoch: int
    model: nn.Module
    objective: ModelObjective


def load_run(path: str | Path, *, images: int = 1_000, device: str = "auto") -> TrainedRun:
    """Return the run of a folder of ``esam train``, or of one of its checkpoint files.

    The objective is the mean loss over ``images`` evenly spaced training images, in eval mode and without augmentation.
    """
    path = Path(path)
    if images < 1:
        raise ValueError(f"images must be 1 or more, got {images!r}")
    if not path.exists():
        raise ValueError(f"{path} does not exist; give the folder of a run of esam train, or its checkpoint")
    folder = path if path.is_dir() else path.parent
    if not (folder / RECORD_NAME).exists():
        raise ValueError(f"{folder} holds no {RECORD_NAME}; give the folder of a run of esam train, or its checkpoint")
    record = read_record(folder / RECORD_NAME)
    config = Config.from_json(record.config)
    where = chosen_device(device)
    state = _state(path, where)
    data = configured_data(config)
    model = prepared_model(config, data, where)
    model.load_state_dict(state["model"])
    return TrainedRun(record, state["progress"]["epoch"], model, training_objective(model, data, where, images=images))


def figures(
    run: TrainedRun,
    *,
    rho: float = 0.05,
    steps: int = 10,
    m: int = 128,
    gamma: float = 0.5,
    eigenvalues: int = 1,
    vectors: int = 10,
    density: int = 0,
) -> dict[str, Any]:
    """Return sharpness, linearity, and what SDS selects when all images are one batch.

    Unless it is 0, ``eigenvalues`` adds the Hessian's top eigenvalues and its trace, and ``density`` its spectral
    density by so many steps of Lanczos.
    """
    objective, theta = run.objective, run.objective.parameters
    found: dict[str, Any] = {
        "loss": float(objective(theta)),
        "sharpness": {"value": sharpness(objective, theta, rho=rho), "rho": rho},
        "ascent_sharpness": {
            "value": ascent_sharpness(objective, theta, rho=rho, steps=steps),
            "rho": rho,
            "steps": steps,
        },
        "m_sharpness": {"value": m_sharpness(objective, theta, rho=rho, m=m), "rho": rho, "m": m},
        "adaptive_sharpness": {"value": adaptive_sharpness(objective, theta, rho=ADAPTIVE_RHO), "rho": ADAPTIVE_RHO},
    }
    if objective.count > 1:
        selection = select(objective, theta, gamma=gamma, rho=rho)
        found["linearity"] = {"value": linearity(objective, theta, selection.eps), "rho": rho}
        cosines = gradient_cosines(objective, theta, selection)
        found["selection"] = {"gamma": gamma, "rho": rho, "sets": selection.as_json(), "cosines": cosines}
    if eigenvalues:
        found["eigenvalues"] = top_eigenvalues(objective, theta, k=eigenvalues)
        mean, error = trace(objective, theta, vectors=vectors)
        found["trace"] = {"value": mean, "error": error, "vectors": vectors}
    if density:
        spectrum = spectral_density(objective, theta, lanczos=density)
        values = {"eigenvalues": spectrum.eigenvalues.tolist(), "density": spectrum.density.tolist()}
        found["spectral_density"] = {**values, "lanczos": density}
    return found


def random_landscape(
    run: TrainedRun,
    *,
    points: int,
    axes: int = 2,
    reach: float = 1.0,
    groups: int = 1,
    path: str | Path | None = None,
    progress: Progress | None = None,
) -> Landscape:
    """Return the loss on a plane of points x points, for each of so many pairs of filter-normalised directions.

    With ``axes=1`` it is a line, along the first direction of each pair.
    """
    if groups < 1:
        raise ValueError(f"groups must be 1 or more, got {groups!r}")
    theta = run.objective.parameters
    directions = [(run.objective, random_plane(theta, seed=seed)[:axes]) for seed in range(groups)]
    return landscape(directions, theta, [even_axis(reach, points)] * axes, path=path, progress=progress)


def described(run: TrainedRun) -> dict[str, Any]:
    """Return what the figures were taken of, and with what."""
    device = next(run.model.parameters()).device
    return {
        "run": {
            "name": run.record.name,
            "method": run.record.method,
            "seed": run.record.seed,
            "id": run.record.run["id"],
        },
        "epoch": run.epoch,
        "images": run.objective.count,
        "environment": environment(str(device)),
    }


def _state(path: Path, device: torch.device) -> dict[str, Any]:
    if path.is_dir():
        state = Checkpoint(path).load(device)
        if state is None:
            raise ValueError(f"{path} holds no checkpoint; train the run first: esam train --out {path}")
        return state
    try:
        whole: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        parts = {"model": whole["model"], "progress": whole["progress"]}
    except Exception as error:  # torch raises many kinds for a truncated or foreign file
        raise ValueError(
            f"{path} is no checkpoint of esam train, or is damaged ({error}); give the run's folder"
        ) from error
    return parts
