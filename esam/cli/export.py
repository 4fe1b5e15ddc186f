"""``esam export``: a run's weights in one file, for another program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from .parsing import POSITIONAL, parse


@dataclass(frozen=True)
class ExportOptions:
    """A run's weights as safetensors, with classes and normalisation inside, or its model as an ONNX graph."""

    run: Annotated[Path, POSITIONAL]
    """Folder of a run."""
    out: Annotated[Path, POSITIONAL]
    """The file: NAME.safetensors or NAME.onnx (needs the extra `onnx`)."""
    force: bool = False
    """Overwrite OUT if it exists."""
    weights: Literal["last", "best"] = "last"
    """Those after the last epoch; or from the epoch with the best test accuracy (optimistic: selected on it)."""
    model: str | None = None
    """For ONNX, a model of your own: the package.module:function that it was trained with."""
    data: str | None = None
    """If that function takes the data: the package.module:function that gives them."""


def export(arguments: list[str]) -> None:
    """``esam export``: weights or a graph."""
    options = parse("export", ExportOptions, arguments)
    ending = options.out.suffix
    if ending not in (".safetensors", ".onnx"):
        raise ValueError(f"the file must end in .safetensors or .onnx, got {options.out}")
    from esam.files import check_new

    check_new(options.out, force=options.force, option="OUT")
    if ending == ".safetensors":
        from esam.train.loaded_run import run_weights
        from esam.train.tensor_files import write_tensors

        tensors, about, _ = run_weights(options.run, options.weights)
        write_tensors(options.out, tensors, about)
    else:
        from esam.train.loaded_run import load_run, write_onnx
        from esam.train.task import own_builder

        build = own_builder(options.model, options.data)
        write_onnx(load_run(options.run, weights=options.weights, build_model=build), options.out)
    print(options.out)
