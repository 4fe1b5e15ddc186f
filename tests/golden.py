"""Golden curves: 16 steps of every public method, small enough to be read from one file.

``python tests/golden.py`` writes ``golden.json``; ``test_golden.py`` compares. Everything that is drawn, weights and
data and dropout too, comes from ``torch.rand``, whose bits are the same on every processor, and all else is float64.
"""

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from esam import METHODS
from esam.train.models import build_model

FILE = Path(__file__).parent / "golden.json"
STEPS, BATCH = 16, 16

SETTINGS = {
    "base": {},
    "base-part": {"gamma": 0.5},
    "base-ema": {"decay": 0.9},
    "sam": {"rho": 0.05, "m": None, "perturbation": "rank"},
    "sam, m": {"rho": 0.05, "m": 4, "perturbation": "rank"},
    "asam": {"rho": 0.5, "eta": 0.01, "m": None, "perturbation": "rank"},
    "sam-on": {"rho": 0.5, "perturbation": "rank"},
    "looksam": {"rho": 0.05, "k": 3, "alpha": 0.7, "perturbation": "rank"},
    "fsam": {"rho": 0.05, "sigma": 1.0, "decay": 0.9, "m": None, "perturbation": "rank"},
    "gsam": {"rho": 0.05, "alpha": 0.4, "perturbation": "rank"},
    "esam": {"rho": 0.05, "beta": 0.6, "gamma": 0.5, "norm": "full", "m": None, "perturbation": "rank"},
    "esam, global": {"rho": 0.05, "beta": 0.6, "gamma": 0.5, "norm": "full", "m": None, "perturbation": "global"},
    "esam-swp": {"rho": 0.05, "beta": 0.6, "norm": "full", "m": None, "perturbation": "rank"},
    "esam-sds": {"rho": 0.05, "gamma": 0.5, "m": None, "perturbation": "rank"},
    "esam-random": {"rho": 0.05, "beta": 0.6, "gamma": 0.5, "norm": "full", "m": None, "perturbation": "rank"},
    "slicesam": {"rho": 0.05, "share": 0.25, "perturbation": "rank"},
    "ae-sam": {"rho": 0.05, "threshold": 1.0, "decay": 0.9, "total_steps": STEPS, "perturbation": "rank"},
    "msam": {"rho": 0.5, "warmup_steps": 2},
}
"""All settings that a method reads, so that no default can move a curve."""
ONE_PROCESS = [name for name in SETTINGS if name != "esam, global"]
TWO_RANKS = ("sam", "esam", "esam, global", "looksam", "slicesam", "ae-sam", "msam", "fsam", "gsam")


class Transformer(nn.Module):
    """One block over six tokens, with dropout."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.norms = nn.ModuleList([nn.LayerNorm(8), nn.LayerNorm(8)])
        self.mixed, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.wide, self.narrow, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, tokens):
        x = self.embedding(tokens)
        q, k, v = self.mixed(self.norms[0](x)).chunk(3, -1)
        x = x + dropped(self.out((q @ k.mT / math.sqrt(8)).softmax(-1) @ v))
        x = x + dropped(self.narrow(torch.tanh(self.wide(self.norms[1](x)))))
        return self.head(x.mean(1))


def dropped(x, share=0.1):
    return x * (torch.rand(x.shape, dtype=torch.float64) >= share) / (1 - share)


def resnet():
    return build_model("resnet8", classes=4, channels=1, size=8)


NETS = {"resnet8": resnet, "transformer": Transformer}


def built(net):
    """Return the net with weights that no processor draws in its own way."""
    generator = torch.Generator().manual_seed(1)
    model = NETS[net]().double()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                bound = math.sqrt(3 / p[0].numel())
                p.copy_(bound * (2 * torch.rand(p.shape, dtype=torch.float64, generator=generator) - 1))
    return model


def batch_of(net, step, rank=0):
    generator = torch.Generator().manual_seed(100 * rank + step)
    y = torch.randint(4, (BATCH,), generator=generator)
    if net == "transformer":
        return (torch.randint(20, (BATCH, 6), generator=generator) + y[:, None]) % 20, y
    x = torch.rand(BATCH, 1, 8, 8, dtype=torch.float64, generator=generator)
    return x + 0.2 * y[:, None, None, None], y


def base_of(net, model):
    if net == "transformer":  # a large eps: sqrt(v) near zero would turn rounding into steps
        return torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-3, weight_decay=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)


def curve(name, net, *, micro_batches=1, rank=0, wrap=lambda model: model):
    """Return the losses of the steps, and a few numbers that depend on every weight, buffer and gradient."""
    torch.manual_seed(5)
    model = wrap(built(net))
    optimizer = METHODS[name.split(",")[0]](base_of(net, model), model, seed=3, **SETTINGS[name])
    losses = []
    for step in range(STEPS):
        for x, y in zip(*(part.chunk(micro_batches) for part in batch_of(net, step, rank)), strict=True):
            optimizer.accumulate(closure_of(model, x, y), batch_size=len(x))
        losses.append(float(optimizer.gradient()))
        optimizer.step()
    with optimizer.evaluation_weights():
        evaluated = summary(model.parameters())
    return {
        "losses": losses,
        "weights": summary(model.parameters()),
        "evaluated": evaluated,
        "buffers": summary(model.buffers()),
        "gradient": summary(p.grad for p in model.parameters()),
    }


def closure_of(model, x, y):
    return lambda keep: F.cross_entropy(model(x[keep]), y[keep], reduction="none")


def summary(tensors):
    """Return the norm of all elements, and two weighted sums of them."""
    flat = torch.cat([torch.zeros(1, dtype=torch.float64), *(t.detach().double().flatten() for t in tensors)])
    place = torch.arange(len(flat), dtype=torch.float64)
    return [float(flat.norm()), float(flat @ place.sin()), float(flat @ place.cos())]


def cases():
    """Name every curve of one process."""
    return [(name, net, parts) for net in NETS for name in ONE_PROCESS for parts in (1, 2)]


RANK_CASES = [*((name, "transformer") for name in TWO_RANKS), ("slicesam", "resnet8")]


def rank_curve(rank, name, net):
    """Return a curve of one of two ranks."""
    from torch.nn.parallel import DistributedDataParallel

    return curve(name, net, rank=rank, micro_batches=2, wrap=DistributedDataParallel)


def write():
    import tempfile

    from two_ranks import TwoRanks

    found = {f"{name} {net} {parts}": curve(name, net, micro_batches=parts) for name, net, parts in cases()}
    with tempfile.TemporaryDirectory() as folder, TwoRanks(Path(folder)) as both:
        for name, net in RANK_CASES:
            curves = enumerate(both(rank_curve, name, net))
            found |= {f"{name} {net} rank {rank}": seen for rank, seen in curves}
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(one)}" for name, one in found.items())
    FILE.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    write()
