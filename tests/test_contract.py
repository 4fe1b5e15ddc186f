"""What every method in the registry promises, in one call and in phases. A new method gets these tests by its row."""

import copy
import inspect
import io
import itertools
import pickle
import sys

import pytest
import torch
import torch.nn.functional as F
from conftest import BASES, PERTURBING, assert_same, normalised, problem, same, start
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from esam import METHODS, SAM
from esam.optim.monitor import StepMonitor
from esam.optim.perturb import perturbed

every_row = pytest.mark.parametrize("name", METHODS)


# One step -------------------------------------------------------------------------------------------------------------


def by_phases(p, optimizer):
    optimizer.accumulate(p.loss_of, p.x, p.y)
    optimizer.gradient()
    optimizer.step()


def by_passes(p, optimizer):
    for x, y in optimizer.passes(p.x, p.y):
        optimizer.backward(F.cross_entropy(p.model(x), y, reduction="none"))
    optimizer.step()


def without_a_graph(p, optimizer):
    """As some trainers call it: torch's own optimizers allow it."""
    with torch.no_grad():
        p.step(optimizer)


def on_another_device(p, optimizer):
    with torch.device("meta"):
        p.step(optimizer)
        optimizer.state_dict()


def monitored(p, optimizer):
    optimizer.monitor = StepMonitor(optimizer)
    p.step(optimizer)


WAYS = {
    "phases": by_phases,
    "passes": by_passes,
    "a closure": lambda p, optimizer: optimizer.step(p.closure, batch_size=16),
    "closures": lambda p, optimizer: optimizer.step([p.closure], batch_size=[16]),
    "under no_grad": without_a_graph,
    "another default device": on_another_device,
    "monitored": monitored,
}


@every_row
def test_every_way_in_takes_the_step_of_a_loss_function_bit_for_bit(name):
    runs = {way: start(name, normalised, batch=16) for way in ("plain", *WAYS)}
    for number in range(7):
        for way, (p, optimizer) in runs.items():
            torch.manual_seed(number)
            WAYS.get(way, lambda p, optimizer: p.step(optimizer))(p, optimizer)
    plain, optimizer = runs["plain"]
    for way, (p, other) in runs.items():
        assert same(p.model.state_dict(), plain.model.state_dict()), way
        assert same(other.state_dict(), optimizer.state_dict()), way


@every_row
def test_the_loss_and_what_else_is_returned_are_the_first_passs_in_the_order_of_the_batch(name):
    p, optimizer = start(name)
    for step in range(2):
        with torch.no_grad():
            expected = p.model(p.x)

        def loss_of(x, y):
            logits = p.model(x)
            return F.cross_entropy(logits, y, reduction="none"), logits, {"x": x}

        loss, logits, extra = p.step(optimizer, loss_of)
        assert not logits.requires_grad and not loss.requires_grad
        rows = slice(None) if len(logits) == len(p.x) else [(p.x == row).all(1).nonzero().item() for row in extra["x"]]
        if step == 0 or name != "msam":  # which visits theta + eps alone
            assert_same(logits, expected[rows], atol=1e-12)
            assert_same(loss, F.cross_entropy(expected[rows], p.y[rows]), atol=1e-12)
        assert_same(extra["x"], p.x[rows])


@every_row
def test_everything_returns_bit_for_bit_whichever_call_of_the_loss_is_interrupted(name):
    p, optimizer = start(name, normalised)
    p.step(optimizer)
    optimizer.register_step_pre_hook(lambda *_: assert_same(p.weights, theta))
    for failing in itertools.count(1):
        theta, calls = p.weights, itertools.count(1)
        storage = [w.data_ptr() for w in p.model.parameters()]
        before = copy.deepcopy([p.model.state_dict(), optimizer.generator.get_state(), torch.get_rng_state()])

        def loss_of(x, y, failing=failing, calls=calls):
            losses = p.loss_of(x, y)
            if next(calls) == failing:
                raise KeyboardInterrupt("on purpose")
            return losses

        try:
            p.step(optimizer, loss_of)
        except KeyboardInterrupt:
            assert same([p.model.state_dict(), optimizer.generator.get_state(), torch.get_rng_state()], before)
            assert [w.data_ptr() for w in p.model.parameters()] == storage
            assert all(w.grad is None for w in p.model.parameters())
        else:
            break
    assert failing > 1  # it did raise at least once


