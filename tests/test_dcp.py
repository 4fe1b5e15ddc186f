"""Checkpoints: does a saved run go on as if nothing had happened, on as many ranks, on fewer, laid out anew?"""

import copy
import functools

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from two_ranks import (
    SEVERAL,
    adamw,
    assert_near,
    assert_same,
    batch_of,
    closures_of,
    joined,
    losses_of,
    mlp,
    needs_gloo,
    on_two_ranks,
    sgd,
    train,
)

from esam import ESAM, METHODS

pytestmark = [needs_gloo, pytest.mark.filterwarnings("ignore:torch.distributed is disabled"), pytest.mark.slow]

BEFORE, AFTER = range(3), range(3, 6)
ROWS = {
    **SEVERAL,
    # saved between two perturbed steps: the count and the part to reuse both matter
    "looksam": functools.partial(METHODS["looksam"], k=4),
    "esam-random, AdamW": METHODS["esam-random"],
}
ON_TWO = ("sam", "looksam", "esam-swp", "esam-random, AdamW")


def built(name, model, *, seed=3, **settings):
    base = adamw if "AdamW" in name else sgd
    return ROWS[name](base(model), model, seed=seed, **({} if name.startswith("base") else settings))


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


# What runs on each rank -----------------------------------------------------------------------------------------------

LAYOUTS = {"replicas": lambda: DistributedDataParallel(mlp()), "shards": lambda: fully_shard(mlp())}


def saved_and_continued(rank, folder, name, layout):
    """Return where the undisturbed run ends, and one that a new model continues from the folder, in either layout."""
    batch = functools.partial(batch_of, rank)
    model = LAYOUTS[layout]()
    optimizer = built(name, model, perturbation="global")
    train(model, optimizer, batch, BEFORE)
    dcp.save(state_of(model, optimizer), checkpoint_id=folder)
    seen = {"undisturbed": train(model, optimizer, batch, AFTER)}
    for other in LAYOUTS:
        model = newly_built(LAYOUTS[other]())
        optimizer = built(name, model, seed=17, perturbation="global")
        read(model, optimizer, folder)
        seen[other] = train(model, optimizer, batch, AFTER)
    return seen


def by_rank_0(rank, name):
    """Gather the whole state on rank 0, and let it give each rank its part."""
    batch = functools.partial(batch_of, rank)
    model = fully_shard(mlp())
    optimizer = built(name, model)
    train(model, optimizer, batch, BEFORE)
    state = copy.deepcopy(state_of(model, optimizer, StateDictOptions(full_state_dict=True, cpu_offload=True)))
    undisturbed = train(model, optimizer, batch, AFTER)
    model = newly_built(fully_shard(mlp()))
    optimizer = built(name, model, seed=17)
    load(model, optimizer, state, StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    return undisturbed, train(model, optimizer, batch, AFTER)


def cases(rank, folder):
    """Yield what one pair of processes runs."""
    for name in ON_TWO:
        for layout in LAYOUTS:
            where = f"{folder}/{layout}-{name}"
            yield (name, layout), functools.partial(saved_and_continued, rank, where, name, layout)
        yield (name, "by rank 0"), functools.partial(by_rank_0, rank, name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def ranks(folder):
    return on_two_ranks(folder, functools.partial(cases, folder=str(folder)))


# What must hold -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ON_TWO)
def test_a_run_saved_on_two_ranks_continues_on_two(ranks, name, layout):
    for seen in ranks:
        run = seen[name, layout]
        assert_same(run[layout], run["undisturbed"])
        assert_near(run["shards" if layout == "replicas" else "replicas"], run["undisturbed"])
        undisturbed, gathered_on_rank_0 = seen[name, "by rank 0"]
        assert_same(gathered_on_rank_0, undisturbed)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["sam", "looksam", "esam-swp"])  # a random half is drawn on each rank
def test_a_run_saved_on_two_ranks_continues_on_one(ranks, folder, name, layout):
    undisturbed = ranks[0][name, layout]["undisturbed"]
    model = newly_built(mlp())
    optimizer = built(name, model, seed=17)
    read(model, optimizer, folder / f"{layout}-{name}", alone=True)
    assert_near(train(model, optimizer, joined, AFTER), undisturbed)


def halfway(name, groups=None):
    """Return a model and its optimizer after some steps in one process."""
    model = mlp()
    base = sgd(model) if groups is None else torch.optim.SGD(groups(model), lr=0.1, momentum=0.9)
    optimizer = ROWS[name](base, model, seed=3)
    train(model, optimizer, joined, BEFORE)
    return model, optimizer


@pytest.mark.parametrize("name", ROWS)
def test_a_run_saved_by_one_process_continues_bit_for_bit(tmp_path, name):
    model, optimizer = halfway(name)
    other = newly_built(mlp())
    continued = ROWS[name](sgd(other), other, seed=17)
    dcp.save(state_of(model, optimizer), checkpoint_id=tmp_path, no_dist=True)
    read(other, continued, tmp_path, alone=True)
    assert_same(train(other, continued, joined, AFTER), train(model, optimizer, joined, AFTER))


def test_what_esam_remembers_is_saved_under_the_names_of_its_tensors():
    model = mlp()
    gradients = torch.autograd.grad(losses_of(model, *joined(0)).mean(), list(model.parameters()))
    optimizer = ESAM(torch.optim.SGD(model.parameters(), lr=0.1), model, seed=3)
    optimizer.step(closures_of(model, *joined(0)))
    state = get_optimizer_state_dict(model, optimizer)["state"]
    names = [name for name, _ in model.named_parameters()]
    assert list(state) == names
    for name, gradient in zip(names, gradients, strict=True):
        (norm,) = state[name].values()
        torch.testing.assert_close(norm, gradient.norm(), rtol=1e-14, atol=0)


def weights_first(model):
    return [{"params": [p for p in model.parameters() if p.dim() == 2]}, biases(model)]


def biases_first(model):
    return weights_first(model)[::-1]


def biases(model):
    return {"params": [p for p in model.parameters() if p.dim() == 1], "perturb": True, "sam_rho": 0.1}


@pytest.mark.parametrize("name", ["looksam", "esam-swp", "esam"])
def test_memory_follows_the_names_where_the_groups_stand_in_another_order(name):
    model, optimizer = halfway(name, weights_first)
    state = copy.deepcopy(state_of(model, optimizer))
    other = newly_built(mlp())
    continued = ROWS[name](torch.optim.SGD(biases_first(other), lr=0.1, momentum=0.9), other, seed=17)
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


def test_a_step_under_way_does_not_outlive_the_loading_of_another_state():
    model, optimizer = halfway("sam")
    state = optimizer.state_dict()
    optimizer.accumulate(closures_of(model, *joined(3))[0])
    optimizer.load_state_dict(state)
    with pytest.raises(ValueError, match="nothing to work on"):
        optimizer.gradient()
