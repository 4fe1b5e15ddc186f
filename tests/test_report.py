"""Does the page show what the records say, to everybody, and nothing more?"""

import errno
import itertools
import math
import os
import re
from unittest.mock import Mock

import pytest
import torch

from esam.optim import METHODS
from esam.report.measured import Measured, difference, duration, memory, written
from esam.report.page import write_report
from esam.report.results import details_sheet, results_sheet
from esam.report.settings import environment_sheet, notes
from esam.report.sheets import Sheet, as_markdown, as_text
from esam.report.summaries import summarise
from esam.styles import SPARE, styles
from esam.train.record import RecordWriter, RunRecord, read_records

LIGHT, DARK = "#fbfbf9", "#16181c"
FRAMES = "requestAnimationFrame(() => requestAnimationFrame(() => arguments[0]()))"
SETTLED_SIZES = """const [width, done] = arguments, look = (tries) => {  // charts follow a moment after the window
  const sizes = [document.documentElement.scrollWidth, innerWidth];
  Math.max(...sizes) <= width || !tries ? done(sizes) : setTimeout(look, 50, tries - 1);
}; look(100)"""
EVIL, BOLD = "<script>alert(1)</script>", "<b>bold</b> %{y} &lt;"


def write_run(
    folder, name, seed, accuracy, *, seconds=100.0, config=None, finished=True, method=None, each=1, data=None, **end
):
    config = {"data": "digits", "epochs": 4, **(config or {})}
    run = {
        "name": name,
        "method": method or {"SGD": "base"}.get(name, name.lower()),
        "seed": seed,
        "config": config,
        "started": "2026-01-02",
    }
    run["environment"] = {"torch": "2.13", "hardware": "Xeon", "threads": 2}
    run |= {"data": data, "id": f"{name}{seed}"} if data else {}  # as newer versions have it
    writer = RecordWriter.create(folder / f"{len(list(folder.iterdir()))}" / "record.jsonl", run)
    for e in range(1, 5):
        evaluated = accuracy + (e - 4) / 10 if e % each == 0 else None
        more = {"lr": 0.1 / e, "test_loss": 2 / e} if data else {}
        writer.epoch(epoch=e, train_loss=1 / e, test_accuracy=evaluated, seconds=seconds * e / 4, **more)
    if finished:
        measures = {"images_per_second": 5000 / seconds, "sharpness": 2.0 + seed, "train_loss": 0.25} | end
        writer.end(test_accuracy={"last": accuracy, "best": accuracy + 0.01}, seconds=seconds, **measures)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """SGD 90, 92, 94 %: 92 ± 2. ESAM 92.5, 94.5 %: 93.5 ± sqrt(2), and a third run that is unfinished."""
    folder = tmp_path_factory.mktemp("runs")
    for seed, accuracy in enumerate([0.90, 0.92, 0.94]):
        more = {"class_accuracy": [1.0, accuracy - 0.1], "train_accuracy": 1.0}
        write_run(folder, "SGD", seed, accuracy, forwards=4, backwards=4, peak_memory=512 * 2**20, data=DATA, **more)
    for seed, accuracy in enumerate([0.925, 0.945]):
        extra = {"notes": ["Only 500 images & few epochs"], "settings": {"rho": 0.05}, "tuned": SEARCH}
        more = {"class_accuracy": [0.9, 1.0], "train_accuracy": 0.7}
        write_run(
            folder, "ESAM", seed, accuracy, seconds=138.0, config=extra, forwards=6.5, backwards=6, data=DATA, **more
        )
    write_run(folder, "ESAM", 2, 0.10, config={"settings": {"rho": 0.05}}, finished=False)
    return folder


DATA = {"fingerprint": "f00d", "train": 500, "test": 200, "shape": [1, 8, 8], "classes": ["cat", EVIL]}
DATA["of_each_class"] = {"train": [300, 200], "test": [100, 100]}
SEARCH = {
    "trials": [{"rho": rho, "accuracy": accuracy, "loss": 0.5} for rho, accuracy in ((0.05, 0.91), (0.025, 0.9))],
    "chosen": {"rho": 0.05},
}


def summarised(folder):
    """The methods of the one condition that the runs have."""
    (methods,) = summarise(read_records(folder)).values()
    return methods


