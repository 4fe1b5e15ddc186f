"""Which samples does SDS keep when labels are wrong? The demo, watched: the share of wrong labels kept.

python benchmarks/sds_wrong_labels.py [--out results/sds_wrong_labels.json]
"""

import argparse
import dataclasses
import json
from pathlib import Path

import torch

from esam.files import write_atomically
from esam.optim.selection import keep_highest
from esam.recipes.demo import demo
from esam.train import cosine, fit
from esam.train.build import batches_of, build_optimizer, prepared_model
from esam.train.datasets import load_data
from esam.train.models import fastest_memory_format
from esam.train.record import environment

EPOCHS = (1, 10, 20, 30, 40)


def shares(seed):
    """Return, for each epoch, the share of wrong labels among the samples that took the second pass."""
    config = dataclasses.replace(demo().config, seed=seed, method="esam")
    device = torch.device("cpu")
    data = load_data(config)
    wrong = data.train[1] != load_data(dataclasses.replace(config, label_noise=0.0)).train[1]
    model = prepared_model(config, data, device)
    optimizer = build_optimizer(config, model)
    train, _, _ = batches_of(config, data, device, fastest_memory_format(model))
    rank, kept = optimizer.ranking, []

    def watched(batch):
        scores = rank(batch)
        epoch, number = divmod(len(kept), len(train))
        rows = train.order(epoch + 1)[number * config.batch_size :][: config.batch_size]
        kept.append(wrong[rows[keep_highest(scores, optimizer.gamma)]].double())
        return scores

    optimizer.ranking = watched
    fit(model, optimizer, train, epochs=config.epochs, schedule=cosine)
    return {e: float(torch.cat(kept[(e - 1) * len(train) : e * len(train)]).mean()) for e in EPOCHS}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [shares(seed) for seed in (0, 1, 2)]
    result = {
        "what": "share of wrong labels among the samples that SDS keeps; 0.30 of the training labels are wrong",
        "n": len(seeds),
        "epochs": {epoch: [round(s[epoch], 4) for s in seeds] for epoch in EPOCHS},
        "environment": environment(),
    }
    print(json.dumps(result, indent=1))
    if arguments.out:
        write_atomically(arguments.out, (json.dumps(result, indent=1) + "\n").encode())
