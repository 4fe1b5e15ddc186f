"""What does a look at the first steps of a run show?"""

from __future__ import annotations

import itertools
import warnings

import torch

from esam.analysis.doctor import Watch, watching

from .config import Config
from .evaluation import autocast, per_sample_cross_entropy
from .inputs import Inputs, outputs_of, rows_of
from .runs import batches_of, build_optimizer, chosen_device, configured_data, configured_task, prepared_model
from .task import Task, is_factory


def examine(config: Config, steps: int) -> Watch:
    """Take some steps of a run, at its first learning rate, and return what was seen; nothing is written."""
    if config.threads:
        torch.set_num_threads(config.threads)
    device = chosen_device(config.device)
    data = configured_task(config) if is_factory(config.data) else configured_data(config)
    loss = data.loss if isinstance(data, Task) else per_sample_cross_entropy
    model = prepared_model(config, data, device)
    train, _, _ = batches_of(config, data, device, torch.contiguous_format)
    optimizer = build_optimizer(config, model, total_steps=config.epochs * len(train))
    model.train()
    taken = 0
    with watching(optimizer) as watch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the findings say the same, with a remedy
        for number in itertools.count(1):
            rows = torch.split(train.order(number), config.batch_size)
            for samples, (x, y) in zip(rows, train.epoch(number), strict=True):
                if taken == steps:
                    return watch
                watch.samples(samples)

                def closure(keep: slice | torch.Tensor, x: Inputs = x, y: torch.Tensor = y) -> torch.Tensor:
                    with autocast(device, config.precision):
                        outputs = outputs_of(model, rows_of(x, keep))
                    return loss(outputs, y[keep])

                optimizer.step(closure, batch_size=len(y))
                taken += 1
    return watch
