"""What does a worker process do? ``python -m esam.runs.worker`` does the runs whose folders its parent writes to it.

Each line of standard input is an order, ``{"worker": MODULE, "folder": FOLDER}``: the module's ``main(folder)`` is
called, whatever it prints goes to log.txt in the folder, and one line of standard output says how it went. The pipe
closes when the parent is gone, killed or not, and this process ends with it.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from esam.train.config import Config

from .plan import CONFIG_NAME, LOG_NAME

ORPHANED = 1


def main(folder: Path) -> None:
    """Run, or resume, the configuration in the folder."""
    from esam.train.loaded_run import MEASURES
    from esam.train.runner import run

    run(Config.from_json(json.loads((folder / CONFIG_NAME).read_text())), folder, measures=MEASURES)


def _serve() -> None:
    orders: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read_orders, args=(orders,), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w")
    while True:
        order = orders.get()
        failure = _carry_out(order["worker"], Path(order["folder"]))
        print(json.dumps({"failure": failure}), file=answers, flush=True)


def _read_orders(orders: queue.Queue[dict[str, Any]]) -> None:
    buffer = b""
    while data := os.read(0, 65536):
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            orders.put(json.loads(line))
    os._exit(ORPHANED)  # at once: every file is complete at any moment


def _carry_out(worker: str, folder: Path) -> str:
    """Do a run; return what went wrong, "" if nothing did."""
    log = os.open(folder / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    try:
        import_module(worker).main(folder)
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


if __name__ == "__main__":
    _serve()
