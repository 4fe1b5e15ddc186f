"""Workers of a search that a test may kill, whose runs are done in their own process."""

import time
from pathlib import Path

from esam.runs.sweep import SharedStudy
from esam.train import run


class Ended:
    """A run that has ended, or one that never does."""

    def __init__(self, failure=""):
        self.failure = failure

    def poll(self):
        return self.failure

    def stop(self):
        pass

    def wait(self):
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


def work(url, out):
    """Take part in the only search of a database."""
    SharedStudy.join(url).work(Path(out), Here(), poll=0.02)


def get_stuck(url, out, sign):
    """Take a trial and never end it."""
    SharedStudy.join(url).work(Path(out), Stuck(sign), poll=0.02)


def create(url, search, begin):
    """Make the study when the clock says so, together with others."""
    time.sleep(max(0.0, begin - time.time()))
    SharedStudy.create(url, "search", search)