def test_an_interrupt_at_any_call_of_a_perturbation_can_be_taken_back():
    weight, eps = torch.randn(2, 100).unbind()
    theta = weight.clone()
    for number in itertools.count(1):
        calls, held = itertools.count(1), perturbed([weight], [1e-3 * eps])

        def strike(frame, event, argument, number=number, calls=calls):
            inside = frame.f_code.co_filename == inspect.getfile(perturbed) and event in ("call", "c_call", "c_return")
            if inside and next(calls) == number:
                raise KeyboardInterrupt

        profile = sys.getprofile()
        try:
            sys.setprofile(strike)
            with held:
                pass
        except KeyboardInterrupt:
            held.restore()  # as an error in a step does
        else:
            break
        finally:
            sys.setprofile(profile)
            torch.set_grad_enabled(True)  # as the phase of a step does
            assert torch.equal(weight, theta), number
    assert number > 10


@every_row
def test_an_overflow_in_either_pass_skips_the_step_and_nothing_is_remembered_of_it(name):
    for at, form in itertools.product((1, 2), ("trainer", "step")):
        # to a fused base the scaler hands scaled gradients
        p, optimizer = start(name, dtype=torch.float32, base="fused adam" if form == "step" else "sgd")
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
        calls = itertools.count(1)

        def overflowing(x, y, p=p, at=at, calls=calls):
            losses = p.loss_of(x, y)
            return losses * torch.inf if torch.is_grad_enabled() and next(calls) == at else losses  # not while ranking

        for _ in range(2):  # LookSAM's third step perturbs
            p.step(optimizer, scaler=scaler)
            scaler.update()
        weights, state, generator = p.weights, copy.deepcopy(optimizer.state_dict()), optimizer.generator.get_state()
        if form == "trainer":
            optimizer.accumulate(overflowing, p.x, p.y, scaler=scaler)
            optimizer.gradient()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
        else:
            p.step(optimizer, overflowing, scaler=scaler)
        scaler.update()
        if next(calls) <= at:
            continue  # it has one pass
        assert scaler.get_scale() == 2.0**11
        assert_same(p.weights, weights)
        optimizer.generator.set_state(generator)  # draws alone go on
        assert same(optimizer.state_dict(), state)
        p.step(optimizer, scaler=scaler)
        assert not torch.equal(p.weights[0], weights[0])


@pytest.mark.parametrize("name", ["base", "sam", "asam", "looksam", "fsam", "gsam", "esam-sds", "slicesam", "msam"])
def test_nothing_is_read_back_from_the_device(name):
    """FakeTensorMode refuses any value that the host asks for; drawing masks (SWP) and AE-SAM's decision ask."""
    with FakeTensorMode():
        layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)
        p, optimizer = start(name, lambda dtype: nn.Sequential(*layers), batch=16, dtype=torch.float32)
        for _ in range(4):
            assert p.step(optimizer).shape == ()


@pytest.mark.parametrize("name", sorted({*PERTURBING} - {"slicesam", "ae-sam", "msam"}))  # theirs reaches the weights
def test_a_first_gradient_without_direction_never_reaches_the_weights_nor_later_steps(name):
    for value in (0.0, float("inf"), float("nan")):
        p, optimizer = start(name)
        for _ in range(4):
            p.step(optimizer)
        factors = itertools.chain([value], itertools.repeat(1.0))
        eps = p.visited(optimizer, lambda x, y, p=p, factors=factors: p.loss_of(x, y) * next(factors))
        assert len(eps) > 1
        if "decay" not in METHODS[name].options() or value != 0:  # F-SAM's direction leaves a mean out: it is not zero
            assert not any(e.any() for at in eps for e in at)
        # the second gradient was healthy
        kept = [p.weights, optimizer.state_dict()]
        assert all(t.isfinite().all() for t in tree_leaves(kept) if isinstance(t, torch.Tensor))


