"""A.4: how much does SWP save? MLPs of N layers of 3,000 units; g(N, beta) = k1 (1 - beta) + k2 (1 - beta) / (N beta).

"k1 = 0.3185, k2 = 0.1310, R2 = 0.9983" for one unit a layer, "k1 = 0.3143, k2 = 0.0737, R2 = 0.9989" for several with
cross connections; "the storing and hooking gradients are the dominant factor". Ours is the processor time of SAM's
first pass and its backward on one CPU thread, on random inputs and a squared output (the paper: CIFAR-10, and it does
not tell what its percentage is of). At that width a process takes up to 11 GB.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from statistics import stdev
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from esam.analysis.picture import INK, write_picture
from esam.train.record import environment

from . import rules
from .hyperparameters import Scale
from .jobs import Job
from .results import Claim, Judge, Results, on_each
from .rules import Fit, Verdict
from .store import Store

NUMBER, TITLE = "Tables of A.4", "What SWP saves: g(N, beta) on MLPs"
BATCH = 128
GIVING_BACK = "-giving-back"
COLOURS = ("#1f6fb4", "#0d8f58", "#d2731d", "#c4273a")
PRINTED = (0.9, 0.5, 0.1)
"""The betas whose g the paper prints."""


@dataclass(frozen=True)
class Case:
    """A kind of MLP: units a layer, the paper's k1 and k2, and its printed g in per cent by N, at the betas PRINTED."""

    units: int
    words: str
    fit: tuple[float, float]
    printed: Mapping[int, Sequence[float]]


CASES = {
    "serial": Case(
        1,
        "one unit a layer",
        (0.3185, 0.1310),
        {50: (3.42, 16.28, 30.08), 75: (3.44, 15.79, 30.42), 100: (3.37, 15.86, 29.56), 125: (2.94, 14.87, 29.42)},
    ),
    "crossed": Case(
        2,
        "two units a layer, cross connections",
        (0.3143, 0.0737),
        {25: (2.88, 15.54, 30.03), 50: (2.34, 15.10, 29.83), 65: (2.23, 14.95, 29.22), 75: (2.22, 15.10, 28.68)},
    ),
}


def forward(weights: Sequence[Tensor], units: int, x: Tensor) -> Tensor:
    """Return what an MLP makes of x: each layer the sum of what its units make of the layers before it."""
    before = [x] * units
    for at in range(0, len(weights), units):
        made = map(F.linear, before, weights[at : at + units])
        before = [torch.relu(reduce(torch.add, made)), *before[:-1]]
    return before[0]


@dataclass(frozen=True)
class Savings(Job):
    """The times of one depth: SAM's pass and SWP's for every beta, draw by draw."""

    case: str
    layers: int
    keep_memory: bool = True
    """Keep the memory that is freed: page faults would else hide what is measured. Without, storing is in it."""

    def do(self, store: Store, scale: Scale) -> None:
        """Time all betas and SAM in random order in each draw; draws that are done are gone on from."""
        torch.set_num_threads(1)
        if self.keep_memory:
            keep_freed_memory()
        work = f"{self.name}.work.jsonl"
        done = store.lines(work) or []
        torch.manual_seed(self.layers)
        units, x = CASES[self.case].units, torch.randn(BATCH, scale.width)
        std = (2 / scale.width / units) ** 0.5  # torch's own fade with depth, into numbers that a CPU is slow with
        weights = [torch.randn(scale.width, scale.width).mul_(std) for _ in range(units * self.layers)]
        names = ["sam", *(f"{beta:g}" for beta in scale.betas)]
        pass_seconds(weights, units, x, range(len(weights)))
        for draw in range(len(done), scale.draws):
            generator, seconds = torch.Generator().manual_seed(1_000 * self.layers + draw), {}
            for at in torch.randperm(len(names), generator=generator).tolist():
                picks: Sequence[int] = range(len(weights))
                if names[at] != "sam" and float(names[at]) < 1:
                    drawn = (torch.rand(len(weights), generator=generator) < float(names[at])).nonzero().flatten()
                    picks = drawn.tolist() or [int(torch.randint(len(weights), (1,), generator=generator))]
                seconds[names[at]] = float(f"{pass_seconds(weights, units, x, picks):.5g}")
            done.append({"draw": draw, **seconds})
            store.write(work, done)
        about = {"width": scale.width, "batch": BATCH, "layers": self.layers, "environment": environment("cpu")}
        store.write(f"{self.name}.jsonl", [about, *done])
        (store.folder / work).unlink(missing_ok=True)


def pass_seconds(weights: Sequence[Tensor], units: int, x: Tensor, picks: Sequence[int]) -> float:
    """Return the processor time of SAM's first pass: forward, and backward to the drawn tensors alone."""
    for number, weight in enumerate(weights):
        weight.requires_grad_(number in picks)
    start = time.process_time()
    torch.autograd.grad(forward(weights, units, x).square().mean(), [weights[number] for number in picks])
    return time.process_time() - start


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, where the C library can (glibc)."""
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # the parameters of malloc.h
    with suppress(OSError, TypeError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, size in ((trim_threshold, 2**31 - 1), (top_pad, 2**28), (mmap_threshold, 2**30)):
            mallopt(parameter, size)


def jobs(scale: Scale) -> Sequence[Job]:
    """Return a job for each case and depth; and the smallest depth again in a process that gives memory back."""
    found = [Savings(f"savings/{case}-{n}", case, n) for case in CASES for n in scale.depths[case]]
    again = [(case, scale.depths[case][0]) for case in CASES]
    return found + [Savings(f"savings/{case}-{n}{GIVING_BACK}", case, n, keep_memory=False) for case, n in again]


def measured(results: Results, case: str, suffix: str = "") -> dict[tuple[int, float], tuple[float, float]]:
    """Return g(N, beta) by ratios of total times, with its standard error by the draws' deviations."""
    found = {}
    for layers in results.scale.depths[case]:
        _, *draws = results.store.lines(f"savings/{case}-{layers}{suffix}.jsonl") or [{}]
        for beta in results.scale.betas if len(draws) > 1 else ():
            swp, sam = [d[f"{beta:g}"] for d in draws], [d["sam"] for d in draws]
            ratio = sum(swp) / sum(sam)
            off = stdev([a - ratio * b for a, b in zip(swp, sam, strict=True)])
            found[layers, beta] = (1 - ratio, off * len(draws) ** 0.5 / sum(sam))
    return found


