"""Running statistics: who moves them, and what comes back."""

import pytest
import torch
from torch import nn

from esam.optim.buffers import kept_buffers

LAYERS = {
    "BatchNorm1d": (nn.BatchNorm1d(4), (6, 4)),
    "BatchNorm2d": (nn.BatchNorm2d(4), (6, 4, 3, 3)),
    "BatchNorm3d": (nn.BatchNorm3d(4), (6, 4, 2, 2, 2)),
    "cumulative average": (nn.BatchNorm2d(4, momentum=None), (6, 4, 3, 3)),
    "no statistics": (nn.BatchNorm2d(4, track_running_stats=False), (6, 4, 3, 3)),
    "InstanceNorm2d": (nn.InstanceNorm2d(4, track_running_stats=True), (6, 4, 3, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_inside_the_block_the_output_is_trainings_and_the_statistics_stand_still(name):
    layer, shape = LAYERS[name]
    layer.train()
    x = torch.randn(*shape)
    expected = layer(x)
    before = [b.clone() for b in layer.buffers()]
    flags = layer.momentum, layer.track_running_stats, layer.training
    with kept_buffers(layer):
        assert torch.equal(layer(x), expected)
    assert all(torch.equal(a, b) for a, b in zip(layer.buffers(), before, strict=True))
    assert (layer.momentum, layer.track_running_stats, layer.training) == flags


def test_after_the_block_the_statistics_move_again():
    layer = nn.BatchNorm1d(4)
    for _ in range(3):  # repeated calls: the peers' helper froze them for ever
        with kept_buffers(layer):
            layer(torch.randn(5, 4))
    layer(torch.randn(5, 4))
    assert layer.num_batches_tracked == 1
    assert layer.running_mean.any()


def test_blocks_nest():
    layer = nn.BatchNorm1d(4)
    with kept_buffers(layer):
        with kept_buffers(layer):
            pass
        layer(torch.randn(5, 4))
        assert layer.num_batches_tracked == 0
    layer(torch.randn(5, 4))
    assert layer.num_batches_tracked == 1


def test_an_error_inside_gives_the_layers_back():
    layer = nn.BatchNorm1d(4, momentum=None)
    with pytest.raises(RuntimeError), kept_buffers(layer):
        layer(torch.randn(5, 4))
        raise RuntimeError
    assert layer.num_batches_tracked == 0


def test_layers_in_eval_mode_still_use_their_statistics():
    layer = nn.BatchNorm1d(4).eval()
    x = torch.randn(5, 4)
    expected = layer(x)
    with kept_buffers(layer):
        assert torch.equal(layer(x), expected)
