"""Workers of a search that a test may kill, whose runs are done in their own process."""

import time
from pathlib import Path

from esam.sweep.study import SharedStudy
from esam.sweep.work import Worker
from esam.train import run


class Ended:
    """A run that has ended."""

    def __init__(self, complaint=""):
        self.complaint = complaint

    def look(self):
        return self.complaint

    def stop(self):
        pass

    def wait(self):
        pass


class Here:
    """A place that does a run at once, in this process."""

    at_once = 1

    def start(self, planned):
        run(planned.config, planned.folder)
        return Ended()


class Stuck:
    """A place whose runs never end; a file tells that one was begun."""

    at_once = 1

    def __init__(self, sign):
        self.sign = sign

    def start(self, planned):
        planned.prepare()
        Path(self.sign).touch()
        return Ended(None)


def work(url, out):
    """Take part in the only search of a database."""
    Worker(SharedStudy.join(url), Path(out), Here(), poll=0.02)()


def get_stuck(url, out, sign):
    """Take a trial and never end it."""
    Worker(SharedStudy.join(url), Path(out), Stuck(sign), poll=0.02)()


def create(url, search, begin):
    """Make the study when the clock says so, together with others."""
    time.sleep(max(0.0, begin - time.time()))
    SharedStudy.create(url, "search", search)


def claim_all(url, file):
    """Claim whatever waits, and write down what was claimed."""
    study, claimed = SharedStudy.join(url), []
    while (trial := study.claim()) is not None:
        claimed.append(trial.number)
        study.tell(trial, [float(trial.number)])
    Path(file).write_text(" ".join(map(str, claimed)))
