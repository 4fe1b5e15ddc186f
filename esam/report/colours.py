"""Which colour does each name on the page have?"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from esam.optim import METHODS

SPARE = "#9b5a00"


def assign_colours(methods: Mapping[str, str]) -> dict[str, str]:
    """Give each name a colour, from {name: method}.

    The first name of a method has the method's own colour. The others take the spare colour and those of the methods
    that are absent, and then all of these again.
    """
    absent = [row.colour for method, row in METHODS.items() if row.colour and method not in methods.values()]
    spare = itertools.cycle([SPARE, *absent])
    colours: dict[str, str] = {}
    for name, method in methods.items():
        own = METHODS[method].colour if method in METHODS else None
        colours[name] = next(spare) if own is None or own in colours.values() else own
    return colours
