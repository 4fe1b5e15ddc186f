"""The cheaper relatives of SAM: does each step by the gradient that its description names, and reduce to SAM or SGD?"""

import itertools
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from conftest import mlp, normalised, problem
from torch import nn

from esam import METHODS
from esam.optim import reference
from esam.optim.methods.saf import SAF
from esam.optim.methods.slicesam import SliceSAM
from esam.optim.methods.unbiased import inclusion, systematic_draw
from esam.optim.progress import Progress


def sgd(model, lr=0.05):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def trained(name, steps=4, build=mlp, **settings):
    """Return the weights after some steps on one batch, and the parts of it that the closure was called with."""
    p = problem(build)
    optimizer = METHODS[name](sgd(p.model), p.model, seed=3, **settings)
    for _ in range(steps):
        torch.manual_seed(0)  # dropout
        optimizer.step(p.closure, batch_size=12)
    return p.weights, p.calls


def by_hand(gradient_of, steps=4):
    """Return the weights after steps by ``gradient_of(losses, weights, step)``."""
    p = problem()
    base, weights = sgd(p.model), list(p.model.parameters())
    for step in range(steps):
        for w, g in zip(weights, gradient_of(p.closure, weights, step), strict=True):
            w.grad = g
        base.step()
    return p.weights


def assert_same(a, b, atol=1e-12):
    """Float64: sums over twelve samples in another order differ by some 1e-16 a step."""
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=atol)


def differ(a, b):
    return any((one - other).abs().max() > 1e-6 for one, other in zip(a, b, strict=True))


# Reductions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("slicesam", {"share": 1.0, "radius": "constant"}),
        ("sam-ascent-part", {"share": 1.0}),
        ("sam-half", {"share": 1.0}),
        ("sam-descent-part", {"gamma": 1.0}),
        ("sam-unbiased", {"gamma": 1.0}),
        ("sam-every", {"share": 1.0}),
        ("sam-late", {"share": 1.0, "total_steps": 4}),
        ("sam-early", {"share": 1.0, "total_steps": 4}),
        ("esam-follow", {"gamma": 1.0, "beta": 1.0}),
    ],
)
def test_on_the_whole_batch_and_in_every_step_it_is_sam(name, settings):
    assert_same(trained(name, rho=0.3, **settings)[0], trained("sam", rho=0.3)[0])


@pytest.mark.parametrize(
    "name",
    ["slicesam", "sam-ascent-part", "sam-late", "sam-every", "ae-sam", "msam", "msam-along", "rwp", "head-sam"],
)
def test_without_a_radius_it_is_the_base_bit_for_bit(name):
    for own, base in zip(trained(name, rho=0.0)[0], trained("base")[0], strict=True):
        assert torch.equal(own, base)


@pytest.mark.parametrize("name", [n for n in METHODS if n.startswith(("slice", "sam-", "ae-", "msam", "rwp", "head"))])
def test_with_a_radius_it_is_not_the_base(name):
    settings = {"total_steps": 4} if name in ("sam-late", "sam-early") else {}
    assert differ(trained(name, rho=0.3, build=normalised, **settings)[0], trained("base", build=normalised)[0])


# The sampled correction -----------------------------------------------------------------------------------------------


def test_a_slices_step_is_the_batchs_gradient_and_the_slices_correction():
    found, calls = trained("slicesam", steps=3, rho=0.3, radius="constant", share=0.25)
    slices = [call for call in calls if len(call) == 3][::2]
    assert len(calls) == 9 and len(slices) == 3  # the slice, the rest, the slice at theta + eps
    assert not all(torch.equal(slices[0], other) for other in slices[1:])

    def gradient(losses, weights, step):
        whole, part = reference.gradient(losses, weights), reference.gradient(losses, weights, slices[step])
        eps = [0.3 * g / reference.norm(part) for g in part]
        moved = reference.at_perturbed(losses, weights, eps, lambda: slices[step])
        return [b + m - s for b, m, s in zip(whole, moved, part, strict=True)]

    assert_same(found, by_hand(gradient, 3))


