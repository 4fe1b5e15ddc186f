"""The command line: parsing and printing only, a file for each command, read when it is called."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module

from esam.extras import what_to_install
from esam.train.names import did_you_mean

from .channels import plain_warnings, print_anywhere
from .wording import as_typed

USAGE = """\
usage: esam COMMAND [OPTIONS]

Sharpness-aware training for PyTorch at ESAM's price.

commands:
  compare [RECIPE]  train by several methods and seeds, alike in all else; table and report
  train [RECIPE]    one run, with checkpoints and a record
  predict RUN FILES what a trained run says of new pictures or tables: CSV or JSON
  export RUN FILE   a run's weights as safetensors, or its model as ONNX
  analyze RUN       how sharp the minimum of a trained run is: sharpness, Hessian, landscape
  reproduce [ITEM]  the paper's tables and figures, made again; every claim checked
  frontier          methods and controls, tuned alike, in regimes of many kinds: the map
  sweep [RECIPE]    a search for settings, by one worker or many; table, front and report
  doctor [RECIPE]   some steps of a run, watched: what makes training worse, each with its remedy
  bench step        what a step of each method costs: time, passes, memory
  report FOLDER     the records below a folder as one HTML page
  methods           the methods that can be named, with their costs and settings
  models            the models that can be named
  recipes           the experiments that can be named

`esam COMMAND --help` lists a command's options.
"""
COMMANDS = {
    "compare": "compare",
    "train": "train",
    "predict": "predict",
    "export": "export",
    "analyze": "analyze",
    "reproduce": "reproduce",
    "frontier": "frontier",
    "sweep": "sweep",
    "doctor": "doctor",
    "bench": "bench",
    "report": "report",
    "methods": "listing",
    "models": "listing",
    "recipes": "listing",
}
"""The file that holds a command's function."""
NO_READER = 141
"""The exit code where whoever read our output, such as ``head``, has gone: as a shell tells it."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit code."""
    print_anywhere()
    try:
        try:
            with plain_warnings():
                code = _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            if sys.stdout is not None:  # as in a process without a console
                sys.stdout.flush()  # here, where a reader that has gone can still be answered
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # else the interpreter tries once more when it ends, and complains
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = NO_READER
    if _on_several_ranks():
        from esam.train.ranks import end_rank

        end_rank(code)
    return code


def _on_several_ranks() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1  # of torchrun


def _run(arguments: list[str]) -> int:
    command = arguments.pop(0) if arguments else "--help"
    if command in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if command in ("-V", "--version"):
        import esam

        print(esam.__version__)
        return 0
    if command not in COMMANDS:
        hint = did_you_mean(command, COMMANDS)
        print(f"esam: unknown command {command!r}.{hint} See esam --help", file=sys.stderr)
        return 1
    try:
        module = import_module(f"{__name__}.{COMMANDS[command]}")
        if _on_several_ranks():
            from .together import on_every_rank

            on_every_rank(command, getattr(module, command), arguments)
        else:
            getattr(module, command)(arguments)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "esam":
            raise
        print(f"esam: {command} needs {error.name}; run: pip install {what_to_install(error.name)}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        raise
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        rank = f" rank {os.environ['RANK']}:" if int(os.environ.get("RANK", "0")) > 0 else ""
        print(f"esam:{rank} {as_typed(str(error))}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print("esam: interrupted; the same command resumes", file=sys.stderr)
        return 130
    return 0
