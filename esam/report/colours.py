"""Which colour does each name on the page have?"""

from __future__ import annotations

from collections.abc import Mapping

ROWS = {
    "base": "#66707d",
    "base-part": "#828cd2",
    "sam": "#d17a12",
    "esam": "#2b87e8",
    "esam-random": "#e4539f",
    "esam-sds": "#5a50dc",
    "esam-swp": "#c4273a",
    "asam": "#b0329c",
    "looksam": "#0d8f58",
}
SPARE = "#9b5a00"


def canonical(method: str) -> str:
    """Give a method's name in the registry: records of old say "sgd" for the base."""
    return "base" if method == "sgd" else method


def assign_colours(methods: Mapping[str, str]) -> dict[str, str]:
    """Give each name a colour, from {name: method}.

    The first name of a method has the method's own colour. The others take the spare colour and those of the methods
    that are absent, and then all of these again.
    """
    spare = [SPARE, *(colour for method, colour in ROWS.items() if method not in methods.values())]
    colours: dict[str, str] = {}
    others = 0
    for name, method in methods.items():
        own = ROWS.get(method)
        if own is None or own in colours.values():
            own = spare[others % len(spare)]
            others += 1
        colours[name] = own
    return colours
