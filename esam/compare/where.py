"""Where are a command's runs done: on this machine, or on a cluster?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .launch import Place, Processes


@dataclass(frozen=True)
class Where:
    """Options that every command with many runs has."""

    cluster: str = ""
    """Do the runs on a Ray cluster: `ray` (that of RAY_ADDRESS, else one started on this machine), or its address, as
    in ray://host:10001 or host:6379. Not given: processes on this machine, without Ray."""
    cpus_per_run: float = 1.0
    """CPUs that a run on a cluster has to itself."""
    gpus_per_run: float = 0.0
    """GPUs that a run on a cluster has to itself; a part of one can be shared."""

    @contextmanager
    def place(self, jobs: int) -> Iterator[Place]:
        """Give the place inside the block; ``jobs`` is how many runs go on at a time on this machine."""
        here = Processes(jobs)  # refuses a number that cannot be, whatever the place
        if not self.cluster:
            yield here
            return
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError(
                "--cluster gives each run a node, and torchrun all ranks to each run; leave one of them out"
            )
        if self.cpus_per_run < 0 or self.gpus_per_run < 0:
            raise ValueError(
                f"cpus_per_run and gpus_per_run must be 0 or more, got {self.cpus_per_run:g} and {self.gpus_per_run:g}"
            )
        from .cluster import RayCluster, connected

        with connected(self.cluster):
            yield RayCluster(cpus=self.cpus_per_run, gpus=self.gpus_per_run)
