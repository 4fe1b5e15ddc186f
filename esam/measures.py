"""Which figures of the trained model stand at the end of every record?"""

from __future__ import annotations

import torch
from torch import nn

from esam.analysis import ModelObjective, sharpness
from esam.train.data import Batches, Data
from esam.train.models import fastest_memory_format

RHO = 0.05
"""One radius for all methods, or their sharpness could not be compared: SAM's usual one."""
IMAGES = 1_000
"""How many training images the sharpness is taken over: the same ones for every run."""


def training_sharpness(model: nn.Module, data: Data, device: torch.device) -> float:
    """Return R_S over evenly spaced training images, in eval mode, with the labels that were trained on."""
    objective = training_objective(model, data, device)
    return sharpness(objective, objective.parameters, rho=RHO)


def training_objective(model: nn.Module, data: Data, device: torch.device, *, images: int = IMAGES) -> ModelObjective:
    """Return the mean loss over this many evenly spaced training images, or over all where there are fewer."""
    rows = torch.linspace(0, len(data.train) - 1, min(images, len(data.train))).round().long()
    split = data.train.select(rows)
    layout = fastest_memory_format(model)
    batches = Batches(split, 250, mean=data.mean, std=data.std, device=device, memory_format=layout)
    return ModelObjective(model, batches.in_order())


MEASURES = {"sharpness": training_sharpness}
