"""Which figures of the trained model stand at the end of every record?"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esam.analysis import sharpness
from esam.train.data import Batches, Data

RHO = 0.05
"""One radius for all methods, or their sharpness could not be compared: SAM's usual one."""
IMAGES = 1_000
"""How many training images the sharpness is taken over: the same ones for every run."""


def training_sharpness(model: nn.Module, data: Data, device: torch.device) -> float:
    """Return R_S over evenly spaced training images, in eval mode, with the labels that were trained on."""
    rows = torch.linspace(0, len(data.train) - 1, min(IMAGES, len(data.train))).round().long()
    split = data.train.select(rows)
    batches = list(Batches(split, 250, mean=data.mean, std=data.std, device=device).in_order())
    modes = [(m, m.training) for m in model.modules()]
    model.eval()

    def objective(parameters: Mapping[str, Tensor]) -> Tensor:
        total = torch.zeros((), device=device)
        for x, y in batches:
            outputs = torch.func.functional_call(model, dict(parameters), (x,))
            total = total + F.cross_entropy(outputs, y, reduction="sum")
        return total / len(split)

    try:
        return sharpness(objective, dict(model.named_parameters()), rho=RHO)
    finally:
        for module, training in modes:
            module.training = training


MEASURES = {"sharpness": training_sharpness}
