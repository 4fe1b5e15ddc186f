"""Faults that a user or a machine can cause: is each named, without a traceback, and is nothing lost?"""

import errno
import json
import os
import shlex
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
import torch
from picture_makers import class_folders, picture

from esam.cli import main
from esam.train.record import RECORD_NAME

TINY = "--data digits --model mlp --train-size 100 --batch-size 50 --epochs 1 --threads 1"
OURS = "train --threads 1 --epochs 1 --out OUT"


class Bomb:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return print, ("it ran",)


class Fault(NamedTuple):
    """A command, what its message must name, and its exit code."""

    typed: str  # T stands for a small training, OUT for a folder that must not be there afterwards
    named: str
    code: int = 1
    spoil: Callable[[Path], object] = lambda root: None  # what to do first, in the folder that all faults share
    during: tuple[str, object] | None = None  # a function of ours or the system's that fails meanwhile
    leaves: bool = False  # whether OUT may be there afterwards: the fault strikes in the middle of the work


def spoilt(name, data):
    """Copy the run to ``spoilt`` and write something else into one of its files; a dict changes its first line."""

    def spoil(root):
        shutil.copytree(root / "run", root / "spoilt")
        path = root / "spoilt" / name
        if isinstance(data, bytes):
            path.write_bytes(data)
        elif name == RECORD_NAME:
            first, *rest = path.read_text().splitlines(keepends=True)
            path.write_text("".join([json.dumps({**json.loads(first), **data}) + "\n", *rest]))
        else:
            torch.save(data, path)

    return spoil


def lacking(package):
    return "esam.extras.find_spec", lambda name: None if name == package else find_spec(name)


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


