"""Sharpness-aware optimizers: wrap any torch optimizer and train towards flat minima. Needs torch only."""

from .batch import Batch
from .checks import GuidanceWarning
from .flow import Plan
from .gradients import Gradients
from .indexing import take
from .methods.controls import Base
from .methods.esam import ESAM
from .methods.looksam import LookSAM
from .methods.sam import ASAM, SAM
from .methods.slicesam import SliceSAM
from .onepass import MSAM
from .registry import METHODS, RECOMMENDED, Method, method_of
from .selection import Candidates
from .step import SharpnessAware

__all__ = [
    "ASAM",
    "ESAM",
    "METHODS",
    "MSAM",
    "RECOMMENDED",
    "SAM",
    "Base",
    "Batch",
    "Candidates",
    "Gradients",
    "GuidanceWarning",
    "LookSAM",
    "Method",
    "Plan",
    "SharpnessAware",
    "SliceSAM",
    "method_of",
    "take",
]