def test_the_mean_over_all_slices_is_sam_with_groups_of_their_size():
    """Every pair of six samples is as likely: the mean of all pairs is SAM with groups of two, over all groupings."""
    p = problem(batch=6)
    weights = list(p.model.parameters())
    whole = reference.gradient(p.closure, weights)
    pairs = [torch.tensor(pair) for pair in itertools.combinations(range(6), 2)]

    def at_worst(pair):
        part = reference.gradient(p.closure, weights, pair)
        eps = [0.3 * g / reference.norm(part) for g in part]
        return reference.at_perturbed(p.closure, weights, eps, lambda: pair)

    mean_of_pairs = [torch.stack(g).mean(0) for g in zip(*(at_worst(pair) for pair in pairs), strict=True)]
    totals = [torch.zeros_like(w) for w in weights]
    still = torch.optim.SGD(p.model.parameters(), lr=0.0)
    optimizer = SliceSAM(still, p.model, rho=0.3, radius="constant", share=1 / 3, seed=0)
    drawn = 1500
    for _ in range(drawn):
        optimizer.step(p.closure, batch_size=6)
        for total, w in zip(totals, weights, strict=True):
            total += w.grad / drawn
    error, size = reference.norm([a - b for a, b in zip(totals, mean_of_pairs, strict=True)]), 0.0
    size = reference.norm([a - b for a, b in zip(mean_of_pairs, whole, strict=True)])
    assert error < 0.1 * size, (error, size)  # n = 1,500 draws of a correction as long as its own spread: .03 expected


def test_the_radius_grows_with_the_root_of_the_share_of_the_loss_that_is_gone():
    found, calls = trained("slicesam", steps=6, rho=0.9, share=0.25)
    assert calls[0] == slice(None)  # nothing is learnt yet: the base's own step
    slices = {step: calls[3 * step - 2] for step in range(1, 6)}
    means: list[float] = []

    def gradient(losses, weights, step):
        whole, loss = reference.gradient(losses, weights), float(losses(slice(None)).detach().mean())
        before = list(means)
        means.append(loss if not before else 0.95 * before[-1] + 0.05 * loss)
        if not before or before[-1] == max(before):
            return whole
        part = reference.gradient(losses, weights, slices[step])
        r = 0.9 * math.sqrt(1 - before[-1] / max(before))
        moved = reference.at_perturbed(
            losses, weights, [r * g / reference.norm(part) for g in part], lambda: slices[step]
        )
        return [b + m - s for b, m, s in zip(whole, moved, part, strict=True)]

    assert_same(found, by_hand(gradient, 6))
    assert differ(found, trained("base", steps=6)[0])


@pytest.mark.parametrize(("losses", "share"), [((4.0, 2.0), 0.025), ((-1.0, -2.0), 1.0), ((2.0, 3.0), 0.0)])
def test_progress_is_the_share_of_the_loss_that_is_gone(losses, share):
    progress = Progress()
    for loss in (*losses, math.nan):
        progress = progress.after(loss)
    assert progress.share == pytest.approx(share)
    assert Progress(**progress.memory()) == progress


def test_every_kth_correction_is_k_times_as_strong():
    found, calls = trained("slicesam", steps=4, rho=0.3, radius="constant", share=0.25, k=2)
    assert [len(call) if not isinstance(call, slice) else 12 for call in calls] == [3, 9, 3, 12, 3, 9, 3, 12]
    slices = {0: calls[0], 2: calls[4]}

    def gradient(losses, weights, step):
        whole = reference.gradient(losses, weights)
        if step % 2:
            return whole
        part = reference.gradient(losses, weights, slices[step])
        eps = [0.3 * g / reference.norm(part) for g in part]
        moved = reference.at_perturbed(losses, weights, eps, lambda: slices[step])
        return [b + 2 * (m - s) for b, m, s in zip(whole, moved, part, strict=True)]

    assert_same(found, by_hand(gradient, 4))


