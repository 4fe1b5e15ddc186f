"""What does SWP save of SAM's step? The paper's toy: MLPs of N equal layers, g(N, beta), both ways to draw.

    python benchmarks/toy_mlp.py [--rounds 40] [--out results/toy_mlp.json]

The savings of whole steps, base optimizer included, by processor time, interleaved. A suffix costs what its depth
decides, so its draws are spread evenly over their distribution instead of being left to chance.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import fmean, stdev

import torch
from torch import nn

from esam import ESAM, SAM
from esam.bench.contenders import EvenSuffix
from esam.files import write_atomically
from esam.paper.items.swp_savings import PAPER_SAVINGS
from esam.train.environment import environment

LAYERS = (50, 75, 100, 125)
BETAS = (0.1, 0.3, 0.5, 0.7, 0.9)
PAPER = PAPER_SAVINGS["serial"]


def steppers(depth, width, batch):
    """Return one step of each contender by name."""
    x = torch.randn(batch, width)
    steps = {}

    def add(name, build):
        torch.manual_seed(0)
        model = nn.Sequential(*(m for _ in range(depth) for m in (nn.Linear(width, width, bias=False), nn.ReLU())))
        for weight in model.parameters():
            nn.init.kaiming_normal_(weight)  # torch's own fades with depth, into numbers that a CPU is slow with
        optimizer = build(torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9), model)
        steps[name] = lambda: optimizer.step(lambda keep: model(x[keep]).square().mean(1))
        steps[name]()  # knows the norms of all tensors, and is warm
        return optimizer

    add("sam", SAM)
    for beta in BETAS:
        add(("independent", beta), lambda base, m, b=beta: ESAM(base, m, beta=b, gamma=1, mask="independent", seed=0))
        suffix = add(("suffix", beta), lambda base, m, b=beta: ESAM(base, m, beta=b, gamma=1, mask="suffix", seed=0))
        suffix.draw_mask = EvenSuffix()
    return steps


def savings(depth, width, batch, rounds):
    """Return, for each draw and beta, the percentage of SAM's time that is saved, and its standard error."""
    steps = steppers(depth, width, batch)
    times = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.process_time()
            step()
            times[name].append(time.process_time() - start)
    sam = times.pop("sam")
    found = {"independent": {}, "suffix": {}}
    for (mask, beta), own in times.items():
        saved = [100 * (1 - a / b) for a, b in zip(own, sam, strict=True)]
        of_totals = 100 * (1 - sum(own) / sum(sam))
        found[mask][beta] = {"saved": round(of_totals, 2), "mean": round(fmean(saved), 2),
                               "error": round(stdev(saved) / rounds**0.5, 2)}  # fmt: skip
    return found


def markdown(result):
    """Return the table of the docs: per cent saved, with the standard error over rounds; the paper's beside it."""
    lines = ["| N | beta | the paper | independent | suffix |", "| ---: | ---: | ---: | ---: | ---: |"]
    for depth, found in result["layers"].items():
        for beta in map(str, BETAS):
            paper = result["paper"][str(depth)].get(beta)
            cells = [
                f"{found[c][beta]['saved']:.1f} ± {found[c][beta]['error']:.1f}" for c in ("independent", "suffix")
            ]
            lines.append(f"| {depth} | {beta} | {paper or ''} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(width, batch, rounds, out):
    torch.set_num_threads(1)
    result = {
        "what": "per cent of the time of SAM's whole step that SWP saves, MLPs of N layers, one tensor a layer",
        "width": width, "batch": batch, "n": rounds, "paper": PAPER, "layers": {}, "environment": environment(),
    }  # fmt: skip
    for depth in LAYERS:
        result["layers"][depth] = savings(depth, width, batch, rounds)
        print(depth, json.dumps(result["layers"][depth]), flush=True)
    if out:
        write_atomically(out, (json.dumps(result, indent=1) + "\n").encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    main(arguments.width, arguments.batch, arguments.rounds, arguments.out)
