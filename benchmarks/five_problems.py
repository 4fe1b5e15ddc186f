"""Does a method that is compared by its defaults lose to the base, and is it said why? Five small problems.

    ESAM_DATA=<folder with cifar10/> python benchmarks/five_problems.py [--methods ...] [--runs runs/five_problems]

Digits, a folder of pictures, a table, text and a part of CIFAR-10, three seeds each, every method with its defaults.
Interrupted, it resumes. What is kept of a problem is one small file: how its runs were set, and what each came to.
"""

import argparse
import dataclasses
import json
import re
import sys
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from esam import METHODS
from esam.files import write_atomically
from esam.report.measured import percent
from esam.report.sheets import Sheet, as_markdown
from esam.report.summaries import summarise
from esam.report.verdict import advice
from esam.runs.plan import DEFAULT_METHODS, Comparison, plan
from esam.train import Config, Task, run
from esam.train.datasets import load_data
from esam.train.draws import balanced_subset
from esam.train.record import RunRecord
from esam.train.samples import class_labels, taken_rows

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "five_problems"
SEEDS = (0, 1, 2)
EVERY_METHOD = (
    *DEFAULT_METHODS,
    *(n for n, row in METHODS.items() if row.kind == "method" and n not in DEFAULT_METHODS),
)
PICTURES = {"train": 360, "test": 600}
ANIMALS = ("cat", "dog", "horse")
TRAIN_POOL, TEST_IMAGES = 20_000, 4_000
WORDS, VOCABULARY, TOPICS = 16, 1_500, 10
BLOCK = 8
"""Windows in a row that go to the training or to the test text together."""
KNOWN_LINES = 0.2
"""A topic with more of its lines than this in another one is left out: the same text must not be in two classes."""
_START = Config(threads=1, device="cpu", evaluate_every=1_000)

PROBLEMS = {
    "digits": ("Digits, 1,437 images of 8 × 8", _START),
    "pictures": (
        "A folder of 360 pictures, 3 classes",
        dataclasses.replace(_START, data="pictures", model="resnet8", size=16),
    ),
    "table": (
        "A table, 285 rows of 30 numbers",
        dataclasses.replace(_START, data="five_problems:table", model="five_problems:dense", batch_size=32, lr=0.05),
    ),
    "text": (
        "Text, 1,000 windows of 16 words, 10 topics, AdamW",
        dataclasses.replace(
            _START,
            data="five_problems:topics",
            model="five_problems:words",
            optimizer="adamw",
            lr=3e-3,
            weight_decay=0.05,
            train_size=1_000,
            batch_size=64,
        ),
    ),
    "cifar": (
        "CIFAR-10, 500 images at 16 × 16",
        dataclasses.replace(_START, data="five_problems:cifar10", model="resnet8", train_size=500, batch_size=64),
    ),
}
"""A title, and what all methods of the problem share; data "pictures" is the folder that is written first."""


@lru_cache(maxsize=1)
def table():
    """Return scikit-learn's breast cancer data, every second row to test on."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    rows, labels = torch.tensor(found.data, dtype=torch.float32), torch.tensor(found.target)
    train, test = rows[::2], rows[1::2]
    mean, std = train.mean(0), train.std(0)
    parts = [((part - mean) / std, y) for part, y in ((train, labels[::2]), (test, labels[1::2]))]
    return Task(*parts, classes=tuple(map(str, found.target_names)))


@lru_cache(maxsize=1)
def cifar10():
    """Return CIFAR-10 at 16 x 16."""
    data = load_data("uoft-cs/cifar10")
    (train, train_labels), (test, test_labels) = (
        _small(taken_rows(split, balanced_subset(class_labels("CIFAR-10", split), count)))
        for split, count in ((data.train, TRAIN_POOL), (data.test, TEST_IMAGES))
    )
    mean, std = train.mean((0, 2, 3), keepdim=True), train.std((0, 2, 3), keepdim=True)
    return Task(((train - mean) / std, train_labels), ((test - mean) / std, test_labels), classes=data.classes)


def _small(split):
    """Return images shrunk by means of 2 x 2 pixels, and their labels."""
    images, labels = split
    return F.avg_pool2d(images.float() / 255, 2), labels


@lru_cache(maxsize=1)
def topics():
    """Return windows of words of Python's own documentation, and the topic that each is taken from."""
    texts = _distinct_topics()
    windows = {}
    for name, text in texts.items():
        words = re.findall(r"\w+|[.,:;()]", text.lower())
        windows[name] = [words[at : at + WORDS] for at in range(0, len(words) - WORDS + 1, WORDS)]
    train = [(w, label) for label, name in enumerate(windows) for i, w in enumerate(windows[name]) if not _tests(i)]
    test = [(w, label) for label, name in enumerate(windows) for i, w in enumerate(windows[name]) if _tests(i)]
    counts = {}
    for window, _ in train:
        for word in window:
            counts[word] = counts.get(word, 0) + 1
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: VOCABULARY - 1]
    numbers = {word: number for number, word in enumerate(frequent, 1)}  # 0: any other word

    def tensors(samples):
        inputs = torch.tensor([[numbers.get(word, 0) for word in window] for window, _ in samples])
        return inputs, torch.tensor([label for _, label in samples])

    return Task(tensors(train), tensors(test), classes=tuple(windows))


