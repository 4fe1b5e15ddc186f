"""The paper's tables and figures: one module each. ``ITEMS`` has all of them, in the order in which they share best.

Runs that are looked into while they train, and runs whose weights are needed, come first: tables then find them done.
"""

from __future__ import annotations

from esam.reproduce.item import Item

from . import (
    adversarial,
    cosines,
    figure1,
    four_losses,
    grid_search,
    landscapes,
    linearity,
    parameter_study,
    sds_illustration,
    swp_savings,
    table1,
    table2,
    table3,
    vit,
)
from .scales import SCALES

__all__ = ["ITEMS", "SCALES"]

MODULES = (
    table1,
    table2,
    table3,
    vit,
    figure1,
    sds_illustration,
    parameter_study,
    landscapes,
    adversarial,
    four_losses,
    cosines,
    linearity,
    swp_savings,
    grid_search,
)
ITEMS: dict[str, Item] = {module.ITEM.name: module.ITEM for module in MODULES}

MAKING_ORDER = sorted(ITEMS, key=lambda name: (name.startswith(("table", "figure", "vit", "parameter", "grid")), name))
"""What looks into runs, or needs their weights, first: tables then find those runs done."""
