"""Two ranks: does a step on replicas (DistributedDataParallel) or on shards (fully_shard) mean what it means alone?

And does a checkpoint go on as if nothing had happened, on as many ranks, on fewer, laid out anew? One pair of
processes runs every case and saves what it saw; the tests read it.
"""

import copy
import functools
import itertools
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from conftest import EVERY_ROW
from counting import Counting
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
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
    adamw,
    assert_near,
    assert_same,
    batch_of,
    closures_of,
    distance,
    esam_by_hand,
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
from esam.optim import reference

pytestmark = [needs_gloo, pytest.mark.slow, pytest.mark.filterwarnings("ignore:torch.distributed is disabled")]

STEPS = range(4)
BEFORE, AFTER = range(3), range(3, 6)
"""A checkpoint is saved between them, and between two perturbed steps of LookSAM."""
RHO = 0.2
CUTS = (0, 3, 4, BATCH)
UNLIKE = ((0, 2, BATCH), (0, 1, 3, 5))
"""Micro-batches that differ between the ranks in size and number: 8 samples in two, 5 in three."""
UNEVEN = (3, 5)
"""How many batches each rank has under ``join()``."""

ROWS = {
    **EVERY_ROW,
    "looksam": functools.partial(METHODS["looksam"], k=2),
    "sam, m": functools.partial(METHODS["sam"], m=3),
    "esam, m": functools.partial(METHODS["esam"], m=3),
    "esam-swp, suffix": functools.partial(METHODS["esam-swp"], mask="suffix"),
    "sam, rho 0": METHODS["sam"],
}
JOINED = ("sam", "asam", "looksam", "esam-swp", "esam-swp, suffix")
"""Methods whose step, with one eps for all ranks, is that of one process on all samples."""
FLOWS = ("base", "sam", "looksam", "esam", "slicesam")
"""One method for each way that a step can go."""
SAVED = {"sam": sgd, "looksam": sgd, "esam-swp": sgd, "esam-random": adamw}
"""Methods and bases that are saved on two ranks."""


def built(name, model, base=sgd, *, seed=3, **settings):
    """Build an optimizer; settings that a method does not take are left out."""
    wanted = {"rho": 0.0 if "rho 0" in name else RHO, **settings}
    options = METHODS[name.split(",")[0]].options()
    return ROWS[name](base(model), model, seed=seed, **{k: v for k, v in wanted.items() if k in options})


# What runs on each rank -----------------------------------------------------------------------------------------------


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
    model = layout(**(options or {}))
    optimizer = built(name, model, base, seed=3 + rank, **settings)  # each rank with a seed of its own: as rank 0's
    if prepare is not None:
        prepare(model, rank)
    train(model, optimizer, functools.partial(batch_of, rank), STEPS, cuts, phases)
    for module in model.modules():  # what stays gathered, at the user's wish, is from before the base's last step
        if isinstance(module, FSDPModule):
            module.reshard()
    return whole_weights(model)


def at_every_step(rank, name, *, phases=False, **settings):
    """Return weights, and all that the optimizer remembers, after every step on batches that the ranks have unlike."""
    model = replicas()
    optimizer = built(name, model, seed=3 + rank, **settings)
    seen = []
    for step in STEPS:
        cuts = UNLIKE[rank]
        take_step(optimizer, closures_of(model, *batch_of(rank, step, cuts[-1]), cuts), phases)
        saved = optimizer.state_dict()
        remembered = [v for own in saved["state"].values() for v in own.values()]
        remembered += [v for v in saved["param_groups"][0].values() if isinstance(v, torch.Tensor)]
        seen.append(whole_weights(model) + [p.grad.clone() for p in model.parameters()] + remembered)
    return seen


