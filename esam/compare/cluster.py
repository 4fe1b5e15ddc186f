"""How do runs get done on a Ray cluster? Each is a task that starts the run's own process on some node.

Where a node sees the run's folder (a shared file system, or the same machine), the run writes there, and one that is
tried again resumes. Elsewhere it works in a folder of the node; its record is sent as it grows, its files at the end.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esam.files import write_atomically
from esam.train.config import Config
from esam.train.record import RECORD_NAME

from .launch import StartedRun, complaint_of, start_process
from .plan import PlannedRun

RETRIES = 5
"""How often a run is started again when its node is lost; a run that fails by itself is not."""
LOCK_NAME, TOKEN_NAME = ".lock", ".cluster"
LOCK_PATIENCE = 120.0
"""Seconds that a run which is tried again waits for the process of the lost node to let go of the folder."""
POLL = 0.2
ANSWER = 10.0
"""Seconds within which a cluster must answer."""
SHARED_VARIABLES = ("ESAM_", "HF_", "PYTHONPATH")
"""Variables that name places, and mean the same where the files are the same."""


@dataclass(frozen=True)
class Work:
    """A run as it is sent to a node."""

    folder: str
    config: Mapping[str, Any]
    worker: str
    files: Mapping[str, bytes]
    """What the run's folder holds already, for a node that does not see it."""
    token: str
    """Stands in a file of the folder: a node that reads it there sees the same folder."""
    environment: Mapping[str, str]
    cwd: str


@dataclass(frozen=True)
class Done:
    """What comes back from a node: what went wrong, if anything, and the files that it does not share."""

    complaint: str
    files: Mapping[str, bytes]


class RayCluster:
    """A Ray cluster as a place for runs; each has so many CPUs and GPUs to itself."""

    at_once = sys.maxsize  # Ray keeps the queue

    def __init__(self, *, cpus: float = 1, gpus: float = 0, shared: bool | None = None) -> None:
        """Use the cluster that this process is connected to; ``shared`` tells whether nodes see the folders here.

        None: each node finds out by itself.
        """
        import ray

        fits = [node for node in ray.nodes() if node["Alive"] and _has(node["Resources"], cpus, gpus)]
        if not fits:
            raise ValueError(
                f"no node of the cluster has {cpus:g} CPUs and {gpus:g} GPUs for a run; ask for fewer "
                "(--cpus-per-run, --gpus-per-run), or add such a node"
            )
        self._ray, self._shared = ray, shared
        self._mailbox = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_Mailbox).remote()
        self._task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES)(do)
        self._news = self._mailbox.take.remote()
        self._going: set[str] = set()

    def start(self, run: PlannedRun) -> StartedRun:
        """Hand a run to the cluster."""
        run.prepare()
        token = secrets.token_hex(8)
        if self._shared is not False:
            write_atomically(run.folder / TOKEN_NAME, token.encode())
        work = Work(
            folder=str(run.folder.absolute()),
            config=run.config.as_json(),
            worker=run.worker,
            files=files_of(run.folder),
            token=token,
            environment={k: v for k, v in os.environ.items() if k.startswith(SHARED_VARIABLES)},
            cwd=os.getcwd(),
        )
        self._going.add(work.folder)
        return _Task(self, run, self._task.remote(work, self._mailbox))

    def ended(self, task: Any) -> Done | None:
        """Return what a task came to; None while it goes on. Records that were sent meanwhile are written here."""
        self._take_news()
        ready, _ = self._ray.wait([task], timeout=0)
        if not ready:
            return None
        try:
            done: Done = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            return Done(f"lost {RETRIES + 1} times with its node, or ended by Ray: {str(error).splitlines()[0]}", {})
        return done

    def close(self, run: PlannedRun) -> None:
        """Take no more news of a run: what comes late is older than its end."""
        self._going.discard(str(run.folder.absolute()))
        (run.folder / TOKEN_NAME).unlink(missing_ok=True)

    def cancel(self, task: Any) -> None:
        """End a task, and with it the process of its run."""
        self._ray.cancel(task, force=True)

    def wait(self, task: Any) -> None:
        """Return when a task that was cancelled has ended."""
        self._ray.wait([task], timeout=LOCK_PATIENCE)

    def _take_news(self) -> None:
        ready, _ = self._ray.wait([self._news], timeout=0)
        if ready:
            with contextlib.suppress(self._ray.exceptions.RayError):  # its node was lost; the next news are whole
                news = self._ray.get(self._news)
                for folder, record in ((folder, news[folder]) for folder in news if folder in self._going):
                    write_atomically(Path(folder) / RECORD_NAME, record)
            self._news = self._mailbox.take.remote()


class _Task:
    def __init__(self, cluster: RayCluster, run: PlannedRun, task: Any) -> None:
        self._cluster, self._run, self._task = cluster, run, task

    def look(self) -> str | None:
        done = self._cluster.ended(self._task)
        if done is None:
            return None
        for name, data in done.files.items():
            write_atomically(self._run.folder / Path(name).name, data)
        self._cluster.close(self._run)
        return done.complaint

    def stop(self) -> None:
        self._cluster.cancel(self._task)

    def wait(self) -> None:
        self._cluster.wait(self._task)
        self._cluster.close(self._run)


class _Mailbox:
    """Holds the newest records of runs whose folders their nodes do not see."""

    def __init__(self) -> None:
        self._news: dict[str, bytes] = {}

    def put(self, folder: str, record: bytes) -> None:
        self._news[folder] = record

    def take(self) -> dict[str, bytes]:
        news, self._news = self._news, {}
        return news


def do(work: Work, mailbox: Any) -> Done:
    """Do a run on this node, in a process of its own that ends with this one."""
    config, token = Config.from_json(work.config), Path(work.folder) / TOKEN_NAME
    if token.is_file() and token.read_text() == work.token:
        run = PlannedRun(config, Path(work.folder), work.worker)
        _wait_for_folder(run.folder)
        process = start_process(run, environment=work.environment, cwd=work.cwd)
        code = process.wait()
        return Done("" if code == 0 else complaint_of(run.folder, code), {})
    with tempfile.TemporaryDirectory(prefix="esam-") as place:
        run, sent = PlannedRun(config, Path(place), work.worker), b""
        for name, data in work.files.items():
            write_atomically(run.folder / Path(name).name, data)
        run.prepare()
        process = start_process(run)
        while process.poll() is None:
            time.sleep(POLL)
            record = run.folder / RECORD_NAME
            if record.exists() and (now := record.read_bytes()) != sent:
                mailbox.put.remote(work.folder, sent := now)
        code = process.returncode
        return Done("" if code == 0 else complaint_of(run.folder, code), files_of(run.folder))


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a run's folder, but for those that mean nothing elsewhere."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name not in (LOCK_NAME, TOKEN_NAME) and not path.name.endswith(".tmp")
    }


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


def _has(resources: Mapping[str, float], cpus: float, gpus: float) -> bool:
    return resources.get("CPU", 0) >= cpus and resources.get("GPU", 0) >= gpus


def _wait_for_folder(folder: Path) -> None:
    from filelock import FileLock, Timeout

    with contextlib.suppress(Timeout):  # the run itself will tell
        FileLock(folder / LOCK_NAME, timeout=LOCK_PATIENCE).acquire().lock.release()
