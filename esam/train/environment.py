"""What was a measurement taken with?"""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from contextlib import suppress
from pathlib import Path


def environment(device: str = "cpu") -> dict[str, str | int | None]:
    """What a measurement was taken with: versions, commit, hardware; never a path, a host name or a user name."""
    import torch  # here, so that reading records does without it

    on_gpu = device.startswith("cuda") and torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "esam": _esam_version(),
        "commit": _commit(Path(__file__).resolve().parents[2]),
        "device": device,
        "hardware": torch.cuda.get_device_name(device) if on_gpu else _cpu_name(),
        "threads": torch.get_num_threads(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def _esam_version() -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("torch-esam")
    return None


def _commit(checkout: Path) -> str | None:
    if not (checkout / ".git").exists():  # installed: a repository further up would be somebody else's
        return None
    command = "git --no-optional-locks describe --always --dirty --abbrev=40 --exclude=*"
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command.split(), cwd=checkout, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()
    return None


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
