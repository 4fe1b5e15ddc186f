"""What does a look at the first steps of a run show?"""

from __future__ import annotations

import itertools
import warnings

import torch

from esam.analysis.doctor import StepMonitor, watching

from .build import batches_of, build_optimizer, chosen_device, configured_task, prepared_model
from .config import Config
from .evaluation import autocast
from .samples import Inputs, outputs_of


def examine(config: Config, steps: int) -> StepMonitor:
    """Take some steps of a run, at its first learning rate, and return what was seen; nothing is written."""
    if config.threads:
        torch.set_num_threads(config.threads)
    device = chosen_device(config.device)
    task = configured_task(config)
    model = prepared_model(config, task, device)
    train, _, _ = batches_of(config, task, device, torch.contiguous_format)
    optimizer = build_optimizer(config, model, total_steps=config.epochs * len(train))

    def loss_of(x: Inputs, y: torch.Tensor) -> torch.Tensor:
        with autocast(device, config.precision):
            return task.loss(outputs_of(model, x), y)

    model.train()
    taken = 0
    with watching(optimizer) as watch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the findings say the same, with a remedy
        for number in itertools.count(1):
            for x, y in train.epoch(number):
                if taken == steps:
                    return watch
                optimizer.step(loss_of, x, y)
                taken += 1
    return watch
