"""Which runs are there already, and where do new ones go? A run is known by its configuration, so items share runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic

import msgspec

from esam.compare.plan import PlannedRun, folder_of
from esam.files import write_atomically
from esam.train.config import Config
from esam.train.record import RunRecord, config_id

from .item import Item, Measured, MethodRuns, Needs
from .observer import read_observations
from .scale import ExperimentScale, Probe
from .values import FORMAT, encode

CHECKPOINT_NAME = "checkpoint.pt"
PROBING_WORKER = "esam.paper.engine.worker"


@dataclass(frozen=True)
class Result(Generic[Measured]):
    """An item's measured values, and what they were measured on."""

    item: str
    scale: str
    trained: tuple[str, ...]
    """What was trained, in words."""
    environment: Mapping[str, str | int | None]
    measured: Measured
    kind: str = "reproduction"
    format: int = FORMAT


class ResultStore:
    """The folder of one scale: ``runs/``, ``observed/`` and ``weights/`` below it, and the items' results in it.

    ``shared`` are other folders of runs, of which only finished ones are read: nothing is written there.
    """

    def __init__(self, out: str | Path, scale: ExperimentScale, *, shared: Iterable[str | Path] = ()) -> None:
        self.folder, self.scale = Path(out) / scale.name, scale
        self.shared = [Path(folder) for folder in shared]
        self._finished: dict[Path, RunRecord] = {}
        for folder in self.shared:
            if not folder.is_dir():
                raise ValueError(f"{folder} is not a folder: give one that holds runs, such as results/cifar10/runs")

    def planned(self, runs: MethodRuns) -> list[PlannedRun]:
        """Return the runs of a method where they would be trained."""
        return _planned(runs, self.folder / "runs")

    def record(self, run: PlannedRun) -> RunRecord | None:
        """Return the record of a run that is finished, wherever it is."""
        return next((record for record in map(self.finished, self._everywhere(run)) if record is not None), None)

    def finished(self, run: PlannedRun) -> RunRecord | None:
        """Return the record of a run if it is finished in its own folder; read once, for it changes no more."""
        if run.folder not in self._finished:
            record = run.record()
            if record is None or not record.finished:
                return None
            self._finished[run.folder] = record
        return self._finished[run.folder]

    def with_weights(self, run: PlannedRun) -> PlannedRun:
        """Return the run where its weights are, or where they are to be trained."""
        for found in self._everywhere(run):
            if (found.folder / CHECKPOINT_NAME).exists() and self.finished(found) is not None:
                return found
        # a record that came without its weights stays as it is
        return _moved(run, self.folder / "weights") if self.finished(run) is not None else run

    def probed(self, runs: MethodRuns, probe: Probe) -> list[PlannedRun]:
        """Return the runs of a method in the folder of this probe, to be trained under it."""
        folder = self.folder / "observed" / config_id(asdict(probe))
        return [replace(run, worker=PROBING_WORKER) for run in _planned(runs, folder)]

    def missing(self, needs: Needs) -> list[PlannedRun]:
        """Return the runs that an item needs and that are not finished, each once."""
        missing: dict[str, PlannedRun] = {}
        for runs in needs.probed:
            assert needs.probe is not None, runs
            absent = [run for run in self.probed(runs, needs.probe) if not self._seen(run, needs.probe)]
            missing |= {run.config.id(): run for run in absent}
        for run in (self.with_weights(run) for runs in needs.weights for run in self.planned(runs)):
            if self.finished(run) is None:
                missing.setdefault(run.config.id(), run)
        for run in (run for runs in needs.runs for run in self.planned(runs)):
            if self.record(run) is None:
                missing.setdefault(run.config.id(), run)
        return list(missing.values())

    def path(self, item: Item[Any]) -> Path:
        """Return the item's path without an ending: .json, .svg and .png are its files."""
        return self.folder / item.name

    def save(self, item: Item[Measured], measured: Measured, environment: Mapping[str, str | int | None]) -> None:
        """Write an item's results, with what they were measured on."""
        trained = tuple(sorted(set(map(in_words, needed(item.needs(self.scale)).values()))))
        self.folder.mkdir(parents=True, exist_ok=True)
        result = Result(item.name, self.scale.name, trained, environment, measured)
        write_atomically(self.path(item).with_suffix(".json"), encode(result))

    def result(self, item: Item[Measured]) -> Result[Measured] | None:
        """Return an item's results, None if it has not been made, or by an earlier version."""
        path = self.path(item).with_suffix(".json")
        if not path.exists():
            return None
        try:
            about = msgspec.json.decode(path.read_bytes(), type=Result[msgspec.Raw])
            if about.format < FORMAT:
                return None
            if (about.kind, about.item, about.format) == ("reproduction", item.name, FORMAT):
                return Result(**{**vars(about), "measured": msgspec.json.decode(about.measured, type=item.kind)})
        except msgspec.MsgspecError as error:
            raise ValueError(f"{path} holds no results ({error}); delete it and make the item again") from error
        raise ValueError(f"{path} holds no results of {item.name} that this version reads; delete it, or upgrade esam")

    def _seen(self, run: PlannedRun, probe: Probe) -> bool:
        """Tell whether a run was trained to its end and probed as asked."""
        if self.finished(run) is None:
            return False
        if [seen.epoch for seen in read_observations(run.folder)] != probe.epochs(run.config.epochs):
            raise ValueError(f"{run.folder} is trained but was not probed as asked; delete it to train it again")
        return True

    def _everywhere(self, run: PlannedRun) -> Iterator[PlannedRun]:
        probes = sorted((self.folder / "observed").glob("*/"))
        for place in (self.folder / "runs", *probes, self.folder / "weights", *self.shared):
            yield _moved(run, place)


def needed(needs: Needs) -> dict[str, Config]:
    """Return the configuration of every run that an item needs, by its id."""
    return {config.id(): config for runs in needs.every for config in runs.configs}


def in_words(config: Config) -> str:
    """Say what a run trains, whatever its method."""
    images = "all images" if config.train_size is None else f"{config.train_size:,} images"
    how = f"{config.epochs} epochs, batch {config.batch_size}, augmentation {config.augment}"
    return f"{config.model} on {images} of {config.data}, {how}, {config.optimizer} with learning rate {config.lr:g}"


def _planned(runs: MethodRuns, place: Path) -> list[PlannedRun]:
    return [PlannedRun(config, folder_of(config, place)) for config in runs.configs]


def _moved(run: PlannedRun, place: Path) -> PlannedRun:
    return replace(run, folder=folder_of(run.config, place))
