"""Two ranks: does a step on replicas (DistributedDataParallel) or on shards (fully_shard) mean what it means alone?

And does a checkpoint go on as if nothing had happened, on as many ranks, on fewer, laid out anew? One pair of
processes runs what the tests send it: ``both(function, ...)`` is ``function(rank, ...)`` on each of them.
"""

import copy
import functools
import itertools
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from counting import Counting
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from two_ranks import (
    BATCH,
    RANKS,
    TwoRanks,
    adamw,
    assert_near,
    assert_same,
    batch_of,
    distance,
    joined,
    losses_of,
    mlp,
    needs_gloo,
    sgd,
    take_step,
    train,
    whole_weights,
)

from esam import METHODS, SAM
from esam.optim import reference

pytestmark = [needs_gloo, pytest.mark.slow, pytest.mark.filterwarnings("ignore:torch.distributed is disabled")]

STEPS = range(4)
BEFORE, AFTER = range(3), range(3, 6)
"""A checkpoint is saved between them, and between two perturbed steps of LookSAM."""
RHO = 0.2
CUTS = (0, 3, 4, BATCH)
UNLIKE = ((0, 2, BATCH), (0, 1, 3, 5))
"""Micro-batches that differ between the ranks in size and number: 8 samples in two, 5 in three."""
BOTH_WAYS = ("rank", "global")

ROWS = {
    **{name: row for name, row in METHODS.items() if name != "sam-on"},  # the model has no norm layer
    "looksam": functools.partial(METHODS["looksam"], k=2),
    "sam, m": functools.partial(METHODS["sam"], m=3),
    "esam-swp, suffix": functools.partial(METHODS["esam-swp"], mask="suffix"),
    "sam, rho 0": METHODS["sam"],
}
SAVED = {"sam": sgd, "looksam": sgd, "esam-swp": sgd, "esam-random": adamw}
"""Methods and bases that are saved on two ranks."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def both(folder):
    with TwoRanks(folder, fork=True) as ranks:
        yield ranks


def built(name, model, base=sgd, *, seed=3, **settings):
    """Build an optimizer; settings that a method does not take are left out."""
    wanted = {"rho": 0.0 if "rho 0" in name else RHO, **settings}
    options = METHODS[name.split(",")[0]].options()
    return ROWS[name](base(model), model, seed=seed, **{k: v for k, v in wanted.items() if k in options})


def replicas(build=mlp, **options):
    return DistributedDataParallel(build(), **options)


def shards(build=mlp, shape=(RANKS,), **options):
    """Shard the first layer apart, then the whole; tensors of 5 and 3 rows do not divide by two ranks."""
    model = build()
    if build is mlp:
        fully_shard(model[0], mesh=mesh_of(shape))
    return fully_shard(model, mesh=mesh_of(shape), **options)


@functools.cache
def mesh_of(shape):
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])


def trained(rank, name, layout=replicas, *, base=sgd, cuts=None, phases=False, prepare=None, options=None, **settings):
    """Return the weights after some steps."""
    model = layout(**(options or {}))
    optimizer = built(name, model, base, seed=3 + rank, **settings)  # each rank with a seed of its own: as rank 0's
    if prepare is not None:
        prepare(model, rank)
    train(model, optimizer, functools.partial(batch_of, rank), STEPS, cuts, phases)
    for module in model.modules():  # what stays gathered, at the user's wish, is from before the base's last step
        if isinstance(module, FSDPModule):
            module.reshard()
    return whole_weights(model)


# What must hold of replicas and shards --------------------------------------------------------------------------------


@functools.cache
def in_one_process(name, base=sgd, batch=joined, build=mlp):
    model = build()
    return train(model, built(name, model, base), batch, STEPS)


@pytest.mark.parametrize("name", ["base", "sam", "asam", "looksam", "esam-swp", "esam-swp, suffix"])
def test_one_eps_for_all_ranks_makes_the_step_of_one_process_on_all_their_samples(both, name):
    for layout in (replicas, shards):
        whole = both(trained, name, layout, perturbation="global")
        cut = both(trained, name, layout, base=adamw, cuts=CUTS, phases=True, perturbation="global")
        assert_near(in_one_process(name), *whole)
        assert_near(in_one_process(name, adamw), *cut)


def test_replicas_perturb_by_their_own_gradients_and_average_the_second_ones(both):
    """ESAM's, where the ranks draw and select too, are among the golden curves."""
    model = mlp()
    base, weights = sgd(model), list(model.parameters())
    for step in STEPS:
        batches = [functools.partial(losses_of, model, *batch_of(rank, step)) for rank in range(RANKS)]
        each = [reference.sam(losses, weights, RHO) for losses in batches]
        for w, *gradients in zip(weights, *each, strict=True):
            w.grad = sum(gradients) / RANKS
        base.step()
    assert_near(whole_weights(model), *both(trained, "sam"), *both(trained, "sam", cuts=CUTS))
    assert distance(whole_weights(model), in_one_process("sam")) > 1e-4


