"""The main job: train by several methods and seeds, alike in all else, and show them side by side."""

from .launch import Launcher
from .plan import Comparison, PlannedRun, plan

__all__ = ["Comparison", "Launcher", "PlannedRun", "plan"]
