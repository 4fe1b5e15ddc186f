"""The walk of a new user: from a folder with nothing but data to a file of predictions; pictures and text."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from picture_makers import picture

TEXT = """
import torch
from torch import nn
from esam.train import Task

KNOWN = ("good", "great", "bad", "poor")

def inputs(lines):
    return {"counts": torch.tensor([[float(word in line) for word in KNOWN] for line in lines])}

def reviews():
    samples = inputs(KNOWN), torch.tensor([1, 1, 0, 0])
    return Task(samples, samples, classes=("no", "yes"))

class Bag(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)

    def forward(self, counts):
        return super().forward(counts)
"""


@pytest.fixture
def esam(tmp_path, monkeypatch):
    """Run a command in an empty folder, in a process of its own, and give what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ESAM_CACHE", str(tmp_path / "cache"))

    def run(words, code=0):
        done = subprocess.run([sys.executable, "-m", "esam", *words.split()], capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    return run


def predicted():
    return [row["class"] for row in csv.DictReader(Path("predictions.csv").read_text().splitlines())]


@pytest.mark.slow
def test_from_pictures_to_predictions(esam):
    for folder, numbers in (("photos/dark", range(8)), ("photos/light", range(16, 24)), ("new", (2, 20))):
        Path(folder).mkdir(parents=True)
        for number in numbers:
            picture(number, (9 + number % 3, 8)).save(f"{folder}/{number:02}.png")
    said = esam("compare --data photos --size 8 --model mlp --methods base,sam --seeds 2 --epochs 15 --jobs 2")
    assert "4 runs, each 15 epochs of mlp on photos" in said and "report: runs/compare/report.html" in said
    assert "2 seeds" in " ".join(said.split()) and "Test acc., %" in said  # who won, or that it cannot be told
    run = next(Path("runs/compare").glob("sam-seed1-*"))
    assert esam(f"predict {run} new --out predictions.csv") == "predictions.csv\n"
    assert predicted() == ["dark", "light"]
    assert "--force" in esam(f"predict {run} new --out predictions.csv", code=1)
    esam(f"export {run} weights.safetensors")
    assert Path("weights.safetensors").stat().st_size > 1_000


@pytest.mark.slow
def test_from_text_to_predictions(esam):
    Path("mine.py").write_text(TEXT)
    Path("new.txt").write_text("a great film\npoor book\n")
    esam("train --data mine:reviews --model mine:Bag --method sam --epochs 30 --batch-size 4 --quiet")
    program = "import esam, mine; run = esam.load_run('runs/train', build_model=mine.Bag);"
    program += "print(*[run.classes[n] for n in run(mine.inputs(open('new.txt'))).argmax(1)])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "yes no\n", done.stderr
