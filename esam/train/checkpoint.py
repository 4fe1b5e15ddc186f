"""How does a run survive being killed, and what must a resumed run find again?"""

from __future__ import annotations

import copy
import io
import pickle
import warnings
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from esam.files import remove_unfinished, write_atomically
from esam.optim import SharpnessAware

from .distributed import Ranks, unwrapped
from .samples import generator_for

State = dict[str, Any]
DISTRUST = "it may run code when it is loaded, so it is not; take a checkpoint that esam has written"


class Checkpoint:
    """The newest complete state of a run in a folder, and the one before it.

    A state is written beside the old one and then takes its name, so a kill at any moment leaves a complete file.
    Nothing in its files can run code.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "checkpoint.pt"
        self.previous = self.folder / "checkpoint.previous.pt"
        self._damaged = False

    def save(self, state: State) -> None:
        """Write a state; the last one is kept, unless it was found damaged. On a full disk both stay as they were."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        remove_unfinished(self.path)
        write_atomically(self.path, buffer.getbuffer(), previous=None if self._damaged else self.previous)
        self._damaged = False

    def load(self) -> State | None:
        """Return the newest state that is whole, None if there is none; a damaged file is reported and left there."""
        paths = [path for path in (self.path, self.previous) if path.exists()]
        for path in paths:
            try:
                return _run_state(read_tensors(path), path)
            except ValueError as error:
                self._damaged |= path == self.path
                warnings.warn(f"{error}; going back to the checkpoint before it", stacklevel=2)
        if paths:
            raise ValueError(f"no checkpoint in {self.folder} can be read; delete the folder to start the run again")
        return None


def read_tensors(path: Path) -> State:
    """Return what torch has saved in a file by names; refuse one that fails its checksums, which torch does not read.

    Nothing in the file can run code.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if damaged := archive.testzip():
                raise ValueError(f"{damaged} fails its checksum")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch's own words advise to load it all the same
        raise ValueError(f"{path} cannot be read (it holds more than tensors and plain values: {DISTRUST})") from error
    except Exception as error:  # torch raises many kinds for a truncated or foreign file
        raise ValueError(f"{path} cannot be read ({error})") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} cannot be read (it holds a {type(state).__name__}, and nothing by names)")
    return state


def _run_state(state: State, path: Path) -> State:
    """Return a state if it is one that a run has saved: weights by name, and how far it had come."""
    progress = state.get("progress")
    epoch = progress.get("epoch") if isinstance(progress, dict) else None
    if not isinstance(state.get("model"), dict) or not isinstance(epoch, int):
        raise ValueError(f"{path} cannot be read (the weights of a run or its epoch are missing)")
    return state


@dataclass
class Progress:
    """How far a run has come; sums over the whole run."""

    epoch: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Processor time, of all ranks: steadier than the clock where the machine is shared."""
    images: int = 0
    forwards: float = 0.0
    """Forward passes, in passes over the training data."""
    backwards: float = 0.0
    best: float = 0.0
    """The best test accuracy so far."""
    diverged: bool = False
    """Whether the training loss ceased to be a finite number, which ends a run."""


@dataclass(frozen=True)
class Resumable:
    """The parts of a run that have a state: model, optimizer, scaler, and its random streams."""

    model: nn.Module
    optimizer: SharpnessAware
    scaler: GradScaler | None
    device: torch.device
    ranks: Ranks

    def _parts(self) -> dict[str, Any]:
        parts = {"model": unwrapped(self.model), "optimizer": self.optimizer, "scaler": self.scaler}
        return {name: part for name, part in parts.items() if part is not None}

    def save(self, checkpoint: Checkpoint, progress: Progress) -> None:
        """Write everything that going on bit for bit needs: one file, whatever the number of ranks."""
        random: dict[str, Any] = {"cpu": torch.get_rng_state()}
        if self.device.type != "cpu":
            random["device"] = torch.get_device_module(self.device).get_rng_state(self.device)
        of_ranks = self.ranks.all_of(random)
        if self.ranks.first:
            states = {name: part.state_dict() for name, part in self._parts().items()}
            if type(self.optimizer).evaluation_weights is not SharpnessAware.evaluation_weights:
                with self.optimizer.evaluation_weights():  # those to use are others than those that it trains
                    states["evaluated"] = copy.deepcopy(unwrapped(self.model).state_dict())
            checkpoint.save({**states, "progress": asdict(progress), "random": of_ranks})

    def load(self, checkpoint: Checkpoint | None) -> Progress:
        """Take everything back and return how far the run had come; a fresh start if nothing was saved.

        Rank 0 reads, and tells the others.
        """
        state = self.ranks.from_first(checkpoint.load() if checkpoint and self.ranks.first else None)
        if state is None or checkpoint is None:
            self._reseed_rank(0)
            return Progress()
        parts = self._parts()
        if absent := [name for name in parts if name not in state]:
            raise ValueError(
                f"{checkpoint.folder} was saved by a run without a {absent[0]}; resume with what that run had, or "
                "choose another folder"
            )
        try:
            progress = Progress(**state["progress"])
            for name, part in parts.items():
                part.load_state_dict(state[name])
            if self.ranks.rank >= len(state["random"]):
                self._reseed_rank(progress.epoch)
                return progress
            random = state["random"][self.ranks.rank]
            torch.set_rng_state(random["cpu"].cpu())
            if self.device.type != "cpu":
                torch.get_device_module(self.device).set_rng_state(random["device"].cpu(), self.device)
            return progress
        except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ValueError(
                f"the checkpoint in {checkpoint.folder} is not that of this run ({reason}); choose another folder, or "
                "delete it to start the run again"
            ) from error

    def _reseed_rank(self, epoch: int) -> None:
        """Give a rank but the first a random stream of its own: dropout must not drop the same on each."""
        if self.ranks.rank:
            torch.manual_seed(generator_for("rank", torch.initial_seed(), epoch, self.ranks.rank).initial_seed())
