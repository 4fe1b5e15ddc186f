"""The map from records: standings, ranks, front, tables, page and picture."""

import re

import pytest
from frontier_records import write_arena, write_run

from esam.cli import main
from esam.frontier.figure import draw_map
from esam.frontier.page import marks_of, write_map
from esam.frontier.standings import behind, front, front_shares, overall, read_map, resampled_interval, shared
from esam.frontier.tables import (
    accuracy_sheet,
    beside_sheet,
    findings,
    overall_sheet,
    regime_sheet,
    regimes_sheet,
    screening_sheet,
    short_sheet,
)
from esam.report.words import ABSENT


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A map of four regimes from which two methods were dropped."""
    folder = tmp_path_factory.mktemp("map")
    write_arena(folder, regimes=("fits", "wrong20", "text", "vit"), dropped=("saf", "rwp"))
    return folder, read_map(folder)


def write_three(folder, regime="fits", *, base=(0.50, 0.52), sam=(0.53, 0.53), esam=(0.51, 0.50)):
    for name, accuracies, seconds in (("base", base, 10), ("sam", sam, 20), ("esam", esam, 16)):
        for seed, accuracy in enumerate(accuracies):
            write_run(folder, regime, name, seed, accuracy, seconds=seconds)


def test_a_standing_has_means_errors_and_differences_seed_by_seed(tmp_path):
    write_three(tmp_path)
    (base, sam, esam) = read_map(tmp_path)["fits"]
    assert (base.last.mean, base.last.n) == (pytest.approx(51), 2)
    assert base.last.std == pytest.approx(2**0.5)
    assert (sam.over_base.mean, sam.over_base.std) == (pytest.approx(2), pytest.approx(2**0.5))
    assert (esam.over_sam.mean, esam.over_sam.std) == (pytest.approx(-2.5), pytest.approx(0.5**0.5))
    assert sam.best.mean == pytest.approx(54)
    assert (sam.time.mean, esam.time.mean) == (2, pytest.approx(1.6))
    assert (sam.units, sam.passes) == (2, pytest.approx(2))
    assert sam.setting == {"lr": 0.1, "weight_decay": 0.0005, "rho": 0.1}


def test_a_longer_entrant_costs_its_epochs(tmp_path):
    write_three(tmp_path)
    write_run(tmp_path, "fits", "base-long", 0, 0.6, seconds=20)
    longer = next(one for one in read_map(tmp_path)["fits"] if one.entrant == "base-long")
    assert (longer.title, longer.units, longer.time.mean) == ("SGD, twice as long", 2, 2)


def test_failed_runs_are_left_out_and_told_and_diverged_ones_counted(tmp_path):
    write_three(tmp_path)
    write_run(tmp_path, "fits", "sam", 2, 0.1, status="failed")
    write_run(tmp_path, "fits", "esam", 2, 0.1, loss=float("nan"))
    _, sam, esam = read_map(tmp_path)["fits"]
    assert (sam.last.n, sam.spoilt) == (2, 1)
    assert (esam.last.n, esam.spoilt) == (3, 1)
    rows = regime_sheet("fits", [*read_map(tmp_path)["fits"]]).rows
    assert sum("failed or diverged: 1" in row[-1] for row in rows) == 2


def test_a_regime_without_a_run_of_the_base_is_not_on_the_map(tmp_path):
    write_three(tmp_path, "fits")
    write_run(tmp_path, "vit", "sam", 0, 0.5)
    assert list(read_map(tmp_path)) == ["fits"]


def test_the_front_holds_whom_nobody_as_cheap_is_as_accurate_as():
    points = {"a": (1, 50), "b": (1, 51), "c": (1.5, 51), "d": (2, 53), "e": (1.2, 52), "f": (3, 52.5)}
    assert front(points) == ["b", "e", "d"]


def test_shares_of_the_front_follow_the_spread(tmp_path):
    write_three(tmp_path, base=(0.5, 0.501), sam=(0.6, 0.601), esam=(0.4, 0.401))
    shares = front_shares(read_map(tmp_path)["fits"])
    assert shares == {"base": 1, "sam": 1, "esam": 0}
    write_three(tmp_path, "vit", base=(0.5, 0.55), sam=(0.525, 0.525), esam=(0.525, 0.525))
    shares = front_shares(read_map(tmp_path)["vit"])
    assert 0.25 < shares["sam"] < 0.42  # the highest of three that are level
    assert 0.42 < shares["esam"] < 0.58  # the higher of two


def test_ranks_are_over_the_regimes_and_seeds_that_all_have(tmp_path):
    write_three(tmp_path, "fits", sam=(0.53, 0.53, 0.9))  # a third seed that the others lack
    write_three(tmp_path, "vit", base=(0.6, 0.6), sam=(0.5, 0.5), esam=(0.4, 0.4))
    write_run(tmp_path, "fits", "asam", 0, 0.99)
    found = read_map(tmp_path)
    assert shared(found) == (["base", "sam", "esam"], ["fits", "vit"])
    rows = {one.entrant: one for one in overall(found)}
    assert {name: one.rank.mean for name, one in rows.items()} == {"base": 1.5, "sam": 1.5, "esam": 3}
    assert rows["sam"].interval == (1, 2)
    assert rows["sam"].over_base.mean == pytest.approx((2 - 10) / 2)
    assert rows["esam"].time == pytest.approx(1.6)


def test_sam_is_kept_where_the_difference_is_no_more_than_seeds_differ(tmp_path):
    write_three(tmp_path, "fits", base=(0.50, 0.54), sam=(0.53, 0.53), esam=(0.52, 0.52))
    write_three(tmp_path, "vit", base=(0.50, 0.501), sam=(0.53, 0.53), esam=(0.52, 0.52))
    found = read_map(tmp_path)
    assert behind(found, "esam") == ["vit"]
    assert behind(found, "esam", "base") == behind(found, "sam", "base") == []
    assert behind(found, "base") == ["vit"]
    assert {one.entrant: one.keeps_sam for one in overall(found)} == {"base": 1, "sam": 2, "esam": 1}
    told = findings(found)
    assert "No cheaper method keeps" in told[0]
    assert told[1].endswith("by more than seeds differ under SAM in ViT (AdamW) and under the base in no regime.")


def test_an_entrant_stands_beside_the_best_control_and_is_above_level_or_under_by_the_spread_of_seeds(tmp_path):
    write_three(tmp_path, "fits", base=(0.50, 0.54), sam=(0.53, 0.53), esam=(0.52, 0.52))
    write_three(tmp_path, "vit", base=(0.50, 0.501), sam=(0.53, 0.53), esam=(0.52, 0.52))
    write_three(tmp_path, "text", base=(0.50, 0.501), sam=(0.53, 0.53), esam=(0.54, 0.54))
    for regime in ("fits", "vit", "text"):
        write_run(tmp_path, regime, "base-long", 0, 0.6)
    rows = beside_sheet(read_map(tmp_path), "esam").rows
    assert [row[-1] for row in rows] == ["-1.0 ± 0.0, level", "-1.0 ± 0.0, under", "+1.0 ± 0.0, above"]
    assert rows[0][2] == "60.0 (SGD, twice as long)"


def test_who_keeps_sam_everywhere_for_less_is_named(tmp_path):
    write_three(tmp_path, esam=(0.6, 0.6))
    assert findings(read_map(tmp_path))[0].endswith("ESAM (1.60 times the base's time).")


def test_an_interval_of_equal_values_has_no_width():
    assert resampled_interval([2.0, 2.0, 2.0]) == (2, 2)
    low, high = resampled_interval([1.0, 2.0, 3.0, 4.0])
    assert 1 < low < 2.5 < high < 4


def test_every_table_has_a_row_for_whom_it_is_about(whole):
    _, found = whole
    staying = len(shared(found)[0])
    assert len(overall_sheet(overall(found)).rows) == len(accuracy_sheet(found).rows) == staying
    assert [row[0] for row in screening_sheet(found).rows] == ["Base", "SAF", "Random perturbation"]
    assert len(regime_sheet("vit", found["vit"]).rows) == staying
    assert len(regime_sheet("fits", found["fits"]).rows) == staying + 2
    assert [row[0] for row in regimes_sheet(found).rows] == [
        "CIFAR-10 (fits)",
        "20 % wrong labels",
        "ViT (AdamW)",
        "Text (AdamW)",
    ]
    short = {row[0]: row for row in short_sheet(overall(found), {"sam": "1.9 / 2.0"}).rows}
    assert {"Base", "SAM", "ESAM"} <= short.keys()
    assert (short["SAM"][2], short["ESAM"][2]) == ("1.9 / 2.0", ABSENT)


def test_entrants_have_colours_of_their_own(whole):
    _, found = whole
    colours = [mark.colour for mark in marks_of(found).values()]
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)
    assert len(set(colours)) == len(colours)


def test_the_page_needs_nothing_else_and_has_every_regime(whole, tmp_path):
    _, found = whole
    page = write_map(tmp_path, found).read_text()
    for title in ("CIFAR-10 (fits)", "ViT (AdamW)", "Over all regimes", "Dropped after the screening"):
        assert f"<h2>{title}</h2>" in page
    assert page.count('class="chart"') == 2 * (1 + len(found))
    assert "default-src" in page and "sha256-" in page
    assert page == write_map(tmp_path, found).read_text()


def test_the_picture_has_a_panel_for_each_regime(whole, tmp_path):
    _, found = whole
    svg, png = draw_map(tmp_path / "map", found)
    assert png.stat().st_size > 10_000
    text = svg.read_text()
    assert text.count('id="axes_') == 1 + len(found)


def test_the_map_is_drawn_from_records_alone(whole, capsys, monkeypatch):
    folder, _ = whole
    monkeypatch.setattr("esam.frontier.stages.make", lambda *_, **__: pytest.fail("nothing is run"))
    assert main(["frontier", "--map", "--out", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "Mean rank" in out
    assert (folder / "report.html").exists() and (folder / "map.png").exists()


def test_a_map_without_records_is_refused(tmp_path, capsys):
    assert main(["frontier", "--map", "--out", str(tmp_path)]) == 1
    assert main(["frontier", "--map", "--out", str(tmp_path / "none")]) == 1
    assert "is not a folder" in capsys.readouterr().err
