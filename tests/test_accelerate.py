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
from conftest import EVERY_ROW, mlp, normalised
from torch import nn
from two_ranks import RANKS, needs_gloo, on_two_ranks

from esam import METHODS, SAM
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


def closure_of(net, x, y, factor=1.0):
    return lambda keep: F.cross_entropy(net(x[keep]), y[keep], reduction="none") * factor


def by_accelerate(
    name, loader, *, window=1, clip=None, build=normalised, dtype=torch.float64, scaler=None, broken=None
):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=window)
    if scaler is not None:  # on a CPU it makes none itself
        accelerator.scaler = scaler
    net, optimizer = start(name, build, dtype)
    model, optimizer = accelerator.prepare(net, optimizer)
    torch.manual_seed(7)
    losses = []
    for number, (x, y) in enumerate(loader):
        with accelerator.accumulate(model):
            factor = torch.inf if number == broken else 1.0
            losses.append(backward(accelerator, optimizer, closure_of(model, x, y, factor), batch_size=len(x)))
            if clip is not None and accelerator.sync_gradients:
                if scaler is None:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                else:
                    scaler.unscale_(optimizer.optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return net, losses


def by_hand(name, loader, *, window=1, clip=None, build=normalised, dtype=torch.float64, scaler=None, broken=None):
    net, optimizer = start(name, build, dtype)
    torch.manual_seed(7)
    losses = []
    for first in range(0, len(loader), window):
        for number, (x, y) in enumerate(loader[first : first + window], start=first):
            closure = closure_of(net, x, y, torch.inf if number == broken else 1.0)
            losses.append(optimizer.accumulate(closure, scaler=scaler, batch_size=len(x)).mean())
        optimizer.gradient()
        if scaler is not None:
            scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    return net, losses


def assert_same(a, b):
    torch.testing.assert_close(a.state_dict(), b.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("name", EVERY_ROW)
def test_an_accelerated_loop_takes_every_methods_steps_bit_for_bit(name):
    (found, losses), (expected, ours) = by_accelerate(name, data()), by_hand(name, data())
    assert_same(found, expected)
    assert losses == ours


@pytest.mark.parametrize("name", ["base", "sam", "esam", "slicesam", "looksam"])
def test_accumulated_and_clipped_steps_are_those_of_our_loop(name):
    settings = {"window": 2, "clip": 0.01}
    assert_same(by_accelerate(name, data(), **settings)[0], by_hand(name, data(), **settings)[0])


@pytest.mark.parametrize("name", ["sam", "esam"])
def test_a_scaler_skips_a_step_that_overflows(name):
    scaler, theirs = (torch.amp.GradScaler("cpu", init_scale=2.0**10) for _ in range(2))
    settings = {"dtype": torch.float32, "build": mlp, "clip": 0.5, "broken": 3}
    expected = by_hand(name, data(torch.float32), scaler=scaler, **settings)[0]
    assert_same(by_accelerate(name, data(torch.float32), scaler=theirs, **settings)[0], expected)
    assert theirs.get_scale() == scaler.get_scale() == 2.0**9


@pytest.mark.parametrize("name", ["sam", "esam"])
def test_a_closure_given_to_step_while_accelerate_accumulates_is_refused_not_dropped(name):
    """Accelerate calls the optimizer in every second batch only: the closures of the others would never run."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer = accelerator.prepare(*start(name))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"runs one closure in 2 and drops the other batches; call esam.integrations"):
        for x, y in data():
            with accelerator.accumulate(model):
                optimizer.step(closure_of(model, x, y))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_without_accumulation_a_closure_may_be_given_to_step():
    accelerator = accelerate.Accelerator(cpu=True)
    net, optimizer = start("sam")
    model, optimizer = accelerator.prepare(net, optimizer)
    torch.manual_seed(7)
    for x, y in data():
        with accelerator.accumulate(model):
            optimizer.step(closure_of(model, x, y))
    assert_same(net, by_hand("sam", data())[0])


def test_a_second_backward_before_the_step_is_refused_and_names_what_accumulates():
    """Loops that count micro-batches themselves: every call would end a step, and all but the last be dropped."""
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(*start("sam"))
    before = copy.deepcopy(model.state_dict())
    first, second = data()[:2]
    backward(accelerator, optimizer, lambda x, y: F.cross_entropy(model(x), y), *first)
    after_first = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"accelerator\.accumulate\(model\)"):
        backward(accelerator, optimizer, lambda x, y: F.cross_entropy(model(x), y), *second)
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
        backward(accelerator, optimizer, closure_of(model, x, y))
        optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    other.load_state_dict(net.state_dict())
    prepared = accelerator.prepare(second)
    prepared.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    for x, y in data()[3:]:
        for m, o in ((net, optimizer), (other, prepared)):
            backward(accelerator, o, closure_of(m, x, y))
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

    def accelerated(name, window):
        for kind in (AcceleratorState, GradientState, PartialState):
            kind._reset_state()
        net, _ = by_accelerate(name, loader, window=window, build=mlp)
        return accelerate.Accelerator().num_processes, net.state_dict()

    def hand(window):
        net, optimizer = start("sam", mlp)
        model = nn.parallel.DistributedDataParallel(net)
        optimizer = SAM(optimizer.base, model, seed=3)
        for first in range(0, BATCHES, window):
            for x, y in loader[first : first + window]:
                optimizer.accumulate(closure_of(model, x, y), batch_size=len(x))
            optimizer.gradient()
            optimizer.step()
        return net.state_dict()

    for name in ("sam", "esam", "slicesam"):
        yield name, lambda name=name: accelerated(name, 1)
    yield "accumulated", lambda: accelerated("sam", 2)
    yield "by hand", lambda: hand(1)
    yield "accumulated by hand", lambda: hand(2)


@needs_gloo
@pytest.mark.slow
def test_two_processes_take_our_loops_steps_and_end_alike(tmp_path):
    first, second = on_two_ranks(tmp_path, cases, fork=True)
    for name in ("sam", "esam", "slicesam", "accumulated"):
        assert first[name][0] == RANKS
        torch.testing.assert_close(first[name][1], second[name][1], rtol=0, atol=0)
    torch.testing.assert_close(first["sam"][1], first["by hand"], rtol=0, atol=0)
    torch.testing.assert_close(first["accumulated"][1], first["accumulated by hand"], rtol=0, atol=0)
