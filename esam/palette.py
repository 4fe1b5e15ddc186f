"""Which colour does a method have, wherever it is drawn?

Every colour has a contrast of at least 3 on the page's light and on its dark ground, and any two of them stay apart for
people with protan, deutan or tritan vision; tests/test_report.py works both out.
"""

from __future__ import annotations

from collections.abc import Mapping

METHOD_COLOURS = {
    "sgd": "#66707d",
    "sam": "#d17a12",
    "esam": "#2b87e8",
    "asam": "#b0329c",
    "looksam": "#0d8f58",
}
FALLBACK_COLOURS = ("#c4273a", "#5a50dc", "#e4539f")


def assign_colours(methods: Mapping[str, str]) -> dict[str, str]:
    """Give each name a colour, from {name: method}.

    The first name of a known method has the method's own colour. The others share the fallback colours and then those
    of known methods that are absent; from the ninth name on, colours repeat.
    """
    spare = [*FALLBACK_COLOURS, *(colour for key, colour in METHOD_COLOURS.items() if key not in methods.values())]
    colours: dict[str, str] = {}
    others = 0
    for name, method in methods.items():
        own = METHOD_COLOURS.get(method)
        if own is None or own in colours.values():
            own = spare[others % len(spare)]
            others += 1
        colours[name] = own
    return colours
