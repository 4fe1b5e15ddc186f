"""DistributedDataParallel on two ranks: does a step mean the same on every rank, and the same as in one process?

One pair of processes runs every case and saves what it saw; the tests read it.
"""

import contextlib
import functools
import itertools
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from two_ranks import (
    BATCH,
    RANKS,
    SEVERAL,
    ESAMByHand,
    assert_near,
    assert_same,
    batch_of,
    closures_of,
    distance,
    joined,
    mlp,
    needs_gloo,
    on_two_ranks,
    sgd,
    take_step,
    train,
    whole_weights,
    why_refused,
)

from esam import METHODS, SAM

pytestmark = [needs_gloo, pytest.mark.slow]

STEPS = range(4)
RHO = 0.2
CUTS = (0, 3, 4, BATCH)
UNLIKE = ((0, 2, BATCH), (0, 1, 3, 5))
"""Micro-batches that differ between the ranks in size and number: 8 samples in two, 5 in three."""

JOINED = {
    "sam": METHODS["sam"],
    "asam": METHODS["asam"],
    "looksam": functools.partial(METHODS["looksam"], k=2),
    "esam-swp": METHODS["esam-swp"],
    "esam-swp, suffix": functools.partial(METHODS["esam-swp"], mask="suffix"),
}
"""Methods whose step, with one eps for all ranks, is that of one process on all samples."""

ROWS = {
    **SEVERAL,
    "looksam": functools.partial(METHODS["looksam"], k=2),
    "sam, m": functools.partial(METHODS["sam"], m=3),
    "esam, m": functools.partial(METHODS["esam"], m=3),
    "esam, aligned": functools.partial(METHODS["esam"], ranking="aligned"),
    "sam, rho 0": functools.partial(METHODS["sam"], rho=0.0),
}


def settings_of(name, **wanted):
    """Leave out what a method does not take."""
    if name in METHODS:
        return {k: v for k, v in wanted.items() if k == "seed" or k in METHODS[name].options()}
    return {k: v for k, v in wanted.items() if not (k == "rho" and "rho 0" in name)}


# What runs on each rank -----------------------------------------------------------------------------------------------


def replicas(build=mlp, **options):
    return DistributedDataParallel(build(), **options)


def trained(rank, method, *, cuts=None, phases=False, **settings):
    model = replicas()
    # each rank with a seed of its own: all follow rank 0
    return train(
        model,
        method(sgd(model), model, seed=3 + rank, **settings),
        functools.partial(batch_of, rank),
        STEPS,
        cuts,
        phases,
    )


def at_every_step(rank, name, *, build=mlp, phases=False, **settings):
    """Return weights, and all that the optimizer remembers, after every step on batches that the ranks have unlike."""
    model = replicas(build)
    optimizer = ROWS[name](sgd(model), model, **settings_of(name, rho=RHO, seed=3 + rank, **settings))
    seen = []
    for step in STEPS:
        cuts = UNLIKE[rank]
        take_step(optimizer, closures_of(model, *batch_of(rank, step, cuts[-1]), cuts), phases)
        saved = optimizer.state_dict()
        remembered = [v for own in saved["state"].values() for v in own.values()]
        remembered += [v for v in saved["param_groups"][0].values() if isinstance(v, torch.Tensor)]
        seen.append(whole_weights(model) + [p.grad.clone() for p in model.parameters()] + remembered)
    return seen


def counted(rank, name, monkeypatch, *, phases=False, **settings):
    """Return, step by step, how often DDP exchanged gradients, and the sizes of what was summed besides."""
    model, hooked, summed = replicas(), [], []

    def hook(state, bucket):
        hooked.append(bucket.is_last())
        return allreduce_hook(dist.group.WORLD, bucket)

    def all_reduce(tensor, *args, **kwargs):
        if not kwargs.get("async_op"):  # the hook's own
            summed.append(tensor.numel())
        return original(tensor, *args, **kwargs)

    model.register_comm_hook(None, hook)
    optimizer = ROWS[name](sgd(model), model, **settings_of(name, rho=RHO, seed=3, **settings))
    original = dist.all_reduce
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    seen = []
    for step in STEPS:
        hooked.clear(), summed.clear()
        take_step(optimizer, closures_of(model, *batch_of(rank, step), CUTS), phases)
        seen.append((sum(hooked), list(summed)))
    monkeypatch.undo()
    return seen


