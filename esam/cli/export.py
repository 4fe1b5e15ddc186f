"""``esam export``: a run's weights in one file, for another program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .parsing import parse


@dataclass(frozen=True)
class ExportOptions:
    """A run's weights as safetensors, with classes and normalisation inside."""

    run: Path
    """Folder of a run."""
    out: Path
    """The file: NAME.safetensors."""
    force: bool = False
    """Overwrite OUT if it exists."""


def export(arguments: list[str]) -> None:
    """``esam export``: weights in a file."""
    options = parse("export", ExportOptions, arguments)
    if options.out.suffix != ".safetensors":
        raise ValueError(f"the file must end in .safetensors, got {options.out}")
    from esam.files import check_new
    from esam.train.loaded_run import export_weights

    check_new(options.out, force=options.force, option="OUT")
    export_weights(options.run, options.out)
    print(options.out)
