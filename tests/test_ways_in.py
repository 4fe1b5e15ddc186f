"""The ways in: from the old sam.py, by a name in a configuration file, by an optimizer that needs no closure."""

import copy
import enum
import functools
import math
import pickle
import re
import runpy
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import esam
from esam.compat import SAM
from esam.factory import create_optimizer, decay_groups, list_methods
from esam.optim.onepass import MSAM

ROOT = Path(__file__).parent.parent


def net(norm: bool = True) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 16), nn.BatchNorm1d(16) if norm else nn.Identity(), nn.ReLU(), nn.Linear(16, 3)]
    return nn.Sequential(*layers).double()


def batches(count: int):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(8, 6, generator=generator).double(), torch.randint(3, (8,), generator=generator)


def by_hand(model, base, x, y, rho, adaptive=False):
    """One step as the widely copied sam.py takes it, weights put back by a copy."""
    base.zero_grad()
    F.cross_entropy(model(x), y).backward()
    weights = list(model.parameters())
    scales = [w.detach().abs() if adaptive else torch.ones_like(w) for w in weights]
    norm = math.sqrt(sum(float((s * w.grad).square().sum()) for s, w in zip(scales, weights, strict=True)))
    theta = [w.detach().clone() for w in weights]
    with torch.no_grad():
        for s, w in zip(scales, weights, strict=True):
            w.add_(s * s * w.grad * rho / (norm + 1e-12))
    base.zero_grad()
    F.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for w, t in zip(weights, theta, strict=True):
            w.copy_(t)
    base.step()


@pytest.mark.parametrize("adaptive", [False, True])
def test_fifty_steps_of_the_old_loop_are_the_old_steps(adaptive):
    ours, theirs = net(norm=False), net(norm=False)
    optimizer = SAM(ours.parameters(), torch.optim.SGD, rho=0.1, adaptive=adaptive, lr=0.1, momentum=0.9)
    base = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches(50):
        F.cross_entropy(ours(x), y).backward()
        optimizer.first_step(zero_grad=True)
        F.cross_entropy(ours(x), y).backward()
        optimizer.second_step(zero_grad=True)
        by_hand(theirs, base, x, y, 0.1, adaptive)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)  # float64; their 1e-12 in the norm is the difference


def test_the_closure_form_is_the_two_steps():
    one, two = net(), net()
    a = SAM(one.parameters(), torch.optim.SGD, lr=0.1, model=one)
    b = SAM(two.parameters(), torch.optim.SGD, lr=0.1, model=two)
    for x, y in batches(4):

        def closure(x=x, y=y):
            F.cross_entropy(one(x), y).backward()

        closure()
        a.step(closure)
        a.zero_grad()
        F.cross_entropy(two(x), y).backward()
        b.first_step(zero_grad=True)
        F.cross_entropy(two(x), y).backward()
        b.second_step(zero_grad=True)
    assert all(torch.equal(p, q) for p, q in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def test_with_the_model_batchnorm_moves_once_and_weights_without_a_second_gradient_return():
    model = net()
    unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = SAM([*model.parameters(), unused], torch.optim.SGD, lr=0.0, rho=0.5, model=model)
    x, y = next(batches(1))
    once = copy.deepcopy(model)
    once(x)
    (F.cross_entropy(model(x), y) + unused.sum()).backward()
    optimizer.first_step(zero_grad=True)
    assert not torch.equal(unused, torch.ones(3, dtype=torch.float64))
    F.cross_entropy(model(x), y).backward()  # without the unused parameter
    optimizer.second_step()
    assert torch.equal(unused, torch.ones(3, dtype=torch.float64))
    assert torch.equal(model[1].running_mean, once[1].running_mean)
    assert int(model[1].num_batches_tracked) == 1


def test_a_resumed_run_of_the_old_loop_goes_on_as_the_undisturbed_one():
    data = list(batches(6))
    whole = net()
    old_steps(whole, SAM(whole.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9, model=whole), data)
    half = net()
    optimizer = SAM(half.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9, model=half)
    old_steps(half, optimizer, data[:3])
    again = net()
    again.load_state_dict(half.state_dict())
    resumed = SAM(again.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9, model=again)
    resumed.load_state_dict(optimizer.state_dict())
    old_steps(again, resumed, data[3:])
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), again.state_dict().values(), strict=True))