class Heads(nn.Module):
    """A trunk, a head for each rank's samples, and a head for nobody's."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(4, 6)
        self.heads = nn.ModuleList([nn.Linear(6, 3) for _ in range(RANKS + 1)])
        self.double()

    def forward(self, x):
        outputs = torch.tanh(self.trunk(x[:, :4]))
        owners = x[:, 4].long()
        return torch.cat([self.heads[owner](outputs[owners == owner]) for owner in owners.unique().tolist()])


def owned_batch(rank, step):
    x, y = batch_of(rank, step)
    return torch.cat([x, torch.full((len(x), 1), float(rank), dtype=x.dtype)], 1), y


def owned_joined(step):
    return tuple(torch.cat(parts) for parts in zip(*(owned_batch(rank, step) for rank in range(RANKS)), strict=True))


def with_heads(rank, method, *, phases, **settings):
    model = replicas(Heads, find_unused_parameters=True)
    optimizer = method(sgd(model), model, seed=3 + rank, **settings)
    weights = train(model, optimizer, functools.partial(owned_batch, rank), STEPS, phases=phases)
    return weights, [p.grad is None for p in model.parameters()]


def with_options(rank, name, cuts=None, **options):
    model = replicas(**options)
    optimizer = ROWS[name](sgd(model), model, **settings_of(name, rho=RHO, seed=3))
    return train(model, optimizer, functools.partial(batch_of, rank), STEPS, cuts)


class Counting(nn.Module):
    """Normalises its inputs, so its running mean is known by heart; a buffer that a forward replaces."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.out = nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.double()

    def forward(self, x):
        self.seen = self.seen + x.sum()
        return self.out(self.norm(x))


def buffers(rank, name, *, phases, follow=True):
    model = replicas(Counting)
    model.broadcast_buffers = follow
    optimizer = ROWS[name](sgd(model), model, **settings_of(name, seed=3))
    train(model, optimizer, functools.partial(batch_of, rank), STEPS, phases=phases)
    return [model.module.norm.running_mean.clone(), model.module.seen.clone()]


def refused(rank, given, run):
    """Return why SAM does not take a step with ``given(ddp)`` for its model, where the closure runs ``run(ddp)``."""
    model = replicas()
    before = whole_weights(model)
    optimizer = SAM(sgd(model), given(model))
    reason = why_refused(optimizer.step, closures_of(run(model), *batch_of(rank, 0)))
    assert_same(before, whole_weights(model))
    return reason


def static_graph(rank):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own advice on the flag
        model = replicas(static_graph=True)
    return why_refused(SAM, sgd(model), model)


def overflow(rank, name, where, perturbation):
    """Overflow in the first pass of rank 0 or the second of rank 1, then take a good step."""
    model = replicas()
    optimizer = ROWS[name](sgd(model), model, **settings_of(name, rho=RHO, seed=3, perturbation=perturbation))
    (good,) = closures_of(model, *batch_of(rank, 0))
    passes = []

    def closure(keep):
        if torch.is_grad_enabled():
            passes.append(("first", "second")[len(passes)])
            if (rank, passes[-1]) in ((0, "first"), (1, "second")) and passes[-1] == where:
                return good(keep) * torch.inf
        return good(keep)

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = whole_weights(model)
    optimizer.step(closure, scaler=scaler)
    scaler.update()
    assert_same(before, whole_weights(model))
    scale = scaler.get_scale()
    optimizer.step(good, scaler=scaler)
    return scale, whole_weights(model)


def after_an_error(rank, name):
    """Fail on every rank in the pass that exchanges gradients, between forward and backward; then train."""
    model = replicas()
    optimizer = ROWS[name](sgd(model), model, **settings_of(name, rho=RHO, seed=3))
    (good,) = closures_of(model, *batch_of(rank, 0))
    passes = []

    def closure(keep):
        found = good(keep)
        passes.append(torch.is_grad_enabled())
        if sum(passes) == (1 if name == "base" else 2):
            raise KeyboardInterrupt
        return found

    with contextlib.suppress(KeyboardInterrupt):
        optimizer.step(closure)
        raise AssertionError("no interrupt")
    return train(model, optimizer, functools.partial(batch_of, rank), STEPS)


def compiled(rank):
    model = replicas()
    outer = torch.compile(model, backend="eager")
    with torch.compiler.set_stance("force_eager"):  # what is asked is who exchanges gradients
        return train(outer, SAM(sgd(model), outer, rho=RHO), functools.partial(batch_of, rank), STEPS)


