"""How do runs get done on a Ray cluster? Each is a task, in a process of its own on some node.

Every node must see the runs' folders, by a shared file system; so a run whose node is lost resumes on another.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .plan import CONFIG_NAME, Job, PlannedRun, write_order
from .worker import carry_out

RETRIES = 5
"""How often a run is started again when its node is lost; a run that fails by itself is not."""
LOCK_NAME = ".lock"
LOCK_PATIENCE = 120.0
"""Seconds that a run which is started again waits for the lost node's process to release the folder."""
ANSWER = 10.0
"""Seconds within which a cluster must answer."""
SHARED_VARIABLES = ("ESAM_", "HF_", "PYTHONPATH")
"""Environment variables that name folders, which are the same on every node."""


@contextlib.contextmanager
def ray_cluster(address: str, *, cpus: float = 1, gpus: float = 0) -> Iterator[RayCluster]:
    """Give a Ray cluster that does runs, inside the block; each run gets so many CPUs and GPUs.

    The address may be ``ray``: the cluster of RAY_ADDRESS, or one that is started on this machine.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ImportError("--cluster needs Ray; run: pip install torch-esam[cluster]") from error
    if cpus < 0 or gpus < 0:
        raise ValueError(f"cpus_per_run and gpus_per_run must be 0 or more, got {cpus:g} and {gpus:g}")
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
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
            raise ValueError(
                f"no node of the cluster has {cpus:g} CPUs and {gpus:g} GPUs for a run; ask for fewer "
                "(--cpus-per-run, --gpus-per-run), or add such a node"
            )
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES, max_calls=1)(run_on_node)
        yield RayCluster(ray, task)
    finally:
        ray.shutdown()


@dataclass
class RayCluster:
    """Does runs on the Ray cluster that this process is connected to."""

    ray: Any
    task: Any
    at_once = sys.maxsize  # Ray keeps the queue

    def start(self, run: PlannedRun | Job) -> RayRun:
        """Hand a run to the cluster."""
        write_order(run)
        folder = run.folder.absolute()
        environment = {k: v for k, v in os.environ.items() if k.startswith(SHARED_VARIABLES)}
        task = self.task.options(name=str(folder))  # for whoever reads `ps`
        written = (folder / CONFIG_NAME).read_text()
        return RayRun(self.ray, task.remote(run.worker, folder, written, environment, os.getcwd()))


@dataclass
class RayRun:
    """A run on the cluster."""

    ray: Any
    task: Any

    def poll(self) -> str | None:
        """Return None while the run goes on; then what went wrong, "" if nothing did."""
        ready, _ = self.ray.wait([self.task], timeout=0)
        if not ready:
            return None
        try:
            return str(self.ray.get(self.task))
        except self.ray.exceptions.RayError as error:
            return f"lost {RETRIES + 1} times with its node, or ended by Ray: {str(error).splitlines()[0]}"

    def end(self) -> None:
        """End the run, whatever it is doing; return when it has ended."""
        self.ray.cancel(self.task, force=True)
        self.ray.wait([self.task], timeout=LOCK_PATIENCE)


def run_on_node(module: str, folder: Path, written: str, environment: Mapping[str, str], cwd: str) -> str:
    """Do a run in this process, one of Ray's on a node; return what went wrong."""
    seen = folder / CONFIG_NAME
    if not seen.is_file() or seen.read_text() != written:
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
