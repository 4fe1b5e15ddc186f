"""What has to be measured, and how does it get done? Jobs, each in a process of its own, resumable at any moment."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from esam.train import Config, Task

from .data import WATCH
from .hyperparameters import Column, Scale
from .store import RECORD, Store

WEIGHTS = "last.safetensors"


@dataclass(frozen=True)
class Job:
    """One measurement: a name in the store, and what is needed before it."""

    name: str

    @property
    def alone(self) -> bool:
        """Whether it wants a process that has done nothing else."""
        return False

    @property
    def heavy(self) -> bool:
        """Whether it takes so much memory that only one of its kind runs at a time."""
        return False

    def done(self, store: Store) -> bool:
        """Whether it has been made."""
        return store.lines(f"{self.name}.jsonl") is not None

    def ready(self, store: Store) -> bool:
        """Whether what it needs has been made."""
        return True

    def do(self, store: Store, scale: Scale) -> None:
        """Make it, or go on with it, and put it into the store."""
        raise NotImplementedError


@dataclass(frozen=True)
class Training(Job):
    """A run, by its configuration: its record, its last weights, and what its steps saw of each epoch."""

    config: Config

    def done(self, store: Store) -> bool:
        """Whether its record has an end, also one where it diverged."""
        lines = store.lines(f"{self.name}/{RECORD}")
        return bool(lines) and lines[-1].get("kind") == "end"  # type: ignore[index]

    def do(self, store: Store, scale: Scale) -> None:
        """Train."""
        self.trained(store, None)

    def trained(self, store: Store, probe: Callable[[int, nn.Module, Any], dict[str, Any]] | None) -> None:
        """Train, and write down what every epoch's steps saw, and what a probe sees after it."""
        from esam.train import run

        name = f"{self.name}/epochs.jsonl"

        def observe(epoch: int, model: nn.Module, data: Any) -> None:
            seen = {name: [round(v, 5) for v in values] for name, values in WATCH.epoch().items()}
            line = {"epoch": epoch, **seen, **(probe(epoch, model, data) if probe else {})}
            if len(line) > 1:  # an epoch that is trained again after a kill replaces its line
                before = [found for found in store.lines(name) or [] if found["epoch"] < epoch]
                store.write(name, [*before, line])

        WATCH.epoch()
        run(self.config, store.folder / self.name, keep_weights=True, observe=observe)


def training(scale: Scale, column: Column, method: str, seed: int, **changes: Any) -> Training:
    """Return the run of a method on a column; equal runs have equal names."""
    config, usual = scale.config(column, method, seed, **changes), scale.config(column, method, seed)
    known = {**vars(usual), **usual.settings}
    where = "-".join(column).lower().replace("/", "")
    held = "-held-out" if changes.pop("held_out", False) else ""
    told = "".join(f"-{name}{value:g}" for name, value in sorted(changes.items()) if value != known.get(name))
    return Training(f"train/{where}/{method}{told}{held}-seed{seed}", config)


def load_trained(store: Store, run: Training) -> tuple[nn.Module, Any]:
    """Return a finished run's net with its last weights, in eval mode, and its training images and labels."""
    from safetensors.torch import load_file

    net, images = untrained(run)
    net.load_state_dict(load_file(store.folder / run.name / WEIGHTS))
    return net.eval(), images


def untrained(run: Training) -> tuple[nn.Module, Any]:
    """Return a run's net before training, and its training images and labels."""
    from esam.train.models import build_model
    from esam.train.task import find_factory, make_model

    torch.set_num_threads(run.config.threads or 1)
    task: Task = find_factory(run.config.data)()
    images, labels = task.train  # type: ignore[misc]
    if ":" in run.config.model:
        net = make_model(run.config.model, task)
    else:
        assert task.classes is not None
        shape = images.shape
        net = build_model(run.config.model, classes=len(task.classes), channels=shape[1], size=shape[-1])
    return net, (images, labels)


def has_weights(store: Store, run: Training) -> bool:
    """Whether a run's last weights are on this machine."""
    return (store.folder / run.name / WEIGHTS).exists()


def work_through(
    jobs: Callable[[], Iterable[Job]],
    store: Store,
    command: Sequence[str],
    *,
    at_once: int,
    tell: Callable[[str], None],
) -> int:
    """Do every job that is not done, in order, so many processes at a time; return how many failed.

    A process does one job after the other by their names (``serve``), and ends with this one; what it has done is kept,
    and the same call goes on with the rest. ``jobs`` is asked before each, since some follow from what others found.
    """
    lock, going, failed = threading.Lock(), dict[str, bool](), set[str]()
    workers: list[subprocess.Popen[str]] = []
    done: set[str] = set()  # a record need not be read again and again

    def is_left(job: Job) -> bool:
        if job.name not in done and job.done(store):
            done.add(job.name)
        return job.name not in done and job.name not in going and job.name not in failed

    def take() -> Job | None:
        """Return the next job; None where none is left. Waits where one is left that needs what is going on."""
        while True:
            with lock:
                waiting = [job for job in jobs() if is_left(job)]
                busy = any(heavy for heavy in going.values())
                job = next((job for job in waiting if job.ready(store) and not (busy and job.heavy)), None)
                if job is not None:
                    going[job.name] = job.heavy
                    tell(f"{time.strftime('%H:%M:%S')} begins {job.name} ({len(waiting)} left)")
                if job is not None or not going:
                    return job
            time.sleep(1)

    def work() -> None:
        worker: subprocess.Popen[str] | None = None
        while (job := take()) is not None:
            if worker is None or job.alone:
                _end(worker)
                worker = _start(command, store.folder)
                workers.append(worker)
            began, answer = time.monotonic(), _asked(worker, job.name)
            with lock:
                del going[job.name]
                failed.update(() if answer == DONE else (job.name,))
                tell(f"{time.strftime('%H:%M:%S')} {answer:6} {job.name} after {time.monotonic() - began:.0f} s")
            if job.alone or answer != DONE:
                _end(worker)
                worker = None
        _end(worker)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(at_once)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for worker in workers:
            _end(worker)
    return len(failed)


DONE, FAILED = "done", "failed"


def _start(command: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with (folder / "log.txt").open("ab") as log:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}
        return subprocess.Popen([sys.executable, *command], env=environment, **pipes)  # type: ignore[call-overload,no-any-return]


def _asked(worker: subprocess.Popen[str], name: str) -> str:
    assert worker.stdin is not None and worker.stdout is not None
    try:
        worker.stdin.write(f"{name}\n")
        worker.stdin.flush()
    except BrokenPipeError:
        return FAILED
    return worker.stdout.readline().strip() or FAILED


def _end(worker: subprocess.Popen[str] | None) -> None:
    if worker is not None:
        worker.kill()
        worker.wait()


def serve(do: Callable[[str], None]) -> None:
    """Do the jobs whose names come by standard input, and answer each; end at once when the input closes."""
    names: queue.Queue[str] = queue.Queue()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a job prints goes to the log

    def read() -> None:
        for line in sys.stdin:
            names.put(line.strip())
        os._exit(1)  # whoever started this is gone; what is on the disk is whole at any moment

    threading.Thread(target=read, daemon=True).start()
    while True:
        name = names.get()
        try:
            do(name)
            answer = DONE
        except Exception:  # of any kind: the others go on
            print(name, traceback.format_exc(), file=sys.stderr, flush=True)
            answer = FAILED
        print(answer, file=answers, flush=True)
