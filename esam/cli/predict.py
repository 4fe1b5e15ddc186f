"""``esam predict``: predict on new files with a trained run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from .parsing import parse


@dataclass(frozen=True)
class PredictOptions:
    """Predict on pictures, or on files of your own kind, with a trained run; CSV or JSON."""

    run: Path
    """Folder of a run."""
    files: tuple[Path, ...]
    """Pictures, folders of pictures, or files that --read reads."""
    out: Path | None = None
    """File to write, .csv or .json; printed as CSV if not given."""
    force: bool = False
    """Overwrite OUT if it exists."""
    model: str | None = None
    """A model of your own: the package.module:function that it was trained with."""
    data: str | None = None
    """If that function takes the data: the package.module:function that gives them."""
    read: str | None = None
    """For files of your own kind: a package.module:function from a path to inputs, a sample in each row."""


def predict(arguments: list[str]) -> None:
    """``esam predict``: files to classes."""
    options = parse("predict", PredictOptions, arguments)
    from esam.files import check_new, write_atomically
    from esam.train.loaded_run import load_run
    from esam.train.predict import as_csv, predictions
    from esam.train.task import find_factory, own_builder

    if options.out is not None:
        check_new(options.out, force=options.force, inputs=options.files)
    run = load_run(options.run, build_model=own_builder(options.model, options.data))
    read = None if options.read is None else find_factory(options.read)
    found = list(predictions(run, options.files, read=read))
    if not found:
        raise ValueError("there are no pictures in the folders that were given")
    as_json = options.out is not None and options.out.suffix == ".json"
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n" if as_json else as_csv(found)
    if options.out is None:
        print(text, end="")
    else:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.out, text.encode())
        print(options.out)
    if failed := [line["error"] for line in found if "error" in line]:
        raise RuntimeError(f"{len(failed)} of {len(found)} have no prediction, the first: {failed[0]}")
