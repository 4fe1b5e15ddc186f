"""How do runs get done on a Ray cluster? Each is a task, in a process of its own on some node.

Every node must see the runs' folders, by a shared file system; so a run whose node is lost resumes on another.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esam.files import write_atomically

from .plan import PlannedRun
from .pool import Executor, Processes, StartedRun
from .worker import carry_out

RETRIES = 5
"""How often a run is started again when its node is lost; a run that fails by itself is not."""
LOCK_NAME, TOKEN_NAME = ".lock", ".cluster"
LOCK_PATIENCE = 120.0
"""Seconds that a run which is started again waits for the lost node's process to release the folder."""
ANSWER = 10.0
"""Seconds within which a cluster must answer."""
SHARED_VARIABLES = ("ESAM_", "HF_", "PYTHONPATH")
"""Environment variables that name folders, which are the same on every node."""


@dataclass(frozen=True)
class ClusterOptions:
    """Where a command's runs are done: options of every command with many runs."""

    cluster: str = ""
    """Do the runs on a Ray cluster: `ray` (that of RAY_ADDRESS, else one started on this machine), or its address, as
    in ray://host:10001 or host:6379. All nodes must share the output folder. Not given: processes on this machine."""
    cpus_per_run: float = 1.0
    """CPUs for each run on a cluster."""
    gpus_per_run: float = 0.0
    """GPUs for each run on a cluster; 0.5 lets two runs share one."""

    @contextlib.contextmanager
    def executor(self, jobs: int, *, reuse: bool = False) -> Iterator[Executor]:
        """Give the executor inside the block: ``jobs`` processes on this machine, or the cluster."""
        here = Processes(jobs, reuse=reuse)  # checks the number, whatever is used
        if not self.cluster:
            with here:
                yield here
            return
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError("--cluster gives each run a node, and torchrun gives each run all ranks; use one of them")
        if self.cpus_per_run < 0 or self.gpus_per_run < 0:
            raise ValueError(
                f"cpus_per_run and gpus_per_run must be 0 or more, got {self.cpus_per_run:g} and {self.gpus_per_run:g}"
            )
        with connected(self.cluster):
            yield RayCluster(cpus=self.cpus_per_run, gpus=self.gpus_per_run)


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to a Ray cluster inside the block, by its address; ``ray``: that of RAY_ADDRESS, or one started here."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ImportError("--cluster needs Ray; run: pip install torch-esam[cluster]") from error
    where = os.environ.get("RAY_ADDRESS", "local") if address == "ray" else address
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if where == "local":
        options["include_dashboard"] = False
    try:
        host, _, port = where.rpartition(":")
        if port.isdigit() and "//" not in host:  # Ray itself would try for many minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()
        try:
            ray.init(address=where, **options)
        except ConnectionAbortedError:  # a busy head has not started this client's server in time
            ray.shutdown()
            ray.init(address=where, **options)
    except (OSError, ray.exceptions.RayError) as error:
        raise ValueError(
            f"no Ray cluster answers at {where} (--cluster): {str(error).splitlines()[0]}; start one with ray start "
            "--head, or write --cluster ray for one on this machine"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


class RayCluster:
    """The Ray cluster that this process is connected to; each run gets so many CPUs and GPUs."""

    at_once = sys.maxsize  # Ray keeps the queue

    def __init__(self, *, cpus: float = 1, gpus: float = 0) -> None:
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
            raise ValueError(
                f"no node of the cluster has {cpus:g} CPUs and {gpus:g} GPUs for a run; ask for fewer "
                "(--cpus-per-run, --gpus-per-run), or add such a node"
            )
        resources = {"num_cpus": cpus, "num_gpus": gpus}
        self.ray, self._task = ray, ray.remote(**resources, max_retries=RETRIES, max_calls=1)(run_on_node)

    def start(self, run: PlannedRun) -> StartedRun:
        """Hand a run to the cluster."""
        run.prepare()
        folder = run.folder.absolute()
        token = folder / TOKEN_NAME
        if not token.exists():
            write_atomically(token, secrets.token_hex(8).encode())
        environment = {k: v for k, v in os.environ.items() if k.startswith(SHARED_VARIABLES)}
        task = self._task.options(name=str(folder))  # for whoever reads `ps`
        return _RayRun(self.ray, task.remote(run.worker, folder, token.read_text(), environment, os.getcwd()))


@dataclass
class _RayRun:
    ray: Any
    task: Any

    def poll(self) -> str | None:
        ready, _ = self.ray.wait([self.task], timeout=0)
        if not ready:
            return None
        try:
            return str(self.ray.get(self.task))
        except self.ray.exceptions.RayError as error:
            return f"lost {RETRIES + 1} times with its node, or ended by Ray: {str(error).splitlines()[0]}"

    def end(self) -> None:
        self.ray.cancel(self.task, force=True)
        self.ray.wait([self.task], timeout=LOCK_PATIENCE)


def run_on_node(module: str, folder: Path, token: str, environment: Mapping[str, str], cwd: str) -> str:
    """Do a run in this process, one of Ray's on a node; return what went wrong."""
    seen = folder / TOKEN_NAME
    if not seen.is_file() or seen.read_text() != token:
        return (
            f"the node {socket.gethostname()} does not see the folder {folder}; put --out on a file system that "
            "all nodes of the cluster share"
        )
    from filelock import FileLock, Timeout

    with contextlib.suppress(Timeout):  # then the run itself says that the folder is in use
        FileLock(folder / LOCK_NAME, timeout=LOCK_PATIENCE).acquire().lock.release()
    os.environ.update(environment)
    with contextlib.suppress(OSError):  # a node may have no such folder, and a run no need of it
        os.chdir(cwd)
    sys.path[:0] = [cwd, *environment.get("PYTHONPATH", "").split(os.pathsep)]
    return carry_out(module, folder)