def test_means_deviations_and_ratios_are_those_worked_out_by_hand(runs):
    base, esam = summarised(runs)
    assert (base.name, base.is_base, base.n, base.unfinished) == ("SGD", True, 3, ())
    assert base.accuracy.mean == pytest.approx(0.92) and base.accuracy.std == pytest.approx(0.02)
    assert base.sharpness == Measured(3.0, 1.0, 3)
    assert (esam.name, esam.is_base, esam.n, len(esam.unfinished)) == ("ESAM", False, 2, 1)
    assert esam.accuracy.mean == pytest.approx(0.935) and esam.accuracy.std == pytest.approx(0.01 * math.sqrt(2))
    assert esam.time_ratio == pytest.approx(1.38) and esam.counted_ratio == pytest.approx(5.1 / 3)
    assert esam.forwards == Measured(6.5, 0.0, 2)
    # Welch: variances 4/3 and 2/2 points give a standard error of sqrt(7/3) and 2.88 degrees of freedom; t(2) = 4.30
    assert esam.gain.value == pytest.approx(1.5) and esam.gain.half_width == pytest.approx(4.30 * math.sqrt(7 / 3))
    assert not esam.gain.clear and esam.gain.format() == "+1.5 (-5.1 to +8.1)"


def test_one_seed_has_no_deviation_and_no_difference_and_a_missing_number_shrinks_its_own_n(tmp_path):
    write_run(tmp_path, "SAM", 0, 0.9, sharpness=math.nan)
    assert summarised(tmp_path)[0].accuracy == Measured(0.9, None, 1)
    write_run(tmp_path, "SAM", 1, 0.8)
    (sam,) = summarised(tmp_path)
    assert sam.sharpness == Measured(3.0, None, 1) and written(sam.sharpness, seeds=sam.n) == "3.00 (n = 1)"
    assert difference(Measured(0.9, None, 1), Measured(0.8, 0.1, 3)) is None
    assert difference(Measured(0.9, 0.0, 3), Measured(0.8, 0.0, 3)).clear  # the same with every seed


def test_the_base_is_the_base_optimizer_and_else_the_fastest(tmp_path):
    for name, seconds, method in [("SAM", 200.0, "sam"), ("ESAM", 150.0, "esam"), ("AdamW", 170.0, "base")]:
        write_run(tmp_path, name, 0, 0.9, seconds=seconds, method=method)  # each takes the role of the one before
        methods = summarised(tmp_path)
        assert methods[0].name == name and [one.name for one in methods if one.is_base] == [name]


def test_the_first_table_has_what_matters_and_no_column_that_says_nothing(runs, tmp_path):
    first = ("Test acc., %", "Points vs SGD", "Time vs SGD", "Counted", "Train acc., %", "Sharpness")
    assert results_sheet(summarised(runs)).head == ("Method", "Seeds", *first, "rho, tuned")
    assert details_sheet(summarised(runs)).head == ("Method", "Time", "Train loss", "Images/s", "Forward", "Backward")
    rounded = {"rounded_accuracy": {"32": 0.92, "8": 0.91, "4": 0.75}}
    write_run(tmp_path, "SGD", 0, 0.92, seconds=50.0, cpu_seconds=20.0, peak_memory=2**20, **rounded)
    sheet = results_sheet(summarised(tmp_path))  # one seed, on CPUs: no gain, no memory of the process
    found = dict(zip(sheet.head, sheet.rows[0], strict=True))
    assert {"Seeds", "Points vs SGD", "Time", "Peak memory"}.isdisjoint(found)
    assert (found["8 bits, points"], found["4 bits, points"]) == ("-1.0", "-17.0")
    assert details_sheet(summarised(tmp_path)).rows[0][2] == "20 s"
    assert Measured(0.01, 0.02, 3).times(-100).format(decimals=1) == "-1.0 ± 2.0"
    assert Measured(-0.01, None, 1).format(decimals=1) == "0.0"


def test_times_and_their_ratios_are_of_one_kind(tmp_path):
    write_run(tmp_path, "SGD", 0, 0.9, seconds=100.0, cpu_seconds=100.0)
    write_run(tmp_path, "SAM", 0, 0.9, seconds=900.0, cpu_seconds=200.0)  # others had the machine meanwhile
    methods = summarised(tmp_path)
    assert [(one.processor_time, one.time.mean, one.time_ratio) for one in methods] == [(True, 100, 1), (True, 200, 2)]
    write_run(tmp_path, "ESAM", 0, 0.9, seconds=150.0)  # a record without processor time
    assert {one.name: (one.processor_time, one.time_ratio) for one in summarised(tmp_path)}["SAM"] == (False, 9)


