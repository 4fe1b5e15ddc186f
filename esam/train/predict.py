"""What does a trained model say of new pictures?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .datasets import ENDINGS
from .loaded_run import LoadedRun

Prediction = dict[str, Any]
"""``file``, ``class``, ``probability`` and the ``probabilities`` of all classes; or ``file`` and an ``error``."""


def predictions(run: LoadedRun, files: Iterable[str | Path]) -> Iterator[Prediction]:
    """Give one prediction for each picture, in the files' order; a folder stands for the pictures in it.

    A file that cannot be read gives a prediction with an ``error``, and the others go on.
    """
    for file in _all_files(files):
        try:
            (output,) = run(run.read([file])).double()
            if not output.isfinite().all():
                raise ValueError("the model's output is not finite; train it again with a lower lr")
            names = run.classes or tuple(map(str, range(len(output))))
            shares = dict(zip(names, output.softmax(0).tolist(), strict=True))
        except (ValueError, OSError, RuntimeError) as error:
            yield {"file": str(file), "error": str(error)}
            continue
        best = max(shares, key=shares.__getitem__)
        yield {"file": str(file), "class": best, "probability": shares[best], "probabilities": shares}


def _all_files(files: Iterable[str | Path]) -> Iterator[Path]:
    for file in map(Path, files):
        if file.is_dir():
            yield from sorted(path for path in file.rglob("*") if path.suffix.lower() in ENDINGS)
        else:
            yield file
