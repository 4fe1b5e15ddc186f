"""Loops, models and groups as users have them, which once broke a step or went wrong in silence: what happens now?"""

import itertools
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from conftest import assert_same, mlp, normalised, problem, sgd, start
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from esam import ESAM, METHODS, SAM, GuidanceWarning, LookSAM, SliceSAM
from esam.optim import reference


def halves(p):
    return [(p.x[:6], p.y[:6]), (p.x[6:], p.y[6:])]


# Loss functions -------------------------------------------------------------------------------------------------------


def test_a_prefetched_batch_is_refused_and_bound_or_handed_over_ones_are_not():
    (p, q, r), seen = (problem() for _ in range(3)), []
    x, y = carried = p.x, p.y

    def bound(keep, x=x, y=y):
        nonlocal carried  # a closure may carry something out, which others set too
        carried = q.loss_of(x[keep], y[keep])
        return carried

    optimizers = [SAM(sgd(t), t.model) for t in (p, q, r)]
    optimizers[0].accumulate(lambda keep: p.loss_of(x[keep], y[keep]))
    optimizers[1].accumulate(bound)
    optimizers[2].accumulate(r.loss_of, x, y)
    x, y = carried = torch.randn_like(x), y.roll(1)
    for optimizer in optimizers:
        try:
            optimizer.gradient()
            optimizer.step()
        except ValueError as error:
            seen.append(str(error))
    assert len(seen) == 1 and "accumulate(loss_of, x, y)" in seen[0]
    assert_same(q.weights, r.weights)


@pytest.mark.parametrize("make", [SliceSAM, lambda b, m: SAM(b, m, m=4)], ids=["slicesam", "sam in groups"])
def test_zero_grad_in_the_loss_function_does_nothing_to_the_step(make):
    """Before: it wiped g_B - g_S, a gradient off by 208 %."""
    p, q = problem(), problem()
    one, other = make(sgd(p), p.model), make(sgd(q), q.model)
    for _ in range(3):
        p.step(one, lambda x, y: one.zero_grad() or p.loss_of(x, y))
        q.step(other)
        one.zero_grad()
    assert_same(p.weights, q.weights)


def in_phases(p, optimizer):
    optimizer.accumulate(p.loss_of, p.x, p.y)
    optimizer.gradient()
    optimizer.step()


@pytest.mark.parametrize("take_step", [lambda p, o: p.step(o), in_phases], ids=["step", "phases"])
@pytest.mark.parametrize("name", ["sam", "slicesam", "esam", "msam"])
@pytest.mark.parametrize("turns", [1, 2])
def test_a_loop_over_passes_that_was_left_but_is_still_referred_to_leaves_nothing_behind(name, turns, take_step):
    """Before: the next step began at theta + eps, and the end of the old loop wrote an old theta over the weights."""
    (p, optimizer), (q, twin) = start(name), start(name)
    for t, o in ((p, optimizer), (q, twin)):
        t.step(o)  # so that there is a momentum
    left = optimizer.passes(p.x, p.y)
    x, y = next(left)
    if turns == 2 and name != "msam":
        optimizer.backward(p.loss_of(x, y))
        next(left)
    take_step(p, optimizer)
    take_step(q, twin)
    with torch.no_grad():
        left.close()
        assert not torch.is_grad_enabled()
    assert_same(p.weights, q.weights)
    with pytest.raises(StopIteration):
        next(left)


def test_a_loop_over_passes_that_goes_on_after_another_step_is_refused():
    p = problem()
    optimizer = SAM(sgd(p), p.model)
    left = optimizer.passes(p.x, p.y)
    next(left)
    p.step(optimizer)
    after = p.weights
    with pytest.raises(ValueError, match="another step has begun"):
        next(left)
    assert_same(p.weights, after)


def test_a_loop_that_ends_after_a_backward_leaves_no_autocast_behind():
    p = problem(dtype=torch.float32)
    optimizer = SAM(sgd(p), p.model)
    with torch.autocast("cpu", torch.bfloat16):
        passes = optimizer.passes(p.x, p.y)
        optimizer.backward(p.loss_of(*next(passes)))
    theta = p.weights
    optimizer.backward(p.loss_of(*next(passes)))  # autocast is in force again: this pass is to see what the first saw
    assert torch.is_autocast_enabled("cpu")
    passes.close()
    assert not torch.is_autocast_enabled("cpu")
    assert_same(p.weights, theta)


