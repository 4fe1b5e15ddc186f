"""Writes the tables of README and docs from the committed records, between markers: ``make docs``.

A block begins with ``<!-- name -->`` and ends with ``<!-- /name -->``, each on a line of its own.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests")]

from esam.files import write_atomically  # noqa: E402
from esam.optim import METHODS  # noqa: E402
from esam.report.results import results_sheet  # noqa: E402
from esam.report.sheets import Sheet, as_markdown  # noqa: E402
from esam.report.summaries import summarise  # noqa: E402
from experiments import scaling  # noqa: E402
from experiments.packs import packed_records  # noqa: E402
from experiments.paper import page as paper_page  # noqa: E402
from experiments.trial import page as trial_page  # noqa: E402

RESULTS = ROOT / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = ("Seeds", "Test acc., %", "Train acc., %", "Sharpness", "Forward", "Backward")
PEERS = ("pytorch_optimizer", "sam, two-step pattern", "esam, as released", "esam-swp, as released")


def record(name: str) -> dict[str, Any]:
    """Return a committed JSON record."""
    return json.loads((RESULTS / name).read_text())  # type: ignore[no-any-return]


def summaries(pack: str) -> list[Any]:
    """Return the methods of a comparison, averaged over seeds; the trials of a search are left out."""
    records = [r for r in packed_records(RESULTS / f"{pack}.jsonl.xz") if "search" not in r.path.parts]
    (methods,) = summarise(records).values()
    return methods


def demo() -> str:
    """Return the demo, in which every method has the same number of epochs."""
    return as_markdown(results_sheet(summaries("demo"), columns=SHOWN))


def own_lengths() -> str:
    """Return the demo, in which every method has its own number of epochs."""
    shown = ("Seeds", "Test acc., %", "Points vs SGD", "Train acc., %", "CPU time vs SGD", "epochs, tuned")
    return as_markdown(results_sheet(summaries("demo_own_length"), columns=shown))


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


def steps() -> str:
    """Return what a step of every method takes on both models, counted and measured, and compiled."""
    nets = [timed(model) for model in ("resnet18", "vit-tiny")]
    compiled = {n: row["compiled / eager"] for n, row in record("speed/compile-resnet18.json")["contenders"].items()}
    rows = [
        (f"`{name}`", f"{METHODS[name].units() / 3:.2f}", *(_ratio(net[name]) for net in nets), f"{compiled[name]:.2f}")
        for name in METHODS
        if all(name in net for net in nets) and name in compiled
    ]
    return table(("step by", "counted", "ResNet-18", "ViT", "compiled / eager"), rows)


def _ratio(row: dict[str, Any]) -> str:
    ratio = row["time / base"]
    return f"{ratio['of totals']:.2f} ({ratio['interval'][0]:.2f} to {ratio['interval'][1]:.2f})"


def peers() -> str:
    """Return what steps of other packages take on a ResNet-18, beside ours in the same run."""
    found = record("speed/peers-resnet18.json")["contenders"]
    rows = [
        (name, _ratio(found[name]), *(f"{found[name][way]:.3g}" for way in ("forwards", "backwards")))
        for name in ("sam", "esam", "esam-swp", *PEERS)
    ]
    return table(("step by", "time / base", "forward", "backward"), rows)


def methods() -> str:
    """Return the methods and controls of the registry: what each does, what it costs."""
    rows = [(f"`{name}`", row.summary, f"{row.units():.3g}") for name, row in METHODS.items()]
    return table(("name", "what a step does", "cost"), rows)


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


BLOCKS: dict[str, Callable[[], str]] = {
    "methods": methods,
    "steps": steps,
    "peers": peers,
    "toy-method": lambda: f"```python\n{(ROOT / 'tests' / 'toy_method.py').read_text()}```",
    "wrapper": wrapper,
    "demo": demo,
    "demo-own-length": own_lengths,
    "trial-answers": lambda: trial_page.answered(trial_page.committed()),
    "trial-others": lambda: trial_page.other_arms(trial_page.committed()),
    "trial-short": lambda: trial_page.short(trial_page.committed()),
    "trial-tables": lambda: trial_page.tables(trial_page.committed()),
    "paper-counts": paper_page.counts,
    "paper-claims": paper_page.claims,
    "paper-first-round": paper_page.first_round,
    "paper-runs": paper_page.runs,
    "paper-pictures": paper_page.pictures,
    "scaling-many": lambda: as_markdown(scaling.many_table()),
    "scaling-measured": lambda: as_markdown(scaling.measured_table(record("speed/parallel.json"))),
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
