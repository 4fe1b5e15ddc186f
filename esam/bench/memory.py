"""What does a contender's step need in memory? Measured in a fresh process."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

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
    return peak_of(partial(_step_of, bench, contender), device=bench.device, threads=bench.threads)


def _step_of(bench: Bench, contender: Contender) -> Callable[[], Any]:
    return prepared(bench, contender.build)[1]


def peak_of(make_step: Callable[[], Callable[[], Any]], *, device: str = "cpu", threads: int = 1) -> int:
    """Return the bytes that some steps need beyond what stands when their function is made, in a fresh process."""
    spawn = multiprocessing.get_context("spawn")
    with patch.dict(os.environ, ALLOCATOR), ProcessPoolExecutor(1, mp_context=spawn) as fresh:
        return fresh.submit(_peak_of_this_process, make_step, torch.device(device), threads).result()


def _peak_of_this_process(make_step: Callable[[], Callable[[], Any]], device: torch.device, threads: int) -> int:
    torch.set_num_threads(threads)
    step = make_step()
    cuda = device.type == "cuda"
    if not cuda:
        CLEAR.write_text("5")  # the high-water mark starts from here
    before = torch.cuda.memory_allocated(device) if cuda else _status("VmRSS")
    for _ in range(STEPS):
        step()
    return (torch.cuda.max_memory_allocated(device) if cuda else _status("VmHWM")) - before


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
