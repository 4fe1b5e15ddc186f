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
from conftest import mlp, normalised, start
from our_loop import alike_on_two_ranks, assert_same, by_hand, data, loss_function
from torch import nn
from two_ranks import RANKS, TwoRanks, needs_gloo

from esam.integrations.accelerate import backward


def forget():
    """Accelerate keeps its state for the whole process."""
    for kind in (AcceleratorState, GradientState, PartialState):
        kind._reset_state()


@pytest.fixture(autouse=True)
def fresh():
    yield
    forget()


def prepared(name="sam", build=normalised, dtype=torch.float64, scaler=None, **settings):
    """Return an accelerator, a net, and what it makes of the net and its optimizer."""
    accelerator = accelerate.Accelerator(cpu=True, **settings)
    if scaler is not None:  # on a CPU it makes none itself
        accelerator.scaler = scaler
    p, optimizer = start(name, build, dtype=dtype)
    return accelerator, p.model, *accelerator.prepare(p.model, optimizer)


def by_accelerate(name, loader, *, window=1, clip=None, scaler=None, broken=None, **built):
    accelerator, net, model, optimizer = prepared(name, gradient_accumulation_steps=window, scaler=scaler, **built)
    torch.manual_seed(7)
    losses = []
    for number, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss_of = loss_function(model, optimizer.optimizer, torch.inf if number == broken else 1.0)
            losses.append(backward(accelerator, optimizer, loss_of, *batch))
            if clip is not None and accelerator.sync_gradients:
                if scaler is not None:
                    scaler.unscale_(optimizer.optimizer)
                clip(model.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()
    return net, losses


@pytest.mark.parametrize(
    "how", [{}, {"window": 2, "clip": nn.utils.clip_grad_norm_}], ids=["plain", "accumulated and clipped"]
)
@pytest.mark.parametrize("name", ["base", "sam", "esam", "slicesam", "looksam"])
def test_an_accelerated_loop_takes_a_methods_steps_bit_for_bit(name, how):
    (found, losses), (expected, ours) = by_accelerate(name, data(), **how), by_hand(name, data(), **how)
    assert_same(found, expected)
    assert losses == ours


def test_a_scaler_skips_a_step_that_overflows():
    scaler, theirs = (torch.amp.GradScaler("cpu", init_scale=2.0**10) for _ in range(2))
    settings = {"dtype": torch.float32, "build": mlp, "clip": nn.utils.clip_grad_norm_, "broken": 3}
    expected = by_hand("esam", data(torch.float32), scaler=scaler, **settings)[0]
    assert_same(by_accelerate("esam", data(torch.float32), scaler=theirs, **settings)[0], expected)
    assert theirs.get_scale() == scaler.get_scale() == 2.0**9


def test_a_closure_given_to_step_while_accelerate_accumulates_is_refused_not_dropped():
    """Accelerate calls the optimizer in every second batch only: the closures of the others would never run."""
    accelerator, _, model, optimizer = prepared(gradient_accumulation_steps=2)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"runs one closure in 2 and drops the other batches; call esam.integrations"):
        for x, y in data():
            with accelerator.accumulate(model):
                optimizer.step(lambda keep, x=x, y=y: F.cross_entropy(model(x[keep]), y[keep]))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_without_accumulation_a_closure_may_be_given_to_step():
    accelerator, net, model, optimizer = prepared()
    torch.manual_seed(7)
    for x, y in data():
        with accelerator.accumulate(model):
            optimizer.step(lambda keep, x=x, y=y: F.cross_entropy(model(x[keep]), y[keep]))
    assert_same(net, by_hand("sam", data())[0])


def test_a_second_backward_before_the_step_is_refused_and_names_what_accumulates():
    """Loops that count micro-batches themselves: every call would end a step, and all but the last be dropped."""
    accelerator, _, model, optimizer = prepared()
    loss_of = loss_function(model, optimizer.optimizer)
    backward(accelerator, optimizer, loss_of, *data()[0])
    with pytest.raises(ValueError, match=r"accelerator\.accumulate\(model\)"):
        backward(accelerator, optimizer, loss_of, *data()[1])
    optimizer.step()  # by the first batch, which is still there


def test_a_state_saved_by_accelerate_resumes_bit_for_bit(tmp_path):
    accelerator, net, model, optimizer = prepared("looksam", mlp)

    def train(net, optimizer, loader):
        for x, y in loader:
            backward(accelerator, optimizer, loss_function(net, optimizer.optimizer), x, y)
            optimizer.step()

    train(model, optimizer, data()[:3])
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    p, second = start("looksam")
    p.model.load_state_dict(net.state_dict())
    second = accelerator.prepare(second)
    second.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    for m, o in ((net, optimizer), (p.model, second)):
        train(m, o, data()[3:])
    assert_same(p.model, net)


def test_the_pages_code_runs():
    scope = {"loader": data(torch.float32), "model": mlp(torch.float32)}
    scope["accelerator"] = accelerate.Accelerator(cpu=True)
    assert torch.isfinite(snippets.run("trainers.md", scope, under="Accelerate")["loss"])


# Two processes --------------------------------------------------------------------------------------------------------


def both(name, window, loader):
    warnings.filterwarnings("ignore", ".*No device id is provided", UserWarning)
    os.environ["ACCELERATE_USE_CPU"] = "true"
    forget()
    found, _ = by_accelerate(name, loader, window=window, build=mlp)
    assert accelerate.Accelerator().num_processes == RANKS
    return found, by_hand(name, loader, window=window, build=mlp, wrap=nn.parallel.DistributedDataParallel)[0]


@needs_gloo
@pytest.mark.slow
def test_two_processes_take_our_loops_steps_and_end_alike(tmp_path):
    with TwoRanks(tmp_path, fork=True) as ranks:
        alike_on_two_ranks(ranks, both)