def selected(rank, layout):
    """Return how many samples each pass of a step by three micro-batches ran."""
    model = layout()
    optimizer, ran = built("esam", model), []
    model.register_forward_pre_hook(lambda _, inputs: ran.append(len(inputs[0])))
    take_step(model, optimizer, *batch_of(rank, 0), CUTS)
    return ran


def test_samples_are_selected_over_all_micro_batches_of_a_rank_and_with_shards_within_each(both):
    """Every rank must run as many passes as the others, where they exchange shards."""
    for ran in both(selected, shards):
        assert ran == [3, 1, 4, 3, 1, 4, 2, 1, 2]  # at theta, to rank them, those with the highest rise
    for ran in both(selected, replicas):
        assert ran[:6] == [3, 1, 4, 3, 1, 4] and sum(ran[6:]) == 4


def overflow(rank, layout, name, where, way):
    """Overflow in the first pass of rank 0 or the second of rank 1, then take a good step."""
    model = layout()
    optimizer, passes = built(name, model, perturbation=way), []

    def loss_of(x, y):
        passes.extend([x] * torch.is_grad_enabled())  # not while ranking
        broken = torch.is_grad_enabled() and (len(passes), rank) == {"first": (1, 0), "second": (2, 1)}[where]
        return losses_of(model, x, y) * (torch.inf if broken else 1)

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = whole_weights(model)
    optimizer.step(loss_of, *batch_of(rank, 0), scaler=scaler)
    scaler.update()
    assert_same(before, whole_weights(model))
    scale = scaler.get_scale()
    optimizer.step(loss_of, *batch_of(rank, 0), scaler=scaler)
    assert distance(before, whole_weights(model)) > 1e-4
    return scale, whole_weights(model)


def test_an_overflow_on_one_rank_skips_the_step_on_both(both):
    for name, where, way in itertools.product(("sam", "looksam", "esam"), ("first", "second"), BOTH_WAYS):
        one, other = both(overflow, replicas, name, where, way)
        assert one[0] == 512.0
        assert_same(one, other)
    assert [scale for scale, _ in both(overflow, shards, "sam", "first", "global")] == [512.0, 512.0]


def after_an_error(rank, layout, name, which, place):
    """Fail on every rank in the first or second pass; then train."""
    model = layout()
    optimizer, passes, hooks = built(name, model), [], []

    def fail(*_):
        raise KeyboardInterrupt

    def loss_of(x, y):
        passes.extend([x] * torch.is_grad_enabled())
        if len(passes) >= which and torch.is_grad_enabled():
            if place == "in the forward":
                hooks.append(model[2].register_forward_pre_hook(fail))
            elif place == "in the backward":
                hooks.append(model[3].register_full_backward_hook(fail))
        losses = losses_of(model, x, y)
        return fail() if len(passes) >= which and place == "between them" else losses

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(loss_of, *batch_of(rank, 0))
    for hook in hooks:
        hook.remove()
    return train(model, optimizer, functools.partial(batch_of, rank), STEPS)


def test_an_error_in_any_pass_leaves_no_trace(both):
    for name in ("sam", "looksam", "esam"):
        assert_same(*both(trained, name), *both(after_an_error, replicas, name, 2, "between them"))
    for which, place in itertools.product((1, 2), ("in the forward", "between them", "in the backward")):
        assert_same(*both(trained, "sam", shards), *both(after_an_error, shards, "sam", which, place))


def sharded_in_part():
    model = mlp()
    fully_shard(model[0])
    return model


def sharded_but_one():
    model = mlp()
    return fully_shard(model, ignored_params={model[0].weight})


def sharded_over_two_meshes():
    model = mlp()
    fully_shard(model[0], mesh=mesh_of((1, RANKS)))
    return fully_shard(model, mesh=mesh_of((RANKS,)))


def first_fsdp():
    return FullyShardedDataParallel(mlp(), device_id=torch.device("cpu"), use_orig_params=True)


