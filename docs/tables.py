"""Writes the tables of README and docs from the committed records, between markers: ``make docs``.

A block begins with ``<!-- name -->`` and ends with ``<!-- /name -->``, each on a line of its own.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests")]

from esam.bench.steps import steps_sheet  # noqa: E402
from esam.files import write_atomically  # noqa: E402
from esam.optim import METHODS, reference  # noqa: E402
from esam.report import summarise  # noqa: E402
from esam.report.results import results_sheet  # noqa: E402
from esam.report.sheets import Sheet, as_markdown  # noqa: E402
from esam.train.record import read_records  # noqa: E402
from experiments import scaling  # noqa: E402
from experiments.paper import page as paper_page  # noqa: E402

RESULTS = ROOT / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = ("Seeds", "Test acc., %", "Train acc., %", "Sharpness", "Forward", "Backward")
NOISY, CLEAN = 0.2, 0.0
STEPS = ("step by", "ms", "time / base", "total / base", "forward", "backward", "units")


def record(name: str) -> dict[str, Any]:
    """Return a committed JSON record."""
    return json.loads((RESULTS / name).read_text())  # type: ignore[no-any-return]


def summaries(pack: str, noise: float) -> list[Any]:
    """Return the methods of one condition, averaged over seeds; the trials of a search are left out."""
    found = read_records(RESULTS / f"{pack}.jsonl.xz")
    records = [r for r in found if r.config["label_noise"] == noise and "search" not in r.path.parts]
    (methods,) = summarise(records).values()
    return methods


def results(pack: str, noise: float) -> str:
    """Return the results of one condition as a table."""
    return as_markdown(results_sheet(summaries(pack, noise), columns=SHOWN))


def own_lengths() -> str:
    """Return the demo, in which every method has its own number of epochs."""
    methods = summaries("demo_own_length", 0.3)
    shown = ("Seeds", "Test acc., %", "Points vs SGD", "Train acc., %", "CPU time vs SGD", "epochs, tuned")
    return as_markdown(results_sheet(methods, columns=shown))


def timed(model: str) -> dict[str, Any]:
    """Return the timed steps on a model by method: of the longer run, for those that are in it."""
    longer = RESULTS / "speed" / f"longer-{model}.json"
    found: dict[str, Any] = record(f"speed/{model}.json")["contenders"]
    return {**found, **json.loads(longer.read_text())["contenders"]} if longer.exists() else found


def step_times() -> str:
    """Return what a step of SAM, of ESAM and of SliceSAM takes on both models."""
    rows = []
    for name in ("sam", "esam", "slicesam"):
        ratios = [timed(model)[name]["time / base"] for model in ("resnet18", "vit-tiny")]
        shown = [
            "{of totals:.2f} ({interval[0]:.2f} to {interval[1]:.2f}, n = {n})".format(**ratio) for ratio in ratios
        ]
        rows.append((METHODS[name].named("SGD"), f"{METHODS[name].units() / 3:.2f}", *shown))
    return table(("Time of a step / SGD's", "counted", "ResNet-18", "ViT"), rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows as a table."""
    return as_markdown(Sheet("", tuple(head), tuple(map(tuple, rows))))


def chosen(sheet: Sheet, columns: Sequence[str]) -> str:
    """Return some columns of a sheet as a table."""
    places = [sheet.head.index(column) for column in columns]
    rows = [tuple(row[i] for i in places) for row in sheet.rows if row[0] != "saf"]  # measured, and since left out
    return as_markdown(Sheet(sheet.title, tuple(columns), tuple(rows)))


def methods() -> str:
    """Return the methods and controls of the registry: what each does, what it costs."""
    rows = [(f"`{name}`", row.summary, f"{row.units():.3g}") for name, row in METHODS.items()]
    return table(("name", "what a step does", "cost"), rows)


def compiled() -> str:
    """Return a whole step's time, compiled beside eager."""
    import compile

    sheet = compile.sheet(record("speed/compile-resnet18.json"))
    return chosen(sheet, sheet.head)


def five_problems() -> str:
    """Return what the methods give by their defaults on five small problems."""
    import five_problems

    return str(five_problems.markdown())


def wrapper() -> str:
    """Return what a step of the package costs beside the same step by hand."""
    rows = []
    for net, found in record("wrapper_cost.json")["nets"].items():
        over, sgd = found["over by hand"], found["over SGD"]
        memory = f"{found['memory over by hand']:.2f}" if "memory over by hand" in found else "-"
        times = f"{sgd['SAM by hand']:.2f}", f"{sgd['SliceSAM by hand']:.2f}"
        rows.append((net, times[0], f"{over['SAM']:.2f}", times[1], f"{over['SliceSAM']:.2f}", memory))
    head = (
        "net",
        "SAM by hand, of SGD",
        "ours, of that",
        "SliceSAM by hand, of SGD",
        "ours, of that",
        "its memory, of that",
    )
    return table(head, rows)


def source(*things: object) -> str:
    """Return functions and classes as they stand in the code."""
    return "```py\n" + "\n\n".join(inspect.getsource(thing) for thing in things) + "```"  # type: ignore[arg-type]


def frontier() -> str:
    """Return the closed study of many methods."""
    from experiments.frontier import table

    return as_markdown(table())


BLOCKS: dict[str, Callable[[], str]] = {
    "methods": methods,
    **{
        f"steps-{name}": lambda name=name: chosen(steps_sheet(record(f"speed/{name}.json")), STEPS)  # type: ignore[misc]
        for name in ("resnet18", "vit-tiny", "peers-resnet18")
    },
    "compile-resnet18": compiled,
    "reference-esam": lambda: source(reference.gradient, reference.at_perturbed, reference.ESAM),
    "reference-sam": lambda: source(reference.sam),
    "toy-method": lambda: f"```python\n{(ROOT / 'tests' / 'toy_method.py').read_text()}```",
    "wrapper": wrapper,
    "five-problems": five_problems,
    "demo": lambda: results("demo", 0.3),
    "demo-own-length": own_lengths,
    "cifar10": lambda: results("cifar10", CLEAN),
    "cifar10-noisy": lambda: results("cifar10", NOISY),
    "cifar100": lambda: results("cifar100", CLEAN),
    "frontier": frontier,
    "paper-counts": paper_page.counts,
    "paper-claims": paper_page.claims_table,
    "paper-runs": paper_page.runs_table,
    "paper-tables": paper_page.item_tables,
    "paper-pictures": paper_page.pictures,
    "scaling-many": lambda: as_markdown(scaling.many_table()),
    "scaling-measured": lambda: as_markdown(scaling.measured_table(record("speed/parallel.json"))),
    "scaling-memory": lambda: as_markdown(scaling.memory_table(record("speed/parallel.json"))),
    "step-times": step_times,
}


def written(text: str) -> str:
    """Return a page with its blocks as the records have them."""
    for name, block in BLOCKS.items():
        marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if marks.search(text):
            table = block()
            text = marks.sub(lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}", text)
    return text


def main() -> None:
    """Write every page whose blocks have changed."""
    for page in PAGES:
        before = page.read_text()
        after = written(before)
        if after != before:
            write_atomically(page, after.encode())
            print(f"written: {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
