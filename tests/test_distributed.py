"""Two processes on one machine (gloo, loopback): does a step mean the same on every rank?

One spawn runs every scenario and saves what it saw; the tests read it. Each rank perturbs by its own gradient; only the
second gradients are averaged.
"""

import datetime
import functools
import itertools
import os
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from conftest import EVERY_METHOD
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from esam import SAM
from esam.optim import reference

RANKS = 2
BATCH = 8
STEPS = 3
LR, MOMENTUM = 0.1, 0.9

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"
)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def with_batchnorm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()


def batch_of(rank):
    generator = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(BATCH, 4, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 3, (BATCH,), generator=generator)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=LR, momentum=MOMENTUM)


def values(model):
    return [p.detach().clone() for p in model.parameters()]


# What runs on each rank -----------------------------------------------------------------------------------------------


def train(rank, build, method, cuts=(0, BATCH), steps=STEPS, ddp=None, counted=None, seed=3):
    """Return the trained weights and buffers of this rank; ``cuts`` splits its batch into micro-batches."""
    model = DistributedDataParallel(build(), **(ddp or {}))
    if counted is not None:
        model.register_comm_hook(counted, counting_hook)
    x, y = batch_of(rank)
    optimizer = method(sgd(model.parameters()), model, seed=seed)

    def micro_batch(start, stop):
        part_x, part_y = x[start:stop], y[start:stop]
        return lambda keep: F.cross_entropy(model(part_x[keep]), part_y[keep], reduction="none")

    closures = [micro_batch(start, stop) for start, stop in itertools.pairwise(cuts)]
    losses = [float(optimizer.step(closures)) for _ in range(steps)]
    return {
        "weights": values(model),
        "gradients": [p.grad.clone() for p in model.parameters()],
        "buffers": {k: v.clone() for k, v in model.module.named_buffers()},
        "losses": losses,
    }


def counting_hook(counter, bucket):
    counter.append(bucket.is_last())
    return allreduce_hook(dist.group.WORLD, bucket)


def scenarios(rank):
    seen = {}
    for name, method in EVERY_METHOD.items():
        seen[name, "whole"] = train(rank, mlp, method)
        seen[name, "split"] = train(rank, mlp, method, cuts=(0, 3, 4, BATCH))
        # the other rank cuts its batch elsewhere, as loaders that bucket by length do
        seen[name, "split unlike"] = train(rank, mlp, method, cuts=((0, 4, BATCH), (0, 2, BATCH))[rank])
        seen[name, "batchnorm"] = train(rank, with_batchnorm, method)
        seen[name, "unlike seeds"] = train(rank, mlp, method, seed=3 + rank)
        seen[name, "bucket views"] = train(rank, mlp, method, ddp={"gradient_as_bucket_view": True})
        counted = []
        train(rank, mlp, method, cuts=(0, 3, BATCH), counted=counted)
        seen[name, "synchronisations"] = sum(counted)
    seen["rho 0, split unlike"] = train(
        rank, mlp, lambda *a, **k: SAM(*a, rho=0.0, **k), cuts=((0, 4, BATCH), (0, 2, BATCH))[rank]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own advice on the flag
        try:
            train(rank, mlp, EVERY_METHOD["sam"], ddp={"static_graph": True})
            seen["static graph"] = "trains"
        except Exception as error:
            seen["static graph"] = f"{type(error).__name__}: {error}"
    seen["sharded"] = sharded(rank)
    return seen


def sharded(rank):
    """Return the losses of SAM on a model that FSDP shards, without and with a radius; or why it was refused."""
    mesh = init_device_mesh("cpu", (RANKS,))
    x, y = batch_of(rank)
    losses = []
    for rho in (0.0, 0.5):
        model = fully_shard(mlp(), mesh=mesh)
        try:
            optimizer = SAM(torch.optim.SGD(model.parameters(), lr=LR), model, rho=rho)
            closure = functools.partial(
                lambda model, keep: F.cross_entropy(model(x[keep]), y[keep], reduction="none"), model
            )
            losses.append([float(optimizer.step(closure)) for _ in range(STEPS)])
        except ValueError as refused:
            return str(refused)
    return losses


def one_sided_overflow(rank):
    """fp16's overflow in the first pass of rank 0 only: what do both ranks do?"""
    seen = {}
    for name in ("sam", "looksam", "esam"):
        model = DistributedDataParallel(mlp())
        x, y = batch_of(rank)
        before, calls = values(model), []

        def closure(keep, model=model, x=x, y=y, calls=calls):
            calls.append(keep)
            losses = F.cross_entropy(model(x[keep]), y[keep], reduction="none")
            return losses * torch.inf if rank == 0 and len(calls) == 1 else losses

        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        EVERY_METHOD[name](sgd(model.parameters()), model, seed=3).step(closure, scaler=scaler)
        scaler.update()
        seen[name] = {"before": before, "after": values(model), "scale": scaler.get_scale()}
    return seen


def worker(rank, folder, job, seconds):
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting-point",
        rank=rank,
        world_size=RANKS,
        timeout=datetime.timedelta(seconds=seconds),
    )
    try:
        torch.save(job(rank), f"{folder}/rank{rank}.pt")
    finally:
        dist.destroy_process_group()


