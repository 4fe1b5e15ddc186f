"""Which runs are there already, and where do new ones go? A run is known by its configuration, so items share runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esam.compare.plan import PlannedRun, plan
from esam.files import write_atomically
from esam.train.config import Config
from esam.train.record import RunRecord, config_id, encode

from .item import Item, Needs, Row
from .scale import Look, Scale

if TYPE_CHECKING:
    from esam.train.trained import TrainedRun

CHECKPOINT_NAME = "checkpoint.pt"
FORMAT = 2
"""Of the results; what an earlier version of this package measured may mean something else, and is made again."""
Tell = Callable[[str], None]


class Store:
    """The folder of one scale: ``runs/``, ``observed/`` and ``weights/`` below it, and the items' results in it.

    ``shared`` are other folders of runs, of which only finished ones are read: nothing is written there.
    """

    def __init__(self, out: str | Path, scale: Scale, *, shared: Iterable[str | Path] = ()) -> None:
        self.folder, self.scale = Path(out) / scale.name, scale
        self.shared = [Path(folder) for folder in shared]
        self._finished: dict[Path, RunRecord] = {}
        for folder in self.shared:
            if not folder.is_dir():
                raise ValueError(f"{folder} is not a folder: give one that holds runs, such as results/cifar10/runs")

    def planned(self, row: Row) -> list[PlannedRun]:
        """Return the runs of a row where they would be trained."""
        return plan(row.comparison, self.folder / "runs")

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
        kept = self.finished(run) is not None
        return replace(run, folder=self.folder / "weights" / run.folder.name) if kept else run

    def looked_into(self, row: Row, look: Look) -> list[PlannedRun]:
        """Return the runs of a row in the folder of this look, to be trained under it."""
        folder = self.folder / "observed" / config_id(asdict(look))
        return [replace(run, worker="esam.reproduce.worker") for run in plan(row.comparison, folder)]

    def missing(self, needs: Needs) -> list[PlannedRun]:
        """Return the runs that an item needs and that are not finished, each once."""
        missing: dict[str, PlannedRun] = {}
        for row in needs.observed:
            assert needs.look is not None, row
            missing |= {
                run.folder.name: run for run in self.looked_into(row, needs.look) if not self._seen(run, needs.look)
            }
        for row in needs.weights:
            for run in map(self.with_weights, self.planned(row)):
                if self.finished(run) is None:
                    missing.setdefault(run.folder.name, run)
        for row in needs.rows:
            for run in self.planned(row):
                if self.record(run) is None:
                    missing.setdefault(run.folder.name, run)
        return list(missing.values())

    def needed(self, needs: Needs) -> dict[str, PlannedRun]:
        """Return every run that an item needs, by the name that its configuration gives it."""
        return {
            run.folder.name: run for row in (*needs.observed, *needs.weights, *needs.rows) for run in self.planned(row)
        }

    def prepare(self, runs: Sequence[PlannedRun], look: Look | None) -> None:
        """Put the look beside the runs that are trained under it."""
        from .observe import write_look

        for run in runs:
            if run.worker == "esam.reproduce.worker":
                assert look is not None
                run.folder.mkdir(parents=True, exist_ok=True)
                write_look(run.folder, look)

    def path(self, item: Item) -> Path:
        """Return the item's path without an ending: .json, .svg and .png are its files."""
        return self.folder / item.name

    def save(self, item: Item, measured: dict[str, Any], needs: Needs, environment: dict[str, Any]) -> Path:
        """Write an item's results, with what they were measured on."""
        runs = self.needed(needs)
        trained = sorted({described(run.config) for run in runs.values()})
        result = {
            "kind": "reproduction",
            "format": FORMAT,
            "item": item.name,
            "number": item.number,
            "title": item.title,
            "scale": self.scale.name,
            "paper": item.paper,
            "measured": measured,
            "runs": len(runs),
            "trained": trained,
            "environment": environment,
        }
        path = self.path(item).with_suffix(".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, encode(result))
        return path

    def result(self, item: Item) -> dict[str, Any] | None:
        """Return an item's results, None if it has not been made, or by an earlier version."""
        path = self.path(item).with_suffix(".json")
        if not path.exists():
            return None
        try:
            result: dict[str, Any] = json.loads(path.read_bytes())
            known = result["kind"] == "reproduction" and result["item"] == item.name
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} holds no results ({error}); delete it and make the item again") from error
        if not known or result.get("format", 0) > FORMAT:
            raise ValueError(
                f"{path} holds no results of {item.name} that this version reads; delete it, or upgrade esam"
            )
        return result if result.get("format") == FORMAT else None

    def _seen(self, run: PlannedRun, look: Look) -> bool:
        """Tell whether a run was trained to its end and looked into as asked."""
        from .observe import read_observations

        if self.finished(run) is None:
            return False
        if list(read_observations(run.folder)) != look.epochs(run.config.epochs):
            raise ValueError(f"{run.folder} is trained but was not looked into as asked; delete it to train it again")
        return True

    def _everywhere(self, run: PlannedRun) -> Iterator[PlannedRun]:
        looks = sorted((self.folder / "observed").glob("*/"))
        for place in (run.folder.parent, *looks, self.folder / "weights", *self.shared):
            yield replace(run, folder=place / run.folder.name)


@dataclass(frozen=True)
class Found:
    """What an item's analysis reads: records, weights and observations of the runs that it asked for."""

    store: Store
    needs: Needs
    tell: Tell

    @property
    def scale(self) -> Scale:
        """The scale at which the item is made."""
        return self.store.scale

    def records(self, row: Row) -> list[RunRecord]:
        """Return the finished records of a row, one a seed."""
        records = [self.store.record(run) for run in self.store.planned(row)]
        assert all(record is not None for record in records), row
        return [record for record in records if record is not None]

    def trained(self, row: Row, *, images: int) -> dict[int, TrainedRun]:
        """Return the trained models of a row by seed, each with the loss over this many training images."""
        from esam.train.trained import load_run

        runs = map(self.store.with_weights, self.store.planned(row))
        return {run.config.seed: load_run(run.folder, images=images) for run in runs}

    def observations(self, row: Row) -> list[dict[int, dict[str, Any]]]:
        """Return what was seen in the runs of a row, by epoch."""
        from .observe import read_observations

        assert self.needs.look is not None
        return [read_observations(run.folder) for run in self.store.looked_into(row, self.needs.look)]

    def progress(self, what: str) -> Callable[[int, int], None]:
        """Return what a long analysis calls with (done, in all): it tells the tenths as they are reached."""
        told = [0]

        def tell(done: int, whole: int) -> None:
            tenths = 10 * done // whole
            if tenths > told[0]:
                told[0] = tenths
                self.tell(f"{what}: {10 * tenths} %")

        return tell

    def kept(self, name: str) -> Path:
        """Return a file of this name that keeps what an analysis has done so far."""
        return self.store.folder / "work" / f"{name}.json"


def described(config: Config) -> str:
    """Say what a run trains, whatever its method."""
    images = "all images" if config.train_size is None else f"{config.train_size:,} images"
    how = f"{config.epochs} epochs, batch {config.batch_size}, augmentation {config.augment}"
    return f"{config.model} on {images} of {config.data}, {how}, {config.optimizer} with learning rate {config.lr:g}"


def configs(rows: Iterable[Row]) -> list[Config]:
    """Return the configurations of the runs of some rows."""
    return [run.config for row in rows for run in plan(row.comparison, Path())]
