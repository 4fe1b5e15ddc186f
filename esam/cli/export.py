"""``esam export``: a run's weights in one file, for another program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from .parsing import parse


@dataclass(frozen=True)
class ExportOptions:
    """A run's weights as safetensors, with classes and normalisation inside, or its model as an ONNX graph."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of a run."""
    out: Annotated[Path, tyro.conf.Positional]
    """The file: NAME.safetensors or NAME.onnx (needs the extra `onnx`)."""
    weights: Literal["last", "best"] = "last"
    """Those after the last epoch, as in the table; or the best by the test data, which flatters."""
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
    if ending == ".safetensors":
        from esam.train.saved import run_weights
        from esam.train.weights import write_tensors

        tensors, told, _ = run_weights(options.run, options.weights)
        write_tensors(options.out, tensors, told)
    else:
        from esam.train.export import write_onnx
        from esam.train.saved import load_run
        from esam.train.task import own_builder

        build = own_builder(options.model, options.data)
        write_onnx(load_run(options.run, weights=options.weights, build_model=build), options.out)
    print(options.out)
