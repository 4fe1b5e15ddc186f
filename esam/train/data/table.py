"""Which pictures and labels does a Hugging Face data set hold?"""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from esam.extras import require
from esam.train.data.pictures import TablePictures
from esam.train.data.sources import TEST_NAMES, Catalogue, divided, files_identity, unknown_data, whole_listing
from esam.train.data.splits import Listing
from esam.train.names import did_you_mean


class Table:
    """A data set read by the ``datasets`` package: by name from the hub, or from a folder of Parquet files.

    Columns are found by their feature type. Among several ``ClassLabel`` columns the one with most classes is taken.
    """

    def __init__(self, location: str | Path, *, image_column: str | None, label_column: str | None) -> None:
        self._location = location
        self._image_column = image_column
        self._label_column = label_column

    def identity(self) -> str:
        """Fingerprint the local files, or the revision that the hub gives."""
        columns = f"{self._image_column}/{self._label_column}"
        if isinstance(self._location, Path):
            files = sorted(file for file in self._location.rglob("*") if file.is_file())
            return f"{files_identity(self._location, files)}/{columns}"
        prints = "/".join(f"{name} {table._fingerprint}" for name, table in sorted(self._splits.items()))
        return f"{self._location} {hashlib.sha256(prints.encode()).hexdigest()}/{columns}"

    def catalogue(self) -> Catalogue:
        """List the pictures of the training and test splits."""
        if "train" not in self._splits:
            raise ValueError(f"{self._location} has no split 'train', only {', '.join(self._splits)}")
        features = self._splits["train"].features
        image = _image_column(features, self._image_column)
        label = _label_column(features, self._label_column)
        classes = tuple(features[label].names)
        columns = f"images of column {image!r}, labels of column {label!r}"
        train = self._listed("train", image, label)
        if not _labelled(train):
            raise ValueError(
                f"the training split of {self._location} is empty or has rows without a label; remove them"
            )
        for name in TEST_NAMES:
            # On the hub a split 'test' may come without its labels (-1 throughout), as ImageNet's does.
            if name in self._splits and _labelled(test := self._listed(name, image, label)):
                return Catalogue(train, test, classes, f"{columns}; test images are the split {name!r}")
        train, test, note = divided(train)
        return Catalogue(train, test, classes, f"{columns}; {note}")

    @cached_property
    def _splits(self) -> dict[str, Any]:
        require("datasets", purpose=f"reading {self._location}")
        try:
            return dict(_loaded(str(self._location), local=isinstance(self._location, Path)))
        except Exception as error:  # datasets raises a dozen kinds; its own words go into ours
            if isinstance(self._location, Path):
                raise ValueError(f"cannot read the Parquet files in {self._location}: {error}") from error
            raise unknown_data(self._location, str(error)) from error

    def _listed(self, split: str, image: str, label: str) -> Listing:
        from datasets import Image  # type: ignore[import-untyped]

        table = self._splits[split]
        pictures = table.select_columns([image]).cast_column(image, Image(decode=False))
        return whole_listing(TablePictures(pictures, image, f"{self._location}/{split}"), _labels(table, label))


def _loaded(name: str, *, local: bool) -> Any:
    """Load a data set; one of the hub that has been downloaded is taken as it is, without a word to the network."""
    import datasets

    if not local and not datasets.config.HF_HUB_OFFLINE:
        before = datasets.logging.get_verbosity()
        datasets.config.HF_HUB_OFFLINE = True
        datasets.logging.set_verbosity_error()  # it would warn that the hub was not asked
        try:
            return datasets.load_dataset(name)
        except Exception:  # of a dozen kinds: it is not here yet
            pass
        finally:
            datasets.config.HF_HUB_OFFLINE = False
            datasets.logging.set_verbosity(before)
    return datasets.load_dataset(name)


def _labelled(listing: Listing) -> bool:
    return len(listing) > 0 and bool((listing.labels >= 0).all())


def _labels(table: Any, column: str) -> Tensor:
    """Give the labels as numbers; a missing one as -1."""
    return torch.from_numpy(np.array([-1 if label is None else label for label in table[column][:]], dtype=np.int64))


def _image_column(features: Any, wanted: str | None) -> str:
    candidates = [name for name, feature in features.items() if type(feature).__name__ == "Image"]
    return _column(wanted, candidates, features, "image_column", "Image")


def _label_column(features: Any, wanted: str | None) -> str:
    sizes = {name: feature.num_classes for name, feature in features.items() if type(feature).__name__ == "ClassLabel"}
    finest_first = sorted(sizes, key=lambda name: -sizes[name])
    return _column(wanted, finest_first, features, "label_column", "ClassLabel")


def _column(wanted: str | None, candidates: list[str], features: Any, argument: str, kind: str) -> str:
    if not candidates:
        raise ValueError(
            f"no column has the feature type {kind}; the columns are {', '.join(map(str, features))}. "
            f"Give one that type with datasets' cast_column and save the set as Parquet"
        )
    if wanted is None:
        return candidates[0]
    if wanted not in candidates:
        right = ", ".join(map(repr, candidates))
        raise ValueError(f"{argument} must be one of {right}, got {wanted!r}.{did_you_mean(wanted, candidates)}")
    return wanted