def fitted(results: Results, case: str) -> Fit | None:
    """Return the fit of the paper's form, None where nothing is measured."""
    found = {key: g for key, (g, _) in measured(results, case).items() if key[1] < 1}
    return rules.fit_savings(found) if len(found) > 2 else None


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw g against beta for every N with its errors, our fit, the paper's fit and its printed points."""
    found = {case: g for case in CASES if (g := measured(results, case))}
    if not found:
        return []

    def drawn(figure: Any) -> None:
        import numpy as np

        every, betas = figure.subplots(1, len(found), squeeze=False, sharey=True)[0], np.linspace(0.1, 1, 100)
        for axes, (case, points) in zip(every, found.items(), strict=True):
            layers = sorted({n for n, _ in points})
            for number, n in enumerate(layers):
                colour, aside = COLOURS[number % 4], 0.01 * (number - 1.5)  # the depths' points beside each other
                here = [(beta + aside, 100 * g, 200 * e) for (m, beta), (g, e) in points.items() if m == n]
                xs, ys, errors = zip(*here, strict=True)
                axes.errorbar(xs, ys, yerr=errors, fmt="o", ms=3, color=colour, label=f"N = {n}")
                if n in CASES[case].printed:
                    xs = tuple(beta + aside for beta in PRINTED)
                    axes.plot(xs, CASES[case].printed[n], "D", ms=5, mfc="none", color=colour)
            fits = {"the paper's fit": (CASES[case].fit, ":")}
            if fit := fitted(results, case):
                fits["our fit"] = ((fit.k1.mean, fit.k2.mean), "-")
            for words, ((k1, k2), dash) in fits.items():
                curve = rules.form((layers[0], betas), k1, k2)
                axes.plot(betas, 100 * curve, dash, lw=1, color=INK, label=f"{words}, N = {layers[0]}")
            axes.set_title(CASES[case].words, loc="left", fontsize=9)
            axes.set(xlabel="beta")
            axes.grid(True)
            axes.legend(fontsize=7)
        every[0].set(ylabel="saved of SAM's first pass, %")
        about = (results.store.lines(f"savings/{case}-{layers[0]}.jsonl") or [])[0]
        machine = f"{about['width']:,} units, batch {about['batch']}, one thread of {about['environment']['hardware']}"
        words = "filled: here, bars of two standard errors; diamonds: printed in the paper"
        figure.suptitle(f"A.4: {machine}, n = {results.scale.draws} draws\n{words}", fontsize=9)

    return write_picture(folder / "appendix4.png", drawn, width=9.0, height=4.2)


def _fitted(judge: Callable[[str, Fit, str], Verdict]) -> Judge:
    """Return the judge of both cases' fits."""

    def judge_case(results: Results, case: str) -> Verdict | None:
        fit = fitted(results, case)
        return judge(case, fit, f"{case}: {_words(fit)}") if fit is not None else None

    return on_each(CASES, judge_case, "not timed")


def _words(fit: Fit) -> str:
    return f"k1 {fit.k1.words(3, '')}, k2 {fit.k2.words(3, '')}, R² {fit.r_squared:.4f}"


def _falls_with_depth(results: Results, case: str) -> Verdict | None:
    found = measured(results, case)
    depths = sorted({layers for layers, _ in found})
    if len(depths) < 2:
        return None
    gaps = [found[depths[0], beta][0] - found[depths[-1], beta][0] for beta in results.scale.betas if beta < 1]
    gap = rules.interval([100 * value for value in gaps])
    words = f"{case}: {gap.words()} points more at N = {depths[0]} than at {depths[-1]} (n = {gap.n} betas)"
    return rules.above(gap, 0.0, words)


def _storing(results: Results, case: str) -> Verdict | None:
    """Judge that storing is most of what is saved: how much of g goes where freed memory is kept (rule 16)."""
    kept, given = measured(results, case), measured(results, case, GIVING_BACK)
    shares = [1 - kept[key][0] / given[key][0] for key in given if key in kept and key[1] < 1 and given[key][0] > 0]
    if not shares:
        return None
    found = rules.interval([100 * share for share in shares])
    return rules.above(found, 50.0, f"{case}: {found.words(0, '')} % of g goes with it (n = {found.n} betas)")


def _constant(number: int) -> Judge:
    """Return the judge that k1 (0) or k2 (1) is the paper's."""
    return _fitted(lambda case, fit, w: rules.papers_constant((fit.k1, fit.k2)[number], CASES[case].fit[number], w))


CLAIMS = (
    Claim("g(N, beta) has the paper's form", "R² .9983, .9989", _fitted(lambda _, fit, w: rules.form_holds(fit, w))),
    Claim("k1", "0.3185, 0.3143", _constant(0)),
    Claim("k2", "0.1310, 0.0737", _constant(1)),
    Claim("SWP saves less in deeper nets", "slightly", on_each(CASES, _falls_with_depth, "not timed")),
    Claim("Storing and hooking dominate what SWP saves", "the dominant factor", on_each(CASES, _storing, "not timed")),
)
