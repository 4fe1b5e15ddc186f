"""The docs' tables are those of the committed records."""

import json
from pathlib import Path

import fidelity
import pytest
import speed
import toy_mlp

from esam.bench.steps import steps_sheet
from esam.report import summarise
from esam.report.results import results_sheet
from esam.report.sheets import as_markdown
from esam.train.record import read_records

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
SPEED = (ROOT / "docs" / "speed.md").read_text()
SHOWN = ("Seeds", "Test acc., %", "Train acc., %", "Forward", "Backward")


def record(name):
    return json.loads((RESULTS / name).read_text())


@pytest.mark.parametrize("model", ["resnet18", "vit-tiny"])
def test_the_times_of_a_step(model):
    assert as_markdown(steps_sheet(record(f"speed/{model}.json"))) in SPEED


def test_the_headline():
    results = {title: record(f"speed/{name}.json") for title, name in (("ResNet-18", "resnet18"), ("ViT", "vit-tiny"))}
    assert speed.headline(results) in SPEED


def test_the_readmes_sentence_on_speed():
    times = [record(f"speed/{name}.json")["contenders"] for name in ("resnet18", "vit-tiny")]
    of_sam, of_sgd = ([t["esam"][f"time / {other}"]["of totals"] for t in times] for other in ("sam", "sgd"))
    released = [1 / t["esam, as released"]["time / sam"]["of totals"] for t in times]
    said = " ".join((ROOT / "README.md").read_text().split())
    assert f"takes {of_sam[0]:.2f} of SAM's time and {of_sgd[0]:.2f} of SGD's on ResNet-18" in said
    assert f"{of_sam[1]:.2f} and {of_sgd[1]:.2f} on a small ViT" in said
    assert f"{1 / of_sam[0]:.2f} and {1 / of_sam[1]:.2f} times SAM's speed" in said
    assert f"in the same run: {released[0]:.2f} and {released[1]:.2f} times" in said


def test_the_papers_toy():
    assert toy_mlp.markdown(record("toy_mlp.json")) in SPEED


def test_the_fidelity_of_the_rankings():
    assert fidelity.markdown(record("fidelity.json"), record("fidelity_noisy.json")) in SPEED


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_what_each_form_of_esam_gives(data):
    (rows,) = summarise([r for r in read_records(RESULTS / data / "runs") if r.config["label_noise"] == 0]).values()
    assert as_markdown(results_sheet(rows, columns=SHOWN)) in SPEED
