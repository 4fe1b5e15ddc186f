"""Does any base work as it is: every optimizer of torch and of pytorch_optimizer, and wrappers around one?"""

import copy

import numpy as np
import pytest
import torch
from conftest import Problem, assert_same, problem
from torch import nn

from esam import SAM, LookSAM

# rho = 0 is the base, bit for bit -------------------------------------------------------------------------------------


def dense():
    return problem(dtype=torch.float32)


def matrices():
    """For bases that orthogonalise: no biases."""
    return problem(
        lambda dtype: nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False)),
        dtype=torch.float32,
    )


def embedded():
    """For bases that take sparse gradients only."""
    torch.manual_seed(0)
    return Problem(nn.EmbeddingBag(8, 3, sparse=True), torch.randint(0, 8, (12, 4)), torch.randint(0, 3, (12,)))


def of_parameters(base):
    return lambda model: base(model.parameters())


def of_matrices_and_others(base):
    return lambda model: base(
        [{"params": [w for w in model.parameters() if (w.dim() == 2) == use], "use_muon": use} for use in (True, False)]
    )


def bases_of_torch():
    for name, base in vars(torch.optim).items():
        if isinstance(base, type) and issubclass(base, torch.optim.Optimizer) and name not in ("Optimizer", "LBFGS"):
            yield name, of_parameters(base), {"SparseAdam": embedded, "Muon": matrices}.get(name, dense)


LEFT_OUT = {"alig", "adahessian", "sophiah", "lbfgs", "adalomo", "adammini", "lomo", "bsam", "ranger21", "demo",
            "distributedmuon"}  # fmt: skip
"""They want a closure of their own, gradients with a graph, the model, lengths of a training, or a process group."""


def bases_of_pytorch_optimizer():
    package = pytest.importorskip("pytorch_optimizer")
    for name in sorted({*package.get_supported_optimizers()} - LEFT_OUT):
        made = of_matrices_and_others if "muon" in name or name == "adago" else of_parameters
        yield name, made(package.load_optimizer(name)), matrices if name == "spectralsphere" else dense


def trained(make, setting, wrap=None, steps=3):
    p = setting()
    base = make(p.model)
    torch.manual_seed(1)  # some draw numbers as they step
    np.random.seed(1)  # Kron from numpy
    for _ in range(steps):
        if wrap is not None:
            base = base if isinstance(base, SAM) else wrap(base, p.model)
            p.step(base)
        else:
            base.zero_grad()
            p.loss_of(p.x, p.y).mean().backward()
            base.step()
    return p.weights


@pytest.mark.filterwarnings("ignore")  # the packages' own
@pytest.mark.parametrize(("bases", "least"), [(bases_of_torch, 14), (bases_of_pytorch_optimizer, 110)])
def test_rho_zero_is_every_base_bit_for_bit(bases, least):
    """Before: Adadelta's own rho, 0.9, was the radius of every step."""
    differ, moved = {}, 0
    for name, make, setting in bases():
        alone, ours = trained(make, setting), trained(make, setting, lambda base, model: SAM(base, model, rho=0.0))
        moved += not all(map(torch.equal, alone, setting().weights))
        if not all(map(torch.equal, alone, ours)):
            differ[name] = max(float((a - b).abs().max()) for a, b in zip(alone, ours, strict=True))
    assert differ == {}
    assert moved >= least  # the rest have tiny rates


# Wrappers around an optimizer -----------------------------------------------------------------------------------------


class Unhooked(torch.optim.Optimizer):
    """A wrapper that does not call ``Optimizer.__init__``, as older Lookaheads do."""

    def __init__(self, inner):
        self.inner = inner
        self.param_groups, self.state = inner.param_groups, inner.state
        self.zero_grad, self.state_dict, self.load_state_dict = inner.zero_grad, inner.state_dict, inner.load_state_dict

    def step(self, closure=None):
        return self.inner.step()


def replaced_step(base):
    base.step = lambda inner=base.step: inner()
    return base


def plain_hooks(base):
    base._optimizer_step_pre_hooks = {}
    return base


def accelerated(base):
    return pytest.importorskip("accelerate").Accelerator(cpu=True).prepare_optimizer(base)


def of_package(name):
    def wrap(base):
        wrapped = getattr(pytest.importorskip("pytorch_optimizer"), name)(base)
        getattr(wrapped, "train", lambda: None)()  # of schedule-free bases
        return wrapped

    return wrap


def schedule_free(base):
    made = pytest.importorskip("schedulefree").SGDScheduleFree(base.param_groups, lr=0.1)
    made.train()
    return made


PACKAGED = ("Lookahead", "OrthoGrad", "ScheduleFreeWrapper", "TRAC")
WRAPPERS = {wrap.__name__: wrap for wrap in (Unhooked, replaced_step, plain_hooks, accelerated, schedule_free)}
WRAPPERS |= {name: of_package(name) for name in PACKAGED}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_wrapper_as_base_is_itself_at_rho_zero_counts_steps_and_resumes_bit_for_bit(wrap):
    """Before: never counted, so that methods that count steps stood still; an AttributeError or a TypeError."""

    def wrapped(model):
        return wrap(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))

    assert_same(trained(wrapped, dense), trained(wrapped, dense, lambda base, model: SAM(base, model, rho=0.0)))
    p, q = dense(), dense()
    optimizer, again = (LookSAM(wrapped(t.model), t.model, k=2) for t in (p, q))
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        p.step(optimizer)
    assert optimizer.steps == 3
    q.model.load_state_dict(copy.deepcopy(p.model.state_dict()))
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(2):
        assert p.step(optimizer) == q.step(again)
    assert_same(p.weights, q.weights)


def test_a_bases_own_train_and_eval_are_reached_where_a_trainer_asks_for_them():
    p = dense()
    optimizer = SAM(schedule_free(torch.optim.SGD(p.model.parameters(), lr=0.05, momentum=0.9)), p.model)
    for _ in range(3):
        p.step(optimizer)
    trained_at = p.weights
    optimizer.eval()
    assert not all(map(torch.equal, p.weights, trained_at))
    optimizer.train()
    assert_same(p.weights, trained_at, 1e-6)  # float32: there and back by an interpolation
    assert not hasattr(SAM(torch.optim.SGD(p.model.parameters(), lr=0.05), p.model), "eval")