@pytest.mark.parametrize("name", ["base", "sam", "looksam", "slicesam", "base-part", "esam-random"])
def test_a_sum_is_the_mean_times_the_batch(name):
    """At lr / 12 a step by the sum is the step by the mean. Before: 0.78 of it, in silence."""
    p, q = problem(), problem()
    by_mean = METHODS[name](torch.optim.SGD(p.model.parameters(), lr=0.12), p.model, seed=1)
    by_sum = METHODS[name](torch.optim.SGD(q.model.parameters(), lr=0.01), q.model, seed=1, loss="sum")
    for _ in range(3):
        for t, optimizer, reduced in ((p, by_mean, torch.mean), (q, by_sum, torch.sum)):
            for x, y in halves(t):
                optimizer.accumulate(lambda x, y, t=t, reduced=reduced: reduced(t.loss_of(x, y)), x, y)
        mean, total = by_mean.gradient(), by_sum.gradient()
        assert float(total) == pytest.approx(float(mean) * (6 if name == "base-part" else 12), rel=1e-12)
        by_mean.step()
        by_sum.step()
    assert_same(p.weights, q.weights, 1e-12)


def test_a_loss_over_pairs_is_never_cut_where_it_is_declared_whole():
    p, sizes = problem(), []
    optimizer = SliceSAM(sgd(p), p.model, loss="whole")

    def loss_of(x):
        sizes.append(len(x))
        z = F.normalize(p.model(x), dim=1)
        return F.cross_entropy(z @ z.T, torch.arange(len(x)))

    for _ in range(2):
        optimizer.step(loss_of, p.x)
    assert sizes == [12] * 4


@pytest.mark.parametrize("name", ["sam", "looksam", "esam"])
def test_maximising_is_minimising_the_negative_bit_for_bit(name):
    ends = []
    for sign in (1, -1):
        p = problem()
        optimizer = METHODS[name](sgd(p, maximize=sign == 1), p.model, seed=3, rho=0.3)
        for _ in range(4):
            p.step(optimizer, lambda x, y, p=p, sign=sign: sign * p.loss_of(x, y))
        ends.append(p.weights)
    assert_same(*ends)


def test_an_exception_that_is_kept_does_not_bring_old_weights_back():
    """Jupyter keeps the last one. Before: theta of then was written over trained weights when it was dropped."""
    p = problem()
    optimizer, calls = SAM(sgd(p), p.model), itertools.count()

    def broken(x, y):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return p.loss_of(x, y)

    try:
        p.step(optimizer, broken)
    except KeyboardInterrupt as error:
        kept = error
    for _ in range(3):
        p.step(optimizer)
    weights = p.weights
    del kept
    sys.exc_info()
    assert_same(p.weights, weights)


def normalising(x):
    return x.sub_(0.5).div_(0.2)


def by_step(p, optimizer):
    optimizer.step(lambda x, y: p.loss_of(normalising(x), y), p.x, p.y)


def by_turns(p, optimizer):
    for x, y in optimizer.passes(p.x, p.y):
        optimizer.backward(p.loss_of(normalising(x), y))
    optimizer.step()


@pytest.mark.parametrize("take_step", [by_step, by_turns])
@pytest.mark.parametrize("name", ["sam", "slicesam", "esam", "base"])
def test_a_loss_function_that_changes_its_batch_in_place_is_refused_where_it_would_run_again(name, take_step):
    """Before: the second pass ran on a batch normalised twice, in silence."""
    p, optimizer = start(name)
    before = p.weights
    if name == "base":  # one pass
        return take_step(p, optimizer)
    with pytest.raises(ValueError, match="in place"):
        take_step(p, optimizer)
    assert_same(p.weights, before)


def test_a_gradient_that_nobody_stepped_by_is_dropped_with_a_warning():
    """Before: accumulation written as with ``backward`` trained on the last micro-batch, in silence."""
    p, optimizer = start("sam")
    with pytest.warns(GuidanceWarning, match="was not stepped by") as seen:
        for part in halves(p):
            for x, y in optimizer.passes(*part):
                optimizer.backward(p.loss_of(x, y))
    optimizer.step()
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for part in halves(p):  # where it is cleared, it is not wanted
            optimizer.accumulate(p.loss_of, *part)
            optimizer.gradient()
            optimizer.zero_grad()
        p.step(optimizer)


