"""How is a trained run used again: its weights taken away, its model called, its minimum analysed?"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

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
    rounded_accuracy,
    select,
    sharpness,
    spectral_density,
    top_eigenvalues,
)
from esam.analysis.landscape import OnProgress
from esam.analysis.objective import Batch, evaluating
from esam.extras import require
from esam.files import write_atomically

from .batches import Batches, Normalise
from .checkpoint import Checkpoint, run_state
from .config import Config, is_factory
from .evaluation import are_classes
from .models import MODELS, build_model, fastest_memory_format
from .pictures import Decoder, Pictures
from .record import RECORD_NAME, RunRecord, environment, read_record
from .samples import Inputs, InputsAdapter, on_device, outputs_of, sample_count, taken_rows
from .task import Task
from .tensor_files import read_tensors, write_tensors

BEST_NAME, LAST_NAME = "best.safetensors", "last.safetensors"
FORMAT = 1

About = dict[str, Any]
"""What stands beside weights in their file: of which run, model and data they are, and from which epoch."""


def describe_weights(record: RunRecord, line: Mapping[str, Any]) -> About:
    """Return what weights carry with them."""
    facts, config = record.data or {}, Config.from_json(record.config)
    return {
        "format": FORMAT,
        "run": {"name": record.name, "method": record.method, "seed": record.seed, "id": record.run.get("id")},
        "model": config.model,
        "data": config.data,
        "resized": config.size is not None,
        **{name: facts.get(name) for name in ("classes", "shape", "mean", "std", "dtype")},
        **{name: line.get(name) for name in ("epoch", "test_accuracy", "test_loss")},
    }


def write_weights(path: Path, model: nn.Module, about: About) -> None:
    """Write a model's weights and buffers, and what is said about them."""
    write_tensors(path, {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}, about)


WHICH = {"last": LAST_NAME, "best": BEST_NAME}


@dataclass(frozen=True)
class LoadedRun:
    """A trained model, in eval mode, and what using it takes."""

    record: RunRecord
    model: nn.Module
    about: About
    """Classes, input shape, normalisation, and the epoch that the weights are of."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes' names in the order of the outputs; None where the targets were no classes, or had no names."""
        classes = self.about.get("classes")
        return None if classes is None else tuple(classes)

    def read(self, files: Sequence[str | Path]) -> Tensor:
        """Return pictures as the model takes them: decoded, resized and normalised as they were for training."""
        if self.about.get("mean") is None:
            raise ValueError(
                f"this run was trained on {self.about['data']}, which are no pictures; prepare inputs of shape "
                f"{self.about.get('shape')} yourself"
            )
        channels, height, width = self.about["shape"]
        decode = Decoder(channels, height, width, fit=bool(self.about["resized"]))
        pictures = Pictures(tuple(map(str, files)))
        decoded = torch.stack([torch.from_numpy(decode(pictures, row).copy()) for row in range(len(pictures))])
        normalised = Normalise(tuple(self.about["mean"]), tuple(self.about["std"]))(decoded.permute(0, 3, 1, 2))
        return normalised.contiguous(memory_format=fastest_memory_format(self.model))

    @torch.no_grad()
    def __call__(self, inputs: Inputs) -> Tensor:
        """Return the model's outputs."""
        device = next(self.model.parameters()).device
        outputs: Tensor = outputs_of(self.model, on_device(inputs, device))
        return outputs.cpu()


def load_run(
    path: str | Path,
    *,
    weights: str = "last",
    build_model: Callable[[], nn.Module] | None = None,
    device: str = "cpu",
) -> LoadedRun:
    """Return the trained model of a run's folder, ready to use; nothing in the folder can run code.

    ``weights`` are the last, as in the table, or the best by the test data, which flatters. A model of your own is
    built by ``build_model``, the function that it was trained with: its name in a record is not imported.
    """
    folder = Path(path)
    tensors, about, record = run_weights(folder, weights)
    config = Config.from_json(record.config)
    if build_model is not None:
        model = build_model()
    elif config.model in MODELS or config.model.startswith("timm/"):
        model = _named_model(config.model, about)
    else:
        raise ValueError(
            f"the model of {folder} is {config.model}, a function of your own, and a record's word is no reason to run "
            f"it: give it as build_model= (--model {config.model})"
        )
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        told_by_torch = " ".join(str(error).split())
        raise ValueError(
            f"the weights of {folder} are not those of this model; give the function that the run was trained with "
            f"({told_by_torch})"
        ) from error
    placed: nn.Module = model.to(device=device, memory_format=fastest_memory_format(model))  # type: ignore[call-overload]
    return LoadedRun(record, placed.eval(), about)


def run_weights(folder: Path, weights: str) -> tuple[dict[str, Tensor], About, RunRecord]:
    """Return the weights of a run by name, what is said about them, and the run's record."""
    if weights not in WHICH:
        raise ValueError(f"weights must be one of {', '.join(WHICH)}, got {weights!r}")
    if not (folder / RECORD_NAME).is_file():
        raise ValueError(f"{folder} holds no {RECORD_NAME}; give the folder of a run of esam train or esam compare")
    record = read_record(folder / RECORD_NAME)
    kept = folder / WHICH[weights]
    if kept.exists() and (weights == "best" or record.end is not None):  # else it goes on, and the last are of before
        tensors, about = read_tensors(kept)
        return tensors, {**describe_weights(record, {}), **about}, record
    state = Checkpoint(folder).load() if weights == "last" else None
    if state is None:
        raise ValueError(f"{folder} holds no {weights} weights; train the run again, or ask for others")
    run_state(state, folder)
    about = describe_weights(record, {"epoch": state["progress"]["epoch"]})
    return state["evaluated" if "evaluated" in state else "model"], about, record


