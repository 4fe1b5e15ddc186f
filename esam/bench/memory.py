"""What does a contender's step need in memory? A process of its own: ``python -m esam.bench.memory BENCH NAME``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from .config import Bench
from .contenders import contender
from .steps import prepared

STEPS = 3


def main(bench: Bench, name: str) -> int:
    """Take some steps and return the highest memory beyond what stood before them, in bytes."""
    torch.set_num_threads(bench.threads)
    _, step = prepared(bench, contender(name).build)
    device = torch.device(bench.device)
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        for _ in range(STEPS):
            step()
        return int(torch.cuda.max_memory_allocated(device)) - before
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts from here
    before = _status("VmRSS")
    for _ in range(STEPS):
        step()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise ValueError(f"this system does not tell {field}; memory is measured on Linux and CUDA only")


if __name__ == "__main__":
    print(main(Bench(**json.loads(sys.argv[1])), sys.argv[2]))
