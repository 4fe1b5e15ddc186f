"""How well does each ranking find the samples that SDS wants? ResNet-8 on 5,000 images of CIFAR-10, while it trains.

    ESAM_DATA=<folder with cifar10/> python benchmarks/fidelity.py [--label-noise 0.2] [--out results/fidelity.json]

The net trains by ESAM as the paper has it. After some epochs it is stopped, and on 20 batches each ranking chooses its
half: the share of the true B+ that it found, the cosine of its gradient at theta + eps to the whole batch's, and the
share of wrong labels that it kept.
"""

import argparse
import json
from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import fmean

import torch
import torch.nn.functional as F
from esam.optim.head import HeadWatch
from esam.optim.passes import first_pass
from esam.optim.statistics import frozen_statistics
from esam.optim.workarounds import GraphFaults

from esam.files import write_atomically
from esam.optim.ascent import l2_ascent
from esam.optim.batch import Piece
from esam.optim.perturb import perturbed
from esam.optim.ranking import RANKINGS, Candidates, keep_highest
from esam.train import Config, cosine, fit
from esam.train.data import load_data
from esam.train.models import fastest_memory_format
from esam.train.record import environment
from esam.train.runs import batches_of, build_optimizer, prepared_model

EPOCHS = (1, 3, 6, 12, 20)
BATCHES = 20
PRICES = {"exact": 1.0}  # in forward passes; all the others are free


class LastSeen:
    """The rise that each image showed when it last took the second pass; a new one comes first."""

    def __init__(self, images):
        self.rise = torch.full((images,), torch.inf)

    def watch(self, ranking, rows_of_next_batch, gamma):
        """Return the ranking, made to leave behind the rises that the second pass would have shown."""

        def watched(batch):
            rows, scores = next(rows_of_next_batch), ranking(batch)
            keep = keep_highest(scores, gamma)
            self.rise[rows[keep]] = scores[keep]
            return scores

        return watched


def gradient_of(model, x, y, keep):
    loss = F.cross_entropy(model(x[keep]), y[keep])
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def trimmed(batch, share=0.1):
    """Score by the gradient's norm, but last where the loss is among the highest tenth: wary of wrong labels."""
    scores = RANKINGS["gradient"](batch).clone()
    scores[keep_highest(batch.losses, share)] = -1
    return scores


def last_layer_again(model, y, batch):
    """Score by the rise of the loss when only the last layer is run again at theta + eps."""
    layer = [m for m in model.modules() if isinstance(m, torch.nn.Linear)][-1]
    with torch.no_grad():
        return F.cross_entropy(layer(batch.head.inputs), y, reduction="none") - batch.losses


def compared(model, x, y, rho, generator, seen_rise):
    """Return the samples that each ranking keeps, and the cosine of their gradient to the batch's."""
    weights = list(model.parameters())
    watch = HeadWatch(model)
    piece = Piece(lambda keep: F.cross_entropy(model(x[keep]), y[keep], reduction="none"))
    with frozen_statistics(model):
        losses, gradients = first_pass([piece], weights, list(range(len(weights))), None, model, GraphFaults(), watch)
        eps = l2_ascent(weights, list(gradients.values()), [rho] * len(weights))
        with perturbed(weights, eps):
            with torch.no_grad():
                perturbed_losses = piece.losses_again()
            batch = Candidates(losses, lambda: perturbed_losses, generator, watch.head())
            rankings = {
                **RANKINGS,
                "gradient, trimmed": trimmed,
                "last layer again": partial(last_layer_again, model, y),
                "last seen": lambda _: seen_rise,
                "lowest rise (B-)": lambda b: b.losses - perturbed_losses,
            }
            whole = gradient_of(model, x, y, slice(None))
            keeps = {name: keep_highest(ranking(batch), 0.5) for name, ranking in rankings.items()}
            cosines = {
                name: float(F.cosine_similarity(gradient_of(model, x, y, keep), whole, dim=0))
                for name, keep in keeps.items()
            }
    return keeps, cosines


