"""fully_shard (FSDP2) on two ranks: does a step on shards equal the step on whole weights in one process?

One pair of processes runs every case and saves what it saw; the tests read it.
"""

import contextlib
import functools
import itertools
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from two_ranks import (
    BATCH,
    RANKS,
    SEVERAL,
    ESAMByHand,
    adamw,
    assert_near,
    assert_same,
    batch_of,
    closures_of,
    distance,
    joined,
    losses_of,
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

STEPS = range(3)
RHO = 0.2
CUTS = (0, 3, 4, BATCH)

ROWS = {
    **SEVERAL,
    "looksam": functools.partial(METHODS["looksam"], k=2),
    "sam, m": functools.partial(METHODS["sam"], m=3),
    "esam-swp, suffix": functools.partial(METHODS["esam-swp"], mask="suffix"),
    "esam, aligned": functools.partial(METHODS["esam"], ranking="aligned"),
}
JOINED = ("base", "sam", "asam", "looksam", "esam-swp", "esam-swp, suffix")
"""Methods whose step on two ranks is that of one process on all samples."""


def built(name, model, base=sgd, seed=3):
    return ROWS[name](base(model), model, seed=seed, **({} if name.startswith("base") else {"rho": RHO}))


# What runs on each rank -----------------------------------------------------------------------------------------------


def shards(shape=(RANKS,), **options):
    """Shard a layer apart, then the whole; tensors of 5 and 3 rows do not divide by two ranks."""
    model = mlp()
    fully_shard(model[0], mesh=mesh_of(shape))
    return fully_shard(model, mesh=mesh_of(shape), **options)


@functools.cache
def mesh_of(shape):
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])


def trained(rank, name, *, base=sgd, cuts=None, phases=False, shape=(RANKS,), prepare=None, **options):
    model = shards(shape, **options)
    optimizer = built(name, model, base, seed=3 + rank)  # each rank with a seed of its own: all follow rank 0
    if prepare is not None:
        prepare(model, rank)
    return train(model, optimizer, functools.partial(batch_of, rank), STEPS, cuts, phases)


def evaluated(model, rank):
    """Run a forward pass alone: the whole weights of the root stay gathered."""
    with torch.no_grad():
        model(batch_of(rank, 0)[0])


def frozen(model, rank):
    model[0].bias.requires_grad_(False)


def never_resharded(model, rank):
    model.set_reshard_after_backward(False)


def restored(rank, name):
    """Return shards and losses before a step, and when its gradient is there but the base has not stepped."""
    model = shards()
    optimizer = built(name, model)
    batch = batch_of(rank, 0)
    train(model, optimizer, functools.partial(batch_of, rank), STEPS)
    seen = []
    first = functools.partial(optimizer.accumulate, functools.partial(losses_of, model), *batch)
    for move in (lambda: None, first, optimizer.gradient):
        move()
        with torch.no_grad():
            shards_now = [p.to_local().clone() for p in optimizer.param_groups[0]["params"]]
            seen.append([*shards_now, losses_of(model, *batch)])
    return seen


def after_an_error(rank, where):
    """Fail on every rank; then train."""
    which, place = where
    model = shards()
    optimizer = built("sam", model)
    (good,) = closures_of(model, *batch_of(rank, 0))
    passes, hooks = [], []

    def fail(*_):
        raise KeyboardInterrupt

    def closure(keep):
        passes.append(keep)
        if len(passes) < which:
            return good(keep)
        if place == "in the forward":
            hooks.append(model[2].register_forward_pre_hook(fail))
        elif place == "in the backward":
            hooks.append(model[3].register_full_backward_hook(fail))
        losses = good(keep)
        return fail() if place == "between them" else losses

    with contextlib.suppress(KeyboardInterrupt):
        optimizer.step(closure)
        raise AssertionError("no interrupt")
    for hook in hooks:
        hook.remove()
    return train(model, optimizer, functools.partial(batch_of, rank), STEPS)


