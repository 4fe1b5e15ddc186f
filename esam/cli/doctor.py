"""``esam doctor``: what makes sharpness-aware training worse here, after a look at some steps of a run."""

from __future__ import annotations

from dataclasses import dataclass

from .parsing import parse_run, single_run


@dataclass(frozen=True)
class DoctorOptions:
    """Watch some steps of a run for common problems, each with a fix: rho, kept parts, precision."""

    steps: int = 60
    """How many steps to watch."""


def doctor(arguments: list[str]) -> None:
    """``esam doctor``: findings and remedies."""
    options, comparison, typed = parse_run("doctor", DoctorOptions, arguments)
    config = single_run(comparison, typed)
    if options.steps < 1:
        raise ValueError(f"--steps must be 1 or more, got {options.steps}")
    from importlib.metadata import version

    from esam.train.build import examine

    versions = ", ".join(f"{name} {version(name)}" for name in ("torch-esam", "torch"))
    print(f"{versions}; {config.method} on {config.data}, {config.model}")
    watch = examine(config, options.steps)
    if watch.ratios:
        lowest, highest = min(watch.ratios), max(watch.ratios)
        print(f"{watch.steps} steps; ||eps|| / ||theta|| from {lowest:.2g} to {highest:.2g}")
    for finding in watch.findings():
        print(f"- {finding.sign}\n  remedy: {finding.remedy}")
    if not watch.findings():
        print("nothing found that would make training worse")
