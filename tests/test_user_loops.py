"""Loops as users write them: the traps that were silent, one by one. Each name is the case and what happens now."""

import itertools
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from conftest import assert_same, normalised, problem, sgd
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from esam import ESAM, METHODS, SAM, GuidanceWarning, SliceSAM


def halves(p):
    return [(p.x[:6], p.y[:6]), (p.x[6:], p.y[6:])]


# Closures that are called again later ------------------------------------------------------------------------------


def test_a_prefetched_batch_is_refused_and_bound_or_handed_over_ones_are_not():
    (p, q, r), seen = (problem() for _ in range(3)), []
    x, y = p.x, p.y
    optimizers = [SAM(sgd(t), t.model) for t in (p, q, r)]
    optimizers[0].accumulate(lambda keep: p.loss_of(x[keep], y[keep]))
    optimizers[1].accumulate(lambda keep, x=x, y=y: q.loss_of(x[keep], y[keep]))
    optimizers[2].accumulate(r.loss_of, x, y)
    x, y = torch.randn_like(x), y.roll(1)
    for optimizer in optimizers:
        try:
            optimizer.gradient()
            optimizer.step()
        except ValueError as error:
            seen.append(str(error))
    assert len(seen) == 1 and "accumulate(loss_of, x, y)" in seen[0]
    assert_same(q.weights, r.weights)


def test_a_closure_may_carry_something_out():
    p = problem()
    optimizer, outputs = SAM(sgd(p), p.model), None

    def closure(keep, x, y):
        nonlocal outputs
        outputs = p.model(x[keep])
        return F.cross_entropy(outputs, y[keep])

    for x, y in halves(p):
        optimizer.accumulate(lambda keep, x=x, y=y: closure(keep, x, y))
    assert optimizer.gradient().isfinite()
    optimizer.step()


# zero_grad ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [SliceSAM, lambda b, m: SAM(b, m, m=4)], ids=["slicesam", "sam in groups"])
def test_zero_grad_in_the_loss_function_does_nothing_to_the_step(make):
    """Before: it wiped g_B - g_S, a gradient off by 208 %."""
    p, q = problem(), problem()
    one, other = make(sgd(p), p.model), make(sgd(q), q.model)

    def loss_of(x, y):
        one.zero_grad()
        return p.loss_of(x, y)

    for _ in range(3):
        p.step(one, loss_of)
        q.step(other)
        one.zero_grad()
    assert_same(p.weights, q.weights)


def test_clearing_the_models_gradients_in_the_loss_function_is_refused():
    p = problem()
    optimizer, weights = SliceSAM(sgd(p), p.model), p.weights

    def loss_of(x, y):
        p.model.zero_grad()
        return p.loss_of(x, y)

    with pytest.raises(ValueError, match="zero_grad"):
        p.step(optimizer, loss_of)
    assert_same(p.weights, weights)


# Losses that are not a mean over samples ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["base", "sam", "looksam", "slicesam", "base-part", "esam-random"])
def test_a_sum_is_the_mean_times_the_batch(name):
    """At lr / 12 a step by the sum is the step by the mean. Before: 0.78 of it, in silence."""
    p, q = problem(), problem()
    by_mean = METHODS[name](torch.optim.SGD(p.model.parameters(), lr=0.12), p.model, seed=1)
    by_sum = METHODS[name](torch.optim.SGD(q.model.parameters(), lr=0.01), q.model, seed=1, loss="sum")
    for _ in range(3):
        for t, optimizer, reduced in ((p, by_mean, torch.mean), (q, by_sum, torch.sum)):
            for x, y in halves(t):
                optimizer.accumulate(lambda x, y, t=t, reduced=reduced: reduced(t.loss_of(x, y)), x, y)
        mean, total = by_mean.gradient(), by_sum.gradient()
        assert float(total) == pytest.approx(float(mean) * (6 if name == "base-part" else 12), rel=1e-12)
        by_mean.step()
        by_sum.step()
    assert_same(p.weights, q.weights, 1e-12)


@pytest.mark.parametrize("name", ["slicesam", "sam"])
def test_a_loss_over_pairs_is_never_cut_where_it_is_declared_whole(name):
    p, sizes = problem(), []
    optimizer = METHODS[name](sgd(p), p.model, loss="whole")

    def loss_of(x):
        sizes.append(len(x))
        z = F.normalize(p.model(x), dim=1)
        return F.cross_entropy(z @ z.T, torch.arange(len(x)))

    for _ in range(2):
        optimizer.step(loss_of, p.x)
    assert sizes == [12] * 4


def test_a_loss_of_shape_one_is_a_scalar():
    p, q = problem(), problem()
    p.step(SliceSAM(sgd(p), p.model, seed=0), lambda x, y: p.loss_of(x, y).mean().reshape(1))
    q.step(SliceSAM(sgd(q), q.model, seed=0), lambda x, y: q.loss_of(x, y).mean())
    assert_same(p.weights, q.weights)


