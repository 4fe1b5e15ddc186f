"""The ways in: by a name in a configuration file, by an optimizer that needs no closure, by a price, by a harness."""

import copy
import enum
import functools
import math
import pickle
import runpy
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import assert_same, normalised, problem, sgd
from plain_loops import batches, net, plain_steps
from torch import nn

import esam
from esam import MSAM, create_optimizer, list_methods
from esam.compat import SAM

ROOT = Path(__file__).parent.parent


# A factory by name ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list_methods())
def test_every_method_can_be_made_by_name_and_takes_a_step(name):
    model = net()
    optimizer = create_optimizer(name, model, base="sgd", lr=0.1, momentum=0.9, weight_decay=1e-2)
    x, y = next(batches(1))
    loss = optimizer.step(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), x, y)
    assert math.isfinite(float(loss))
    assert [g["weight_decay"] for g in optimizer.param_groups] == [1e-2, 0.0]


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning")  # of pytorch_optimizer
def test_settings_go_where_they_belong_and_a_slip_is_named():
    model = net()
    optimizer = create_optimizer("esam", model, base="adam_w", lr=3e-3, betas=(0.8, 0.9), rho=0.2, gamma=0.7)
    assert (optimizer.rho, optimizer.gamma, optimizer.param_groups[0]["betas"]) == (0.2, 0.7, (0.8, 0.9))
    made = create_optimizer("sam", model, base=functools.partial(torch.optim.Adadelta, rho=0.8), rho=0.3)
    assert (made.rho, made.base.defaults["rho"]) == (0.3, 0.8)
    theirs = pytest.importorskip("pytorch_optimizer")
    assert type(create_optimizer("sam", model, base="AdamP", lr=0.1).base) is theirs.AdamP
    slips = [("esam", {"gama": 0.5}, "gama"), ("slicedsam", {}, "slicesam")]
    for method, settings, said in [*slips, ("esam", {"base": "adamq"}, "no base 'adamq'; torch has .*adamw")]:
        with pytest.raises(ValueError, match=said):
            create_optimizer(method, model, **{"lr": 0.1, **settings})
    model[0].weight.requires_grad_(False)  # frozen: left out of the groups
    assert [len(g["params"]) for g in create_optimizer("sam", model, lr=0.1, weight_decay=0.1).param_groups] == [1, 4]


def test_hydra_makes_an_optimizer_from_a_configuration_file():
    hydra = pytest.importorskip("hydra.utils")
    from omegaconf import OmegaConf

    settings = {"lr": 0.001, "betas": [0.8, 0.9], "weight_decay": 0.1, "rho": 0.2}
    written = OmegaConf.create({"_target_": "esam.create_optimizer", "method": "sam", "base": "adamw", **settings})
    made, model = hydra.instantiate(written, model=net()), net()
    twin = create_optimizer("sam", model, base="adamw", **settings)
    assert type(made.base) is torch.optim.AdamW
    for optimizer in (made, twin):
        for x, y in batches(3):
            optimizer.step(lambda x, y, model=optimizer.model: F.cross_entropy(model(x), y), x, y)
    assert_same(made.model, model)
    partial = hydra.instantiate({"_target_": "esam.MSAM", "_partial_": True, "lr": 0.1})
    plain_steps(model, partial(model.parameters()), batches(1))


# One pass, no closure ------------------------------------------------------------------------------------------------


def momentum_sam(count=3, **settings):
    """Return a model that was trained for some steps by the optimizer that follows it."""
    model = net()
    optimizer = MSAM(model.parameters(), **{"rho": 1.0, "lr": 0.1, "model": model, **settings})
    plain_steps(model, optimizer, batches(count))
    return model, optimizer


def test_the_plain_momentum_optimizer_is_the_method_that_takes_a_closure():
    ours, theirs = net(norm=False), net(norm=False)
    plain = MSAM(ours.parameters(), torch.optim.SGD, rho=0.3, lr=0.1, momentum=0.9)
    method = esam.METHODS["msam"](torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9), theirs, rho=0.3)
    plain_steps(ours, plain, batches(12))
    for x, y in batches(12):
        method.step(lambda x, y: F.cross_entropy(theirs(x), y), x, y)
    plain.eval()
    assert_same(ours, theirs)


def test_with_the_model_evaluation_and_saving_see_theta_and_a_closed_optimizer_leaves_it():
    model, optimizer = momentum_sam(base=torch.optim.AdamW, lr=0.01)
    x, _ = next(batches(1))
    theta = model[0].weight.detach().clone()
    model(x)
    moved = model[0].weight.detach().clone()
    assert not torch.equal(moved, theta) and torch.equal(model.state_dict()["0.weight"], theta)
    model.eval()(x)
    assert torch.equal(model[0].weight, theta)
    model.train()(x)
    assert torch.equal(model[0].weight, moved), "and training goes on where it was"
    optimizer.close()
    model(x)
    assert torch.equal(model[0].weight, theta)


