"""What does a step cost, beside SAM's, SGD's and what others pay? All in one run, interleaved; memory apart.

    python benchmarks/speed.py resnet18 [--rounds 20] [--out results/speed]
    python benchmarks/speed.py vit-tiny

Needs pytorch_optimizer for its SAM (the extra bench).
"""

import argparse
import json
from pathlib import Path

from peers import PEERS

from esam.bench.config import Bench
from esam.bench.contenders import CONTENDERS
from esam.bench.memory import peak_memory
from esam.bench.steps import bench_steps, steps_sheet
from esam.files import write_atomically
from esam.report.sheets import as_text

TIMED = ("sgd", "sam", "esam", "esam-exact", "esam-one-forward", "esam-paper", "esam-independent", "esam-swp",
         "esam-swp-independent", "esam-sds", "pytorch_optimizer")  # fmt: skip


def headline(results):
    """Return the table that opens the docs: who is how many times as fast as whom, by the totals."""

    def faster(result, name, other="sam"):
        rows = result["contenders"]
        return rows[other]["time / sam"]["of totals"] / rows[name]["time / sam"]["of totals"]

    lines = {
        "ESAM, against SAM": lambda r: faster(r, "esam"),
        "ESAM, against SGD": lambda r: faster(r, "esam", "sgd"),
        "ESAM with the exact ranking, against SAM": lambda r: faster(r, "esam-exact"),
        "the same with `one_forward=True`": lambda r: faster(r, "esam-one-forward"),
        "ESAM in the paper's form, against SAM": lambda r: faster(r, "esam-paper"),
        "ESAM as released, against SAM": lambda r: faster(r, "esam, as released"),
        "ESAM-SWP, against SAM": lambda r: faster(r, "esam-swp"),
        "ESAM-SWP as released, against SAM": lambda r: faster(r, "esam-swp, as released"),
        "SAM, against the two-step pattern": lambda r: faster(r, "sam", "sam, two-step pattern"),
        "SAM, against pytorch_optimizer's": lambda r: faster(r, "sam", "pytorch_optimizer"),
    }
    table = [f"| times as fast | {' | '.join(results)} |", f"| --- |{' ---: |' * len(results)}"]
    table += [f"| {n} | {' | '.join(f'{line(r):.2f}' for r in results.values())} |" for n, line in lines.items()]
    return "\n".join(table)


def main(bench, out):
    contenders = {**{name: CONTENDERS[name] for name in TIMED}, **PEERS}
    out.mkdir(parents=True, exist_ok=True)
    result = bench_steps(bench, contenders, on_round=lambda n: print(f"round {n} of {bench.rounds}", flush=True))
    write_atomically(out / f"{bench.model}.json", (json.dumps(result, indent=1) + "\n").encode())
    for name, row in result["contenders"].items():
        row["memory"] = peak_memory(bench, contenders[name])
    write_atomically(out / f"{bench.model}.json", (json.dumps(result, indent=1) + "\n").encode())
    print(as_text(steps_sheet(result)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("results/speed"))
    arguments = parser.parse_args()
    main(Bench(model=arguments.model, rounds=arguments.rounds), arguments.out)
