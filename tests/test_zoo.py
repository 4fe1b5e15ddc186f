"""Models of every kind: is each method, on each of them, the plain loop that one would write by hand?"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from esam import METHODS
from esam.optim.mask import independent

SIZE, CLASSES = 8, 3
RHO, LR = 0.3, 0.05
ZOO = {}
"""Name -> a function that builds a model and its closure; called twice with one seed it builds twins."""


def kind(name):
    def add(build):
        ZOO[name] = build
        return build

    return add


def labels():
    return torch.randint(0, CLASSES, (SIZE,))


def classifier(model, x, dtype=torch.float64, call=None):
    """Return a model and the closure of the README on a batch of its own."""
    model = model if dtype is None else model.to(dtype)
    y = labels()
    run = call or model
    return model, lambda keep: F.cross_entropy(run(x[keep]), y[keep], reduction="none")


def vectors(*shape, dtype=torch.float64):
    return torch.randn(SIZE, *(shape or (6,)), dtype=dtype)


def flat(*layers):
    """Add a model on vectors of six numbers."""
    return lambda: classifier(nn.Sequential(*(layer() for layer in layers)), vectors())


def images(*layers, channels=2, side=4, memory_format=torch.contiguous_format):
    """Add a model on small images; what comes out is averaged over places and classified."""

    def build():
        x = vectors(channels, side, side).to(memory_format=memory_format)
        body = nn.Sequential(*(layer() for layer in layers)).to(memory_format=memory_format)
        return classifier(nn.Sequential(body, nn.Flatten(), nn.LazyLinear(CLASSES, dtype=torch.float64)), x)

    return build


def lin(*sizes, **settings):
    return lambda: nn.Linear(*sizes, **settings)


def conv(*sizes, **settings):
    return lambda: nn.Conv2d(*sizes, **settings)


class Sequences(nn.Module):
    """Something that turns a sequence into another, and a head on its mean."""

    def __init__(self, body, width=4):
        super().__init__()
        self.body, self.head = body, nn.Linear(width, CLASSES)

    def forward(self, x):
        out = self.body(x)
        return self.head((out[0] if isinstance(out, tuple) else out).mean(1))


def sequences(make, width=4):
    return lambda: classifier(Sequences(make(), width), vectors(5, 4))


ZOO |= {
    "mlp": flat(lin(6, 8), nn.Tanh, lin(8, CLASSES)),
    "in-place relu": flat(lin(6, 8), lambda: nn.ReLU(inplace=True), lin(8, CLASSES)),
    "dropout": flat(lin(6, 8), lambda: nn.Dropout(0.4), nn.Tanh, lambda: nn.AlphaDropout(0.2), lin(8, CLASSES)),
    "batchnorm": flat(lin(6, 8), lambda: nn.BatchNorm1d(8), nn.ReLU, lin(8, CLASSES)),
    "spectral norm": flat(lambda: parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Tanh, lin(8, CLASSES)),
    "weight norm": flat(lambda: parametrizations.weight_norm(nn.Linear(6, 8)), nn.Tanh, lin(8, CLASSES)),
    "orthogonal": flat(lambda: parametrizations.orthogonal(nn.Linear(6, 6)), nn.Tanh, lin(6, CLASSES)),
    "lazy": flat(lambda: nn.LazyLinear(8), lambda: nn.LazyBatchNorm1d(), nn.Tanh, lambda: nn.LazyLinear(CLASSES)),
    "convolution": images(conv(2, 4, 3), nn.ReLU, conv(4, 4, 2)),
    "instance norm": images(conv(2, 4, 3), lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.ELU),
    "channels last": images(
        conv(2, 4, 3), lambda: nn.GroupNorm(2, 4), nn.ReLU, conv(4, 4, 1), memory_format=torch.channels_last
    ),
    "gru": sequences(lambda: nn.GRU(4, 4, batch_first=True)),
    "lstm": sequences(lambda: nn.LSTM(4, 2, 2, batch_first=True, bidirectional=True, dropout=0.2)),
    "transformer": sequences(lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)),
}


def tokens():
    return torch.randint(0, 10, (SIZE, 5))


class Words(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.words, self.head = words, nn.Linear(4, CLASSES)

    def forward(self, x):
        found = self.words(x)
        return self.head(found.tanh().mean(1) if found.dim() == 3 else found)


ZOO |= {
    "embedding": lambda: classifier(Words(nn.Embedding(10, 4, padding_idx=0)), tokens()),
    "sparse embedding": lambda: classifier(Words(nn.Embedding(10, 4, sparse=True)), tokens()),
}


@kind("tied weights")
def tied():
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    model[2].weight = model[0].weight
    return classifier(model, vectors())


@kind("one layer called twice")
def twice():
    layer, head = nn.Linear(6, 6), nn.Linear(6, CLASSES)
    model = nn.ModuleList([layer, head])
    return classifier(model, vectors(), call=lambda x: head(layer(layer(x).tanh()).tanh()))


@kind("mixture of experts")
def mixture():
    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(6, 4)
            self.experts = nn.ModuleList([nn.Linear(6, CLASSES) for _ in range(4)])

        def forward(self, x):
            weight, chosen = self.router(x).softmax(1).max(1)
            out = x.new_zeros(len(x), CLASSES)
            for n, expert in enumerate(self.experts):
                mine = (chosen == n).nonzero().flatten()
                if len(mine):  # an expert that nobody is sent to takes no part
                    out = out.index_add(0, mine, weight[mine, None] * expert(x[mine]).tanh())
            return out

    return classifier(Mixture(), vectors())


@kind("stochastic depth")
def stochastic_depth():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Tanh()) for _ in range(3)])
            self.head = nn.Linear(6, CLASSES)

        def forward(self, x):
            for layer in self.layers:
                if torch.rand(()) < 0.6:
                    x = x + layer(x)
            return self.head(x)

    return classifier(Deep(), vectors())


class FakeQuantised(nn.Module):
    """Rounds to sixteen levels of a range that it observes; gradients pass straight through."""

    def __init__(self):
        super().__init__()
        self.register_buffer("largest", torch.tensor(1.0, dtype=torch.float64))

    def forward(self, x):
        if self.training:
            self.largest.mul_(0.9).add_(0.1 * x.detach().abs().max())
        step = self.largest / 8
        return x + ((x / step).round().clamp(-8, 7) * step - x).detach()


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Binary(nn.Module):
    def forward(self, x):
        return StraightThrough.apply(x)


class Standardised(nn.Module):
    """Has statistics and no weight; moves by them what it sees."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6, dtype=torch.float64))

    def forward(self, x):
        self.mean = 0.8 * self.mean + 0.2 * x.detach().mean(0)
        return x - self.mean


