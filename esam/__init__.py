"""Sharpness-aware training for PyTorch: SAM, ESAM and relatives as drop-in optimizers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .factory import create_optimizer, list_methods
    from .optim import (
        ASAM,
        ESAM,
        METHODS,
        MSAM,
        RECOMMENDED,
        SAM,
        GuidanceWarning,
        LookSAM,
        SharpnessAware,
        SliceSAM,
        method_of,
        take,
    )
    from .runs.api import compare
    from .train.loaded_run import load_run

    __version__: str

__all__ = [
    "ASAM",
    "ESAM",
    "METHODS",
    "MSAM",
    "RECOMMENDED",
    "SAM",
    "GuidanceWarning",
    "LookSAM",
    "SharpnessAware",
    "SliceSAM",
    "__version__",
    "compare",
    "create_optimizer",
    "list_methods",
    "load_run",
    "method_of",
    "take",
]
_HOME = {
    "compare": ".runs.api",
    "create_optimizer": ".factory",
    "list_methods": ".factory",
    "load_run": ".train.loaded_run",
}
"""Where a name lives that the optimizers do without."""


def __getattr__(name: str) -> Any:
    # on first use: `esam --help` must not wait for torch
    if name == "__version__":
        return _version()
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
