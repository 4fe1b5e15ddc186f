"""Faults, wherever they strike before the base moves: does one leave a trace? ``benchmarks/faults.py`` injects more."""

import signal
import threading

import pytest
from faults import PLACES, ROWS, inject

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