def test_a_seed_that_was_run_twice_counts_once(tmp_path):
    write_run(tmp_path, "SGD", 0, 0.5)
    write_run(tmp_path, "SGD", 0, 0.6)
    assert summarised(tmp_path)[0].accuracy == Measured(0.6, None, 1)
    assert "1 of the runs repeat a seed" in write_report(tmp_path).read_text()


COMPARISONS = [
    # a value is a section, however it is spelt, and sections are in the order of their values
    (
        [("SGD", {"label_noise": n}) for n in (10, 0, 0.0, 2.5)],
        {f"label noise {n}": ["SGD"] for n in ("0", "2.5", "10")},
    ),
    # other data never share a table
    ([("SGD", {"data": "digits"}), ("SAM", {"data": "cifar10"})], {"data cifar10": ["SAM"], "data digits": ["SGD"]}),
    # what is tuned for a method does not split the table; several values of its own option split its rows
    (
        [("SGD", {"lr": 0.1}), *(("ESAM", {"lr": 0.2, "settings": {"gamma": g}}) for g in (10, 0.5, 1e-5))],
        {"": ["SGD", "ESAM (gamma 1e-05)", "ESAM (gamma 0.5)", "ESAM (gamma 10)"]},
    ),
    # a setting of the training that one run leaves out is another condition
    (
        [("SAM", {"train_size": n, "settings": {"rho": 0.1}}) for n in (None, 500)],
        {"train size 500": ["SAM"], "train size not set": ["SAM"]},
    ),
    # where a run was made does not set it apart
    ([("SGD", {"device": "cpu", "threads": 1}), ("SGD", {"device": "cuda", "threads": 2})], {"": ["SGD"]}),
]


@pytest.mark.parametrize(("made", "wanted"), COMPARISONS)
def test_runs_are_compared_only_under_the_same_condition(tmp_path, made, wanted):
    for seed, (name, config) in enumerate(made):
        write_run(tmp_path, name, seed, 0.9, config=config)
    found = {title: [one.name for one in methods] for title, methods in summarise(read_records(tmp_path)).items()}
    assert found == wanted and list(found) == list(wanted)


def test_where_runs_ran_on_different_machines_each_value_has_the_number_of_its_runs():
    records = [
        RunRecord(None, {"environment": {"torch": "2", "threads": n}, "config": {}}, (), None) for n in (2, 2, 4)
    ]
    assert environment_sheet(records).rows == (("torch", "2"), ("threads", "2 (2 runs); 4 (1 run)"))
    assert notes(records[:2]) == [] and "their times do not compare" in notes(records)[0]


def test_numbers_are_written_as_people_read_them():
    assert Measured(0.01234, 0.00119, 3).format() == "0.0123 ± 0.0012"
    assert Measured(1234.5, 12.4, 3).format(seeds=3) == "1,234 ± 12" and written(None) == "–"
    spoken = {4.25: "4.2 s", 59.4: "59 s", 150: "2 min 30 s", 2460: "41 min", 11100: "3 h 05 min"}
    assert [duration(seconds) for seconds in spoken] == list(spoken.values())
    assert [memory(512 * 2**20), memory(1.5 * 2**30)] == ["512 MiB", "1.50 GiB"]


SHEET = Sheet(
    "T & U", ("name", "n", "time", "what"), (("a", "1", "2 s", "[b]<b>|"), ("bb", "22.5", "3 min", "3 of 4 runs"))
)


def test_a_sheet_turns_numbers_right_and_words_left_and_is_cut_where_the_terminal_ends():
    whole = ["name     n   time  what", "a        1    2 s  [b]<b>|", "bb    22.5  3 min  3 of 4 runs"]
    title, head, rule, *rows = as_text(SHEET).splitlines()
    assert (title, [head, *rows], {*rule}) == ("T & U", whole, {"─"})
    pieces = as_text(SHEET, width=18).splitlines()[1:]
    assert [line for line in pieces if "─" not in line] == [
        *("name     n   time", "a        1    2 s", "bb    22.5  3 min", ""),
        *("name  what", "a     [b]<b>|", "bb    3 of 4 runs"),
    ]
    rule, first = as_markdown(SHEET).splitlines()[1:3]
    assert (rule, first) == ("| --- | ---: | ---: | --- |", "| a | 1 | 2 s | [b]<b>\\| |")