def counted(rank, name, *, phases=False, **settings):
    """Return, step by step, how many numbers each sum over the ranks was of."""
    model = replicas()
    optimizer, seen = built(name, model, **settings), []
    for step in STEPS:
        with Counting() as counting:
            take_step(optimizer, closures_of(model, *batch_of(rank, step), CUTS), phases)
        seen.append([size // 8 for kind, size in counting.sizes if kind == "sum"])
    return seen


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


def by_rank(rank, step):
    return rank


def by_step(rank, step):  # with shards, every rank must run the same layers
    return step % 2


def owned_batch(owner, rank, step):
    x, y = batch_of(rank, step)
    return torch.cat([x, torch.full((len(x), 1), float(owner(rank, step)), dtype=x.dtype)], 1), y


def owned_joined(owner, step):
    parts = zip(*(owned_batch(owner, rank, step) for rank in range(RANKS)), strict=True)
    return tuple(torch.cat(part) for part in parts)


def with_heads(rank, name, layout, owner, *, phases=False, options=None, **settings):
    model = layout(Heads, **(options or {}))
    optimizer = built(name, model, seed=3 + rank, **settings)
    weights = train(model, optimizer, functools.partial(owned_batch, owner, rank), STEPS, phases=phases)
    return weights, [p.grad is None for p in model.parameters()]


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


def buffers(rank, name, *, phases, follow=True):
    model = replicas(Statistics)
    model.broadcast_buffers = follow
    train(model, built(name, model), functools.partial(batch_of, rank), STEPS, phases=phases)
    return [model.module.norm.running_mean.clone(), model.module.seen.clone()]


def overflow(rank, layout, name, where, **settings):
    """Overflow in the first pass of rank 0 or the second of rank 1, then take a good step."""
    model = layout()
    optimizer = built(name, model, **settings)
    (good,) = closures_of(model, *batch_of(rank, 0))
    passes = []

    def closure(keep):
        passes.extend([keep] * torch.is_grad_enabled())  # not while ranking
        broken = torch.is_grad_enabled() and (len(passes), rank) == {"first": (1, 0), "second": (2, 1)}[where]
        return good(keep) * (torch.inf if broken else 1)

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = whole_weights(model)
    optimizer.step(closure, scaler=scaler)
    scaler.update()
    assert_same(before, whole_weights(model))
    scale = scaler.get_scale()
    optimizer.step(good, scaler=scaler)
    return scale, whole_weights(model)


def after_an_error(rank, layout, name, which, place):
    """Fail on every rank in the first or second pass; then train."""
    model = layout()
    optimizer = built(name, model)
    (good,) = closures_of(model, *batch_of(rank, 0))
    passes, hooks = [], []

    def fail(*_):
        raise KeyboardInterrupt

    def closure(keep):
        passes.extend([keep] * torch.is_grad_enabled())
        if len(passes) < which or not torch.is_grad_enabled():
            return good(keep)
        if place == "in the forward":
            hooks.append(model[2].register_forward_pre_hook(fail))
        elif place == "in the backward":
            hooks.append(model[3].register_full_backward_hook(fail))
        losses = good(keep)
        return fail() if place == "between them" else losses

    try:
        optimizer.step(closure)
    except KeyboardInterrupt:
        for hook in hooks:
            hook.remove()
        return train(model, optimizer, functools.partial(batch_of, rank), STEPS)
    raise AssertionError("no interrupt")


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


def averaged_weights(rank, method=None):
    """Train with torch's PostLocalSGDOptimizer: each rank by its own gradients, weights averaged every other step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing it, torch uses what it deprecates
        from torch.distributed.optim import PostLocalSGDOptimizer
    model = mlp()
    base = PostLocalSGDOptimizer(sgd(model), PeriodicModelAverager(period=2))
    optimizer = base if method is None else method(base, model)
    seen = []
    for step in STEPS:
        x, y = batch_of(rank, step)
        if method is not None:
            optimizer.step(functools.partial(losses_of, model), x, y)
        else:
            base.zero_grad()
            losses_of(model, x, y).mean().backward()
            base.step()
        seen.append(whole_weights(model))
    optimizer.load_state_dict(optimizer.state_dict())
    return seen


def compiled(rank):
    model = replicas()
    outer = torch.compile(model, backend="eager")
    with torch.compiler.set_stance("force_eager"):  # what is asked is who exchanges gradients
        return train(outer, SAM(sgd(model), outer, rho=RHO), functools.partial(batch_of, rank), STEPS)


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
    """Return where the undisturbed run ends, and one that a new model continues from the folder, in either layout."""
    batch = functools.partial(batch_of, rank)
    model = layout()
    optimizer = built(name, model, SAVED[name], perturbation="global")
    train(model, optimizer, batch, BEFORE)
    dcp.save(state_of(model, optimizer), checkpoint_id=folder)
    seen = {"undisturbed": train(model, optimizer, batch, AFTER)}
    for other in (replicas, shards):
        model = newly_built(other())
        optimizer = built(name, model, SAVED[name], seed=17, perturbation="global")
        read(model, optimizer, folder)
        seen[other] = train(model, optimizer, batch, AFTER)
    return seen


def by_rank_0(rank, name):
    """Gather the whole state on rank 0, and let it give each rank its part."""
    batch = functools.partial(batch_of, rank)
    model = shards()
    optimizer = built(name, model, SAVED[name])
    train(model, optimizer, batch, BEFORE)
    state = copy.deepcopy(state_of(model, optimizer, StateDictOptions(full_state_dict=True, cpu_offload=True)))
    undisturbed = train(model, optimizer, batch, AFTER)
    model = newly_built(shards())
    optimizer = built(name, model, SAVED[name], seed=17)
    load(model, optimizer, state, StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    return undisturbed, train(model, optimizer, batch, AFTER)


def evaluated(model, rank):
    """Run a forward pass alone: the whole weights of the root stay gathered."""
    with torch.no_grad():
        model(batch_of(rank, 0)[0])


def frozen(model, rank):
    model[0].bias.requires_grad_(False)


def never_resharded(model, rank):
    model.set_reshard_after_backward(False)


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


def refused(rank, build, wrap):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own advice on the flag
        model = build()
    before = whole_weights(model)

    def step():
        optimizer = wrap(model)
        run = model if optimizer.model is getattr(model, "module", None) else optimizer.model
        optimizer.step(closures_of(run, *batch_of(rank, 0)))

    reason = why_refused(step)
    assert_same(before, whole_weights(model))
    return reason


BOTH = ("rank", "global")
ERRORS = tuple(itertools.product((1, 2), ("in the forward", "between them", "in the backward")))


def cases(rank, folder):
    """Yield what one pair of processes runs."""

    def case(function, *arguments, **settings):
        return functools.partial(function, rank, *arguments, **settings)

    for name, layout in itertools.product(("base", *JOINED), (replicas, shards)):
        yield ("joined", name, layout), case(trained, name, layout, perturbation="global")
        cut = {"base": adamw, "cuts": CUTS, "phases": True, "perturbation": "global"}
        yield ("joined, cut", name, layout), case(trained, name, layout, **cut)
    for name, way in itertools.product(("esam", "esam-sds", "esam-swp", "sam"), BOTH):
        yield ("hand", name, way), case(trained, name, perturbation=way)
        yield ("hand, cut", name, way), case(trained, name, cuts=CUTS, perturbation=way)
    for name in ("esam", "esam-sds"):
        yield ("hand", name, shards), case(trained, name, shards)
        yield ("hand, cut", name, shards), case(trained, name, shards, cuts=CUTS)
    for name in ROWS:
        yield ("steps", name), case(at_every_step, name)
        if not name.startswith("base") and ", m" not in name:
            yield ("steps, global", name), case(at_every_step, name, perturbation="global")
        yield ("join", name), case(uneven, name)
        yield ("restored", name), case(restored, name)
    for name in FLOWS:
        yield ("phases", name), case(at_every_step, name, phases=True)
        yield ("plain", name), case(trained, name)
        yield ("bucket views", name), case(trained, name, options={"gradient_as_bucket_view": True})
        if name != "slicesam":
            yield ("error", name), case(after_an_error, replicas, name, 1 if name == "base" else 2, "between them")
    for name, phases in itertools.product(("base", "sam", "looksam", "esam", "esam-random"), (False, True)):
        yield ("counted", name, phases), case(counted, name, phases=phases)
    yield ("counted", "global"), case(counted, "sam", perturbation="global")
    yield ("counted", "swp, global"), case(counted, "esam-swp", perturbation="global")
    unused = {"options": {"find_unused_parameters": True}}
    for name, way in itertools.product(("sam", "looksam", "esam-swp"), BOTH):
        yield ("heads", name, way), case(with_heads, name, replicas, by_rank, perturbation=way, **unused)
    yield ("heads", "esam-swp", shards), case(with_heads, "esam-swp", shards, by_step)
    for name, phases in itertools.product(("base", "sam", "esam"), (False, True)):
        yield ("buffers", name, phases), case(buffers, name, phases=phases)
    yield "buffers apart", case(buffers, "sam", phases=False, follow=False)
    for name, where, way in itertools.product(("sam", "looksam", "esam"), ("first", "second"), BOTH):
        yield ("overflow", name, where, way), case(overflow, replicas, name, where, perturbation=way)
    yield ("overflow", "sam", "first", shards), case(overflow, shards, "sam", "first")
    yield ("averaged", "alone"), case(averaged_weights)
    yield ("averaged", "rho 0"), case(averaged_weights, functools.partial(SAM, rho=0.0))
    yield ("averaged", "sam"), case(averaged_weights, SAM)
    yield "compiled", case(compiled)
    for name, shape in itertools.product(("sam", "looksam", "esam"), ((1, RANKS), (RANKS, 1))):
        yield ("mesh", name, shape), case(trained, name, shards, options={"shape": shape})
    for name in ("sam", "looksam", "esam", "esam-swp, suffix"):
        yield ("shards", name), case(trained, name, shards)
        yield ("evaluated", name), case(trained, name, shards, prepare=evaluated)
        yield ("not resharded", name), case(trained, name, shards, prepare=never_resharded)
        yield ("resharded early", name), case(trained, name, shards, options={"reshard_after_forward": True})
    yield "frozen", case(trained, "looksam", shards, prepare=frozen)
    for which, place in ERRORS:
        yield ("error", which, place), case(after_an_error, shards, "sam", which, place)
    for name, (build, wrap, _) in REFUSED.items():
        yield ("refused", name), case(refused, build, wrap)
    for name in SAVED:
        for layout in (replicas, shards):
            yield ("saved", name, layout), case(saved_and_continued, folder / f"{layout.__name__}-{name}", name, layout)
        yield ("saved", name, "by rank 0"), case(by_rank_0, name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def ranks(folder):
    return on_two_ranks(folder, functools.partial(cases, folder=folder), seconds=600)


# What must hold of both -----------------------------------------------------------------------------------------------


@functools.cache
def in_one_process(name, base=sgd, batch=joined, build=mlp):
    model = build()
    return train(model, built(name, model, base), batch, STEPS)


@functools.cache
def by_hand(name, cuts=(0, BATCH), *, one_eps=True):
    beta, gamma = {"sam": (1, 1), "esam-swp": (0.6, 1), "esam-sds": (1, 0.5), "esam": (0.6, 0.5)}[name]
    return esam_by_hand(STEPS, rho=RHO, beta=beta, gamma=gamma, one_eps=one_eps, cuts=cuts)


@pytest.mark.parametrize("name", ["base", *JOINED])
def test_one_eps_for_all_ranks_makes_the_step_of_one_process_on_all_their_samples(ranks, name):
    for seen, layout in itertools.product(ranks, (replicas, shards)):
        assert_near(seen["joined", name, layout], in_one_process(name))
        assert_near(seen["joined, cut", name, layout], in_one_process(name, adamw))


@pytest.mark.parametrize("name", ["sam", "esam-swp", "esam-sds", "esam"])
def test_the_ranks_share_or_own_eps_and_average_the_second_gradients_of_what_each_selects(ranks, name):
    for way in BOTH:
        expected = by_hand(name, one_eps=way == "global")
        assert_near(ranks[0]["hand", name, way], expected)
        assert_near(ranks[0]["hand, cut", name, way], expected)
    assert distance(by_hand(name), by_hand(name, one_eps=False)) > 1e-4


def test_with_shards_samples_are_selected_within_each_micro_batch_of_each_rank(ranks):
    for seen, name in itertools.product(ranks, ("esam", "esam-sds")):
        assert_near(seen["hand", name, shards], by_hand(name))
        assert_near(seen["hand, cut", name, shards], by_hand(name, CUTS))
        assert distance(by_hand(name), by_hand(name, CUTS)) > 1e-4


def test_an_overflow_on_one_rank_skips_the_step_on_both(ranks):
    found = [key for key in ranks[0] if key[0] == "overflow"]
    assert len(found) == 13
    for key in found:
        (scale, weights), (other_scale, others) = (seen[key] for seen in ranks)
        assert scale == other_scale == 512.0, key
        assert_same(weights, others)
        assert distance(weights, whole_weights(mlp())) > 1e-4  # the good step after it


def test_an_error_in_any_pass_leaves_no_trace(ranks):
    for seen in ranks:
        for name in ("base", "sam", "looksam", "esam"):
            assert_same(seen["error", name], seen["plain", name])
        for which, place in ERRORS:
            assert_same(seen["error", which, place], seen["shards", "sam"])


def test_what_cannot_work_is_refused(ranks):
    for seen, (name, (_, _, words)) in itertools.product(ranks, REFUSED.items()):
        assert words in seen["refused", name], name


# Replicas -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_weights_gradients_generator_and_memory_agree_after_every_step_though_batches_do_not(ranks, name):
    for case in (("steps", name), *(c for c in (("phases", name), ("steps, global", name)) if c in ranks[0])):
        for one, other in zip(ranks[0][case], ranks[1][case], strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("name", FLOWS)
def test_three_phases_and_gradients_that_are_views_of_buckets_make_the_step_of_one_call(ranks, name):
    for at_once, in_phases in zip(ranks[0]["steps", name], ranks[0]["phases", name], strict=True):
        assert_near(at_once, in_phases)
    assert_same(ranks[0]["plain", name], ranks[0]["bucket views", name])


WEIGHTS, TENSORS = sum(p.numel() for p in mlp().parameters()), len(list(mlp().parameters()))


def test_a_step_of_three_micro_batches_exchanges_gradients_once_and_what_a_method_needs_besides(ranks):
    for seen in ranks:
        assert seen["counted", "base", False] == seen["counted", "sam", False] == [[WEIGHTS]] * len(STEPS)
        assert seen["counted", "sam", True] == [[WEIGHTS]] * len(STEPS)
        # no backward knows that it is the last, so the sum is exchanged when it is asked for
        assert seen["counted", "base", True] == [[TENSORS, WEIGHTS]] * len(STEPS)
        # one eps for all ranks, and the whole gradient that LookSAM reuses
        assert seen["counted", "global"] == [[TENSORS, WEIGHTS, WEIGHTS]] * len(STEPS)
        assert seen["counted", "looksam", False] == [[TENSORS, WEIGHTS, WEIGHTS], [WEIGHTS]] * 2
        # what ESAM remembers: two numbers a tensor
        for name, phases in itertools.product(("esam", "esam-random"), (False, True)):
            first, *later = seen["counted", name, phases]
            assert sorted(first) == [2 * TENSORS, WEIGHTS]
            assert all(len(sums) == 2 and min(sums) <= 2 * TENSORS and max(sums) == WEIGHTS for sums in later)
        drawn = [sums[1] for sums in seen["counted", "swp, global"]]
        assert drawn[0] == WEIGHTS > min(drawn)  # their norms are not known yet; then the drawn tensors' alone


def test_a_head_that_one_rank_uses_counts_and_one_that_none_uses_does_not(ranks):
    for name in ("sam", "looksam", "esam-swp"):
        alone = in_one_process(name, batch=functools.partial(owned_joined, by_rank), build=Heads)
        for way in BOTH:
            (weights, without), (others, _) = (seen["heads", name, way] for seen in ranks)
            assert_same(weights, others)
            assert without == [False] * 6 + [True] * 2  # trunk, two heads; the third
            assert_same(weights[-2:], alone[-2:])  # not even weight decay
            assert (distance(weights, alone) > 1e-4) == (way == "rank")
        assert_near(weights, alone)


def test_buffers_are_moved_by_the_first_pass_of_rank_0_or_of_each_rank_as_the_user_wants_it(ranks):
    for rank, seen in enumerate(ranks):
        for name, phases in itertools.product(("base", "sam", "esam"), (False, True)):
            assert_near(seen["buffers", name, phases], buffers_by_hand(0))
        assert_near(seen["buffers apart"], buffers_by_hand(rank))


def buffers_by_hand(rank):
    mean, total = torch.zeros(4, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for step in STEPS:
        x, _ = batch_of(rank, step)
        mean, total = 0.9 * mean + 0.1 * x.mean(0), total + x.sum()
    return [mean, total]


def test_a_compiled_replica_exchanges_gradients_too(ranks):
    assert_same(ranks[0]["compiled"], ranks[1]["compiled"])
    assert_near(ranks[0]["compiled"], ranks[0]["hand", "sam", "rank"])


def test_join_trains_on_uneven_batches_or_is_refused_on_every_rank_at_the_first_step(ranks):
    """Before: SliceSAM hung until the group's timeout, ESAM died in gloo."""
    refused = []
    for name in ROWS:
        first, second = (seen["join", name] for seen in ranks)
        if isinstance(first, str):
            assert "join()" in first and first == second
            refused.append(name)
        else:
            assert_same(first, second)
    assert {"esam", "looksam"} <= set(refused)  # they exchange numbers of their own in a step
    assert not {"base", "sam", "asam", "esam-sds", "slicesam", "msam"} & set(refused)
    model = mlp()
    base, weights = sgd(model), list(model.parameters())
    for step in range(max(UNEVEN)):  # a rank that has run out adds nothing to the mean over both
        batches = [batch_of(rank, step) for rank in range(RANKS) if step < UNEVEN[rank]]
        each = [reference.sam(functools.partial(losses_of, model, *batch), weights, RHO) for batch in batches]
        for w, *gradients in zip(weights, *each, strict=True):
            w.grad = sum(gradients) / RANKS
        base.step()
    assert_near(ranks[0]["join", "sam"], whole_weights(model))


def test_a_base_that_averages_weights_over_ranks_does_so(ranks):
    for step in STEPS:
        for seen in ranks:
            assert_same(seen["averaged", "alone"][step], seen["averaged", "rho 0"][step])
        one, other = (seen["averaged", "sam"][step] for seen in ranks)
        assert (distance(one, other) == 0) == (step % 2 == 0)


# Shards ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_shards_and_what_is_gathered_from_them_are_back_bit_for_bit_before_the_base_steps(ranks, name):
    for seen in ranks:
        before, in_between, after = seen["restored", name]
        assert_same(before, in_between)
        assert_same(before, after)


@pytest.mark.parametrize("name", ["sam", "looksam", "esam"])
def test_replicas_of_shards_take_the_same_step(ranks, name):
    expected = by_hand(name) if name == "esam" else in_one_process(name)
    for seen, shape in itertools.product(ranks, ((1, RANKS), (RANKS, 1))):
        assert_near(seen["mesh", name, shape], expected)


@pytest.mark.parametrize("name", ["sam", "looksam", "esam", "esam-swp, suffix"])
def test_weights_that_stay_gathered_after_a_pass_are_never_used_again(ranks, name):
    for seen, how in itertools.product(ranks, ("evaluated", "not resharded", "resharded early")):
        assert_same(seen[how, name], seen["shards", name])


def test_a_frozen_shard_stays_as_it_is_and_the_others_train_as_in_one_process(ranks):
    model = mlp()
    frozen(model, 0)
    alone = train(model, built("looksam", model), joined, STEPS)
    for seen in ranks:
        assert_near(seen["frozen"], alone)
    assert_same(alone[1:2], whole_weights(mlp())[1:2])


def test_a_head_that_a_step_does_not_use_counts_as_zero_in_the_norm(ranks):
    alone = in_one_process("esam-swp", batch=functools.partial(owned_joined, by_step), build=Heads)
    for seen in ranks:
        assert_near(seen["heads", "esam-swp", shards][0], alone)


# Checkpoints ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAVED)
def test_a_run_saved_on_two_ranks_continues_on_two(ranks, name):
    for seen in ranks:
        for layout, other in ((replicas, shards), (shards, replicas)):
            run = seen["saved", name, layout]
            assert_same(run[layout], run["undisturbed"])
            assert_near(run[other], run["undisturbed"])
        undisturbed, gathered_on_rank_0 = seen["saved", name, "by rank 0"]
        assert_same(gathered_on_rank_0, undisturbed)


@pytest.mark.parametrize("layout", [replicas, shards])
@pytest.mark.parametrize("name", ["sam", "looksam", "esam-swp"])  # a random half is drawn on each rank
def test_a_run_saved_on_two_ranks_continues_on_one(ranks, folder, name, layout):
    model = newly_built(mlp())
    optimizer = built(name, model, seed=17)
    read(model, optimizer, folder / f"{layout.__name__}-{name}", alone=True)
    assert_near(train(model, optimizer, joined, AFTER), ranks[0]["saved", name, layout]["undisturbed"])


def halfway(name, groups=None):
    """Return a model and its optimizer after some steps in one process."""
    model = mlp()
    optimizer = built(name, model, sgd if groups is None else in_groups(groups))
    train(model, optimizer, joined, BEFORE)
    return model, optimizer


def in_groups(dims):
    """Return a base with matrices and biases in groups of their own, in the order of their dimensions."""

    def base(model):
        of_dim = {dim: {"params": [p for p in model.parameters() if p.dim() == dim]} for dim in dims}
        of_dim[1]["sam_rho"] = 0.1
        return torch.optim.SGD(list(of_dim.values()), lr=0.1, momentum=0.9)

    return base


@pytest.mark.parametrize("name", ["looksam", "esam-swp", "esam"])
def test_memory_follows_the_names_where_the_groups_stand_in_another_order(name):
    model, optimizer = halfway(name, (2, 1))
    state = copy.deepcopy(state_of(model, optimizer))
    other = newly_built(mlp())
    continued = built(name, other, in_groups((1, 2)), seed=17)
    load(other, continued, state)
    # sums over tensors in another order round differently
    assert_near(train(other, continued, joined, AFTER), train(model, optimizer, joined, AFTER))


@pytest.mark.parametrize("name", ["looksam", "esam-swp"])
def test_a_state_of_the_base_alone_starts_with_fresh_memory_whatever_was_remembered(name):
    model, optimizer = halfway(name)
    state, weights = copy.deepcopy((optimizer.base.state_dict(), model.state_dict()))
    fresh_model = mlp()
    fresh = built(name, fresh_model)
    fresh.generator.set_state(optimizer.generator.get_state())  # the stream of draws goes on where it was
    for m, o in ((model, optimizer), (fresh_model, fresh)):
        m.load_state_dict(weights)
        o.load_state_dict(copy.deepcopy(state))
    assert_same(train(model, optimizer, joined, AFTER), train(fresh_model, fresh, joined, AFTER))
