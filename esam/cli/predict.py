"""``esam predict``: predict on new pictures with a trained run."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path

from .parsing import parse

COLUMNS = ("file", "class", "probability", "error")


@dataclass(frozen=True)
class PredictOptions:
    """Predict on pictures with a trained run; CSV or JSON."""

    run: Path
    """Folder of a run."""
    files: tuple[Path, ...]
    """Pictures, or folders of pictures."""
    out: Path | None = None
    """File to write, .csv or .json; printed as CSV if not given."""
    force: bool = False
    """Overwrite OUT if it exists."""
    model: str | None = None
    """A model of your own: the package.module:function that it was trained with."""


def predict(arguments: list[str]) -> None:
    """``esam predict``: files to classes."""
    options = parse("predict", PredictOptions, arguments)
    from esam.files import check_new, write_atomically
    from esam.train.loaded_run import load_run
    from esam.train.predict import predictions
    from esam.train.task import make_model

    if options.out is not None:
        check_new(options.out, force=options.force, inputs=options.files)
    name = options.model
    run = load_run(options.run, build_model=None if name is None else lambda: make_model(name))
    lines = list(predictions(run, options.files))
    if not lines:
        raise ValueError("there are no pictures in the folders that were given")
    if options.out is not None and options.out.suffix == ".json":
        text = json.dumps(lines, indent=1, ensure_ascii=False) + "\n"
    else:
        table = io.StringIO()
        writer = csv.DictWriter(table, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        text = table.getvalue()
    if options.out is None:
        print(text, end="")
    else:
        # a file's name may be no text: CSV keeps its bytes, which JSON cannot
        unknown = "replace" if options.out.suffix == ".json" else "surrogateescape"
        write_atomically(options.out, text.encode(errors=unknown))
        print(options.out)
    if failed := [line["error"] for line in lines if "error" in line]:
        raise RuntimeError(f"{len(failed)} of {len(lines)} have no prediction, the first: {failed[0]}")
