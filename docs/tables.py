"""Writes the tables of README and docs from the committed records, between markers: ``make docs``.

A block begins with ``<!-- name -->`` and ends with ``<!-- /name -->``, each on a line of its own.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests")]

from esam.bench import scaling_sheets as scaling  # noqa: E402
from esam.bench.steps import steps_sheet  # noqa: E402
from esam.files import write_atomically  # noqa: E402
from esam.frontier import tables as frontier_tables  # noqa: E402
from esam.frontier.standings import overall, read_map, regime_title  # noqa: E402
from esam.optim import METHODS, RECOMMENDED, reference  # noqa: E402
from esam.report import summarise  # noqa: E402
from esam.report.results import results_sheet  # noqa: E402
from esam.report.sheets import Sheet, as_markdown  # noqa: E402
from esam.train.record import read_records  # noqa: E402

RESULTS = ROOT / "results"
FRONTIER = RESULTS / "frontier"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = ("Seeds", "Test acc., %", "Train acc., %", "Sharpness", "Forward", "Backward")
NOISY, CLEAN = 0.2, 0.0
ACCURACIES = ("Task, method", "Accuracy, %", "Training, %", "over base", "paper", "n")
LENGTHS = ("Epochs, method", "Accuracy, %", "over SAM, points", "Training, %", "Training loss", "Cost, SGD 3", "n")
FLATNESS = ("Method", "Mean rise on the plane", "Sharpness R_S", "Largest eigenvalue", "Trace", "Training loss", "n")


def record(name: str) -> dict[str, Any]:
    """Return a committed JSON record."""
    return json.loads((RESULTS / name).read_text())  # type: ignore[no-any-return]


def summaries(folder: str, noise: float) -> list[Any]:
    """Return the methods of one condition, averaged over seeds."""
    records = [r for r in read_records(RESULTS / folder) if r.config["label_noise"] == noise]
    (methods,) = summarise(records).values()
    return methods


def results(folder: str, noise: float) -> str:
    """Return the results of one condition as a table."""
    return as_markdown(results_sheet(summaries(folder, noise), columns=SHOWN))


def timed(model: str) -> dict[str, Any]:
    """Return the timed steps on a model by method: of the longer run, for those that are in it."""
    longer = RESULTS / "speed" / f"longer-{model}.json"
    found: dict[str, Any] = record(f"speed/{model}.json")["contenders"]
    return {**found, **json.loads(longer.read_text())["contenders"]} if longer.exists() else found


def step_times() -> dict[str, str]:
    """Return by method what a step takes on both models, in the base's time."""
    times = [timed(name) for name in ("resnet18", "vit-tiny")]
    both = [name for name in METHODS if all(name in time for time in times)]
    return {name: " / ".join(f"{time[name]['time / base']['of totals']:.2f}" for time in times) for name in both}


def recommended_speed() -> str:
    """Return what a step of the recommended method, of SAM and of ESAM takes on both models."""
    rows = []
    for name in (RECOMMENDED, "sam", "esam"):
        ratios = [timed(model)[name]["time / base"] for model in ("resnet18", "vit-tiny")]
        told = ["{of totals:.2f} ({interval[0]:.2f} to {interval[1]:.2f}, n = {n})".format(**ratio) for ratio in ratios]
        rows.append((METHODS[name].named("SGD"), f"{METHODS[name].units() / 3:.2f}", *told))
    head = ("Time of a step / SGD's", "counted", "ResNet-18", "ViT")
    return as_markdown(Sheet("", head, tuple(rows)))


def methods() -> str:
    """Return the methods and controls of the registry: what each does, what it costs."""
    return _rows("method", "control")


def studied() -> str:
    """Return the steps that are there to be compared."""
    return _rows("study")


def _rows(*kinds: str) -> str:
    rows = [(f"`{name}`", row.summary, f"{row.units():.3g}") for name, row in METHODS.items() if row.kind in kinds]
    return as_markdown(Sheet("", ("name", "what a step does", "cost"), tuple(rows)))


