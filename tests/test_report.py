"""Does the page tell what the records say, to everybody, and nothing more?"""

import base64
import errno
import itertools
import math
import os
import re
import shutil
import subprocess
import sys
from unittest.mock import Mock

import pytest
import torch

from esam.palette import FALLBACK_COLOURS, METHOD_COLOURS, assign_colours
from esam.report import Spread, summarise, write_report
from esam.report.groups import compare
from esam.report.words import duration, measured, memory, summary
from esam.train.record import RecordWriter, read_records

LIGHT, DARK = "#fbfbf9", "#16181c"
EVIL, BOLD = "<script>alert(1)</script>", "<b>bold</b> %{y} &lt;"


def write_run(folder, name, seed, accuracy, *, seconds=100.0, config=None, finished=True, method=None, **end):
    config = {"data": "digits", "epochs": 4, **(config or {})}
    run = {"name": name, "method": method or name.lower(), "seed": seed, "config": config, "started": "2026-01-02"}
    run["environment"] = {"torch": "2.13", "hardware": "Xeon", "threads": 2}
    writer = RecordWriter.create(folder / f"{len(list(folder.iterdir()))}" / "record.jsonl", run)
    for e in range(1, 5):
        writer.epoch(epoch=e, train_loss=1 / e, test_accuracy=accuracy + (e - 4) / 10, seconds=seconds * e / 4)
    if finished:
        measures = {"images_per_second": 5000 / seconds, "sharpness": 2.0 + seed, "train_loss": 0.25} | end
        writer.end(test_accuracy={"last": accuracy, "best": accuracy + 0.01}, seconds=seconds, **measures)


@pytest.fixture
def runs(tmp_path):
    """SGD 90, 92, 94 %: 92 ± 2. ESAM 92.5, 94.5 %: 93.5 ± sqrt(2), and a third run that is unfinished."""
    (folder := tmp_path / "runs").mkdir()
    for seed, accuracy in enumerate([0.90, 0.92, 0.94]):
        write_run(folder, "SGD", seed, accuracy, forwards=4, backwards=4, peak_memory=512 * 2**20)
    for seed, accuracy in enumerate([0.925, 0.945]):
        extra = {"notes": ["Only 500 images & few epochs"], "command": 'esam compare --name "it\'s"', "rho": 0.05}
        write_run(folder, "ESAM", seed, accuracy, seconds=138.0, config=extra, forwards=6.5, backwards=6)
    write_run(folder, "ESAM", 2, 0.10, config={"rho": 0.05}, finished=False)
    return folder


def test_means_deviations_and_summary_are_those_worked_out_by_hand(runs):
    base, esam = rows = summarise(read_records(runs))
    assert (base.name, base.is_base, base.n, base.unfinished) == ("SGD", True, 3, 0)
    assert base.accuracy.mean == pytest.approx(0.92) and base.accuracy.std == pytest.approx(0.02)
    assert base.best.mean == pytest.approx(0.93) and base.sharpness == Spread(3.0, 1.0, 3)
    assert (esam.name, esam.n, esam.unfinished) == ("ESAM", 2, 1)
    assert esam.accuracy.mean == pytest.approx(0.935) and esam.accuracy.std == pytest.approx(0.01 * math.sqrt(2))
    assert esam.gain == pytest.approx(1.5) and esam.time_ratio == pytest.approx(1.38)
    assert esam.peak_memory is None and esam.forwards == Spread(6.5, 0.0, 2)
    assert summary(rows) == (
        "SGD reached 92.0 % ± 2.0 (n = 3). ESAM reached 93.5 % ± 1.4 (n = 2), +1.5 points over SGD "
        "(within one standard deviation), at 1.38× SGD's time."
    )