VISION = {  # Machado, Oliveira and Fernandes 2009, severity 1
    "all": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
XYZ = torch.tensor([[0.4339, 0.3762, 0.1899], [0.2126, 0.7152, 0.0722], [0.0177, 0.1095, 0.8728]])  # over white
LAB = torch.tensor([[0.0, 116, 0], [500, -500, 0], [0, 200, -200]])


def linear(*colours):
    shares = torch.tensor([[int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)] for colour in colours])
    return torch.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    low, high = sorted((linear(one, other) @ XYZ[1]).tolist())
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("vision", VISION)
def test_every_colour_stands_out_on_both_grounds_and_from_every_other(vision):
    palette = [*(row.colour for row in METHODS.values() if row.colour), SPARE]
    assert min(contrast(colour, ground) for colour in palette for ground in (LIGHT, DARK)) >= 3
    xyz = (linear(*palette) @ torch.tensor(VISION[vision]).float().T).clamp(0, 1) @ XYZ.T
    lab = torch.where(xyz > 0.008856, xyz ** (1 / 3), 7.787 * xyz + 16 / 116) @ LAB.T
    assert torch.pdist(lab).min() >= 14


def test_a_method_has_its_rows_colour_a_control_is_dashed_and_no_colour_is_used_twice_before_all_are():
    names = {"SGD": "base", "ESAM": "esam", "ESAM (gamma 0.25)": "esam"}
    colours = [row.colour for row in METHODS.values() if row.colour]
    names |= {str(number): "new" for number in range(len(colours) - 2)}
    found = styles(names)
    assert (found["SGD"].colour, found["ESAM"].colour) == (METHODS["base"].colour, METHODS["esam"].colour)
    assert [found[name].line for name in list(names)[:3]] == ["dash", "solid", "dot"]
    assert len({one.colour for one in found.values()}) == len({one.key for one in found.values()}) == len(names)
    assert len(styles({str(number): "new" for number in range(20)})) == 20


def test_the_same_records_give_the_same_page_and_it_loads_nothing_and_no_records_give_none(runs, tmp_path):
    page = write_report(runs, tmp_path / "page.html").read_bytes()
    assert write_report(runs, tmp_path / "again" / "page.html").read_bytes() == page
    own = page.split(b'<script type="application/json"')[0]
    assert not re.search(rb"href\s*=|src\s*=|url\(|@import", own)
    with pytest.raises(ValueError, match=r"no record\.jsonl in .* train something first"):
        write_report(tmp_path / "again")


def test_an_old_report_stays_when_a_record_is_broken_or_the_disk_is_full(tmp_path, monkeypatch):
    write_run(runs := tmp_path, "SGD", 0, 0.9)
    page = runs / "report.html"
    page.write_text("old")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="the disk is full; the old file is kept"):
        patch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        write_report(runs)
    (runs / "0" / "record.jsonl").write_text("{}\n{}\n")
    with pytest.raises(ValueError, match="record.jsonl, line 1"):
        write_report(runs)
    assert page.read_text() == "old" and [p.name for p in runs.iterdir() if p.is_file()] == ["report.html"]


def test_a_broken_record_is_named_on_the_page_and_costs_no_other_run_its_place(tmp_path):
    write_run(tmp_path, "SGD", 0, 0.9)
    write_run(tmp_path, "SAM", 1, 0.8)
    broken = next(path for path in tmp_path.rglob("record.jsonl") if "SAM" in path.read_text())
    broken.write_text("no record\n")
    with pytest.warns(UserWarning, match="record.jsonl, line 1: no JSON .*; its run is left out"):
        text = write_report(tmp_path).read_text()
    assert "A record cannot be read, and its run is left out" in text and "SGD" in text
    assert broken.read_text() == "no record\n"


def opened(browser, runs):
    """Show the page of the runs on a wide light screen, and wait until it is drawn."""
    prefer(browser, "light")
    show_width(browser, 1280)
    browser.get(write_report(runs).resolve().as_uri())
    wait = "const w = () => 'drawn' in document.documentElement.dataset ? done() : setTimeout(w, 20); w()"
    browser.execute_async_script(f"const done = arguments[0]; {wait}")
    assert browser.get_log("browser") == []
    return browser


@pytest.fixture(scope="module")
def page(browser, runs):
    """The page of `runs`, opened once; each test leaves it as it was."""
    return opened(browser, runs)


