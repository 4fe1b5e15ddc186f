"""Models of every kind: is each method, on each of them, the plain loop that one would write by hand?"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from esam import METHODS
from esam.optim import reference

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


class Layer(nn.Module):
    """A function of itself and its input; what it is given by name are its layers, parameters and buffers."""

    def __init__(self, run, **parts):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            if type(part) is torch.Tensor:
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x):
        return self.run(self, x)


def layer(run, **parts):
    """Return a function that builds a layer; ``parts`` are functions too."""
    return lambda: Layer(run, **{name: part() for name, part in parts.items()})


def read(layer, x):
    """Turn a sequence into another, and classify its mean."""
    out = layer.body(x)
    out = out[0] if isinstance(out, tuple) else out
    return layer.head(out.mean(1) if out.dim() == 3 else out)


def sequences(body, x=lambda: vectors(5, 4)):
    return lambda: classifier(Layer(read, body=body(), head=nn.Linear(4, CLASSES)), x())


HEAD = lin(6, 6), nn.Tanh, lin(6, CLASSES)
ZOO |= {
    "mlp": flat(lin(6, 8), nn.Tanh, lin(8, CLASSES)),
    "in-place relu": flat(lin(6, 8), lambda: nn.ReLU(inplace=True), lin(8, CLASSES)),
    "dropout": flat(lin(6, 8), lambda: nn.Dropout(0.4), nn.Tanh, lambda: nn.AlphaDropout(0.2), lin(8, CLASSES)),
    "batchnorm": flat(lin(6, 8), lambda: nn.BatchNorm1d(8), nn.ReLU, lin(8, CLASSES)),
    "spectral norm": flat(lambda: parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Tanh, lin(8, CLASSES)),
    "orthogonal": flat(lambda: parametrizations.orthogonal(nn.Linear(6, 6)), nn.Tanh, lin(6, CLASSES)),
    "lazy": flat(lambda: nn.LazyLinear(8), lambda: nn.LazyBatchNorm1d(), nn.Tanh, lambda: nn.LazyLinear(CLASSES)),
    "convolution": images(conv(2, 4, 3), nn.ReLU, conv(4, 4, 2)),
    "instance norm": images(conv(2, 4, 3), lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.ELU),
    "channels last": images(
        conv(2, 4, 3), lambda: nn.GroupNorm(2, 4), nn.ReLU, conv(4, 4, 1), memory_format=torch.channels_last
    ),
    "lstm": sequences(lambda: nn.LSTM(4, 2, 2, batch_first=True, bidirectional=True, dropout=0.2)),
    "transformer": sequences(lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)),
}


def tokens():
    return torch.randint(0, 10, (SIZE, 5))


ZOO |= {
    "sparse embedding": sequences(lambda: nn.Embedding(10, 4, sparse=True), tokens),
}


@kind("tied weights")
def tied():
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    model[2].weight = model[0].weight
    return classifier(model, vectors())


def mixture(self, x):
    weight, chosen = self.router(x).softmax(1).max(1)
    out = x.new_zeros(len(x), CLASSES)
    for n, expert in enumerate(self.experts):
        mine = (chosen == n).nonzero().flatten()
        if len(mine):  # an expert that nobody is sent to takes no part
            out = out.index_add(0, mine, weight[mine, None] * expert(x[mine]).tanh())
    return out


def stochastic_depth(self, x):
    for block in self.blocks:
        if torch.rand(()) < 0.6:
            x = x + block(x)
    return x


def statistics(write):
    """Keep a mean, which ``write`` writes in its own way, and count the batches."""

    def run(self, x):
        if self.training:
            write(self, 0.9 * self.mean + 0.1 * x.detach().mean(0))
            self.seen += 1
        return x + self.mean

    return layer(run, mean=lambda: torch.zeros(6), seen=lambda: torch.tensor(0))


def queue(self, x):
    """Remember the last six features, and where the next one goes."""
    out = x + 0.1 * self.rows.clone().mean(0)
    for row in x.detach()[:2]:
        self.rows[int(self.place)] = row
        self.place[0] = (self.place[0] + 1) % 6
    return out


def counting(self, x):
    self.seen.data.add_(1)  # moves no version
    return x


def growing(self, x):
    """Keep every mean: the buffer itself grows."""
    out = x + 0.1 * self.means.mean(0)
    self.means.data = torch.cat([self.means, x.detach().mean(0, keepdim=True)])
    return out


def parameter(*shape):
    return lambda: nn.Parameter(torch.randn(shape))


def blocks():
    return nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Tanh()) for _ in range(3)])


def adapted(inputs, outputs):
    """A frozen layer, and a trained product of two small matrices next to it."""
    parts = {"a": parameter(2, inputs), "b": parameter(outputs, 2)}
    frozen = lambda: nn.Linear(inputs, outputs).requires_grad_(False)  # noqa: E731
    return layer(lambda self, x: self.inner(x) + 0.1 * x @ self.a.T @ self.b.T, inner=frozen, **parts)


ZOO |= {
    "one norm layer twice": flat(
        layer(
            lambda self, x: self.norm(self.inner(self.norm(x)).tanh()), inner=lin(6, 6), norm=lambda: nn.BatchNorm1d(6)
        ),
        lin(6, CLASSES),
    ),
    "mixture of experts": flat(
        layer(
            mixture,
            router=lin(6, 4),
            experts=lambda: nn.ModuleList([nn.Linear(6, CLASSES) for _ in range(4)]),
        )
    ),
    "stochastic depth": flat(layer(stochastic_depth, blocks=blocks), lin(6, CLASSES)),
    "statistics replaced": flat(statistics(lambda self, value: setattr(self, "mean", value)), *HEAD),
    "statistics in place": flat(statistics(lambda self, value: self.mean.data.copy_(value)), *HEAD),
    "statistics by their data": flat(statistics(lambda self, value: setattr(self.mean, "data", value)), *HEAD),
    "queue": flat(layer(queue, rows=lambda: torch.zeros(6, 6), place=lambda: torch.zeros(1, dtype=torch.long)), *HEAD),
    "a large buffer": flat(layer(counting, seen=lambda: torch.zeros(2**17)), *HEAD),
    "growing queue": flat(layer(growing, means=lambda: torch.zeros(1, 6)), *HEAD),
    "cumulative batchnorm": flat(lambda: nn.BatchNorm1d(6, momentum=None), *HEAD),
    "a scalar parameter": flat(
        lin(6, 6), layer(lambda self, x: self.scale * x, scale=parameter()), nn.Tanh, lin(6, CLASSES)
    ),
    "an empty parameter": flat(layer(lambda self, x: x + self.nothing.sum(), nothing=parameter(0, 6)), *HEAD),
    "parameter list and dict": flat(
        layer(  # "b" is never used
            lambda self, x: (self.row[0] * x + self.named["a"]).tanh() * self.row[1],
            row=lambda: nn.ParameterList([torch.randn(6), torch.randn(6)]),
            named=lambda: nn.ParameterDict({"a": torch.randn(6), "b": torch.randn(6)}),
        ),
        lin(6, CLASSES),
    ),
    "frozen, with adapters": flat(adapted(6, 8), lambda: nn.BatchNorm1d(8).eval(), nn.Tanh, adapted(8, CLASSES)),
    "checkpoints": flat(
        layer(
            lambda self, x: checkpoint(self.body, x, use_reentrant=False),
            body=lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 8), nn.Tanh()),
        ),
        lin(8, CLASSES),
    ),
}


@kind("float32 beside float64")
def mixed():
    head = nn.Linear(6, CLASSES).double()
    body = nn.Linear(6, 6).float()
    return classifier(nn.ModuleList([body, head]), vectors(), None, lambda x: head(body(x.float()).tanh().double()))


@kind("bfloat16")
def bfloat16():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    return classifier(model, vectors(dtype=torch.bfloat16), torch.bfloat16)


@kind("hooks")
def hooks():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    model[0].register_forward_pre_hook(lambda layer, inputs: (inputs[0] * 1.5,))
    model[2].register_forward_hook(lambda layer, inputs, output: output + 0.1 * inputs[0])
    model[2].register_full_backward_hook(lambda layer, inputs, outputs: (2 * inputs[0],))
    model[4].weight.register_hook(lambda gradient: 0.5 * gradient)
    return classifier(model, vectors())


@kind("buffers that cannot be written, and modules in a circle")
def fixed_buffers():
    def run(self, x):
        return x * self.ones + torch.sparse.mm(self.graph, x.T).T

    fixed = Layer(run, ones=torch.ones(1).double().expand(6), graph=torch.eye(6).roll(1, 0).to_sparse())
    fixed.register_buffer("nothing", None)
    model = nn.Sequential(fixed, *(part() for part in HEAD))
    made = classifier(model, vectors())
    fixed.owner = model
    return made


@kind("the mode set by the loss function")
def own_mode():
    """As trainers do: train mode inside the loss function, eval mode outside."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES)).eval()

    def call(x):
        out = model.train()(x)
        model.eval()
        return out

    return classifier(model, vectors(), call=call)


