"""Which colour does each name on the page have?"""

from __future__ import annotations

from collections.abc import Mapping

from esam.optim import METHODS

SPARE = "#9b5a00"


def assign_colours(methods: Mapping[str, str]) -> dict[str, str]:
    """Give each name a colour, from {name: method}.

    The first name of a method has the method's own colour. The others take the spare colour and those of the methods
    that are absent, and then all of these again.
    """
    spare = [SPARE, *(row.colour for method, row in METHODS.items() if method not in methods.values())]
    colours: dict[str, str] = {}
    others = 0
    for name, method in methods.items():
        own = METHODS[method].colour if method in METHODS else None
        if own is None or own in colours.values():
            own = spare[others % len(spare)]
            others += 1
        colours[name] = own
    return colours
