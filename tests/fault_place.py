"""Where the catalogue of faults plays: a finished run, pictures, and functions of a user's own, good ones and bad."""

import shutil
from pathlib import Path

import numpy as np
import torch
from picture_makers import class_folders, picture
from PIL import Image

from esam.cli import main

TINY = "--data digits --model mlp --train-size 100 --batch-size 50 --epochs 1 --threads 1"
OWN = """
import torch
from torch import nn
from esam.train import Task

x = torch.arange(40.0).view(20, 2) / 20 - 1
y = (x[:, 0] > 0).long()

def table():
    return Task((x, y), (x, y), classes=("low", "high"))

def numbers():
    return Task((x, x.sum(1, keepdim=True)), (x, x), loss=lambda o, t: (o - t).square().mean(1))

def nothing():
    return None

def empty():
    return Task((x[:0], y[:0]), (x, y))

def uneven():
    return Task((x, y[:5]), (x, y))

def lists():
    return Task((x.tolist(), y.tolist()), (x, y))

def scalar_loss():
    return Task((x, y), (x, y), loss=nn.functional.cross_entropy)

def far_labels():
    return Task((x, y + 7), (x, y + 7))

def not_numbers():
    return Task((x * float("nan"), y), (x, y))

def broken():
    return 1 / 0

def net():
    return nn.Linear(2, 2)

def wide():
    return nn.Linear(3, 2)

def no_net():
    return "a net"

def broken_net():
    raise KeyError("layers")

def frozen():
    return nn.Linear(2, 2).requires_grad_(False)

constant = 3
"""


class Place:
    """A folder with everything that the faults need; ``fresh`` copies what one of them spoils."""

    def __init__(self, root):
        self.root = Path(root)
        self.out = self.root / "out"
        self.run, self.photos = self.root / "run", self.root / "photos"
        (self.root / "own_parts.py").write_text(OWN)
        (self.root / "own_syntax.py").write_text("def data(:\n")
        (self.root / "own_import.py").write_text("import a_package_that_nobody_has\n")
        assert (
            main(["train", *TINY.split(), "--quiet", "--method", "sam", "--epochs", "2", "--out", str(self.run)]) == 0
        )
        class_folders(self.photos, {"cats": 6, "dogs": 4})
        words = "train --data own_parts:table --model own_parts:net --epochs 1 --threads 1 --quiet --out"
        assert main([*words.split(), str(self.root / "own_run")]) == 0
        self._pictures()
        self._tables()
        self._files()
        self.kept = self.contents()

    def fresh(self, name, source="run"):
        """Return a copy of a folder, to be spoilt."""
        copy = self.root / name
        shutil.rmtree(copy, ignore_errors=True)
        return shutil.copytree(self.root / source, copy)

    def contents(self):
        """Return what must not be lost, whatever goes wrong."""
        kept = [path for folder in (self.run, self.photos) for path in sorted(folder.rglob("*")) if path.is_file()]
        return {str(path): path.read_bytes() for path in kept}

    def clear(self):
        """Take away what the fault before may have left."""
        shutil.rmtree(self.out, ignore_errors=True)

    def _folder(self, name, *pictures):
        for number, (where, image) in enumerate(pictures):
            path = self.root / name / where
            path.mkdir(parents=True, exist_ok=True)
            image.save(path / f"{number}.png")

    def _pictures(self):
        (self.root / "empty").mkdir()
        self._folder("loose", (".", picture(1)), (".", picture(2)))
        self._folder("one", ("cats", picture(1)))
        self._folder("alone", *[("cats", picture(n)) for n in range(4)])
        self._folder("sizes", *[("cats", picture(n, (8 + n % 2, 8))) for n in range(4)], ("dogs", picture(1)))
        grey = [(name, picture(n, mode="L")) for name in ("cats", "dogs") for n in range(16)]
        self._folder("mixed", *grey)
        picture(3).save(self.root / "mixed" / "cats" / "1.png")
        deep = Image.fromarray(np.zeros((8, 8), dtype=np.uint16))
        self._folder("deep", ("cats", picture(1, mode="L")), ("cats", deep), ("dogs", picture(2, mode="L")))
        class_folders(self.root / "hollow", {"cats": 4, "dogs": 0})
        class_folders(self.root / "strange" / "train", {"cats": 4, "dogs": 4})
        class_folders(self.root / "strange" / "test", {"cats": 4, "wolves": 4})
        class_folders(self.root / "torn", {"cats": 4, "dogs": 4}, "jpg", (32, 32))
        whole = (self.root / "torn" / "cats" / "001.jpg").read_bytes()
        (self.root / "torn" / "cats" / "001.jpg").write_bytes(whole[: len(whole) // 2])
        class_folders(self.root / "words", {"cats": 4, "dogs": 4})
        (self.root / "words" / "cats" / "001.png").write_text("no picture")
        (self.root / "rotten" / "data").mkdir(parents=True)
        (self.root / "rotten" / "data" / "train-00000-of-00001.parquet").write_bytes(b"PAR1 no more")
        (self.root / "words.png").write_text("no picture")

    def _tables(self):
        texts = {
            "words.csv": "a,b\n1,2\none,two\n",
            "ragged.csv": "1,2\n1,2,3\n",
            "wide.csv": "1,2,3\n",
            "void.csv": "",
        }
        for name, text in texts.items():
            (self.root / name).write_text(text)
        np.save(self.root / "objects.npy", np.array([{"a": 1}], dtype=object))
        torch.save({"a": 1}, self.root / "weights.pt")

    def _files(self):
        (self.root / "file").write_text("in the way")
        tomls = {
            "torn.toml": "epochs = ",
            "key.toml": "epochz = 3\n",
            "type.toml": 'epochs = "many"\n',
            "range.toml": "epochs = -3\n",
            "inner.toml": "[settings]\nrho = 0.1\n",
            "other.toml": 'methods = ["sam"]\n',
            "seed.toml": "seed = 3\n",
        }
        for name, text in tomls.items():
            (self.root / name).write_text(text)
        (self.root / "bytes.toml").write_bytes(b"\xff\xfe\x00")
