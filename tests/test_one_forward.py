"""One forward pass at theta + eps: the same gradients for less, and the two-pass form wherever that cannot be."""

import contextlib
import copy
import gc
import pickle
import random
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from conftest import PAPER, mlp, normalised, problem
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from esam import ESAM
from esam.optim import one_forward
from esam.optim.one_forward import tracing
from esam.optim.one_forward.rows import LARGE_ROW, Kept
from esam.train.models import build_model


class Problem:
    """A model and a batch; counts the calls of the closure."""

    def __init__(self, model, x, y=None, **settings):
        self.model, self.x, self.calls = model, x, 0
        self.y = torch.randint(0, 3, (len(x),)) if y is None else y
        base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        self.optimizer = ESAM(base, model, rho=0.1, seed=0, **{**PAPER, **settings})

    def closure(self, keep):
        self.calls += 1
        return F.cross_entropy(self.model(self.x[keep]), self.y[keep], reduction="none")

    def step(self, closure=None, **arguments):
        self.calls = 0
        return self.optimizer.step(closure or self.closure, **arguments)

    @property
    def gradients(self):
        return [p.grad for p in self.model.parameters()]


def twins(build, x, y=None, **settings):
    """Return the two-pass form and the one-forward form of one problem."""
    torch.manual_seed(0)
    y = torch.randint(0, 3, (len(x),)) if y is None else y
    model = build()
    return [Problem(copy.deepcopy(model), x, y, one_forward=one, **settings) for one in (False, True)]