@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: torch.compile(model, backend="eager")])
def test_after_a_step_the_weights_are_theta_to_clamp_average_or_save_through_whatever_holds_them(wrap):
    """Before: a clamp after the step was lost, and the inner module of a wrapper was saved at the moved point."""
    model = net()
    used = wrap(model)
    optimizer = MSAM(model.parameters(), rho=1.0, lr=0.1, model=used)
    for x, y in batches(4):
        plain_steps(used, optimizer, [(x, y)])
        with torch.no_grad():
            for p in model.parameters():
                p.clamp_(-0.05, 0.05)
    saved = copy.deepcopy(model)
    optimizer.eval()
    assert_same(model, saved)
    assert all(p.abs().max() <= 0.05 for p in model.parameters())


def test_without_the_model_a_change_that_would_be_lost_is_refused():
    model = net()
    optimizer = MSAM(model.parameters(), lr=0.1)
    plain_steps(model, optimizer, batches(2))
    torch.nn.init.zeros_(model[0].weight)
    with pytest.raises(ValueError, match=r"optimizer\.eval\(\) before it"):
        optimizer.eval()


def test_training_in_evaluation_mode_is_the_bases_and_said_so():
    """Frozen BatchNorm. Before: plain SGD, in silence."""
    model, optimizer = momentum_sam()
    x, y = next(batches(1))
    with pytest.warns(esam.GuidanceWarning, match="taken at theta"):
        plain_steps(model.eval(), optimizer, [(x, y)])


def test_a_model_that_is_trained_by_another_method_than_forward_is_differentiated_at_the_point():
    one, other = net(), net()
    for model, follows in ((one, one), (other, None)):
        optimizer = MSAM(model.parameters(), rho=1.0, lr=0.1, model=follows)
        for x, y in batches(4):
            optimizer.zero_grad()
            F.cross_entropy(model.forward(x), y).backward()  # no hook sees it
            optimizer.step()
        optimizer.eval()
    assert_same(one, other)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_the_model_such_as_an_average_is_left_alone(copied):
    model, _ = momentum_sam()
    average = copied(model)
    there, here = next(average.parameters()).clone(), next(model.parameters()).clone()
    average.eval()(next(batches(1))[0])
    average.state_dict()
    assert torch.equal(next(average.parameters()), there) and torch.equal(next(model.parameters()), here)


def test_a_compiled_model_trains_and_is_evaluated_as_a_plain_one():
    models = [net(), net()]
    for model, used in zip(models, (models[0], torch.compile(models[1], backend="eager")), strict=True):
        plain_steps(used, MSAM(model.parameters(), rho=1.0, lr=0.1, model=model), batches(4))
        used.eval()(next(batches(1))[0])
    assert_same(*(list(model.parameters()) for model in models))


def test_a_resumed_plain_optimizer_goes_on_as_the_undisturbed_one():
    data = list(batches(6))
    whole, _ = momentum_sam(6)
    half, optimizer = momentum_sam(3)
    weights, state = copy.deepcopy(half.state_dict()), copy.deepcopy(optimizer.state_dict())
    again, resumed = momentum_sam(0)
    resumed.load_state_dict(state)
    again.load_state_dict(weights)
    plain_steps(again, resumed, data[3:])
    assert_same(whole, again)


def test_a_base_without_momentum_is_refused_before_the_first_step_or_after_it():
    for settings in ({"momentum": 0.0}, {"base": torch.optim.Adagrad}):
        with pytest.raises(ValueError, match="momentum"):
            momentum_sam(**settings)


@pytest.mark.parametrize("make", [SAM, MSAM])
def test_sharded_weights_are_refused_with_what_takes_them(make):
    weight = nn.Parameter(torch.ones(3))
    weight.full_tensor = None  # as a DTensor has
    with pytest.raises(ValueError, match="sharded; use esam"):
        make([weight], torch.optim.SGD, lr=0.1)


def test_weights_that_are_loaded_in_the_middle_of_training_are_kept():
    best = copy.deepcopy(net().state_dict())
    model, optimizer = momentum_sam(lr=0.0)
    model.load_state_dict(best)
    plain_steps(model, optimizer, batches(1))  # at rate zero, theta stays
    assert all(torch.equal(value, best[name]) for name, value in model.state_dict().items() if "weight" in name)
    model(next(batches(1))[0])
    optimizer.load_state_dict(optimizer.state_dict())
    assert torch.equal(model[0].weight, best["0.weight"])


# A price -------------------------------------------------------------------------------------------------------------


