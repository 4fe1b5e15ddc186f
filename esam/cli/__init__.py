"""The command line: parsing and printing only, a file for each command, read when it is called."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout, suppress
from importlib import import_module
from typing import Any

from esam.extras import what_to_install
from esam.train.config import did_you_mean

USAGE = """\
usage: esam COMMAND [OPTIONS]

Sharpness-aware training for PyTorch.

commands:
  compare [RECIPE]   train by several methods and seeds, alike in all else;
                     who won, a table and a report
  train [RECIPE]     one run, with checkpoints and a record
  predict RUN FILES  predict on new pictures with a trained run
  export RUN FILE    a run's weights as safetensors
  report FOLDER      the records below a folder as one HTML page
  doctor [RECIPE]    watch some steps of a run for common problems, with fixes
  methods [NAME]     the methods, or one method with its cost and settings
  models             the models that can be named
  recipes            the experiments that can be named

for research:
  analyze RUN        sharpness, Hessian and loss landscape of a trained run
  bench              what a step of each method costs: time, passes, memory
  sweep [RECIPE]     search settings with Optuna, by one worker or many

`esam COMMAND --help` lists a command's options.
"""
COMMANDS = {
    **{name: name for name in ("compare", "train", "predict", "export", "report", "doctor")},
    **dict.fromkeys(("methods", "models", "recipes"), "listing"),
    **{name: name for name in ("analyze", "bench", "sweep")},
}
"""The file that holds a command's function."""
ON_SEVERAL_RANKS = ("train", "compare")
NO_READER = 141
"""The exit code where whoever read our output, such as ``head``, has gone: as a shell reports it."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit code."""
    for channel in (sys.stdout, sys.stderr):
        if isinstance(channel, io.TextIOWrapper):
            channel.reconfigure(errors="replace")  # a sign that a terminal does not know must not cost a result
    try:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _printer_of_warnings()
                code = _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            if sys.stdout is not None:  # as in a process without a console
                sys.stdout.flush()  # here, where a reader that has gone can still be answered
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # else the interpreter tries once more when it ends, and complains
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = NO_READER
    if _on_several_ranks():
        from esam.train.distributed import end_rank

        end_rank(code)
    return code


def _printer_of_warnings() -> Callable[..., None]:
    """Return what prints a warning as a sentence, once, without the line of code that it comes from."""
    seen: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in seen:
            seen.add(str(message))
            print(f"esam: warning: {message}", file=sys.stderr)

    return show


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
        return _failed(f"unknown command {command!r}.{did_you_mean(command, COMMANDS)} See esam --help", 2)
    from .parsing import UsageError

    try:
        function = getattr(import_module(f"{__name__}.{COMMANDS[command]}"), command)
        _on_every_rank(command, function, arguments) if _on_several_ranks() else function(arguments)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "esam":
            raise
        return _failed(f"{command} needs {error.name}; run: pip install {what_to_install(error.name)}")
    except SystemExit as stop:
        if stop.code in (0, None):  # after help
            raise
        if isinstance(stop.__context__, BrokenPipeError):  # as rich's consoles end where a reader has gone
            raise stop.__context__ from None
        return _failed(f"ended by SystemExit({stop.code!r}), which a model or data of your own must not raise")
    except BrokenPipeError:
        raise
    except (ValueError, RuntimeError, OSError, ImportError, MemoryError) as error:
        return _failed(str(error) or type(error).__name__, 2 if isinstance(error, UsageError) else 1)
    except KeyboardInterrupt:
        return _failed("interrupted; the same command resumes", 130)
    return 0


def _on_every_rank(command: str, function: Callable[[list[str]], None], arguments: list[str]) -> None:
    """Run a command under torchrun: all ranks train each run together, and rank 0 alone prints and writes.

    An error on one rank ends its process, and by that the others.
    """
    if command not in ON_SEVERAL_RANKS:
        known = ", ".join(ON_SEVERAL_RANKS)
        raise ValueError(f"esam {command} runs in one process; leave torchrun out (it is for {known})")
    from esam.train.distributed import joined

    with joined() as ranks, nullcontext() if ranks.first else redirect_stdout(io.StringIO()):
        function(arguments)


def _failed(message: str, code: int = 1) -> int:
    rank = f" rank {os.environ['RANK']}:" if int(os.environ.get("RANK", "0")) > 0 else ""
    print(f"esam:{rank} {message}", file=sys.stderr, flush=True)
    return code