@pytest.mark.parametrize("overflow", [False, True])
def test_a_grad_scaler_takes_the_second_step_or_skips_it_and_theta_returns(overflow):
    model = net(norm=False).float()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, rho=0.1)
    plain = copy.deepcopy(model).double()
    base = torch.optim.SGD(plain.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    x, y = next(batches(1))
    before = [p.detach().clone() for p in model.parameters()]
    scaler.scale(F.cross_entropy(model(x.float()), y)).backward()
    optimizer.first_step(zero_grad=True)
    scaler.scale(F.cross_entropy(model(x.float()), y)).backward()
    if overflow:
        model[0].weight.grad[0, 0] = math.inf
    scaler.step(optimizer)
    scaler.update()
    if overflow:
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        return
    by_hand(plain, base, x, y, 0.1)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-4)  # float32 against float64, one step


def test_steps_out_of_order_are_refused_and_an_error_in_between_can_be_taken_back():
    model = net()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, model=model)
    with pytest.raises(ValueError, match="first_step"):
        optimizer.second_step()
    with pytest.raises(ValueError, match="class"):
        SAM(model.parameters(), torch.optim.SGD(model.parameters(), lr=0.1))
    before = copy.deepcopy(model.state_dict())
    x, y = next(batches(1))
    F.cross_entropy(model(x), y).backward()
    after_first = copy.deepcopy(model.state_dict())
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    assert all(torch.equal(v, after_first[k]) for k, v in model.state_dict().items())
    assert torch.equal(before["0.weight"], model[0].weight)