FULL = OSError(errno.ENOSPC, "No space left on device")
FAULTS = [
    # a wrong word is answered with the nearest right one
    Fault("trian", "Did you mean 'train'", 2),
    Fault("train --epoch 3 --out OUT", "Did you mean '--epochs'", 2),
    Fault("compare dmeo --out OUT", "Did you mean 'demo'"),
    Fault("train T --out OUT --method easm", "Did you mean 'esam'"),
    Fault("train T --out OUT --data digist", "Did you mean 'digits'"),
    Fault("train T --out OUT --method sam --gamma 0.5", "gamma"),
    Fault("train T --out OUT --method esam --gamma 7", "gamma must be in (0, 1], got 7"),
    Fault("compare T --out OUT --set rho=0.1", "sam.rho=0.1", 2),
    Fault("compare T --out OUT --set sam.roh=0.1", "Did you mean 'rho'"),
    Fault("compare T --out OUT --set sam.rho=far", "sam.rho", 2),
    Fault("compare T --out OUT --methods base --rho 0.1", "--rho"),
    Fault("report nowhere", "nowhere is not a folder"),
    # numbers
    Fault("train T --out OUT --epochs -1 --lr nan --label-noise 2", "3 "),
    Fault("train T --out OUT --budget nan", "budget must be"),
    Fault("train T --out OUT --momentum 1", "momentum"),
    Fault("train T --out OUT --weight-decay nan", "weight_decay"),
    Fault("train T --out OUT --evaluate-every 0", "evaluate_every"),
    Fault("train T --out OUT --lr inf", "lr must be a finite number"),
    Fault("train T --out OUT --threads 100000", "1024"),
    Fault("compare T --out OUT --methods", "--methods"),
    Fault("train T --out ''", "--out: takes a path", 2),
    Fault("bench --methods esma", "Did you mean 'esam'?"),
    Fault("bench --set esam.roh=0.1", "Did you mean 'rho'?"),
    Fault("bench --rounds 0", "rounds must be 1 or more"),
    Fault("doctor demo --steps 0", "--steps must be 1 or more, got 0"),
    Fault("analyze run --landscape 1", "2 points or more"),
    # pictures and tables
    Fault("train T --out OUT --data ./nowhere", "ESAM_DATA"),
    Fault("train T --out OUT --data empty", "train/<class>/<picture>"),
    Fault(f"{OURS} --data hollow", "dogs"),
    Fault(f"{OURS} --data sizes", "size"),
    Fault(f"{OURS} --data strange", "wolves"),
    Fault(f"{OURS} --data torn", "001.jpg"),
    Fault("predict own_run kept.csv --model my_parts:net", "esam.load_run"),
    # nothing is overwritten
    Fault("predict own_run kept.csv --out kept.csv --force", "would be overwritten"),
    Fault("predict own_run kept.csv --out precious.csv", "--force"),
    Fault("export run precious.safetensors", "--force"),
    Fault("export run weights.bin", ".safetensors"),
    Fault("train T --out kept.csv/run", "is a file, not a folder"),
    # models and data of one's own
    Fault(f"{OURS} --data my_parts:broken", "ZeroDivisionError"),
    Fault(f"{OURS} --data my_parts:uneven --model my_parts:net", "give one for each"),
    Fault(f"{OURS} --data my_parts:torn --model my_parts:net", "my_parts.py: KeyError: 17"),
    Fault(f"{OURS} --data my_parts:torn --model my_parts:net --train-size 9", "my_parts.py: KeyError: 17"),
    Fault(f"{OURS} --data my_parts:ragged --model my_parts:net", "my_parts:ragged failed: RuntimeError: stack expects"),
    Fault(f"{OURS} --data my_parts:words --model my_parts:net", "the targets of a batch are a tuple"),
    Fault(f"{OURS} --data my_parts:scalar_loss --model my_parts:net", 'reduction="none"'),
    Fault(f"{OURS} --data my_parts:classes --model my_parts:broken_net", "KeyError"),
    Fault(f"{OURS} --data my_parts:classes --model my_parts:leaving_net", "SystemExit(3)"),
    # runs that were damaged, or made to do harm
    Fault("report empty", "train something first"),
    Fault("report spoilt", "restore the file", spoil=spoilt(RECORD_NAME, b"{}\nno\n")),
    Fault("predict spoilt photos", "pip install -U", spoil=spoilt(RECORD_NAME, {"format": 99})),
    Fault("analyze spoilt", "unknown setting 'shape'", spoil=spoilt(RECORD_NAME, {"config": {"shape": 3}})),
    Fault("analyze spoilt --images 20 --eigenvalues 0", "may run code", 0, spoilt("checkpoint.pt", {"model": Bomb()})),
    # packages that are missing
    Fault("compare T --out OUT --methods base", "torch-esam[train]", during=lacking("plotly")),
    Fault("analyze run", "torch-esam[analysis]", during=lacking("scipy")),
    # while it runs
    Fault("train T --method base --epochs 2 --lr 1e30 --out OUT", "diverged", leaves=True),
    Fault("train T --out OUT", "the disk is full", during=("esam.files.os.fsync", failing(FULL)), leaves=True),
    Fault("methods", "", 141, during=("builtins.print", failing(BrokenPipeError()))),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory, own_cache):
    """A folder with two finished runs, pictures good and bad, and functions of a user's own."""
    folder = tmp_path_factory.mktemp("faults")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("kept.csv", "precious.csv", "precious.safetensors"):
            (folder / name).write_text("1,2\n")
        (folder / "empty").mkdir()
        class_folders(folder / "photos", {"cats": 6, "dogs": 4})
        class_folders(folder / "hollow", {"cats": 4, "dogs": 0})
        class_folders(folder / "strange" / "train", {"cats": 4, "dogs": 4})
        class_folders(folder / "strange" / "test", {"cats": 4, "wolves": 4})
        class_folders(folder / "sizes", {"cats": 4, "dogs": 4})
        picture(1, (9, 8)).save(folder / "sizes" / "cats" / "000.png")
        class_folders(folder / "torn", {"cats": 4, "dogs": 4}, "jpg", (32, 32))
        os.truncate(folder / "torn" / "cats" / "001.jpg", 300)
        assert main([*f"train {TINY} --epochs 2 --quiet --method sam --out run".split()]) == 0
        own = "train --data my_parts:classes --model my_parts:net --epochs 1 --threads 1 --quiet --out own_run"
        assert main(own.split()) == 0
        yield folder


def contents(root):
    """What must not be lost, whatever goes wrong."""
    names = ("run", "own_run", "photos", "kept.csv", "precious.csv", "precious.safetensors")
    paths = [path for name in names for path in [root / name, *sorted((root / name).rglob("*"))] if path.is_file()]
    return {path: path.read_bytes() for path in paths if path.name != ".lock"}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.typed}: {fault.named}")
def test_a_fault_is_named_without_a_traceback_and_costs_nothing(root, fault, capsys):
    out = root / "out"
    for left in (out, root / "spoilt"):
        shutil.rmtree(left, ignore_errors=True)
    before = contents(root)
    fault.spoil(root)
    words = shlex.split(fault.typed.replace(" T", f" {TINY}").replace("OUT", str(out)))
    capsys.readouterr()
    with mock.patch(*fault.during) if fault.during else mock.patch.dict(os.environ):
        code = main(words)
    printed, said = capsys.readouterr()
    assert code == fault.code, said
    assert fault.named in said, said
    assert "Traceback" not in said and "it ran" not in printed + said
    assert contents(root) == before, "something was lost or changed"
    assert fault.leaves or not out.exists(), "it began to work before it refused"
