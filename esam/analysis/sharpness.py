"""How much does the loss rise nearby, and how far is it from linear there?"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .directions import inner
from .objective import ModelObjective, Objective, Parameters, moved, norm_of, repeats, value_and_gradient


def sharpness(objective: Objective, parameters: Parameters, *, rho: float) -> float:
    """Return the paper's R_S: the rise of the loss from theta to theta + rho g / ||g||, SAM's own eps.

    ``objective`` is called with dictionaries of the same names; ``parameters`` are only read. A loss or gradient that
    is not finite gives NaN; a gradient of zero gives 0.

    >>> sharpness(lambda p: p["w"].square().sum() / 2, {"w": torch.tensor([3.0, 4.0])}, rho=1)
    5.5
    """
    return ascent_sharpness(objective, parameters, rho=rho, steps=1)


def ascent_sharpness(objective: Objective, parameters: Parameters, *, rho: float, steps: int = 10) -> float:
    """Return the highest rise of the loss that projected gradient ascent finds in the ball ||eps|| <= rho.

    A step goes rho along the normalised gradient and is then projected onto the ball; where the loss does not rise, the
    next one starts from the same point with half the length. The first is SAM's own eps, so more steps never find less
    than ``sharpness``.
    """
    return _highest_rise(objective, parameters, torch.ones_like, rho=rho, steps=steps)


def adaptive_sharpness(
    objective: Objective, parameters: Parameters, *, rho: float, eta: float = 0.01, steps: int = 1
) -> float:
    """Return the rise of the loss in ASAM's ball: ||eps / T|| <= rho with T = |theta| + eta.

    One step is ASAM's own eps, rho T^2 g / ||T g||; more are projected ascent. With eta = 0 it stays the same when a
    ReLU network's layers are rescaled against each other. A rho of about 0.5 means what SAM's 0.05 does.
    """
    if not eta >= 0:
        raise ValueError(f"eta must be >= 0, got {eta!r}")
    return _highest_rise(objective, parameters, lambda w: w.abs() + eta, rho=rho, steps=steps)


def m_sharpness(objective: ModelObjective, parameters: Parameters, *, rho: float, m: int) -> float:
    """Return the mean over groups of m consecutive samples of each group's own sharpness.

    A group's eps is worked out on that group alone, as SAM does on each device; a last group of fewer samples counts
    for fewer.
    """
    if not isinstance(objective, ModelObjective):
        raise ValueError(
            f"m-sharpness takes the samples apart, so give a ModelObjective, got a {type(objective).__name__}"
        )
    groups = objective.groups(m)
    return sum(sharpness(group, parameters, rho=rho) * group.count for group in groups) / objective.count


def linearity(objective: Objective, parameters: Parameters, eps: Parameters) -> float:
    """Return the paper's zeta(eps, B) = |L(theta + eps) - L(theta) - eps^T g|: 0 where the loss is linear.

    SAM takes the loss for linear when it works out eps, so a smaller zeta means a better maximisation.

    >>> linearity(lambda p: p["w"].square().sum(), {"w": torch.ones(2)}, {"w": torch.tensor([0.5, 0.0])})
    0.25
    """
    loss, gradient = value_and_gradient(objective, parameters)
    start = repeats(objective, parameters, first=loss)
    with torch.no_grad():
        end = float(objective(moved(parameters, eps)))
    return abs(end - start - inner(eps, gradient))


def _highest_rise(
    objective: Objective, parameters: Parameters, t_of: Callable[[Tensor], Tensor], *, rho: float, steps: int
) -> float:
    """Ascend in u = eps / T, where the ball is round and the gradient is T g; ``t_of`` gives T of a weight."""
    if not rho > 0:
        raise ValueError(f"rho must be > 0, got {rho!r}")
    if steps < 1:
        raise ValueError(f"steps must be 1 or more, got {steps!r}")
    theta = {name: p.detach() for name, p in parameters.items()}
    t = {name: t_of(p) for name, p in theta.items()}
    u = {name: torch.zeros_like(p) for name, p in theta.items()}
    loss, gradient = value_and_gradient(objective, theta)
    start, highest, length = repeats(objective, theta, first=loss), -math.inf, rho
    for step in range(steps):
        uphill = _product(t, gradient)
        norm = norm_of(uphill.values())
        if not torch.isfinite(norm):
            return math.nan
        if norm == 0:
            break
        factor = length / float(norm)
        tried = _within({name: u[name] + factor * uphill[name] for name in u}, rho)
        there = moved(theta, _product(t, tried))
        if step == steps - 1:  # no step follows that would need a gradient
            with torch.no_grad():
                loss = objective(there)
        else:
            loss, following = value_and_gradient(objective, there)
        if math.isnan(float(loss)):
            return math.nan
        if float(loss) > highest:
            highest, u = float(loss), tried
            gradient = following if step < steps - 1 else gradient
        else:
            length /= 2
    return highest - start if highest > -math.inf else 0.0


def _within(u: dict[str, Tensor], rho: float) -> dict[str, Tensor]:
    """Project onto the ball ||u|| <= rho."""
    norm = float(norm_of(u.values()))
    # one step of length rho lies on the ball: rounding must not scale it again
    return u if norm <= rho * (1 + 1e-6) else {name: value * (rho / norm) for name, value in u.items()}


def _product(a: Parameters, b: Parameters) -> dict[str, Tensor]:
    return {name: a[name] * b[name] for name in a}