@kind("a penalty on what is trained")
def penalised():
    model = nn.Sequential(*(part() for part in HEAD))

    def call(x):
        return model(x) * sum(p.square().mean() for p in model.parameters() if p.requires_grad)

    return classifier(model, vectors(), call=call)


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
    """A paper's loop, with what papers leave out: buffers and random numbers are those of the first pass."""

    def __init__(self, literal, model, closure):
        self.literal, self.model, self.closure = literal, model, closure
        self.base = torch.optim.SGD(model.parameters(), lr=LR)

    def step(self):
        """Take a step; return the loss of the first pass."""
        weights = [p for p in self.model.parameters() if p.requires_grad]
        random, passes = torch.get_rng_state(), []

        def losses(keep):
            if len(passes) == 1 and isinstance(self.literal, reference.ESAM):
                found = passes[0]  # it asks for those at theta again
            else:
                torch.set_rng_state(random)
                found = self.closure(keep)
            if not passes:
                self.after = torch.get_rng_state(), [(m, n, b.clone()) for m, n, b in self.buffers()]
            passes.append(found)
            return found + sum(0 * p.sum().to(found.dtype) for p in weights)  # no gradient is a gradient of zero

        for w, g in zip(weights, self.literal(losses, weights), strict=True):
            w.grad = g
        state, buffers = self.after
        torch.set_rng_state(state)
        for module, name, value in buffers:
            setattr(module, name, value)
        self.base.step()
        return passes[0].mean()

    def buffers(self):
        return [(m, name, b) for m in self.model.modules() for name, b in m.named_buffers(recurse=False)]