def test_a_ranked_slice_has_the_highest_scores_and_runs_at_theta_again():
    p = problem()
    scores = torch.randn(12, generator=torch.Generator().manual_seed(5))
    optimizer = SliceSAM(sgd(p.model), p.model, rho=0.3, radius="constant", share=0.25, ranking=lambda batch: scores)
    optimizer.step(p.closure)
    highest = scores.topk(3).indices.sort().values
    assert p.calls[0] == slice(None)
    assert all(torch.equal(call, highest) for call in p.calls[1:]) and len(p.calls) == 3

    def gradient(losses, weights, step):
        whole, part = reference.gradient(losses, weights), reference.gradient(losses, weights, highest)
        eps = [0.3 * g / reference.norm(part) for g in part]
        moved = reference.at_perturbed(losses, weights, eps, lambda: highest)
        return [b + m - s for b, m, s in zip(whole, moved, part, strict=True)]

    assert_same(p.weights, by_hand(gradient, 1))


def test_a_size_that_has_to_be_found_out_is_told_once():
    p = problem()
    optimizer = SliceSAM(sgd(p.model), p.model, radius="constant")
    with pytest.warns(UserWarning, match=r"pass batch_size=len\(x\) beside the closure"):
        optimizer.step(p.closure)
    assert len(p.calls) == 4  # the size, the slice, the rest, the slice at theta + eps
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step(p.closure)
        SliceSAM(sgd(p.model), p.model).step(p.closure, batch_size=12)


def test_ranking_a_slice_by_what_eps_does_is_refused():
    p = problem()
    with pytest.raises(ValueError, match=r'before there is an eps; choose ranking="random" or "aligned"'):
        SliceSAM(sgd(p.model), p.model, ranking="exact")


def test_only_the_many_samples_move_the_running_statistics():
    p, q = problem(normalised), problem(normalised)
    optimizer = SliceSAM(sgd(p.model), p.model, rho=0.3, radius="constant", share=0.25, seed=1)
    torch.manual_seed(0)
    optimizer.step(p.closure, batch_size=12)
    (rest,) = [call for call in p.calls if len(call) == 9]
    q.model[1].momentum = 0.1
    q.model(q.x[rest])
    torch.testing.assert_close(p.model[1].running_mean, q.model[1].running_mean)
    assert p.model[1].num_batches_tracked == 1


# Parts of the batch ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "descends"), [("sam-ascent-part", "all"), ("sam-half", "part")])
def test_eps_comes_from_a_part_of_the_batch(name, descends):
    found, calls = trained(name, steps=3, rho=0.3, share=0.25)
    parts = calls[::2]
    assert all(len(part) == 3 for part in parts) and len(calls) == 6

    def gradient(losses, weights, step):
        part = reference.gradient(losses, weights, parts[step])
        eps = [0.3 * g / reference.norm(part) for g in part]
        keep = slice(None) if descends == "all" else parts[step]
        return reference.at_perturbed(losses, weights, eps, lambda: keep)

    assert_same(found, by_hand(gradient, 3))


def test_sam_on_moves_the_norm_layers_alone():
    p = problem(normalised)
    optimizer = METHODS["sam-on"](sgd(p.model), p.model, rho=0.3)
    theta, seen = {n: w.clone() for n, w in p.model.named_parameters()}, []

    def closure(keep):
        seen.append({n for n, w in p.model.named_parameters() if not torch.equal(w, theta[n])})
        return p.closure(keep)

    optimizer.step(closure, batch_size=12)
    assert seen == [set(), {"1.weight", "1.bias", "5.weight", "5.bias"}]
    with pytest.raises(ValueError, match='the model has none to train; use "all"'):
        q = problem()
        METHODS["sam-on"](sgd(q.model), q.model).step(q.closure, batch_size=12)


