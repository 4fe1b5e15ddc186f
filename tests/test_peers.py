"""The patterns that the bench times beside ours: are they what they are called?"""

import pytest
import torch
import torch.nn.functional as F
from peers import PEERS, ReleasedESAM, TwoStepSAM
from torch import nn

from esam import SAM
from esam.bench.config import Bench
from esam.bench.steps import bench_steps

BATCH = 12


def problem():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, base, torch.randn(BATCH, 6).double(), torch.randint(0, 3, (BATCH,))


def test_the_two_step_pattern_takes_sams_steps():
    model, base, x, y = problem()
    theirs = TwoStepSAM(base)
    mine, own_base, _, _ = problem()
    ours = SAM(own_base, mine)
    for _ in range(5):
        F.cross_entropy(model(x), y).backward()
        theirs.first_step()
        F.cross_entropy(model(x), y).backward()
        theirs.second_step()
        ours.step(lambda keep: F.cross_entropy(mine(x[keep]), y[keep], reduction="none"))
    for a, b in zip(model.parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_the_released_form_pays_three_forward_passes_and_returns_to_theta_before_it_steps():
    model, base, x, y = problem()
    optimizer = ReleasedESAM(base, model)
    sizes = []
    model.register_forward_hook(lambda module, inputs, output: sizes.append((len(output), output.requires_grad)))
    before = [w.detach().clone() for w in model.parameters()]
    base.param_groups[0]["lr"] = 0.0
    optimizer.step(x, y)
    # the ranking pass has no graph; of the half that it keeps, the one at the cutoff is lost
    assert sizes == [(BATCH, True), (BATCH, False), (BATCH // 2 - 1, True)]
    for w, old in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(w.detach(), old, rtol=0, atol=1e-12)


def test_without_sds_the_released_form_still_ranks():
    result = bench_steps(Bench(model="mlp", batch_size=8, size=8, rounds=1), PEERS)
    counted = {name: (row["forwards"], row["backwards"]) for name, row in result["contenders"].items()}
    assert counted == {
        "sam, two-step pattern": (2, 2),
        "esam, as released": (pytest.approx(2.375), pytest.approx(1.375)),
        "esam-swp, as released": (3, 2),
    }