def test_one_seed_has_no_deviation_and_a_missing_number_shrinks_its_own_n(tmp_path):
    write_run(tmp_path, "SAM", 0, 0.9, sharpness=math.nan)
    assert summarise(read_records(tmp_path))[0].accuracy == Spread(0.9, None, 1)
    write_run(tmp_path, "SAM", 1, 0.8)
    (row,) = summarise(read_records(tmp_path))
    assert row.sharpness == Spread(3.0, None, 1) and measured(row.sharpness, row_n=row.n) == "3.00 (n = 1)"


def test_the_base_is_the_one_marked_then_a_plain_optimizer_then_the_fastest(tmp_path):
    steps = [("SAM", 200.0, {}), ("ESAM", 150.0, {}), ("AdamW", 170.0, {}), ("LookSAM", 300.0, {"base": True})]
    for name, seconds, config in steps:  # each takes the place of the one before
        write_run(tmp_path, name, 0, 0.9, seconds=seconds, config=config)
        rows = summarise(read_records(tmp_path))
        assert rows[0].name == name and [row.name for row in rows if row.is_base] == [name]


def test_a_seed_that_was_run_twice_counts_once(tmp_path):
    write_run(tmp_path, "SGD", 0, 0.5)
    write_run(tmp_path, "SGD", 0, 0.6)
    assert summarise(read_records(tmp_path))[0].accuracy == Spread(0.6, None, 1)
    assert "1 of the runs repeat a seed" in write_report(tmp_path).read_text()


COMPARISONS = [
    # a value is a section, however it is spelt
    ([("SGD", {"label_noise": n}) for n in (0, 0.0, 0.2)], {"label noise 0": ["SGD"], "label noise 0.2": ["SGD"]}),
    # other data never share a table
    ([("SGD", {"data": "digits"}), ("SAM", {"data": "cifar10"})], {"data cifar10": ["SAM"], "data digits": ["SGD"]}),
    # what is tuned for a method does not split the table; several values of its own option split its rows
    (
        [("SGD", {"lr": 0.1}), ("ESAM", {"lr": 0.2, "gamma": 0.5}), ("ESAM", {"lr": 0.2, "gamma": 0.25})],
        {"": ["SGD", "ESAM (gamma 0.25)", "ESAM (gamma 0.5)"]},
    ),
]


@pytest.mark.parametrize(("made", "sections"), COMPARISONS)
def test_runs_are_compared_only_under_the_same_condition(tmp_path, made, sections):
    for seed, (name, config) in enumerate(made):
        write_run(tmp_path, name, seed, 0.9, config=config)
    assert {s.title: [group.name for group in s.groups] for s in compare(read_records(tmp_path))} == sections
    assert list(dict.fromkeys(row.condition for row in summarise(read_records(tmp_path)))) == list(sections)


def test_numbers_are_written_as_people_read_them():
    assert measured(Spread(0.01234, 0.00119, 3), row_n=3) == "0.0123 ± 0.0012"
    assert measured(Spread(1234.5, 12.4, 3), row_n=3) == "1,234 ± 12" and measured(None, row_n=3) == "–"
    spoken = {4.25: "4.2 s", 59.4: "59 s", 150: "2 min 30 s", 2460: "41 min", 11100: "3 h 05 min"}
    assert [duration(seconds) for seconds in spoken] == list(spoken.values())
    assert [memory(512 * 2**20), memory(1.5 * 2**30)] == ["512 MiB", "1.50 GiB"]


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
    palette = [*METHOD_COLOURS.values(), *FALLBACK_COLOURS]
    assert min(contrast(colour, ground) for colour in palette for ground in (LIGHT, DARK)) >= 3
    xyz = (linear(*palette) @ torch.tensor(VISION[vision]).float().T).clamp(0, 1) @ XYZ.T
    lab = torch.where(xyz > 0.008856, xyz ** (1 / 3), 7.787 * xyz + 16 / 116) @ LAB.T
    assert torch.pdist(lab).min() >= 14


