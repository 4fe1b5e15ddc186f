"""What do the items that look inside a training run share? One probed run of ESAM for each task, the first seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from esam.analysis.plot import Curve, curves

from ..engine.inputs import Inputs
from ..engine.item import MethodRuns, Needs, Workload, runs_of
from ..engine.observer import BatchProbe, Value
from ..engine.scale import ExperimentScale, PaperTask, Probe
from ..engine.values import Repeated, finite, mean_of, slug, with_gaps

SET_COLOURS = {"B+": "#c4273a", "B-": "#0d8f58", "B": "#66707d", "B_rand": "#66707d"}
"""One colour for a set of samples in every figure."""


@dataclass(frozen=True)
class Series:
    """A figure of every batch, by epoch."""

    values: tuple[tuple[Value, ...], ...]

    @property
    def by_epoch(self) -> list[Value]:
        """The mean of each epoch."""
        return [mean_of(epoch) for epoch in self.values]

    @property
    def spreads(self) -> list[float]:
        """The standard deviation over the batches of each epoch."""
        return [Repeated(epoch).std or 0.0 for epoch in self.values]

    @property
    def batches(self) -> Repeated:
        """The figure over all batches of all epochs."""
        return Repeated(tuple(value for epoch in self.values for value in epoch))


@dataclass(frozen=True)
class ProbedRun:
    """What was seen in one run: some figures by their names."""

    workload: Workload
    epochs: tuple[int, ...]
    series: dict[str, Series]


@dataclass(frozen=True)
class ProbeFigures:
    """What was seen in the runs of several workloads."""

    runs: tuple[ProbedRun, ...]


def probe_figures(inputs: Inputs, picks: Mapping[str, Callable[[BatchProbe], Value]]) -> ProbeFigures:
    """Return some figures of every batch of every probed run."""
    found = []
    for runs in inputs.needs.probed:
        seen = inputs.observations(runs)
        series = {n: Series(tuple(tuple(map(pick, one.batches)) for one in seen)) for n, pick in picks.items()}
        found.append(ProbedRun(runs.workload, tuple(one.epoch for one in seen), series))
    return ProbeFigures(tuple(found))


def draw_series(
    measured: ProbeFigures, path: Path, styles: Mapping[str, tuple[str, str]], *, y_label: str
) -> list[Path]:
    """Draw figures against epochs, a picture for each workload; ``styles`` has the set and the dash of each."""
    written, colours = [], {name: SET_COLOURS[which] for name, (which, _) in styles.items()}
    for run in measured.runs:
        drawn = {
            name: Curve(run.epochs, with_gaps(run.series[name].by_epoch), run.series[name].spreads, dash)
            for name, (_, dash) in styles.items()
        }
        batches = max(map(len, next(iter(run.series.values())).values))
        title = f"{run.workload.title}\nbands: standard deviation over {batches} batches"
        where, log = path.with_name(f"{path.name}-{slug(run.workload.title)}"), _steep(drawn.values())
        labels = {"x_label": "epoch", "y_label": y_label, "title": title}
        written += curves(where, drawn, colours=colours, log_y=log, **labels)
    return written


def _steep(drawn: Iterable[Curve]) -> bool:
    """Tell whether the values ask for a logarithmic axis: all above zero, over more than a factor of 20."""
    values = finite(value for curve in drawn for value in curve.y)
    return bool(values) and min(values) > 0 and max(values) > 20 * min(values)


def probed_needs(scale: ExperimentScale, tasks: Sequence[PaperTask]) -> Needs:
    """Return the runs of ESAM that are probed, with the forward passes that probing takes."""
    probe, runs = scale.probe, list[MethodRuns]()
    for task in (task for task in tasks if task in scale.comparisons):
        comparison = scale.comparisons[task]
        runs += runs_of(task, dataclasses.replace(comparison, seeds=comparison.seeds[:1]), ("esam",))
    configs = [one.configs[0] for one in runs]
    passes = tuple((config, float(len(probe.epochs(config.epochs)) * _passes(probe))) for config in configs)
    sizes = {"probes": f"every {probe.every} epochs, {probe.batches} batches of {probe.batch_size} training images"}
    return Needs(probed=tuple(runs), probe=probe, passes=passes, sizes=sizes)


def _passes(probe: Probe) -> int:
    """Return the forward passes of single images that one probe takes."""
    each = 6 + 9 + len(probe.ts) + 4 + 2 * len(probe.betas) * probe.draws
    return each * probe.batches * probe.batch_size