def test_it_says_once_what_it_repairs(monkeypatch):
    monkeypatch.setattr("esam.compat._SAID", False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            SAM(net().parameters(), torch.optim.SGD, lr=0.1)
    assert [w.category for w in caught] == [esam.GuidanceWarning]


def old_steps(model, optimizer, data, scheduler=None):
    for x, y in data:
        F.cross_entropy(model(x), y).backward()
        optimizer.first_step(zero_grad=True)
        F.cross_entropy(model(x), y).backward()
        optimizer.second_step(zero_grad=True)
        if scheduler is not None:
            scheduler.step()


def plain_steps(model, optimizer, data):
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def test_a_scheduler_of_the_old_loop_moves_the_rate_and_warns_of_nothing():
    model = net()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, model=model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        old_steps(model, optimizer, batches(4), scheduler)
    assert optimizer.base_optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
@pytest.mark.parametrize(("make", "steps"), [(SAM, old_steps), (MSAM, plain_steps)])
def test_a_copy_of_model_and_optimizer_trains_on_as_the_original(make, steps, copied):
    model = net()
    optimizer = make(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    steps(model, optimizer, batches(3))
    twin, again = copied((model, optimizer))
    steps(model, optimizer, batches(2))
    steps(twin, again, batches(2))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    assert again.param_groups[0]["params"][0] is next(twin.parameters())


# A factory by name ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list_methods())
def test_every_method_can_be_made_by_name_and_takes_a_step(name):
    model = net()
    optimizer = create_optimizer(name, model, base="sgd", lr=0.1, momentum=0.9, weight_decay=1e-2)
    x, y = next(batches(1))
    loss = optimizer.step(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), x, y)
    assert math.isfinite(float(loss))
    assert [g["weight_decay"] for g in optimizer.param_groups] == [1e-2, 0.0]


def test_settings_go_where_they_belong_and_a_slip_is_named():
    model = net()
    optimizer = create_optimizer("esam", model, base="adam_w", lr=3e-3, betas=(0.8, 0.9), rho=0.2, gamma=0.7)
    assert (optimizer.rho, optimizer.gamma, optimizer.param_groups[0]["betas"]) == (0.2, 0.7, (0.8, 0.9))
    made = create_optimizer("sam", model, base=functools.partial(torch.optim.Adadelta, rho=0.8), rho=0.3)
    assert (made.rho, made.base.defaults["rho"]) == (0.3, 0.8)
    for settings, said in [({"gama": 0.5}, "gama"), ({"base": "sdg"}, "sdg")]:
        with pytest.raises(ValueError, match=said):
            create_optimizer("esam", model, **{"lr": 0.1, **settings})
    with pytest.raises(ValueError, match="slicesam"):
        create_optimizer("slicedsam", model, lr=0.1)


def test_a_base_that_torch_has_not_is_looked_for_in_pytorch_optimizer(monkeypatch):
    asked = []

    def load_optimizer(name):
        asked.append(name)
        if name != "adamp":
            raise NotImplementedError
        return torch.optim.Adam

    monkeypatch.setitem(sys.modules, "pytorch_optimizer", types.SimpleNamespace(load_optimizer=load_optimizer))
    assert isinstance(create_optimizer("sam", net(), base="AdamP", lr=0.1).base, torch.optim.Adam)
    with pytest.raises(ValueError, match="no base 'adamq'; torch has .*adamw"):
        create_optimizer("sam", net(), base="adamq", lr=0.1)
    assert asked == ["adamp", "adamq"]


def test_frozen_parameters_are_left_out_of_the_groups():
    model = net()
    model[0].weight.requires_grad_(False)
    assert [len(g["params"]) for g in decay_groups(model, 0.1)] == [1, 4]


# One pass, no closure ------------------------------------------------------------------------------------------------


def test_the_plain_momentum_optimizer_is_the_method_that_takes_a_closure():
    ours, theirs = net(norm=False), net(norm=False)
    plain = MSAM(ours.parameters(), torch.optim.SGD, rho=0.3, lr=0.1, momentum=0.9)
    method = esam.METHODS["msam"](torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9), theirs, rho=0.3)
    for x, y in batches(12):
        plain.zero_grad()
        F.cross_entropy(ours(x), y).backward()
        plain.step()
        method.step(lambda x, y: F.cross_entropy(theirs(x), y), x, y)
    plain.eval()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_with_the_model_evaluation_and_saving_see_theta():
    model = net()
    optimizer = MSAM(model.parameters(), torch.optim.AdamW, rho=1.0, lr=0.01, model=model)
    for x, y in batches(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    moved = model[0].weight.detach().clone()
    saved = model.state_dict()["0.weight"].clone()
    assert not torch.equal(moved, saved)
    model.eval()
    model(x)
    assert torch.equal(model[0].weight, saved)
    model.train()
    model(x)
    assert torch.equal(model[0].weight, moved), "and training goes on where it was"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_the_model_such_as_an_average_is_left_alone(copied):
    model = net()
    optimizer = MSAM(model.parameters(), rho=1.0, lr=0.1, model=model)
    plain_steps(model, optimizer, batches(3))
    average = copied(model)
    there, here = next(average.parameters()).clone(), next(model.parameters()).clone()
    average.eval()(next(batches(1))[0])
    average.state_dict()
    assert torch.equal(next(average.parameters()), there) and torch.equal(next(model.parameters()), here)


def test_a_closed_optimizer_leaves_theta_to_the_next():
    model = net()
    optimizer = MSAM(model.parameters(), rho=1.0, lr=0.1, model=model)
    plain_steps(model, optimizer, batches(3))
    moved = next(model.parameters()).clone()
    optimizer.close()
    theta = next(model.parameters()).clone()
    model(next(batches(1))[0])  # in training mode
    assert torch.equal(next(model.parameters()), theta) and not torch.equal(theta, moved)


def test_a_compiled_model_trains_and_is_evaluated_as_a_plain_one():
    trained = []
    for compiled in (False, True):
        model = net()
        optimizer = MSAM(model.parameters(), rho=1.0, lr=0.1, model=model)
        used = torch.compile(model, backend="eager") if compiled else model
        plain_steps(used, optimizer, batches(4))
        used.eval()
        trained.append([used(next(batches(1))[0]), *model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*trained, strict=True))


def test_a_resumed_plain_optimizer_goes_on_as_the_undisturbed_one():
    data = list(batches(6))
    whole = net()
    plain_steps(whole, MSAM(whole.parameters(), lr=0.1, model=whole), data)
    half = net()
    optimizer = MSAM(half.parameters(), lr=0.1, model=half)
    plain_steps(half, optimizer, data[:3])
    weights, state = copy.deepcopy(half.state_dict()), copy.deepcopy(optimizer.state_dict())
    again = net()
    resumed = MSAM(again.parameters(), lr=0.1, model=again)
    resumed.load_state_dict(state)
    again.load_state_dict(weights)
    plain_steps(again, resumed, data[3:])
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), again.state_dict().values(), strict=True))


def test_a_base_without_momentum_is_refused_before_the_first_step_or_after_it():
    with pytest.raises(ValueError, match="momentum"):
        MSAM(net().parameters(), torch.optim.SGD, lr=0.1, momentum=0.0)
    model = net()
    with pytest.raises(ValueError, match="momentum"):
        plain_steps(model, MSAM(model.parameters(), torch.optim.Adagrad, lr=0.1), batches(1))


