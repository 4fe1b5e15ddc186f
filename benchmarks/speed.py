"""What does a step cost, beside SAM's, SGD's and what others pay? All in one run, interleaved; memory apart.

    python benchmarks/speed.py resnet18 [--rounds 20] [--memory base sam slicesam] [--out results/speed]
    python benchmarks/speed.py vit-tiny --peers

Every method of the registry; or, with --peers, forms of ESAM and what others pay, beside ours. The latter needs
pytorch_optimizer for its SAM (the extra bench).
"""

import argparse
import json
from pathlib import Path

from peers import OTHER_PACKAGES, PEERS

from esam.bench.memory import peak_memory
from esam.bench.steps import Bench, bench_steps, contender, steps_sheet
from esam.files import write_atomically
from esam.optim import METHODS
from esam.report.sheets import as_text

FORMS = {f"{name}:mask=suffix": contender(name, {"mask": "suffix"}) for name in ("esam", "esam-swp")}
BESIDE_PEERS = ("base", "base-part", "sam", "asam", "looksam", "esam", "esam-swp", "esam-sds", "esam-random")


def main(bench, peers, memory, out):
    contenders = {name: contender(name) for name in (BESIDE_PEERS if peers else METHODS)}
    contenders |= {**FORMS, **OTHER_PACKAGES, **PEERS} if peers else {}
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{'peers-' if peers else ''}{bench.model}.json"
    result = bench_steps(bench, contenders)
    for name in memory:
        result["contenders"][name]["memory"] = peak_memory(bench, contenders[name])
    write_atomically(path, (json.dumps(result, indent=1) + "\n").encode())
    print(as_text(steps_sheet(result)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--peers", action="store_true", help="forms of ESAM and other people's steps")
    parser.add_argument("--memory", nargs="*", default=(), help="whose memory is measured too")
    parser.add_argument("--out", type=Path, default=Path("results/speed"))
    arguments = parser.parse_args()
    bench = Bench(model=arguments.model, rounds=arguments.rounds)
    main(bench, arguments.peers, arguments.memory, arguments.out)
