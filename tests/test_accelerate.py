"""Accelerate with our backward: is it our own loop bit for bit, and is no batch ever dropped in silence?"""

import copy
import os
import warnings

import accelerate
import pytest
import snippets
import torch
import torch.nn.functional as F
from accelerate.state import AcceleratorState, GradientState, PartialState
from conftest import mlp, normalised
from torch import nn
from two_ranks import RANKS, needs_gloo, on_two_ranks

from esam import METHODS
from esam.integrations.accelerate import backward

BATCHES, SIZE = 6, 8


@pytest.fixture(autouse=True)
def fresh():
    """Accelerate keeps its state for the whole process."""
    yield
    for kind in (AcceleratorState, GradientState, PartialState):
        kind._reset_state()


def data(dtype=torch.float64, batches=BATCHES):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batches * SIZE, 6, dtype=dtype, generator=generator)
    return [(x[i : i + SIZE], x[i : i + SIZE, :3].argmax(1)) for i in range(0, len(x), SIZE)]


def start(name, build=normalised, dtype=torch.float64, **settings):
    torch.manual_seed(0)
    net = build(dtype)
    base = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    return net, METHODS[name](base, net, seed=3, **settings)


def loss_function(net, factor=1.0):
    return lambda x, y: F.cross_entropy(net(x), y, reduction="none") * factor


