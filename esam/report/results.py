"""Which columns does the table of a comparison have?"""

from __future__ import annotations

from collections.abc import Sequence

from esam.report.settings import readable, shown, told_settings
from esam.report.sheets import Sheet
from esam.report.summaries import MethodSummary
from esam.report.tuned import searches, tuned_names
from esam.report.words import ABSENT, counted, duration, mean, measured, memory, percent


def results_sheet(methods: Sequence[MethodSummary], title: str = "", columns: Sequence[str] | None = None) -> Sheet:
    """Give one line a method: the columns of these titles, or all that some method fills.

    Training accuracy is always among them: without it, a method that was not trained enough looks like a bad one.
    """
    base = next((one.name for one in methods if one.is_base), "base")
    searched = tuned_names(searches(methods))
    cells = {
        "Seeds": [str(one.n) for one in methods],
        "Test acc., %": [_accuracy(one) for one in methods],
        "Test loss": [ABSENT if one.accuracy else measured(one.test_loss, seeds=one.n) for one in methods],
        "Test metric": [measured(one.test_metric, seeds=one.n) for one in methods],
        "Train acc., %": [percent(one.train_accuracy, seeds=one.n) for one in methods],
        "Best, %": [percent(one.best, seeds=one.n) for one in methods],
        **{f"{readable(name)}, tuned": [_setting(one, name) for one in methods] for name in searched},
        "Train loss": [measured(one.train_loss, seeds=one.n) for one in methods],
        "Sharpness": [measured(one.sharpness, seeds=one.n) for one in methods],
        "Images/s": [measured(one.images_per_second, seeds=one.n) for one in methods],
        "Time": [mean(one.seconds, duration) for one in methods],
        f"Time vs {base}": [ABSENT if one.time_ratio is None else f"{one.time_ratio:.2f}×" for one in methods],
        "Peak memory": [mean(one.peak_memory, memory) for one in methods],
        "Forward": [mean(one.forwards, counted) for one in methods],
        "Backward": [mean(one.backwards, counted) for one in methods],
    }
    if columns is None:
        classes = any(one.accuracy is not None for one in methods)
        always = {"Train acc., %"} if classes or all(one.test_loss is None for one in methods) else set()
        columns = [key for key, column in cells.items() if key in always or set(column) != {ABSENT}]
    rows = zip([one.name for one in methods], *(cells[key] for key in columns), strict=True)
    return Sheet(title, ("Method", *columns), tuple(rows))


def _accuracy(one: MethodSummary) -> str:
    told = percent(one.accuracy, seeds=one.n)
    lost = sum(run.diverged for run in one.group.unfinished)
    return told if not lost else f"{told}; {lost} diverged" if one.n else f"{lost} diverged"


def _setting(one: MethodSummary, name: str) -> str:
    value = told_settings(one.group.runs[0]).get(name)
    return ABSENT if value is None else shown(value)
