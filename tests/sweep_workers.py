"""Workers of a search that a test may kill, whose runs are done in their own process."""

import time
from pathlib import Path

from esam.runs.sweep import Sweep
from esam.train import run


class Ended:
    """A run that has ended, or one that never does."""

    def __init__(self, failure=""):
        self.failure = failure

    def poll(self):
        return self.failure

    def end(self):
        pass


class Here:
    """Does a run at once, in this process."""

    at_once = 1

    def start(self, planned):
        run(planned.config, planned.folder)
        return Ended()


class Stuck:
    """Begins runs that never end; a file tells that one was begun."""

    at_once = 1

    def __init__(self, sign):
        self.sign = sign

    def start(self, planned):
        planned.prepare()
        Path(self.sign).touch()
        return Ended(None)


def work(url, search, out, begin=0.0):
    """Take part in a search when the clock says so, perhaps together with others."""
    time.sleep(max(0.0, begin - time.time()))
    Sweep(search, url, heartbeat=1).work(Path(out), Here(), poll=0.02)


def get_stuck(url, search, out, sign):
    """Take a trial and never end it."""
    Sweep(search, url, heartbeat=1).work(Path(out), Stuck(sign), poll=0.02)
