"""How is a trained model used again, without its data?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .checkpoint import Checkpoint, run_state
from .config import Config
from .data.batches import Normalise
from .data.pictures import Decoder, FilePictures
from .facts import data_facts
from .inputs import Inputs, on_device, outputs_of
from .models import MODELS, build_model, fastest_memory_format
from .record import RECORD_NAME, RunRecord, read_record
from .weights import BEST_NAME, LAST_NAME, About, about, read_weights

WHICH = {"last": LAST_NAME, "best": BEST_NAME}


@dataclass(frozen=True)
class SavedRun:
    """A trained model, in eval mode, and what using it takes."""

    record: RunRecord
    model: nn.Module
    about: About
    """Classes, input shape, normalisation, and the epoch that the weights are of."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes' names in the order of the outputs; None where the targets were no classes, or had no names."""
        told = self.about.get("classes")
        return None if told is None else tuple(told)

    def read(self, files: Sequence[str | Path]) -> Tensor:
        """Return pictures as the model takes them: decoded, resized and normalised as they were for training."""
        if self.about.get("mean") is None:
            raise ValueError(
                f"this run was trained on {self.about['data']}, which are no pictures; prepare inputs of shape "
                f"{self.about.get('shape')} yourself"
            )
        channels, height, width = self.about["shape"]
        decode = Decoder(channels, height, width, fit=bool(self.about["resized"]))
        pictures = FilePictures(tuple(map(str, files)))
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
) -> SavedRun:
    """Return the trained model of a run's folder, ready to use; nothing in the folder can run code.

    ``weights`` are the last, as in the table, or the best by the test data, which flatters. A model of your own is
    built by ``build_model``, the function that it was trained with: its name in a record is not imported.
    """
    folder = Path(path)
    tensors, told, record = run_weights(folder, weights)
    config = Config.from_json(record.config)
    if build_model is not None:
        model = build_model()
    elif config.model in MODELS or config.model.startswith("timm/"):
        model = _named_model(config.model, told)
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
    return SavedRun(record, placed.eval(), told)


def run_weights(folder: Path, weights: str) -> tuple[dict[str, Tensor], About, RunRecord]:
    """Return the weights of a run by name, what is told of them, and the run's record."""
    if weights not in WHICH:
        raise ValueError(f"weights must be one of {', '.join(WHICH)}, got {weights!r}")
    if not (folder / RECORD_NAME).is_file():
        raise ValueError(f"{folder} holds no {RECORD_NAME}; give the folder of a run of esam train or esam compare")
    record = read_record(folder / RECORD_NAME)
    kept = folder / WHICH[weights]
    if kept.exists():
        tensors, told = read_weights(kept)
        return tensors, {**about(record, {}), **told}, record
    state = Checkpoint(folder).load() if weights == "last" else None
    if state is None:
        raise ValueError(
            f"{folder} holds no {weights} weights; train the run again with this version, or ask for others"
        )
    run_state(state, folder)
    told = about(record, {"epoch": state["progress"]["epoch"]})
    if record.data is None:  # an older record: the data themselves tell
        from .runs import configured_data

        facts = data_facts(configured_data(Config.from_json(record.config)))
        told |= {name: facts.get(name) for name in ("classes", "shape", "mean", "std")}
    return state["model"], told, record


def _named_model(name: str, told: dict[str, Any]) -> nn.Module:
    channels, height, _ = told["shape"]
    if told.get("classes") is None:
        raise ValueError(f"the record does not tell how many classes {name} was built for; give build_model=")
    return build_model(name, classes=len(told["classes"]), channels=channels, size=height)
