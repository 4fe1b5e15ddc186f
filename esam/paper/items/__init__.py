"""The paper's tables and figures, one module each. ``ITEMS`` has all of them by name."""

from __future__ import annotations

from typing import Any

from ..engine.item import Item
from . import (
    adversarial,
    cosines,
    figure1,
    four_losses,
    grid_search,
    landscapes,
    length,
    linearity,
    own_best,
    parameter_study,
    sds_illustration,
    swp_savings,
    table1,
    table2,
    table3,
    vit,
)

__all__ = ["ITEMS", "MAKING_ORDER"]

_FIRST = (four_losses, cosines, linearity, sds_illustration, landscapes, adversarial)
_TABLES = (table1, table2, table3, vit, figure1, parameter_study, length, swp_savings, grid_search, own_best)
_TEXT = (table1, table2, table3, figure1, sds_illustration, parameter_study, landscapes)
_APPENDIX = (four_losses, cosines, linearity, swp_savings, adversarial, vit, grid_search, own_best, length)

ITEMS: dict[str, Item[Any]] = {module.ITEM.name: module.ITEM for module in (*_TEXT, *_APPENDIX)}
MAKING_ORDER = [module.ITEM.name for module in (*_FIRST, *_TABLES)]
"""What probes runs, or needs their weights, first: tables then find those runs done."""
