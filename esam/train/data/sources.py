"""Where does the data set of a given name come from?"""

from __future__ import annotations

import os
import re
from pathlib import Path

from esam.train.data.catalogue import Source
from esam.train.data.digits import Digits
from esam.train.data.folder import ClassFolders
from esam.train.data.names import local_copy, unknown_data
from esam.train.data.table import Table

HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def find_source(
    name: str | os.PathLike[str], *, image_column: str | None = None, label_column: str | None = None
) -> tuple[Source, str]:
    """Find where a data set comes from; gives the source and, in words, its place.

    In this order: ``digits``; a folder of that path; a folder in $ESAM_DATA named like the last part; the hub.
    """
    asked = os.fspath(name)
    if asked == "digits":
        _refuse_columns(asked, image_column, label_column)
        return Digits(), "digits of scikit-learn"
    path = Path(asked).expanduser()
    folder = path if path.is_dir() else local_copy(asked)
    if folder is None:
        if not HUB_NAME.fullmatch(asked):
            raise unknown_data(asked, "there is no such folder, and a name on the hub reads owner/name")
        return Table(asked, image_column=image_column, label_column=label_column), f"{asked} of the Hugging Face hub"
    place = str(folder) if folder == path else f"{asked} in {folder}"
    if any(folder.glob("*.parquet")) or any(folder.glob("*/*.parquet")):
        return Table(folder, image_column=image_column, label_column=label_column), place
    _refuse_columns(asked, image_column, label_column)
    return ClassFolders(folder), place


def _refuse_columns(asked: str, image_column: str | None, label_column: str | None) -> None:
    for argument, column in (("image_column", image_column), ("label_column", label_column)):
        if column is not None:
            raise ValueError(f"{asked} has no columns to choose from, got {argument}={column!r}; leave it out")
