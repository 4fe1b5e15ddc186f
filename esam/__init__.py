"""Sharpness-aware training for PyTorch at ESAM's price."""

from importlib.metadata import PackageNotFoundError, version

from .optim import ASAM, ESAM, METHODS, SAM, LookSAM, SharpnessAware

try:
    __version__ = version("torch-esam")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["ASAM", "ESAM", "METHODS", "SAM", "LookSAM", "SharpnessAware", "__version__"]
