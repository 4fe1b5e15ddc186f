"""Models, closures and bases that once broke a step, each with what it must give."""

import copy
import math
import subprocess
import sys
import textwrap

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from conftest import EVERY_METHOD, EVERY_ROW, Problem, mlp, normalised, problem
from torch import nn

from esam import ESAM, METHODS, SAM, LookSAM
from esam.optim import reference
from esam.optim.mask import independent

every_method = pytest.mark.parametrize("name", EVERY_METHOD)
SETTINGS = {"looksam": {"k": 2}}


def sgd(parameters, **settings):
    return torch.optim.SGD(parameters, **{"lr": 0.05, "momentum": 0.9, **settings})


def start(name, build=mlp, **settings):
    p = problem(build)
    return p, METHODS[name](sgd(p.model.parameters()), p.model, seed=3, **SETTINGS.get(name, {}), **settings)


def assert_same(a, b, atol=0.0):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def state_of(model):
    return copy.deepcopy(dict(model.state_dict()))


# The first pass -------------------------------------------------------------------------------------------------------


def test_groupnorm_in_channels_last_may_join_the_graph_later():
    """In a process of its own: where the gradient at its input is not asked for, torch's kernel ends the process."""
    script = """
        import torch
        from torch import nn
        from esam import METHODS

        def trained(memory_format):
            torch.manual_seed(0)
            first, norm, last = nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Linear(4, 3)
            model = nn.ModuleList([first, norm, last]).double()
            optimizer = METHODS["esam-swp"](torch.optim.SGD(model.parameters(), lr=0.1), model, beta=0.4, seed=0)
            x = torch.randn(6, 3, 6, 6).double().to(memory_format=memory_format)
            for step in range(30):
                def closure(keep):
                    h = first(x[keep])
                    if step % 2:
                        h = norm(h)
                    return last(h.relu().mean((2, 3))).square().sum(1)
                optimizer.step(closure)
            return [p.detach() for p in model.parameters()]

        apart = zip(trained(torch.channels_last), trained(torch.contiguous_format))
        print("apart by", max(float((a - b).abs().max()) for a, b in apart))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) < 1e-9  # thirty steps of float64


def inert_hook(model, x, y):
    def closure(keep):
        h = model[1](model[0](x[keep]))
        h.register_hook(lambda gradient: None)
        return F.cross_entropy(model[2:](h), y[keep], reduction="none")

    return closure


def retained(model, x, y):
    def closure(keep):
        h = model[1](model[0](x[keep]))
        h.retain_grad()
        return F.cross_entropy(model[2:](h), y[keep], reduction="none")

    return closure


def gradient_scaled_by_a_hook(model, x, y):
    def closure(keep):
        h = model[1](model[0](x[keep]))
        h.register_hook(lambda gradient: 2 * gradient)
        return F.cross_entropy(model[2:](h), y[keep], reduction="none")

    return closure


def maml(model, x, y):
    def closure(keep):
        theta = dict(model.named_parameters())
        inner = F.cross_entropy(model(x[:4]), y[:4])
        gradients = torch.autograd.grad(inner, list(theta.values()), create_graph=True)
        adapted = {name: w - 0.3 * g for (name, w), g in zip(theta.items(), gradients, strict=True)}
        return F.cross_entropy(torch.func.functional_call(model, adapted, (x[keep],)), y[keep], reduction="none")

    return closure


def adversarial_embeddings(model, x, y):
    def closure(keep):
        h = model[1](model[0](x[keep]))
        (worse,) = torch.autograd.grad(F.cross_entropy(model[2:](h), y[keep]), h, retain_graph=True)
        worse = 0.1 * worse / worse.norm(dim=1, keepdim=True)
        return F.cross_entropy(model[2:](h + worse), y[keep], reduction="none")

    return closure


def penalty_on_what_is_trained(model, x, y):
    def closure(keep):
        penalty = sum(p.square().sum() for p in model.parameters() if p.requires_grad)
        return F.cross_entropy(model(x[keep]), y[keep], reduction="none") + 0.1 * penalty

    return closure


@pytest.mark.parametrize(
    "closure_of",
    [inert_hook, retained, gradient_scaled_by_a_hook, maml, adversarial_embeddings, penalty_on_what_is_trained],
)
def test_a_closure_may_look_at_gradients_and_at_requires_grad_whatever_is_drawn(closure_of):
    p = problem()
    optimizer = METHODS["esam-swp"](sgd(p.model.parameters()), p.model, mask="independent", beta=0.5, seed=3)
    q = problem()
    twin = reference.ESAM(rho=0.05, beta=0.5, gamma=1.0, generator=torch.Generator().manual_seed(3))
    weights = list(q.model.parameters())
    base = sgd(weights)
    closure, other = closure_of(p.model, p.x, p.y), closure_of(q.model, q.x, q.y)
    for _ in range(8):
        loss = optimizer.step(closure)
        assert float(loss) == pytest.approx(other(slice(None)).mean().item(), abs=1e-12)
        for w, g in zip(weights, twin(other, weights), strict=True):
            w.grad = g
        base.step()
    assert_same(p.weights, q.weights, atol=1e-11)
    assert all(w.requires_grad for w in p.model.parameters())


def test_a_closure_that_takes_gradients_is_told_how_to_while_samples_are_ranked():
    p, optimizer = start("esam-sds", normalised)
    before = state_of(p.model)
    closure = maml(p.model, p.x, p.y)
    with pytest.raises(ValueError, match=r"ranked it runs without a graph.* torch.enable_grad\(\)"):
        optimizer.step(closure)
    assert_same(state_of(p.model), before)


# Norms and draws ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_independent_draws_are_unbiased_however_few_the_tensors(count):
    """Each tensor's eps is divided by its probability, so drawn / probability has mean 1 for each."""
    generator = torch.Generator().manual_seed(0)
    draws, total = 20_000, [0.0] * count
    for _ in range(draws):
        mask = independent(count, 0.6, generator)
        for i in mask.picks:
            total[i] += 1 / mask.probabilities[i]
    spread = math.sqrt((1 / mask.probabilities[0] - 1) / draws)  # of a mean of draws / probability
    for t in total:
        assert t / draws == pytest.approx(1, abs=4 * spread + 1e-12)


