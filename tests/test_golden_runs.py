"""Are the figures of small runs those that they were before data, batches and loop were rebuilt?

Losses of the mean over an epoch, recorded on another day. Rounding in float32 differs between processors by 2**-24 of a
value in each of some thousand operations a step, and a dozen steps at a high learning rate carry it on: 0.1 % is what
that can come to, and a batch in another order changes the loss by some per cent.
"""

import dataclasses

import pytest

from esam.train import Config, run

DIGITS = Config(data="digits", model="mlp", method="base", train_size=300, batch_size=50, epochs=2, lr=0.05, threads=1)
GOLDEN = {
    "base": ({}, [2.2653098, 2.0685672]),
    "sam": ({"method": "sam", "settings": {"rho": 0.1}}, [2.2676142, 2.0949401]),
    "noise and augmentation": ({"label_noise": 0.3, "augment": "shift", "seed": 3}, [2.2964546, 2.2721688]),
    "held out": ({"validation": True, "warmup": 1.0, "optimizer": "adamw", "lr": 0.001}, [2.2832889, 2.0495399]),
}


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("name", GOLDEN)
def test_a_small_run_gives_the_losses_that_it_gave_before(tmp_path, name):
    change, losses = GOLDEN[name]
    record = run(dataclasses.replace(DIGITS, **change), tmp_path)
    assert [line["train_loss"] for line in record.epochs] == pytest.approx(losses, rel=1e-3)
