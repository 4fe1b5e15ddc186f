"""What does a record say of the data, so that changed data are noticed and a model can be used without them?"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from .data.splits import Data, Split, StreamedSplit
from .task import Samples, Task

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
        facts = {"train": _count(data.train), "test": _count(data.test), "shape": _shape(data.train)}
        facts |= {"classes": None if data.classes is None else list(data.classes)}
    else:
        facts = {"train": len(data.train), "test": len(data.test), "shape": list(data.train.shape)}
        facts |= {"classes": list(data.classes), "mean": list(data.mean), "std": list(data.std)}
    digest = hashlib.sha256()
    for part in (data.train, data.test):
        _add(digest, part)
    return {"fingerprint": digest.hexdigest()[:16], **facts}


def changed_data(then: Facts | None, now: Facts) -> str | None:
    """Say how the data differ from those of a record; None where they do not, or the record does not tell."""
    if then is None or then["fingerprint"] == now["fingerprint"]:
        return None
    told = [f"{one['train']} training and {one['test']} test samples ({one['fingerprint']})" for one in (then, now)]
    return f"then {told[0]}, now {told[1]}"


def _add(digest: Any, part: Split | StreamedSplit | Samples) -> None:
    if isinstance(part, Split):
        _add_tensors(digest, part.images.permute(0, 2, 3, 1), part.labels)
    elif isinstance(part, StreamedSplit):
        digest.update(f"{part.pictures.fingerprint()} {part.decoder}".encode())
        _add_tensors(digest, part.rows, part.labels)
    elif isinstance(part, tuple):
        _add_tensors(digest, *part)
    else:
        _add_rows(digest, part)


def _add_tensors(digest: Any, *tensors: Tensor) -> None:
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _add_rows(digest: Any, rows: Any) -> None:
    """Add a Dataset's length and some of its rows; of a row that comes out otherwise each time, the target alone."""
    digest.update(str(len(rows)).encode())
    for row in torch.linspace(0, len(rows) - 1, min(LOOKED_AT, len(rows))).round().long().tolist():
        inputs, target = rows[row]
        steady = isinstance(inputs, Tensor) and torch.equal(inputs, rows[row][0])
        _add_tensors(digest, *([inputs] if steady else []), torch.as_tensor(target))


def _count(samples: Samples) -> int:
    return len(samples[1]) if isinstance(samples, tuple) else len(samples)  # type: ignore[arg-type]


def _shape(samples: Samples) -> list[int] | None:
    first = samples[0][0]  # the first of the inputs, or the input of the first pair
    return list(first.shape) if isinstance(first, Tensor) else None
