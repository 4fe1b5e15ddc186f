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
        (lambda: ESAM(BASE, MODEL, gamma=True), r"gamma must be in \(0, 1\], got True"),
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
        (lambda: SAM(BASE, MODEL, rho=True), "rho must be a finite number >= 0 .* got True"),
        (lambda: SAM(BASE, MODEL, perturbation="all"), 'perturbation must be "rank" or "global", got \'all\''),
        (lambda: SAM(BASE, MODEL, m=True), "m must be a whole number of samples >= 1, got True"),
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
def test_a_bad_argument_is_refused_with_what_is_allowed_and_the_base_is_left_as_it_was(build, message):
    before = [dict(group) for group in BASE.param_groups], dict(BASE.state)
    with pytest.raises(ValueError, match=message):
        build()
    assert (BASE.param_groups, dict(BASE.state)) == before


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


@pytest.mark.parametrize(
    ("closure", "message"),
    [
        (None, "there is none; call .* or pass step a closure"),
        (3, "a closure is wanted, got int; pass a function"),
        ([], "empty list of closures; pass one closure for each micro-batch"),
        ([None], "a closure is wanted, got NoneType; pass a function"),
    ],
)
def test_a_step_without_closure_says_what_to_pass(closure, message):
    p = problem()
    optimizer = SAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model)
    with pytest.raises(ValueError, match=message):
        optimizer.step(closure)


def test_a_model_with_nothing_to_train_says_so():
    p = problem()
    optimizer = SAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model)
    p.model.requires_grad_(False)
    with pytest.raises(ValueError, match="check that some parameter requires a gradient"):
        optimizer.step(p.closure)


@pytest.mark.parametrize(
    ("sizes", "m", "message"),
    [
        (0, 4, r"batch_size must give one whole number >= 1 for each of 1 closures, got \[0\]"),
        ([12, 3], 4, r"for each of 1 closures, got \[12, 3\]"),
        (12.5, 4, r"got \[12.5\]"),
        ("12", 4, r"got \['12'\]"),
        (7, 12, r"12 losses for 7 samples; .* batch_size, if given, is len\(x\)"),
        (20, None, r"12 losses for 20 samples; .* batch_size, if given, is len\(x\)"),
        (20, 8, r"no sample 15 .* batch_size, if given, is len\(x\)"),
    ],
)
def test_a_wrong_batch_size_is_refused_with_a_remedy_and_nothing_changes(sizes, m, message):
    p = problem(normalised)
    optimizer = SAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model, m=m)
    before = {k: v.clone() for k, v in p.model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        optimizer.step(p.closure, batch_size=sizes)
    assert all(torch.equal(v, before[k]) for k, v in p.model.state_dict().items())


def test_an_index_error_of_the_closures_own_is_not_taken_for_a_wrong_batch_size():
    p = problem()
    optimizer = SAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model)
    with pytest.raises(IndexError, match="list index out of range"):
        optimizer.step(lambda keep: [][0])


def test_another_methods_state_is_refused_before_anything_is_loaded():
    p = problem()
    optimizer = SAM(torch.optim.SGD(p.model.parameters(), lr=0.1, momentum=0.9), p.model)
    other = ESAM(torch.optim.SGD(p.model.parameters(), lr=0.7, momentum=0.9), p.model)
    other.step(p.closure)
    with pytest.raises(ValueError, match=r"saved by ESAM, not SAM; .* optimizer.base.state_dict"):
        optimizer.load_state_dict(other.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert not optimizer.state


@pytest.mark.parametrize("m", [None, 4])
def test_a_closure_without_an_argument_is_refused_with_the_names_of_the_ways_out(m):
    """As trainers have them; with m it is called to be counted before it is called to be trained on."""
    p = problem(normalised)
    optimizer = SAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model, m=m)
    before = {k: v.clone() for k, v in p.model.state_dict().items()}
    with pytest.raises(ValueError, match=r"takes no samples to keep; .* lambda keep: .*SharpnessAware\(\)"):
        optimizer.step(lambda: p.closure(slice(None)))
    assert all(torch.equal(v, before[k]) for k, v in p.model.state_dict().items())


def test_a_type_error_of_the_closures_own_is_not_taken_for_a_wrong_closure():
    p = problem()
    optimizer = SAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model)
    with pytest.raises(TypeError, match="unsupported operand"):
        optimizer.step(lambda keep: p.closure(keep) + "loss")


def test_a_model_that_is_set_anew_is_checked_as_the_first_one_was():
    p = problem()
    optimizer = SAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model)
    with pytest.raises(ValueError, match=r"model must be the torch.nn.Module that base trains, got str"):
        optimizer.model = "model"
    assert optimizer.model is p.model
