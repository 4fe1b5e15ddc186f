"""Who takes part? Methods of the registry by their names, and the controls that a gain has to be measured against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from esam.optim import METHODS


@dataclass(frozen=True)
class Entrant:
    """A row: a method, its settings, and the setting that the search tries values of."""

    name: str
    method: str
    title: str = ""
    """What people read where the method's own title does not tell enough; ``{base}`` stands for the base's name."""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    knob: str | None = None
    """The setting that is searched beside learning rate and weight decay."""
    values: tuple[float, float] = (0.0, 0.0)
    """The knob's default, and a stronger value."""
    length: float = 1.0
    """Epochs, as a multiple of the regime's."""
    batch: float = 1.0
    """Batch size, as a multiple of the regime's."""
    control: bool = False

    def named(self, base: str) -> str:
        """Return the name that people read."""
        return (self.title or METHODS[self.method].title).format(base=base)

    def settings_at(self, value: int) -> dict[str, Any]:
        """Return the method's settings with the knob at its value of that number."""
        return {**self.settings, **({} if self.knob is None else {self.knob: self.values[value]})}

    def units(self) -> float:
        """Return the counted cost of a run over that of the base's: 1 for the base, 2 for SAM."""
        return self.length * METHODS[self.method].units(self.settings_at(0)) / METHODS["base"].units()


def _radius(name: str, rho: float, *, method: str = "", title: str = "", knob: str = "rho", **more: Any) -> Entrant:
    """Return an entrant whose radius is searched: its default, and twice that."""
    length = more.pop("length", 1.0)
    control = more.pop("control", False)
    values = (rho, 2 * rho)
    return Entrant(name, method or name, title, more, knob, values, length, control=control)


_ALL = (
    Entrant("base", "base", control=True),
    Entrant("base-long", "base", "{base}, twice as long", length=2, control=True),
    Entrant("base-small", "base", "{base}, batches of half the size", batch=0.5, control=True),
    Entrant("base-half", "base-part", "{base} on half of each batch", {"gamma": 0.5}, control=True),
    Entrant(
        "base-pieces",
        "slicesam",
        "{base} in SliceSAM's pieces",
        {"rho": 1e-6, "radius": "constant"},
        control=True,
    ),
    Entrant("base-ema", "base-ema", knob="decay", values=(0.98, 0.99), control=True),
    _radius("sam-short", 0.1, method="sam", title="SAM, half as long", length=0.5, control=True),
    _radius("sam", 0.1),
    _radius("asam", 1.0),
    _radius("looksam", 0.1),
    _radius("esam", 0.1),
    _radius("esam-swp", 0.1),
    _radius("esam-sds", 0.1),
    _radius("esam-random", 0.1),
    _radius("slicesam", 0.15),
    Entrant("slicesam-fixed", "slicesam", "SliceSAM, one radius everywhere", {"rho": 0.15}),
    _radius("slicesam-constant", 0.05, method="slicesam", title="SliceSAM, constant radius", radius="constant"),
    _radius("slicesam-quarter", 0.15, method="slicesam", title="SliceSAM, a quarter", share=0.25),
    _radius("slicesam-4th", 0.15, method="slicesam", title="SliceSAM, every 4th step", k=4),
    _radius("slicesam-aligned", 0.15, method="slicesam", title="SliceSAM, aligned", ranking="aligned"),
    _radius("sam-ascent-part", 0.1),
    _radius("sam-descent-part", 0.1),
    _radius("sam-half", 0.1),
    _radius("msam", 1.0),
    _radius("msam-along", 0.1),
    _radius("sam-on", 0.5),
    _radius("sam-late", 0.1),
    _radius("sam-early", 0.1),
    _radius("sam-every", 0.1),
    _radius("ae-sam", 0.1),
    _radius("esam-follow", 0.1),
    _radius("sam-unbiased", 0.1),
    _radius("saf", 0.3, knob="strength"),
    _radius("rwp", 0.1),
    _radius("head-sam", 0.1),
)
ENTRANTS: dict[str, Entrant] = {row.name: row for row in _ALL if row.method in METHODS}
"""By name; a row whose method the registry lacks takes no part."""

PROTECTED = (
    "sam",
    "asam",
    "looksam",
    "esam",
    "esam-swp",
    "esam-random",
    "slicesam",
    "slicesam-fixed",
    "msam",
    "sam-on",
    "sam-late",
    "ae-sam",
    "saf",
)
"""Published methods and our own lead: they are reported on wherever they end."""
