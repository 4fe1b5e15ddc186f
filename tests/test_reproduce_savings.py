"""Are SWP's savings measured and fitted as hand-worked numbers say?"""

import ctypes
import platform
import subprocess
import sys

import pytest
import torch

from esam.paper.engine.scale import ToyMLPs
from esam.paper.items.savings_timing import (
    CASES,
    WARM_UP,
    Saving,
    ToyMLP,
    fit_savings,
    keep_freed_memory,
    measure_savings,
    predicted,
)


def exact_savings(k1, k2, noise=0.0):
    torch.manual_seed(0)
    rows = [(n, b / 10) for n in (50, 75, 100, 125) for b in range(1, 11)]
    g = [k1 * (1 - b) + k2 * (1 - b) / (n * b) + noise * torch.randn(()).item() for n, b in rows]
    return [Saving(n, b, value, 0.0, 1) for (n, b), value in zip(rows, g, strict=True)]


def test_the_fit_finds_the_numbers_that_the_savings_were_made_with():
    fit = fit_savings(exact_savings(0.3185, 0.1310))
    assert (fit.k1, fit.k2, fit.r_squared) == pytest.approx((0.3185, 0.1310, 1.0), rel=1e-9)
    assert predicted(fit, 50, 0.1) == pytest.approx(0.3185 * 0.9 + 0.1310 * 0.9 / 5)


def test_noise_lowers_r_squared():
    fit = fit_savings(exact_savings(0.3, 0.1, noise=0.05))
    assert 0.5 < fit.r_squared < 0.9
    assert fit.k1 == pytest.approx(0.3, abs=0.1) and abs(fit.k2 - 0.1) < 3 * fit.k2_error


def test_r_squared_by_hand():
    # g against beta at N = 1: (1 - b, (1 - b) / b) = (.5, 1), (.2, .25), (0, 0); the last one cannot be explained
    savings = [Saving(1, 0.5, 1.0, 0, 1), Saving(1, 0.8, 0.25, 0, 1), Saving(1, 1.0, 0.5, 0, 1)]
    fit = fit_savings(savings)
    assert (fit.k1, fit.k2) == pytest.approx((0, 1), abs=1e-9)
    mean = 1.75 / 3
    assert fit.r_squared == pytest.approx(1 - 0.25 / ((1 - mean) ** 2 + (0.25 - mean) ** 2 + (0.5 - mean) ** 2))
    assert fit.k2_error == pytest.approx((0.25 * 0.29 / 0.005625) ** 0.5)  # sqrt(residual * inverse of X'X at k2)
    assert fit_savings(savings[:2]).k2_error is None


@pytest.mark.parametrize("case", CASES)
def test_savings_are_measured_for_every_depth_and_beta(case):
    seen = []
    toys = ToyMLPs(width=8, draws=4, batch=4, betas=(0.1, 1.0))
    found = measure_savings([2, 4], CASES[case], toys, lambda *p: seen.append(p))
    assert [(s.layers, s.beta, s.draws) for s in found] == [(2, 0.1, 4), (2, 1.0, 4), (4, 0.1, 4), (4, 1.0, 4)]
    assert all(s.saved < 1 and s.error >= 0 for s in found)
    assert seen[-1] == (8, 8)


def test_swp_asks_for_the_drawn_gradients_alone_and_saves_a_ratio_of_total_times(monkeypatch):
    clock, grad, asked = [0.0], torch.autograd.grad, []

    def takes(loss, inputs):
        """Take a second for each tensor whose gradient is asked for."""
        clock[0] += len(inputs)
        asked.append(len(inputs))
        return grad(loss, inputs)

    monkeypatch.setattr(torch.autograd, "grad", takes)
    monkeypatch.setattr("esam.paper.items.savings_timing.time.process_time", lambda: clock[0])
    drawn, check = measure_savings([40], CASES["serial"], ToyMLPs(width=2, draws=4, batch=2, betas=(0.1, 1.0)))
    counted = asked[WARM_UP * 3 :]
    few = [count for count in counted if count < 40]
    assert len(counted) == 12 and len(few) == 4 and max(few) < 20
    assert drawn.saved == pytest.approx(1 - sum(few) / 160) and drawn.error > 0
    assert (check.saved, check.error) == (0, 0)
    assert {tuple(count == 40 for count in counted[at : at + 3]) for at in range(0, 12, 3)} - {(True, True, False)}


def test_freed_memory_can_be_kept_where_the_c_library_knows_how_to(monkeypatch):
    # in a process of its own, for it lasts
    program = "from esam.paper.items.savings_timing import keep_freed_memory; print(keep_freed_memory())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == str(sys.platform == "linux" and platform.libc_ver()[0] == "glibc")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert not keep_freed_memory()


@pytest.mark.parametrize("case", CASES)
def test_a_network_has_as_many_units_a_layer_as_its_case_says(case):
    network = ToyMLP(3, 4, CASES[case])
    assert len(list(network.parameters())) == {"serial": 3, "crossed": 6}[case]
    network(torch.ones(2, 4)).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


@pytest.mark.parametrize("case", CASES)
def test_signals_and_gradients_neither_fade_nor_burst_in_a_deep_network(case):
    torch.manual_seed(0)
    network = ToyMLP(125, 64, CASES[case])
    network(torch.randn(32, 64)).square().mean().backward()
    sizes = [float(p.grad.norm()) for p in network.parameters()]
    assert min(sizes) > 1e-4
    assert max(sizes) < 1e4
