"""What does a trained model say of new files: pictures, or whatever a function of the user's reads?"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esam.optim.indexing import size_of

from .datasets import ENDINGS
from .loaded_run import LoadedRun
from .samples import Inputs, rows_of

Reader = Callable[[Path], Inputs]
"""A file -> inputs as the model takes them, a sample in each row: a tensor, or tensors by name."""
BATCH = 64

Prediction = dict[str, Any]
"""``file``; ``row``, from 0, of a file that holds several; then ``class``, ``probability`` and the ``probabilities`` of
all classes, or the ``outputs`` by their numbers; or an ``error``: why there is no prediction."""


def predictions(run: LoadedRun, files: Iterable[str | Path], *, read: Reader | None = None) -> Iterator[Prediction]:
    """Give one prediction for each picture, or for each sample that ``read`` finds in a file, in the files' order.

    A folder stands for the pictures in it. A file that cannot be read gives a prediction with an ``error``, and the
    others go on.
    """
    for file in _all_files(files):
        try:
            if not file.is_file():
                raise ValueError(f"there is no file {file}")
            inputs = run.read([file]) if read is None else read(file)
            starts = range(0, size_of(inputs) or 0, BATCH)
            outputs = torch.cat([run(rows_of(inputs, slice(start, start + BATCH))) for start in starts])
        except (ValueError, OSError, RuntimeError) as error:
            yield {"file": str(file), "error": str(error)}
            continue
        for row, output in enumerate(outputs):
            yield {"file": str(file), **({} if read is None else {"row": row}), **_prediction(run, output)}


def _all_files(files: Iterable[str | Path]) -> Iterator[Path]:
    for file in map(Path, files):
        if file.is_dir():
            yield from sorted(path for path in file.rglob("*") if path.suffix.lower() in ENDINGS)
        else:
            yield file


def _prediction(run: LoadedRun, output: Tensor) -> Prediction:
    if not output.isfinite().all():
        return {"error": "the model's output is not finite; look for NaN or infinite numbers in its input"}
    last = (run.record.end or {}).get("test_accuracy", {}).get("last")
    if output.dim() != 1 or (run.classes is None and last is None):
        return {"outputs": {str(n): value for n, value in enumerate(output.flatten().tolist())}}
    names = run.classes or tuple(map(str, range(len(output))))
    shares = dict(zip(names, output.double().softmax(0).tolist(), strict=True))
    best = max(shares, key=shares.__getitem__)
    return {"class": best, "probability": shares[best], "probabilities": shares}


def as_csv(found: Sequence[Prediction]) -> str:
    """Write predictions as a table: file, row where files hold several, class and probability, or the outputs."""
    lines = [{**line, **line.get("outputs", {})} for line in found]
    outputs = dict.fromkeys(name for line in found for name in line.get("outputs", {}))
    wanted = ["file", "row", "class", "probability", *outputs, "error"]
    names = [name for name in wanted if name == "file" or any(name in line for line in lines)]
    text = io.StringIO()
    table = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows(lines)
    return text.getvalue()
