"""Faults, wherever they strike before the base moves: does one leave a trace? ``benchmarks/faults.py`` injects more."""

import copy
import random
import signal
import threading
from collections import Counter

import pytest
import torch
from faults import PLACES, ROWS, Breaking, Run, Struck, differences, inject

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def interrupts_raise():
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("row", ROWS)
def test_no_fault_leaves_a_trace_and_the_next_step_is_an_undisturbed_twins(row):
    struck, left = inject(row, 100)
    assert left == []
    assert set(struck) == set(PLACES), struck


VALUES = {"nan": (float("nan"), 2.0**10), "inf": (float("inf"), 2.0**10), "overflow": (1e300, 2.0**100)}
"""By what the losses of one pass are multiplied, and the scale."""


@pytest.mark.parametrize("row", ROWS)
def test_a_pass_that_is_not_finite_moves_no_weight_and_poisons_no_later_step(row):
    run, twin = Run(row), Run(row)
    chance = random.Random(row)
    skipped = Counter()
    for attempt in range(30):
        kind = list(VALUES)[attempt % 3]
        factor, scale = VALUES[kind]
        form = chance.choice(["step", "list", "phases"])
        run.fault = Breaking("value", chance.randint(1, 4), Struck(factor))
        before = copy.deepcopy(run.everything())
        run.step(form, attempt, scale)
        if not run.fault.struck:  # fewer passes than that
            twin.step(form, attempt, scale)
        else:
            assert not run.moved
            skipped[kind] += 1
            assert (
                differences(
                    dict(run.model.named_parameters()),
                    {name: before["weights and buffers"][name] for name, _ in run.model.named_parameters()},
                )
                == []
            )
            assert (
                differences(
                    run.optimizer.base.state_dict()["state"],
                    {
                        n: {"momentum_buffer": own["momentum_buffer"]}
                        for n, own in before["optimizer and generator"]["state"].items()
                        if "momentum_buffer" in own
                    },
                )
                == []
            )
            # what it drew and the statistics of its first pass stay, as the base's own would
            twin.model.load_state_dict(copy.deepcopy(run.model.state_dict()))
            twin.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
        run.fault = Breaking()
        run.step(form, attempt)
        twin.step(form, attempt)
        assert run.moved
        assert all(torch.isfinite(t).all() for t in run.model.state_dict().values())
        assert differences(run.everything(), twin.everything()) == [], kind
    assert min(skipped[kind] for kind in VALUES) > 0, skipped
