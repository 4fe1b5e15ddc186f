"""The main job: train by several methods and seeds, alike in all else, and show them side by side.

The package can be called: ``esam.compare(build_model, train, test, methods=[...])`` is ``own.compare``.
"""

import sys
from types import ModuleType
from typing import Any

from .launch import Launcher
from .plan import Comparison, PlannedRun, plan

__all__ = ["Comparison", "Launcher", "PlannedRun", "plan"]


class _Callable(ModuleType):
    def __call__(self, *given: Any, **settings: Any) -> Any:
        from .own import compare

        return compare(*given, **settings)


sys.modules[__name__].__class__ = _Callable