def test_an_unbiased_part_has_the_batchs_gradient_as_its_mean():
    p = problem()
    weights = list(p.model.parameters())
    optimizer = METHODS["sam-unbiased"](torch.optim.SGD(p.model.parameters(), lr=0.0), p.model, rho=0.3, seed=0)
    g = reference.sam(p.closure, weights, 0.3)
    p.calls.clear()
    totals, drawn = [torch.zeros_like(w) for w in weights], 800
    for _ in range(drawn):
        optimizer.step(p.closure)
        for total, w in zip(totals, weights, strict=True):
            total += w.grad / drawn
    assert {len(call) for call in p.calls[1::2]} == {6}
    error = reference.norm([a - b for a, b in zip(totals, g, strict=True)])
    assert error < 0.1 * reference.norm(g)  # the spread of one draw is about the gradient's length: .035 expected


@pytest.mark.parametrize("seed", range(5))
def test_chances_sum_to_the_count_and_are_those_of_the_draws(seed):
    generator = torch.Generator().manual_seed(seed)
    chances = inclusion(torch.rand(9, generator=generator, dtype=torch.float64) ** 4, 4)
    assert float(chances.sum()) == pytest.approx(4) and chances.max() <= 1
    hits = torch.zeros(9, dtype=torch.float64)
    for start in torch.linspace(0, 1, 2001, dtype=torch.float64)[:-1].tolist():
        drawn = systematic_draw(chances, start)
        assert len(drawn) == 4
        hits[drawn] += 1 / 2000
    assert (hits - chances).abs().max() < 2e-3  # a grid of 2,000 starts


# When to pay ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "passes"), [("sam-late", "11111122"), ("sam-early", "22111111"), ("sam-every", "21112111")]
)
def test_sam_is_paid_for_in_a_quarter_of_the_steps(name, passes):
    p = problem()
    settings = {} if name == "sam-every" else {"total_steps": 8}
    optimizer = METHODS[name](sgd(p.model), p.model, rho=0.3, **settings)
    counts = ""
    for _ in range(8):
        p.calls.clear()
        optimizer.step(p.closure)
        counts += str(len(p.calls))
    assert counts == passes


def test_ae_sam_pays_where_the_squared_norm_is_above_its_running_mean():
    p = problem()
    scale = {"now": 1.0}
    optimizer = METHODS["ae-sam"](torch.optim.SGD(p.model.parameters(), lr=0.0), p.model, rho=0.3)
    passes = []
    for factor in (1.0, 0.1, 0.1, 2.0, 0.1):
        scale["now"] = factor
        p.calls.clear()
        optimizer.step(lambda keep: scale["now"] * p.closure(keep))
        passes.append(len(p.calls))
    assert passes == [2, 1, 1, 2, 1]  # the first is its own mean
    g = reference.gradient(lambda keep: 0.1 * p.closure(keep), list(p.model.parameters()))
    assert_same([w.grad for w in p.model.parameters()], g)


def test_a_level_step_has_the_direction_of_esams_and_the_length_of_the_batchs():
    p = problem()
    first = reference.gradient(p.closure, list(p.model.parameters()))
    found = {}
    for name in ("esam-sds", "sds-level"):
        p = problem()
        METHODS[name](sgd(p.model, lr=0.0), p.model, rho=0.1).step(p.closure)
        found[name] = torch.cat([w.grad.flatten() for w in p.model.parameters()])
    whole = torch.cat([g.flatten() for g in first])
    longer = found["esam-sds"].norm() / whole.norm()
    torch.testing.assert_close(found["sds-level"].norm(), whole.norm())
    torch.testing.assert_close(found["sds-level"] * longer, found["esam-sds"])
    assert abs(longer - 1) > 0.05


