"""The paper's tables and figures: one module each. ``ITEMS`` has all of them by name, ``SCALES`` their two sizes."""

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

FIRST = ("four-losses", "cosines", "linearity", "sds-illustration", "landscapes", "adversarial-landscapes")
MAKING_ORDER = [*FIRST, *(name for name in ITEMS if name not in FIRST)]
"""What looks into runs, or needs their weights, first: tables then find those runs done."""
