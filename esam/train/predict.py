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

    A folder stands for the pictures in it. A file that cannot be read gives a prediction with an ``error``, and the
    others go on. ``read`` turns a file into inputs where it is neither a picture nor a table of numbers.
    """
    for file in _all_files(files):
        try:
            several, inputs = _inputs(run, file, read)
            count = size_of(inputs) or 0
            parts = [rows_of(inputs, slice(start, start + BATCH)) for start in range(0, count, BATCH)]
            outputs = torch.cat([run(part) for part in parts])
            bad = _not_finite(inputs)
        except (ValueError, OSError, RuntimeError) as error:
            yield {"file": str(file), "error": str(error)}
            continue
        for row, output in enumerate(outputs):
            if row in bad:
                said = {"error": f"{file}, row {row}, column {bad[row]} is not a finite number"}
            elif not output.isfinite().all():
                said = {"error": f"{file}: the model's output for row {row} is not finite"}
            else:
                said = _said(run, output)
            yield {"file": str(file), **({"row": row} if several else {}), **said}


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
    last = (run.record.end or {}).get("test_accuracy", {}).get("last")
    if output.dim() != 1 or (run.classes is None and last is None):
        return {"outputs": {str(n): value for n, value in enumerate(output.flatten().tolist())}}
    names = run.classes or tuple(map(str, range(len(output))))
    shares = dict(zip(names, output.double().softmax(0).tolist(), strict=True))
    best = max(shares, key=shares.__getitem__)
    return {"class": best, "probability": shares[best], "probabilities": shares}


def _not_finite(inputs: Inputs) -> dict[int, int]:
    """Return the rows of a tensor that hold NaN or infinity, each with the first such column, both from 0."""
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        return {}
    wrong = (~inputs.isfinite()).flatten(1) if inputs.dim() > 1 else (~inputs.isfinite()).unsqueeze(1)
    return {row: int(wrong[row].int().argmax()) for row in wrong.any(1).nonzero().flatten().tolist()}


def _all_files(files: Iterable[str | Path]) -> Iterator[Path]:
    for file in map(Path, files):
        if file.is_dir():
            yield from sorted(path for path in file.rglob("*") if path.suffix.lower() in ENDINGS)
        else:
            yield file


def _inputs(run: LoadedRun, file: Path, read: Reader | None) -> tuple[bool, Inputs]:
    """Return whether a file holds several samples, and its inputs."""
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    if read is not None:
        return True, read(file)
    if run.about.get("mean") is not None:
        return False, run.read([file])
    if file.suffix.lower() not in TABLES:
        raise ValueError(
            f"{file} is no table of numbers ({', '.join(TABLES)}); say how it is read: --read package.module:function"
        )
    numbers = _npy_numbers(file) if file.suffix.lower() == ".npy" else _csv_numbers(file)
    return True, _shaped(run, file, torch.from_numpy(np.asarray(numbers)))


def _npy_numbers(file: Path) -> Any:
    try:
        return np.load(file, allow_pickle=False)
    except ValueError as error:  # NumPy's own words name the switch that would let it run code
        raise ValueError(f"{file} is no array of plain numbers; save one with numpy.save") from error


def _csv_numbers(file: Path) -> np.ndarray[Any, Any]:
    """Return the numbers of a table; a first line that holds words is its head."""
    with file.open(newline="") as opened:
        lines = [line for line in csv.reader(opened) if line]
    for number, line in enumerate(lines):
        try:
            lines[number] = list(map(float, line))  # type: ignore[arg-type]
        except ValueError as error:
            if number:
                raise ValueError(f"{file}, line {number + 1}: {error}; a table holds numbers alone") from error
    if lines and isinstance(lines[0][0], str):
        lines = lines[1:]
    if len({len(line) for line in lines}) != 1:
        raise ValueError(f"{file} must hold a row at least, and rows of one length")
    return np.array(lines, dtype=np.float64)


def _shaped(run: LoadedRun, file: Path, numbers: Tensor) -> Tensor:
    shape = run.about.get("shape")
    if shape is None:
        return numbers.float()
    if numbers.dim() == 0 or numbers[0].numel() != math.prod(shape):
        each = numbers[0].numel() if numbers.dim() else 0
        raise ValueError(f"{file} has {each} numbers a row; the model takes {math.prod(shape)} (shape {shape})")
    kind = getattr(torch, str(run.about.get("dtype") or "torch.float32").removeprefix("torch."))
    return numbers.reshape(-1, *shape).to(kind)
