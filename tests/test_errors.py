"""Every bad argument says what was given, what is allowed and what to do; nothing changes."""

import pytest
import torch
from conftest import normalised, problem
from torch import nn

from esam import ASAM, ESAM, SAM, LookSAM

MODEL = nn.Linear(2, 2)
BASE = torch.optim.SGD(MODEL.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ESAM(BASE, MODEL, gamma=1.5), r"gamma must be in \(0, 1\], got 1.5"),
        (lambda: ESAM(BASE, MODEL, gamma=0), r"gamma must be in \(0, 1\], got 0"),
        (lambda: ESAM(BASE, MODEL, beta=-1), r"beta must be in \(0, 1\], got -1"),
        (lambda: ESAM(BASE, MODEL, beta="half"), r"beta must be in \(0, 1\], got 'half'"),
        (lambda: ESAM(BASE, MODEL, norm="l1"), 'norm must be "full" or "selected", got \'l1\''),
        (lambda: ESAM(BASE, MODEL, mask="all"), "mask must be one of independent, suffix or a function .* got 'all'"),
        (
            lambda: ESAM(BASE, MODEL, ranking="best"),
            "ranking must be one of exact, aligned, random or a function",
        ),
        (lambda: SAM(BASE, MODEL, rho=-0.1), "rho must be a finite number >= 0 .* got -0.1"),
        (lambda: SAM(BASE, MODEL, rho=float("nan")), "rho must be a finite number"),
        (lambda: SAM(BASE, MODEL, m=0), "m must be a whole number of samples >= 1, got 0"),
        (lambda: SAM(BASE, MODEL, m=1.5), "m must be a whole number"),
        (lambda: ASAM(BASE, MODEL, eta=-1), "eta must be a finite number >= 0, got -1"),
        (lambda: LookSAM(BASE, MODEL, k=0), "k must be a whole number of steps >= 1, got 0"),
        (lambda: LookSAM(BASE, MODEL, alpha=float("inf")), "alpha must be a finite number >= 0, got inf"),
        (
            lambda: SAM(MODEL.parameters(), MODEL),
            r"base must be a torch.optim.Optimizer, got generator; build it first",
        ),
        (lambda: SAM(torch.optim.SGD, MODEL), "base must be a torch.optim.Optimizer, got type"),
        (lambda: SAM(SAM(BASE, MODEL), MODEL), r"base is sharpness-aware itself \(SAM\)"),
        (lambda: SAM(BASE, MODEL.parameters()), "model must be the torch.nn.Module that base trains, got generator"),
        (lambda: SAM(torch.optim.LBFGS(MODEL.parameters()), MODEL), "LBFGS calls a closure of its own"),
    ],
)
def test_a_bad_argument_is_refused_with_what_is_allowed(build, message):
    with pytest.raises(ValueError, match=message):
        build()
    assert "rho" not in torch.optim.SGD(MODEL.parameters(), lr=0.1).param_groups[0]


@pytest.mark.parametrize("group", [{"rho": -1.0}, {"rho": "big"}, {"perturb": "no"}])
def test_a_bad_group_is_refused_and_not_added(group):
    optimizer = SAM(torch.optim.SGD(MODEL.parameters(), lr=0.1), MODEL)
    with pytest.raises(ValueError, match="rho must be|perturb must be"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], **group})
    assert len(optimizer.param_groups) == 1
    with pytest.raises(ValueError, match="rho must be|perturb must be"):
        SAM(torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))], **group}], lr=0.1), MODEL)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda losses: losses.mean(), r'returned a scalar; .* one loss per sample \(reduction="none"\)'),
        (lambda losses: losses[:, None], r"losses of shape \(12, 1\); .* shape \(batch,\)"),
        (lambda losses: losses[:0], "the batch is empty"),
        (lambda losses: losses.detach(), "without a graph; .* without detach"),
        (lambda losses: losses.tolist(), "returned list; return a tensor of losses"),
        (lambda losses: None, "returned NoneType"),
        (lambda losses: losses.long(), "losses of type torch.int64"),
    ],
)
def test_losses_of_the_wrong_kind_are_refused_and_nothing_changes(wrong, message):
    p = problem(normalised)
    optimizer = ESAM(torch.optim.SGD(p.model.parameters(), lr=0.1, momentum=0.9), p.model)
    optimizer.step(p.closure)
    before = {k: v.clone() for k, v in p.model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        optimizer.step(lambda keep: wrong(p.closure(keep)))
    assert all(torch.equal(v, before[k]) for k, v in p.model.state_dict().items())


def test_a_closure_that_ignores_its_argument_is_caught():
    p = problem()
    optimizer = ESAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model)
    with pytest.raises(ValueError, match=r"returned 12 losses for 6 samples; index inputs and targets by its argument"):
        optimizer.step(lambda keep: p.closure(slice(None)))


@pytest.mark.parametrize("closure", [None, 3, [], [None]])
def test_a_step_without_closure_says_what_to_pass(closure):
    p = problem()
    optimizer = SAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model)
    with pytest.raises(
        ValueError, match="closure for each micro-batch|a closure is wanted|list of closures|pass step a closure"
    ):
        optimizer.step(closure)


def test_a_model_with_nothing_to_train_says_so():
    p = problem()
    optimizer = SAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model)
    p.model.requires_grad_(False)
    with pytest.raises(ValueError, match="check that some parameter requires a gradient"):
        optimizer.step(p.closure)


@pytest.mark.parametrize("sizes", [0, [12, 3], [-1], 7, 20])
def test_a_wrong_batch_size_is_refused(sizes):
    p = problem()
    optimizer = SAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model, m=12 if sizes in (7, 20) else 4)
    with pytest.raises((ValueError, IndexError), match="batch_size must|losses for|out of bounds"):
        optimizer.step(p.closure, batch_size=sizes)


def test_another_methods_state_is_refused_before_anything_is_loaded():
    p = problem()
    optimizer = SAM(torch.optim.SGD(p.model.parameters(), lr=0.1, momentum=0.9), p.model)
    other = ESAM(torch.optim.SGD(p.model.parameters(), lr=0.7, momentum=0.9), p.model)
    other.step(p.closure)
    with pytest.raises(ValueError, match=r"saved by ESAM, not SAM; .* optimizer.base.state_dict"):
        optimizer.load_state_dict(other.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert not optimizer.state