@pytest.mark.parametrize("make", [SAM, MSAM])
def test_sharded_weights_are_refused_with_what_takes_them(make):
    weight = nn.Parameter(torch.ones(3))
    weight.full_tensor = None  # as a DTensor has
    with pytest.raises(ValueError, match="sharded; use esam"):
        make([weight], torch.optim.SGD, lr=0.1)


def test_weights_that_are_loaded_in_the_middle_of_training_are_kept():
    model = net()
    best = copy.deepcopy(model.state_dict())
    optimizer = MSAM(model.parameters(), rho=1.0, lr=0.0, model=model)
    plain_steps(model, optimizer, batches(3))
    model.load_state_dict(best)
    plain_steps(model, optimizer, batches(1))  # at rate zero, theta stays
    assert all(torch.equal(value, best[name]) for name, value in model.state_dict().items() if "weight" in name)
    model(next(batches(1))[0])
    optimizer.load_state_dict(optimizer.state_dict())
    assert torch.equal(model[0].weight, best["0.weight"])


# A price -------------------------------------------------------------------------------------------------------------


def sliced(size, norm=True, **settings):
    """Return what a step of SliceSAM ran, and what it warned of."""
    torch.manual_seed(0)
    model, ran = net(norm), []
    optimizer = esam.SliceSAM(torch.optim.SGD(model.parameters(), lr=0.1), model, seed=0, **settings)

    def loss_of(x, y):
        ran.append(len(x))
        return F.cross_entropy(model(x), y, reduction="none")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", esam.GuidanceWarning)
        for _ in range(2):
            optimizer.step(loss_of, torch.randn(size, 6).double(), torch.randint(3, (size,)))
    return ran, [str(w.message) for w in caught if "overhead" in str(w.message)]


def test_an_overhead_is_what_a_step_costs_more_to_the_nearest_sample():
    ran, warned = sliced(100, overhead=0.06)
    assert ran[-3:] == [6, 94, 6] and warned == []
    assert esam.METHODS["slicesam"].units({"overhead": 0.06}) == pytest.approx(3.18)
    assert esam.METHODS["slicesam"].effective({"overhead": 0.06}).keys() & {"share", "overhead"} == {"overhead"}


def test_a_batch_too_small_for_the_overhead_is_warned_of_once_with_the_size_that_is_enough():
    ran, warned = sliced(16, overhead=0.06)  # BatchNorm wants two
    assert ran[-3:] == [2, 14, 2]
    assert len(warned) == 1 and "of 34 or more" in warned[0]
    assert sliced(34, overhead=0.06)[1] == []
    with pytest.raises(ValueError, match="overhead"):
        sliced(16, overhead=1.5)


# AlgoPerf ------------------------------------------------------------------------------------------------------------


class Kinds(enum.Enum):
    TRAIN = 0
    SOFTMAX_CROSS_ENTROPY = 1
    MEAN_SQUARED_ERROR = 2


class Workload:
    """The documented calls of a workload in PyTorch, and nothing else."""

    step_hint, metrics_logger = 20, None

    def __init__(self):
        self.smoothing = []

    def model_fn(
        self,
        params,
        augmented_and_preprocessed_input_batch,
        model_state,
        mode,
        rng,
        update_batch_norm,
        dropout_rate=0.0,
    ):
        assert mode is Kinds.TRAIN and update_batch_norm
        return params(augmented_and_preprocessed_input_batch["inputs"]), None

    def loss_fn(self, label_batch, logits_batch, mask_batch=None, label_smoothing=0.0):
        self.smoothing.append(label_smoothing)
        losses = F.cross_entropy(logits_batch, label_batch, reduction="none", label_smoothing=label_smoothing)
        count = torch.tensor(len(losses))
        if mask_batch is not None:
            losses, count = losses * mask_batch, mask_batch.sum()
        return {"summed": losses.sum(), "n_valid_examples": count, "per_example": losses}


@pytest.fixture
def submission(monkeypatch):
    """The submission, with a stub in place of the harness."""
    package, spec = types.ModuleType("algoperf"), types.ModuleType("algoperf.spec")
    spec.Workload, spec.ForwardPassMode, spec.LossType = Workload, Kinds, Kinds
    package.spec = spec
    monkeypatch.setitem(sys.modules, "algoperf", package)
    monkeypatch.setitem(sys.modules, "algoperf.spec", spec)
    return runpy.run_path(str(ROOT / "examples" / "algoperf" / "submission.py"))


