"""What must a resumed run find again?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from .checkpoint import Checkpoint, State, run_state
from .data.draws import generator_for
from .ranks import Ranks
from .spread import load_whole_state, whole_state


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


class Resumable:
    """The parts of a run that have a state: model, optimizer, scaler, scheduler, and its random streams."""

    def __init__(self, parts: dict[str, Any], loader: object, device: torch.device, ranks: Ranks) -> None:
        self.parts = {name: part for name, part in parts.items() if hasattr(part, "state_dict")}
        self.device, self.ranks = device, ranks
        # a DataLoader and its sampler may draw from generators of their own instead of the global one
        owners = (loader, getattr(loader, "sampler", None))
        found = [getattr(owner, "generator", None) for owner in owners]
        self.generators = [generator for generator in found if isinstance(generator, torch.Generator)]

    def save(self, checkpoint: Checkpoint, progress: Progress) -> None:
        """Write everything that going on bit for bit needs: one file, whatever the number of ranks and shards."""
        random: dict[str, Any] = {"cpu": torch.get_rng_state(), "loader": [g.get_state() for g in self.generators]}
        if self.device.type != "cpu":
            random["device"] = torch.get_device_module(self.device).get_rng_state(self.device)
        of_ranks = self.ranks.all_of(random)
        first = self.ranks.first
        states = {name: whole_state(part, keep=first) for name, part in self.parts.items()}
        if first:
            others = {"random_of_ranks": of_ranks} if self.ranks.several else {}
            checkpoint.save({**states, "progress": asdict(progress), "random": random, **others})

    def load(self, checkpoint: Checkpoint | None) -> Progress:
        """Take everything back and return how far the run had come; a fresh start if nothing was saved.

        Rank 0 reads, and tells the others.
        """
        reads = checkpoint is not None and self.ranks.first
        state = self.ranks.state_from_first(checkpoint.load(self.device) if checkpoint and reads else None)
        if state is None or checkpoint is None:
            self._draw_apart(0)
            return Progress()
        if reads:
            checkpoint.set_damaged_aside()
        for name in self.parts:
            if name not in state:
                raise ValueError(
                    f"{checkpoint.folder} was saved by a run without a {name}; resume with what that run had, or "
                    "choose another folder"
                )
        run_state(state, checkpoint.folder)
        try:
            return self._taken_back(state)
        except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            told = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ValueError(
                f"the checkpoint in {checkpoint.folder} is not that of this run ({told}); choose another folder, or "
                "delete it to start the run again"
            ) from error

    def _taken_back(self, state: State) -> Progress:
        progress = Progress(**state["progress"])
        for name, part in self.parts.items():
            load_whole_state(part, state[name])
        of_ranks = state.get("random_of_ranks", [state["random"]])
        if self.ranks.rank < len(of_ranks):
            self._set_random(of_ranks[self.ranks.rank])
        else:
            self._draw_apart(progress.epoch)
        return progress

    def _set_random(self, random: dict[str, Any]) -> None:
        torch.set_rng_state(random["cpu"].cpu())
        if self.device.type != "cpu":
            torch.get_device_module(self.device).set_rng_state(random["device"].cpu(), self.device)
        for generator, value in zip(self.generators, random.get("loader", []), strict=False):
            generator.set_state(value.cpu())

    def _draw_apart(self, epoch: int) -> None:
        """Give a rank but the first a random stream of its own: dropout must not drop the same on each."""
        if self.ranks.rank:
            torch.manual_seed(generator_for("rank", torch.initial_seed(), epoch, self.ranks.rank).initial_seed())
