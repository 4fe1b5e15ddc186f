"""What does a contender's step need in memory? A process of its own tells."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from .config import Bench
from .contenders import Contender
from .steps import prepared

STEPS = 5


def peak_memory(bench: Bench, contender: Contender) -> int:
    """Return the bytes that some steps need beyond the model and the batch, in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(_peak_of_this_process, bench, contender).result()


def _peak_of_this_process(bench: Bench, contender: Contender) -> int:
    torch.set_num_threads(bench.threads)
    _, step = prepared(bench, contender.build)
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
