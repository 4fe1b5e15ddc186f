"""Many runs: which ones (``plan``), where they are done (``Pool``), and which settings each method gets (``tune``)."""

from .plan import Comparison, PlannedRun, plan
from .pool import Pool

__all__ = ["Comparison", "PlannedRun", "Pool", "plan"]
