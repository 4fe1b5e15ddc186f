"""How much of an epoch does the trainer take for itself?

    ESAM_DATA=<folder with cifar10/> python benchmarks/trainer_overhead.py [--out results/trainer_overhead.json]

A ResNet-8 on 5,000 images of CIFAR-10, batch 128, basic augmentation, SGD, one thread. What counts as the trainer's own
is all that is not `optimizer.step` (the passes over the network and the update): loading, augmenting, moving, schedule,
sums, record and checkpoint. Evaluation is left out. CPU time, both parts in the same run, epoch by epoch.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from esam.train import Checkpoint, Config, cosine, fit
from esam.train.build import batches_of, build_optimizer, prepared_model
from esam.train.datasets import load_data
from esam.train.models import fastest_memory_format
from esam.train.record import RECORD_NAME, RecordWriter, environment

EPOCHS = 12
WARM_UP = 2
CONFIG = Config(
    data="uoft-cs/cifar10",
    model="resnet8",
    method="base",
    epochs=EPOCHS + WARM_UP,
    batch_size=128,
    augment="basic",
    train_size=5_000,
    threads=1,
)
LIMIT = 0.05


class TimedCheckpoint(Checkpoint):
    """Notes when an epoch is over: its checkpoint, the last thing to do, is written."""

    ends: list[float]

    def save(self, state):
        super().save(state)
        self.ends.append(time.process_time())


def measure():
    torch.set_num_threads(1)
    device = torch.device("cpu")
    data = load_data(CONFIG.data, train_size=CONFIG.train_size)
    model = prepared_model(CONFIG, data, device)
    optimizer = build_optimizer(CONFIG, model)
    train, _, _ = batches_of(CONFIG, data, device, fastest_memory_format(model))
    inside, step = [0.0], optimizer.step

    def timed(*given, **settings):
        start = time.process_time()
        loss = step(*given, **settings)
        inside[-1] += time.process_time() - start
        return loss

    optimizer.step = timed
    with tempfile.TemporaryDirectory() as folder:
        first = {"name": "SGD", "method": "base", "seed": 0, "config": CONFIG.as_json()}
        writer = RecordWriter.create(Path(folder) / RECORD_NAME, first)
        checkpoint = TimedCheckpoint(folder)
        checkpoint.ends = [time.process_time()]

        def on_epoch(metrics):
            writer.epoch(**metrics)
            inside.append(0.0)

        fit(
            model,
            optimizer,
            train,
            epochs=CONFIG.epochs,
            schedule=cosine,
            checkpoint=checkpoint,
            on_epoch=on_epoch,
        )
    whole = [end - start for start, end in zip(checkpoint.ends, checkpoint.ends[1:], strict=False)]
    pairs = list(zip(whole, inside, strict=False))[WARM_UP:]
    shares = sorted(1 - step / epoch for epoch, step in pairs)
    return {
        "what": "share of an epoch's CPU time outside optimizer.step, evaluation excluded",
        "run": {name: CONFIG.given()[name] for name in ("data", "model", "augment", "train_size")}
        | {"batch_size": 128},
        "n": len(shares),
        "share": {"median": statistics.median(shares), "interval min-max": [shares[0], shares[-1]]},
        "limit": LIMIT,
        "kept": statistics.median(shares) <= LIMIT,
        "median s of an epoch": statistics.median(epoch for epoch, _ in pairs),
        "environment": environment(),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    text = json.dumps(measure(), indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
