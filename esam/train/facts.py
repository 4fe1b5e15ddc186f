"""What does a record say of the data, so that changed data are noticed and a model can be used without them?"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .data.splits import Data, Split, StreamedSplit
from .evaluation import MOST_CLASSES
from .inputs import as_pair
from .samples import Samples, sample_count
from .task import Task

LOOKED_AT = 256
"""Rows of a user's own Dataset that stand for all of it, evenly spread; tensors count whole."""

Facts = dict[str, Any]


def data_facts(data: Data | Task) -> Facts:
    """Return counts, classes, input shape, normalisation, and a fingerprint that changes whenever the data do."""
    with torch.random.fork_rng(devices=[]):  # to look at the data must not change what is drawn afterwards
        return _facts(data)


def _facts(data: Data | Task) -> Facts:
    facts: Facts
    if isinstance(data, Task):
        first = _first(data.train)
        kind = (None, None) if first is None else (list(first.shape), str(first.dtype))
        facts = {"train": sample_count(data.train), "test": sample_count(data.test), "shape": kind[0]}
        facts |= {"classes": None if data.classes is None else list(data.classes), "dtype": kind[1]}
        labels = [part[1] if isinstance(part, tuple) else None for part in (data.train, data.test)]
    else:
        facts = {"train": len(data.train), "test": len(data.test), "shape": list(data.train.shape)}
        facts |= {"classes": list(data.classes), "mean": list(data.mean), "std": list(data.std)}
        labels = [data.train.labels, data.test.labels]
    facts["of_each_class"] = {name: _counts(each) for name, each in zip(("train", "test"), labels, strict=True)}
    digest = hashlib.sha256()
    for part in (data.train, data.test):
        _add(digest, part)
    return {"fingerprint": digest.hexdigest()[:16], **facts}


def _counts(labels: Tensor | None) -> list[int] | None:
    """Return how many samples each class has; None where the targets are no classes, or no tensor tells them."""
    if labels is None or labels.dim() != 1 or labels.is_floating_point() or int(labels.min()) < 0:
        return None
    counts: list[int] = labels.long().bincount().tolist() if int(labels.max()) < MOST_CLASSES else []
    return counts or None


def changed_data(then: Facts | None, now: Facts) -> str | None:
    """Say how the data (or a model of Python's own) differ from a record's; None where they do not, or it is silent."""
    if then is None or then["fingerprint"] == now["fingerprint"]:
        other = then is not None and then.get("model") != now.get("model")
        return "the model has other tensors than it had" if other else None
    told = [f"{one['train']} training and {one['test']} test samples ({one['fingerprint']})" for one in (then, now)]
    return f"then {told[0]}, now {told[1]}"


def _add(digest: Any, part: Split | StreamedSplit | Samples) -> None:
    if isinstance(part, Split):
        _add_tensors(digest, part.images.permute(0, 2, 3, 1), part.labels)
    elif isinstance(part, StreamedSplit):
        digest.update(f"{part.pictures.fingerprint()} {part.decoder}".encode())
        _add_tensors(digest, part.rows, part.labels)
    elif isinstance(part, tuple):
        _add_tensors(digest, *(one for one in _parts(part) if isinstance(one, Tensor)))
    else:
        _add_rows(digest, part)


def _add_tensors(digest: Any, *tensors: Tensor) -> None:
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _add_rows(digest: Any, rows: Any) -> None:
    """Add a Dataset's length and some of its rows; whatever comes out otherwise each time is left out."""
    digest.update(str(len(rows)).encode())
    for row in torch.linspace(0, len(rows) - 1, min(LOOKED_AT, len(rows))).round().long().tolist():
        once, again = (_parts(rows[row]) for _ in range(2))
        for part, same in zip(once, again, strict=False):
            if isinstance(part, Tensor) and isinstance(same, Tensor) and torch.equal(part, same):
                _add_tensors(digest, part)
            elif isinstance(part, (int, float, str)) and part == same:
                digest.update(repr(part).encode())


def _parts(sample: Any) -> list[Any]:
    """Return what a sample holds, however deep."""
    if isinstance(sample, Mapping):
        sample = list(sample.values())
    return [part for one in sample for part in _parts(one)] if isinstance(sample, (tuple, list)) else [sample]


def _first(samples: Samples) -> Tensor | None:
    """Return the first input, if it is a tensor."""
    if isinstance(samples, tuple):
        return samples[0][0] if isinstance(samples[0], Tensor) else None
    try:
        first, _ = as_pair(samples[0])
    except ValueError:  # no pairs yet: a collate_fn makes them
        return None
    return first if isinstance(first, Tensor) else None