REFUSED = {
    "bare": (replicas, lambda model: SAM(sgd(model), model.module), "bare model"),
    "inside": (replicas, lambda model: SAM(sgd(model), nn.Sequential(model)), "DistributedDataParallel"),
    "static graph": (functools.partial(replicas, static_graph=True), lambda model: SAM(sgd(model), model), "static_"),
    "spectral": (shards, lambda model: SAM(sgd(model), model, geometry="spectral"), "whole matrices"),
    **{
        build.__name__: (build, lambda model: SAM(sgd(model), model), "fully_shard")
        for build in (sharded_in_part, sharded_but_one, sharded_over_two_meshes, first_fsdp)
    },
}
"""How a model is built, and its optimizer, and a word of why not."""


def refused(rank, name):
    build, wrap, words = REFUSED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own advice on the flag
        model = build()
    before = whole_weights(model)
    with pytest.raises(ValueError, match=words):
        wrap(model).step(functools.partial(losses_of, model), *batch_of(rank, 0))
    assert_same(before, whole_weights(model))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused(both, name):
    both(refused, name)


# Replicas -------------------------------------------------------------------------------------------------------------


def at_every_step(rank, name, **settings):
    """Return weights, and all that the optimizer remembers, after every step on batches that the ranks have unlike."""
    model = replicas()
    optimizer, cuts, seen = built(name, model, seed=3 + rank, **settings), UNLIKE[rank], []
    for step in STEPS:
        take_step(model, optimizer, *batch_of(rank, step, cuts[-1]), cuts)
        saved = copy.deepcopy(optimizer.state_dict())
        seen.append([whole_weights(model), [p.grad.clone() for p in model.parameters()], saved])
    return seen


@pytest.mark.parametrize("name", ROWS)
def test_weights_gradients_generator_and_memory_agree_after_every_step_though_batches_do_not(both, name):
    assert_same(*both(at_every_step, name))
    if not name.startswith("base") and ", m" not in name:
        assert_same(*both(at_every_step, name, perturbation="global"))


@pytest.mark.parametrize("name", ["base", "sam", "looksam", "esam", "slicesam"])
def test_gradients_that_are_views_of_buckets_make_the_same_steps(both, name):
    assert_same(*both(trained, name), *both(trained, name, options={"gradient_as_bucket_view": True}))


