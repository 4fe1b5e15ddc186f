"""What does a source offer before any picture is decoded?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from esam.train.data.labels import HELD_OUT_SHARE, held_out
from esam.train.data.pictures import Pictures
from esam.train.data.splits import Listing


@dataclass(frozen=True)
class Catalogue:
    """Training and test pictures, listed, not decoded; ``note`` says in words where they come from."""

    train: Listing
    test: Listing
    classes: tuple[str, ...]
    note: str


class Source(Protocol):
    """A place that data can come from."""

    def identity(self) -> str:
        """Give a text that changes whenever the content does; much cheaper than reading the content."""

    def catalogue(self) -> Catalogue:
        """List the pictures."""


def whole_listing(pictures: Pictures, labels: Tensor) -> Listing:
    """List all pictures in their stored order."""
    return Listing(pictures, torch.arange(len(pictures)), labels.long())


def divided(everything: Listing) -> tuple[Listing, Listing, str]:
    """Divide a listing that has no test split into training and test; the note tells the reader so."""
    kept, held = held_out(everything.labels)
    note = f"test images are {HELD_OUT_SHARE:.0%} of the training images, held out by a fixed, stratified draw"
    return everything.select(kept), everything.select(held), note


def files_identity(folder: Path, files: Iterable[Path]) -> str:
    """Fingerprint files by name, length and time of change, without reading them."""
    digest = hashlib.sha256(str(folder.resolve()).encode())
    for file in files:
        status = file.stat()
        digest.update(f"{file.relative_to(folder)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