def test_known_methods_keep_their_colour_and_eight_names_have_eight_colours():
    names = {"SGD": "sgd", "ESAM": "esam", "ESAM (gamma 0.25)": "esam"} | dict(zip("ABCDE", "abcde", strict=True))
    colours = assign_colours(names)
    assert colours["ESAM"] == METHOD_COLOURS["esam"] and len(set(colours.values())) == 8
    assert len(assign_colours({str(number): "new" for number in range(20)})) == 20


def test_the_same_records_give_the_same_page_and_it_loads_nothing_and_no_records_give_none(runs, tmp_path):
    page = write_report(runs).read_bytes()
    assert write_report(runs, tmp_path / "again" / "page.html").read_bytes() == page
    own = page.split(b'<script type="application/json"')[0]
    assert not re.search(rb"(src|href)\s*=|url\(|@import", own)
    with pytest.raises(ValueError, match=r"no record\.jsonl in .* train something first"):
        write_report(tmp_path / "again")


def test_an_old_report_stays_when_a_record_is_broken_or_the_disk_is_full(runs, monkeypatch):
    page = runs / "report.html"
    page.write_text("old")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="the disk is full; the old file is kept"):
        patch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        write_report(runs)
    (runs / "0" / "record.jsonl").write_text("{}\n{}\n")
    with pytest.raises(ValueError, match="record.jsonl, line 1"):
        write_report(runs)
    assert page.read_text() == "old" and [p.name for p in runs.iterdir() if p.is_file()] == ["report.html"]


def test_the_table_does_without_plotly():
    subprocess.run([sys.executable, "-c", "import sys, esam.report; sys.exit('plotly' in sys.modules)"], check=True)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("needs Debian's chromium and chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    flags = "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    profile = f"--user-data-dir={tmp_path_factory.mktemp('profile')}"
    for flag in [*flags.split(), "--disable-component-update", "--disable-sync", profile]:
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser, runs):
    """A function that shows the page of `runs` on a screen of the given width and waits until it is drawn."""

    def show(width=1280):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        prefer(browser, "light")
        browser.get(write_report(runs).resolve().as_uri())
        wait = "const w = () => 'drawn' in document.documentElement.dataset ? done() : setTimeout(w, 20); w()"
        browser.execute_async_script(f"const done = arguments[0]; {wait}")
        assert browser.get_log("browser") == []
        return browser

    return show


def prefer(browser, scheme):
    wish = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", wish)


def cells(page, selector=".results"):
    script = "return [...document.querySelectorAll(arguments[0])].map(r => [...r.cells].map(c => c.textContent))"
    return [[text.replace("\xa0", " ") for text in row] for row in page.execute_script(script, f"{selector} tr")]


def test_the_page_shows_the_numbers_of_the_records(opened):
    page = opened()
    assert page.find_elements("css selector", "th:not([scope]), .chart:not([aria-label])") == []
    head, sgd, esam = cells(page)
    sgd, esam = dict(zip(head, sgd, strict=True)), dict(zip(head, esam, strict=True))
    assert (sgd["Method"], esam["Method"]) == ("SGDbase", "ESAM")
    assert (sgd["Test acc., %"], esam["Test acc., %"]) == ("92.00 ± 2.00", "93.50 ± 1.41")
    assert (sgd["Seeds"], esam["Seeds"]) == ("3", "2") and esam["Best, %"] == "94.50 ± 1.41"
    assert (sgd["Time vs SGD"], esam["Time vs SGD"], esam["Time"]) == ("1.00×", "1.38×", "2 min 18 s")
    assert (sgd["Peak memory"], esam["Peak memory"]) == ("512 MiB", "–")
    assert (sgd["Forward"], esam["Forward"]) == ("4", "6.5") and "Train acc., %" not in head
    text = page.find_element("tag name", "body").text.replace("\xa0", " ")
    assert "SGD and ESAM compared on digits" in text and "Only 500 images & few epochs" in text
    assert "ESAM, seed 2: unfinished, 4 of 4 epochs recorded" in text and 'esam compare --name "it\'s"' in text
    last = page.execute_script("return document.getElementById('chart-0').data.map(t => [t.meta.name, t.y.at(-1)])")
    assert ["SGD", pytest.approx(92)] in last and ["ESAM", pytest.approx(93.5)] in last


