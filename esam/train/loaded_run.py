"""How is a trained run used again: its weights taken away, its model called, its minimum analysed?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from esam.analysis import (
    ModelObjective,
    adaptive_sharpness,
    ascent_sharpness,
    hessian_trace,
    m_sharpness,
    rounded_accuracy,
    sharpness,
    top_eigenvalues,
)
from esam.analysis.objective import Batch, evaluating
from esam.extras import require
from esam.files import write_atomically

from .batches import Batches, Normalise
from .build import chosen_device, placed
from .checkpoint import Checkpoint
from .config import Config, is_factory
from .datasets import load_data
from .evaluation import are_classes
from .models import MODELS, build_model, fastest_memory_format
from .pictures import Decoder, Pictures
from .record import RECORD_NAME, RunRecord, read_record
from .samples import Inputs, Samples, on_device, outputs_of, sample_count, taken_rows
from .task import Task, changed_data, data_facts

RHO = 0.05
"""One radius for all methods, or their sharpness could not be compared: SAM's usual one."""
ADAPTIVE_RHO = 0.5
"""ASAM's own radius, which means about what SAM's 0.05 does."""
ASCENT_STEPS, M, VECTORS = 10, 128, 10
"""Of projected ascent; samples that share a perturbation; random vectors behind the Hessian's trace."""
IMAGES = 1_000
"""How many training images the loss is taken over: the same ones for every run."""
BATCH_SIZE = 250
"""Images that are evaluated together; it changes speed, and losses by rounding alone."""


@dataclass(frozen=True)
class LoadedRun:
    """A trained model, in eval mode, and what using it takes."""

    record: RunRecord
    model: nn.Module
    epoch: int
    """That the weights are of."""

    @property
    def about(self) -> dict[str, Any]:
        """What goes with the weights to another program: the run, classes, input shape and normalisation."""
        return describe_weights(self.record, self.epoch)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes' names in the order of the outputs; None where the targets were no classes, or had no names."""
        classes = (self.record.data or {}).get("classes")
        return None if classes is None else tuple(classes)

    def read(self, files: Sequence[str | Path]) -> Tensor:
        """Return pictures as the model takes them: decoded, resized and normalised as they were for training."""
        about = self.about
        if about["mean"] is None:
            raise ValueError(
                f"this run was trained on {about['data']}, no pictures; take it by esam.load_run(...) and call it with "
                "inputs as its model takes them"
            )
        channels, height, width = about["shape"]
        decoder = Decoder(channels, height, width, fit=about["resized"])
        pictures = decoder.decode_all(Pictures(tuple(map(str, files))), torch.arange(len(files)))
        normalised = Normalise(tuple(about["mean"]), tuple(about["std"]))(pictures)
        return normalised.contiguous(memory_format=fastest_memory_format(self.model))

    @torch.no_grad()
    def __call__(self, inputs: Inputs) -> Tensor:
        """Return the model's outputs."""
        device = next(self.model.parameters()).device
        outputs: Tensor = outputs_of(self.model, on_device(inputs, device))
        return outputs.cpu()

    def objective(self, *, images: int = IMAGES) -> ModelObjective:
        """Return the ``training_objective`` of this many images; the data are read again."""
        if images < 1:
            raise ValueError(f"images must be 1 or more, got {images!r}")
        config = Config.from_json(self.record.config)
        if is_factory(config.data):
            raise ValueError(
                f"the run in {self.record.path.parent} was made with {config.data}, a function of your own, and a "
                "record's word is no reason to run it; take the model by esam.load_run(...) and look at it by "
                "esam.analysis"
            )
        task = load_data(config)
        if (how := changed_data(self.record.data, data_facts(task))) is not None:
            raise ValueError(f"{how}; give back the data that the run in {self.record.path.parent} was trained on")
        return training_objective(self.model, task, next(self.model.parameters()).device, images=images)


def describe_weights(record: RunRecord, epoch: int) -> dict[str, Any]:
    """Return of which run, model, data and epoch weights are, and what using them takes."""
    facts, config = record.data or {}, Config.from_json(record.config)
    return {
        "run": {"name": record.name, "method": record.method, "seed": record.seed, "id": record.run.get("id")},
        "model": config.model,
        "data": config.data,
        "resized": config.size is not None,
        **{name: facts.get(name) for name in ("classes", "shape", "mean", "std")},
        "epoch": epoch,
    }


def load_run(path: str | Path, *, build_model: Callable[[], nn.Module] | None = None, device: str = "cpu") -> LoadedRun:
    """Return the trained model of a run's folder, ready to use; nothing in the folder can run code.

    Its weights are those of the last checkpoint. A model of your own is built by ``build_model``, the function that it
    was trained with: its name in a record is not imported.
    """
    record, tensors, epoch = run_weights(path)
    model = _named_model(record) if build_model is None else build_model()
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(
            f"the weights of {path} are not those of this model; give the function that the run was trained with "
            f"({' '.join(str(error).split())})"
        ) from error
    return LoadedRun(record, placed(model, chosen_device(device)).eval(), epoch)