def fidelity(seed, label_noise):
    """Return, for each epoch and ranking, the means over the batches."""
    config = Config(
        data="uoft-cs/cifar10", model="resnet8", method="esam", ranking="exact", choose="independent", rho=0.05,
        seed=seed, epochs=EPOCHS[-1], train_size=5_000, label_noise=label_noise,
    )  # fmt: skip
    device = torch.device("cpu")
    data = load_data(config.data, train_size=config.train_size, label_noise=label_noise)
    model = prepared_model(config, data, device)
    optimizer = build_optimizer(config, model)
    train, _, _ = batches_of(config, data, device, fastest_memory_format(model))
    last_seen = LastSeen(len(data.train))
    rows = (r for epoch in range(1, EPOCHS[-1] + 1) for r in train.order(epoch).split(config.batch_size))
    optimizer.ranking = last_seen.watch(optimizer.ranking, rows, optimizer.gamma)
    generator = torch.Generator().manual_seed(seed)
    found = {}

    def look(metrics):
        if metrics["epoch"] not in EPOCHS:
            return
        totals = defaultdict(lambda: {"found": 0.0, "cosine": 0.0, "wrong": 0.0})
        order = train.order(metrics["epoch"] + 1).split(config.batch_size)
        for (x, y), rows, _ in zip(train.epoch(metrics["epoch"] + 1), order, range(BATCHES), strict=False):
            keeps, cosines = compared(model, x, y, config.rho, generator, last_seen.rise[rows])
            true = set(keeps["exact"].tolist())
            for name, keep in keeps.items():
                row = totals[name]
                row["found"] += len(true.intersection(keep.tolist())) / len(true) / BATCHES
                row["cosine"] += cosines[name] / BATCHES
                if data.wrong is not None:
                    row["wrong"] += float(data.wrong[rows[keep]].double().mean()) / BATCHES
        found[metrics["epoch"]] = dict(totals)

    fit(model, optimizer, train, epochs=config.epochs, schedule=cosine, on_epoch=look)
    return found


def markdown(clean, noisy):
    """Return the table of the docs: means over seeds, from the first look to the last."""
    head = (
        "ranking",
        "forward passes",
        "share of B+ found",
        "cosine to the batch's gradient",
        "wrong labels kept, of 20 %",
    )
    lines = [f"| {' | '.join(head)} |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, price in clean["price"].items():

        def early_to_late(result, key, name=name):
            looks = [fmean(look[name][key]) for look in result["epochs"].values()]
            return f"{looks[0]:.2f} to {looks[-1]:.2f}"

        figures = (early_to_late(clean, "found"), early_to_late(clean, "cosine"), early_to_late(noisy, "wrong"))
        lines.append(f"| {name} | {price:g} | {' | '.join(figures)} |")
    return "\n".join(lines)


def main(label_noise, out):
    torch.set_num_threads(1)
    seeds = []
    for seed in (0, 1, 2):
        seeds.append(fidelity(seed, label_noise))
        names = list(seeds[0][EPOCHS[0]])
        result = {
            "what": "share of the true B+ found, cosine of the gradient to the whole batch's at theta + eps, share of "
            "wrong labels kept; ResNet-8, 5,000 images of CIFAR-10, batch 128, trained by ESAM (exact, independent)",
            "label_noise": label_noise,
            "n": {"seeds": len(seeds), "batches": BATCHES},
            "price": {name: PRICES.get(name, 0.0) for name in names},
            "epochs": {
                epoch: {
                    name: {key: [round(s[epoch][name][key], 4) for s in seeds] for key in ("found", "cosine", "wrong")}
                    for name in names
                }
                for epoch in EPOCHS
            },
            "environment": environment(),
        }
        print(json.dumps(result["epochs"], indent=1), flush=True)
        if out:
            write_atomically(out, (json.dumps(result, indent=1) + "\n").encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--label-noise", type=float, default=0.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    main(arguments.label_noise, arguments.out)
