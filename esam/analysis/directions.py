"""In which directions does one look from theta? A direction is a dictionary with the parameters' names."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from esam.optim import Gradients
from esam.optim.checks import checked_share
from esam.optim.mask import independent
from esam.optim.perturb import along

from .objective import ModelObjective, Parameters, norm_of, value_and_gradient

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


def adversarial_plane(
    objective: ModelObjective, parameters: Parameters, *, seed: int, eta: float | None = None
) -> tuple[Direction, Direction]:
    """Return the gradients of two random halves of the samples, made orthogonal to each other.

    Each has length 1, so that minima can be compared at equal distances; with ``eta``, a learning rate, it has eta
    times the length of its gradient, the paper's unit.
    """
    if objective.count < 2:
        raise ValueError(f"two halves need 2 samples or more, got {objective.count}")
    order = torch.randperm(objective.count, generator=torch.Generator().manual_seed(seed))
    halves = order.tensor_split(2)
    x, y = (value_and_gradient(objective.only(rows.sort().values), parameters)[1] for rows in halves)
    lengths = [1.0 if eta is None else eta * float(norm_of(g.values())) for g in (x, y)]
    return scaled_to(x, lengths[0]), scaled_to(orthogonal(y, x), lengths[1])


def sam_eps(gradient: Parameters, rho: float) -> Direction:
    """Return SAM's eps: ``rho g / ||g||``."""
    g = Gradients(range(len(gradient)), list(gradient.values()))
    return dict(zip(gradient, along(g, dict.fromkeys(g.index, rho), g.norm()).tensors, strict=True))


def swp_eps(gradient: Parameters, rho: float, *, beta: float, generator: torch.Generator) -> Direction:
    """Return SWP's eps: each tensor of SAM's with probability beta, then divided by beta; at least one."""
    checked_share("beta", beta)
    names = list(gradient)
    picks = range(len(names)) if beta == 1 else independent(len(names), beta, generator).picks
    g = Gradients(range(len(names)), list(gradient.values()))
    # divided by the norm of the whole gradient, so that the mean over draws is SAM's eps
    eps = dict(along(g.only(set(picks)), dict.fromkeys(picks, rho / beta), g.norm()))
    return {name: eps.get(i, torch.zeros_like(gradient[name])) for i, name in enumerate(names)}


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


def scaled_to(direction: Parameters, length: float) -> Direction:
    """Return the direction with this l2 norm."""
    norm = float(norm_of(direction.values()))
    if not (math.isfinite(norm) and norm > 0):
        raise ValueError(
            f"a direction of length {norm} cannot be scaled; look from a point where the gradient is not 0"
        )
    return {name: d * (length / norm) for name, d in direction.items()}


def _filter_normalised(direction: Tensor, weight: Tensor) -> Tensor:
    if weight.dim() < 2:
        return torch.zeros_like(weight)
    theirs, own = weight.detach().flatten(1).norm(dim=1), direction.flatten(1).norm(dim=1)
    factors = torch.where(own > 0, theirs / own.clamp(min=torch.finfo(own.dtype).tiny), torch.zeros_like(own))
    return direction * factors.reshape(-1, *[1] * (weight.dim() - 1))