def cases(rank):
    """Yield what one pair of processes runs."""

    def case(function, *arguments, **settings):
        return functools.partial(function, rank, *arguments, **settings)

    both = ("rank", "global")
    for name, method in JOINED.items():
        settings = {"rho": RHO, "perturbation": "global"}
        yield ("joined", name), case(trained, method, **settings)
        yield ("joined, cut", name), case(trained, method, cuts=CUTS, phases=True, **settings)
    for name, way in itertools.product(("esam", "esam-sds", "esam-swp", "sam"), both):
        yield ("hand", name, way), case(trained, ROWS[name], rho=RHO, perturbation=way)
        yield ("hand, cut", name, way), case(trained, ROWS[name], cuts=CUTS, rho=RHO, perturbation=way)
    for name in ROWS:
        yield ("steps", name), case(at_every_step, name)
        yield ("phases", name), case(at_every_step, name, phases=True)
        if not name.startswith("base") and ", m" not in name:
            yield ("steps, global", name), case(at_every_step, name, perturbation="global")
        yield ("plain", name), case(with_options, name, CUTS)
        yield ("bucket views", name), case(with_options, name, CUTS, gradient_as_bucket_view=True)
    patch = pytest.MonkeyPatch()
    for name, phases in itertools.product(("base", "sam", "looksam", "esam", "esam-random"), (False, True)):
        yield ("counted", name, phases), case(counted, name, patch, phases=phases)
    yield ("counted", "global"), case(counted, "sam", patch, perturbation="global")
    yield ("counted", "swp, global"), case(counted, "esam-swp", patch, perturbation="global")
    for name, phases, way in itertools.product(("sam", "looksam", "esam-swp"), (False, True), both):
        yield ("heads", name, phases, way), case(with_heads, JOINED[name], phases=phases, rho=RHO, perturbation=way)
    yield ("heads", "base"), case(with_heads, METHODS["base"], phases=True)
    for name, phases in itertools.product(("base", "sam", "esam"), (False, True)):
        yield ("buffers", name, phases), case(buffers, name, phases=phases)
    yield "buffers apart", case(buffers, "sam", phases=False, follow=False)
    yield "bare", case(refused, lambda model: model.module, lambda model: model)
    yield "inside", case(refused, nn.Sequential, nn.Sequential)
    yield "static graph", case(static_graph)
    for name, where, way in itertools.product(("sam", "looksam", "esam"), ("first", "second"), both):
        yield ("overflow", name, where, way), case(overflow, name, where, way)
    for name in ("base", "sam", "looksam", "esam"):
        yield ("error", name), case(after_an_error, name)
        yield ("no error", name), case(with_options, name)
    yield "compiled", case(compiled)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return on_two_ranks(tmp_path_factory.mktemp("ranks"), cases)


# What must hold -------------------------------------------------------------------------------------------------------


def in_one_process(method, batch=joined, build=mlp, **settings):
    model = build()
    return train(model, method(sgd(model), model, seed=3, rho=RHO, **settings), batch, STEPS)


@pytest.mark.parametrize("name", JOINED)
def test_one_eps_for_all_ranks_makes_the_step_of_one_process_on_all_their_samples(ranks, name):
    alone = in_one_process(JOINED[name])
    assert_near(ranks[0]["joined", name], alone)
    assert_near(ranks[0]["joined, cut", name], alone)


@pytest.mark.parametrize("way", ["rank", "global"])
@pytest.mark.parametrize(
    ("name", "beta", "gamma"), [("sam", 1, 1), ("esam-swp", 0.6, 1), ("esam-sds", 1, 0.5), ("esam", 0.6, 0.5)]
)
def test_the_ranks_share_or_own_eps_and_average_the_second_gradients_of_what_each_selects(
    ranks, name, beta, gamma, way
):
    model = mlp()
    twin = ESAMByHand(model, rho=RHO, beta=beta, gamma=gamma, one_eps=way == "global")
    by_hand = twin.train(sgd(model), STEPS)
    assert_near(ranks[0]["hand", name, way], by_hand)
    assert_near(ranks[0]["hand, cut", name, way], by_hand)


def test_an_eps_of_each_rank_s_own_is_another_step_than_one_for_all(ranks):
    assert distance(ranks[0]["hand", "sam", "rank"], ranks[0]["hand", "sam", "global"]) > 1e-4


@pytest.mark.parametrize("name", ROWS)
def test_weights_gradients_generator_and_memory_agree_after_every_step_though_batches_do_not(ranks, name):
    for way in ("steps", "phases", "steps, global"):
        if (way, name) in ranks[0] or way != "steps, global":
            for one, other in zip(ranks[0][way, name], ranks[1][way, name], strict=True):
                assert_same(one, other)


@pytest.mark.parametrize("name", ROWS)
def test_three_phases_make_the_step_of_one_call(ranks, name):
    for at_once, in_phases in zip(ranks[0]["steps", name], ranks[0]["phases", name], strict=True):
        for a, b in zip(at_once, in_phases, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ROWS)
def test_gradients_that_are_views_of_buckets_make_the_same_step(ranks, name):
    assert_same(ranks[0]["plain", name], ranks[0]["bucket views", name])


WEIGHTS, TENSORS = sum(p.numel() for p in mlp().parameters()), len(list(mlp().parameters()))


