"""Are the committed results those of the committed records, and the docs' claims those of the results?"""

import json
from pathlib import Path

import pytest

from esam.recipes.paper import ITEMS, SCALES
from esam.recipes.paper.claims import claims_sheet, judged_at
from esam.recipes.paper.common import figures_of
from esam.report.sheets import as_markdown
from esam.reproduce.store import Found, Store
from esam.train.record import encode

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
BY_RECORDS = ("table1", "table2", "table3", "vit", "figure1", "parameter-study")
BY_OBSERVATIONS = ("four-losses", "cosines", "linearity", "sds-illustration")


@pytest.fixture(scope="module")
def store():
    return Store(RESULTS / "reproduce", SCALES["cpu"](), shared=[RESULTS / d / "runs" for d in ("cifar10", "cifar100")])


def found(store, item):
    needs = item.needs(store.scale)
    assert store.missing(needs) == []
    return Found(store, needs, print)


def as_written(values):
    return json.loads(encode(values))


@pytest.mark.parametrize("item", ITEMS.values(), ids=list(ITEMS))
def test_every_item_has_been_made_at_the_cpu_scale_and_drawn(store, item):
    result = store.result(item)
    assert result is not None and result["scale"] == "cpu"
    assert result["paper"] == as_written(item.paper)
    assert all(sheet.rows for sheet in item.sheets(result["measured"]))
    for kind in ("svg", "png"):
        assert any(store.folder.glob(f"{item.name}*.{kind}"))


@pytest.mark.parametrize("name", BY_RECORDS)
def test_accuracy_and_speed_are_those_of_the_records(store, name):
    here = found(store, ITEMS[name])
    measured = store.result(ITEMS[name])["measured"]
    assert measured["tasks"] == as_written(figures_of(here, here.needs.rows))


@pytest.mark.parametrize("name", ["grid-search", *BY_OBSERVATIONS])
def test_what_an_item_tells_follows_from_what_was_kept(store, name):
    item = ITEMS[name]
    assert store.result(item)["measured"] == as_written(item.analyse(found(store, item)))


@pytest.mark.parametrize("page", ["README.md", "docs/reproduce.md"])
def test_the_claims_in_the_docs_are_those_of_the_results(store, page):
    assert as_markdown(claims_sheet(judged_at(ITEMS, store))) in (ROOT / page).read_text()


def test_the_results_stay_small():
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < 10e6