@pytest.mark.parametrize("then", [lambda p, o: p.step(o), lambda p, o: next(o.passes(p.x, p.y))])
def test_half_a_step_is_not_dropped_in_silence(then):
    p, optimizer = start("sam")
    optimizer.accumulate(p.loss_of, p.x, p.y)
    with pytest.raises(ValueError, match="has begun a step"):
        then(p, optimizer)
    p.step(optimizer)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("name", ["base", "sam", "slicesam"])
def test_a_loss_function_that_clears_an_earlier_part_of_the_gradient_is_refused(name, to_none):
    """Before: ``model.zero_grad()`` in it lost all micro-batches but the last."""
    p, optimizer = start(name)

    def loss_of(x, y):
        p.model.zero_grad(to_none)
        return p.loss_of(x, y)

    with pytest.raises(ValueError, match="zero_grad"):
        for part in halves(p):
            optimizer.accumulate(loss_of, *part)
        optimizer.gradient()


def test_a_number_that_a_loss_function_reads_from_outside_is_the_one_of_its_micro_batch():
    """Mixup's lam. Before: all second passes saw the last one's."""
    p, optimizer = start("sam")
    for lam, part in zip((0.3, 0.7), halves(p), strict=True):
        optimizer.accumulate(lambda x, y: lam * p.loss_of(x, y), *part)  # noqa: B023
    with pytest.raises(ValueError, match="reads lam"):
        optimizer.gradient()


def test_tensors_that_the_base_leaves_to_another_optimizer_are_said():
    p = problem()
    matrices = [w for w in p.model.parameters() if w.dim() > 1]
    with pytest.warns(GuidanceWarning, match="0.bias"):
        SAM(torch.optim.SGD(matrices, lr=0.1), p.model)


@pytest.mark.parametrize("name", ["fsam", "ae-sam", "esam"])
def test_what_a_method_remembers_does_not_depend_on_the_scale_of_a_scaler_in_a_loop_over_passes(name):
    (p, optimizer), (q, twin) = start(name), start(name)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=1)
    for _ in range(6):
        for x, y in optimizer.passes(p.x, p.y, scaler=scaler):
            optimizer.backward(p.loss_of(x, y))
        scaler.step(optimizer)
        scaler.update()
        q.step(twin)
    assert_same(p.weights, q.weights)


def test_passes_without_a_batch_and_empty_batches_are_refused_in_words():
    p, optimizer = start("slicesam")
    with pytest.raises(ValueError, match="takes the batch"):
        next(optimizer.passes())
    with pytest.raises(ValueError, match="batch is empty"):
        optimizer.step(p.loss_of, p.x[:0], p.y[:0])


# Small batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4])
def test_tiny_micro_batches_make_slicesam_cost_its_share(size):
    """Before: micro-batches of 1 ran 64 samples for a batch of 32."""
    p = problem(batch=32)
    optimizer, ran = SliceSAM(sgd(p), p.model, share=0.125), []
    for x, y in zip(p.x.split(size), p.y.split(size), strict=True):
        optimizer.accumulate(lambda x, y: ran.append(len(x) * torch.is_grad_enabled()) or p.loss_of(x, y), x, y)
    optimizer.gradient()
    assert sum(ran) == 32 + 4


@pytest.mark.parametrize(
    ("make", "batch"),
    [(SliceSAM, 3), (lambda b, m: SliceSAM(b, m, share=0.9), 8), (METHODS["base-part"], 3),
     (lambda b, m: SAM(b, m, m=4), 9), (lambda b, m: ESAM(b, m, m=4), 9), (lambda b, m: ESAM(b, m, gamma=0.25), 4)],
)  # fmt: skip
def test_batchnorm_never_sees_a_part_of_one_sample(make, batch):
    """Before: "Expected more than 1 value per channel", with the README's own net and a last batch of 3."""
    p = problem(normalised, batch=batch)
    assert p.step(make(sgd(p), p.model)).isfinite()