def assert_alike(two, one, atol=1e-12):
    for a, b in zip(two.gradients, one.gradients, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.allclose(a, b, rtol=1e-10, atol=atol)
    for a, b in zip(two.model.parameters(), one.model.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=atol)


def vectors(batch=12):
    return torch.randn(batch, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def pictures(batch, size, layout=torch.contiguous_format):
    x = torch.randn(batch, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x.contiguous(memory_format=layout)


def network(name, size, layout=torch.contiguous_format):
    return lambda: build_model(name, classes=3, size=size).double().to(memory_format=layout)


class TiedWeights(nn.Module):
    """Token ids in, and an embedding that is the last layer too."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.block(self.embed(ids)).mean(1))


def parametrized():
    model = mlp()
    nn.utils.parametrizations.weight_norm(model[0])
    return model


def partly_frozen():
    model = mlp()
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model


def normalised_in_eval():
    model = normalised()
    return model.eval()


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, x):
        return self.inner(torch.stack((x, 2 * x, 3 * x))).mean(0)


CASES = {
    "time first": (TimeFirst, vectors()),
    "mlp": (mlp, vectors()),
    "frozen": (partly_frozen, vectors()),
    "parametrized": (parametrized, vectors()),
    "batchnorm in eval": (normalised_in_eval, vectors()),
    "a batch of odd size": (mlp, vectors(7)),
    "one sample kept": (mlp, vectors(2)),
    "groupnorm": (network("cnn", 16), pictures(12, 16)),
    "groupnorm channels_last": (
        network("cnn", 16, torch.channels_last),
        pictures(12, 16, torch.channels_last),
    ),
    "batch as large as the picture": (network("cnn", 16), pictures(16, 16)),
    "vit": (network("vit-tiny", 32), pictures(6, 32)),
    "tied weights, token ids": (lambda: TiedWeights().double(), torch.randint(0, 11, (12, 5))),
}


@pytest.mark.parametrize("name", CASES)
def test_the_gradients_are_those_of_the_two_pass_form(name):
    build, x = CASES[name]
    two, one = twins(build, x)
    for _ in range(3):
        assert two.step().item() == pytest.approx(one.step().item(), abs=1e-12)
        assert_alike(two, one)
    assert (two.calls, one.calls) == (3, 2)


def test_a_share_that_keeps_every_sample_works():
    two, one = twins(mlp, vectors(), gamma=0.99)
    for _ in range(2):
        two.step()
        one.step()
        assert_alike(two, one)
    assert one.calls == 2


@pytest.mark.parametrize("build", [mlp, lambda: mlp().float()], ids=["float64", "float32"])
def test_fifty_steps_of_training_end_at_the_same_weights(build):
    dtype = next(build().parameters()).dtype
    two, one = twins(build, vectors(24).to(dtype))
    for _ in range(50):
        two.step()
        one.step()
    assert one.calls == 2
    for a, b in zip(two.model.parameters(), one.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-10 if dtype is torch.float64 else 1e-4)


def test_only_the_kept_samples_run_backward(monkeypatch):
    _, one = twins(mlp, vectors(), gamma=0.25)
    one.step()
    rows = []
    run = one_forward._run_backward

    def watched(halves, store, tangents):
        rows.extend(map(len, tangents))
        return run(halves, store, tangents)

    monkeypatch.setattr(one_forward, "_run_backward", watched)
    one.step()
    assert rows == [3]  # of 12 samples


@pytest.mark.parametrize("ending", ["used", "two passes", "error"])
def test_nothing_that_was_saved_outlives_the_step(ending, monkeypatch):
    _, one = twins(mlp, vectors())
    passes = []
    begin = one_forward._Pass.compute
    monkeypatch.setattr(
        one_forward._Pass, "compute", lambda self, t: (passes.append(weakref.ref(self)), begin(self, t))[1]
    )

    def closure(keep):
        losses = one.closure(keep)
        if ending == "error" and one.calls == 2:
            raise KeyError
        return losses * float("inf") if ending == "two passes" and one.calls == 2 else losses

    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(KeyError):
            one.step(closure)
        assert len(passes) == 1
        assert passes[0]() is None or not (passes[0]()._saved or passes[0]()._outputs)
    finally:
        gc.enable()


def test_the_masks_of_dropout_are_those_that_were_ranked():
    """The two-pass form draws the kept samples' masks anew; this one has the gradient of the ranked losses."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.5), nn.Tanh(), nn.Linear(32, 3)).double()
    at_perturbed = copy.deepcopy(model)
    kept, losses, state = [], [], []

    def ranking(batch):
        losses.append(batch.perturbed_losses())
        kept.append(losses[-1].topk(6).indices.sort().values)
        return losses[-1]

    p = Problem(model, vectors(), ranking=ranking, beta=1.0, one_forward=True)

    def closure(keep):
        state.append((torch.get_rng_state(), copy.deepcopy(model.state_dict())))
        return p.closure(keep)

    for _ in range(3):
        state.clear()
        p.step(closure)
        assert len(state) == 2
        torch.set_rng_state(state[1][0])
        at_perturbed.load_state_dict(state[1][1])
        expected = F.cross_entropy(at_perturbed(p.x), p.y, reduction="none")
        assert torch.equal(expected.detach(), losses[-1])
        gradients = torch.autograd.grad(expected[kept[-1]].mean(), list(at_perturbed.parameters()))
        assert all(torch.allclose(a, b, rtol=1e-10, atol=1e-12) for a, b in zip(gradients, p.gradients, strict=True))


def test_the_global_random_stream_ends_where_the_two_pass_form_leaves_it():
    ends = []
    for p in twins(lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double(), vectors()):
        torch.manual_seed(5)
        p.step()
        p.step()
        ends.append(torch.get_rng_state())
    assert torch.equal(*ends)


def test_terms_of_the_loss_outside_the_model_count_too():
    two, one = twins(mlp, vectors())
    for p in (two, one):
        for _ in range(3):
            p.step(lambda keep, p=p: p.closure(keep) + sum(w.square().sum() for w in p.model.parameters()))
    assert_alike(two, one)
    assert one.calls == 2


def test_groups_of_m_samples_work():
    two, one = twins(mlp, vectors(), m=5)
    for _ in range(3):
        two.step(batch_size=12)
        one.step(batch_size=12)
        assert_alike(two, one)
    assert (two.calls, one.calls) == (9, 6)


def test_a_grad_scaler_works():
    two, one = twins(mlp, vectors())
    for p in (two, one):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in range(3):
            p.step(scaler=scaler)
            scaler.update()
    assert_alike(two, one)
    assert one.calls == 2


def test_hooks_of_parameters_and_of_the_model_itself_run():
    two, one = twins(mlp, vectors())
    for p in (two, one):
        next(p.model.parameters()).register_hook(lambda g: 2 * g)
        p.model.register_forward_hook(lambda m, x, out: 3 * out)
        p.step()
        p.step()
    assert_alike(two, one)
    assert one.calls == 2


def test_inputs_by_keyword_and_outputs_in_a_dict_work():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def forward(self, a, *, b, scale=1.0):
            return {"scores": self.inner(a) * scale, "more": self.inner(b)}

    two, one = twins(Both, vectors())
    for p in (two, one):

        def closure(keep, p=p):
            p.calls += 1
            out = p.model(p.x[keep], b=p.x[keep] + 1, scale=0.5)
            return F.cross_entropy(out["scores"] + out["more"], p.y[keep], reduction="none")

        p.step(closure)
        p.step(closure)
    assert_alike(two, one)
    assert one.calls == 2


def test_inputs_and_outputs_of_the_caller_are_not_written_to():
    model = nn.Sequential(nn.Linear(6, 3), nn.Softmax(1)).double()
    p = Problem(model, vectors(), one_forward=True)
    before, outputs, values = p.x.clone(), [], []
    model.register_forward_hook(lambda m, x, out: values.append(out.detach().clone()))

    def closure(keep):
        outputs.append(model(p.x[keep]))
        return (outputs[-1] - 0.3).square().sum(1)

    for _ in range(2):
        outputs.clear()
        values.clear()
        p.step(closure)
        assert len(outputs) == 2
        assert all(torch.equal(a, b) for a, b in zip(outputs, values, strict=True))
    assert torch.equal(p.x, before)


def test_modes_and_rates_that_change_are_followed():
    build = lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.0), nn.Tanh(), nn.Linear(8, 3)).double()  # noqa: E731
    two, one = twins(build, vectors())
    for rate, training in ((0.0, True), (1.0, True), (1.0, False)):
        for p in (two, one):
            p.model[1].p = rate
            p.model.train(training)
            p.step()
        assert_alike(two, one)
    assert one.calls == 2


def test_batches_of_other_sizes_are_followed():
    two, one = twins(mlp, vectors())
    whole = two.x, two.y
    for size in (12, 7, 12, 9):
        for p in (two, one):
            p.x, p.y = whole[0][:size], whole[1][:size]
            p.step()
        assert_alike(two, one)
    assert one.calls == 2


def test_copies_train_on_by_themselves():
    two, one = twins(mlp, vectors())
    two.step()
    one.step()
    for copy_of in (copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))):
        q = copy.copy(one)
        q.optimizer = copy_of(one.optimizer)
        q.model = q.optimizer.model
        r = copy.copy(two)
        r.optimizer = copy_of(two.optimizer)
        r.model = r.optimizer.model
        r.step()
        q.step()
        assert q.calls == 2
        assert_alike(r, q)


