"""Coming from another package: does one changed import do, and do the page's diffs train the same weights?"""

import copy
import math
import pickle
import re
import sys
import types
import warnings

import pytest
import snippets
import torch
import torch.nn.functional as F
from conftest import assert_same
from plain_loops import batches, net, plain_steps, two_steps
from torch import nn

import esam
from esam import MSAM
from esam.compat import SAM

pytestmark = pytest.mark.filterwarnings("ignore:::pytorch_optimizer")


@pytest.fixture
def old():
    """sam.py, as pytorch_optimizer has it."""
    return pytest.importorskip("pytorch_optimizer").SAM


def ours(model, base=torch.optim.SGD, **settings):
    return SAM(model.parameters(), base, **{"lr": 0.1, "momentum": 0.9, "model": model, **settings})


# One changed import --------------------------------------------------------------------------------------------------


def test_radii_of_groups_and_schedules_that_write_them_are_those_of_the_old_loop(old):
    """Before: ``rho`` in a group was read by nobody."""
    a, b = net(norm=False), net(norm=False)
    made = []
    for model, build in ((a, SAM), (b, old)):
        groups = [{"params": model[0].parameters(), "rho": 1.0}, {"params": model[1:].parameters(), "rho": 0.0}]
        made.append(build(groups, torch.optim.SGD, lr=0.1))
        two_steps(model, made[-1], batches(3))
        made[-1].param_groups[1]["rho"] = 0.3
        two_steps(model, made[-1], batches(3))
    assert_same(a, b, 1e-8)
    with pytest.raises(ValueError, match="one for all groups"):
        two_steps(a, SAM([{"params": a.parameters(), "adaptive": True}], torch.optim.SGD, lr=0.1), batches(1))


def test_a_state_of_sam_py_with_nothing_of_its_base_starts_the_base_afresh(old):
    """Before: KeyError: 'step'."""
    model = net()
    theirs = old(model.parameters(), torch.optim.AdamW, lr=0.1)
    two_steps(model, theirs, batches(1))
    saved = theirs.state_dict()
    saved["state"] = {n: {"old_p": torch.zeros(1)} for n in saved["state"]}  # what the widely copied file keeps
    optimizer = SAM(model.parameters(), torch.optim.AdamW)
    optimizer.load_state_dict(saved)
    two_steps(model, optimizer, batches(1))


@pytest.mark.parametrize("adaptive", [False, True])
def test_fifty_steps_of_the_old_loop_are_the_old_steps(old, adaptive):
    a, b = net(norm=False), net(norm=False)
    two_steps(a, ours(a, rho=0.1, adaptive=adaptive), batches(50))
    two_steps(b, old(b.parameters(), torch.optim.SGD, rho=0.1, adaptive=adaptive, lr=0.1, momentum=0.9), batches(50))
    assert_same(a, b, 1e-8)  # float64; the 1e-12 in their norm is the difference


def test_the_closure_form_is_the_two_steps():
    one, two = net(), net()
    optimizer = ours(one)
    for x, y in batches(4):

        def closure(x=x, y=y):
            F.cross_entropy(one(x), y).backward()

        closure()
        optimizer.step(closure)
        optimizer.zero_grad()
    two_steps(two, ours(two), batches(4))
    assert_same(one, two)


def test_with_the_model_batchnorm_moves_once_and_weights_without_a_second_gradient_return():
    model, unused = net(), nn.Parameter(torch.ones(3).double())
    optimizer = SAM([*model.parameters(), unused], torch.optim.SGD, lr=0.0, rho=0.5, model=model)
    x, y = next(batches(1))
    once = copy.deepcopy(model)
    once(x)
    (F.cross_entropy(model(x), y) + unused.sum()).backward()
    optimizer.first_step(zero_grad=True)
    assert not torch.equal(unused, torch.ones(3).double())
    F.cross_entropy(model(x), y).backward()  # without the unused parameter
    optimizer.second_step()
    assert torch.equal(unused, torch.ones(3).double())
    assert_same(model, once)


