"""What is a trial judged by? Numbers of its record, taken on held-out training data, or of what it cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from esam.train.record import RunRecord


@dataclass(frozen=True)
class Objective:
    """A number of a run's end, and which way is better."""

    title: str
    direction: str
    of: Callable[[Mapping[str, Any]], float | None]
    along: str = ""
    """The key of an epoch's line that tells how a run goes on; "": none does, and no trial can be pruned by it."""
    factor: float = 1.0

    def value(self, record: RunRecord) -> float | None:
        """Return the number of a run that has ended; None where it has none."""
        found = None if record.end is None else self.of(record.end)
        return None if found is None else self.factor * found

    def reports(self, record: RunRecord) -> list[tuple[int, float]]:
        """Return the evaluations so far: epoch and value."""
        lines = [(line["epoch"], line.get(self.along)) for line in record.epochs]
        return [(epoch, self.factor * value) for epoch, value in lines if value is not None]


OBJECTIVES = {
    "accuracy": Objective(
        "Validation accuracy, %", "maximize", lambda end: end["test_accuracy"].get("last"), "test_accuracy", 100
    ),
    "loss": Objective("Validation loss", "minimize", lambda end: end.get("test_loss"), "test_loss"),
    "seconds": Objective("Seconds of training", "minimize", lambda end: end.get("seconds")),
    "cost": Objective(
        "Passes a sample (forward 1, backward 2)", "minimize", lambda end: end["forwards"] + 2 * end["backwards"]
    ),
    "memory": Objective("Peak memory, MB", "minimize", lambda end: end.get("peak_memory"), factor=1e-6),
    "sharpness": Objective("Sharpness", "minimize", lambda end: end.get("sharpness")),
}