def claims(scale: str) -> str:
    """Return the paper's claims and their verdicts at a scale."""
    from esam.paper.claims import claims_markdown
    from esam.paper.engine.store import ResultStore
    from esam.paper.scales import SCALES

    return claims_markdown(ResultStore(RESULTS / "reproduce", SCALES[scale]()))


def compiled(model: str) -> str:
    """Return a whole step's time, compiled beside eager; a word where it was not measured."""
    import compile

    path = RESULTS / "speed" / f"compile-{model}.json"
    return as_markdown(compile.sheet(json.loads(path.read_text()))) if path.exists() else "Not measured yet."


def release() -> str:
    """Return what was installed and tried in clean environments; a word where nothing was."""
    if not (RESULTS / "release.json").exists():
        return "Nothing yet."
    cases = record("release.json")["cases"]
    rows = [tuple(case[key] for key in ("python", "torch", "extra", "result")) for case in cases]
    return as_markdown(Sheet("", ("Python", "torch", "extra", "result"), tuple(rows)))


def reproduced(name: str, columns: Sequence[str]) -> str:
    """Return some columns of an item's first table, as it was made at the CPU scale."""
    from esam.paper.engine.store import ResultStore
    from esam.paper.items import ITEMS
    from esam.paper.scales import SCALES

    result = ResultStore(RESULTS / "reproduce", SCALES["cpu"]()).result(ITEMS[name])
    if result is None:
        return "Not made yet."
    sheet = ITEMS[name].sheets(result.measured)[0]
    places = [sheet.head.index(column) for column in columns]
    rows = tuple(tuple(row[place] for place in places) for row in sheet.rows)
    return as_markdown(Sheet(sheet.title, tuple(columns), rows))


def toy() -> str:
    """Return what SWP saves on the paper's toy MLPs."""
    import toy_mlp

    return str(toy_mlp.markdown(record("toy_mlp.json")))


def five_problems() -> str:
    """Return what the methods give by their defaults on five small problems, and what is said of it."""
    import five_problems

    return str(five_problems.markdown())


def wrapper() -> str:
    """Return what a step costs where it is hardly more than calls."""
    found = record("wrapper_cost.json")
    rows = [(name, f"{time:.0f}", f"{found['ratio'][name]:.2f}") for name, time in found["microseconds"].items()]
    return as_markdown(Sheet("", ("step by", "microseconds", "of SAM by hand"), tuple(rows)))


def source(*things: object) -> str:
    """Return functions and classes as they stand in the code."""
    return "```py\n" + "\n\n".join(inspect.getsource(thing) for thing in things) + "```"  # type: ignore[arg-type]


def toy_method() -> str:
    """Return the method of the tests that is written as a contributor would."""
    return f"```python\n{(ROOT / 'tests' / 'toy_method.py').read_text()}```"


def cluster() -> str:
    """Return how many runs an hour each place does."""
    found = record("speed/cluster.json")
    rows = [(name, f"{place['runs / hour']:.0f}", f"{place['load']:.1f}") for name, place in found["places"].items()]
    told = f"{found['runs']} runs, {found['cores']} cores of {found['environment']['hardware']}"
    return as_markdown(Sheet("", (told, "runs an hour", "load of the machine"), tuple(rows)))


def frontier(made: Callable[[Any], Sheet | str]) -> str:
    """Return what is made from the arena's records; a word where there are none."""
    found = read_map(FRONTIER) if FRONTIER.is_dir() else {}
    if not found:
        return "No records yet."
    told = made(found)
    return told if isinstance(told, str) else as_markdown(told)


def frontier_details(found: Any) -> str:
    """Return the table of every regime under a heading of its own."""
    parts = []
    for name, standings in found.items():
        sheet = frontier_tables.regime_sheet(name, standings)
        parts.append(f"### {regime_title(name)}\n\n{sheet.title}\n\n{as_markdown(sheet)}")
    return "\n\n".join(parts)