class Scaled(nn.Module):
    """A parameter without dimensions."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.scale * x


class Empty(nn.Module):
    """A parameter without elements."""

    def __init__(self):
        super().__init__()
        self.nothing = nn.Parameter(torch.empty(0, 6))

    def forward(self, x):
        return x + self.nothing.sum()


class Neighbours(nn.Module):
    """Mixes features by a sparse buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("graph", torch.eye(6, dtype=torch.float64).roll(1, 0).to_sparse())

    def forward(self, x):
        return x + torch.sparse.mm(self.graph, x.T).T


class Fourier(nn.Module):
    """Complex weights on the spectrum."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, dtype=torch.complex128))

    def forward(self, x):
        return torch.fft.irfft(self.weight * torch.fft.rfft(x), n=6)


class Collections(nn.Module):
    def __init__(self):
        super().__init__()
        self.row = nn.ParameterList([torch.randn(6), torch.randn(6)])
        self.named = nn.ParameterDict({"a": torch.randn(6), "b": torch.randn(6)})

    def forward(self, x):
        return (self.row[0] * x + self.named["a"]).tanh() * self.row[1]  # "b" is never used


ZOO |= {
    "fake quantised": flat(lin(6, 6), FakeQuantised, nn.Tanh, lin(6, CLASSES)),
    "binary by a function of one's own": flat(lin(6, 6), Binary, lin(6, CLASSES)),
    "buffers only": flat(Standardised, lin(6, 6), nn.Tanh, lin(6, CLASSES)),
    "a scalar parameter": flat(lin(6, 6), Scaled, nn.Tanh, lin(6, CLASSES)),
    "an empty parameter": flat(Empty, lin(6, 6), nn.Tanh, lin(6, CLASSES)),
    "a sparse buffer": flat(Neighbours, lin(6, 6), nn.Tanh, lin(6, CLASSES)),
    "parameter list and dict": flat(Collections, lin(6, CLASSES)),
}


@kind("complex weights")
def complex_weights():
    model = nn.Sequential(Fourier(), nn.Tanh(), nn.Linear(6, CLASSES, dtype=torch.float64))
    return classifier(model, vectors(), dtype=None)


@kind("float32 beside float64")
def mixed():
    head = nn.Linear(6, CLASSES).double()
    body = nn.Linear(6, 6).float()
    return classifier(nn.ModuleList([body, head]), vectors(), None, lambda x: head(body(x.float()).tanh().double()))


@kind("bfloat16")
def bfloat16():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    return classifier(model, vectors(dtype=torch.bfloat16), torch.bfloat16)


@kind("frozen, with adapters")
def adapters():
    class Adapted(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer.requires_grad_(False)
            self.a = nn.Parameter(torch.randn(2, layer.in_features))
            self.b = nn.Parameter(0.1 * torch.randn(layer.out_features, 2))

        def forward(self, x):
            return self.layer(x) + x @ self.a.T @ self.b.T

    model = nn.Sequential(Adapted(nn.Linear(6, 8)), nn.BatchNorm1d(8), nn.Tanh(), Adapted(nn.Linear(8, CLASSES)))
    model[1].eval()
    return classifier(model, vectors())


@kind("hooks")
def hooks():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    model[0].register_forward_pre_hook(lambda layer, inputs: (inputs[0] * 1.5,))
    model[2].register_forward_hook(lambda layer, inputs, output: output + 0.1 * inputs[0])
    model[2].register_full_backward_hook(lambda layer, inputs, outputs: (2 * inputs[0],))
    model[4].weight.register_hook(lambda gradient: 0.5 * gradient)
    return classifier(model, vectors())


@kind("checkpoints")
def checkpoints():
    body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 8), nn.Tanh())
    head = nn.Linear(8, CLASSES)
    model = nn.ModuleList([body, head])
    return classifier(model, vectors(), call=lambda x: head(checkpoint(body, x, use_reentrant=False)))


@kind("compiled")
def compiled():
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES)).double()
    return classifier(model, vectors(), call=torch.compile(model, backend="eager", dynamic=True))


@kind("gradients inside")
def meta_learning():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    seen, of = vectors(), labels()

    def call(x):
        theta = dict(model.named_parameters())
        with torch.enable_grad():  # samples are ranked without a graph
            inner = F.cross_entropy(model(seen), of)
            found = torch.autograd.grad(inner, list(theta.values()), create_graph=True)
        adapted = {name: w - 0.3 * g for (name, w), g in zip(theta.items(), found, strict=True)}
        return torch.func.functional_call(model, adapted, (x,))

    return classifier(model, vectors(), call=call)


# By hand --------------------------------------------------------------------------------------------------------------


class ByHand:
    """One loop for all methods: whole gradients by ``backward``; weights moved and put back, one by one.

    What was drawn, it is told: ``masks`` is filled by the optimizer beside it.
    """

    def __init__(self, name, model, closure):
        self.name, self.model, self.closure = name, model, closure
        self.settings = METHODS[name].effective()
        self.masks = []
        self.base = torch.optim.SGD(model.parameters(), lr=LR)
        self.steps, self.reused, self.norms = 0, None, {}

    def gradient(self, keep, random):
        """Return the mean loss and the gradient of each tensor that takes part, by its place in the model."""
        torch.set_rng_state(random)
        losses = self.closure(keep)
        for p in self.weights:
            p.grad = None
        losses.mean().backward()
        self.dense = {n for n, p in enumerate(self.weights) if p.grad is None or not p.grad.is_sparse}
        return losses.detach(), {n: p.grad.to_dense().clone() for n, p in enumerate(self.weights) if p.grad is not None}

    def step(self):
        self.weights = list(self.model.parameters())
        random = torch.get_rng_state()
        losses, first = self.gradient(slice(None), random)
        after, buffers = torch.get_rng_state(), self.buffers()
        if self.name == "looksam" and self.steps % 2:
            length, own = norm(self.only_dense(first)), norm(v for n, v in self.reused.items() if n in first)
            found = {n: g + 0.7 * length / own * self.reused[n] if n in self.reused else g for n, g in first.items()}
        else:
            theta = [w.detach().clone() for w in self.weights]
            for n, (direction, factor) in self.eps(first).items():
                self.weights[n].data.add_(direction, alpha=factor)
            _, found = self.gradient(self.keep(losses, random), random)
            for w, t in zip(self.weights, theta, strict=True):
                w.data.copy_(t)
        if self.name == "looksam" and self.steps % 2 == 0:
            along = sum(dot(found[n], first[n]) for n in first if n in found and n in self.dense)
            along /= norm(self.only_dense(first)) ** 2
            whole = {n: g - along * first[n] if n in first else g for n, g in found.items()}
            self.reused = {n: g for n, g in whole.items() if n in self.dense}  # sparse gradients stay as they are
        self.put_back(buffers)
        torch.set_rng_state(after)
        for n, w in enumerate(self.weights):
            w.grad = found.get(n)
        self.base.step()
        self.steps += 1
        return losses.mean()

    def only_dense(self, gradients):
        return [g for n, g in gradients.items() if n in self.dense]

    def eps(self, g):
        """Return each tensor's direction and the factor on it."""
        if not self.masks:
            return {n: (g[n], RHO / norm(g.values())) for n in g}
        mask = self.masks.pop()
        trained = [n for n, w in enumerate(self.weights) if w.requires_grad]
        rho, drawn = {}, set()
        for place, n in enumerate(trained):
            if n not in self.norms or place in mask.picks:
                drawn.add(n)
                rho[n] = RHO / (mask.probabilities[place] if n in self.norms else 1)
        now = {n: norm([g[n]]) for n in g if n in drawn}
        others = {n: self.norms[n] for n in trained if n not in drawn}  # whether or not this pass reaches them
        length = math.sqrt(sum(v * v for v in (*now.values(), *others.values())))
        self.norms |= {n: now[n] for n in g if n in drawn}
        return {n: (g[n], rho[n] / length) for n in g if n in drawn}

    def keep(self, losses, random):
        """Return the samples of the second pass, at theta + eps."""
        if self.settings.get("gamma", 1) == 1:
            return slice(None)
        torch.set_rng_state(random)
        with torch.no_grad():
            rise = (self.closure(slice(None)) - losses).tolist()
        return torch.tensor(sorted(sorted(range(SIZE), key=lambda i: (-rise[i], i))[: SIZE // 2]))

    def buffers(self):
        return [(m, n, b.clone()) for m in self.model.modules() for n, b in m.named_buffers(recurse=False)]

    def put_back(self, buffers):
        for layer, name, value in buffers:
            setattr(layer, name, value)


def norm(tensors):
    return math.sqrt(sum(float(t.abs().double().square().sum()) for t in tensors))


def dot(a, b):
    return float((a * b.conj()).real.double().sum())


def tolerance(model):
    """Three steps of a few products each: some hundred roundings of values of about one."""
    eps = max((torch.finfo(p.dtype).eps for p in model.parameters()), default=0.0)
    return 5 * eps if eps > 1e-3 else 300 * eps


@pytest.mark.parametrize("animal", ZOO)
def test_three_steps_are_those_of_a_loop_written_by_hand(animal):
    for name in ("sam", "looksam", "esam"):
        torch.manual_seed(0)
        model, closure = ZOO[animal]()
        torch.manual_seed(0)
        twin, other = ZOO[animal]()
        by_hand = ByHand(name, twin, other)

        def told(count, beta, generator, masks=by_hand.masks):
            masks.append(independent(count, beta, generator))
            return masks[-1]

        settings = {"sam": {}, "looksam": {"k": 2}, "esam": {"mask": told}}[name]
        optimizer = METHODS[name](torch.optim.SGD(model.parameters(), lr=LR), model, seed=3, rho=RHO, **settings)
        flags = [p.requires_grad for p in model.parameters()], [layer.training for layer in model.modules()]
        for step in range(3):
            torch.manual_seed(step)
            loss = optimizer.step(closure)
            end = torch.get_rng_state()
            torch.manual_seed(step)
            expected = by_hand.step()
            assert torch.equal(torch.get_rng_state(), end)  # the step drew as often as one forward pass
            for one, two in (
                (loss, expected),
                (list(model.parameters()), list(twin.parameters())),
                (dict(model.named_buffers()), dict(twin.named_buffers())),
            ):
                torch.testing.assert_close(one, two, rtol=0, atol=tolerance(model))
        assert ([p.requires_grad for p in model.parameters()], [layer.training for layer in model.modules()]) == flags
        before = [(p.data_ptr(), p.detach().clone()) for p in model.parameters()]
        optimizer.param_groups[0]["lr"] = 0.0
        optimizer.step(closure)
        assert all(
            p.data_ptr() == at and torch.equal(p, t) for p, (at, t) in zip(model.parameters(), before, strict=True)
        )
