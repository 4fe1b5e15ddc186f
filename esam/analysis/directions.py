"""In which directions does one look from theta? A direction is a dictionary with the parameters' names."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from esam.optim import Gradients
from esam.optim.perturb import along

from .objective import Parameters, norm_of

Direction = dict[str, Tensor]


def gaussian(parameters: Parameters, *, seed: int) -> Direction:
    """Draw a standard normal direction: the same for the same seed, whatever the global random stream."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device) for name, p in parameters.items()
    }


def filter_normalised(direction: Parameters, parameters: Parameters) -> Direction:
    """Scale each filter of the direction to the norm of the same filter of theta (Li et al., 2018).

    A filter is ``weight[i]``: the weights into one unit or output channel. Tensors of one dimension (biases, norms)
    are left out, so zero, as in the original. Minima of different weight norms can then be compared.

    >>> filter_normalised({"w": torch.tensor([[3.0, 4.0]])}, {"w": torch.tensor([[0.0, 10.0]])})
    {'w': tensor([[6., 8.]])}
    """
    return {name: _filter_normalised(direction[name], p) for name, p in parameters.items()}


def random_plane(parameters: Parameters, *, seed: int) -> tuple[Direction, Direction]:
    """Draw two Gaussian directions, orthogonal to each other and then filter-normalised: the paper's x and y."""
    x, y = gaussian(parameters, seed=2 * seed), gaussian(parameters, seed=2 * seed + 1)
    y = orthogonal(y, x)
    return filter_normalised(x, parameters), filter_normalised(y, parameters)


def sam_eps(gradient: Parameters, rho: float) -> Direction:
    """Return SAM's eps: ``rho g / ||g||``."""
    g = Gradients(range(len(gradient)), list(gradient.values()))
    return dict(zip(gradient, along(g, dict.fromkeys(g.index, rho), g.norm()).tensors, strict=True))


def inner(a: Parameters, b: Parameters) -> float:
    """Return the inner product of two directions, in float64."""
    return sum(float((a[name].double() * b[name].double()).sum()) for name in a)


def cosine_similarity(a: Parameters, b: Parameters) -> float:
    """Return the cosine of the angle between two directions; NaN where one has no length."""
    lengths = float(norm_of(a.values())) * float(norm_of(b.values()))
    return inner(a, b) / lengths if lengths else math.nan


def orthogonal(direction: Parameters, to: Parameters) -> Direction:
    """Take out of a direction what lies along another one."""
    square = inner(to, to)
    share = inner(direction, to) / square if square else 0.0
    return {name: d - share * to[name] for name, d in direction.items()}


def _filter_normalised(direction: Tensor, weight: Tensor) -> Tensor:
    if weight.dim() < 2:
        return torch.zeros_like(weight)
    wanted, norms = weight.detach().flatten(1).norm(dim=1), direction.flatten(1).norm(dim=1)
    factors = torch.where(norms > 0, wanted / norms.clamp(min=torch.finfo(norms.dtype).tiny), torch.zeros_like(norms))
    return direction * factors.reshape(-1, *[1] * (weight.dim() - 1))
