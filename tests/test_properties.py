"""What must hold whatever the network, the batch and the settings are."""

import functools
import itertools
import math

import torch
import torch.nn.functional as F
from conftest import PERTURBING, assert_same
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from torch import nn

from esam import ASAM, ESAM, METHODS, SAM, LookSAM
from esam.optim import reference
from esam.optim.selection import keep_highest

steady = settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=30,
    phases=[Phase.explicit, Phase.generate],  # the examples are small: shrinking one takes minutes and gains little
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

# What is drawn --------------------------------------------------------------------------------------------------------

FEATURES, CLASSES = 4, 3


shares = st.sampled_from([0.01, 0.25, 0.5, 0.6, 0.75, 1.0])
nets = st.fixed_dictionaries(
    {"widths": st.lists(st.integers(1, 8), min_size=1, max_size=3), "seed": st.integers(0, 99)}
)


def build(net):
    torch.manual_seed(net["seed"])
    sizes = [FEATURES, *net["widths"], CLASSES]
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1]).double()


@st.composite
def methods(draw):
    name = draw(st.sampled_from(sorted({*PERTURBING} - {"sam-on", "slicesam", "ae-sam", "msam"})))
    if METHODS[name].build is ESAM:
        drawn = {"beta": draw(shares), "gamma": draw(shares), "norm": draw(st.sampled_from(["full", "selected"]))}
        drawn |= {"ranking": draw(st.sampled_from(["exact", "random"]))}
        drawn |= {"mask": draw(st.sampled_from(["independent", "suffix"]))}
    elif METHODS[name].build is LookSAM:
        drawn = {"k": draw(st.integers(1, 3))}
    else:
        drawn = {}
    return name, {**drawn, **METHODS[name].settings}


def fixed_batch(size, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, FEATURES, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, CLASSES, (size,), generator=generator)


@st.composite
def batches(draw, most=9):
    """Inputs and targets; ``ties`` repeats the first sample."""
    size = draw(st.integers(1, most))
    x, y = fixed_batch(size, draw(st.integers(0, 99)))
    if draw(st.booleans()):
        ties = draw(st.integers(1, size))
        x[:ties], y[:ties] = x[0], y[0]
    return x, y


class Run:
    """A model, its optimizer and a batch in micro-batches; what the closures were called with is in ``calls``."""

    def __init__(self, net, method, batch, *, frozen=0, unperturbed=0, m=None, cuts=()):
        name, settings = method
        self.model, self.calls = build(net), []
        self.bounds = list(itertools.pairwise([0, *sorted(c for c in cuts if c < len(batch[1])), len(batch[1])]))
        self.parts = [tuple(t[a:b] for t in batch) for a, b in self.bounds]
        parameters = list(self.model.parameters())
        for n, p in enumerate(parameters[:-1]):  # the last one always trains
            p.requires_grad_(not frozen >> n & 1)
        groups = [{"params": [p], "perturb": not unperturbed >> n & 1} for n, p in enumerate(parameters)]
        base = torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=1e-2)
        settings = settings if m is None or name == "looksam" else {**settings, "m": m}
        self.optimizer = METHODS[name].build(base, self.model, seed=5, **settings)

    def losses(self, x, y, keep):
        self.calls.append((keep, len(y)))
        return F.cross_entropy(self.model(x[keep]), y[keep], reduction="none")

    def step(self):
        closures = [functools.partial(self.losses, *part) for part in self.parts]
        return self.optimizer.step(closures, batch_size=[b - a for a, b in self.bounds])

    @property
    def weights(self):
        return [p.detach().clone() for p in self.model.parameters()]


# Which samples --------------------------------------------------------------------------------------------------------

numbers = st.floats(width=32), st.sampled_from([0.0, 1.0, float("inf"), -float("inf"), float("nan")])
whole_numbers = st.integers(-(2**53), 2**53)  # of a user's own ranking: compared exactly
scores = st.one_of(*(st.lists(kind, min_size=1, max_size=9) for kind in (*numbers, whole_numbers)))


@settings(steady, max_examples=100)
@given(scores=scores, gamma=st.floats(1e-6, 1))
@example(scores=[float("nan"), -float("inf")], gamma=0.5)  # NaN after minus infinity, too
@example(scores=[1.0, 1.0, 1.0, 1.0, 1.0], gamma=0.5)  # 2.5 rounds to 2
@example(scores=[2**24, 2**24 + 1], gamma=0.5)
def test_the_highest_scores_are_kept_ties_by_lower_index_nan_last(scores, gamma):
    kept = keep_highest(torch.tensor(scores), gamma)
    numbers = [i for i, score in enumerate(scores) if not math.isnan(score)]
    order = sorted(numbers, key=lambda i: (-scores[i], i)) + [i for i in range(len(scores)) if i not in numbers]
    assert kept.dtype == torch.int64
    assert kept.tolist() == sorted(order[: max(1, round(gamma * len(scores)))])


# Which tensors --------------------------------------------------------------------------------------------------------