# Interrupts --------------------------------------------------------------------------------------------------------


def test_an_exception_that_is_kept_does_not_bring_old_weights_back():
    """Jupyter keeps the last one. Before: theta of then was written over trained weights when it was dropped."""
    p = problem()
    optimizer, calls = SAM(sgd(p), p.model), itertools.count()

    def broken(x, y):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return p.loss_of(x, y)

    try:
        p.step(optimizer, broken)
    except KeyboardInterrupt as error:
        kept = error
    for _ in range(3):
        p.step(optimizer)
    weights = p.weights
    del kept
    sys.exc_info()
    assert_same(p.weights, weights)


# Smaller ones -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4])
def test_tiny_micro_batches_make_slicesam_cost_its_share(size):
    """Before: micro-batches of 1 ran 64 samples for a batch of 32."""
    p = problem(batch=32)
    optimizer, ran = SliceSAM(sgd(p), p.model, share=0.125), []
    for x, y in zip(p.x.split(size), p.y.split(size), strict=True):
        optimizer.accumulate(lambda x, y: ran.append(len(x) * torch.is_grad_enabled()) or p.loss_of(x, y), x, y)
    optimizer.gradient()
    assert sum(ran) == 32 + 4


def test_autocast_around_accumulate_alone_holds_in_the_second_pass():
    p = problem(dtype=torch.float32)
    optimizer, seen = SAM(sgd(p), p.model), []
    p.model[0].register_forward_hook(lambda m, i, output: seen.append(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        optimizer.accumulate(p.loss_of, p.x, p.y)
    optimizer.gradient()
    assert seen == [torch.bfloat16, torch.bfloat16]


def test_momentum_sam_refuses_a_base_without_momentum():
    for base in (torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.Rprop, torch.optim.ASGD):
        p = problem()
        optimizer = METHODS["msam"](base(p.model.parameters()), p.model)
        p.step(optimizer)  # nobody can tell before the first step
        with pytest.raises(ValueError, match="momentum"):
            p.step(optimizer)


def test_a_model_that_holds_a_part_of_what_the_base_trains_is_warned_of():
    towers = nn.Linear(2, 2), nn.Linear(2, 2)
    base = torch.optim.SGD([q for tower in towers for q in tower.parameters()], lr=0.1)
    with pytest.warns(GuidanceWarning, match="ModuleList"):
        SAM(base, towers[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SAM(base, nn.ModuleList(towers))


# Crashes and messages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "batch"),
    [(SliceSAM, 3), (lambda b, m: SliceSAM(b, m, share=0.9), 8), (METHODS["base-part"], 3),
     (lambda b, m: SAM(b, m, m=4), 9), (lambda b, m: ESAM(b, m, m=4), 9)],
)  # fmt: skip
def test_batchnorm_never_sees_a_part_of_one_sample(make, batch):
    """Before: "Expected more than 1 value per channel", with the README's own net and a last batch of 3."""
    p = problem(normalised, batch=batch)
    assert p.step(make(sgd(p), p.model)).isfinite()


def test_sparse_gradients_stay_sparse_for_a_base_that_wants_them():
    """Before: SparseAdam "does not support dense gradients". With nothing dense to reuse, LookSAM is SAM."""
    ends = {}
    for name in ("slicesam", "ae-sam", "sam", "looksam"):
        torch.manual_seed(0)
        model, rows = nn.EmbeddingBag(20, 4, sparse=True), torch.randint(20, (16, 3))
        optimizer = METHODS[name](torch.optim.SparseAdam(model.parameters(), lr=0.01), model)
        for _ in range(6):
            assert optimizer.step(lambda x, model=model: model(x).square().sum(1), rows).isfinite()
            assert model.weight.grad.is_sparse
        ends[name] = model.weight.detach()
    assert torch.equal(ends["looksam"], ends["sam"])


class CountingCopies(TorchDispatchMode):
    """Counts the large tensors that are copied."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), settings=None):
        if "clone" in str(function) or "copy" in str(function):
            tensors = [t for a in arguments for t in (a if isinstance(a, list) else [a]) if isinstance(t, torch.Tensor)]
            self.count += any(t.numel() >= 2**17 for t in tensors)
        return function(*arguments, **(settings or {}))


def test_a_constant_buffer_is_copied_no_more_once_it_is_known():
    """Before: one of 64 MB made a step take 308 ms where SGD takes 0.85."""
    p = problem()
    p.model.register_buffer("mask", torch.zeros(2**17))
    optimizer = SAM(sgd(p), p.model)
    for _ in range(3):
        p.step(optimizer)
    with CountingCopies() as copies:
        p.step(optimizer)
    assert copies.count == 0