def faults() -> str:
    """Return bad inputs and faults with what is said of each, as it happens now."""
    import fault_page

    return str(fault_page.page())


BLOCKS: dict[str, Callable[[], str]] = {
    "methods": methods,
    "studied": studied,
    "claims-cpu": lambda: claims("cpu"),
    "claims-short": lambda: claims("short"),
    "cpu-table1": lambda: reproduced("table1", ACCURACIES),
    "cpu-table3": lambda: reproduced("table3", ACCURACIES),
    "cpu-own-best": lambda: reproduced("own-best", ACCURACIES),
    "cpu-length": lambda: reproduced("length", LENGTHS),
    "cpu-flatness": lambda: reproduced("landscapes", FLATNESS),
    **{
        f"steps-{name}": lambda name=name: as_markdown(steps_sheet(record(f"speed/{name}.json")))  # type: ignore[misc]
        for name in ("resnet18", "vit-tiny", "longer-vit-tiny", "peers-resnet18", "peers-vit-tiny")
    },
    **{f"compile-{name}": lambda name=name: compiled(name) for name in ("resnet18", "vit-tiny")},  # type: ignore[misc]
    "reference-esam": lambda: source(reference.gradient, reference.at_perturbed, reference.ESAM),
    "reference-sam": lambda: source(reference.sam),
    "toy-method": toy_method,
    "release": release,
    "toy": toy,
    "wrapper": wrapper,
    "five-problems": five_problems,
    "cluster": cluster,
    "demo": lambda: results("demo", 0.3),
    "cifar10": lambda: results("cifar10/runs", CLEAN),
    "cifar10-noisy": lambda: results("cifar10/runs", NOISY),
    "cifar100": lambda: results("cifar100/runs", CLEAN),
    "frontier-short": lambda: frontier(lambda found: frontier_tables.short_sheet(overall(found), step_times())),
    "frontier": lambda: frontier(lambda found: frontier_tables.overall_sheet(overall(found))),
    "frontier-findings": lambda: frontier(lambda found: "\n".join(f"- {t}" for t in frontier_tables.findings(found))),
    "frontier-accuracy": lambda: frontier(frontier_tables.accuracy_sheet),
    "frontier-regimes": lambda: frontier(frontier_tables.regimes_sheet),
    "frontier-entrants": lambda: as_markdown(frontier_tables.entrants_sheet()),
    "frontier-screening": lambda: frontier(frontier_tables.screening_sheet),
    "beside-recommended": lambda: frontier(lambda found: frontier_tables.beside_sheet(found, "slicesam-fixed")),
    "recommended-speed": recommended_speed,
    "faults": faults,
    "scaling-exchange": lambda: as_markdown(scaling.exchange_sheet()),
    "scaling-links": lambda: scaling.links_words(record("speed/parallel.json")),
    "scaling-fit": lambda: as_markdown(scaling.fit_sheet(record("speed/parallel.json"))),
    "scaling-memory": lambda: as_markdown(scaling.memory_sheet(record("speed/parallel.json"))),
    "scaling-resnet50": lambda: as_markdown(scaling.many_sheet(scaling.RESNET50)),
    "scaling-vit": lambda: as_markdown(scaling.many_sheet(scaling.VIT_LARGE)),
    "scaling-stragglers": lambda: as_markdown(scaling.straggler_sheet()),
    "scaling-kept": lambda: as_markdown(scaling.kept_sheet()),
    "frontier-details": lambda: frontier(frontier_details),
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
    if FRONTIER.is_dir() and (found := read_map(FRONTIER)):
        from esam.frontier.figure import draw_map

        draw_map(ROOT / "docs" / "frontier.png", found)


if __name__ == "__main__":
    main()
