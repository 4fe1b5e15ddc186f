"""Every bad argument, call and loss is refused with a word on what is wrong; nothing changes."""

import numpy as np
import pytest
import torch
from conftest import assert_same, normalised, problem, sgd
from torch import nn

from esam import ASAM, ESAM, METHODS, SAM, LookSAM, SliceSAM, method_of

MODEL = nn.Linear(2, 2)
BASE = torch.optim.SGD(MODEL.parameters(), lr=0.1)

ARGUMENTS = [
    (lambda: ESAM(BASE, MODEL, gamma=1.5), r"gamma .*\(0, 1\], got 1.5"),  # the value, the range: in all of them
    (lambda: ESAM(BASE, MODEL, gamma=True), "gamma"),
    (lambda: ESAM(BASE, MODEL, beta="half"), "beta"),
    (lambda: ESAM(BASE, MODEL, norm="l1"), "norm .*full.*selected.* got 'l1'"),
    (lambda: ESAM(BASE, MODEL, mask="all"), "mask"),
    (lambda: ESAM(BASE, MODEL, ranking="best"), "ranking"),
    (lambda: SAM(BASE, MODEL, rho=-0.1), "rho .*>= 0.* got -0.1"),
    (lambda: SAM(BASE, MODEL, rho=float("nan")), "rho"),
    (lambda: SAM(BASE, MODEL, rho="wide"), "rho"),
    (lambda: SAM(BASE, MODEL, m=0), "m .*>= 1, got 0"),
    (lambda: SAM(BASE, MODEL, m=1.5), "m .*whole"),
    (lambda: SAM(BASE, MODEL, perturbation="all"), "perturbation"),
    (lambda: SAM(BASE, MODEL, loss="median"), "loss"),
    (lambda: ESAM(BASE, MODEL, loss="whole"), "whole"),
    (lambda: SAM(BASE, MODEL, loss="whole", m=4), "whole"),
    (lambda: ASAM(BASE, MODEL, eta=-1), "eta"),
    (lambda: LookSAM(BASE, MODEL, k=0), "k .*>= 1"),
    (lambda: SliceSAM(BASE, MODEL, share=0), "share"),
    (lambda: SliceSAM(BASE, MODEL, overhead=1.5), "overhead"),
    (lambda: SAM(MODEL.parameters(), MODEL), "Optimizer"),
    (lambda: SAM(SAM(BASE, MODEL), MODEL), "base.base"),
    (lambda: SAM(BASE, MODEL.parameters()), "Module"),
    (lambda: setattr(SAM(BASE, MODEL), "model", None), "Module"),
    (lambda: SAM(torch.optim.LBFGS(MODEL.parameters()), MODEL), "LBFGS"),
    (lambda: SAM(BASE, nn.Linear(2, 2)), "none of the model's"),
    (lambda: method_of("sam2"), "sam2"),
    (lambda: method_of("no.such:Class"), "no.such"),
    (lambda: method_of("torch.nn:Linear"), "subclass"),
    *(
        (lambda group=group: SAM(BASE, MODEL).add_param_group({"params": [nn.Parameter(torch.ones(1))], **group}), key)
        for key, group in (("sam_rho", {"sam_rho": -1.0}), ("sam_rho", {"sam_rho": "big"}), ("perturb", {"perturb": 1}))
    ),
]


def test_a_bad_argument_is_refused_and_the_base_is_left_as_it_was():
    before = [dict(group) for group in BASE.param_groups], dict(BASE.state)
    for build, words in ARGUMENTS:
        with pytest.raises(ValueError, match=words):
            build()
        assert (BASE.param_groups, dict(BASE.state)) == before
    assert SAM(BASE, MODEL, rho=np.float32(0.5)).rho == 0.5


LOSSES = [
    (lambda losses: losses.detach(), "graph"),
    (lambda losses: losses.mean(), "per sample"),
    (lambda losses: losses[:, None], "shape"),
    (lambda losses: losses[:0], "empty"),
    (lambda losses: losses.tolist(), "list"),
    (lambda losses: losses[:5], "5 losses for 12"),
    (lambda losses: losses.repeat_interleave(2), "24 losses for 12"),
    (lambda losses: (losses > 0).long(), "floating"),
    (lambda losses: {"loss": losses}, "dict"),
]


def test_losses_of_the_wrong_kind_are_refused_and_nothing_changes():
    p = problem(normalised)
    before = {k: v.clone() for k, v in p.model.state_dict().items()}
    for wrong, words in LOSSES:
        with pytest.raises(ValueError, match=words):
            p.step(ESAM(sgd(p), p.model), lambda x, y, wrong=wrong: wrong(p.loss_of(x, y)))
        torch.testing.assert_close(dict(p.model.state_dict()), before, rtol=0, atol=0)


def torchs_style(p):
    def closure(keep):
        loss = p.closure(keep).mean()
        loss.backward()
        return loss

    return closure


