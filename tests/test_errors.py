"""Every bad argument says what was given, what is allowed and what to do; nothing changes."""

import numpy as np
import pytest
import torch
from conftest import normalised, problem
from torch import nn

from esam import ASAM, ESAM, SAM, LookSAM, SliceSAM, method_of

MODEL = nn.Linear(2, 2)
BASE = torch.optim.SGD(MODEL.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ESAM(BASE, MODEL, gamma=1.5), r"gamma .*\(0, 1\], got 1.5"),
        (lambda: ESAM(BASE, MODEL, gamma=True), "gamma .* got True"),
        (lambda: ESAM(BASE, MODEL, beta="half"), "beta .* got 'half'"),
        (lambda: ESAM(BASE, MODEL, norm="l1"), "norm .*full.*selected.* got 'l1'"),
        (lambda: ESAM(BASE, MODEL, mask="all"), "mask .*independent.*suffix.* got 'all'"),
        (lambda: ESAM(BASE, MODEL, ranking="best"), "ranking .*exact.*aligned.*random"),
        (lambda: SAM(BASE, MODEL, rho=-0.1), "rho .*>= 0.* got -0.1"),
        (lambda: SAM(BASE, MODEL, rho=float("nan")), "rho .*finite"),
        (lambda: SAM(BASE, MODEL, m=0), "m .*>= 1, got 0"),
        (lambda: SAM(BASE, MODEL, m=1.5), "m .*whole number"),
        (lambda: SAM(BASE, MODEL, perturbation="all"), "perturbation .*rank.*global.* got 'all'"),
        (lambda: SAM(BASE, MODEL, loss="median"), "loss .*mean.*sum.*whole"),
        (lambda: ESAM(BASE, MODEL, loss="whole"), "never cut"),
        (lambda: SAM(BASE, MODEL, loss="whole", m=4), "never cut"),
        (lambda: ASAM(BASE, MODEL, eta=-1), "eta .* got -1"),
        (lambda: LookSAM(BASE, MODEL, k=0), "k .*>= 1, got 0"),
        (lambda: SliceSAM(BASE, MODEL, share=0), r"share .*\(0, 1\]"),
        (lambda: SAM(MODEL.parameters(), MODEL), "base .*Optimizer, got generator"),
        (lambda: SAM(SAM(BASE, MODEL), MODEL), "sharpness-aware itself"),
        (lambda: SAM(BASE, MODEL.parameters()), "model .*Module"),
        (lambda: SAM(torch.optim.LBFGS(MODEL.parameters()), MODEL), "LBFGS"),
        (lambda: SAM(BASE, nn.Linear(2, 2)), "none of the model's parameters"),
        (lambda: method_of("sam2"), "there is no method 'sam2'.*sam"),
        (lambda: method_of("no.such:Class"), "no.such"),
        (lambda: method_of("torch.nn:Linear"), "not a subclass"),
    ],
)
def test_a_bad_argument_is_refused_with_what_is_allowed_and_the_base_is_left_as_it_was(build, message):
    before = [dict(group) for group in BASE.param_groups], dict(BASE.state)
    with pytest.raises(ValueError, match=message):
        build()
    assert (BASE.param_groups, dict(BASE.state)) == before


def test_a_radius_may_be_any_real_number():
    assert SAM(BASE, MODEL, rho=np.float32(0.5)).rho == 0.5


@pytest.mark.parametrize("group", [{"sam_rho": -1.0}, {"sam_rho": "big"}, {"perturb": "no"}])
def test_a_bad_group_is_refused_and_not_added(group):
    optimizer = SAM(torch.optim.SGD(MODEL.parameters(), lr=0.1), MODEL)
    with pytest.raises(ValueError, match=next(iter(group))):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], **group})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda losses: losses.detach(), "no graph"),
        (lambda losses: losses.mean(), "one loss per sample"),
        (lambda losses: losses[:, None], "shape"),
        (lambda losses: losses[:0], "empty"),
        (lambda losses: losses.tolist(), "returned list"),
        (lambda losses: losses[:5], "5 losses for 12 samples"),
        (lambda losses: losses.repeat_interleave(2), "24 losses for 12 samples"),
        (lambda losses: (losses > 0).long(), "floating-point"),
        (lambda losses: {"loss": losses}, "returned dict"),
    ],
)
def test_losses_of_the_wrong_kind_are_refused_and_nothing_changes(wrong, message):
    p = problem(normalised)
    optimizer = ESAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model)
    before = {k: v.clone() for k, v in p.model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        p.step(optimizer, lambda x, y: wrong(p.loss_of(x, y)))
    assert all(torch.equal(v, before[k]) for k, v in p.model.state_dict().items())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o, p: o.step(3), "function is wanted"),
        (lambda o, p: o.step([]), "closures"),
        (lambda o, p: o.step([p.closure], p.x), "takes no batch"),
        (lambda o, p: o.step([p.closure, p.closure], batch_size=12), "each of 2 closures"),
        (lambda o, p: o.step(p.closure, batch_size=0), "batch_size"),
        (lambda o, p: o.step(p.closure, batch_size=12.5), "batch_size"),
        (lambda o, p: o.step(p.loss_of, p.x, p.y, batch_size=11), "batch has 12"),
        (lambda o, p: o.step(lambda: p.closure(slice(None))), "takes no samples"),
        (lambda o, p: o.step(p.closure, batch_size=20), "12 losses for 20"),
    ],
)
def test_a_call_that_cannot_work_says_what_to_pass(call, message):
    p = problem()
    optimizer = SAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model)
    weights = p.weights
    with pytest.raises(ValueError, match=message):
        call(optimizer, p)
    assert all(torch.equal(a, b) for a, b in zip(p.weights, weights, strict=True))


def test_a_model_with_nothing_to_train_says_so():
    p = problem()
    optimizer = SAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model)
    p.model.requires_grad_(False)
    with pytest.raises(ValueError, match="requires a gradient"):
        p.step(optimizer)


@pytest.mark.parametrize("error", [IndexError, TypeError, RuntimeError])
def test_an_error_of_the_models_own_keeps_its_type_and_message(error):
    p = problem()
    optimizer = SliceSAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model)

    def loss_of(x, y):
        raise error("token 7 is out of range")

    with pytest.raises(error, match="token 7 is out of range"):
        p.step(optimizer, loss_of)


def test_another_methods_state_is_refused_before_anything_is_loaded():
    p = problem()
    sam = SAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model)
    esam = ESAM(torch.optim.SGD(p.model.parameters(), lr=0.2), p.model)
    with pytest.raises(ValueError, match="saved by SAM, not ESAM"):
        esam.load_state_dict(sam.state_dict())
    assert esam.param_groups[0]["lr"] == 0.2


def test_a_model_that_is_set_anew_is_checked_as_the_first_one_was():
    optimizer = SAM(torch.optim.SGD(MODEL.parameters(), lr=0.1), MODEL)
    with pytest.raises(ValueError, match="model must be"):
        optimizer.model = None
    assert optimizer.model is MODEL
