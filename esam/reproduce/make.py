"""How is an item made: data looked for, missing runs trained, results worked out, written and drawn?"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from esam.compare.launch import Launcher
from esam.compare.plan import PlannedRun
from esam.report.reproduction import Part, write_page
from esam.train.config import Config
from esam.train.record import environment

from .cost import DATA
from .item import Item, Needs
from .store import Found, Store, Tell

Watch = Callable[[Launcher], None]
PAGE = "report.html"


class MissingData(ValueError):
    """Data that an item needs are not here and cannot be loaded."""


def make(
    item: Item,
    store: Store,
    *,
    jobs: int = 1,
    tell: Tell = lambda _: None,
    watch: Watch = lambda launcher: launcher(),
    others: Mapping[str, Item] | None = None,
) -> dict[str, object]:
    """Make one item: train what is missing, work it out, write and draw it; return its measured values.

    Interrupted anywhere, the same call goes on where it was. ``others`` are the items that a message about missing
    data offers instead.
    """
    needs = item.needs(store.scale)
    check_extras(needs)
    missing = store.missing(needs)
    check_data(item, store, needs, missing, others or {})
    if missing:
        store.prepare(missing, needs.look)
        watch(Launcher(missing, jobs=jobs))
    from esam.train.runs import chosen_device

    measured = item.analyse(Found(store, needs, tell))
    store.save(item, measured, needs, dict(environment(str(chosen_device("auto")))))
    result = store.result(item)  # as it was written: what is not finite is None
    assert result is not None
    drawn = item.draw(result["measured"], store.path(item))
    for old in [path for kind in ("svg", "png") for path in store.folder.glob(f"{item.name}*.{kind}")]:
        if old not in drawn and _belongs(old, item, others or {}):  # of an earlier make, with other tasks
            old.unlink()
    return dict(result["measured"])


def write_report(items: Mapping[str, Item], store: Store, extra: Sequence[Part] = ()) -> Path:
    """Write the page of all the items that have been made at this scale."""
    parts = list(extra)
    for item in items.values():
        result = store.result(item)
        if result is not None:
            pictures = [p for p in sorted(store.folder.glob(f"{item.name}*.svg")) if _belongs(p, item, items)]
            sheets = item.sheets(result["measured"])
            trained = f"Trained: {'; '.join(result['trained'])}." if 0 < len(result["trained"]) < 9 else ""
            notes = [note for note in (trained, *item.notes) if note]
            parts.append(Part(item.name, item.number, item.title, sheets, pictures, notes))
    if not parts:
        raise ValueError(f"nothing has been made in {store.folder} yet; make an item first, such as table1")
    made = sum(store.result(item) is not None for item in items.values())
    lead = f"{made} of {len(items)} tables and figures of the ESAM paper, made again at the scale {store.scale.name!r}."
    footer = "Accuracies are those after the last epoch, mean ± sample standard deviation over n seeds."
    return write_page(store.folder / PAGE, "The ESAM paper, reproduced", lead, parts, footer)


def check_extras(needs: Needs) -> None:
    """Refuse, before anything is trained, what could not be drawn or worked out after it."""
    wanted = ["matplotlib"] + (["curvlinops"] if needs.weights else [])
    missing = [name for name in wanted if find_spec(name) is None]
    if missing:
        raise ImportError(f"{' and '.join(missing)} must be installed: pip install torch-esam[train,analysis]")


def check_data(
    item: Item, store: Store, needs: Needs, missing: Sequence[PlannedRun], others: Mapping[str, Item]
) -> None:
    """Load each data set that is about to be used once, so that it is decoded and cached before several runs want it.

    Raises MissingData with the way to get it, and with what else can be made now.
    """
    from esam.train.runs import configured_data

    for config in {config.data: config for config in _loaded(store, needs, missing)}.values():
        try:
            configured_data(config)
        except (ValueError, OSError, ImportError) as error:
            raise MissingData(_complaint(item, store, config, error, others)) from error


def data_here(name: str) -> bool:
    """Tell, without a network, whether a data set is on this machine."""
    from esam.train.data.sources import local_copy

    if name == "digits" or Path(name).expanduser().is_dir() or local_copy(name) is not None:
        return True
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cache = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets"))
    return "/" in name and (cache / name.replace("/", "___")).is_dir()


def lacking(item: Item, store: Store) -> list[str]:
    """Return the data sets that making an item would have to load and that are not on this machine."""
    needs = item.needs(store.scale)
    wanted = _loaded(store, needs, store.missing(needs))
    return sorted({config.data for config in wanted if not data_here(config.data)})


def _loaded(store: Store, needs: Needs, missing: Sequence[PlannedRun]) -> list[Config]:
    """Return the configurations whose data making an item loads: to train, or to look at trained weights."""
    return [run.config for run in missing] + [run.config for row in needs.weights for run in store.planned(row)]


def data_of(needs: Needs) -> list[Config]:
    """Return one configuration for each data set of an item."""
    rows = (*needs.observed, *needs.weights, *needs.rows)
    return list({row.comparison.config.data: row.comparison.config for row in rows}.values())


def _complaint(item: Item, store: Store, config: Config, error: Exception, others: Mapping[str, Item]) -> str:
    facts = DATA.get(config.data)
    how = f" To get it: {facts.how}." if facts else ""
    now = [other.name for other in others.values() if other.name != item.name and not lacking(other, store)]
    offer = f" What can be made now: {', '.join(now)}." if now else ""
    what = f"{item.name} at the scale {store.scale.name} needs the data {config.data}, which cannot be loaded"
    return f"{what}: {error}.{how}{offer}"


def _belongs(picture: Path, item: Item, items: Mapping[str, Item]) -> bool:
    """Tell whether a picture is this item's, and not that of an item whose name goes on after it."""
    longer = [name for name in items if name != item.name and name.startswith(item.name)]
    return not any(picture.name.startswith(name) for name in longer)