def counted(rank, name, phases):
    """Return, step by step, how many numbers each sum over the ranks was of."""
    model = replicas()
    optimizer, seen = built(name, model), []
    for step in STEPS:
        with Counting() as counting:
            take_step(model, optimizer, *batch_of(rank, step), CUTS, phases)
        seen.append([size // 8 for kind, size in counting.sizes if kind == "sum"])
    return seen


def test_a_step_of_three_micro_batches_exchanges_gradients_once(both):
    """What methods exchange besides is counted in test_ranks.py."""
    weights, tensors = sum(p.numel() for p in mlp().parameters()), len(list(mlp().parameters()))
    for name, phases in itertools.product(("base", "sam"), (False, True)):
        # no backward knows that it is the last where the base steps alone: the sum is exchanged when it is asked for
        sums = [tensors, weights] if name == "base" and phases else [weights]
        assert both(counted, name, phases) == [[sums] * len(STEPS)] * RANKS


class Heads(nn.Module):
    """A trunk, and three heads; a sample's last feature names the one that it uses, and nobody uses the third."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(4, 6)
        self.heads = nn.ModuleList([nn.Linear(6, 3) for _ in range(3)])
        self.double()

    def forward(self, x):
        outputs = torch.tanh(self.trunk(x[:, :4]))
        owners = x[:, 4].long()
        return torch.cat([self.heads[owner](outputs[owners == owner]) for owner in owners.unique().tolist()])


def owned(rank, step):
    x, y = batch_of(rank, step)
    return torch.cat([x, torch.full((len(x), 1), float(rank), dtype=x.dtype)], 1), y


def with_heads(rank, name, way):
    model = replicas(Heads, find_unused_parameters=True)
    optimizer = built(name, model, seed=3 + rank, perturbation=way)
    return train(model, optimizer, functools.partial(owned, rank), STEPS), [p.grad is None for p in model.parameters()]


def test_a_head_that_one_rank_uses_counts_and_one_that_none_uses_does_not(both):
    for name in ("sam", "looksam", "esam-swp"):
        alone = in_one_process(name, batch=functools.partial(joined, batch=owned), build=Heads)
        for way in BOTH_WAYS:
            (weights, without), (others, _) = both(with_heads, name, way)
            assert_same(weights, others)
            assert without == [False] * 6 + [True] * 2  # trunk, two heads; the third
            assert_same(weights[-2:], alone[-2:])  # not even weight decay
            assert (distance(weights, alone) > 1e-4) == (way == "rank")
        assert_near(weights, alone)


class Statistics(nn.Module):
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


def buffers(rank, name, *, phases=False, follow=True):
    model = replicas(Statistics)
    model.broadcast_buffers = follow
    train(model, built(name, model), functools.partial(batch_of, rank), STEPS, phases=phases)
    return [model.module.norm.running_mean, model.module.seen]


def buffers_by_hand(rank):
    mean, total = torch.zeros(4, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for step in STEPS:
        x, _ = batch_of(rank, step)
        mean, total = 0.9 * mean + 0.1 * x.mean(0), total + x.sum()
    return [mean, total]


def test_buffers_are_moved_by_the_first_pass_of_rank_0_or_of_each_rank_as_the_user_wants_it(both):
    for name, phases in itertools.product(("base", "sam", "esam"), (False, True)):
        assert_near(buffers_by_hand(0), *both(buffers, name, phases=phases))
    assert_near(both(buffers, "sam", follow=False), [buffers_by_hand(rank) for rank in range(RANKS)])


def compiled(rank):
    model = replicas()
    outer = torch.compile(model, backend="eager")
    with torch.compiler.set_stance("force_eager"):  # what is asked is who exchanges gradients
        return train(outer, SAM(sgd(model), outer, rho=RHO), functools.partial(batch_of, rank), STEPS)


def test_a_compiled_replica_exchanges_gradients_too(both):
    assert_same(*both(trained, "sam"), *both(compiled))


UNEVEN = (3, 5)
"""How many batches each rank has under ``join()``."""


def uneven(rank, name):
    """Train under DDP's ``join()``, where rank 0 runs out first; return the weights, or why that is refused."""
    model = replicas()
    optimizer = built(name, model)
    with model.join():
        try:
            for step in range(UNEVEN[rank]):
                optimizer.step(functools.partial(losses_of, model), *batch_of(rank, step))
        except ValueError as error:
            return str(error)
    return whole_weights(model)


def test_join_trains_on_uneven_batches_or_is_refused_on_every_rank_at_the_first_step(both):
    """Before: SliceSAM hung until the group's timeout, ESAM died in gloo."""
    refused = []
    for name in ROWS:
        first, second = both(uneven, name)
        if isinstance(first, str):
            assert "join()" in first and first == second
            refused.append(name)
        else:
            assert_same(first, second)
    assert {"esam", "looksam"} <= set(refused)  # they exchange numbers of their own in a step
    assert not {"base", "sam", "asam", "esam-sds", "slicesam", "msam"} & set(refused)


# Shards ---------------------------------------------------------------------------------------------------------------


def restored(rank):
    """Return shards and losses before a step, and when its gradient is there but the base has not stepped."""
    model = shards()
    optimizer, batch, seen = built("esam", model), batch_of(rank, 0), []
    train(model, optimizer, functools.partial(batch_of, rank), STEPS)
    first = functools.partial(optimizer.accumulate, functools.partial(losses_of, model), *batch)
    for move in (lambda: None, first, optimizer.gradient):
        move()
        with torch.no_grad():
            shards_now = [p.to_local().clone() for p in optimizer.param_groups[0]["params"]]
            seen.append([*shards_now, losses_of(model, *batch)])
    return seen


def test_shards_and_what_is_gathered_from_them_are_back_bit_for_bit_before_the_base_steps(both):
    for seen in both(restored):
        assert_same(*seen)


def evaluated(model, rank):
    """Run a forward pass alone: the whole weights of the root stay gathered."""
    with torch.no_grad():
        model(batch_of(rank, 0)[0])


def frozen(model, rank):
    model[0].bias.requires_grad_(False)


def never_resharded(model, rank):
    model.set_reshard_after_backward(False)


@pytest.mark.parametrize("name", ["sam", "looksam", "esam"])
def test_replicas_of_shards_and_weights_that_stay_gathered_make_the_same_steps(both, name):
    plain = both(trained, name, shards)
    for shape in ((1, RANKS), (RANKS, 1)):
        assert_near(*plain, *both(trained, name, shards, options={"shape": shape}))
    for how in ({"prepare": evaluated}, {"prepare": never_resharded}, {"options": {"reshard_after_forward": True}}):
        assert_same(*plain, *both(trained, name, shards, **how))


def test_a_frozen_shard_stays_as_it_is_and_the_others_train_as_in_one_process(both):
    model = mlp()
    frozen(model, 0)
    alone = train(model, built("looksam", model), joined, STEPS)
    assert_near(alone, *both(trained, "looksam", shards, prepare=frozen))
    assert_same(alone[1], whole_weights(mlp())[1])


# Checkpoints ----------------------------------------------------------------------------------------------------------


def newly_built(model):
    """Give the model other weights: what it needs must come from the checkpoint."""
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.5)
    return model


def state_of(model, optimizer, options=None):
    return {
        "model": get_model_state_dict(model, options=options),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=options),
    }


