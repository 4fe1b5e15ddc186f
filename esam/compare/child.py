"""How does a run's process end with the one that started it, however that one ends?

``python -m esam.compare.child MODULE FOLDER`` runs a worker module as a program whose standard input is a pipe that the
parent holds and never writes to. The pipe closes when the parent is gone, killed or not; so does the program then.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading

ORPHANED = 1


def end_with_parent() -> None:
    """End this process as soon as its standard input closes; whatever it writes is whole at any moment."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(ORPHANED)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    sys.argv[:] = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