def overflow(rank):
    """Overflow in the first pass of one rank, then take a good step."""
    model = shards()
    optimizer = built("sam", model)
    (good,) = closures_of(model, *batch_of(rank, 0))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = whole_weights(model)
    passes = []

    def closure(keep):
        passes.append(keep)
        return good(keep) * (torch.inf if rank == 0 and len(passes) == 1 else 1)

    optimizer.step(closure, scaler=scaler)
    scaler.update()
    assert_same(before, whole_weights(model))
    optimizer.step(good, scaler=scaler)
    return scaler.get_scale(), whole_weights(model)


class Heads(nn.Module):
    """A trunk, and a head for each class of data; every step uses one, the same on all ranks."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(4, 6)
        self.heads = nn.ModuleList([nn.Linear(6, 3) for _ in range(3)])
        self.used = 0
        self.double()

    def forward(self, x):
        return self.heads[self.used](torch.tanh(self.trunk(x)))


def with_heads(model, optimizer, batch):
    for step in range(6):
        model.used = step % 2
        take_step(optimizer, closures_of(model, *batch(step)))
    return whole_weights(model)


def sharded_heads(rank):
    model = fully_shard(Heads())
    return with_heads(model, built("esam-swp", model), functools.partial(batch_of, rank))


def in_part(rank):
    model = mlp()
    fully_shard(model[0])
    return why_refused(SAM(sgd(model), model).step, closures_of(model, *batch_of(rank, 0)))


def with_ignored(rank):
    model = mlp()
    fully_shard(model, ignored_params={model[0].weight})
    return why_refused(SAM(sgd(model), model).step, closures_of(model, *batch_of(rank, 0)))


def over_two_meshes(rank):
    model = mlp()
    fully_shard(model[0], mesh=mesh_of((1, RANKS)))
    fully_shard(model, mesh=mesh_of((RANKS,)))
    return why_refused(SAM(sgd(model), model).step, closures_of(model, *batch_of(rank, 0)))


def first_kind(rank):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FullyShardedDataParallel(mlp(), device_id=torch.device("cpu"), use_orig_params=True)
    return why_refused(SAM(sgd(model), model).step, closures_of(model, *batch_of(rank, 0)))


def cases(rank):
    """Yield what one pair of processes runs."""

    def case(function, *arguments, **settings):
        return functools.partial(function, rank, *arguments, **settings)

    for name in JOINED:
        yield ("joined", name), case(trained, name)
        yield ("joined, cut", name), case(trained, name, base=adamw, cuts=CUTS, phases=True)
    for name in ("esam", "esam-sds"):
        yield ("hand", name), case(trained, name)
        yield ("hand, cut", name), case(trained, name, cuts=CUTS)
    for name, shape in itertools.product(("sam", "asam", "looksam", "esam-swp", "esam"), ((1, RANKS), (RANKS, 1))):
        yield ("mesh", name, shape), case(trained, name, shape=shape)
    for name in ("sam", "looksam", "esam"):
        yield ("plain", name), case(trained, name)
        yield ("evaluated", name), case(trained, name, prepare=evaluated)
        yield ("not resharded", name), case(trained, name, prepare=never_resharded)
        yield ("resharded early", name), case(trained, name, reshard_after_forward=True)
    yield ("plain", "esam-swp, suffix"), case(trained, "esam-swp, suffix")
    yield ("evaluated", "esam-swp, suffix"), case(trained, "esam-swp, suffix", prepare=evaluated)
    for name in ROWS:
        yield ("restored", name), case(restored, name)
    for where in WHERE:
        yield ("error", where), case(after_an_error, where)
    yield ("plain", "frozen"), case(trained, "looksam", prepare=frozen)
    yield "overflow", case(overflow)
    yield "heads", case(sharded_heads)
    for refusal in (in_part, with_ignored, over_two_meshes, first_kind):
        yield refusal.__name__, case(refusal)


WHERE = tuple(itertools.product((1, 2), ("in the forward", "between them", "in the backward")))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return on_two_ranks(tmp_path_factory.mktemp("ranks"), cases)


# What must hold -------------------------------------------------------------------------------------------------------


@functools.cache
def in_one_process(name, base=sgd):
    model = mlp()
    return train(model, built(name, model, base), joined, STEPS)


@functools.cache
def by_hand(name, cuts=None):
    model = mlp()
    beta = 1.0 if name == "esam-sds" else 0.6
    twin = ESAMByHand(model, rho=RHO, beta=beta, gamma=0.5, one_eps=True, micro_batches=True)
    return twin.train(sgd(model), STEPS, cuts)


@pytest.mark.parametrize("name", JOINED)
def test_two_ranks_with_shards_take_the_step_of_one_process_on_all_samples(ranks, name):
    for seen in ranks:
        assert_near(seen["joined", name], in_one_process(name))
        assert_near(seen["joined, cut", name], in_one_process(name, adamw))


@pytest.mark.parametrize("name", ["esam", "esam-sds"])
def test_samples_are_selected_within_each_micro_batch_of_each_rank(ranks, name):
    for seen in ranks:
        assert_near(seen["hand", name], by_hand(name))
        assert_near(seen["hand, cut", name], by_hand(name, CUTS))
    assert distance(by_hand(name), by_hand(name, CUTS)) > 1e-4


def test_a_frozen_shard_stays_as_it_is_and_the_others_train_as_in_one_process(ranks):
    model = mlp()
    frozen(model, 0)
    alone = train(model, built("looksam", model), joined, STEPS)
    for seen in ranks:
        assert_near(seen["plain", "frozen"], alone)
    assert_same(alone[1:2], whole_weights(mlp())[1:2])


@pytest.mark.parametrize("shape", [(1, RANKS), (RANKS, 1)])
@pytest.mark.parametrize("name", ["sam", "asam", "looksam", "esam-swp", "esam"])
def test_replicas_of_shards_take_the_same_step(ranks, name, shape):
    for seen in ranks:
        assert_near(seen["mesh", name, shape], by_hand(name) if name == "esam" else in_one_process(name))


@pytest.mark.parametrize("name", ["sam", "looksam", "esam", "esam-swp, suffix"])
def test_a_forward_pass_before_the_first_step_changes_nothing(ranks, name):
    for seen in ranks:
        assert_same(seen["evaluated", name], seen["plain", name])


@pytest.mark.parametrize("name", ["sam", "looksam", "esam"])
def test_gathered_weights_that_outlive_a_pass_are_never_used_again(ranks, name):
    for seen in ranks:
        assert_same(seen["not resharded", name], seen["plain", name])
        assert_same(seen["resharded early", name], seen["plain", name])


@pytest.mark.parametrize("name", ROWS)
def test_shards_and_what_is_gathered_from_them_are_back_bit_for_bit_before_the_base_steps(ranks, name):
    for seen in ranks:
        before, in_between, after = seen["restored", name]
        assert_same(before, in_between)
        assert_same(before, after)


@pytest.mark.parametrize("where", WHERE)
def test_an_error_in_the_first_or_second_pass_leaves_no_trace(ranks, where):
    for seen in ranks:
        assert_same(seen["error", where], seen["plain", "sam"])


def test_an_overflow_on_one_rank_skips_the_step_on_both(ranks):
    for seen in ranks:
        scale, weights = seen["overflow"]
        assert scale == 512.0
        assert_same(weights, ranks[0]["overflow"][1])
        assert distance(weights, whole_weights(mlp())) > 1e-4


def test_a_head_that_a_step_does_not_use_counts_as_zero_in_the_norm(ranks):
    model = Heads()
    alone = with_heads(model, built("esam-swp", model), joined)
    for seen in ranks:
        assert_near(seen["heads"], alone)


def test_a_model_sharded_in_part_or_in_several_ways_or_by_the_first_fsdp_is_refused(ranks):
    for seen in ranks:
        for case in ("in_part", "with_ignored", "over_two_meshes"):
            assert "call fully_shard on the whole model" in seen[case]
        assert "fully_shard (FSDP2)" in seen["first_kind"]
