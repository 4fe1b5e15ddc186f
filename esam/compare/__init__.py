"""The main job: train by several methods and seeds, alike in all else, and show them side by side."""

from .launch import Launcher
from .plan import PlannedRun, plan

__all__ = ["Launcher", "PlannedRun", "plan"]
