"""How does a file get onto the disk, whole or not at all?"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, data: bytes | memoryview, *, previous: Path | None = None) -> None:
    """Put `data` at `path` in one move: whoever looks sees the old file or the new one, never half of it.

    The old file takes the name `previous`, if that is given; between the two moves there is no file at `path`. Folders
    that are missing are made.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_through(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, data)
        if previous is not None and path.exists():
            os.replace(path, previous)
        os.replace(temporary, path)
    except OSError as error:
        raise with_disk_full_hint(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)


def remove_unfinished(path: Path) -> None:
    """Delete what killed writers of `path` left behind; only for a process that writes there alone."""
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        left.unlink()


def write_through(path: Path, flags: int, data: bytes | memoryview) -> None:
    """Write all of `data` and wait until the disk has it."""
    descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o666)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def with_disk_full_hint(error: OSError, path: Path) -> OSError:
    """Return the error, or one that tells what to do where the disk is full."""
    full = OSError(errno.ENOSPC, "the disk is full; the old file is kept. Free some space and resume", str(path))
    return full if error.errno == errno.ENOSPC else error


def unwritable_folder(folder: Path, option: str = "--out") -> Iterator[str]:
    """Give what stands in the way of writing into a folder, with a remedy; nothing where it can be done."""
    path = folder.absolute()
    nearest = next(each for each in (path, *path.parents) if each.exists())
    if not nearest.is_dir():
        yield f"{folder} ({option}) cannot be written: {nearest} is a file, not a folder; choose another place"
    elif not os.access(nearest, os.W_OK):
        yield f"{folder} ({option}) cannot be written: {nearest} is not yours to write; choose another place"


def check_writable(path: Path, option: str = "--out") -> None:
    """Refuse, before the work, a file that could not be written after it."""
    for obstacle in unwritable_folder(path.parent, option):
        raise ValueError(obstacle)
    if path.is_dir():
        raise ValueError(f"{path} ({option}) is a folder; give the name of a file in it")


def check_new(path: Path, *, force: bool, inputs: Iterable[Path] = (), option: str = "--out") -> None:
    """Refuse, before the work, a file that cannot be written, or that is there already unless ``force`` is given.

    Whatever is read is never overwritten.
    """
    check_writable(path, option)
    if any(path.resolve() == each.resolve() for each in inputs):
        raise ValueError(f"{path} ({option}) is read by this command, and would be overwritten; choose another name")
    if path.exists() and not force:
        raise ValueError(f"{path} ({option}) exists; choose another name, or overwrite it with --force")


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Keep other processes that ask the same out of a folder; the lock ends with the process, however that ends."""
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise ValueError(
            f"another process is writing to {folder}; wait until it has ended, or choose another folder"
        ) from error
    try:
        yield
    finally:
        lock.release()
