"""The command line: parsing and printing only, a file for each command, read when it is called."""

from __future__ import annotations

import sys
from importlib import import_module

from esam.train.names import did_you_mean

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


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = arguments.pop(0) if arguments else "--help"
    if command in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if command in ("-V", "--version"):
        import esam

        print(esam.__version__)
        return 0
    try:
        if command not in COMMANDS:
            raise ValueError(f"unknown command {command!r}.{did_you_mean(command, COMMANDS)} See esam --help")
        module = import_module(f"{__name__}.{COMMANDS[command]}")
        getattr(module, command)(arguments)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "esam":
            raise
        print(f"esam: {command} needs {error.name}; run: pip install {_extra(error.name)}", file=sys.stderr)
        return 1
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        print(f"esam: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("esam: interrupted; the same command resumes", file=sys.stderr)
        return 130
    return 0


def _extra(package: str) -> str:
    """Return what to install for a package: the extra that has it, or the package itself."""
    extras = {"curvlinops": "analysis", "scipy": "analysis", "matplotlib": "analysis", "tensorboard": "tensorboard"}
    extras |= dict.fromkeys(("tyro", "rich", "plotly", "jinja2", "filelock", "numpy", "PIL", "sklearn"), "train")
    extras |= dict.fromkeys(("datasets", "msgspec", "safetensors"), "train")
    extras |= {"ray": "cluster"} | dict.fromkeys(("optuna", "sqlalchemy", "psycopg"), "sweep")
    whole = package.split(".")[0]
    return f"torch-esam[{extras[whole]}]" if whole in extras else whole
