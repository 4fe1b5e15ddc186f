"""Sharpness-aware optimizers: wrap any torch optimizer and train towards flat minima. Needs torch only."""

from .base import Base
from .esam import ESAM
from .looksam import LookSAM
from .ranking import Candidates
from .registry import METHODS, RECOMMENDED, Method
from .sam import ASAM, SAM
from .step import SharpnessAware

__all__ = ["ASAM", "ESAM", "METHODS", "RECOMMENDED", "SAM", "Base", "Candidates", "LookSAM", "Method", "SharpnessAware"]
