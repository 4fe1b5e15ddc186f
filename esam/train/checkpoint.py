"""How does a run survive being killed?"""

from __future__ import annotations

import errno
import io
import os
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch


class Checkpoint:
    """The newest complete state of a run in a folder, and the one before it.

    A state is written beside the old one and then takes its name, so a kill at any moment leaves a complete file.
    Files are read with ``weights_only``: nothing in them can run code.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "checkpoint.pt"
        self.previous = self.folder / "checkpoint.previous.pt"

    def save(self, state: dict[str, Any]) -> None:
        """Write a state; the last one is kept as the previous one. On a full disk both stay as they were."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        self.folder.mkdir(parents=True, exist_ok=True)
        written = self.folder / "checkpoint.new.pt"
        try:
            with written.open("wb") as file:
                file.write(buffer.getbuffer())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            written.unlink(missing_ok=True)
            if error.errno == errno.ENOSPC:
                raise OSError(
                    error.errno,
                    f"the disk is full; the last good checkpoint is kept, free some space and resume: {self.path}",
                ) from error
            raise
        if self.path.exists():
            os.replace(self.path, self.previous)
        os.replace(written, self.path)

    def load(self, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """Return the newest state that is whole, None if there is none; a damaged file is reported and set aside."""
        damaged = []
        for path in filter(Path.exists, (self.path, self.previous)):
            try:
                _check_sums(path)
                state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
            except Exception as error:  # torch raises many kinds for a truncated or foreign file
                warnings.warn(f"{path} cannot be read ({error}); going back to the checkpoint before it", stacklevel=2)
                damaged.append(path)
                continue
            for broken in damaged:  # left there, the next save would put it in the place of the good one
                os.replace(broken, broken.with_suffix(".damaged"))
            return state
        if damaged:
            raise ValueError(f"no checkpoint in {self.folder} can be read; delete the folder to start the run again")
        return None


def _check_sums(path: Path) -> None:
    """Compare the file with its own checksums, which torch writes but does not read."""
    with zipfile.ZipFile(path) as archive:
        if damaged := archive.testzip():
            raise ValueError(f"{damaged} fails its checksum")
