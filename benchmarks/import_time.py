"""How long does one wait for `esam --help`, and for the optimizers after torch?

    python benchmarks/import_time.py [--out results/import_time.json]

CPU time of fresh processes. `import esam; esam.ESAM` and `import torch` are started in turn, and the difference is
taken pair by pair; timed inside one process it is steadier, and stands beside it.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from esam.train.record import environment

HELPS, PAIRS, INSIDE = 9, 15, 9
CLOCKED = "import time, torch; t = time.process_time(); import esam; esam.ESAM; print(1e3 * (time.process_time() - t))"
LIMITS = {"help s": 0.5, "optimizers ms": 50}


def cpu_seconds(*arguments: str) -> float:
    """Run Python with these arguments; return the processor time that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def told(values: list[float]) -> dict[str, object]:
    return {"n": len(values), "median": statistics.median(values), "interval min-max": [min(values), max(values)]}


def measure() -> dict[str, object]:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch_alone, with_esam = ["-c", "import torch"], ["-c", "import esam; esam.ESAM"]
    for arguments in (
        ["-m", "esam", "--help"],
        torch_alone,
        with_esam,
    ):  # the files into memory, the bytecode on disk
        cpu_seconds(*arguments)
    helps = [cpu_seconds("-m", "esam", "--help") for _ in range(HELPS)]
    differences = [1e3 * (cpu_seconds(*with_esam) - cpu_seconds(*torch_alone)) for _ in range(PAIRS)]
    inside = [
        float(subprocess.run([sys.executable, "-c", CLOCKED], check=True, capture_output=True, text=True).stdout)
        for _ in range(INSIDE)
    ]
    medians = {"help s": statistics.median(helps), "optimizers ms": statistics.median(differences)}
    return {
        "what": "CPU time of a fresh process",
        "esam --help, s": told(helps),
        "import esam; esam.ESAM minus import torch, ms": told(differences),
        "import esam; esam.ESAM after import torch in the same process, ms": told(inside),
        "limits": LIMITS,
        "kept": all(medians[name] <= limit for name, limit in LIMITS.items()),
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