def test_the_submission_to_algoperf_trains_by_the_documented_calls(submission):
    model, workload = net(), Workload()
    state = submission["init_optimizer_state"](workload, model, None, None, [0, 1])
    optimizer = state["optimizer"]
    assert submission["get_batch_size"]("wmt") > 0
    queue = ({"inputs": x, "targets": y} for x, y in batches(50))
    rates = []
    for step in range(workload.step_hint):
        batch = submission["data_selection"](workload, queue, state, model, None, None, step, [0, step])
        rates.append(optimizer.param_groups[0]["lr"])
        state, params, model_state = submission["update_params"](
            workload,
            model,
            {},
            None,
            None,
            batch,
            Kinds.SOFTMAX_CROSS_ENTROPY,
            state,
            [],
            step,
            [0, step],
            train_state={},
        )
        assert params is model and model_state is None
    state, params, _ = submission["prepare_for_eval"](
        workload, model, {}, None, None, Kinds.SOFTMAX_CROSS_ENTROPY, state, [], step, [0, 0]
    )
    assert params is model and optimizer.steps == workload.step_hint
    assert max(rates) == pytest.approx(submission["BASE"]["lr"]) and rates[-1] < 0.1 * max(rates)
    assert set(workload.smoothing) == {submission["LABEL_SMOOTHING"]}
    saved = copy.deepcopy({name: part.state_dict() for name, part in state.items()})  # as the harness saves them
    again = submission["init_optimizer_state"](workload, net(), None, None, [0, 1])
    for name, part in again.items():
        part.load_state_dict(saved[name])
    assert again["optimizer"].steps == optimizer.steps


def test_the_submissions_step_leaves_padded_samples_out_of_the_mean(submission):
    x, y = next(batches(1))
    trained = []
    for mask in (None, torch.tensor([1.0, 1, 1, 1, 0, 0, 0, 0], dtype=torch.float64)):
        model, workload = net(norm=False), Workload()
        submission["init_optimizer_state"].__globals__["METHOD"] = "sam"
        state = submission["init_optimizer_state"](workload, model, None, None, None)
        batch = (
            {"inputs": x, "targets": y, "weights": mask} if mask is not None else {"inputs": x[:4], "targets": y[:4]}
        )
        submission["update_params"](
            workload, model, {}, None, None, batch, Kinds.MEAN_SQUARED_ERROR, state, [], 1, None
        )
        trained.append(list(model.parameters()))
    for a, b in zip(*trained, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)  # float64: sums in another order


# Muon ----------------------------------------------------------------------------------------------------------------


def test_sam_with_muon_as_base_steps_by_sams_gradient():
    ours, theirs = (nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False)) for _ in "ab")
    theirs.load_state_dict(ours.state_dict())
    optimizer = esam.SAM(torch.optim.Muon(ours.parameters(), lr=0.02), ours, rho=0.1)
    base = torch.optim.Muon(theirs.parameters(), lr=0.02)
    for x, y in batches(5):
        optimizer.step(lambda x, y: F.cross_entropy(ours(x), y), x.float(), y)
        by_hand(theirs, base, x.float(), y, 0.1)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)  # Muon orthogonalises in bfloat16


def test_the_spectral_eps_moves_every_direction_of_a_matrix_alike_and_follows_the_rate():
    muon = runpy.run_path(str(ROOT / "examples" / "muon.py"))
    model, seen = nn.Linear(6, 4, bias=False), []
    optimizer = muon["SpectralSAM"](torch.optim.Muon(model.parameters(), lr=0.02), model, relative=0.5)
    theta = model.weight.detach().clone()

    def loss_of(x, y):
        seen.append(model.weight.detach() - theta)
        return F.cross_entropy(model(x), y)

    optimizer.step(loss_of, torch.randn(32, 6), torch.randint(4, (32,)))
    values = torch.linalg.svdvals(seen[-1])
    expected = torch.tensor([0.01, 0.01, 0.01, 0.0])  # the gradient of a softmax has rows that sum to zero: rank 3
    torch.testing.assert_close(values, expected, rtol=1e-3, atol=1e-6)  # float32, differences of weights near 0.4


# The page for those who come from another package --------------------------------------------------------------------