@pytest.mark.parametrize(("build", "first"), [(normalised, [0, 1]), (mlp, [0])])
def test_a_lone_kept_sample_takes_a_neighbour_along_where_batchnorm_needs_one(build, first):
    p = problem(build, batch=8)
    scores = torch.tensor([9.0, 0, 0, 0, 8, 7, 6, 0])
    optimizer = ESAM(sgd(p), p.model, ranking=lambda batch: scores)
    of_all, kept = torch.arange(8), []

    def part(samples):
        return lambda keep: (kept.append(keep), p.closure(samples[keep]))[1]

    optimizer.step([part(of_all[:4]), part(of_all[4:])])
    assert [keep.tolist() for keep in kept[2:]] == [first, [0, 1, 2]]


# Models ---------------------------------------------------------------------------------------------------------------


def test_groupnorm_in_channels_last_may_join_the_graph_later():
    """Where the gradient at its input is not asked for, torch's kernel ends the process, and this test run with it."""
    ends = []
    for memory_format in (torch.channels_last, torch.contiguous_format):
        torch.manual_seed(0)
        model = nn.ModuleList([nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Linear(4, 3)]).double()
        optimizer = METHODS["esam-swp"](torch.optim.SGD(model.parameters(), lr=0.1), model, beta=0.4, seed=0)
        x = torch.randn(6, 3, 6, 6).double().to(memory_format=memory_format)
        for step in range(30):

            def loss_of(x, step=step, model=model):
                h = model[0](x)
                return model[2]((model[1](h) if step % 2 else h).relu().mean((2, 3))).square().sum(1)

            optimizer.step(loss_of, x)
        ends.append([p.detach() for p in model.parameters()])
    assert_same(*ends, 1e-9)  # thirty steps of float64


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 5)), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(checkpoint(self.body, x, use_reentrant=True))


@pytest.mark.parametrize("stem", [nn.Identity, lambda: nn.Linear(6, 6)], ids=["inputs", "a layer"])
def test_layers_in_reentrant_checkpoints_are_never_left_unperturbed_in_silence(stem):
    """torch.autograd.grad does not look inside them, and says so only where a weight lies before the checkpoint."""
    p, optimizer = start("sam", lambda dtype: nn.Sequential(stem(), Checkpointed()).to(dtype))
    before = p.weights
    p.x.requires_grad_()
    with pytest.raises(ValueError, match="use_reentrant=False"):
        p.step(optimizer)
    assert_same(p.weights, before)


@pytest.mark.parametrize("name", ["sam", "looksam", "esam"])
def test_complex_weights_train_as_their_pairs_of_real_numbers(name):
    ends = []
    for paired in (False, True):
        torch.manual_seed(0)
        pairs, x = torch.randn(4, 2, dtype=torch.float64), torch.randn(12, 6, dtype=torch.float64)
        model = nn.ParameterList([pairs if paired else torch.view_as_complex(pairs), torch.randn(6).double()])
        optimizer = METHODS[name](torch.optim.SGD(model.parameters(), lr=0.1), model, seed=3, rho=0.3)

        def loss_of(x, model=model, paired=paired):
            weight = torch.view_as_complex(model[0]) if paired else model[0]
            return (torch.fft.irfft(weight * torch.fft.rfft(x), n=6).tanh() @ model[1]).square()

        for _ in range(6):
            optimizer.step(loss_of, x)
        ends.append([model[0] if paired else torch.view_as_real(model[0]), model[1]])
    assert_same(*ends, 1e-13)


def test_sparse_gradients_stay_sparse_for_a_base_that_wants_them():
    """Before: SparseAdam "does not support dense gradients". With nothing dense to reuse, LookSAM is SAM."""
    ends = {}
    for name in ("slicesam", "ae-sam", "sam", "looksam"):
        torch.manual_seed(0)
        model, rows = nn.EmbeddingBag(20, 4, sparse=True), torch.randint(20, (16, 3))
        optimizer = METHODS[name](torch.optim.SparseAdam(model.parameters(), lr=0.01), model)
        for _ in range(6):
            assert optimizer.step(lambda x, model=model: model(x).square().sum(1), rows).isfinite()
            assert model.weight.grad.is_sparse
        ends[name] = model.weight.detach()
    assert torch.equal(ends["looksam"], ends["sam"])