def sliced(size):
    """Return what a step of SliceSAM at an overhead of 6 % ran, and what it warned of."""
    p = problem(normalised, batch=size)
    optimizer = esam.SliceSAM(sgd(p), p.model, overhead=0.06, seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", esam.GuidanceWarning)
        for _ in range(2):
            p.step(optimizer)
    return p.calls[-3:], [str(w.message) for w in caught if "overhead" in str(w.message)]


def test_an_overhead_is_what_a_step_costs_more_and_a_batch_too_small_for_it_is_warned_of_once():
    assert sliced(100) == ([6, 94, 6], [])
    assert esam.METHODS["slicesam"].units({"overhead": 0.06}) == pytest.approx(3.18)
    assert esam.METHODS["slicesam"].effective({"overhead": 0.06}).keys() & {"share", "overhead"} == {"overhead"}
    ran, (warned,) = sliced(16)
    assert ran == [2, 14, 2] and "of 34 or more" in warned  # BatchNorm wants two; the size that is enough
    assert sliced(34)[1] == []


# AlgoPerf ------------------------------------------------------------------------------------------------------------


class Kinds(enum.Enum):
    TRAIN = 0
    SOFTMAX_CROSS_ENTROPY = 1
    MEAN_SQUARED_ERROR = 2


class Workload:
    """The documented calls of a workload in PyTorch, and nothing else."""

    step_hint, metrics_logger = 20, None

    def model_fn(self, params, augmented_and_preprocessed_input_batch, model_state, mode, rng, update_batch_norm):
        assert mode is Kinds.TRAIN and update_batch_norm
        return params(augmented_and_preprocessed_input_batch["inputs"]), None

    def loss_fn(self, label_batch, logits_batch, mask_batch=None, label_smoothing=0.0):
        self.smoothing = label_smoothing
        losses = F.cross_entropy(logits_batch, label_batch, reduction="none", label_smoothing=label_smoothing)
        mask = torch.ones_like(losses) if mask_batch is None else mask_batch
        return {"summed": (losses * mask).sum(), "n_valid_examples": mask.sum(), "per_example": losses}


@pytest.fixture
def submission(monkeypatch):
    """The submission, with a stub in place of the harness, which is not on PyPI."""
    package, spec = types.ModuleType("algoperf"), types.ModuleType("algoperf.spec")
    spec.Workload, spec.ForwardPassMode, spec.LossType = Workload, Kinds, Kinds
    package.spec = spec
    monkeypatch.setitem(sys.modules, "algoperf", package)
    monkeypatch.setitem(sys.modules, "algoperf.spec", spec)
    return types.SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "algoperf" / "submission.py")))


def test_the_submission_to_algoperf_trains_by_the_documented_calls(submission):
    model, workload, kind = net(), Workload(), Kinds.SOFTMAX_CROSS_ENTROPY
    state = submission.init_optimizer_state(workload, model, None, None, [0, 1])
    optimizer = state["optimizer"]
    queue = ({"inputs": x, "targets": y} for x, y in batches(50))
    rates = []
    for step in range(workload.step_hint):
        batch = submission.data_selection(workload, queue, state, model, None, None, step, [0, step])
        rates.append(optimizer.param_groups[0]["lr"])
        state, params, model_state = submission.update_params(
            workload, model, {}, None, None, batch, kind, state, [], step, [0, step], train_state={}
        )
        assert params is model and model_state is None
    state, params, _ = submission.prepare_for_eval(workload, model, {}, None, None, kind, state, [], step, [0, 0])
    assert params is model and optimizer.steps == workload.step_hint
    assert max(rates) == pytest.approx(submission.BASE["lr"]) and rates[-1] < 0.1 * max(rates)
    assert workload.smoothing == submission.LABEL_SMOOTHING
    again = submission.init_optimizer_state(workload, net(), None, None, [0, 1])
    for name, part in again.items():
        part.load_state_dict(copy.deepcopy(state[name].state_dict()))  # as the harness does
    assert again["optimizer"].steps == optimizer.steps


def test_the_submissions_step_leaves_padded_samples_out_of_the_mean(submission):
    submission.init_optimizer_state.__globals__["METHOD"] = "sam"
    x, y = next(batches(1))
    weights = torch.tensor([1.0, 1, 1, 1, 0, 0, 0, 0]).double()
    trained = []
    for batch in ({"inputs": x[:4], "targets": y[:4]}, {"inputs": x, "targets": y, "weights": weights}):
        model, workload = net(norm=False), Workload()
        state = submission.init_optimizer_state(workload, model, None, None, None)
        submission.update_params(workload, model, {}, None, None, batch, Kinds.MEAN_SQUARED_ERROR, state, [], 1, None)
        trained.append(model)
    assert_same(*trained, 1e-9)  # float64: sums in another order


# Muon ----------------------------------------------------------------------------------------------------------------


def test_the_spectral_eps_moves_every_direction_of_a_matrix_alike_and_follows_the_rate():
    model, seen = nn.Linear(6, 4, bias=False), []
    optimizer = esam.SAM(torch.optim.Muon(model.parameters(), lr=0.02), model, geometry="spectral", rho=0.5)
    theta = model.weight.detach().clone()

    def loss_of(x, y):
        seen.append(model.weight.detach() - theta)
        return F.cross_entropy(model(x), y)

    optimizer.step(loss_of, torch.randn(32, 6), torch.randint(4, (32,)))
    values = torch.linalg.svdvals(seen[-1])
    expected = torch.tensor([0.01, 0.01, 0.01, 0.0])  # the gradient of a softmax has rows that sum to zero: rank 3
    torch.testing.assert_close(values, expected, rtol=1e-3, atol=1e-6)  # float32, differences of weights near 0.4