def test_gamma_follows_the_loss():
    p = problem()
    optimizer = METHODS["esam-follow"](sgd(p.model, lr=0.5), p.model, rho=0.05)
    shares, losses = [], []
    for _ in range(150):
        p.calls.clear()
        losses.append(float(optimizer.step(p.closure)))
        shares.append(optimizer.kept_share())
        assert isinstance(p.calls[-1], torch.Tensor)
    assert len(p.calls[-1]) < 12 and losses[-1] < 0.2 * losses[0]
    assert shares[0] == 1 and 0.5 < shares[-1] < 0.75
    progress = Progress()
    for loss in losses:
        progress = progress.after(loss)
    assert shares[-1] == pytest.approx(1 - 0.5 * progress.share)


# One pass -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "sign"), [("msam", -1), ("msam-along", 1)])
@pytest.mark.parametrize("base", ["SGD", "AdamW"])
def test_momentum_sam_takes_its_one_gradient_at_a_point_along_the_momentum(name, sign, base):
    p, q = problem(), problem()
    build = {"SGD": lambda m: sgd(m), "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01)}[base]
    optimizer, plain = METHODS[name](build(p.model), p.model, rho=0.3), build(q.model)
    weights = list(q.model.parameters())
    key = "momentum_buffer" if base == "SGD" else "exp_avg"
    for _ in range(3):
        p.calls.clear()
        optimizer.step(p.closure)
        assert len(p.calls) == 1
        v = [plain.state[w][key] if w in plain.state else torch.zeros_like(w) for w in weights]
        length = reference.norm(v) or 1.0
        gradients = reference.at_perturbed(q.closure, weights, [sign * 0.3 * v_n / length for v_n in v])
        for w, g in zip(weights, gradients, strict=True):
            w.grad = g
        plain.step()
    assert_same(p.weights, q.weights)


def test_momentum_sam_waits_for_its_warm_up_and_wants_a_momentum():
    assert_same(trained("msam", warmup_steps=4)[0], trained("base")[0], atol=0)
    assert differ(trained("msam", warmup_steps=2)[0], trained("base")[0])
    assert differ(trained("msam", norm="adaptive")[0], trained("msam")[0])
    p = problem()
    with pytest.raises(ValueError, match=r"no momentum to perturb along; give it one"):
        METHODS["msam"](torch.optim.SGD(p.model.parameters(), lr=0.1), p.model)


def test_random_noise_has_the_length_of_a_share_of_each_filter():
    p = problem()
    theta, seen = p.weights, []

    def closure(keep):
        seen.append([w.detach() - t for w, t in zip(p.model.parameters(), theta, strict=True)])
        return p.closure(keep)

    optimizer = METHODS["rwp"](torch.optim.SGD(p.model.parameters(), lr=0.0), p.model, rho=0.2, seed=0)
    for _ in range(400):
        optimizer.step(closure)
    for n, w in enumerate(theta):
        rows = torch.stack([eps[n].reshape(len(w) if w.dim() > 1 else 1, -1) for eps in seen])
        expected = 0.2 * (w if w.dim() > 1 else w.reshape(1, -1)).norm(dim=1)
        # the mean of 400 squared lengths of k numbers spreads by sqrt(2 / (400 k)) of itself, k >= 3
        torch.testing.assert_close((rows**2).sum(2).mean(0).sqrt(), expected, rtol=0.1, atol=0)
        assert rows.mean(0).abs().max() < 0.2 * float(w.abs().max()) * 0.25


def test_head_sam_sends_back_the_gradient_at_each_samples_own_worst_head():
    p, q = problem(), problem()
    rho = 0.3
    METHODS["head-sam"](torch.optim.SGD(p.model.parameters(), lr=0.0), p.model, rho=rho).step(p.closure)
    trunk, head = q.model[:-1], q.model[-1]
    features = trunk(q.x)
    scores = head(features)
    r = torch.autograd.grad(F.cross_entropy(scores, q.y), scores, retain_graph=True)[0]
    h = features.detach()
    back = []
    for i in range(12):  # W + rho r h^T / (||r|| ||h||), sample by sample
        worst = head.weight + rho * torch.outer(r[i], h[i]) / (r[i].norm() * h[i].norm())
        back.append(worst.T @ r[i])
    expected = torch.autograd.grad(features, list(trunk.parameters()), grad_outputs=torch.stack(back).detach())
    assert_same([w.grad for w in p.model[:-1].parameters()], expected)
    assert_same([w.grad for w in p.model[-1].parameters()], [r.T @ h, r.sum(0)])  # the head's own as ever
    with pytest.raises(ValueError, match="there is none; use another method"):
        METHODS["head-sam"](sgd(nn.Sequential(nn.Conv1d(1, 1, 1))), nn.Sequential(nn.Conv1d(1, 1, 1)))


# What is free without sharpness ---------------------------------------------------------------------------------------


def test_the_average_is_that_of_the_weights_and_is_there_in_its_block_alone():
    p = problem()
    optimizer = METHODS["base-ema"](sgd(p.model), p.model, decay=0.9)
    average, plain = None, trained("base", steps=30)[0]
    for t in range(30):
        optimizer.step(p.closure)
        decay = min(0.9, (1 + t) / (10 + t)) if t else 0.0
        average = (
            p.weights
            if average is None
            else [decay * a + (1 - decay) * w for a, w in zip(average, p.weights, strict=True)]
        )
    assert_same(p.weights, plain, atol=0)
    with optimizer.evaluation_weights():
        assert_same(p.weights, average)
    assert_same(p.weights, plain, atol=0)
    restored = METHODS["base-ema"](sgd(p.model), p.model, decay=0.9)
    restored.load_state_dict(optimizer.state_dict())
    with restored.evaluation_weights():
        assert_same(p.weights, average)


def test_the_trajectory_loss_is_the_divergence_from_the_outputs_of_some_epochs_ago():
    p = problem(batch=6)
    optimizer = SAF(sgd(p.model), p.model, strength=0.5, temperature=2.0, lag=2, start=2)
    halves = [torch.tensor([0, 2, 4]), torch.tensor([1, 3, 5])]
    outputs, terms = [], []
    for _ in range(5):
        of_epoch = torch.empty(6, 3, dtype=torch.float64)
        for half in halves:
            scores = p.model(p.x[half])
            term = optimizer.trajectory_loss(scores, half)
            of_epoch[half] = scores.detach()
            terms.append(term.detach())
            optimizer.step(lambda keep, half=half: p.closure(half[keep]))
        outputs.append(of_epoch)
    assert all(float(term.abs().sum()) == 0 for term in terms[:4])  # epochs 0 and 1
    then, now = (F.softmax(o[halves[1]] / 2.0, dim=1) for o in (outputs[2].float().double(), outputs[4]))
    expected = 0.5 * (then * (then.log() - now.log())).sum(1)
    torch.testing.assert_close(terms[-1], expected, rtol=1e-5, atol=1e-7)  # outputs are kept in float32
    again = SAF(sgd(p.model), p.model, strength=0.5, temperature=2.0, lag=2, start=2)
    again.load_state_dict(optimizer.state_dict())
    scores = p.model(p.x[halves[0]])
    one, other = (o.trajectory_loss(scores, halves[0]) for o in (optimizer, again))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_sam_of_a_slice_needs_no_more_than_a_mean_loss():
    p, q = problem(), problem()
    one, other = (SliceSAM(sgd(r.model), r.model, rho=0.3, seed=1) for r in (p, q))
    for _ in range(3):
        one.step(p.closure, batch_size=12)
        other.step(lambda keep: q.closure(keep).mean(), batch_size=12)
    assert_same(p.weights, q.weights)
    assert differ(p.weights, trained("base", steps=3)[0])