def run_weights(path: str | Path) -> tuple[RunRecord, dict[str, Tensor], int]:
    """Return the record of a run's folder, and the weights of its last checkpoint with their epoch."""
    folder = Path(path)
    if not (folder / RECORD_NAME).is_file():
        raise ValueError(f"{folder} holds no {RECORD_NAME}; give the folder of a run of esam train or esam compare")
    state = Checkpoint(folder).load()
    if state is None:
        raise ValueError(f"{folder} holds no weights: no epoch was trained, or its checkpoint is gone; train it again")
    weights = state["evaluated" if "evaluated" in state else "model"]
    return read_record(folder / RECORD_NAME), weights, state["progress"]["epoch"]


def export_weights(path: str | Path, out: Path) -> None:
    """Write a run's weights as safetensors, with what using them takes as JSON under ``esam`` in the file's head."""
    require("safetensors", purpose="exporting weights")
    from safetensors.torch import save

    record, tensors, epoch = run_weights(path)
    copies = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}  # it refuses weights that are tied
    write_atomically(out, save(copies, metadata={"esam": json.dumps(describe_weights(record, epoch))}))


def _named_model(record: RunRecord) -> nn.Module:
    name, facts = Config.from_json(record.config).model, record.data or {}
    if name not in MODELS and not name.startswith("timm/"):
        raise ValueError(
            f"the model of {record.path.parent} is {name}, a function of your own, and a record's word is no reason to "
            f"run it: give it as build_model= (--model {name})"
        )
    if facts.get("classes") is None:
        raise ValueError(f"the record does not tell how many classes {name} was built for; give build_model=")
    channels, height, _ = facts["shape"]
    return build_model(name, classes=len(facts["classes"]), channels=channels, size=height)


class _WithInputs(nn.Module):
    """A model that is called with the inputs of a batch, whatever they are."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs) -> Any:
        return outputs_of(self.model, inputs)


def training_objective(model: nn.Module, task: Task, device: torch.device, *, images: int = IMAGES) -> ModelObjective:
    """Return the mean loss over this many evenly spaced training samples, or over all where there are fewer.

    In eval mode, without augmentation, with the labels that were trained on.
    """
    called, batches = _evenly_spaced(model, task, task.train, device, images)
    return ModelObjective(called, batches, task.loss)


def _evenly_spaced(
    model: nn.Module, task: Task, samples: Samples, device: torch.device, most: int = IMAGES
) -> tuple[nn.Module, list[Batch]]:
    """Return batches of evenly spaced samples, and the model as it takes them."""
    count = sample_count(samples)
    some = taken_rows(samples, torch.linspace(0, count - 1, min(most, count)).round().long())
    layout = fastest_memory_format(model)
    batches = Batches(some, BATCH_SIZE, transform=task.transform, device=device, memory_format=layout)
    called = model if task.transform is not None else _WithInputs(model)  # pictures are one tensor
    return called, list(batches)


def training_sharpness(model: nn.Module, task: Task, device: torch.device) -> float:
    """Return R_S over the training images, as it stands in every record."""
    objective = training_objective(model, task, device)
    return sharpness(objective, objective.parameters, rho=RHO)


def accuracy_of_rounded_weights(model: nn.Module, task: Task, device: torch.device) -> dict[str, float] | None:
    """Return the accuracy on evenly spaced test samples with weights of 32, 8 and 4 bits; None without classes."""
    called, batches = _evenly_spaced(model, task, task.test, device)
    with torch.no_grad(), evaluating(model):
        outputs = called(batches[0][0])
    return rounded_accuracy(called, batches) if are_classes(outputs, torch.cat([y for _, y in batches])) else None


MEASURES = {"sharpness": training_sharpness, "rounded_accuracy": accuracy_of_rounded_weights}
"""What is measured of every trained model, by the names in its record."""


def figures(objective: ModelObjective, *, rho: float = RHO, eigenvalues: int = 1) -> dict[str, Any]:
    """Return the loss and its sharpness; unless it is 0, ``eigenvalues`` adds so many of the Hessian, and its trace."""
    theta = objective.parameters
    ascent = ascent_sharpness(objective, theta, rho=rho, steps=ASCENT_STEPS)
    result: dict[str, Any] = {
        "loss": float(objective(theta)),
        "sharpness": {"value": sharpness(objective, theta, rho=rho), "rho": rho},
        "ascent_sharpness": {"value": ascent, "rho": rho, "steps": ASCENT_STEPS},
        "m_sharpness": {"value": m_sharpness(objective, theta, rho=rho, m=M), "rho": rho, "m": M},
        "adaptive_sharpness": {"value": adaptive_sharpness(objective, theta, rho=ADAPTIVE_RHO), "rho": ADAPTIVE_RHO},
    }
    if eigenvalues:
        result["eigenvalues"] = top_eigenvalues(objective, theta, k=eigenvalues)
        result["trace"] = {**hessian_trace(objective, theta, vectors=VECTORS)._asdict(), "vectors": VECTORS}
    return result