# Later steps ----------------------------------------------------------------------------------------------------------


@every_row
def test_a_resumed_run_a_deep_copy_and_a_pickled_one_continue_bit_for_bit(name):
    p, optimizer = start(name, normalised, base="adamw")  # whose state has numbers and tensors
    for _ in range(7):
        p.step(optimizer)
    random, file = torch.get_rng_state(), io.BytesIO()
    torch.save({"model": p.model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    q, resumed = start(name, normalised, base="adamw", seed=99)
    nn.init.ones_(q.model[0].weight)  # what it needs must come from the checkpoint
    q.model.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    runs = [optimizer, resumed, copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
    losses = []
    for run in runs:
        torch.set_rng_state(random)
        p.model = run.model
        losses.append([float(p.step(run)) for _ in range(9)])
        assert same(run.model.state_dict(), optimizer.model.state_dict())
    assert losses == [losses[0]] * 4


@every_row
def test_a_gradient_that_nobody_stepped_by_is_forgotten(name):
    (p, optimizer), (q, twin) = start(name), start(name)
    state = twin.generator.get_state()
    optimizer.accumulate(p.loss_of, p.x[:3], p.y[:3])
    optimizer.gradient()
    optimizer.generator.set_state(state)  # draws alone go on
    for _ in range(3):
        assert p.step(optimizer) == q.step(twin)
    assert_same(p.weights, q.weights)


def after_five_steps(name, torchs, **seed):
    p = problem()
    torch.manual_seed(torchs)
    base = BASES["sgd"](p.model.parameters())
    keys = set(base.param_groups[0])
    optimizer = METHODS[name](base, p.model, **seed)
    torch.manual_seed(99)  # what comes later has no say
    state = torch.get_rng_state()
    for _ in range(5):
        p.step(optimizer)
    optimizer.state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    # nothing of ours is in the base: it can be wrapped again
    assert set(base.param_groups[0]) == keys
    assert {key for own in base.state.values() for key in own} == {"momentum_buffer"}
    return p.weights


@every_row
def test_draws_follow_the_seed_or_torchs_own_and_leave_the_global_stream_and_the_base_alone(name):
    one = after_five_steps(name, torchs=7)
    assert_same(one, after_five_steps(name, torchs=3, seed=7))
    other = after_five_steps(name, torchs=7, seed=8)
    settings = METHODS[name].effective()
    draws = {"beta", "share", "gamma"} & set(settings) and settings.get("ranking") != "exact"
    if draws or settings.get("beta", 1) < 1:
        assert not all(map(torch.equal, one, other))


# In phases -----------------------------------------------------------------------------------------------------------


def micro_batches(p):
    return [(p.x[a:b], p.y[a:b]) for a, b in ((0, 5), (5, 12))]


def in_phases(p, optimizer, loss_of=None):
    """Take a step by micro-batches of five and seven samples; return their losses, and that of the step."""
    losses = [optimizer.accumulate(loss_of or p.loss_of, x, y) for x, y in micro_batches(p)]
    loss = optimizer.gradient()
    optimizer.step()
    return losses, loss


@pytest.mark.parametrize("name", PERTURBING)
def test_accumulate_returns_each_samples_loss_at_theta_detached(name):
    p, optimizer = start(name)
    expected = [p.loss_of(*batch).detach() for batch in micro_batches(p)]
    losses, loss = in_phases(p, optimizer)
    assert_same(losses, expected, atol=1e-14)
    assert not any(found.requires_grad for found in losses)
    assert_same(loss, torch.cat(expected).mean(), atol=1e-14)


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"esam", "esam-sds"}))
def test_a_mean_loss_will_do_where_no_ranking_reads_single_ones(name):
    (p, single), (q, mean) = start(name), start(name)
    for shape in ((), (1,), (), (1,)):  # a scalar, too
        one = in_phases(p, single)[1]
        other = in_phases(q, mean, lambda x, y, shape=shape: q.loss_of(x, y).mean().reshape(shape))[1]
        assert_same(one, other, atol=1e-13)
    assert_same(p.weights, q.weights, atol=1e-13)


