"""Many runs: which ones (``plan``), how they get done (``run_all``), and which settings each method gets (``tune``)."""

from .plan import Comparison, PlannedRun, plan
from .pool import Processes, run_all

__all__ = ["Comparison", "PlannedRun", "Processes", "plan", "run_all"]