def test_looksam_reuses_dense_gradients_and_leaves_sparse_ones_as_they_are():
    torch.manual_seed(0)
    words, head = nn.Embedding(10, 4, sparse=True).double(), nn.Linear(4, 3).double()
    model, x, y = nn.Sequential(words, head), torch.randint(0, 10, (12,)), torch.randint(0, 3, (12,))
    optimizer = LookSAM(torch.optim.SGD(model.parameters(), lr=0.0), model, rho=0.3, k=2, alpha=0.7)
    weights = list(model.parameters())

    def losses(keep):
        return F.cross_entropy(model(x[keep]), y[keep], reduction="none")

    g = [a.to_dense() for a in reference.gradient(losses, weights)]
    eps = [0.3 * a / reference.norm(g) for a in g]
    s = [a.to_dense() for a in reference.at_perturbed(losses, weights, eps)]
    optimizer.step(losses)
    assert_same([w.grad.to_dense() for w in weights], s, 1e-13)
    along = sum(float((a * b).sum()) for a, b in zip(s[1:], g[1:], strict=True)) / reference.norm(g[1:]) ** 2
    v = [a - along * b for a, b in zip(s[1:], g[1:], strict=True)]
    factor = 0.7 * reference.norm(g[1:]) / reference.norm(v)
    optimizer.step(losses)
    assert words.weight.grad.is_sparse
    expected = [g[0], *(a + factor * b for a, b in zip(g[1:], v, strict=True))]
    assert_same([w.grad.to_dense() for w in weights], expected, 1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_looksam_on_a_linear_loss_is_the_base(dtype):
    """The two gradients are parallel: what is left between them is rounding, and there is nothing to reuse."""
    torch.manual_seed(0)
    x, ends = torch.randn(16, 5, dtype=dtype), []
    for settings in ({"k": 5}, {"rho": 0.0}):
        model = nn.Linear(5, 1).to(dtype)
        nn.init.ones_(model.weight)
        nn.init.zeros_(model.bias)
        optimizer = LookSAM(torch.optim.SGD(model.parameters(), lr=0.1), model, **settings)
        for _ in range(10):
            optimizer.step(lambda x, model=model: model(x).squeeze(1), x)
        ends.append(model)
    # ten additions to weights of about one
    assert_same(*ends, atol=20 * torch.finfo(dtype).eps)


def test_a_buffer_that_lies_in_the_callers_batch_is_put_back_and_the_batch_is_not_written():
    p, optimizer = start("sam")
    p.model.register_buffer("last", torch.zeros(6).double())
    before, rows = p.x.clone(), itertools.count()

    def loss_of(x, y):
        p.model.last.data = x[next(rows)]
        return p.loss_of(x, y)

    p.step(optimizer, loss_of)
    assert_same([p.x, p.model.last], [before, before[0]])


class CountingCopies(TorchDispatchMode):
    """Counts the large tensors that are copied."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), settings=None):
        if "clone" in str(function) or "copy" in str(function):
            self.count += any(isinstance(t, torch.Tensor) and t.numel() >= 2**17 for t in tree_leaves(arguments))
        return function(*arguments, **(settings or {}))


def test_a_constant_buffer_is_copied_no_more_once_it_is_known():
    """Before: one of 64 MB made a step take 308 ms where SGD takes 0.85."""
    p, optimizer = start("sam")
    p.model.register_buffer("mask", torch.zeros(2**17))
    for _ in range(3):
        p.step(optimizer)
    with CountingCopies() as copies:
        p.step(optimizer)
    assert copies.count == 0


# Groups and state -----------------------------------------------------------------------------------------------------


def test_a_model_that_holds_a_part_of_what_the_base_trains_is_warned_of():
    towers = nn.Linear(2, 2), nn.Linear(2, 2)
    base = torch.optim.SGD([q for tower in towers for q in tower.parameters()], lr=0.1)
    with pytest.warns(GuidanceWarning, match="ModuleList"):
        SAM(base, towers[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SAM(base, nn.ModuleList(towers))


def test_a_checkpoint_of_the_base_leaves_the_groups_own_radii_as_the_user_set_them():
    p = problem()
    groups = [{"params": list(p.model[0].parameters())}, {"params": list(p.model[2:].parameters())}]
    plain = torch.optim.SGD([dict(g) for g in groups], lr=0.1).state_dict()
    optimizer = SAM(torch.optim.SGD([{**groups[0], "sam_rho": 0.3}, {**groups[1], "perturb": False}], lr=0.1), p.model)
    optimizer.load_state_dict(plain)
    assert [(g.get("sam_rho"), g.get("perturb")) for g in optimizer.param_groups] == [(0.3, None), (None, False)]
