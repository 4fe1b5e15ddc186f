"""Which data do the regimes train on? Small enough for one core: images of 16 x 16, windows of 24 words, digits."""

from __future__ import annotations

import re
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from esam.train import Task
from esam.train.data import Data, load_data
from esam.train.data.draws import balanced_subset
from esam.train.data.splits import Split, StreamedSplit

TRAIN_POOL, TEST_IMAGES = 20_000, 4_000
WORDS, VOCABULARY, TOPICS = 24, 1_500, 10
BLOCK = 8
"""Windows in a row that go to the training or to the test text together."""
KNOWN_LINES = 0.2
"""A topic with more of its lines than this in another one is left out: the same text must not be in two classes."""


@lru_cache(maxsize=1)
def cifar10() -> Task:
    """Return CIFAR-10 at 16 x 16."""
    return _small(load_data("uoft-cs/cifar10"))


@lru_cache(maxsize=1)
def cifar100() -> Task:
    """Return CIFAR-100 at 16 x 16, with its 100 classes."""
    return _small(load_data("uoft-cs/cifar100", label_column="fine_label"))


@lru_cache(maxsize=2)
def cifar10_half(second: bool = True) -> Task:
    """Return the images of CIFAR-10's last five classes, or of its first five."""
    whole = cifar10()
    assert whole.classes is not None
    first = 5 if second else 0
    parts = []
    for samples in (whole.train, whole.test):
        assert isinstance(samples, tuple)
        images, labels = samples
        inside = (labels >= first) & (labels < first + 5)
        parts.append((images[inside], labels[inside] - first))
    return Task(parts[0], parts[1], classes=whole.classes[first : first + 5])


@lru_cache(maxsize=1)
def digits() -> Task:
    """Return scikit-learn's digits."""
    data = load_data("digits")
    train, test = _normalised(_pixels(data.train), _pixels(data.test))
    return Task((train, data.train.labels), (test, data.test.labels), classes=data.classes)


@lru_cache(maxsize=1)
def topics() -> Task:
    """Return windows of words of Python's own documentation, and the topic that each is taken from."""
    texts = _distinct_topics()
    windows: dict[str, list[list[str]]] = {}
    for name, text in texts.items():
        words = re.findall(r"\w+|[^\w\s]", text.lower())
        windows[name] = [words[at : at + WORDS] for at in range(0, len(words) - WORDS + 1, WORDS)]
    train = [(w, label) for label, name in enumerate(windows) for i, w in enumerate(windows[name]) if not _tests(i)]
    test = [(w, label) for label, name in enumerate(windows) for i, w in enumerate(windows[name]) if _tests(i)]
    counts: dict[str, int] = {}
    for window, _ in train:
        for word in window:
            counts[word] = counts.get(word, 0) + 1
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: VOCABULARY - 1]
    numbers = {word: number for number, word in enumerate(frequent, 1)}  # 0: any other word

    def tensors(samples: list[tuple[list[str], int]]) -> tuple[Tensor, Tensor]:
        inputs = torch.tensor([[numbers.get(word, 0) for word in window] for window, _ in samples])
        return inputs, torch.tensor([label for _, label in samples])

    return Task(tensors(train), tensors(test), classes=tuple(windows))


def _tests(window: int) -> bool:
    return window // BLOCK % 2 == 1


def _distinct_topics() -> dict[str, str]:
    """Return the longest topics that share next to no lines with a longer one."""
    from pydoc_data.topics import topics as texts  # type: ignore[import-not-found,unused-ignore]

    chosen: dict[str, str] = {}
    known: set[str] = set()
    for name in sorted(texts, key=lambda name: (-len(texts[name]), name)):
        lines = {line.strip() for line in texts[name].splitlines() if line.strip()}
        if len(lines & known) <= KNOWN_LINES * len(lines):
            chosen[name] = "\n".join(line for line in texts[name].splitlines() if line.strip() not in known)
            known |= lines
        if len(chosen) == TOPICS:
            break
    return chosen


def _small(data: Data) -> Task:
    """Return a class-balanced pool of a set's images, shrunk by means of 2 x 2 pixels and normalised."""
    parts = [
        split.select(balanced_subset(split.labels, count))
        for split, count in ((data.train, TRAIN_POOL), (data.test, TEST_IMAGES))
    ]
    train, test = _normalised(*(F.avg_pool2d(_pixels(part), 2) for part in parts))
    return Task((train, parts[0].labels), (test, parts[1].labels), classes=data.classes)


def _pixels(split: Split | StreamedSplit) -> Tensor:
    whole = split if isinstance(split, Split) else split.in_memory()
    return whole.images.float() / 255


def _normalised(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Give both with the training images' mean 0 and deviation 1 in each channel."""
    mean, std = train.mean((0, 2, 3), keepdim=True), train.std((0, 2, 3), keepdim=True)
    return (train - mean) / std, (test - mean) / std
