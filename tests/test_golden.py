"""Does every public method still train as it did? Curves written at commit b9cb734, before the core was rebuilt.

Tolerance: one rounding of the weights before the first step changes no number here by more than 1e-13 of its size
(``test_one_rounding_stays_far_below_the_tolerance``), so 1e-12 leaves room for other processors' kernels and for sums
in another order, and for nothing else.
"""

import functools
import json

import golden
import pytest
import torch
from two_ranks import needs_gloo, on_two_ranks

TOLERANCE = 1e-12


@functools.cache
def recorded():
    return json.loads(golden.FILE.read_text())


def distance(seen, wanted):
    """Return the largest relative difference; of sums, relative to the norm of what is summed."""
    largest = max(abs(a - b) / abs(b) for a, b in zip(seen["losses"], wanted["losses"], strict=True))
    for kind in ("weights", "evaluated", "buffers", "gradient"):
        size = wanted[kind][0] or 1.0
        largest = max(largest, *(abs(a - b) / size for a, b in zip(seen[kind], wanted[kind], strict=True)))
    return largest


@pytest.mark.parametrize(("name", "net", "parts"), golden.cases())
def test_every_method_trains_as_recorded(name, net, parts):
    seen = golden.curve(name, net, micro_batches=parts)
    assert distance(seen, recorded()[f"{name} {net} {parts}"]) < TOLERANCE


@needs_gloo
@pytest.mark.slow
def test_two_ranks_train_as_recorded(tmp_path):
    for rank, seen in enumerate(on_two_ranks(tmp_path, golden.rank_cases)):
        for case, _ in golden.rank_cases(rank):
            assert distance(seen[case], recorded()[f"{case} rank {rank}"]) < TOLERANCE, (case, rank)


@pytest.mark.parametrize("net", golden.NETS)
@pytest.mark.parametrize("name", ["sam", "esam", "slicesam"])
def test_one_rounding_stays_far_below_the_tolerance(name, net, monkeypatch):
    def rounded(name):
        model = build(name)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 + torch.finfo(p.dtype).eps)
        return model

    build = golden.built
    monkeypatch.setattr(golden, "built", rounded)
    assert distance(golden.curve(name, net), recorded()[f"{name} {net} 1"]) < TOLERANCE / 10


def test_the_curves_cover_every_public_method():
    assert set(golden.METHODS) == {name.split(",")[0] for name in golden.SETTINGS}