def on_two_ranks(folder, job, seconds):
    torch.multiprocessing.spawn(worker, (str(folder), job, seconds), RANKS)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(RANKS)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return on_two_ranks(tmp_path_factory.mktemp("ranks"), scenarios, 60)


# What must hold -------------------------------------------------------------------------------------------------------


def assert_same(ranks, *key):
    one, other = (seen[key if len(key) > 1 else key[0]] for seen in ranks)
    for a, b in zip(one["weights"], other["weights"], strict=True):
        assert torch.equal(a, b)
    for a, b in zip(one["gradients"], other["gradients"], strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("scenario", ["whole", "split", "split unlike", "batchnorm", "unlike seeds", "bucket views"])
@pytest.mark.parametrize("name", EVERY_METHOD)
def test_both_ranks_hold_the_same_weights_after_three_steps(ranks, name, scenario):
    assert_same(ranks, name, scenario)


def test_rho_zero_agrees_on_both_ranks_though_their_micro_batches_differ_in_size(ranks):
    assert_same(ranks, "rho 0, split unlike")


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_the_ranks_did_see_different_data(ranks, name):
    assert ranks[0][name, "whole"]["losses"] != ranks[1][name, "whole"]["losses"]


def by_hand(twins):
    """Train one copy of the weights: each rank's twin gives its second gradient, their mean makes the step."""
    model = mlp()
    weights = list(model.parameters())
    base = sgd(weights)
    for _ in range(STEPS):
        gradients = []
        for rank in range(RANKS):
            x, y = batch_of(rank)
            gradients.append(
                twins[rank](lambda keep, x=x, y=y: F.cross_entropy(model(x[keep]), y[keep], reduction="none"), weights)
            )
        for w, *of_ranks in zip(weights, *gradients, strict=True):
            w.grad = sum(of_ranks) / RANKS
        base.step()
    return values(model)


def sam_by_hand(losses, weights):
    """SAM, with eps from this rank's own gradient, as one flat vector."""
    theta = [w.detach().clone() for w in weights]
    flat = torch.cat([g.flatten() for g in torch.autograd.grad(losses(slice(None)).mean(), weights)])
    eps = 0.05 * flat / flat.norm()
    with torch.no_grad():
        for w, e in zip(weights, eps.split([w.numel() for w in weights]), strict=True):
            w += e.view_as(w)
    second = torch.autograd.grad(losses(slice(None)).mean(), weights)
    with torch.no_grad():
        for w, t in zip(weights, theta, strict=True):
            w.copy_(t)
    return list(second)


def twins_of(name, seeds):
    if name == "sam":
        return [sam_by_hand for _ in seeds]
    if name == "asam":
        return [functools.partial(reference.asam, rho=0.5, eta=0.01) for _ in seeds]
    return [reference.ESAM(0.05, 0.6, 0.5, torch.Generator().manual_seed(seed)) for seed in seeds]


@pytest.mark.parametrize(
    ("name", "scenario", "seeds"),
    [
        ("sam", "whole", (3, 3)),
        ("asam", "whole", (3, 3)),
        ("esam-paper", "whole", (3, 3)),
        ("esam-paper", "unlike seeds", (3, 4)),
    ],
)
def test_each_rank_perturbs_by_its_own_gradient_and_the_second_gradients_are_averaged(ranks, name, scenario, seeds):
    for trained, expected in zip(ranks[0][name, scenario]["weights"], by_hand(twins_of(name, seeds)), strict=True):
        torch.testing.assert_close(trained, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("name", EVERY_METHOD)
def test_micro_batches_on_two_ranks_equal_the_one_batch_on_two_ranks(ranks, name, rank):
    for scenario in ("split", "split unlike"):
        for a, b in zip(ranks[rank][name, "whole"]["weights"], ranks[rank][name, scenario]["weights"], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_a_step_of_two_micro_batches_synchronises_the_gradients_once(ranks, name):
    assert ranks[0][name, "synchronisations"] == STEPS
    assert ranks[1][name, "synchronisations"] == STEPS


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_batchnorm_counts_one_batch_a_step_on_every_rank(ranks, name):
    for seen in ranks:
        assert int(seen[name, "batchnorm"]["buffers"]["1.num_batches_tracked"]) == STEPS


def test_a_static_graph_trains_or_is_refused_with_a_remedy(ranks):
    for seen in ranks:
        assert seen["static graph"] == "trains" or seen["static graph"].startswith("ValueError: ")


def test_a_sharded_model_is_refused_or_perturbed_but_never_trained_as_if_rho_were_zero(ranks):
    for seen in ranks:
        if not isinstance(seen["sharded"], str):
            without, perturbed = seen["sharded"]
            assert without != perturbed


def test_an_overflow_on_one_rank_skips_the_step_on_both_and_neither_waits_for_ever(tmp_path):
    for seen in on_two_ranks(tmp_path, one_sided_overflow, 15):
        for name, run in seen.items():
            assert run["scale"] == 512.0, name
            assert all(torch.equal(a, b) for a, b in zip(run["before"], run["after"], strict=True)), name
