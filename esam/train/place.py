"""Whose folder is it: has this run come to its end there, does it go on, or does another one live there?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from esam.files import folder_lock

from .checkpoint import Checkpoint, run_state
from .config import Config
from .facts import Facts, changed_data
from .ranks import Ranks
from .record import RecordWriter, RunRecord, read_record


@contextmanager
def own_folder(folder: Path, ranks: Ranks) -> Iterator[None]:
    """Keep other runs out of the folder; the ranks of this one write through rank 0."""
    if not ranks.first:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with folder_lock(folder):
        yield


def ended_record(path: Path, config: Config, facts: Facts) -> RunRecord | None:
    """Return the record of this run if it has come to its end, None if it has yet to.

    The place of another run is refused, and so are data that are not those the run was trained on. A run that differs
    in nothing but more epochs goes on.
    """
    if not path.exists():
        return None
    record = read_record(path)
    if not (record.epochs or record.finished):  # it failed before its first epoch, and is in nobody's way
        return None
    differing = _differing(record, config)
    if differing and not _only_longer(config, differing):
        told = ", ".join(f"{name} is {there!r} there and {here!r} here" for name, (there, here) in differing.items())
        raise ValueError(f"{path.parent} holds another run: {told}; choose another folder")
    if differing and record.diverged:
        raise ValueError(
            f"{path.parent} holds a run that diverged in epoch {record.last_epoch}; more epochs cannot help it: lower "
            "lr or rho, in another folder"
        )
    if (how := changed_data(record.data, facts)) is not None:
        raise ValueError(
            f"the data have changed since the run in {path.parent} was trained: {how}; choose another folder, or "
            "delete this one to train again"
        )
    return None if differing or not (record.finished or record.diverged) else record


def open_record(path: Path, config: Config, checkpoint: Checkpoint, first: Mapping[str, Any]) -> RecordWriter:
    """Return a writer that goes on with the record of this run where its checkpoint is, or begins one.

    ``first`` is the first line of a new record.
    """
    state = checkpoint.load()
    if state is not None:
        run_state(state, checkpoint.folder)
    if path.exists() and state is None and not read_record(path).epochs:
        path.unlink()
    if not path.exists():
        if state is not None:
            raise ValueError(f"{checkpoint.folder} holds a checkpoint but no record; delete the folder to start again")
        return RecordWriter.create(path, first)
    record = read_record(path)
    changes: dict[str, Any] = {}
    if _differing(record, config):
        if state is None:
            raise ValueError(f"{path.parent} holds no checkpoint to go on from; train {config.epochs} epochs elsewhere")
        before = [*record.run.get("extended", []), record.config["epochs"]]
        changes = {"config": first["config"], "id": first["id"], "extended": before}
    return RecordWriter.resume(path, epoch=state["progress"]["epoch"] if state else 0, changes=changes)


def _differing(record: RunRecord, config: Config) -> dict[str, tuple[Any, Any]]:
    return Config.from_json(record.config).differences(config)


def _only_longer(config: Config, differing: Mapping[str, tuple[Any, Any]]) -> bool:
    there, here = differing.get("epochs", (0, 0))
    return set(differing) == {"epochs"} and here > there and config.budget is None
