"""Are the committed results those of the committed records, and the docs' claims those of the results?"""

import json
from pathlib import Path

import pytest
from thin_records import thinned

from esam.paper.claims import claims_markdown, judged
from esam.paper.engine.inputs import Inputs
from esam.paper.engine.store import ResultStore
from esam.paper.items import ITEMS, table1, table2, table3, vit
from esam.paper.items.tables import TableFigures, method_figures
from esam.paper.scales import OWN_BEST, SCALES
from esam.paper.verdicts import INCONCLUSIVE

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
PAPERS = {"table2": table2.PAPER, "table3": table3.PAPER, "vit": vit.PAPER}
"""Whose rows stand in a table; Table 1's in the others."""
TABLES = [name for name, item in ITEMS.items() if item.kind is TableFigures]


MADE = ("cpu", "short")
"""The scales whose results are kept."""


@pytest.fixture(scope="module", params=MADE)
def store(request):
    shared = [RESULTS / data / "runs" for data in ("cifar10", "cifar100")]
    return ResultStore(RESULTS / "reproduce", SCALES[request.param](), shared=shared)


def result_of(store, name):
    """Return what was made of an item, None where the scale has nothing for it."""
    return None if ITEMS[name].needs(store.scale).empty else store.result(ITEMS[name])


def inputs_of(store, item):
    needs = item.needs(store.scale)
    assert store.missing(needs) == []
    return Inputs(store, needs, print)


def test_every_item_has_been_made_and_drawn(store):
    for name, item in ITEMS.items():
        if item.needs(store.scale).empty:
            continue
        assert all(sheet.rows for sheet in item.sheets(store.result(item).measured)), name
        assert all(any(store.folder.glob(f"{name}*.{kind}")) for kind in ("svg", "png")), name


@pytest.mark.parametrize("name", TABLES)
def test_the_accuracies_of_a_table_are_those_of_the_records_and_the_papers_those_of_its_module(store, name):
    item, result = ITEMS[name], result_of(store, name)
    if result is None:
        return
    inputs, rows = inputs_of(store, item), [own for one in result.measured.workloads for own in one.methods]
    for runs, own in zip(inputs.needs.runs, rows, strict=True):
        paper = PAPERS.get(name, table1.PAPER)[runs.workload.paper_model, runs.workload.paper_data]
        assert own == method_figures(inputs, runs, own.speed, paper)


@pytest.mark.parametrize("name", TABLES)
def test_every_method_of_a_table_was_timed_as_often_as_the_scale_says(store, name):
    result = result_of(store, name)
    for one in () if result is None else result.measured.workloads:
        assert {own.speed.rounds for own in one.methods} == {store.scale.timed_rounds}
        assert one.find("sam").speed.over_sam.value == one.find("base").speed.time_over_base.value == 1
        for own in one.methods:
            assert own.speed.over_sam.low <= own.speed.over_sam.high


def test_a_method_has_one_speed_on_a_workload_in_every_table():
    store, speeds = ResultStore(RESULTS / "reproduce", SCALES["cpu"]()), {}
    for result in (result_of(store, name) for name in TABLES):
        for one in () if result is None else result.measured.workloads:
            for own in one.methods:
                speeds.setdefault((one.workload, own.method, own.share), set()).add(own.speed)
    assert len(speeds) > 8 and all(len(every) == 1 for every in speeds.values())


@pytest.mark.parametrize("name", ["grid-search", "four-losses", "cosines", "linearity", "sds-illustration"])
def test_what_an_item_tells_follows_from_what_was_kept(store, name):
    item = ITEMS[name]
    assert store.result(item).measured == item.analyse(inputs_of(store, item))


def test_whatever_cannot_be_told_says_why(store):
    found = [finding for _, finding in judged(store)]
    assert all(bool(finding.why) == (finding.verdict == INCONCLUSIVE) for finding in found)


def test_the_claims_in_the_docs_are_those_of_the_results(store):
    page = "".join((ROOT / "docs" / name).read_text() for name in ("reproduce.md", "reproduce_short.md"))
    name = f"claims-{store.scale.name}"
    block = page.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0]
    assert block.strip() == claims_markdown(store)


def test_the_results_stay_small():
    kept = [path for path in RESULTS.rglob("*") if path.suffix in (".json", ".jsonl", ".svg", ".png")]
    kept = [path for path in kept if path.name != "config.json" and "work" not in path.parts]  # not in the repository
    assert sum(path.stat().st_size for path in kept) < 24e6


def test_thinning_a_record_keeps_its_ends_its_evaluations_and_every_tenth_epoch():
    epochs = [{"kind": "epoch", "epoch": n, **({"test_loss": 1.0} if n == 25 else {})} for n in range(1, 26)]
    lines = [{"kind": "run"}, *epochs, {"kind": "end"}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    kept = [json.loads(line) for line in thinned(text).splitlines()]
    assert [line.get("epoch") for line in kept] == [None, 1, 10, 11, 20, 21, 25, None]
    assert thinned(thinned(text)) == thinned(text)
    running = text.replace('{"kind": "end"}\n', "")
    assert thinned(running) == running


def test_each_methods_own_best_is_the_best_point_of_its_search():
    store = ResultStore(RESULTS / "reproduce", SCALES["cpu"]())
    points = store.result(ITEMS["grid-search"]).measured
    for method, own in OWN_BEST.items():
        best = points.of(method)[0]
        rho = {} if best.rho is None else {"rho": best.rho}
        assert own == {"lr": best.lr, "weight_decay": best.weight_decay, **rho}
