"""Sharpness-aware optimizers: wrap any torch optimizer and train towards flat minima. Needs torch only."""

from .checks import GuidanceWarning
from .methods.base import Base
from .methods.esam import ESAM
from .methods.looksam import LookSAM
from .methods.sam import ASAM, SAM
from .methods.slicesam import SliceSAM
from .ranking import Candidates
from .registry import METHODS, RECOMMENDED, Method
from .step import SharpnessAware
from .taking import take

__all__ = [
    "ASAM",
    "ESAM",
    "METHODS",
    "RECOMMENDED",
    "SAM",
    "Base",
    "Candidates",
    "GuidanceWarning",
    "LookSAM",
    "Method",
    "SharpnessAware",
    "SliceSAM",
    "take",
]
