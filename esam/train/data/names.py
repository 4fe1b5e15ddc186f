"""Which data set or column did the caller mean?"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

KNOWN = ("digits", "uoft-cs/cifar10", "uoft-cs/cifar100")
LOCAL_COPIES = "ESAM_DATA"  # the environment variable that names a folder of local copies
LAYOUT = "train/<class>/<picture> with test/ or val/ beside train/, or <class>/<picture>, which is divided for you"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Give a question with the nearest known name, such as `` Did you mean 'digits'?``, or nothing when none is near.

    Names are compared whole and by their last part, so that ``cifar10`` finds ``uoft-cs/cifar10``.
    """
    full_names = {form: full for full in known for form in (_last_part(full), full)}
    for form in (name, _last_part(name)):
        if near := difflib.get_close_matches(form, full_names, n=1):
            return f" Did you mean {full_names[near[0]]!r}?"
    return ""


def unknown_data(asked: str, reason: str) -> ValueError:
    """Make the error for a data set that cannot be had; it names the nearest known one and every way to give one."""
    copies = os.environ.get(LOCAL_COPIES)
    held = sorted(os.listdir(copies)) if copies and Path(copies).is_dir() else []
    known = [*KNOWN, *(name for name in held if name not in map(_last_part, KNOWN))]
    return ValueError(
        f"cannot load the data set {asked!r}: {reason}.{did_you_mean(asked, known)} Known names: {', '.join(known)}. "
        f"Or give another name of the Hugging Face hub, or the path of a folder of Parquet files or of pictures as "
        f"{LAYOUT}. Without a network, put a copy of the set into a folder named like the last part of its name and "
        f"set {LOCAL_COPIES} to the folder around it{f' (now {copies})' if copies else ''}"
    )


def local_copy(name: str) -> Path | None:
    """Give the folder in $ESAM_DATA that is named like the last part of a hub name, if there is one."""
    copies = os.environ.get(LOCAL_COPIES)
    folder = Path(copies).expanduser() / _last_part(name) if copies else None
    return folder if folder is not None and folder.is_dir() else None


def _last_part(name: str) -> str:
    return name.rpartition("/")[2]
