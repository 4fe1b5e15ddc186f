"""``esam reproduce``: the paper's tables and figures, made again; every claim checked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from esam.compare.where import Where
from esam.report.sheets import Form
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
    scale: Literal["cpu", "short", "paper"] = "cpu"
    """The paper's own size (for GPUs); the same at a size for two CPU cores, where every method fits its images; or in
    trainings that are too short for that."""
    as_released: bool = False
    """As the released script trains on CIFAR where the paper does not say so: Cutout, the norm of the drawn tensors
    alone, one perturbation for each half of the batch. Results go to OUT/SCALE-as-released."""
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
    format: Form = "table"
    """How an item's tables and the claims are printed."""


def reproduce(arguments: list[str]) -> None:
    """``esam reproduce``: the paper's tables and figures."""
    options = parse("reproduce", ReproduceOptions, arguments)
    from esam.paper.engine.plan_text import commands, item_list, plan_text
    from esam.paper.engine.store import ResultStore
    from esam.paper.items import ITEMS
    from esam.paper.scales import SCALES, as_released

    names = [*ITEMS, "all", "claims"]
    if options.item and options.item not in names:
        hint = did_you_mean(options.item, names)
        raise ValueError(f"unknown item {options.item!r}.{hint} There are: {', '.join(names)}")
    changed = as_released if options.as_released else lambda scale: scale
    stores = {name: ResultStore(options.out, changed(make()), shared=options.shared) for name, make in SCALES.items()}
    store = stores[options.scale]
    if not options.item:
        print(item_list(ITEMS, list(stores.values())))
    elif options.item == "claims":
        _print_claims(store, "md" if options.markdown else options.format)
    elif options.plan:
        chosen = list(ITEMS) if options.item == "all" else [options.item]
        print("\n\n".join(plan_text(ITEMS[name], store) for name in chosen))
        print("", commands(options.item, _given(options)), sep="\n")
    else:
        with options.where.place(options.jobs) as place:
            _make_items(options.item, store, place, options.format)


def _given(options: ReproduceOptions) -> list[str]:
    """Return the options that say what is made and where it goes, as they are written."""
    words = ["--scale", options.scale, *(["--as-released"] if options.as_released else []), "--out", str(options.out)]
    return words + (["--shared", *map(str, options.shared)] if options.shared else [])


def _make_items(asked: str, store: ResultStore, place: Place, form: Form) -> None:
    """Make one item or all; what fails does not keep the others from being made."""
    from rich.console import Console

    from esam.compare.live import watch
    from esam.paper.claims import claims_part
    from esam.paper.engine.make import NotAtThisScale, make, write_report
    from esam.paper.items import ITEMS, MAKING_ORDER
    from esam.report.sheets import formatted

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
            failures += [] if isinstance(error, NotAtThisScale) else [name]
            continue
        print(f"\n{formatted(item.sheets(measured), form)}")
        page = write_report(ITEMS, store, [claims_part(store)])
        print(f"\nresults: {store.path(item)}.json, page: {page}\n", flush=True)
    if failures:
        raise RuntimeError(f"not made: {', '.join(failures)}; see above. The others are in {store.folder}")


def _print_claims(store: ResultStore, form: Form) -> None:
    from esam.paper.claims import claims_markdown, claims_sheet, judged, words
    from esam.report.sheets import formatted

    if form != "table":
        print(claims_markdown(store) if form == "md" else formatted([claims_sheet(store)], form))
        return
    rows = judged(store)
    for claim, found in rows:
        print(f"{found.verdict.upper()}: {claim.name}\n  paper: {claim.paper}\n  here:  {words(found)}")
    counts = Counter(found.verdict for _, found in rows)
    print(f"\n{len(rows)} claims at the scale {store.scale.name}: {', '.join(f'{n} {v}' for v, n in counts.items())}")