# Where it falls back -------------------------------------------------------------------------------------------------


class Coupled(nn.Module):
    """Normalises by the batch, and no layer tells."""

    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, x):
        return self.inner(x - x.mean(0)) * self.inner(x).mean()


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, x):
        return self.inner(x) if x.sum() > 0 else 2 * self.inner(x)


class ByBatchSize(Branching):
    def forward(self, x):
        return self.inner(x) if len(x) > 6 else self.inner(x).tanh().atanh()


class Remembering(Branching):
    def forward(self, x):
        self.seen = x.sum()
        return self.inner(x)


class Counting(Branching):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return self.inner(x)


class Replacing(Counting):
    def forward(self, x):
        self.count = self.count + 1
        return self.inner(x)


class Drawing(Branching):
    def forward(self, x):
        return self.inner(x) if random.random() < 2 else x


class TimeFirstInOne(Branching):
    """A sample's rows are every twelfth of what is saved; its shape alone would not tell."""

    def forward(self, x):
        return self.inner(torch.cat((x, 2 * x, 3 * x))).unflatten(0, (3, -1)).mean(0)


def with_inner_hook():
    model = mlp()
    model[0].register_forward_hook(lambda m, x, out: out)
    return model


def compiled_inside():
    model = mlp()
    model[0].compile(backend="eager")
    return model


