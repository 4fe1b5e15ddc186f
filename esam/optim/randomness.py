"""Which random numbers does a later pass see?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

RandomState = list[tuple[torch.device, Tensor]]


def random_state(devices: Iterable[torch.device]) -> RandomState:
    """Return the state of torch's global generators: the CPU's and those of the accelerators ``devices``."""
    state: RandomState = [(torch.device("cpu"), torch.get_rng_state())]
    return state + [(d, torch.get_device_module(d).get_rng_state(d)) for d in devices]


def set_random_state(state: RandomState) -> None:
    """Put the generators back to a state that ``random_state`` returned."""
    for device, value in state:
        if device.type == "cpu":
            torch.set_rng_state(value)
        else:
            torch.get_device_module(device).set_rng_state(value, device)


@contextmanager
def replayed(state: RandomState) -> Iterator[None]:
    """Draw the same random numbers again (dropout masks), then go on where the stream was."""
    now = random_state(device for device, _ in state if device.type != "cpu")
    try:
        set_random_state(state)
        yield
    finally:
        set_random_state(now)
