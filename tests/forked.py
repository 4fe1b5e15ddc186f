"""Processes that a test may kill: forked from one that has imported everything, so each starts in milliseconds."""

import multiprocessing
import os

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["esam.runs.worker", "torch._dynamo"])  # torch.optim imports the latter when it steps


def start(function, *arguments, **environment):
    """Call a function in a process of its own, under these environment variables."""
    process = CONTEXT.Process(target=_call, args=(function, arguments, environment), daemon=True)
    process.start()
    return process


def _call(function, arguments, environment):
    os.environ.update(environment)  # the process it is forked from knows only those of the first test
    function(*arguments)
