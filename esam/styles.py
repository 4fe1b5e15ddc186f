"""How does a method look in every chart? Colour and line come from its row of the registry."""

from __future__ import annotations

import html
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from esam.optim import METHODS

SPARE = "#9b5a00"


@dataclass(frozen=True)
class MethodStyle:
    """A name in the charts: its key in the page, its colour and its line."""

    name: str
    key: str
    """For whatever switches the method on and off: "g0"."""
    colour: str
    line: str
    """solid for methods, dash for controls, dot for further settings of a method that is there already."""

    @property
    def label(self) -> str:
        """The name for plotly, which reads some HTML."""
        return html.escape(self.name)

    def trace(self, hover: str, *, end: bool = False, band: bool = False, **parts: Any) -> dict[str, Any]:
        """Return a plotly trace that the method's chip switches; ``end``: with its name at the last point."""
        # in meta, because plotly would read a name inside a hovertemplate as part of the template
        meta = {"group": self.key, "name": self.label, "end": end, "band": band}
        return {"meta": meta, "hovertemplate": f"{hover}<extra></extra>", **parts}


def styles(methods: Mapping[str, str]) -> dict[str, MethodStyle]:
    """Return a style for each name, from {name: method}.

    The first name of a method has the method's own colour. The others take the spare colour and those of the methods
    that are absent, and then all of these again.
    """
    absent = [row.colour for method, row in METHODS.items() if row.colour and method not in methods.values()]
    spare = itertools.cycle([SPARE, *absent])
    by_name: dict[str, MethodStyle] = {}
    taken: set[str | None] = set()
    seen: set[str] = set()
    for number, (name, method) in enumerate(methods.items()):
        row = METHODS.get(method)
        colour = row.colour if row is not None and row.colour not in taken else None
        line = "dot" if method in seen else "dash" if row is not None and row.kind == "control" else "solid"
        by_name[name] = MethodStyle(name, f"g{number}", colour or next(spare), line)
        taken.add(by_name[name].colour)
        seen.add(method)
    return by_name
