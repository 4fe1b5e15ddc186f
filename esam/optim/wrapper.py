"""How does a sharpness-aware optimizer stand in for its base wherever torch expects an optimizer?"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from .checks import checked_number

_OWN_STATE = "sharpness_aware"
_OWN_KEYS = ("rho", "perturb")


class Wrapper(Optimizer, ABC):
    """A ``torch.optim.Optimizer`` whose groups, state and hooks are its base's own; it writes nothing into them."""

    def __init__(self, base: Optimizer, model: nn.Module, *, rho: float, seed: int | None) -> None:
        name = type(self).__name__
        if not isinstance(base, Optimizer):
            raise ValueError(
                f"base must be a torch.optim.Optimizer, got {type(base).__name__}; build it first: "
                f"{name}(torch.optim.SGD(model.parameters(), lr=0.1), model)"
            )
        if isinstance(base, Wrapper):
            raise ValueError(f"base is sharpness-aware itself ({type(base).__name__}); pass its own base: base.base")
        if isinstance(base, torch.optim.LBFGS):
            raise ValueError("LBFGS calls a closure of its own several times a step; choose another base, such as SGD")
        if not isinstance(model, nn.Module):
            raise ValueError(f"model must be the torch.nn.Module that base trains, got {type(model).__name__}")
        if getattr(model, "static_graph", False):
            raise ValueError(
                "DistributedDataParallel(static_graph=True) expects one backward pass a step, and here are two with "
                "different graphs: leave static_graph out"
            )
        self.rho = checked_number("rho", rho)
        for group in base.param_groups:
            _check_group(group)
        self.base = base
        self.model = model
        # initial_seed() follows torch.manual_seed, and draws nothing from the global stream
        self.generator = torch.Generator().manual_seed(torch.initial_seed() if seed is None else seed)
        super().__setstate__({})  # torch's hook tables, without the copy of the groups that its __init__ makes

    def memory(self) -> dict[str, Any]:
        """Return what later steps need from earlier ones: tensors, numbers and lists, never changed in place."""
        return {}

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Take back what ``memory`` returned."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The base optimizer's own groups; each may carry its own ``rho``, or ``perturb=False``."""
        return self.base.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The base optimizer's own state."""
        return self.base.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The base optimizer's own defaults."""
        return self.base.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base; ``rho`` and ``perturb`` may stand in it."""
        _check_group(param_group)
        self.base.add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear ``.grad``, as the base does; ``step`` does not need it."""
        self.base.zero_grad(set_to_none)

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Run ``hook`` just before the base steps, when ``.grad`` is final: the place to clip."""
        return self.base.register_step_pre_hook(hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Run ``hook`` just after the base has stepped."""
        return self.base.register_step_post_hook(hook)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Run ``hook`` when the base's state is saved."""
        return self.base.register_state_dict_pre_hook(hook, prepend)

    def register_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Run ``hook`` when the base's state was saved."""
        return self.base.register_state_dict_post_hook(hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Run ``hook`` before the base's state is loaded."""
        return self.base.register_load_state_dict_pre_hook(hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Run ``hook`` when the base's state was loaded."""
        return self.base.register_load_state_dict_post_hook(hook, prepend)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs: the base's state, the generator and the method's memory."""
        own = {"method": type(self).__name__, "generator": self.generator.get_state(), "memory": self.memory()}
        return {**self.base.state_dict(), _OWN_STATE: own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from ``state_dict``; one saved by the base optimizer alone starts with fresh memory."""
        own = state_dict.get(_OWN_STATE)
        if own is not None and own["method"] != type(self).__name__:
            raise ValueError(
                f"this state was saved by {own['method']}, not {type(self).__name__}; to keep only the base's part "
                "of it, call optimizer.base.load_state_dict(state)"
            )
        settings = [{key: group[key] for key in _OWN_KEYS if key in group} for group in self.base.param_groups]
        self.base.load_state_dict(state_dict)
        if own is None:  # a state of the base alone knows nothing of the groups' own radii
            for group, kept in zip(self.base.param_groups, settings, strict=True):
                group.update({**kept, **group})
        if own is not None:
            self.generator.set_state(own["generator"].cpu())
            self.load_memory(own["memory"])

    def __getstate__(self) -> dict[str, Any]:
        # a scheduler's wrapper around step, and hooks, stay behind, as they do for torch's own optimizers
        kept = {k: v for k, v in self.__dict__.items() if k != "step" and not k.startswith("_optimizer_")}
        return {**kept, "generator": self.generator.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        generator = torch.Generator()
        generator.set_state(state["generator"])
        self.base = state["base"]  # Optimizer.__setstate__ reads the groups
        super().__setstate__({**state, "generator": generator})

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.base.param_groups for p in group["params"]]


def _check_group(group: dict[str, Any]) -> None:
    if "rho" in group:
        checked_number("rho", group["rho"])
    if not isinstance(group.get("perturb", True), bool):
        raise ValueError(f"a group's perturb must be True or False, got {group['perturb']!r}")