def show_width(browser, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer(browser, scheme):
    wish = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", wish)


def cells(page, selector=".results"):
    script = "return [...document.querySelectorAll(arguments[0])].map(r => [...r.cells].map(c => c.textContent))"
    return [[text.replace("\xa0", " ") for text in row] for row in page.execute_script(script, f"{selector} tr")]


def test_the_page_shows_the_verdict_first_and_then_the_numbers_of_the_records(page):
    assert page.find_elements("css selector", "th:not([scope]), .chart:not([aria-label])") == []
    lead = page.find_element("css selector", ".lead")
    assert lead.text.startswith("Whether any method beats SGD cannot be told from 2 to 3 seeds")
    assert lead.location["y"] < 200
    head, sgd, esam, *_ = cells(page)
    sgd, esam = dict(zip(head, sgd, strict=True)), dict(zip(head, esam, strict=True))
    assert (sgd["Method"], esam["Method"]) == ("SGDbase", "ESAMunder-fits")
    assert (sgd["Test acc., %"], esam["Test acc., %"]) == ("92.00 ± 2.00", "93.50 ± 1.41")
    assert (esam["Seeds"], esam["Time vs SGD"]) == ("2", "1.38×")
    assert ["ESAM", "2 min 18 s"] in [row[:2] for row in cells(page, "details")]
    assert (esam["Train acc., %"], esam["rho, tuned"], sgd["rho, tuned"]) == ("70.00 ± 0.00", "0.05", "–")
    assert len(page.find_elements("css selector", ".results tr.best")) == 2  # no method is clearly better
    assert ["ESAM", "0.05", "91.00", "chosen"] in cells(page, "details")
    text = page.find_element("tag name", "body").text.replace("\xa0", " ")
    said = ("SGD and ESAM compared on digits", "Only 500 images & few epochs", "ESAM, seed 2: unfinished after 4")
    assert all(words in text for words in said)
    facts = cells(page, ".facts")
    assert ["training samples", "500"] in facts and ["shape of a sample", "1 × 8 × 8"] in facts
    assert ["classes", f"2: cat, {EVIL}"] in facts and ["train samples of a class", "200 to 300"] in facts
    assert ["rho", "–", "0.05"] in cells(page, ".differences") and ["epochs", "4"] in facts
    points = "return document.getElementById('chart-0').data.map(t => [t.meta.name, t.x[0], t.y[0]])"
    front, *found = page.execute_script(points)
    assert front[0] == "front" and {name for name, *_ in found} == {"SGD", "ESAM"}
    assert ["SGD", pytest.approx(100), pytest.approx(92)] in found


SHOWN = """return [...document.querySelectorAll('.chart')].map(chart => chart._fullData
    .filter(trace => trace.visible === true).map(trace => trace.meta.name))"""


def test_a_chip_hides_its_method_and_a_double_click_or_the_label_of_a_line_shows_it_alone(page):
    names = lambda: {name for chart in page.execute_script(SHOWN) for name in chart}  # noqa: E731
    before = page.execute_script(SHOWN)
    assert all({"SGD", "ESAM"} <= {*chart} for chart in before)
    chip = next(c for c in page.find_elements("css selector", ".chip") if c.text == "ESAM")
    chip.click()
    assert names() == {"SGD"}
    rows = page.find_elements("css selector", ".results tr[data-group]")
    assert [row.get_attribute("class") for row in rows] == ["best", "best off"]
    chip.click()
    page.execute_script("arguments[0].dispatchEvent(new Event('dblclick'))", chip)
    assert names() == {"ESAM"}
    click(page, "#show-all")
    assert page.execute_script(SHOWN) == before
    chart = named_chart(page, "Test loss")
    labels = "return document.getElementById(arguments[0]).layout.annotations.map(a => [a.text, a.name])"
    assert sorted(page.execute_script(labels, chart)) == [["ESAM", "g1"], ["SGD", "g0"]]
    alone = "document.getElementById(arguments[0]).emit('plotly_clickannotation', {annotation: {name: 'g0'}})"
    page.execute_script(alone, chart)
    assert names() == {"SGD"}
    page.execute_script(alone, chart)
    assert page.execute_script(SHOWN) == before


def named_chart(page, start):
    return page.find_element("css selector", f".chart[aria-label^='{start}']").get_attribute("id")


def click(page, selector):
    page.execute_script("document.querySelector(arguments[0]).click()", selector)


def test_a_band_reaches_from_the_lowest_to_the_highest_seed_around_the_mean(page):
    data = "return document.getElementById(arguments[0]).data.map(t => [t.meta.name, t.meta.band, t.y.map(Math.round)])"
    traces = page.execute_script(data, named_chart(page, "Test accuracy against epochs"))
    assert ["SGD", True, [64, 74, 84, 94, 90, 80, 70, 60]] in traces and ["SGD", False, [62, 72, 82, 92]] in traces


def test_a_click_on_a_column_sorts_by_its_values_and_a_third_one_restores_the_order(page):
    first, other = ["SGDbase", "ESAMunder-fits"], ["ESAMunder-fits", "SGDbase"]
    script = "document.querySelector('.results').tHead.rows[0].cells[arguments[0]].querySelector('button').click()"
    head = cells(page)[0]
    # a dash is least, whichever way; words rise first
    for title, once, twice in (("Time vs SGD", other, first), ("rho, tuned", other, other), ("Method", other, first)):
        for wanted in (once, twice, first):
            page.execute_script(script, head.index(title))
            assert [row[0] for row in cells(page)[1:3]] == wanted, title


def test_a_chart_can_be_taken_away_as_a_picture_with_its_name(page):
    page.execute_script("""window.caught = [];
        HTMLAnchorElement.prototype.click = function () { caught.push(this.download); }""")
    click(page, f"#{named_chart(page, 'Test loss')} .modebar-btn")
    wait = "const [done] = arguments, look = () => caught.length ? done(caught) : setTimeout(look, 20); look()"
    assert page.execute_async_script(wait) == ["test-loss-against-epochs.svg"]


def test_the_page_never_scrolls_sideways(page):
    for width in (320, 400, 800, 1400):
        show_width(page, width)
        sizes = page.execute_async_script(SETTLED_SIZES, width)
        assert max(sizes) <= width


def test_a_change_to_dark_reaches_the_page_and_the_charts_and_print_stays_light(page):
    def rgb_to_hex(text):
        return "#" + "".join(f"{int(number):02x}" for number in re.findall(r"\d+", text)[:3])

    ground = "return getComputedStyle(document.body).backgroundColor"
    tick = "return getComputedStyle(document.querySelector('#chart-0 .xtick text')).fill"
    names = "['--ink', '--quiet', '--ground', '--raised', '--remark-ground']"
    variables = f"return {names}.map(n => getComputedStyle(document.documentElement).getPropertyValue(n).trim())"
    for scheme, wanted in (("light", LIGHT), ("dark", DARK)):
        prefer(page, scheme)
        page.execute_async_script(FRAMES)
        assert rgb_to_hex(page.execute_script(ground)) == wanted
        ink, quiet, *grounds = page.execute_script(variables)
        texts = (ink, quiet, rgb_to_hex(page.execute_script(tick)))
        assert min(contrast(text, behind) for text in texts for behind in grounds) >= 4.5
    page.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert contrast(rgb_to_hex(page.execute_script(tick)), "#ffffff") >= 4.5
    assert page.execute_script("return document.querySelector('#chart-0 .main-svg').clientWidth") <= 660
    page.execute_script("dispatchEvent(new Event('afterprint'))")
    prefer(page, "light")


def test_names_and_values_are_shown_and_never_run(browser, tmp_path):
    quotes = "\"' onmouseover=alert(3) </script><img src=x onerror=alert(4)> $title %{y}"
    evil = {"notes": [quotes], EVIL: quotes}
    write_run(tmp_path, EVIL, 0, 0.9, method="<img src=x onerror=alert(2)>", config=evil)
    write_run(tmp_path, BOLD, 0, 0.9)
    write_run(tmp_path, "SGD", 0, 0.9)
    page = opened(browser, tmp_path)
    assert page.execute_script("return ['img', 'script'].map(n => document.querySelectorAll(n).length)") == [0, 3]
    assert quotes in [remark.text for remark in page.find_elements("css selector", ".remarks p")]
    chart = named_chart(page, "What it gives")
    labels = "return [...document.querySelectorAll(`#${arguments[0]} .annotation-text`)].map(t => t.textContent)"
    assert {EVIL, BOLD} <= set(page.execute_script(labels, chart)) & {row[0] for row in cells(page)}
    assert quotes in itertools.chain.from_iterable(cells(page, ".differences"))