def load(model, optimizer, state, options=None):
    set_model_state_dict(model, state["model"], options=options)
    set_optimizer_state_dict(model, optimizer, state["optimizer"], options=options)


def read(model, optimizer, folder, alone=False):
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=folder, no_dist=alone)
    load(model, optimizer, state)


def saved_and_continued(rank, folder, name, layout):
    """Return where the undisturbed run ends, and those that new models continue: in either layout, and by rank 0."""
    batch = functools.partial(batch_of, rank)
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    model = layout()
    optimizer = built(name, model, SAVED[name], perturbation="global")
    train(model, optimizer, batch, BEFORE)
    dcp.save(state_of(model, optimizer), checkpoint_id=folder)
    gathered = copy.deepcopy(state_of(model, optimizer, whole))
    ends = {"undisturbed": train(model, optimizer, batch, AFTER)}
    for way in (replicas, shards, "by rank 0"):
        model = newly_built(shards() if way == "by rank 0" else way())
        optimizer = built(name, model, SAVED[name], seed=17, perturbation="global")
        if way == "by rank 0":
            load(model, optimizer, gathered, StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
        else:
            read(model, optimizer, folder)
        ends[way] = train(model, optimizer, batch, AFTER)
    return ends


@pytest.mark.parametrize("layout", [replicas, shards])
@pytest.mark.parametrize("name", SAVED)
def test_a_run_saved_on_two_ranks_continues_on_two_and_on_one(both, folder, name, layout):
    place = folder / f"{layout.__name__}-{name}"
    for ends in both(saved_and_continued, place, name, layout):
        assert_same(ends["undisturbed"], ends[layout])
        assert_near(ends["undisturbed"], *ends.values())
        if layout is shards:
            assert_same(ends["undisturbed"], ends["by rank 0"])
    if name != "esam-random":  # a random half is drawn on each rank
        model = newly_built(mlp())
        optimizer = built(name, model, seed=17)
        read(model, optimizer, place, alone=True)
        assert_near(ends["undisturbed"], train(model, optimizer, joined, AFTER))


def in_groups(dims):
    """Return a base with matrices and biases in groups of their own, in the order of their dimensions."""

    def base(model):
        of_dim = {dim: {"params": [p for p in model.parameters() if p.dim() == dim]} for dim in dims}
        of_dim[1]["sam_rho"] = 0.1
        return torch.optim.SGD(list(of_dim.values()), lr=0.1, momentum=0.9)

    return base


@pytest.mark.parametrize("name", ["looksam", "esam"])
def test_memory_follows_the_names_where_the_groups_stand_in_another_order(name):
    model, other = mlp(), newly_built(mlp())
    optimizer, continued = built(name, model, in_groups((2, 1))), built(name, other, in_groups((1, 2)), seed=17)
    train(model, optimizer, joined, BEFORE)
    load(other, continued, copy.deepcopy(state_of(model, optimizer)))
    # sums over tensors in another order round differently
    assert_near(train(other, continued, joined, AFTER), train(model, optimizer, joined, AFTER))


@pytest.mark.parametrize("name", ["looksam", "esam-swp"])
def test_a_state_of_the_base_alone_brings_the_momentum_and_starts_with_fresh_memory(name):
    model, fresh_model = mlp(), mlp()
    optimizer, fresh = built(name, model), built(name, fresh_model)
    train(model, optimizer, joined, BEFORE)
    state, weights = copy.deepcopy((optimizer.base.state_dict(), model.state_dict()))
    fresh.generator.set_state(optimizer.generator.get_state())  # the stream of draws goes on where it was
    for m, o in ((model, optimizer), (fresh_model, fresh)):
        m.load_state_dict(weights)
        o.load_state_dict(copy.deepcopy(state))
        assert_same(o.base.state_dict(), state)
    assert_same(train(model, optimizer, joined, AFTER), train(fresh_model, fresh, joined, AFTER))