def test_a_resumed_run_of_the_old_loop_goes_on_as_the_undisturbed_one():
    data = list(batches(6))
    whole, half, again = net(), net(), net()
    two_steps(whole, ours(whole), data)
    first, second = ours(half), ours(again)
    two_steps(half, first, data[:3])
    again.load_state_dict(half.state_dict())
    second.load_state_dict(first.state_dict())
    two_steps(again, second, data[3:])
    assert_same(whole, again)


@pytest.mark.parametrize("overflow", [False, True])
def test_a_grad_scaler_takes_the_second_step_or_skips_it_and_theta_returns(old, overflow):
    model, plain = net(norm=False).float(), net(norm=False)
    before = copy.deepcopy(model)
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, rho=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    x, y = next(batches(1))
    scaler.scale(F.cross_entropy(model(x.float()), y)).backward()
    optimizer.first_step(zero_grad=True)
    scaler.scale(F.cross_entropy(model(x.float()), y)).backward()
    if overflow:
        model[0].weight.grad[0, 0] = math.inf
    scaler.step(optimizer)
    scaler.update()
    if overflow:
        return assert_same(model, before)
    two_steps(plain, old(plain.parameters(), torch.optim.SGD, rho=0.1, lr=0.1), [(x, y)])
    assert_same(model.double(), plain, 1e-4)  # float32 against float64, one step


def test_steps_out_of_order_are_refused_and_an_error_in_between_can_be_taken_back():
    model = net()
    optimizer = ours(model)
    with pytest.raises(ValueError, match="first_step"):
        optimizer.second_step()
    with pytest.raises(ValueError, match="after backward"):
        optimizer.first_step()
    with pytest.raises(ValueError, match="class"):
        SAM(model.parameters(), optimizer.base)
    x, y = next(batches(1))
    F.cross_entropy(model(x), y).backward()
    after_first = copy.deepcopy(model)
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    assert_same(model, after_first)


def test_it_says_once_what_it_repairs_and_a_scheduler_of_the_old_loop_moves_the_rate(monkeypatch):
    monkeypatch.setattr("esam.compat._SAID", False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours(net())
        model = net()
        optimizer = ours(model)
        two_steps(model, optimizer, batches(4), torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.1))
    assert [w.category for w in caught] == [esam.GuidanceWarning]
    assert optimizer.base_optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
@pytest.mark.parametrize(("make", "steps"), [(SAM, two_steps), (MSAM, plain_steps)])
def test_a_copy_of_model_and_optimizer_trains_on_as_the_original(make, steps, copied):
    model = net()
    optimizer = make(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    steps(model, optimizer, batches(3))
    twin, again = copied((model, optimizer))
    steps(model, optimizer, batches(2))
    steps(twin, again, batches(2))
    assert_same(model, twin)
    assert again.param_groups[0]["params"][0] is next(twin.parameters())


# The page ------------------------------------------------------------------------------------------------------------


def trained_by(code):
    model = net()
    scope = {"torch": torch, "F": F, "model": model, "loader": list(batches(5))}
    exec(compile(code, "migrating.md", "exec"), scope)
    return scope, model


@pytest.mark.parametrize(("title", "before", "after"), snippets.diffs("migrating.md"))
def test_a_diff_of_the_page_applies_and_trains_the_same_weights(old, title, before, after, monkeypatch):
    compile(before, "migrating.md", "exec")
    scope, model = trained_by(after)
    assert isinstance(scope["optimizer"], torch.optim.Optimizer) and type(scope["optimizer"]).__module__[:4] == "esam"
    assert all(not torch.equal(a, b) for a, b in zip(model.parameters(), net().parameters(), strict=True))
    package = re.match(r"(?:from|import) (\w+)", before).group(1)
    if package in ("sam", "pytorch_optimizer"):  # the others are not installed
        monkeypatch.setitem(sys.modules, "sam", types.SimpleNamespace(SAM=old))
        # float64; the 1e-12 in their norm is the difference; their second pass moves BatchNorm too
        assert_same(trained_by(before)[1].parameters(), model.parameters(), 1e-8)