def test_a_chip_hides_its_method_in_all_charts_and_dims_its_row_until_it_is_ticked_again(opened):
    page = opened()
    script = """return [...document.querySelectorAll('.chart')].map(chart => chart._fullData
        .filter(trace => trace.visible === true).map(trace => trace.meta.name))"""
    before = page.execute_script(script)
    assert len(before) == 5 and all({"SGD", "ESAM"} == set(names) for names in before)
    chip = next(c for c in page.find_elements("css selector", ".chip") if c.text == "ESAM")
    chip.click()
    assert all(set(names) == {"SGD"} for names in page.execute_script(script))
    rows = page.find_elements("css selector", ".results tbody tr")
    assert [row.get_attribute("class") for row in rows] == ["", "off"]
    chip.click()
    assert page.execute_script(script) == before and rows[1].get_attribute("class") == ""


@pytest.mark.parametrize("width", [320, 375, 1280])
def test_the_page_never_scrolls_sideways(opened, width):
    page = opened(width)
    scrolled, inner = page.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert scrolled <= inner == width


def test_a_change_to_dark_reaches_the_page_and_the_charts_and_print_stays_light(opened):
    def rgb_to_hex(text):
        return "#" + "".join(f"{int(number):02x}" for number in re.findall(r"\d+", text)[:3])

    page = opened()
    ground = "return getComputedStyle(document.body).backgroundColor"
    tick = "return getComputedStyle(document.querySelector('#chart-0 .xtick text')).fill"
    names = "['--ink', '--quiet', '--ground', '--raised', '--remark-ground']"
    variables = f"return {names}.map(n => getComputedStyle(document.documentElement).getPropertyValue(n).trim())"
    for scheme, wanted in (("light", LIGHT), ("dark", DARK)):
        prefer(page, scheme)
        page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(() => arguments[0]()))")
        assert rgb_to_hex(page.execute_script(ground)) == wanted
        ink, quiet, *grounds = page.execute_script(variables)
        texts = (ink, quiet, rgb_to_hex(page.execute_script(tick)))
        assert min(contrast(text, behind) for text in texts for behind in grounds) >= 4.5
    page.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert contrast(rgb_to_hex(page.execute_script(tick)), "#ffffff") >= 4.5
    assert page.execute_script("return document.querySelector('#chart-0 .main-svg').clientWidth") <= 660
    page.execute_script("dispatchEvent(new Event('afterprint'))")
    assert len(base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", {})["data"])) > 10_000


def test_names_and_values_are_shown_and_never_run(opened, runs):
    quotes = "\"' onmouseover=alert(3) </script><img src=x onerror=alert(4)> $title %{y}"
    write_run(runs, EVIL, 0, 0.9, method="<img src=x onerror=alert(2)>", config={"notes": [quotes], EVIL: quotes})
    write_run(runs, BOLD, 0, 0.9, config={"command": EVIL})
    page = opened()
    assert page.execute_script("return ['img', 'script'].map(n => document.querySelectorAll(n).length)") == [0, 3]
    assert quotes in [remark.text for remark in page.find_elements("css selector", ".remarks p")]
    ticks = "return [...document.querySelectorAll('#chart-3 .xtick text')].map(t => t.textContent)"
    assert {EVIL, BOLD} <= set(page.execute_script(ticks)) & {row[0] for row in cells(page)}
    assert quotes in itertools.chain.from_iterable(cells(page, ".differences"))
    assert f"{EVIL} 50 images a second at 90.0 %" in page.find_element("id", "chart-3").get_attribute("aria-label")
