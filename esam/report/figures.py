"""How are a comparison's figures given to another program: as numbers, not as words?"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from esam.report.results import results_sheet
from esam.report.sheets import Form, formatted
from esam.report.summaries import MethodSummary, Spread


def results_text(conditions: Mapping[str, Sequence[MethodSummary]], form: Form) -> str:
    """Give the results of every condition: as JSON with mean, deviation and count of each figure, or as its table."""
    if form == "json":
        told = [_figures(title, one) for title, methods in conditions.items() for one in methods]
        return json.dumps(told, indent=1, ensure_ascii=False)
    return formatted([results_sheet(methods, title) for title, methods in conditions.items()], form)


def _figures(condition: str, one: MethodSummary) -> dict[str, Any]:
    values = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
    spreads = {name: dataclasses.asdict(value) for name, value in values.items() if isinstance(value, Spread)}
    seeds = [run.seed for run in one.group.finished]
    told = {"condition": condition, "method": one.group.method, "name": one.name, "seeds": seeds}
    return {**told, **spreads, "gain_in_points": one.gain, "time_ratio": one.time_ratio}
