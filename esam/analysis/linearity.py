"""How far is the loss from linear along eps?"""

from __future__ import annotations

import torch

from .directions import inner
from .objective import Objective, Parameters, moved, repeats, value_and_gradient


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
