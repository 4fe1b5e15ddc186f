"""What is told of a trained run: in its record, and by ``esam analyze``?"""

from __future__ import annotations

from collections.abc import Iterable
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
    hessian_trace,
    landscape,
    linearity,
    m_sharpness,
    random_plane,
    select,
    sharpness,
    spectral_density,
    top_eigenvalues,
)
from esam.analysis.landscape import OnProgress

from .checkpoint import Checkpoint, State, read_state, run_state
from .config import Config
from .data import Batches, Data
from .environment import environment
from .evaluation import Loss
from .inputs import Batch, Called
from .models import fastest_memory_format
from .record import RECORD_NAME, RunRecord, read_record
from .runs import chosen_device, configured_data, prepared_model
from .samples import sample_count, taken_rows
from .task import Task, TaskBatches, is_factory

RHO = 0.05
"""One radius for all methods, or their sharpness could not be compared: SAM's usual one."""
ADAPTIVE_RHO = 0.5
"""ASAM's own radius, which means about what SAM's 0.05 does."""
IMAGES = 1_000
"""How many training images the loss is taken over: the same ones for every run."""
BATCH_SIZE = 250
"""Images that are evaluated together; it changes speed, and losses by rounding alone."""


def training_objective(
    model: nn.Module, data: Data | Task, device: torch.device, *, images: int = IMAGES, batch_size: int = BATCH_SIZE
) -> ModelObjective:
    """Return the mean loss over this many evenly spaced training images, or over all where there are fewer.

    In eval mode, without augmentation, with the labels that were trained on.
    """
    layout = fastest_memory_format(model)
    if isinstance(data, Task):
        rows = _evenly(sample_count(data.train), images)
        some = TaskBatches(taken_rows(data.train, rows), batch_size, device=device, memory_format=layout)
        return ModelObjective(Called(model), some.in_order(), data.loss)
    split = data.train.select(_evenly(len(data.train), images))
    batches = Batches(split, batch_size, mean=data.mean, std=data.std, device=device, memory_format=layout)
    return ModelObjective(model, batches.in_order())


def _evenly(count: int, most: int) -> torch.Tensor:
    return torch.linspace(0, count - 1, min(most, count)).round().long()


def training_sharpness(model: nn.Module, data: Data | Task, device: torch.device) -> float:
    """Return R_S over the training images, as it stands in every record."""
    objective = training_objective(model, data, device)
    return sharpness(objective, objective.parameters, rho=RHO)


def objective_sharpness(model: nn.Module, batches: Iterable[Batch], loss: Loss) -> float:
    """Return R_S over batches of one's own."""
    objective = ModelObjective(Called(model), batches, loss)
    return sharpness(objective, objective.parameters, rho=RHO)


MEASURES = {"sharpness": training_sharpness}
"""What is measured of every trained model, by the names in its record."""


@dataclass(frozen=True)
class TrainedRun:
    """A run as its folder tells it: the record, the weights of the checkpoint, and the images they were trained on."""

    record: RunRecord
    epoch: int
    model: nn.Module
    objective: ModelObjective


def trained_run(
    path: str | Path, *, images: int = IMAGES, batch_size: int = BATCH_SIZE, device: str = "auto"
) -> TrainedRun:
    """Return the run of a folder of ``esam train``, or of one of its checkpoint files; they are only read.

    Its objective is the ``training_objective`` of this many images, in batches of this size.
    """
    path = Path(path)
    for name, value in (("images", images), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be 1 or more, got {value!r}")
    if not path.exists():
        raise ValueError(f"{path} does not exist; give the folder of a run of esam train, or its checkpoint")
    folder = path if path.is_dir() else path.parent
    if not (folder / RECORD_NAME).exists():
        raise ValueError(f"{folder} holds no {RECORD_NAME}; give the folder of a run of esam train, or its checkpoint")
    record = read_record(folder / RECORD_NAME)
    config = Config.from_json(record.config)
    for name in (config.data, config.model):
        if is_factory(name):
            raise ValueError(
                f"the run in {folder} was made with {name}, a function of your own, and a record's word is no reason "
                "to run it; take the model by esam.load_run(..., build_model=...) and look at it by esam.analysis"
            )
    where = chosen_device(device)
    state = _state(path, where)
    data = configured_data(config)
    model = prepared_model(config, data, where)
    try:
        model.load_state_dict(state["model"])
    except (RuntimeError, TypeError, AttributeError) as error:
        told = " ".join(str(error).split())
        raise ValueError(f"the weights in {path} are not those of {config.model}, the run's model ({told})") from error
    objective = training_objective(model, data, where, images=images, batch_size=batch_size)
    return TrainedRun(record, state["progress"]["epoch"], model, objective)


def figures(
    run: TrainedRun,
    *,
    rho: float = RHO,
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
    ascent = ascent_sharpness(objective, theta, rho=rho, steps=steps)
    found: dict[str, Any] = {
        "loss": float(objective(theta)),
        "sharpness": {"value": sharpness(objective, theta, rho=rho), "rho": rho},
        "ascent_sharpness": {"value": ascent, "rho": rho, "steps": steps},
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
        found["trace"] = {**hessian_trace(objective, theta, vectors=vectors)._asdict(), "vectors": vectors}
    if density:
        spectrum = spectral_density(objective, theta, lanczos=density)
        found["spectral_density"] = {**{k: v.tolist() for k, v in spectrum._asdict().items()}, "lanczos": density}
    return found


def random_landscape(
    run: TrainedRun,
    *,
    points: int,
    axes: int = 2,
    reach: float = 1.0,
    groups: int = 1,
    path: str | Path | None = None,
    progress: OnProgress | None = None,
    vmap: int = 1,
) -> Landscape:
    """Return the loss on a plane of points x points, for each of so many pairs of filter-normalised directions.

    With ``axes=1`` it is a line, along the first direction of each pair.
    """
    if groups < 1:
        raise ValueError(f"groups must be 1 or more, got {groups!r}")
    theta = run.objective.parameters
    directions = [(run.objective, random_plane(theta, seed=seed)[:axes]) for seed in range(groups)]
    return landscape(directions, theta, [even_axis(reach, points)] * axes, path=path, progress=progress, vmap=vmap)


def described(run: TrainedRun) -> dict[str, Any]:
    """Return what the figures were taken of, and with what."""
    record, device = run.record, next(run.model.parameters()).device
    return {
        "run": {"name": record.name, "method": record.method, "seed": record.seed, "id": record.run["id"]},
        "epoch": run.epoch,
        "images": run.objective.count,
        "environment": environment(str(device)),
    }


def _state(path: Path, device: torch.device) -> State:
    if path.is_dir():
        state = Checkpoint(path).load(device)
        if state is None:
            raise ValueError(f"{path} holds no checkpoint; train the run first: esam train --out {path}")
        return run_state(state, path)
    try:
        return run_state(read_state(path, device), path)
    except ValueError as error:
        raise ValueError(
            f"{path} is no checkpoint of esam train, or is damaged ({error}); give the run's folder"
        ) from error
