"""A.4: how much does SWP save? MLPs of N layers of 3,000 units; g(N, beta) = k1 (1 - beta) + k2 (1 - beta) / (N beta).

"k1 = 0.3185, k2 = 0.1310, R2 = 0.9983" for one unit a layer, "k1 = 0.3143, k2 = 0.0737, R2 = 0.9989" for several with
cross connections; "the storing and hooking gradients are the dominant factor". Ours is the processor time of SAM's
first pass and its backward on one CPU thread, on random inputs and a squared output (the paper: CIFAR-10, and it does
not tell what its percentage is of). At that width a process takes up to 11 GB.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from esam.analysis.picture import write_picture
from esam.train.record import environment

from . import rules
from .hyperparameters import Scale
from .jobs import Job
from .results import Claim, Judge, Results, on_each
from .rules import Fit, Verdict
from .store import Store

NUMBER, TITLE = "Tables of A.4", "What SWP saves: g(N, beta) on MLPs"
CASES = {"serial": 1, "crossed": 2}
"""Units a layer."""
WORDS = {"serial": "one unit a layer", "crossed": "two units a layer, cross connections"}
PAPER_FITS = {"serial": (0.3185, 0.1310), "crossed": (0.3143, 0.0737)}
PAPER = {
    "serial": {
        50: {0.9: 3.42, 0.5: 16.28, 0.1: 30.08},
        75: {0.9: 3.44, 0.5: 15.79, 0.1: 30.42},
        100: {0.9: 3.37, 0.5: 15.86, 0.1: 29.56},
        125: {0.9: 2.94, 0.5: 14.87, 0.1: 29.42},
    },
    "crossed": {
        25: {0.9: 2.88, 0.5: 15.54, 0.1: 30.03},
        50: {0.9: 2.34, 0.5: 15.10, 0.1: 29.83},
        65: {0.9: 2.23, 0.5: 14.95, 0.1: 29.22},
        75: {0.9: 2.22, 0.5: 15.10, 0.1: 28.68},
    },
}
"""g(N, beta) as printed, in per cent."""
BATCH = 128


class ToyMLP(nn.Module):
    """Equal layers, each the sum of what its units make of the layers before it, one unit for each of them."""

    def __init__(self, layers: int, width: int, units: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(units)) for _ in range(layers)
        )
        for weight in self.parameters():  # torch's own fade with depth, into numbers that a CPU is slow with
            nn.init.normal_(weight, std=(2 / width / units) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width) to the same shape."""
        before: list[Tensor] = [x] * len(self.layers[0])  # type: ignore[arg-type]
        for units in self.layers:
            made = [unit(h) for unit, h in zip(units, before, strict=True)]  # type: ignore[call-overload]
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
        network = ToyMLP(self.layers, scale.width, CASES[self.case])
        weights, x = list(network.parameters()), torch.randn(BATCH, scale.width)
        names = ["sam", *(f"{beta:g}" for beta in scale.betas)]
        _pass_seconds(network, weights, x, range(len(weights)))
        for draw in range(len(done), scale.draws):
            generator, seconds = torch.Generator().manual_seed(1_000 * self.layers + draw), {}
            for at in torch.randperm(len(names), generator=generator).tolist():
                picks: Sequence[int] = range(len(weights))
                if names[at] != "sam" and float(names[at]) < 1:
                    drawn = (torch.rand(len(weights), generator=generator) < float(names[at])).nonzero().flatten()
                    picks = drawn.tolist() or [int(torch.randint(len(weights), (1,), generator=generator))]
                seconds[names[at]] = float(f"{_pass_seconds(network, weights, x, picks):.5g}")
            done.append({"draw": draw, **seconds})
            store.write(work, done)
        about = {"width": scale.width, "batch": BATCH, "layers": self.layers, "environment": environment("cpu")}
        store.write(f"{self.name}.jsonl", [about, *done])
        (store.folder / work).unlink(missing_ok=True)


def _pass_seconds(network: nn.Module, weights: Sequence[Tensor], x: Tensor, picks: Sequence[int]) -> float:
    """Return the processor time of SAM's first pass: forward, and backward to the drawn tensors alone."""
    chosen = set(picks)
    for number, weight in enumerate(weights):
        weight.requires_grad_(number in chosen)
    start = time.process_time()
    torch.autograd.grad(network(x).square().mean(), [weights[number] for number in sorted(chosen)])
    return time.process_time() - start


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees; tell whether the C library can (glibc)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return False
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # the parameters of malloc.h
    sizes = {trim_threshold: 2**31 - 1, top_pad: 2**28, mmap_threshold: 2**30}
    return bool(min(mallopt(parameter, size) for parameter, size in sizes.items()))