def diffs():
    """Yield each diff of the page as the code before and after it."""
    text = (ROOT / "docs" / "migrating.md").read_text()
    for section in text.split("\n## ")[1:]:
        blocks = re.findall(r"^```diff\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
        assert blocks, section.splitlines()[0]
        for number, block in enumerate(blocks, start=1):
            lines = block.splitlines()
            before, after = ("\n".join(line[1:] for line in lines if line[:1] in (" ", "", sign)) for sign in "-+")
            yield pytest.param(before, after, id=f"{section.splitlines()[0]} {number}")


class OldSAM(torch.optim.Optimizer):
    """The two steps that sam.py and pytorch_optimizer take, in their words and with nothing repaired."""

    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, {"rho": rho, **kwargs})
        self.base = base_optimizer(self.param_groups, **kwargs)

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        weights = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in weights]).norm()
        self.theta = [p.clone() for p in weights]
        for p in weights:
            p.add_(p.grad, alpha=float(self.param_groups[0]["rho"] / (norm + 1e-12)))
        self.zero_grad() if zero_grad else None

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for p, theta in zip((p for group in self.param_groups for p in group["params"]), self.theta, strict=True):
            p.copy_(theta)
        self.base.step()
        self.zero_grad() if zero_grad else None

    def step(self, closure):
        self.first_step(zero_grad=True)
        closure()
        self.second_step()


def trained_by(code):
    model = net()
    scope = {"torch": torch, "F": F, "model": model, "loader": list(batches(5))}
    exec(compile(code, "migrating.md", "exec"), scope)
    return scope, list(model.parameters())


@pytest.mark.parametrize(("before", "after"), list(diffs()))
def test_a_diff_of_the_page_applies_and_trains_the_same_weights(before, after, monkeypatch):
    compile(before, "migrating.md", "exec")
    scope, weights = trained_by(after)
    assert isinstance(scope["optimizer"], torch.optim.Optimizer) and type(scope["optimizer"]).__module__[:4] == "esam"
    assert all(not torch.equal(a, b) for a, b in zip(weights, net().parameters(), strict=True))
    package = re.match(r"(?:from|import) (\w+)", before).group(1)
    if package in ("sam", "pytorch_optimizer"):  # the others are no page of code
        monkeypatch.setitem(sys.modules, package, types.SimpleNamespace(SAM=OldSAM))
        for a, b in zip(trained_by(before)[1], weights, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)  # float64; their 1e-12 in the norm


# What the peers' own tests assert, in our words ----------------------------------------------------------------------


@pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("method", ["sam", "asam", "looksam", "fsam", "gsam", "msam"])
def test_a_parabola_is_descended_to_its_minimum(method, base):
    """Of optax's suite: the sum of (w - 1)^2 from (-1, 10, 1), which SAM reaches to within its radius."""
    model = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0, 10.0, 1.0]]))
    settings = {"lr": 0.05, "momentum": 0.5} if base is torch.optim.SGD else {"lr": 0.2}
    optimizer = esam.METHODS[method](base(model.parameters(), **settings), model, rho=0.01)
    for _ in range(300):
        optimizer.step(lambda _: (model.weight - 1).square().sum())
    torch.testing.assert_close(model.weight, torch.ones(1, 3).double(), rtol=0, atol=0.02)  # twice the radius


@pytest.mark.parametrize("method", list_methods("*sam*"))
@pytest.mark.parametrize("base", [torch.optim.RAdam, torch.optim.AdamW])
def test_a_logistic_regression_loses_half_of_its_loss(method, base):
    """Of pytorch_optimizer's suite: a smoke test with their kind of threshold."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(64, 2)
    y = (x.sum(1) > 0).long()
    optimizer = esam.METHODS[method](base(model.parameters(), lr=0.1), model)
    losses = [
        float(optimizer.step(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), x, y)) for _ in range(40)
    ]
    assert losses[-1] < 0.5 * losses[0]


def test_looksam_without_its_memory_is_composers_interval():
    """Of composer's suite: with an interval of ten, twenty steps call the loss 22 times."""
    (one, two), calls = (net(norm=False), net(norm=False)), []
    optimizer = esam.LookSAM(torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9), one, rho=0.1, k=10, alpha=0.0)
    base = torch.optim.SGD(two.parameters(), lr=0.1, momentum=0.9)

    def loss_of(x, y):
        calls.append(len(x))
        return F.cross_entropy(one(x), y)

    for number, (x, y) in enumerate(batches(20)):
        optimizer.step(loss_of, x, y)
        by_hand(two, base, x, y, 0.1 if number % 10 == 0 else 0.0)
    assert len(calls) == 22
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)  # float64; 1e-12 in the norm by hand
