"""Does a plan say what probing costs?"""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from esam.paper.engine.cost import forward_flops
from esam.paper.engine.observer import observed
from esam.paper.engine.scale import ExperimentScale, Probe
from esam.paper.items.probes import probed_needs
from esam.paper.items.sds_illustration import ITEM
from esam.paper.scales import SCALES
from esam.train.config import Config
from esam.train.runs import configured_data, prepared_model


def test_the_planned_passes_of_a_probe_are_those_that_torch_counts():
    scale: ExperimentScale = SCALES["cpu"]()
    config = Config(data="digits", model="resnet8", train_size=64, threads=1)
    data = configured_data(config)
    model = prepared_model(config, data, torch.device("cpu"))
    probe = Probe(every=1, batches=2, batch_size=8, betas=scale.probe.betas, draws=scale.probe.draws, ts=scale.probe.ts)
    with FlopCounterMode(display=False) as counter:
        observed(model, data, probe, epoch=1)
    task = next(iter(scale.comparisons))
    needs = probed_needs(scale, [task])
    ((planned, images),) = needs.passes
    epochs = len(scale.probe.epochs(planned.epochs))
    samples = scale.probe.batches * scale.probe.batch_size
    each = images / epochs / samples  # passes of one image in one probe
    counted = counter.get_total_flops() / forward_flops(config) / (probe.batches * probe.batch_size)
    assert each == pytest.approx(counted, rel=0.05)  # the mean perturbation takes a gradient of one batch alone
    assert ITEM.needs(scale).passes
