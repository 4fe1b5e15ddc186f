"""What does a contender's step need in memory? Measured in a fresh process."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from esam.train.build import chosen_device

from .steps import Bench, Contender, prepared

STEPS = 5
CLEAR = Path("/proc/self/clear_refs")
"""Where Linux takes the word that the high-water mark of memory starts anew."""


# glibc keeps freed memory in pieces, and how much of it is chance: make it give every larger piece back at once
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def check_measurable(bench: Bench) -> None:
    """Refuse, before anything is timed, to measure memory where nothing tells it."""
    if chosen_device(bench.device).type != "cuda" and not CLEAR.exists():
        raise ValueError("memory is measured on Linux and CUDA only; leave it out: --no-memory")


def peak_memory(bench: Bench, contender: Contender) -> int:
    """Return the bytes that some steps need beyond the model and the batch, in a fresh process."""
    with _environment(ALLOCATOR), ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(_peak_of_this_process, bench, contender).result()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes started inside this block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _peak_of_this_process(bench: Bench, contender: Contender) -> int:
    torch.set_num_threads(bench.threads)
    _, step = prepared(bench, contender.build)
    device = torch.device(bench.device)
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        for _ in range(STEPS):
            step()
        return int(torch.cuda.max_memory_allocated(device)) - before
    CLEAR.write_text("5")  # the high-water mark starts from here
    before = _status("VmRSS")
    for _ in range(STEPS):
        step()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise ValueError(f"this system does not tell {field}; memory is measured on Linux and CUDA only")
