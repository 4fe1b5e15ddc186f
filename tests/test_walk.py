"""The walk of a new user: from a folder with nothing but data to a file of predictions; pictures, a table and text."""

import csv
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from picture_makers import picture

from esam.cli import main

TABLE = """
import csv
from pathlib import Path
import torch
from torch import nn
from esam.train import Task

def flowers():
    rows = list(csv.reader(Path("flowers.csv").read_text().splitlines()))[1:]
    x = torch.tensor([[float(value) for value in row[:2]] for row in rows])
    y = torch.tensor([int(row[2] == "rose") for row in rows])
    return Task((x[::2], y[::2]), (x[1::2], y[1::2]), classes=("daisy", "rose"))

def net():
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
"""
TEXT = """
from pathlib import Path
import torch
from torch import nn
from esam.train import Task

KNOWN = {word: number for number, word in enumerate("good great bad poor film book".split(), start=1)}

def tokens(line):
    ids = [KNOWN.get(word, 0) for word in line.split()][:4]
    return ids + [0] * (4 - len(ids))

def inputs(lines):
    ids = torch.tensor([tokens(line) for line in lines])
    return {"input_ids": ids, "attention_mask": (ids > 0).float()}

def reviews():
    lines = Path("reviews.txt").read_text().splitlines()
    labels, texts = zip(*(line.split(" ", 1) for line in lines))
    y = torch.tensor([int(label == "+") for label in labels])
    return Task((inputs(texts), y), (inputs(texts), y), classes=("no", "yes"))

def read(path):
    return inputs(path.read_text().splitlines())

class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 8), nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask):
        weight = attention_mask.unsqueeze(2)
        return self.head((self.embedding(input_ids) * weight).sum(1) / weight.sum(1).clamp(min=1))
"""


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ESAM_CACHE", str(tmp_path / "cache"))
    return tmp_path


def predicted(capsys, *words):
    capsys.readouterr()
    assert main(["predict", *words, "--out", "predictions.csv"]) == 0, capsys.readouterr().err
    return [row["class"] for row in csv.DictReader(Path("predictions.csv").read_text().splitlines())]


@pytest.mark.slow
def test_from_pictures_to_predictions(empty, capsys):
    for folder, numbers in (("photos/dark", range(8)), ("photos/light", range(16, 24)), ("new", (2, 20))):
        (empty / folder).mkdir(parents=True)
        for number in numbers:
            picture(number, (9 + number % 3, 8)).save(empty / folder / f"{number:02}.png")
    words = "compare --data photos --size 8 --model mlp --methods base slicesam --seeds 0 --epochs 15 --jobs 2"
    done = subprocess.run([sys.executable, "-m", "esam", *words.split()], capture_output=True, text=True)
    assert done.returncode == 0 and "report: runs/compare/report.html" in done.stdout, done.stderr
    (run,) = (empty / "runs" / "compare").glob("slicesam-seed0-*")
    assert predicted(capsys, str(run), "new") == ["dark", "light"]
    assert main(["export", str(run), "weights.safetensors"]) == 0 and (empty / "weights.safetensors").exists()


def test_from_a_table_to_predictions(empty, capsys):
    rows = [f"{width},{height},{'rose' if width > height else 'daisy'}" for width in range(6) for height in range(6)]
    (empty / "flowers.csv").write_text("\n".join(["width,height,kind", *rows]) + "\n")
    (empty / "walk_table.py").write_text(textwrap.dedent(TABLE))
    (empty / "new.csv").write_text("width,height\n5,0\n0,5\n")
    own = ["--data", "walk_table:flowers", "--model", "walk_table:net"]
    assert main(["train", *own, "--method", "slicesam", "--epochs", "40", "--batch-size", "6", "--quiet"]) == 0
    assert predicted(capsys, "runs/train", "new.csv", *own) == ["rose", "daisy"]


def test_from_text_to_predictions(empty, capsys):
    lines = [
        f"{sign} {word} {what}"
        for sign, words in (("+", "good great"), ("-", "bad poor"))
        for word in words.split()
        for what in ("film", "book")
    ]
    (empty / "reviews.txt").write_text("\n".join(lines))
    (empty / "walk_text.py").write_text(textwrap.dedent(TEXT))
    (empty / "new.txt").write_text("a great film\npoor book\n")
    own = ["--data", "walk_text:reviews", "--model", "walk_text:Bag"]
    assert main(["train", *own, "--method", "sam", "--epochs", "30", "--batch-size", "4", "--quiet"]) == 0
    read = ["--model", "walk_text:Bag", "--read", "walk_text:read"]
    assert predicted(capsys, "runs/train", "new.txt", *read) == ["yes", "no"]