METHODS_BY_HAND = {
    "sam": (lambda: lambda losses, weights: reference.sam(losses, weights, RHO), {}),
    "looksam": (lambda: reference.LookSAM(RHO, 2, 0.7), {"k": 2}),
    "esam": (lambda: reference.ESAM(RHO, 0.6, 0.5, torch.Generator().manual_seed(3)), {}),
}
NO_PAPER = {("stochastic depth", "looksam"), ("stochastic depth", "esam"), ("sparse embedding", "looksam")}
"""Where the loops of the papers say nothing: tensors that take part in some steps only, and sparse gradients to reuse.
test_methods.py, test_esam.py and test_step_cases.py have what happens there, by hand."""


def tolerance(model):
    """Three steps of a few products each: some hundred roundings of values of about one."""
    eps = max((torch.finfo(p.dtype).eps for p in model.parameters()), default=0.0)
    return 5 * eps if eps > 1e-3 else 300 * eps


def flags_of(model):
    return [p.requires_grad for p in model.parameters()], [module.training for module in model.modules()]


@pytest.mark.parametrize("animal", ZOO)
def test_three_steps_are_those_of_the_papers_loops(animal):
    for name, (literal, settings) in METHODS_BY_HAND.items():
        if (animal, name) in NO_PAPER:
            continue
        torch.manual_seed(0)
        model, closure = ZOO[animal]()
        torch.manual_seed(0)
        by_hand = ByHand(literal(), *ZOO[animal]())
        optimizer = METHODS[name](torch.optim.SGD(model.parameters(), lr=LR), model, seed=3, rho=RHO, **settings)
        flags, buffers = flags_of(model), dict(model.named_buffers())
        for step in range(3):
            torch.manual_seed(step)
            loss = optimizer.step(closure)
            end = torch.get_rng_state()
            torch.manual_seed(step)
            expected = by_hand.step()
            assert torch.equal(torch.get_rng_state(), end)  # the step drew as often as one forward pass
            for one, two in (
                (loss, expected),
                (list(model.parameters()), list(by_hand.model.parameters())),
                (dict(model.named_buffers()), dict(by_hand.model.named_buffers())),
            ):
                torch.testing.assert_close(one, two, rtol=0, atol=tolerance(model))
        assert flags_of(model) == flags
        if animal != "statistics replaced":  # buffers stay the tensors that others may hold
            assert all(b is buffers[n] for n, b in model.named_buffers())
        before = [(p.data_ptr(), p.detach().clone()) for p in model.parameters()]
        optimizer.param_groups[0]["lr"] = 0.0
        optimizer.step(closure)
        assert all(
            p.data_ptr() == at and torch.equal(p, t) for p, (at, t) in zip(model.parameters(), before, strict=True)
        )
