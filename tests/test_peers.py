"""What the tests of other packages assert, in our words: does it hold here? And what the bench times next to ours."""

import copy

import pytest
import torch
import torch.nn.functional as F
from old_sam import OldSAM, assert_close, assert_same, batches, net, two_steps
from peers import PEERS, ReleasedESAM, TwoStepSAM
from torch import nn

import esam
from esam import SAM, compat
from esam.bench.config import Bench
from esam.bench.steps import bench_steps

pytestmark = pytest.mark.filterwarnings("ignore:::pytorch_optimizer", "ignore:::schedulefree")

# pytorch_optimizer ---------------------------------------------------------------------------------------------------

THEIR_OWN = {
    "adahessian sophiah": "second derivatives, for which a backward must keep its graph",
    "alig lbfgs": "a closure of their own",
    "adalomo adammini lomo": "the model in place of its parameters",
    "adago adamuon distributedmuon muonclip normuon": "groups that say which tensors are matrices",
    "muon spectralsphere": "matrices only",
    "bsam ranger21": "the number of samples or steps",
    "demo": "another package",
}
"""Which of their optimizers want more than parameters and a rate, and what."""


X = torch.ones(8, 6).double()


def taken(optimizer, model, data, loss_of=F.cross_entropy):
    for x, y in data:
        optimizer.step(lambda x, y: loss_of(model(x), y), x, y)
    return model


def base_of(name):
    return getattr(torch.optim, name, None) or getattr(pytest.importorskip("pytorch_optimizer"), name)


def test_a_radius_of_zero_is_every_base_of_theirs_bit_for_bit():
    """Adadelta, whose groups have a ``rho`` too, is among them."""
    theirs = pytest.importorskip("pytorch_optimizer")
    data, failed, moved = [(x.float(), y) for x, y in batches(4)], set(), 0
    for name in theirs.get_supported_optimizers():
        try:
            model, twin = net(norm=False).float(), net(norm=False).float()
            ours = SAM(theirs.load_optimizer(name)(model.parameters(), lr=1e-3), model, rho=0.0)
            base = theirs.load_optimizer(name)(twin.parameters(), lr=1e-3)
            torch.manual_seed(5)
            taken(ours, model, data)
            torch.manual_seed(5)
            for x, y in data:
                base.zero_grad()
                F.cross_entropy(twin(x), y).backward()
                base.step()
        except Exception:
            failed.add(name)
            continue
        assert_same(model, twin)
        moved += not torch.equal(model[0].weight, net(norm=False).float()[0].weight)
    assert failed == {name for names in THEIR_OWN for name in names.split()}
    assert moved >= 100