@steady
@given(
    net=nets,
    method=methods(),
    batch=batches(),
    frozen=st.integers(0, 63),
    unperturbed=st.integers(0, 63),
    m=st.sampled_from([None, 1, 2, 4]),
    cuts=st.sets(st.integers(1, 8), max_size=2),
)
def test_closures_see_sorted_indices_of_their_samples_and_tensors_that_are_frozen_or_not_perturbed_stay(
    net, method, batch, frozen, unperturbed, m, cuts
):
    run = Run(net, method, batch, frozen=frozen, unperturbed=unperturbed, m=m, cuts=cuts)
    parameters, start = list(run.model.parameters()), run.weights

    def watch(*_):
        for n, (w, t) in enumerate(zip(parameters, theta, strict=True)):
            assert torch.equal(w, t) or (w.requires_grad and not unperturbed >> n & 1)

    run.model.register_forward_pre_hook(watch)
    for _ in range(3):
        theta = run.weights
        run.step()
    for p, at_start in zip(parameters, start, strict=True):
        assert p.requires_grad or (torch.equal(p, at_start) and p.grad is None)
    for keep, size in run.calls:
        if isinstance(keep, slice):
            assert keep == slice(None)
        else:
            assert keep.dtype == torch.int64 and keep.dim() == 1 and len(keep) >= 1 and keep.is_cpu
            assert keep.tolist() == sorted(set(keep.tolist())) and 0 <= int(keep[0]) <= int(keep[-1]) < size


@steady
@given(
    net=nets,
    batch=batches(),
    radii=st.lists(st.sampled_from([0.0, 0.01, 0.05, 0.5, None]), min_size=8, max_size=8),
    adaptive=st.booleans(),
)
def test_each_tensor_moves_by_its_own_groups_radius_along_the_shared_direction(net, batch, radii, adaptive):
    """None stands for perturb=False. The norm is that of the gradient of all tensors with a radius."""
    model = build(net)
    parameters = list(model.parameters())
    radii = radii[: len(parameters)]
    groups = [
        {"params": [p], "perturb": False} if r is None else {"params": [p], "sam_rho": r}
        for p, r in zip(parameters, radii, strict=True)
    ]
    base = torch.optim.SGD(groups, lr=0.1)
    optimizer = ASAM(base, model, rho=0.3, eta=0.1) if adaptive else SAM(base, model, rho=0.3)
    x, y = batch
    seen = []

    def closure(keep):
        seen.append([p.detach().clone() for p in parameters])
        return F.cross_entropy(model(x[keep]), y[keep], reduction="none")

    gradients = torch.autograd.grad(closure(slice(None)).mean(), parameters)
    t = [p.detach().abs() + 0.1 if adaptive else torch.ones_like(p) for p in parameters]
    norm = reference.norm([a * g for a, g, r in zip(t, gradients, radii, strict=True) if r])
    seen.clear()
    optimizer.step(closure)
    if not any(radii):
        assert len(seen) == 1
        return
    for theta, moved, a, g, r in zip(seen[0], seen[1], t, gradients, radii, strict=True):
        torch.testing.assert_close(moved - theta, (r or 0.0) * a * a * g / norm, rtol=0, atol=1e-12)


# Batches in pieces ----------------------------------------------------------------------------------------------------


@steady
@given(net=nets, sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), m=st.integers(1, 12))
@example(net={"widths": [2], "seed": 0}, sizes=[2, 2], m=2)
def test_groups_of_m_samples_in_order_each_take_sams_step_by_themselves_and_run_twice(net, sizes, m):
    ends = list(itertools.accumulate(sizes, initial=0))
    x, y = fixed_batch(ends[-1], net["seed"])
    run, model = Run(net, ("sam", {}), (x, y), m=m, cuts=ends[1:-1]), build(net)
    weights = list(model.parameters())
    total = [torch.zeros_like(w) for w in weights]
    groups = [range(i, min(i + m, b)) for a, b in itertools.pairwise(ends) for i in range(a, b, m)]
    for group in groups:
        losses = lambda keep, own=list(group): F.cross_entropy(model(x[own][keep]), y[own][keep], reduction="none")  # noqa: E731
        for t, g in zip(total, reference.sam(losses, weights, 0.05), strict=True):
            t += g * len(group) / len(y)
    run.step()
    assert_same([w.grad for w in run.model.parameters()], total, 1e-12)
    assert len(run.calls) == 2 * len(groups) + any(size > m for size in sizes)  # once, a whole beside its parts


@settings(steady, max_examples=60)
@given(net=nets, method=methods(), cuts=st.sets(st.integers(1, 8), min_size=1, max_size=4))
def test_micro_batches_equal_the_one_big_batch_for_any_split(net, method, cuts):
    batch = fixed_batch(9, net["seed"])
    whole, split = Run(net, method, batch), Run(net, method, batch, cuts=cuts)
    for _ in range(3):
        torch.testing.assert_close(whole.step(), split.step(), rtol=0, atol=1e-12)
    assert_same(whole.weights, split.weights, 1e-12)