def by_accelerate(name, loader, *, window=1, clip=None, scaler=None, broken=None, **built):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=window)
    if scaler is not None:  # on a CPU it makes none itself
        accelerator.scaler = scaler
    net, optimizer = start(name, **built)
    model, optimizer = accelerator.prepare(net, optimizer)
    torch.manual_seed(7)
    losses = []
    for number, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss_of = loss_function(model, torch.inf if number == broken else 1.0)
            losses.append(backward(accelerator, optimizer, loss_of, *batch))
            if clip is not None and accelerator.sync_gradients:
                if scaler is None:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                else:
                    scaler.unscale_(optimizer.optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return net, losses


def by_hand(name, loader, *, window=1, clip=None, scaler=None, broken=None, wrap=lambda net: net, **built):
    net, optimizer = start(name, **built)
    optimizer.model = model = wrap(net)
    torch.manual_seed(7)
    losses = []
    for first in range(0, len(loader), window):
        for number, batch in enumerate(loader[first : first + window], start=first):
            loss_of = loss_function(model, torch.inf if number == broken else 1.0)
            losses.append(optimizer.accumulate(loss_of, *batch, scaler=scaler).mean())
        optimizer.gradient()
        if scaler is not None:
            scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    return net, losses


def assert_same(a, b):
    torch.testing.assert_close(a.state_dict(), b.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("how", [{}, {"window": 2, "clip": 0.01}], ids=["plain", "accumulated and clipped"])
@pytest.mark.parametrize("name", ["base", "sam", "esam", "slicesam", "looksam"])
def test_an_accelerated_loop_takes_a_methods_steps_bit_for_bit(name, how):
    (found, losses), (expected, ours) = by_accelerate(name, data(), **how), by_hand(name, data(), **how)
    assert_same(found, expected)
    assert losses == ours


def test_a_scaler_skips_a_step_that_overflows():
    scaler, theirs = (torch.amp.GradScaler("cpu", init_scale=2.0**10) for _ in range(2))
    settings = {"dtype": torch.float32, "build": mlp, "clip": 0.5, "broken": 3}
    expected = by_hand("esam", data(torch.float32), scaler=scaler, **settings)[0]
    assert_same(by_accelerate("esam", data(torch.float32), scaler=theirs, **settings)[0], expected)
    assert theirs.get_scale() == scaler.get_scale() == 2.0**9


def test_a_closure_given_to_step_while_accelerate_accumulates_is_refused_not_dropped():
    """Accelerate calls the optimizer in every second batch only: the closures of the others would never run."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer = accelerator.prepare(*start("sam"))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"runs one closure in 2 and drops the other batches; call esam.integrations"):
        for x, y in data():
            with accelerator.accumulate(model):
                optimizer.step(lambda keep, x=x, y=y: F.cross_entropy(model(x[keep]), y[keep]))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_without_accumulation_a_closure_may_be_given_to_step():
    accelerator = accelerate.Accelerator(cpu=True)
    net, optimizer = start("sam")
    model, optimizer = accelerator.prepare(net, optimizer)
    torch.manual_seed(7)
    for x, y in data():
        with accelerator.accumulate(model):
            optimizer.step(lambda keep, x=x, y=y: F.cross_entropy(model(x[keep]), y[keep]))
    assert_same(net, by_hand("sam", data())[0])


def test_a_second_backward_before_the_step_is_refused_and_names_what_accumulates():
    """Loops that count micro-batches themselves: every call would end a step, and all but the last be dropped."""
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(*start("sam"))
    before = copy.deepcopy(model.state_dict())
    first, second = data()[:2]
    backward(accelerator, optimizer, loss_function(model), *first)
    after_first = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"accelerator\.accumulate\(model\)"):
        backward(accelerator, optimizer, loss_function(model), *second)
    torch.testing.assert_close(model.state_dict(), after_first, rtol=0, atol=0)
    assert torch.equal(before["0.weight"], model[0].weight)
    optimizer.step()  # by the first batch, which is still there


def test_a_loss_in_the_old_way_is_refused():
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(*start("sam"))
    x, y = data()[0]
    accelerator.backward(F.cross_entropy(model(x), y))
    with pytest.raises(ValueError, match="gradient"):
        optimizer.step()


def test_an_optimizer_that_is_not_ours_is_refused_with_a_remedy():
    accelerator = accelerate.Accelerator(cpu=True)
    net, _ = start("sam")
    optimizer = accelerator.prepare(torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="wants one of esam's optimizers, got AcceleratedOptimizer; build it before"):
        backward(accelerator, optimizer, lambda keep: net(data()[0][0]).sum())


def test_a_state_saved_by_accelerate_resumes_bit_for_bit(tmp_path):
    accelerator = accelerate.Accelerator(cpu=True)
    (net, optimizer), (other, second) = start("looksam", mlp), start("looksam", mlp)
    model, optimizer = accelerator.prepare(net, optimizer)
    for x, y in data()[:3]:
        backward(accelerator, optimizer, loss_function(model), x, y)
        optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    other.load_state_dict(net.state_dict())
    prepared = accelerator.prepare(second)
    prepared.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    for x, y in data()[3:]:
        for m, o in ((net, optimizer), (other, prepared)):
            backward(accelerator, o, loss_function(m), x, y)
            o.step()
    assert_same(other, net)


def test_the_pages_code_runs():
    net, _ = start("sam", mlp, torch.float32)
    scope = {"loader": data(torch.float32), "model": net, "accelerator": accelerate.Accelerator(cpu=True)}
    assert torch.isfinite(snippets.run("trainers.md", scope, under="Accelerate")["loss"])


# Two processes --------------------------------------------------------------------------------------------------------


def cases(rank):
    warnings.filterwarnings("ignore", ".*No device id is provided", UserWarning)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}
    os.environ |= {key: str(value) for key, value in names.items()} | {"ACCELERATE_USE_CPU": "true"}
    loader = data(batches=2 * BATCHES)[rank::RANKS]

    def both(name, window):
        for kind in (AcceleratorState, GradientState, PartialState):
            kind._reset_state()
        found, _ = by_accelerate(name, loader, window=window, build=mlp)
        assert accelerate.Accelerator().num_processes == RANKS
        expected, _ = by_hand(name, loader, window=window, build=mlp, wrap=nn.parallel.DistributedDataParallel)
        return found.state_dict(), expected.state_dict()

    for name, window in RUN_ON_RANKS:
        yield (name, window), lambda name=name, window=window: both(name, window)


RUN_ON_RANKS = [("sam", 1), ("sam", 2), ("esam", 1), ("slicesam", 1)]


@needs_gloo
@pytest.mark.slow
def test_two_processes_take_our_loops_steps_and_end_alike(tmp_path):
    first, second = on_two_ranks(tmp_path, cases, fork=True)
    for case in RUN_ON_RANKS:
        torch.testing.assert_close(first[case], second[case], rtol=0, atol=0)
        torch.testing.assert_close(*first[case], rtol=0, atol=0)