def test_mean_losses_of_micro_batches_whose_sizes_nobody_gave_count_alike():
    (p, optimizer), (q, twin) = start("sam", rho=0.0), start("sam", rho=0.0)
    for x, y in micro_batches(p):
        optimizer.accumulate(lambda keep, x=x, y=y: p.loss_of(x[keep], y[keep]).mean())
    optimizer.gradient()
    optimizer.step()
    twin.step(lambda keep: torch.stack([q.loss_of(x, y).mean() for x, y in micro_batches(q)]).mean())
    assert_same(p.weights, q.weights, atol=1e-14)


def test_a_loss_that_is_not_perturbed_adds_its_gradient_at_theta():
    """With momentum 0 and no decay, the step is -lr times the sum of SAM's gradient and the other's: 2 theta."""
    p, q = problem(), problem()
    both, sam = (SAM(torch.optim.SGD(r.model.parameters(), lr=0.1), r.model, rho=0.1) for r in (p, q))
    before = p.weights
    both.accumulate(p.loss_of, p.x, p.y)
    both.accumulate(lambda _: sum(w.square().sum() for w in p.model.parameters()), p.x, perturb=False)
    loss = both.gradient()
    both.step()
    assert loss == q.step(sam)
    assert_same(p.weights, [w - 0.2 * theta for w, theta in zip(q.weights, before, strict=True)], atol=1e-14)


# Where the wrapper alone decides --------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", ["wrapper", "base"])
def test_schedulers_and_hooks_on_either_optimizer_see_each_step_once(on):
    p, optimizer = start("esam")
    target = optimizer if on == "wrapper" else optimizer.base
    scheduler = torch.optim.lr_scheduler.StepLR(target, step_size=1, gamma=0.1)
    seen = []
    target.register_step_pre_hook(lambda *_: seen.append("before"))
    target.register_step_post_hook(lambda *_: seen.append("after"))
    in_phases(p, optimizer)
    scheduler.step()
    p.step(optimizer)
    scheduler.step()
    assert seen == ["before", "after"] * 2
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0005)
    twin = copy.deepcopy(optimizer)  # a scheduled one can be copied
    loss = twin.step(lambda x, y: F.cross_entropy(twin.model(x), y, reduction="none"), p.x, p.y)
    assert loss == p.step(optimizer)


def test_it_is_a_torch_optimizer_on_the_bases_own_groups():
    _, optimizer = start("esam")
    assert isinstance(optimizer, torch.optim.Optimizer)
    for _ in range(2):
        assert optimizer.param_groups is optimizer.base.param_groups
        assert optimizer.state is optimizer.base.state
        assert optimizer.defaults is optimizer.base.defaults
        optimizer.base.load_state_dict(optimizer.base.state_dict())  # torch puts new lists in place


@pytest.mark.parametrize("name", PERTURBING)
def test_a_parameter_without_a_gradient_or_with_one_in_one_pass_only_is_left_alone(name):
    p, optimizer = start(name)
    unused, extra = (nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2))
    optimizer.add_param_group({"params": [unused]})
    optimizer.add_param_group({"params": [extra], "lr": 0.0, "weight_decay": 0.0})
    for number in range(6):
        calls = itertools.count(number)
        p.step(optimizer, lambda x, y, calls=calls: p.loss_of(x, y) + (extra.sum() if next(calls) % 2 else 0))
        assert torch.equal(extra, torch.ones_like(extra))
    assert torch.equal(unused, torch.ones_like(unused))
