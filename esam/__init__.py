"""Sharpness-aware training for PyTorch at ESAM's price."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import compare
    from .optim import ASAM, ESAM, METHODS, RECOMMENDED, SAM, GuidanceWarning, LookSAM, SharpnessAware, SliceSAM, take
    from .train.saved import load_run

    __version__: str

__all__ = [
    "ASAM",
    "ESAM",
    "METHODS",
    "RECOMMENDED",
    "SAM",
    "GuidanceWarning",
    "LookSAM",
    "SharpnessAware",
    "SliceSAM",
    "__version__",
    "compare",
    "load_run",
    "take",
]
_HOME = {"load_run": ".train.saved"}
"""Where a name lives that the optimizers do without."""


def __getattr__(name: str) -> Any:
    # on first use: `esam --help` must not wait for torch
    if name == "__version__":
        return _version()
    if name == "compare":
        return importlib.import_module(".compare", __name__)  # a package that can be called
    if name in __all__:
        return getattr(importlib.import_module(_HOME.get(name, ".optim"), __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch-esam")
    except PackageNotFoundError:  # a source tree that was never installed
        return "0+unknown"
