"""What does an item's analysis read? Records, weights and observations of the runs that it asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .item import MethodRuns, Needs
from .observer import EpochProbe, read_observations
from .scale import ExperimentScale
from .store import ResultStore
from .values import Repeated

if TYPE_CHECKING:
    from esam.train.trained import TrainedRun

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Inputs:
    """What was found of an item's needs, and where its analysis tells how far it is."""

    store: ResultStore
    needs: Needs
    tell: Tell

    @property
    def scale(self) -> ExperimentScale:
        """The scale at which the item is made."""
        return self.store.scale

    def accuracy(self, runs: MethodRuns, which: str = "last") -> Repeated:
        """Return a method's accuracy on the images that it is evaluated on, the last or the best, in per cent."""
        return _percent(end["test_accuracy"].get(which) for end in self._ends(runs))

    def train_accuracy(self, runs: MethodRuns) -> Repeated:
        """Return a method's accuracy on its training images at the end, in per cent."""
        return _percent(end.get("train_accuracy") for end in self._ends(runs))

    def train_loss(self, runs: MethodRuns) -> Repeated:
        """Return a method's mean loss on its training images at the end."""
        return Repeated(tuple(end.get("train_loss") for end in self._ends(runs)))

    def _ends(self, runs: MethodRuns) -> list[dict[str, Any]]:
        """Return the last line of each seed's record."""
        records = [self.store.record(run) for run in self.store.planned(runs)]
        ends = [record.end for record in records if record is not None and record.end is not None]
        assert len(ends) == len(runs.configs), runs
        return ends

    def trained(self, runs: MethodRuns, *, images: int) -> dict[int, TrainedRun]:
        """Return the trained models of a method by seed, each with the loss over this many training images."""
        from esam.train.trained import trained_run

        found = map(self.store.with_weights, self.store.planned(runs))
        return {run.config.seed: trained_run(run.folder, images=images) for run in found}

    def observations(self, runs: MethodRuns) -> list[EpochProbe]:
        """Return what was seen in the probed runs of a method."""
        assert self.needs.probe is not None
        return [seen for run in self.store.probed(runs, self.needs.probe) for seen in read_observations(run.folder)]

    def progress(self, what: str) -> Callable[[int, int], None]:
        """Return what a long analysis calls with (done, in all): it tells the tenths as they are reached."""
        told = [0]

        def tell(done: int, whole: int) -> None:
            tenths = 10 * done // whole
            if tenths > told[0]:
                told[0] = tenths
                self.tell(f"{what}: {10 * tenths} %")

        return tell

    def cache(self, name: str) -> Path:
        """Return a file of this name that keeps what an analysis has done so far."""
        return self.store.folder / "work" / f"{name}.json"


def _percent(shares: Iterable[float | None]) -> Repeated:
    return Repeated(tuple(None if share is None else 100 * share for share in shares))
