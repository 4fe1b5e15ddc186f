"""What does a worker process do? The runs that its parent sends it, until the parent is gone, killed or not."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import traceback
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esam.train.config import Config

from .plan import CONFIG_NAME, LOG_NAME

if TYPE_CHECKING:
    from esam.train.record import RunRecord

ORPHANED = 1


def main(folder: Path) -> None:
    """Run, or resume, the configuration in the folder."""
    do_run(Config.from_json(json.loads((folder / CONFIG_NAME).read_text())), folder)


def do_run(config: Config, folder: Path, **how: Any) -> RunRecord:
    """Run a configuration, or resume it, in a process that may have done others; measure what it comes to."""
    import torch

    from esam.train.loaded_run import MEASURES
    from esam.train.runner import run

    if config.compile:
        torch.compiler.reset()  # graphs of earlier runs would count against its limits
    return run(config, folder, measures=MEASURES, **how)


def serve(pipe: Connection) -> None:
    """Do each run whose module and folder come through the pipe, and answer with what went wrong."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        pipe.send(carry_out(*pipe.recv()))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is a child"
    parent.join()
    os._exit(ORPHANED)  # at once: every file is complete at any moment


def carry_out(module: str, folder: Path) -> str:
    """Call the module's ``main(folder)``, what is printed going to a file there; return what went wrong, or ""."""
    log = os.open(folder / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    try:
        import_module(module).main(folder)
        return ""
    except (Exception, SystemExit) as error:  # reported to the parent, in full in the log
        traceback.print_exc()
        return failure_line(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def failure_line(error: BaseException) -> str:
    """Say an error on one line, as Python's last line of a traceback does; a program's exit by its code."""
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r})"
    from esam.train.task import user_code_line

    return f"{traceback.format_exception_only(error)[-1].strip()}{user_code_line(error)}"
