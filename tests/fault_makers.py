"""How is each fault of the catalogue made?"""

import contextlib
import errno
import functools
import io
import json
import re
import shlex
from importlib.util import find_spec
from unittest import mock

import torch
from fault_catalogue import Fault, placed
from fault_place import TINY
from torch import nn

import esam
from esam.cli import main
from esam.train import fit
from esam.train.record import RECORD_NAME

# What spoils a run ----------------------------------------------------------------------------------------------------


def written(name, data, source="run"):
    """Copy the run to ``spoilt`` and write something else into one of its files."""

    def spoil(place):
        path = place.fresh("spoilt", source) / name
        path.write_bytes(data(path.read_bytes()) if callable(data) else data)

    return spoil


def saved(state, only=True):
    """Copy the run to ``spoilt``, with another object as its checkpoint."""

    def spoil(place):
        folder = place.fresh("spoilt")
        for path in folder.glob("*.safetensors"):
            path.unlink()
        torch.save(state, folder / "checkpoint.pt")
        if only:
            (folder / "checkpoint.previous.pt").unlink(missing_ok=True)

    return spoil


class Bomb:
    def __reduce__(self):
        return print, ("it ran",)


def without(*names):
    def spoil(place):
        folder = place.fresh("spoilt")
        for name in names:
            for path in folder.glob(name):
                path.unlink()

    return spoil


def first_line(**changes):
    def data(before):
        first, *rest = before.decode().splitlines(keepends=True)
        return "".join([json.dumps({**json.loads(first), **changes}) + "\n", *rest]).encode()

    return written(RECORD_NAME, data)


def missing(*packages):
    """Make packages look as if they were not installed, while the command runs."""

    def run(words):
        def do(place):
            told = io.StringIO()
            seek = lambda name: None if name in packages else find_spec(name)  # noqa: E731
            with mock.patch("esam.extras.find_spec", seek), contextlib.redirect_stderr(told):
                code = main([placed(word, place) for word in shlex.split(re.sub(r"\bT\b", TINY, words))])
            return code, told.getvalue()

        return do

    return run


def lacking(package, words, says):
    return Fault(f"`esam {words}` without {package}", says, do=missing(*package.split(" and "))(words))


# In Python ------------------------------------------------------------------------------------------------------------

X, Y = torch.arange(24.0).view(12, 2) / 12 - 1, torch.tensor([0, 1] * 6)


def stepped(closure, method="esam", **settings):
    def do(place):
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        optimizer = esam.METHODS[method](torch.optim.SGD(model.parameters(), lr=0.1), model, **settings)
        optimizer.step(functools.partial(closure, model) if closure is not None else None)

    return do


def per_sample(model, keep):
    return nn.functional.cross_entropy(model(X[keep]), Y[keep], reduction="none")


def built(method, base=None, **settings):
    def do(place):
        model = nn.Linear(2, 2)
        made = torch.optim.SGD(model.parameters(), lr=0.1) if base is None else base(model)
        esam.METHODS[method](made, model, **settings)

    return do


def compared(**changes):
    def do(place):
        given = {"build_model": lambda: nn.Linear(2, 2), "train": (X, Y), "test": (X, Y), "methods": ["base"]}
        given |= {"seeds": [0], "epochs": 1, "tell": None, "out": place.out, **changes}
        esam.compare(given.pop("build_model"), given.pop("train"), given.pop("test"), **given)

    return do


def fitted(train=None, schedule=None, **changes):
    def do(place):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        made = schedule(optimizer) if schedule else None
        fit(model, optimizer, [(X, Y)] if train is None else train, **{"epochs": 1, "schedule": made, **changes})

    return do


# While it runs --------------------------------------------------------------------------------------------------------


def during(words, target, effect):
    """Run a command while a function of ours or of the system's fails."""

    def do(place):
        told = io.StringIO()
        with mock.patch(target, effect), contextlib.redirect_stderr(told):
            code = main([placed(word, place) for word in shlex.split(re.sub(r"\bT\b", TINY, words))])
        return code, told.getvalue()

    return do


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupted(*_):
    raise KeyboardInterrupt


def reader_gone(*_, **__):
    raise BrokenPipeError


def locked(place):
    from filelock import FileLock

    place.out.mkdir()
    place.lock = FileLock(place.out / ".lock")
    place.lock.acquire()


def in_a_locked_folder(place):
    locked(place)
    try:
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            code = main(["train", *TINY.split(), "--out", str(place.out)])
    finally:
        place.lock.release()
    return code, told.getvalue()


def in_ascii(place):
    """Train and compare the signs that a pipe of ASCII cannot show."""
    raw = io.BytesIO()
    channel = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    with contextlib.redirect_stdout(channel):
        code = main(["report", str(place.run), "--out", str(place.out / "page ± 1.html")])
    return code, raw.getvalue().decode()