def test_a_model_of_one_tensor_is_perturbed_like_sam_in_every_step():
    p = problem(lambda dtype: nn.Linear(6, 3, bias=False).to(dtype))
    (weight,) = p.model.parameters()
    optimizer = METHODS["esam-swp"](sgd([weight]), p.model, mask="independent", seed=1)
    for _ in range(10):
        theta, seen = weight.detach().clone(), []
        p.model.register_forward_pre_hook(lambda *_, seen=seen: seen.append(weight.detach().clone()))
        optimizer.step(p.closure)
        assert (seen[-1] - theta).norm().item() == pytest.approx(0.05, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_looksam_on_a_linear_loss_is_the_base(dtype):
    """The two gradients are parallel: what is left between them is rounding, and there is nothing to reuse."""
    torch.manual_seed(0)
    x = torch.randn(16, 5, dtype=dtype)
    ends = []
    for wrap in (lambda base, model: LookSAM(base, model, k=5), lambda base, model: SAM(base, model, rho=0.0)):
        model = nn.Linear(5, 1).to(dtype)
        nn.init.ones_(model.weight)
        nn.init.zeros_(model.bias)
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        for _ in range(10):
            optimizer.step(lambda keep, model=model: model(x[keep]).squeeze(1))
        ends.append([p.detach() for p in model.parameters()])
    # ten additions to weights of about one
    assert_same(ends[0], ends[1], atol=20 * torch.finfo(dtype).eps)


@every_method
def test_maximising_is_minimising_the_negative_bit_for_bit(name):
    ends = []
    for sign in (1, -1):
        p = problem()
        optimizer = METHODS[name](
            sgd(p.model.parameters(), maximize=sign == 1), p.model, seed=3, rho=0.3, **SETTINGS.get(name, {})
        )
        for _ in range(4):
            optimizer.step(lambda keep, p=p, sign=sign: sign * p.closure(keep))
        ends.append(p.weights)
    assert_same(*ends)


def test_eps_points_downhill_where_the_base_maximises():
    """f = 8 - w^2 / 2 at w = 2: its gradient is -2, so the worst point nearby is 2.5, where it is -2.5."""
    w = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    model = nn.ParameterList([w])
    optimizer = SAM(torch.optim.SGD([w], lr=0.1, maximize=True), model, rho=0.5)
    optimizer.step(lambda keep: 8 - w.square() / 2)
    assert w.item() == pytest.approx(2 - 0.1 * 2.5, abs=1e-15)


@pytest.mark.parametrize("rho", [math.nan, -1.0, math.inf, "0.1"])
@pytest.mark.parametrize("name", ["sam", "esam"])
def test_a_groups_radius_that_turns_bad_later_is_refused_before_anything_moves(name, rho):
    p, optimizer = start(name, normalised)
    optimizer.step(p.closure)
    before = state_of(p.model), copy.deepcopy(optimizer.state_dict())
    optimizer.param_groups[0]["sam_rho"] = rho
    with pytest.raises(ValueError, match="rho must be a finite number >= 0"):
        optimizer.step(p.closure)
    optimizer.param_groups[0].pop("sam_rho")
    assert_same((state_of(p.model), optimizer.state_dict()), before)


@pytest.mark.parametrize(
    ("name", "settings"),
    [*((name, {}) for name in EVERY_ROW), ("sam", {"m": 5}), ("esam", {"ranking": "aligned"}), ("esam", {"m": 5})],
    ids=str,
)
def test_another_default_device_changes_no_bit(name, settings):
    (p, optimizer), (q, twin) = start(name, **settings), start(name, **settings)
    with torch.device("meta"):
        for _ in range(3):
            p.step(optimizer)
        state = optimizer.state_dict()
    for _ in range(3):
        q.step(twin)
    assert_same(p.weights, q.weights)
    assert_same(state, twin.state_dict())


# Selection ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_aligned_scores_are_right_under_autocast_whatever_half_precision_holds(dtype):
    """Inputs of about 300: their products are above 65,504, the largest number of float16."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    # powers of two apart, so that rounding of the inputs to half precision moves no score past another
    x = 300 * torch.randn(8, 4) * torch.tensor([1.0, 0.5, 0.25, 0.125, 1.0, 0.5, 0.25, 0.125])[:, None]
    y = torch.randint(0, 3, (8,))
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    kept = []

    def closure(keep):
        kept.append(keep)
        with torch.autocast("cpu", dtype):
            return F.cross_entropy(model(x[keep]), y[keep], reduction="none")

    ESAM(sgd(model.parameters()), model, ranking="aligned").step(closure)
    # at weights of zero each sample's gradient at the output is softmax - onehot = 1/3 - onehot
    g = (1 / 3 - F.one_hot(y, 3)).double()
    scores = ((x.double() @ x.double().T + 1) * (g @ g.T)).sum(1)
    assert kept[-1].tolist() == sorted(scores.topk(4).indices.tolist())


@pytest.mark.parametrize("batch", [2, 3])
@pytest.mark.parametrize("name", ["esam", "esam-random"])
def test_at_least_two_samples_are_kept_where_batchnorm_needs_them(name, batch):
    p = problem(normalised, batch=batch)
    optimizer = METHODS[name](sgd(p.model.parameters()), p.model, gamma=0.4)
    optimizer.step(p.closure)
    assert len(p.keeps[-1]) == 2
    q = problem(batch=batch)
    METHODS[name](sgd(q.model.parameters()), q.model, gamma=0.4).step(q.closure)
    assert len(q.keeps[-1]) == 1


@pytest.mark.parametrize(("build", "first"), [(normalised, [0, 1]), (mlp, [0])])
def test_a_lone_sample_of_a_micro_batch_takes_a_neighbour_along_where_batchnorm_needs_one(build, first):
    p = problem(build, batch=8)
    scores = torch.tensor([9.0, 0, 0, 0, 8, 7, 6, 0])
    optimizer = ESAM(sgd(p.model.parameters()), p.model, ranking=lambda batch: scores)
    of_all, kept = torch.arange(8), []

    def part(samples):
        return lambda keep: (kept.append(keep), p.closure(samples[keep]))[1]

    optimizer.step([part(of_all[:4]), part(of_all[4:])])
    assert [keep.tolist() for keep in kept[2:]] == [first, [0, 1, 2]]


# State that a forward moves -------------------------------------------------------------------------------------------


class Counter(nn.Module):
    """Keeps a mean of what it saw, and does not change it."""

    def __init__(self, write):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8, dtype=torch.float64))
        self.register_buffer("seen", torch.tensor(0))
        self.write = write

    def forward(self, h):
        if self.training:
            self.write(self, 0.9 * self.mean + 0.1 * h.detach().mean(0))
            self.seen += 1
        return h + self.mean


class Quantiser(nn.Module):
    """A codebook that follows the mean of what is assigned to each code."""

    def __init__(self, write):
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.register_buffer("codes", torch.randn(4, 8, dtype=torch.float64, generator=generator))
        self.write = write

    def forward(self, h):
        nearest = torch.cdist(h.detach(), self.codes).argmin(1)
        chosen = F.one_hot(nearest, 4).to(h.dtype)
        sums, counts = chosen.T @ h.detach(), chosen.sum(0)[:, None]
        quantised = self.codes[nearest]
        self.write(self, torch.where(counts > 0, 0.8 * self.codes + 0.2 * sums / counts.clamp(min=1), self.codes))
        return h + (0.5 * (quantised - h)).detach()


class Queue(nn.Module):
    """Remembers the last six features, and where the next one goes."""

    def __init__(self, write=None):
        super().__init__()
        self.register_buffer("queue", torch.zeros(6, 8, dtype=torch.float64))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, h):
        out = h + 0.1 * self.queue.clone().mean(0)
        for row in h.detach()[:2]:
            self.queue[int(self.place)] = row
            self.place[0] = (self.place[0] + 1) % 6
        return out


class Growing(nn.Module):
    """Keeps every mean that it saw: the buffer itself grows."""

    def __init__(self, write=None):
        super().__init__()
        self.register_buffer("means", torch.zeros(1, 8, dtype=torch.float64))

    def forward(self, h):
        out = h + 0.1 * self.means.mean(0)
        self.means.data = torch.cat([self.means, h.detach().mean(0, keepdim=True)])
        return out


def in_place(name):
    return lambda layer, value: getattr(layer, name).data.copy_(value)


def as_data(name):
    def write(layer, value):
        getattr(layer, name).data = value

    return write


def replaced(name):
    return lambda layer, value: setattr(layer, name, value)


KEEPERS = {
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
    "old spectral norm": lambda: nn.utils.spectral_norm(nn.Linear(8, 8)),
    "batchnorm": lambda: nn.BatchNorm1d(8),
    "codebook in place": lambda: Quantiser(in_place("codes")),
    "codebook by its data": lambda: Quantiser(as_data("codes")),
    "codebook replaced": lambda: Quantiser(replaced("codes")),
    "statistics in place": lambda: Counter(in_place("mean")),
    "statistics replaced": lambda: Counter(replaced("mean")),
    "queue": Queue,
    "growing queue": Growing,
}


def with_keeper(kind):
    def build(dtype):
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), KEEPERS[kind](), nn.Linear(8, 3)).to(dtype)

    return build


ignoring_the_old_spectral_norm = pytest.mark.filterwarnings("ignore:.*spectral_norm.*:FutureWarning")


@ignoring_the_old_spectral_norm
@pytest.mark.parametrize("kind", KEEPERS)
@every_method
def test_every_buffer_moves_once_a_step_by_the_first_pass(name, kind):
    p, optimizer = start(name, with_keeper(kind))
    q = problem(with_keeper(kind))
    for _ in range(3):
        for w, v in zip(q.model.parameters(), p.weights, strict=True):
            w.data.copy_(v)
        q.closure(slice(None))
        before = dict(p.model.named_buffers())
        optimizer.step(p.closure)
        after = dict(p.model.named_buffers())
        assert_same(after, dict(q.model.named_buffers()))
        if not kind.endswith("replaced"):
            assert all(after[key] is before[key] for key in before)  # others may hold them


def test_putting_a_buffer_back_after_an_error_never_writes_into_what_it_was_pointed_at():
    class Recorder(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("last", torch.zeros(12, 6, dtype=torch.float64))

        def forward(self, x):
            self.last.data = x  # the caller's own batch
            return x

    p, optimizer = start("sam", lambda dtype: nn.Sequential(Recorder(), mlp(dtype)))
    batch = p.x.clone()
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda keep: p.closure(keep) / (1 // 0))
    assert torch.equal(p.x, batch)
    assert not p.model[0].last.any()
    optimizer.step(p.closure)
    assert torch.equal(p.model[0].last, batch)


def test_buffers_that_cannot_be_written_are_left_alone():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("ones", torch.ones(1, dtype=torch.float64).expand(6))
            self.register_buffer("graph", torch.eye(12, dtype=torch.float64).to_sparse())
            self.register_buffer("nothing", None)

        def forward(self, x):
            return x * self.ones

    (p, optimizer), (q, twin) = start("sam", lambda dtype: nn.Sequential(Constant(), mlp(dtype))), start("sam")
    for _ in range(2):
        optimizer.step(p.closure)
        twin.step(q.closure)
    assert_same(p.weights, q.weights)


# Other models ---------------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layers, self.head = kind(2, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.layers(x.repeat(1, 4).view(len(x), 12, 2))[0][:, -1])


class Grouped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(x.view(-1, 1, 2, 3).to(memory_format=torch.channels_last))


LAYERS = {"gru": lambda: Recurrent(nn.GRU), "lstm": lambda: Recurrent(nn.LSTM), "groupnorm": Grouped}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", ["esam-swp", "esam-random"])
def test_a_resumed_run_of_any_layer_continues_bit_for_bit(name, layer):
    def begin():
        p = problem(lambda dtype: LAYERS[layer]().to(dtype))
        return p, METHODS[name](sgd(p.model.parameters()), p.model, beta=0.5, seed=3)

    p, optimizer = begin()
    for _ in range(8):
        optimizer.step(p.closure)
        q, resumed = begin()
        q.model.load_state_dict(state_of(p.model))
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for _ in range(2):
            assert optimizer.step(p.closure) == resumed.step(q.closure)
        assert_same(p.weights, q.weights)


def test_a_suffix_follows_the_depth_of_the_model_whatever_the_order_of_the_groups():
    """Decay for matrices, none for biases: as every transformer is trained."""
    drawn = []
    for apart in (False, True):
        p = problem()
        weights = list(p.model.parameters())
        groups = [{"params": [w for w in weights if w.dim() == d], "weight_decay": 0.1 * (d - 1)} for d in (2, 1)]
        base = torch.optim.SGD(groups if apart else weights, lr=0.0)
        optimizer = METHODS["esam-swp"](base, p.model, mask="suffix", beta=0.5, seed=1)
        theta = p.weights
        steps = []
        for _ in range(40):
            seen = []
            handle = p.model.register_forward_pre_hook(lambda *_, seen=seen, p=p: seen.append(p.weights))
            optimizer.step(p.closure)
            handle.remove()
            steps.append([not torch.equal(a, b) for a, b in zip(seen[-1], theta, strict=True)])
        drawn.append(steps)
    assert drawn[0] == drawn[1]
    for mask in drawn[1]:
        assert mask == sorted(mask)  # a run to the output, in the order of the model
    assert 2 < sum(mask[0] for mask in drawn[1][1:]) < 19  # .27 of 39 steps, give or take three deviations


@every_method
def test_lazy_layers_train_from_their_first_step_like_built_ones(name):
    def lazy(dtype):
        layers = nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Tanh(), nn.LazyLinear(3)
        return nn.Sequential(*layers).to(dtype)

    (p, q) = problem(lazy), problem(lazy)
    torch.manual_seed(1)
    q.model(q.x)  # the dry run that torch asks for
    q.model[1].reset_running_stats()
    built = METHODS[name](sgd(q.model.parameters()), q.model, seed=3)
    optimizer = METHODS[name](sgd(p.model.parameters()), p.model, seed=3)
    torch.manual_seed(1)
    for _ in range(3):
        assert optimizer.step(p.closure) == built.step(q.closure)
    assert_same(state_of(p.model), state_of(q.model))


def test_modules_may_refer_to_one_another_in_a_circle():
    (p, optimizer), (q, twin) = start("esam"), start("esam")
    p.model[0].owner = p.model
    for _ in range(3):
        optimizer.step(p.closure)
        twin.step(q.closure)
    assert_same(p.weights, q.weights)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 3)

    def forward(self, tokens):
        return self.head(self.words(tokens).tanh().mean(1))


def words():
    torch.manual_seed(0)
    return Problem(Words().double(), torch.randint(0, 10, (12, 5)), torch.randint(0, 3, (12,)))


def test_looksam_with_sparse_gradients_alone_is_sam():
    """There is nothing dense to reuse, so every step perturbs."""
    ends = []
    for build in (lambda *a: LookSAM(*a, k=2), SAM):
        p = words()
        base = torch.optim.SparseAdam(p.model.words.parameters(), lr=0.01)
        optimizer = build(base, p.model)
        for _ in range(4):
            optimizer.step(p.closure)
            assert p.model.words.weight.grad.is_sparse
        ends.append(p.weights)
    assert_same(*ends)


def test_looksam_reuses_the_dense_part_beside_sparse_gradients():
    p, q = words(), words()
    optimizer = LookSAM(torch.optim.SGD(p.model.parameters(), lr=0.1), p.model, k=2, rho=0.1)
    for _ in range(2):
        optimizer.step(p.closure)
    weights = list(q.model.parameters())

    def gradient():
        found = torch.autograd.grad(q.closure(slice(None)).mean(), weights)
        return [g.to_dense() for g in found]

    def step(gradients):
        with torch.no_grad():
            for w, g in zip(weights, gradients, strict=True):
                w -= 0.1 * g

    g = gradient()
    norm = reference.norm(g)
    theta = [w.detach().clone() for w in weights]
    with torch.no_grad():
        for w, d in zip(weights, g, strict=True):
            w += 0.1 * d / norm
    second = gradient()
    with torch.no_grad():
        for w, t in zip(weights, theta, strict=True):
            w.copy_(t)
    step(second)
    # the head's part of the second gradient that is orthogonal to the head's part of the first
    along = sum((a * b).sum() for a, b in zip(second[1:], g[1:], strict=True)) / reference.norm(g[1:]) ** 2
    part = [a - along * b for a, b in zip(second[1:], g[1:], strict=True)]
    plain = gradient()
    factor = 0.7 * reference.norm(plain[1:]) / reference.norm(part)
    step([plain[0], *(a + factor * b for a, b in zip(plain[1:], part, strict=True))])
    assert_same(p.weights, q.weights, atol=1e-12)


@every_method
def test_compiling_after_the_first_step_costs_no_more_graphs_than_before_it(name):
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def build(dtype):
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)

    torch._dynamo.reset()
    (p, optimizer), (q, twin) = start(name, build), start(name, build)
    counts = []
    for step in range(8):
        if step == 1:
            p.model = torch.compile(p.model, backend=counting)
        optimizer.step(p.closure)
        twin.step(q.closure)
        counts.append(len(graphs))
    torch._dynamo.reset()
    assert 0 < counts[-1] <= 4  # training and ranking, for the whole batch and for the kept part
    assert counts[-1] == counts[3]
    assert_same(p.weights, q.weights, atol=1e-12)
