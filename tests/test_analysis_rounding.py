"""Are weights rounded to the nearest level, and does the accuracy count what the rounded model gets right?"""

import pytest
import torch
from torch import nn

from esam.analysis import rounded, rounded_accuracy
from esam.train import Config, Task, evaluate, run
from esam.train.loaded_run import MEASURES, accuracy_of_rounded_weights


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_every_weight_goes_to_the_nearest_of_its_channels_levels_and_the_largest_stays(bits):
    torch.manual_seed(0)
    theta = {"w": torch.randn(5, 3, 2, 2, dtype=torch.float64), "b": torch.randn(5), "zero": torch.zeros(2, 3)}
    found = rounded(theta, bits)
    levels = 2 ** (bits - 1) - 1
    for weight, near in zip(theta["w"], found["w"], strict=True):
        step = weight.abs().max() / levels
        grid = step * torch.arange(-levels, levels + 1)
        by_hand = grid[(weight.flatten()[:, None] - grid).abs().argmin(1)].reshape(weight.shape)
        torch.testing.assert_close(near, by_hand, rtol=0, atol=1e-15)
        assert near.abs().max() == pytest.approx(float(weight.abs().max()))
    assert found["b"] is not None and torch.equal(found["b"], theta["b"]) and torch.equal(found["zero"], theta["zero"])


def test_accuracy_is_that_of_the_rounded_model_and_the_model_is_only_read():
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.1], [0.9, 0.2]]))
    before = model.weight.detach().clone()
    # with levels -1, 0, 1 the rows are (1, 0) and (0.9, 0): the first class wins wherever x > 0
    batches = [(torch.tensor([[1.0, 2.0], [1.0, 0.0]]), torch.tensor([1, 0]))]
    assert rounded_accuracy(model, batches, bits=(2, 16)) == {"2": 0.5, "16": 1.0}
    assert torch.equal(model.weight, before)
    with pytest.raises(ValueError, match="bits must be 2 or more"):
        rounded({}, 1)


def test_targets_that_are_ignored_count_in_no_accuracy():
    model = nn.Linear(2, 2, bias=False)
    model.weight.data.copy_(torch.eye(2))
    # four pictures of two pixels, the first scored as class 0, the second as class 1: right in three of the four known
    batches = [(torch.eye(2).expand(4, 2, 2), torch.tensor([[1, -100], [0, -100], [-100, -100], [0, 1]]))]
    assert evaluate(model, batches, lambda o, t: o.sum((1, 2)))["test_accuracy"] == 0.75
    assert rounded_accuracy(model, batches, bits=(32,)) == {"32": 0.75}


def test_a_record_has_the_accuracy_of_rounded_weights_where_there_are_classes(tmp_path, own_cache):
    config = Config(data="digits", model="mlp", method="base", train_size=100, epochs=2, batch_size=20, threads=1)
    found = run(config, tmp_path, measures=MEASURES).end
    assert found["rounded_accuracy"].keys() == {"32", "8", "4"}
    assert found["rounded_accuracy"]["32"] == pytest.approx(found["test_accuracy"]["last"])  # all 359 samples
    x = torch.randn(20, 2)
    task = Task((x, x[:, :1]), (x, x[:, :1]), loss=lambda o, t: (o - t).square().mean(1))
    assert accuracy_of_rounded_weights(nn.Linear(2, 1), task, torch.device("cpu")) is None
