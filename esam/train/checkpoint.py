"""How does a run survive being killed?"""

from __future__ import annotations

import io
import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from esam.files import remove_unfinished, write_atomically

State = dict[str, Any]
DISTRUST = "it may run code when it is loaded, so it is not; take a checkpoint that esam has written"


class Checkpoint:
    """The newest complete state of a run in a folder, and the one before it.

    A state is written beside the old one and then takes its name, so a kill at any moment leaves a complete file.
    Files are read with ``weights_only``: nothing in them can run code.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "checkpoint.pt"
        self.previous = self.folder / "checkpoint.previous.pt"

    def save(self, state: State) -> None:
        """Write a state; the last one is kept as the previous one. On a full disk both stay as they were."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(self.path)
        write_atomically(self.path, buffer.getbuffer(), previous=self.previous)

    def load(self, device: torch.device | str = "cpu") -> State | None:
        """Return the newest state that is whole, None if there is none; a damaged file is reported and left there."""
        there = [path for path in (self.path, self.previous) if path.exists()]
        for path in there:
            try:
                return read_state(path, device)
            except ValueError as error:
                warnings.warn(f"{error}; going back to the checkpoint before it", stacklevel=2)
        if there:
            raise ValueError(f"no checkpoint in {self.folder} can be read; delete the folder to start the run again")
        return None

    def set_damaged_aside(self) -> None:
        """Rename the newest file if it is damaged: the next save would else put it in the place of the good one."""
        if self.path.exists():
            try:
                read_state(self.path)
            except ValueError:
                os.replace(self.path, self.path.with_suffix(".damaged"))


def read_state(path: Path, device: torch.device | str = "cpu") -> State:
    """Return the state in a checkpoint file; refuse one that fails its own checksums, which torch does not read."""
    try:
        with zipfile.ZipFile(path) as archive:
            if damaged := archive.testzip():
                raise ValueError(f"{damaged} fails its checksum")
        state = torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:  # torch's own words advise to load it all the same
        raise ValueError(f"{path} cannot be read (it holds more than tensors and plain values: {DISTRUST})") from error
    except Exception as error:  # torch raises many kinds for a truncated or foreign file
        raise ValueError(f"{path} cannot be read ({error})") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} cannot be read (it holds a {type(state).__name__}, not the state of a run)")
    return state


def run_state(state: State, where: Path) -> State:
    """Return a state if it is one that a run has saved: weights by name, and how far it had come."""
    progress = state.get("progress")
    epoch = progress.get("epoch") if isinstance(progress, dict) else None
    if not isinstance(state.get("model"), dict) or not isinstance(epoch, int):
        raise ValueError(
            f"{where} holds no checkpoint of esam: the weights or the epoch are missing; give the folder of a run, or "
            "delete it to start the run again"
        )
    return state
