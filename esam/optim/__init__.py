"""Sharpness-aware optimizers: wrap any torch optimizer and train towards flat minima. Needs torch only."""

from .asam import ASAM
from .esam import ESAM
from .looksam import LookSAM
from .plain import Plain
from .ranking import Candidates
from .registry import METHODS
from .sam import SAM
from .step import SharpnessAware

__all__ = ["ASAM", "ESAM", "METHODS", "SAM", "Candidates", "LookSAM", "Plain", "SharpnessAware"]
