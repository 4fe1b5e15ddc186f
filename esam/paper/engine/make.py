"""How is an item made: data looked for, missing runs trained, results worked out, written and drawn?"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from esam.compare.launch import Launcher, Place
from esam.compare.plan import PlannedRun
from esam.report.reproduction import Part, write_page
from esam.train.config import Config
from esam.train.environment import environment

from .cost import DATA
from .inputs import Inputs, Tell
from .item import Item, Measured, Needs
from .observer import write_probe
from .store import PROBING_WORKER, ResultStore

Items = Mapping[str, Item[Any]]
PAGE = "report.html"
NOT_HERE = "has nothing to be made from at the scale"


class MissingData(ValueError):
    """Data that an item needs are not here and cannot be loaded."""


class NotAtThisScale(ValueError):
    """A scale has nothing that stands for the paper's task."""


def make(
    item: Item[Measured],
    store: ResultStore,
    *,
    items: Items,
    jobs: int = 1,
    place: Place | None = None,
    tell: Tell = lambda _: None,
    watch: Callable[[Launcher], None] = lambda launcher: launcher(),
) -> Measured:
    """Make one item: train what is missing, work it out, write and draw it; return its measured values.

    Interrupted anywhere, the same call resumes. Runs are trained here, ``jobs`` at a time, or at ``place``. ``items``
    are all there are: a message about missing data offers some.
    """
    from esam.train.runs import chosen_device

    needs = item.needs(store.scale)
    if needs.empty:
        raise NotAtThisScale(f"{item.name} {NOT_HERE} {store.scale.name}; --scale short and paper have it")
    check_extras(needs)
    missing = store.missing(needs)
    check_data(item, store, needs, missing, items)
    if missing:
        for run in missing:
            if run.worker == PROBING_WORKER:
                assert needs.probe is not None
                write_probe(run.folder, needs.probe)
        watch(Launcher(missing, jobs=jobs, place=place))
    store.save(item, item.analyse(Inputs(store, needs, tell)), environment(str(chosen_device("auto"))))
    result = store.result(item)  # as it was written: what is not finite is None
    assert result is not None
    drawn = item.draw(result.measured, store.path(item))
    for old in _pictures(item, store, items, "svg") + _pictures(item, store, items, "png"):
        if old not in drawn:  # of an earlier make, with other tasks
            old.unlink()
    return result.measured


def write_report(items: Items, store: ResultStore, extra: Sequence[Part] = ()) -> Path:
    """Write the page of all the items that have been made at this scale."""
    made = []
    for item in items.values():
        result = store.result(item)
        if result is not None:
            trained = [f"Trained: {'; '.join(result.trained)}."] if 0 < len(result.trained) < 9 else []
            pictures, sheets = _pictures(item, store, items, "svg"), item.sheets(result.measured)
            made.append(Part(item.name, item.number, item.title, sheets, pictures, [*trained, *item.notes]))
    if not made:
        raise ValueError(f"nothing has been made in {store.folder} yet; make an item first, such as table1")
    count, scale = f"{len(made)} of {len(items)}", store.scale.name
    lead = f"{count} tables and figures of the ESAM paper, made again at the scale {scale!r}."
    footer = "Accuracies are those after the last epoch, mean ± sample standard deviation over n seeds."
    return write_page(store.folder / PAGE, "The ESAM paper, reproduced", lead, [*extra, *made], footer)


def check_extras(needs: Needs) -> None:
    """Refuse, before anything is trained, what could not be drawn or worked out after it."""
    wanted = ["matplotlib"] + (["curvlinops"] if needs.weights else [])
    missing = [name for name in wanted if find_spec(name) is None]
    if missing:
        raise ImportError(f"{' and '.join(missing)} must be installed: pip install torch-esam[train,analysis]")


def check_data(item: Item[Any], store: ResultStore, needs: Needs, missing: Sequence[PlannedRun], items: Items) -> None:
    """Load each data set that is about to be used once, so that it is decoded and cached before several runs want it.

    Raises MissingData with the way to get it, and with what else can be made now.
    """
    from esam.train.runs import configured_data

    for config in {config.data: config for config in _loaded(needs, missing)}.values():
        try:
            configured_data(config)
        except (ValueError, OSError, ImportError) as error:
            raise MissingData(_complaint(item, store, config, error, items)) from error


def data_here(name: str) -> bool:
    """Tell, without a network, whether a data set is on this machine."""
    from esam.train.data.sources import local_copy

    if name == "digits" or Path(name).expanduser().is_dir() or local_copy(name) is not None:
        return True
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cache = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets"))
    return "/" in name and (cache / name.replace("/", "___")).is_dir()


def lacking(item: Item[Any], store: ResultStore) -> list[str]:
    """Return the data sets that making an item would have to load and that are not on this machine."""
    needs = item.needs(store.scale)
    wanted = {config.data for config in _loaded(needs, store.missing(needs))}
    return sorted(name for name in wanted if not data_here(name))


def _loaded(needs: Needs, missing: Sequence[PlannedRun]) -> list[Config]:
    """Return the configurations whose data making an item loads: to train, or to analyse trained weights."""
    return [run.config for run in missing] + [config for runs in needs.weights for config in runs.configs]


def _complaint(item: Item[Any], store: ResultStore, config: Config, error: Exception, items: Items) -> str:
    facts = DATA.get(config.data)
    how = f" To get it: {facts.how}." if facts else ""
    now = [other.name for other in items.values() if other.name != item.name and not lacking(other, store)]
    offer = f" What can be made now: {', '.join(now)}." if now else ""
    what = f"{item.name} at the scale {store.scale.name} needs the data {config.data}, which cannot be loaded"
    return f"{what}: {error}.{how}{offer}"


def _pictures(item: Item[Any], store: ResultStore, items: Items, kind: str) -> list[Path]:
    """Return an item's pictures, and not those of an item whose name goes on after it."""
    longer = [name for name in items if name != item.name and name.startswith(item.name)]
    found = sorted(store.folder.glob(f"{item.name}*.{kind}"))
    return [path for path in found if not any(path.name.startswith(name) for name in longer)]
