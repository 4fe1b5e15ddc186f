"""How are trained weights kept, so that they can be taken away? As safetensors: nothing in such a file can run code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from esam.files import write_atomically

from .config import Config
from .record import RunRecord

BEST_NAME, LAST_NAME = "best.safetensors", "last.safetensors"
FORMAT = 1

About = dict[str, Any]
"""What stands beside weights in their file: of which run, model and data they are, and from which epoch."""


class WeightsKeeper:
    """Keeps the weights of a run's best epoch so far, and those of its end.

    The best epoch is that of the highest test accuracy, or of the lowest test loss where there is no accuracy: chosen
    on the test data, so it flatters.
    """

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        scores = (score(line) for line in record.epochs)
        self._best = max((one for one in scores if one is not None), default=None)

    def epoch(self, line: Mapping[str, Any], model: nn.Module) -> None:
        """Keep the weights of this epoch if none was better."""
        now = score(line)
        if now is not None and (self._best is None or now > self._best):
            self._best = now
            write_weights(self._record.path.with_name(BEST_NAME), model, about(self._record, line))

    def end(self, line: Mapping[str, Any], model: nn.Module) -> None:
        """Keep the weights of the last epoch, whose figures these are."""
        write_weights(self._record.path.with_name(LAST_NAME), model, about(self._record, line))


def score(line: Mapping[str, Any]) -> float | None:
    """Return how good an epoch was, more being better; None where it was not evaluated."""
    if line.get("test_accuracy") is not None:
        return float(line["test_accuracy"])
    return None if line.get("test_loss") is None else -float(line["test_loss"])


def about(record: RunRecord, line: Mapping[str, Any]) -> About:
    """Return what weights carry with them."""
    facts, config = record.data or {}, Config.from_json(record.config)
    told = {name: facts.get(name) for name in ("classes", "shape", "mean", "std", "dtype")}
    return {
        "format": FORMAT,
        "run": {"name": record.name, "method": record.method, "seed": record.seed, "id": record.run.get("id")},
        "model": config.model,
        "data": config.data,
        "resized": config.size is not None,
        **told,
        **{name: line.get(name) for name in ("epoch", "test_accuracy", "test_loss")},
    }


def write_weights(path: Path, model: nn.Module, told: Mapping[str, Any]) -> None:
    """Write a model's weights and buffers; tensors that are shared are written for each of their names."""
    write_tensors(path, {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}, told)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], told: Mapping[str, Any]) -> None:
    """Write tensors by name, and what is told of them."""
    save = _library().save
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, save(whole, metadata={"esam": json.dumps(told)}))


def read_weights(path: Path) -> tuple[dict[str, Tensor], About]:
    """Return the tensors of a file by name, and what is told of them."""
    load, opened = _library().load_file, _library().safe_open
    try:
        with opened(str(path), framework="pt") as file:
            told = json.loads((file.metadata() or {}).get("esam", "{}"))
        return load(str(path)), told
    except Exception as error:  # the library has kinds of its own for a damaged file
        raise ValueError(f"{path} cannot be read ({error}); train the run again, or take its checkpoint") from error


def _library() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError("keeping weights takes safetensors; run: pip install torch-esam[train]") from error
    return safetensors.torch
