"""What does a trained model say of new files: pictures, or tables with a sample in each row?"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from esam.optim.indexing import size_of

from .datasets import ENDINGS
from .loaded_run import LoadedRun
from .samples import Inputs, rows_of

Reader = Callable[[Path], Inputs]
"""A file -> inputs as the model takes them, a sample in each row: a tensor, or tensors by name."""
BATCH = 64
TABLES = (".csv", ".npy")

Prediction = dict[str, Any]
"""``file``; ``row``, from 0, of a file that holds several; then ``class``, ``probability`` and the ``probabilities`` of
all classes, or the ``outputs`` by their numbers; or an ``error``: why there is no prediction."""


def predictions(run: LoadedRun, files: Iterable[str | Path], *, read: Reader | None = None) -> Iterator[Prediction]:
    """Give one prediction for each picture, or for each row of each table, in the order of the files.

    A folder stands for the pictures in it. ``read`` turns a file into inputs where it is neither a picture nor a table
    of numbers. A file that cannot be read gives a prediction with an ``error``, and the others go on.
    """
    for file in _all_files(files):
        try:
            if not file.is_file():
                raise ValueError(f"there is no file {file}")
            picture = read is None and run.about["mean"] is not None
            inputs = run.read([file]) if picture else (read or run_table(run))(file)
            starts = range(0, size_of(inputs) or 0, BATCH)
            outputs = torch.cat([run(rows_of(inputs, slice(start, start + BATCH))) for start in starts])
        except (ValueError, OSError, RuntimeError) as error:
            yield {"file": str(file), "error": str(error)}
            continue
        bad = _not_finite(inputs)
        for row, output in enumerate(outputs):
            said = _said(run, output)
            if row in bad:
                said = {"error": f"{file}, row {row}, column {bad[row]} is not a finite number"}
            yield {"file": str(file), **({} if picture else {"row": row}), **said}


def run_table(run: LoadedRun) -> Reader:
    """Return what reads a table of numbers, .csv or .npy, as the model of a run takes its rows."""
    shape, kind = run.about["shape"], str(run.about["dtype"]).removeprefix("torch.")

    def read(file: Path) -> Tensor:
        if shape is None or file.suffix.lower() not in TABLES:
            raise ValueError(
                f"{file} is no table of numbers ({', '.join(TABLES)}); say how it is read: --read "
                "package.module:function"
            )
        try:
            numbers = np.load(file, allow_pickle=False) if file.suffix.lower() == ".npy" else _csv_numbers(file)
        except ValueError as error:
            if "pickle" in str(error):  # NumPy's own words name the switch that would let it run code
                raise ValueError(f"{file} is no array of plain numbers; save one with numpy.save") from error
            raise ValueError(f"{file}: {error}") from error
        if numbers.size == 0 or numbers[0].size != math.prod(shape):
            each = numbers[0].size if numbers.size else 0
            raise ValueError(f"{file} has {each} numbers a row; the model takes {math.prod(shape)} (shape {shape})")
        return torch.from_numpy(numbers).reshape(-1, *shape).to(getattr(torch, kind))

    return read


def _csv_numbers(file: Path) -> Any:
    """Return the numbers of a table; a first line that holds words is its head."""
    lines = [line for line in file.read_text().splitlines() if line.strip()]
    head = bool(lines) and any(letter.isalpha() for letter in lines[0].lower().replace("nan", "").replace("inf", ""))
    return np.loadtxt(lines[1:] if head else lines, delimiter=",", ndmin=2) if lines else np.empty(0)


def _not_finite(inputs: Inputs) -> dict[int, int]:
    """Return the rows of a tensor that hold NaN or infinity, each with the first such column, both from 0."""
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        return {}
    wrong = ~inputs.isfinite().reshape(len(inputs), -1)
    return {row: int(wrong[row].int().argmax()) for row in wrong.any(1).nonzero().flatten().tolist()}


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


def _said(run: LoadedRun, output: Tensor) -> Prediction:
    if not output.isfinite().all():
        return {"error": "the model's output is not finite"}
    last = (run.record.end or {}).get("test_accuracy", {}).get("last")
    if output.dim() != 1 or (run.classes is None and last is None):
        return {"outputs": {str(n): value for n, value in enumerate(output.flatten().tolist())}}
    names = run.classes or tuple(map(str, range(len(output))))
    shares = dict(zip(names, output.double().softmax(0).tolist(), strict=True))
    best = max(shares, key=shares.__getitem__)
    return {"class": best, "probability": shares[best], "probabilities": shares}


def _all_files(files: Iterable[str | Path]) -> Iterator[Path]:
    for file in map(Path, files):
        if file.is_dir():
            yield from sorted(path for path in file.rglob("*") if path.suffix.lower() in ENDINGS)
        else:
            yield file
