"""Which data set or column did the caller mean?"""

from __future__ import annotations

import os
from pathlib import Path

from esam.train.names import did_you_mean, last_part

KNOWN = ("digits", "uoft-cs/cifar10", "uoft-cs/cifar100")
LOCAL_COPIES = "ESAM_DATA"  # the environment variable that names a folder of local copies
LAYOUT = "train/<class>/<picture> with test/ or val/ beside train/, or <class>/<picture>, which is divided for you"


def unknown_data(asked: str, reason: str) -> ValueError:
    """Make the error for a data set that cannot be had; it names the nearest known one and every way to give one."""
    copies = os.environ.get(LOCAL_COPIES)
    held = sorted(os.listdir(copies)) if copies and Path(copies).is_dir() else []
    known = [*KNOWN, *(name for name in held if name not in map(last_part, KNOWN))]
    return ValueError(
        f"cannot load the data set {asked!r}: {reason}.{did_you_mean(asked, known)} Known names: {', '.join(known)}. "
        f"Or give another name of the Hugging Face hub, or the path of a folder of Parquet files or of pictures as "
        f"{LAYOUT}. Without a network, put a copy of the set into a folder named like the last part of its name and "
        f"set {LOCAL_COPIES} to the folder around it{f' (now {copies})' if copies else ''}"
    )


def local_copy(name: str) -> Path | None:
    """Give the folder in $ESAM_DATA that is named like the last part of a hub name, if there is one."""
    copies = os.environ.get(LOCAL_COPIES)
    folder = Path(copies).expanduser() / last_part(name) if copies else None
    return folder if folder is not None and folder.is_dir() else None