def test_a_step_of_three_micro_batches_exchanges_gradients_once(ranks):
    for seen in ranks:
        assert seen["counted", "base", False] == seen["counted", "sam", False] == [(1, [])] * len(STEPS)
        assert seen["counted", "sam", True] == [(1, [])] * len(STEPS)
        # no backward knows that it is the last, so the sum is exchanged when it is asked for
        assert seen["counted", "base", True] == [(0, [TENSORS, WEIGHTS])] * len(STEPS)


def test_one_eps_for_all_ranks_and_the_whole_gradient_of_looksam_take_one_exchange_more(ranks):
    for seen in ranks:
        assert seen["counted", "global"] == [(1, [TENSORS, WEIGHTS])] * len(STEPS)
        assert seen["counted", "looksam", False] == [(1, [TENSORS, WEIGHTS]), (1, [])] * 2


def test_what_esam_remembers_is_exchanged_as_two_numbers_a_tensor(ranks):
    for seen in ranks:
        for name, phases in itertools.product(("esam", "esam-random"), (False, True)):
            (first, *later) = seen["counted", name, phases]
            assert first == (1, [2 * TENSORS])
            for exchanges, (size,) in later:
                assert exchanges == 1
                assert size <= 2 * TENSORS


def test_one_eps_of_the_drawn_tensors_is_an_exchange_of_their_gradients_alone(ranks):
    drawn = [size for _, (_, size, *_) in ranks[0]["counted", "swp, global"]]
    assert drawn[0] == WEIGHTS  # their norms are not known yet
    assert min(drawn) < WEIGHTS


@pytest.mark.parametrize("phases", [False, True])
@pytest.mark.parametrize("name", ["sam", "looksam", "esam-swp"])
def test_a_head_that_one_rank_uses_counts_and_one_that_none_uses_does_not(ranks, name, phases):
    alone = in_one_process(JOINED[name], owned_joined, Heads)
    unused = [False] * 6 + [True] * 2  # trunk, two heads; the third
    for way in ("rank", "global"):
        (weights, without), (others, _) = (seen["heads", name, phases, way] for seen in ranks)
        assert_same(weights, others)
        assert without == unused
        assert_same(weights[-2:], alone[-2:])  # not even weight decay
        assert (distance(weights, alone) > 1e-4) == (way == "rank")
    assert_near(weights, alone)


def test_a_head_that_none_uses_gets_no_gradient_from_the_base_alone_either(ranks):
    for seen in ranks:
        assert seen["heads", "base"][1] == [False] * 6 + [True] * 2


@pytest.mark.parametrize("phases", [False, True])
@pytest.mark.parametrize("name", ["base", "sam", "esam"])
def test_buffers_are_moved_by_the_first_pass_of_rank_0_on_every_rank(ranks, name, phases):
    for seen in ranks:
        assert_near(seen["buffers", name, phases], buffers_by_hand(0))


def test_buffers_of_each_rank_s_own_stay_so_where_the_user_wants_that(ranks):
    for rank, seen in enumerate(ranks):
        assert_near(seen["buffers apart"], buffers_by_hand(rank))


def buffers_by_hand(rank):
    mean, total = torch.zeros(4, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for step in STEPS:
        x, _ = batch_of(rank, step)
        mean, total = 0.9 * mean + 0.1 * x.mean(0), total + x.sum()
    return [mean, total]


def test_the_bare_model_of_a_replica_and_a_model_around_it_are_refused(ranks):
    for seen in ranks:
        assert "not the bare model" in seen["bare"]
        assert "DistributedDataParallel" in seen["inside"]


def test_a_static_graph_is_refused_with_a_remedy(ranks):
    for seen in ranks:
        assert "leave static_graph out" in seen["static graph"]


@pytest.mark.parametrize("way", ["rank", "global"])
@pytest.mark.parametrize("where", ["first", "second"])
@pytest.mark.parametrize("name", ["sam", "looksam", "esam"])
def test_an_overflow_on_one_rank_skips_the_step_on_both(ranks, name, where, way):
    (scale, weights), (other_scale, others) = (seen["overflow", name, where, way] for seen in ranks)
    assert scale == other_scale == 512.0
    assert_same(weights, others)
    assert distance(weights, whole_weights(mlp())) > 1e-4  # the good step after it


@pytest.mark.parametrize("name", ["base", "sam", "looksam", "esam"])
def test_an_error_in_the_pass_that_exchanges_gradients_leaves_no_trace(ranks, name):
    for seen in ranks:
        assert_same(seen["error", name], seen["no error", name])


def test_a_compiled_replica_exchanges_gradients_too(ranks):
    assert_same(ranks[0]["compiled"], ranks[1]["compiled"])
    assert_near(ranks[0]["compiled"], ranks[0]["hand", "sam", "rank"])
