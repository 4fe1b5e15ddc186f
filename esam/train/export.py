"""How does a trained model leave for another program?"""

from __future__ import annotations

import io
import json
import logging
import warnings
from contextlib import redirect_stdout
from pathlib import Path

import torch

from esam.extras import require
from esam.files import write_atomically

from .loaded_run import LoadedRun

BATCH = 2
"""Samples in the example that a graph is traced with; 1 would be taken for a constant."""


def write_onnx(run: LoadedRun, path: Path) -> None:
    """Write the model as an ONNX graph for batches of any size; classes and normalisation stand beside it as JSON."""
    require("onnx", "onnxscript", purpose="exporting to ONNX")
    shape, kind = run.about.get("shape"), str(run.about.get("dtype") or "torch.float32").removeprefix("torch.")
    if shape is None:
        raise ValueError("the record does not tell the shape of an input; export the model with torch.onnx.export")
    example = torch.zeros(BATCH, *shape, dtype=getattr(torch, kind))
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")  # of the exporter's own parts
            program = torch.onnx.export(
                run.model.cpu(),
                (example,),
                dynamo=True,
                input_names=["input"],
                output_names=["output"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
            assert program is not None, "the exporter returns a program"
            graph = program.model_proto.SerializeToString()
    except Exception as error:  # torch has many kinds for a model that it cannot trace
        raise ValueError(f"torch cannot export this model to ONNX ({str(error).splitlines()[0]})") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, graph)
    text = json.dumps(run.about, indent=1, ensure_ascii=False) + "\n"
    write_atomically(path.with_name(f"{path.name}.json"), text.encode())
