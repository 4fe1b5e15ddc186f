"""Which name did the caller mean?"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Give a question with the nearest known name, such as `` Did you mean 'digits'?``, or nothing when none is near.

    Names are compared whole and by their last part, so that ``cifar10`` finds ``uoft-cs/cifar10``, and in lower case.
    """
    known = list(known)
    if name in known:  # whatever is wrong, it is not the name
        return ""
    full_names = {form.lower(): full for full in known for form in (last_part(full), full)}
    for form in (name, last_part(name)):
        if near := difflib.get_close_matches(form.lower(), full_names, n=1):
            return f" Did you mean {full_names[near[0]]!r}?"
    return ""


def last_part(name: str) -> str:
    """Give what stands behind the last slash."""
    return name.rstrip("/").rsplit("/", 1)[-1]
