"""One training loop: for recipes, for comparisons, and for a user's own model and data."""

from .checkpoint import Checkpoint
from .config import Config
from .loop import Progress, cosine, evaluate, fit
from .run import run

__all__ = ["Checkpoint", "Config", "Progress", "cosine", "evaluate", "fit", "run"]