WRAPPERS = {
    "Lookahead": lambda base: base_of("Lookahead")(base, k=3),
    "OrthoGrad": lambda base: base_of("OrthoGrad")(base),
    "ScheduleFreeWrapper": lambda base: base_of("ScheduleFreeWrapper")(base),
    "schedulefree": lambda base: pytest.importorskip("schedulefree").SGDScheduleFree(base.param_groups, lr=0.1),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_base_that_wraps_another_trains_and_resumes_bit_for_bit(name):
    def started(saved=None):
        model = net(norm=False)
        base = WRAPPERS[name](torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        getattr(base, "train", lambda: None)()
        optimizer = esam.LookSAM(base, model, rho=0.1, k=2, seed=3)
        if saved is not None:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        return model, optimizer

    data = list(batches(7))
    whole, optimizer = started()
    taken(optimizer, whole, data)
    first, optimizer = started()
    taken(optimizer, first, data[:3])
    again, resumed = started(copy.deepcopy((first.state_dict(), optimizer.state_dict())))
    taken(resumed, again, data[3:])
    assert_same(again, whole)
    assert resumed.steps == 7


@pytest.mark.parametrize("adaptive", [False, True])
def test_fifty_steps_of_their_sam_are_ours(adaptive):
    theirs = pytest.importorskip("pytorch_optimizer")
    a, b = net(norm=False), net(norm=False)
    base, row = torch.optim.AdamW(a.parameters(), lr=1e-2), esam.METHODS["asam" if adaptive else "sam"]
    taken(row(base, a, rho=0.1, **({"eta": 0.0} if adaptive else {})), a, batches(50))
    two_steps(b, theirs.SAM(b.parameters(), torch.optim.AdamW, rho=0.1, adaptive=adaptive, lr=1e-2), batches(50))
    assert_close(a, b, 1e-6)  # float64; Adam divides by gradients near their 1e-12


@pytest.mark.parametrize("base", ["AdamW", "ASGD", "AdamP"])
@pytest.mark.parametrize("method", ["sam", "asam", "looksam", "slicesam"])
def test_a_logistic_regression_loses_half_of_its_loss(method, base):
    """A smoke test, with their kind of threshold."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(64, 2)
    y = (x.sum(1) > 0).long()
    optimizer = esam.METHODS[method](base_of(base)(model.parameters(), lr=1.0 if base == "ASGD" else 0.1), model)
    losses = [
        float(optimizer.step(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), x, y)) for _ in range(40)
    ]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda optimizer, model: optimizer.step(), r"step\(loss_of, x, y\)"),
        (
            lambda optimizer, model: optimizer.step(lambda: model(torch.ones(8, 6).double()).sum().backward()),
            "hand the",
        ),
        (lambda optimizer, model: SAM(optimizer.base, model, rho=-0.1), "rho must be"),
        (lambda optimizer, model: SAM(optimizer.base, model, rho=float("nan")), "rho must be"),
        (lambda optimizer, model: SAM(optimizer.base, model, rho="wide"), "rho must be"),
        (lambda optimizer, model: optimizer.step(lambda x: {"a": model(x).mean()}, X), "dict"),
    ],
    ids=["no closure", "their closure", "negative", "nan", "text", "composer's dict of losses"],
)
def test_what_they_refuse_is_refused_with_a_remedy(call, said):
    model = net()
    with pytest.raises(ValueError, match=said):
        call(SAM(torch.optim.SGD(model.parameters(), lr=0.1), model), model)


def test_a_frozen_layer_stays_and_the_rest_moves():
    model = net(norm=False)
    model[0].requires_grad_(False)
    taken(SAM(torch.optim.SGD(model.parameters(), lr=0.1), model), model, batches(3))
    same = [torch.equal(a, b) for a, b in zip(model.parameters(), net(norm=False).parameters(), strict=True)]
    assert same == [True, True, False, False]


# davda54/sam, optax, composer ----------------------------------------------------------------------------------------


def test_the_names_of_sam_py_are_those_of_compat():
    optimizer = compat.SAM(net().parameters(), torch.optim.SGD, lr=0.1, rho=0.05, adaptive=True)
    assert callable(optimizer.first_step) and callable(optimizer.second_step)
    assert type(optimizer.base_optimizer) is torch.optim.SGD
    assert optimizer.param_groups is optimizer.base_optimizer.param_groups


@pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("method", ["sam", "asam", "looksam", "fsam", "gsam", "msam", "slicesam"])
def test_a_parabola_is_descended_to_its_minimum(method, base):
    """Of optax: the sum of (w - 1)^2 from (-1, 10, 1), a loss without a batch, is reached to within the radius."""
    model = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0, 10.0, 1.0]]))
    settings = {"lr": 0.05, "momentum": 0.5} if base is torch.optim.SGD else {"lr": 0.2}
    optimizer = esam.METHODS[method](base(model.parameters(), **settings), model, rho=0.01, loss="whole")
    for _ in range(300):
        optimizer.step(lambda _: (model.weight - 1).square().sum())
    torch.testing.assert_close(model.weight, torch.ones(1, 3).double(), rtol=0, atol=0.02)  # twice the radius


def test_groups_and_a_schedulers_rate_are_the_bases_own():
    """Of composer."""
    model = net()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = SAM(base, model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    taken(optimizer, model, batches(1))
    scheduler.step()
    assert optimizer.param_groups is base.param_groups and base.param_groups[0]["lr"] == 0.05


def test_looksam_without_its_memory_is_composers_interval():
    """With an interval of ten, twenty steps call the loss 22 times."""
    (one, two), calls = (net(norm=False), net(norm=False)), []
    settings = {"lr": 0.1, "momentum": 0.9}
    optimizer = esam.LookSAM(torch.optim.SGD(one.parameters(), **settings), one, rho=0.1, k=10, alpha=0.0)
    taken(optimizer, one, batches(20), lambda out, y: calls.append(len(y)) or F.cross_entropy(out, y))
    assert len(calls) == 22
    old = OldSAM(two.parameters(), torch.optim.SGD, rho=0.1, **settings)
    for number, batch in enumerate(batches(20)):
        old.param_groups[0]["rho"] = 0.1 if number % 10 == 0 else 0.0
        two_steps(two, old, [batch])
    assert_close(one, two)


# What the bench times ------------------------------------------------------------------------------------------------

BATCH = 12


def problem():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, base, torch.randn(BATCH, 6).double(), torch.randint(0, 3, (BATCH,))


def test_the_two_step_pattern_takes_sams_steps():
    model, base, x, y = problem()
    mine, own_base, _, _ = problem()
    pattern = TwoStepSAM(base)
    for _ in range(5):
        F.cross_entropy(model(x), y).backward()
        pattern.first_step()
        F.cross_entropy(model(x), y).backward()
        pattern.second_step()
    taken(SAM(own_base, mine), mine, [(x, y)] * 5)
    assert_close(model, mine, 1e-10)


def test_the_released_form_pays_three_forward_passes_and_returns_to_theta_before_it_steps():
    model, base, x, y = problem()
    optimizer = ReleasedESAM(base, model)
    sizes = []
    model.register_forward_hook(lambda module, inputs, output: sizes.append((len(output), output.requires_grad)))
    before = [w.detach().clone() for w in model.parameters()]
    base.param_groups[0]["lr"] = 0.0
    optimizer.step(x, y)
    # the ranking pass has no graph; of the half that it keeps, the one at the cutoff is lost
    assert sizes == [(BATCH, True), (BATCH, False), (BATCH // 2 - 1, True)]
    for w, old in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(w.detach(), old, rtol=0, atol=1e-12)


def test_without_sds_the_released_form_still_ranks():
    result = bench_steps(Bench(model="mlp", batch_size=8, size=8, rounds=1), PEERS)
    counted = {name: (row["forwards"], row["backwards"]) for name, row in result["contenders"].items()}
    assert counted == {
        "sam, two-step pattern": (2, 2),
        "esam, as released": (pytest.approx(2.375), pytest.approx(1.375)),
        "esam-swp, as released": (3, 2),
    }
