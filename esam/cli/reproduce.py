"""``esam reproduce``: the paper's tables and figures, made again; every claim checked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from esam.compare.where import Where
from esam.train.names import did_you_mean

from .parsing import parse

if TYPE_CHECKING:
    from esam.compare.launch import Place
    from esam.paper.engine.store import ResultStore


@dataclass(frozen=True)
class ReproduceOptions:
    """A table or figure of the paper, made again. Interrupted, the same command resumes."""

    item: Annotated[str, tyro.conf.Positional] = ""
    """An item's name, `all`, or `claims`; without one, the items are listed."""
    scale: Literal["cpu", "paper"] = "cpu"
    """The paper's own size (for GPUs), or the same experiment at a size for two CPU cores."""
    out: Path = Path("runs/reproduce")
    """Results go to OUT/SCALE: a JSON file and pictures for each item, and report.html."""
    shared: tuple[Path, ...] = ()
    """Other folders whose finished runs are used, such as results/cifar10/runs."""
    jobs: int = 1
    """Runs at a time on this machine; a cluster does as many as it has room for."""
    where: tyro.conf.OmitArgPrefixes[Where] = field(default_factory=Where)
    plan: bool = False
    """Tell what would be done, and what it would cost; do nothing."""
    markdown: bool = False
    """Print the claims as Markdown."""


def reproduce(arguments: list[str]) -> None:
    """``esam reproduce``: the paper's tables and figures."""
    options = parse("reproduce", ReproduceOptions, arguments)
    from esam.paper.engine.plan_text import item_list, plan_text
    from esam.paper.engine.store import ResultStore
    from esam.paper.items import ITEMS
    from esam.paper.scales import SCALES

    names = [*ITEMS, "all", "claims"]
    if options.item and options.item not in names:
        hint = did_you_mean(options.item, names)
        raise ValueError(f"unknown item {options.item!r}.{hint} There are: {', '.join(names)}")
    stores = {name: ResultStore(options.out, scale(), shared=options.shared) for name, scale in SCALES.items()}
    store = stores[options.scale]
    if not options.item:
        print(item_list(ITEMS, list(stores.values())))
    elif options.item == "claims":
        _print_claims(store, options.markdown)
    elif options.plan:
        chosen = list(ITEMS) if options.item == "all" else [options.item]
        print("\n\n".join(plan_text(ITEMS[name], store) for name in chosen))
    else:
        with options.where.place(options.jobs) as place:
            _make_items(options.item, store, place)


def _make_items(asked: str, store: ResultStore, place: Place) -> None:
    """Make one item or all; what fails does not keep the others from being made."""
    from rich.console import Console

    from esam.compare.live import watch
    from esam.paper.claims import claims_part
    from esam.paper.engine.make import make, write_report
    from esam.paper.items import ITEMS, MAKING_ORDER
    from esam.report.sheets import as_text

    console, failures = Console(), []
    for name in MAKING_ORDER if asked == "all" else [asked]:
        item = ITEMS[name]
        print(f"{item.name}: {item.title}", flush=True)
        try:
            measured = make(
                item,
                store,
                items=ITEMS,
                place=place,
                tell=lambda line: print(f"  {line}", flush=True),
                watch=lambda launcher: watch(launcher, console),
            )
        except (ValueError, RuntimeError, OSError, ImportError) as error:
            if asked != "all":
                raise
            print(f"  not made: {error}", flush=True)
            failures.append(name)
            continue
        for sheet in item.sheets(measured):
            print(f"\n{as_text(sheet)}")
        page = write_report(ITEMS, store, [claims_part(store)])
        print(f"\nresults: {store.path(item)}.json, page: {page}\n", flush=True)
    if failures:
        raise RuntimeError(f"not made: {', '.join(failures)}; see above. The others are in {store.folder}")


def _print_claims(store: ResultStore, markdown: bool) -> None:
    from esam.paper.claims import claims_markdown, judged, words

    if markdown:
        print(claims_markdown(store))
        return
    rows = judged(store)
    for claim, found in rows:
        print(f"{found.verdict.upper()}: {claim.name}\n  paper: {claim.paper}\n  here:  {words(found)}")
    counts = Counter(found.verdict for _, found in rows)
    print(f"\n{len(rows)} claims at the scale {store.scale.name}: {', '.join(f'{n} {v}' for v, n in counts.items())}")
