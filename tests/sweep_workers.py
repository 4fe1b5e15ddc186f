"""Workers of a search that a test may kill."""

import time

from esam.runs import sweep


def work(start, options):
    """Take part in a search."""
    sweep.HEARTBEAT = 1
    sweep.Sweep(start, options).work()


def get_stuck(start, options, sign):
    """Take a trial and never end it; a file tells that it was begun."""

    def endless(*_, **__):
        sign.touch()
        time.sleep(600)

    sweep.do_run = endless
    work(start, options)