MODELS_THAT_FALL_BACK = {
    "batchnorm": (lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double(), "BatchNorm"),
    "coupled": (Coupled, "depends on other samples"),
    "data-dependent": (Branching, ""),
    "by batch size": (ByBatchSize, "another batch size"),
    "attribute": (Remembering, "changes an attribute of Remembering"),
    "buffer in place": (Counting, "mutation"),
    "buffer replaced": (Replacing, "replaces a buffer"),
    "python's random": (Drawing, "Python's random numbers"),
    "time first in one": (TimeFirstInOne, "rows could not be told apart"),
    "inner hook": (with_inner_hook, "has hooks"),
    "compiled": (compiled_inside, "compiled"),
    "scripted": (lambda: torch.jit.trace(mlp(), vectors()), "compiled"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", MODELS_THAT_FALL_BACK)
def test_models_it_cannot_be_used_for_take_the_two_pass_form(name):
    build, reason = MODELS_THAT_FALL_BACK[name]
    torch.manual_seed(0)
    x = vectors()
    y = torch.randint(0, 3, (12,))
    two, one = (Problem(build(), x, y, one_forward=use) for use in (False, True))
    one.model.load_state_dict(two.model.state_dict())
    two.step()
    with pytest.warns(UserWarning, match=f"one_forward is not used: .*{reason}.*; the kept samples run forward again"):
        one.step()
    assert_alike(two, one)
    two.step()
    one.step()  # warned once
    assert one.calls == 3
    assert_alike(two, one)
    assert "forward" not in vars(one.model)
    assert type(getattr(one.model, "seen", torch.zeros(()))) is torch.Tensor  # nothing fake stays behind


def closures():
    def twice(p):
        return lambda keep: p.closure(keep) + F.cross_entropy(p.model(2 * p.x[keep]), p.y[keep], reduction="none")

    def never(p):
        return lambda keep: F.cross_entropy(p.model[4](p.model[:4](p.x[keep])), p.y[keep], reduction="none")

    def doubled(p):
        def closure(keep):
            a, b = p.model(torch.cat((p.x[keep], -p.x[keep]))).chunk(2)
            return F.cross_entropy(a - b, p.y[keep], reduction="none")

        return closure

    def contrasted(p):
        def closure(keep):
            out = p.model(p.x[keep])
            return F.cross_entropy(out @ out.T, torch.arange(len(out)), reduction="none")

        return closure

    def differentiated(p):
        def closure(keep):
            return F.cross_entropy(p.model(p.x[keep].clone().requires_grad_()), p.y[keep], reduction="none")

        return closure

    def half(p):
        def closure(keep):
            with torch.autocast("cpu", torch.bfloat16):
                return p.closure(keep)

        return closure

    return {
        "twice": (twice, "more than once"),
        "never": (never, "does not call the model"),
        "doubled": (doubled, "one row a sample"),
        "contrasted": (contrasted, "loss of a sample depends on other samples"),
        "differentiated": (differentiated, "needs a gradient"),
        "autocast": (half, "autocast"),
    }


@pytest.mark.parametrize("name", closures())
def test_closures_it_cannot_be_used_for_take_the_two_pass_form(name):
    make, reason = closures()[name]
    two, one = twins(lambda: mlp().float(), vectors().float())
    two.step(make(two))
    with pytest.warns(UserWarning, match=f"one_forward is not used: .*{reason}"):
        one.step(make(one))
    assert_alike(two, one, atol=1e-7)
    two.step(make(two))
    one.step(make(one))
    assert_alike(two, one, atol=1e-7)


def test_micro_batches_take_the_two_pass_form():
    """Quietly: they are there to hold the activations of one at a time."""
    two, one = twins(mlp, vectors())
    calls = []

    def parts(p):
        def part(a, b):
            def closure(keep):
                calls.append(p)
                return F.cross_entropy(p.model(p.x[a:b][keep]), p.y[a:b][keep], reduction="none")

            return closure

        return [part(0, 5), part(5, 12)]

    two.step(parts(two))
    one.step(parts(one))
    assert calls.count(one) == calls.count(two)
    assert_alike(two, one)


def test_a_distributed_model_takes_the_two_pass_form(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        two, one = twins(mlp, vectors())
        for p in (two, one):
            p.optimizer.model = p.model
        ddp = DistributedDataParallel(one.model)
        one.optimizer = ESAM(one.optimizer.base, ddp, rho=0.1, seed=0, one_forward=True, **PAPER)
        two.step()
        with pytest.warns(UserWarning, match="ranks exchange gradients"):
            one.step(lambda keep: F.cross_entropy(ddp(one.x[keep]), one.y[keep], reduction="none"))
        assert_alike(two, one)
    finally:
        torch.distributed.destroy_process_group()


def test_torch_without_the_private_parts_takes_the_two_pass_form(monkeypatch):
    import torch._functorch.aot_autograd as private

    monkeypatch.delattr(private, "aot_export_joint_simple")
    two, one = twins(mlp, vectors())
    two.step()
    with pytest.warns(UserWarning, match="aot_export_joint_simple"):
        one.step()
    assert_alike(two, one)


def test_too_many_shapes_end_it(monkeypatch):
    monkeypatch.setattr(tracing, "TRACES", 4)
    _, one = twins(mlp, vectors())
    whole = one.x, one.y
    for size in (12, 10):
        one.x, one.y = whole[0][:size], whole[1][:size]
        one.step()
        assert one.calls == 2
    one.x, one.y = whole[0][:8], whole[1][:8]
    with pytest.warns(UserWarning, match="more than 4 combinations"):
        one.step()
    assert one.calls == 3


def test_numbers_that_are_not_finite_prove_nothing_and_end_nothing():
    _, one = twins(mlp, vectors())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = one.x
        one.x = x.clone()
        one.x[3] = float("nan")
        one.step()
        assert one.calls == 3
        one.x = x
        one.step()
    assert one.calls == 2


def test_an_error_in_the_closure_leaves_the_model_as_it_was():
    _, one = twins(mlp, vectors())
    before = copy.deepcopy(one.model.state_dict())

    def closure(keep):
        losses = one.closure(keep)
        if one.calls == 2:
            raise KeyError("on purpose")
        return losses

    with pytest.raises(KeyError, match="on purpose"):
        one.step(closure)
    assert "forward" not in vars(one.model)
    assert all(torch.equal(a, before[k]) for k, a in one.model.state_dict().items())
    one.step()
    assert one.calls == 2


def test_it_is_off_unless_asked_for():
    p = problem()
    optimizer = ESAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model, **PAPER)
    assert optimizer.one_forward is None
    optimizer.step(p.closure)
    assert len(p.calls) == 3


# Rows ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("width", [3, LARGE_ROW])
@pytest.mark.parametrize("keep", [[0, 1, 2], [3, 4, 5], [0, 4], [5], [0, 1, 2, 3, 4, 5]])
def test_the_rows_of_the_kept_samples_are_picked(keep, width, in_place):
    kept = Kept(torch.tensor(keep), 6)
    assert sorted(kept.order.tolist()) == keep
    base = torch.arange(6.0 * width).view(6, width)
    part = torch.empty(len(keep), width)
    assert torch.equal(kept.rows_of(base.clone(), part, in_place=in_place), base[kept.order])
    several = base.view(6, width).repeat_interleave(2, 0)  # two rows a sample
    expected = base[kept.order].repeat_interleave(2, 0)
    assert torch.equal(kept.rows_of(several, torch.empty(2 * len(keep), width), in_place=in_place), expected)
    column = base.T.clone()
    picked = kept.rows_of(column, torch.empty(len(keep), width).T, in_place=in_place)
    assert torch.equal(picked, base[kept.order].T)
    assert picked.stride() == (1, width)


def test_a_tensor_whose_rows_are_not_samples_is_refused():
    with pytest.raises(ValueError, match="cannot be told"):
        Kept(torch.tensor([1, 2]), 4).rows_of(torch.zeros(4, 4), torch.zeros(2, 2), in_place=False)