def _tests(window):
    return window // BLOCK % 2 == 1


def _distinct_topics():
    """Return the longest topics that share next to no lines with a longer one, each line once."""
    from pydoc_data.topics import topics as texts

    chosen = {}
    known = set()
    for name in sorted(texts, key=lambda name: (-len(texts[name]), name)):
        lines = [line.strip() for line in texts[name].splitlines() if line.strip()]
        if sum(line in known for line in lines) <= KNOWN_LINES * len(lines):
            chosen[name] = "\n".join(line for line in dict.fromkeys(lines) if line not in known)
            known.update(lines)
        if len(chosen) == TOPICS:
            break
    return chosen


def dense():
    """Return a small network for the table."""
    return nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


class Words(nn.Module):
    """The mean of the words' vectors, and one hidden layer."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 64)
        self.head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, TOPICS))

    def forward(self, windows):
        return self.head(self.words(windows).mean(1))


def words():
    """Return a small network for windows of words."""
    return Words()


def write_pictures(folder):
    """Write some of CIFAR-10's pictures of three animals as PNG files in class folders."""
    from PIL import Image

    data = load_data("uoft-cs/cifar10")
    for part, count in PICTURES.items():
        images, labels = getattr(data, part)
        wanted = torch.isin(labels, torch.tensor([data.classes.index(name) for name in ANIMALS])).nonzero().flatten()
        rows = wanted[balanced_subset(labels[wanted], count)]
        for number, (image, label) in enumerate(zip(images[rows], labels[rows].tolist(), strict=True)):
            path = folder / part / data.classes[label] / f"{number:04}.png"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return folder


def make(name, methods, runs, out):
    """Do the runs of a problem that are not done yet, and write what all of them came to."""
    config = PROBLEMS[name][1]
    if config.data == "pictures":
        config = dataclasses.replace(config, data=str(write_pictures(runs / "pictures-data")))
    for one in plan(Comparison(config, methods, SEEDS), runs / name):
        record = run(one.config, one.folder)
        print(name, record.method, record.seed, (record.end or {}).get("test_accuracy"), flush=True)
    found = [one.record() for one in plan(Comparison(config, EVERY_METHOD, SEEDS), runs / name)]
    kept = [record for record in found if record is not None and record.end is not None]
    write_atomically(out / f"{name}.json", compact(kept).encode())


def compact(records):
    """Return what is kept of a problem's runs: what they share once, and no epochs."""
    usual = Config().as_json()
    lines = []
    for record in records:
        config = {key: value for key, value in record.config.items() if value != usual[key] and key != "data"}
        told = {key: record.run[key] for key in ("name", "method", "seed", "effective")}
        lines.append(json.dumps({**told, "config": config, "end": record.end}))
    shared = json.dumps({"environment": records[-1].run["environment"], "data": records[-1].data})
    return f'{{"shared": {shared},\n"runs": [\n' + ",\n".join(lines) + "\n]}\n"


def kept_records(name):
    """Return the runs of a problem as the committed file tells them."""
    kept = json.loads((RESULTS / f"{name}.json").read_text())
    usual = {**Config().as_json(), "data": name}
    found = []
    for line in kept["runs"]:
        first = {**kept["shared"], **line, "config": {**usual, **line["config"]}}
        end = first.pop("end")
        found.append(RunRecord(RESULTS / f"{name}.json", first, (), end))
    return found


def judged(name):
    """Return each method of a problem with the warning that it was given, None where there was none."""
    (methods,) = summarise(kept_records(name)).values()
    warnings = {name: change.word for change in advice(methods) for name in change.names}
    return [(one, warnings.get(one.name)) for one in methods]


def markdown():
    """Return the table of the docs."""
    rows = []
    for name, (title, _) in PROBLEMS.items():
        for one, warning in judged(name):
            numbers = (percent(one.accuracy, seeds=one.n), percent(one.train_accuracy, seeds=one.n))
            gain = "" if one.gain is None else one.gain.format()
            time = "" if one.time_ratio is None else f"{one.time_ratio:.2f}"
            rows.append((title, one.name, *numbers, gain, time, warning or ""))
            title = ""
    head = ("Problem", "Method", "Test, %", "Train, %", "Over base", "Time / base", "Note")
    return as_markdown(Sheet("", head, tuple(rows)))


if __name__ == "__main__":
    sys.modules["five_problems"] = sys.modules["__main__"]  # the same classes by either name
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--methods", nargs="+", default=list(DEFAULT_METHODS), choices=EVERY_METHOD)
    parser.add_argument("--runs", type=Path, default=Path("runs/five_problems"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    for problem in arguments.problems:
        make(problem, tuple(arguments.methods), arguments.runs, arguments.out)