def _named_model(name: str, about: dict[str, Any]) -> nn.Module:
    channels, height, _ = about["shape"]
    if about.get("classes") is None:
        raise ValueError(f"the record does not tell how many classes {name} was built for; give build_model=")
    return build_model(name, classes=len(about["classes"]), channels=channels, size=height)


def write_onnx(run: LoadedRun, path: Path) -> None:
    """Write the model as an ONNX graph for batches of any size; classes and normalisation stand beside it as JSON."""
    require("onnx", "onnxscript", purpose="exporting to ONNX")
    shape, kind = run.about.get("shape"), str(run.about.get("dtype") or "torch.float32").removeprefix("torch.")
    if shape is None:
        raise ValueError("the record does not tell the shape of an input; export the model with torch.onnx.export")
    example = torch.zeros(2, *shape, dtype=getattr(torch, kind))  # a batch of 1 would be taken for a constant
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")  # of the exporter's own parts
            program = torch.onnx.export(
                run.model.cpu(),
                (example,),
                dynamo=True,
                input_names=["input"],
                output_names=["output"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
            assert program is not None, "the exporter returns a program"
            graph = program.model_proto.SerializeToString()
    except Exception as error:  # torch has many kinds for a model that it cannot trace
        raise ValueError(f"torch cannot export this model to ONNX ({str(error).splitlines()[0]})") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, graph)
    text = json.dumps(run.about, indent=1, ensure_ascii=False) + "\n"
    write_atomically(path.with_name(f"{path.name}.json"), text.encode())


RHO = 0.05
"""One radius for all methods, or their sharpness could not be compared: SAM's usual one."""
ADAPTIVE_RHO = 0.5
"""ASAM's own radius, which means about what SAM's 0.05 does."""
IMAGES = 1_000
"""How many training images the loss is taken over: the same ones for every run."""
BATCH_SIZE = 250
"""Images that are evaluated together; it changes speed, and losses by rounding alone."""


def training_objective(
    model: nn.Module, task: Task, device: torch.device, *, images: int = IMAGES, batch_size: int = BATCH_SIZE
) -> ModelObjective:
    """Return the mean loss over this many evenly spaced training samples, or over all where there are fewer.

    In eval mode, without augmentation, with the labels that were trained on.
    """
    called, batches = _evenly_spaced(model, task, task.train, device, images, batch_size)
    return ModelObjective(called, batches, task.loss)


def _evenly_spaced(
    model: nn.Module, task: Task, samples: Any, device: torch.device, most: int, batch_size: int
) -> tuple[nn.Module, list[Batch]]:
    """Return batches of evenly spaced samples, and the model as it takes them."""
    count = sample_count(samples)
    some = taken_rows(samples, torch.linspace(0, count - 1, min(most, count)).round().long())
    layout = fastest_memory_format(model)
    batches = Batches(some, batch_size, transform=task.transform, device=device, memory_format=layout)
    called = model if task.transform is not None else InputsAdapter(model)  # pictures are one tensor
    return called, list(batches)


def training_sharpness(model: nn.Module, task: Task, device: torch.device) -> float:
    """Return R_S over the training images, as it stands in every record."""
    objective = training_objective(model, task, device)
    return sharpness(objective, objective.parameters, rho=RHO)


def accuracy_of_rounded_weights(model: nn.Module, task: Task, device: torch.device) -> dict[str, float] | None:
    """Return the accuracy on evenly spaced test samples with weights of 32, 8 and 4 bits; None without classes."""
    called, batches = _evenly_spaced(model, task, task.test, device, IMAGES, BATCH_SIZE)
    with torch.no_grad(), evaluating(model):
        outputs = called(batches[0][0])
    return rounded_accuracy(called, batches) if are_classes(outputs, batches[0][1]) else None


MEASURES = {"sharpness": training_sharpness, "rounded_accuracy": accuracy_of_rounded_weights}
"""What is measured of every trained model, by the names in its record."""


@dataclass(frozen=True)
class TrainedRun:
    """A run of a folder: the record, the weights that were evaluated, and the images they were trained on."""

    record: RunRecord
    epoch: int
    model: nn.Module
    objective: ModelObjective


def trained_run(
    folder: str | Path, *, images: int = IMAGES, batch_size: int = BATCH_SIZE, device: str = "auto"
) -> TrainedRun:
    """Return the run of a folder of ``esam train``, which is only read, with the loss over some training images.

    Its objective is the ``training_objective`` of this many images, in batches of this size.
    """
    from .build import chosen_device, configured_task

    for name, value in (("images", images), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be 1 or more, got {value!r}")
    where = chosen_device(device)
    run = load_run(folder, device=str(where))
    config = Config.from_json(run.record.config)
    if is_factory(config.data):
        raise ValueError(
            f"the run in {folder} was made with {config.data}, a function of your own, and a record's word is no "
            "reason to run it; take the model by esam.load_run(...) and look at it by esam.analysis"
        )
    objective = training_objective(run.model, configured_task(config), where, images=images, batch_size=batch_size)
    return TrainedRun(run.record, run.about["epoch"] or 0, run.model, objective)


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


def describe_analysis(run: TrainedRun) -> dict[str, Any]:
    """Return what the figures were taken of, and with what."""
    record, device = run.record, next(run.model.parameters()).device
    return {
        "run": {"name": record.name, "method": record.method, "seed": record.seed, "id": record.run["id"]},
        "epoch": run.epoch,
        "images": run.objective.count,
        "environment": environment(str(device)),
    }
