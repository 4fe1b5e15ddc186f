"""``esam doctor``: what makes sharpness-aware training worse here, after a look at some steps of a run."""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from esam.train.config import Config

from .parsing import parse_run, take_recipe


@dataclass(frozen=True)
class DoctorOptions:
    """Some steps of a run, watched: rho for this model, kept parts, precision, phases, samples kept again and again."""

    config: tyro.conf.OmitArgPrefixes[Config]
    steps: int = 60
    """How many steps to watch; samples are suspected once each has been ranked four times."""


def doctor(arguments: list[str]) -> None:
    """``esam doctor``: findings and remedies."""
    recipe = take_recipe(arguments)
    options, config = parse_run("doctor", DoctorOptions, arguments, recipe.config if recipe else Config())
    if options.steps < 1:
        raise ValueError(f"--steps must be 1 or more, got {options.steps}")
    from importlib.metadata import version

    from esam.train.examine import examine

    versions = ", ".join(f"{name} {version(name)}" for name in ("torch-esam", "torch"))
    print(f"{versions}; {config.method} on {config.data}, {config.model}")
    watch = examine(config, options.steps)
    if watch.ratios:
        lowest, highest = min(watch.ratios), max(watch.ratios)
        print(f"{watch.steps} steps; ||eps|| / ||theta|| from {lowest:.2g} to {highest:.2g}")
    findings = watch.findings()
    for finding in findings:
        print(f"- {finding.sign}\n  remedy: {finding.remedy}")
    if not findings:
        print("nothing found that would make training worse")
