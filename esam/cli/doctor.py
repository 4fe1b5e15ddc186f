"""``esam doctor``: what makes sharpness-aware training worse here, after a look at some steps of a run."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from esam.train.config import Config, find_method

from .parsing import parse_run, single_run

FEW = 20
"""Steps that say little of their time."""


@dataclass(frozen=True)
class DoctorOptions:
    """Watch some steps of a run for common problems, each with a fix: rho, kept parts, precision, time."""

    steps: int = 60
    """How many steps to watch."""


def doctor(arguments: list[str]) -> None:
    """``esam doctor``: findings and remedies."""
    options, comparison, typed = parse_run("doctor", DoctorOptions, arguments)
    config = single_run(comparison, typed)
    if options.steps < 1:
        raise ValueError(f"--steps must be 1 or more, got {options.steps}")
    from importlib.metadata import version

    versions = ", ".join(f"{name} {version(name)}" for name in ("torch-esam", "torch"))
    print(f"{versions}; {config.method} on {config.data}, {config.model}")
    watch, seconds = _watched(config, options.steps)
    if watch.ratios:
        lowest, highest = min(watch.ratios), max(watch.ratios)
        print(f"{watch.steps} steps; ||eps|| / ||theta|| from {lowest:.2g} to {highest:.2g}")
    findings = [(finding.sign, finding.remedy) for finding in watch.findings()]
    findings += _price(config, seconds, options.steps)
    for sign, remedy in findings:
        print(f"- {sign}\n  remedy: {remedy}")
    if not findings:
        print("nothing found that would make training worse")


def _watched(config: Config, steps: int) -> tuple[Any, float]:
    """Return what was seen of some steps, and the processor time of one."""
    from esam.train.build import examine

    examine(config, 0)  # data and libraries are loaded
    start = time.process_time()
    examine(config, 0)
    built = time.process_time()
    watch = examine(config, steps)
    return watch, max(0.0, time.process_time() - built - (built - start)) / steps


def _price(config: Config, seconds: float, steps: int) -> list[tuple[str, str]]:
    """Say that a step costs more than it counts for, where the processor does the work."""
    from esam.report.verdict import SLOW
    from esam.train.build import chosen_device

    base = replace(config, method="base", settings={})
    if steps < FEW or config.method == base.method or chosen_device(config.device).type != "cpu":
        return []
    ratio = seconds / (_watched(base, steps)[1] or float("inf"))
    counted = find_method(config.method).units(config.settings) / find_method(base.method).units()
    print(
        f"a step takes {ratio:.2f} times the processor time of {config.optimizer} alone; its passes count {counted:.2f}"
    )
    if ratio <= SLOW * max(1.0, counted):
        return []
    sign = "steps are dearer here than counted: with a small model or batch a pass costs its calls, not its samples"
    return [(sign, "use larger batches, a method with fewer passes, or the base optimizer; see esam methods")]