def size_missing(name, **settings):
    def call(_, p):
        optimizer = METHODS[name](sgd(p), p.model, **settings)
        optimizer.step(lambda keep: p.closure(keep).mean())  # its batch would be cut

    return call


def without_a_backward(o, p):
    for x, y in o.passes(p.x, p.y):
        p.loss_of(x, y)


def broken_loop(o, p):
    for turn, (x, y) in enumerate(o.passes(p.x, p.y)):
        if turn == 1:  # at theta + eps
            break
        o.backward(p.loss_of(x, y))
    o.step()


def stepping_in_backward(o, p):
    for w in p.model.parameters():
        w.register_post_accumulate_grad_hook(lambda w: setattr(w, "grad", None))
    p.step(o)


def bad_radius(rho):
    def call(o, p):
        o.param_groups[0]["sam_rho"] = rho
        p.step(o)

    return call


def gradients_while_ranking(_, p):
    def loss_of(x, y):
        losses = p.loss_of(x, y)
        torch.autograd.grad(losses.mean(), p.model[0].weight, retain_graph=True)
        return losses

    p.step(ESAM(sgd(p), p.model), loss_of)


def clearing_gradients(_, p):
    p.step(SliceSAM(sgd(p), p.model), lambda x, y: p.model.zero_grad() or p.loss_of(x, y))


def no_momentum(_, p):
    optimizer = METHODS["msam"](torch.optim.Adagrad(p.model.parameters(), lr=0.0), p.model)
    for _ in range(2):  # nobody can tell before the first step
        p.step(optimizer)


CALLS = [
    (clearing_gradients, "zero_grad"),
    (no_momentum, "momentum"),
    (lambda o, p: o.step(3), "function"),
    (lambda o, p: o.step([]), "closures"),
    (lambda o, p: o.step([p.closure], p.x), "takes no batch"),
    (lambda o, p: o.step([p.closure, p.closure], batch_size=12), "each of 2"),
    (lambda o, p: o.step(p.closure, batch_size=0), "batch_size"),
    (lambda o, p: o.step(p.closure, batch_size=12.5), "batch_size"),
    (lambda o, p: o.step(p.loss_of, p.x, p.y, batch_size=11), "12"),
    (lambda o, p: o.step(p.closure, batch_size=20), "12 losses for 20"),
    (lambda _, p: SliceSAM(sgd(p), p.model).step(p.closure, batch_size=6), "12 losses for 6"),
    (lambda o, p: o.step(lambda: p.closure(slice(None))), "takes no samples"),
    (lambda o, p: o.step(torchs_style(p)), "backward"),
    (lambda o, p: torch.inference_mode()(p.step)(o), "inference_mode"),
    (lambda o, p: (p.model.requires_grad_(False), p.step(o)), "requires a gradient"),
    (lambda o, p: o.load_state_dict(ESAM(sgd(p, lr=7.0), p.model).state_dict()), "saved by ESAM"),
    (size_missing("esam-random"), "batch_size"),
    (size_missing("base-part"), "batch_size"),
    (size_missing("slicesam"), "batch_size"),
    (size_missing("sam", m=4), "batch_size"),
    (lambda o, p: o.step(), r"step\(loss_of, x, y\)"),
    (lambda o, p: o.step(lambda: p.loss_of(p.x, p.y).sum().backward()), "hand the"),
    (lambda o, p: (o.accumulate(p.loss_of, p.x, p.y), o.step()), "gradient"),
    (lambda o, p: o.gradient(), "accumulate"),
    (lambda o, p: (o.accumulate(p.loss_of, p.x, p.y), o.load_state_dict(o.state_dict()), o.gradient()), "accumulate"),
    *((bad_radius(rho), "rho") for rho in (float("nan"), -1.0, float("inf"), "0.1")),
    (stepping_in_backward, "post_accumulate"),
    (gradients_while_ranking, "enable_grad"),
    (broken_loop, "gradient"),
    (without_a_backward, "backward"),
    (lambda o, p: o.backward(p.loss_of(p.x, p.y)), "passes"),
]


def test_a_call_that_cannot_work_is_refused_and_nothing_changes():
    for call, words in CALLS:
        p = problem()
        optimizer, weights = SAM(sgd(p), p.model), p.weights
        with pytest.raises(ValueError, match=words):
            call(optimizer, p)
        assert_same(p.weights, weights)
        assert optimizer.param_groups[0]["lr"] == 0.05


def test_a_gradient_serves_one_step():
    p = problem()
    optimizer = SAM(sgd(p), p.model)
    p.step(optimizer)
    for call, words in ((optimizer.step, "gradient"), (optimizer.gradient, "accumulate")):
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize("error", [IndexError, TypeError, RuntimeError])
def test_an_error_of_the_models_own_keeps_its_type_and_message(error):
    p = problem()

    def loss_of(x, y):
        raise error("token 7 is out of range")

    with pytest.raises(error, match="token 7 is out of range"):
        p.step(SliceSAM(sgd(p), p.model), loss_of)