def jobs(scale: Scale) -> Sequence[Job]:
    """Return a job for each case and depth; and the smallest depth again in a process that gives memory back."""
    depths = {"serial": scale.serial, "crossed": scale.crossed}
    found = [Savings(f"savings/{case}-{n}", case, n) for case, ns in depths.items() for n in ns]
    again = [Savings(f"savings/{case}-{ns[0]}-giving-back", case, ns[0], False) for case, ns in depths.items()]
    return [*found, *again]


def measured(results: Results, case: str, suffix: str = "") -> dict[tuple[int, float], tuple[float, float]]:
    """Return g(N, beta) by ratios of total times, with its standard error by the draws' deviations."""
    found = {}
    depths = results.scale.serial if case == "serial" else results.scale.crossed
    for layers in depths:
        _, *draws = results.store.lines(f"savings/{case}-{layers}{suffix}.jsonl") or [{}]
        for beta in results.scale.betas if len(draws) > 1 else ():
            swp, sam = [d[f"{beta:g}"] for d in draws], [d["sam"] for d in draws]
            ratio = sum(swp) / sum(sam)
            off = rules.interval([a - ratio * b for a, b in zip(swp, sam, strict=True)])
            error = off.half / rules.quantile(0.975, off.n) * len(draws) / sum(sam)
            found[layers, beta] = (1 - ratio, error)
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
            depths = sorted({layers for layers, _ in points})
            for number, layers in enumerate(depths):
                style = {"color": ("#1f6fb4", "#0d8f58", "#d2731d", "#c4273a")[number % 4]}
                aside = 0.01 * (number - 1.5)  # the depths' points beside each other
                here = [(beta + aside, 100 * g, 200 * e) for (n, beta), (g, e) in points.items() if n == layers]
                xs, ys, errors = zip(*here, strict=True)
                axes.errorbar(xs, ys, yerr=errors, fmt="o", ms=3, label=f"N = {layers}", **style)
                printed = PAPER[case].get(layers, {})
                axes.plot([b + aside for b in printed], list(printed.values()), "D", ms=5, mfc="none", **style)
            lines = {"paper's": (PAPER_FITS[case], ":")}
            if (fit := fitted(results, case)) is not None:
                lines["our"] = ((fit.k1.mean, fit.k2.mean), "-")
            for whose, ((k1, k2), dash) in lines.items():
                curve = 100 * (k1 * (1 - betas) + k2 * (1 - betas) / (depths[0] * betas))
                axes.plot(betas, curve, dash, lw=1, color="#39424d", label=f"{whose} fit, N = {depths[0]}")
            axes.set_title(WORDS[case], loc="left", fontsize=9)
            axes.set(xlabel="beta")
            axes.grid(True)
            axes.legend(fontsize=7)
        every[0].set(ylabel="saved of SAM's first pass, %")
        about = (results.store.lines(f"savings/{case}-{depths[0]}.jsonl") or [])[0]
        machine = f"{about['width']:,} units, batch {about['batch']}, one thread of {about['environment']['hardware']}"
        words = "filled: here, bars of two standard errors; diamonds: printed in the paper"
        figure.suptitle(f"A.4: {machine}\n{words}", fontsize=9)

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
    kept, given = measured(results, case), measured(results, case, "-giving-back")
    shares = [1 - kept[key][0] / given[key][0] for key in given if key in kept and key[1] < 1 and given[key][0] > 0]
    if not shares:
        return None
    found = rules.interval([100 * share for share in shares])
    return rules.above(found, 50.0, f"{case}: {found.words(0, '')} % of g goes with it (n = {found.n} betas)")


def _constant(number: int) -> Judge:
    """Return the judge that k1 (0) or k2 (1) is the paper's."""
    return _fitted(lambda case, fit, w: rules.papers_constant((fit.k1, fit.k2)[number], PAPER_FITS[case][number], w))


CLAIMS = (
    Claim("g(N, beta) has the paper's form", "R² .9983, .9989", _fitted(lambda _, fit, w: rules.form_holds(fit, w))),
    Claim("k1", "0.3185, 0.3143", _constant(0)),
    Claim("k2", "0.1310, 0.0737", _constant(1)),
    Claim("SWP saves less in deeper nets", "slightly", on_each(CASES, _falls_with_depth, "not timed")),
    Claim("Storing and hooking dominate what SWP saves", "the dominant factor", on_each(CASES, _storing, "not timed")),
)
