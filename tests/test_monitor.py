"""Is each thing that makes training worse found when its cause is there, and only then, and warned of once?"""

import warnings

import pytest
import torch
import torch.nn.functional as F
from conftest import mlp, normalised, problem, start
from torch import nn

from esam import SAM, GuidanceWarning, SliceSAM
from esam.optim.monitor import FIRST, StepMonitor


def signs(name, build=mlp, **settings):
    p, optimizer = start(name, build, **settings)
    optimizer.monitor = StepMonitor(optimizer)
    for _ in range(6):
        p.step(optimizer)
    return " | ".join(map(str, optimizer.monitor.findings()))


def warned(optimizer, step, steps=FIRST + 2):
    """Return what an optimizer warns of by itself, and where."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", GuidanceWarning)
        for _ in range(steps):
            step(optimizer)
    return [str(w.message) for w in seen], {w.filename for w in seen}


def test_the_ratio_is_that_of_the_lengths_and_steps_without_a_direction_are_counted():
    """A weight of 2, rho = 0.5: the ratio is a quarter."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 2.0)
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.0), model, rho=0.5)
    optimizer.monitor = StepMonitor(optimizer)
    optimizer.step(lambda x: model(x).squeeze(1).square(), torch.ones(3, 1, dtype=torch.float64))
    assert optimizer.monitor.ratios == pytest.approx([0.25], abs=1e-12)
    assert "very long" in str(optimizer.monitor.findings()[0])
    optimizer.step(lambda x: 0 * model(x).squeeze(1), torch.ones(3, 1, dtype=torch.float64))
    assert any("1 of 2 steps" in str(finding) for finding in optimizer.monitor.findings())  # without a direction


def test_what_is_wrong_is_found_and_a_healthy_training_has_no_finding():
    assert signs("sam") == ""
    assert "very short" in signs("sam", rho=1e-7)
    assert "rho is 0" in signs("sam", rho=0.0)
    assert "BatchNorm normalises by 6 samples" in signs("esam", normalised)
    assert "BatchNorm" not in signs("esam", normalised, batch=16)
    assert "BatchNorm" not in signs("esam", mlp)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_perturbation_that_low_precision_rounds_away_is_found(dtype):
    p = problem(dtype=dtype)
    optimizer = SAM(torch.optim.SGD(p.model.parameters(), lr=1e-6), p.model, rho=1e-4)
    seen, where = warned(optimizer, p.step)
    assert any("low precision" in message for message in seen) == (dtype is torch.bfloat16)
    assert len(seen) == len(set(seen))  # each once
    assert all(file == __file__ or "conftest" in file for file in where)  # the user's line, not ours


def test_warnings_made_errors_leave_the_weights_as_the_base_left_them():
    p, optimizer = start("sam", rho=1e-8)
    with warnings.catch_warnings():
        warnings.simplefilter("error", GuidanceWarning)
        for _ in range(FIRST - 1):
            p.step(optimizer)
        with pytest.raises(GuidanceWarning, match="very short"):
            p.step(optimizer)
    assert optimizer.steps == FIRST


class Follower(nn.Module):
    """A net whose second half follows the first, as MoCo's key encoder does: by its data, or as a parameter anew."""

    def __init__(self, *, replaced):
        super().__init__()
        self.query, self.replaced = nn.Linear(6, 3).double(), replaced
        self.key = nn.Parameter(torch.zeros(3, 6).double(), requires_grad=False)

    def forward(self, x):
        followed = 0.9 * self.key.data + 0.1 * self.query.weight.data
        if self.replaced:
            self.key = nn.Parameter(followed, requires_grad=False)
        else:
            self.key.data.copy_(followed)
        return self.query(x)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_parameter_that_forward_moves_is_found_for_it_moves_in_every_pass(replaced):
    """Before: it moved twice a step, once by the perturbed weights, in silence."""
    p = problem(lambda _: Follower(replaced=replaced))
    seen, _ = warned(SAM(torch.optim.SGD(p.model.query.parameters(), lr=0.1), p.model), p.step)
    assert [message for message in seen if "key, a parameter" in message and "buffer" in message] and len(seen) == 1


# How the loss adds up -------------------------------------------------------------------------------------------------


def contrastive(model, x):
    z = F.normalize(model(x), dim=1)
    return F.cross_entropy(z @ z.roll(1, 1).T / 0.1, torch.arange(len(x)))


LOSSES = {
    "mean": (lambda model, x, y: F.cross_entropy(model(x), y), ""),
    "one a sample": (lambda model, x, y: F.cross_entropy(model(x), y, reduction="none"), ""),
    "sum": (lambda model, x, y: F.cross_entropy(model(x), y, reduction="sum"), 'pass loss="sum"'),
    "contrastive": (lambda model, x, y: contrastive(model, x), 'loss="whole"'),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_that_is_not_a_mean_over_samples_is_found_once_by_its_parts(kind):
    loss_of, remedy = LOSSES[kind]
    p = problem(batch=16)
    optimizer = SliceSAM(torch.optim.SGD(p.model.parameters(), lr=1e-3), p.model, rho=0.05, share=0.25, seed=0)
    seen, _ = warned(optimizer, lambda o: o.step(lambda x, y: loss_of(p.model, x, y), p.x, p.y))
    found = [message for message in seen if "parts" in message]
    assert len(found) == bool(remedy) and all(remedy in message for message in found), seen


def test_a_loss_that_ignores_the_samples_it_is_given_is_found():
    p = problem(batch=16)
    optimizer = SliceSAM(torch.optim.SGD(p.model.parameters(), lr=1e-3), p.model, seed=0)
    seen, _ = warned(optimizer, lambda o: o.step(lambda keep: p.loss_of(p.x, p.y).mean(), batch_size=16))
    assert any("ignores the samples" in message and "whole" in message for message in seen)
