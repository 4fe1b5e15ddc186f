"""What does a command do on each of the ranks that torchrun has started?"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

from esam.runs.pool import follow, followed
from esam.train.distributed import joined

SHARED = ("train", "compare")


def on_every_rank(command: str, function: Callable[[list[str]], None], arguments: list[str]) -> None:
    """Run a command whose runs are trained by all ranks together; rank 0 alone prints, and does all else.

    An error on one rank ends its process, and by that the others.
    """
    if command not in SHARED:
        raise ValueError(f"esam {command} runs in one process; leave torchrun out (it is for {', '.join(SHARED)})")
    with joined() as ranks:
        if command == "train":
            with contextlib.nullcontext() if ranks.first else contextlib.redirect_stdout(io.StringIO()):
                function(arguments)
        elif ranks.first:
            with followed(ranks):
                function(arguments)
        else:
            follow(ranks)
