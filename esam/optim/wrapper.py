"""How does a sharpness-aware optimizer stand in for its base wherever torch expects an optimizer?"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .checks import checked_number
from .guidance import Unwatched
from .parallel import Alone, parallel_of

_OWN = "sharpness_aware_"
_OWN_KEYS = ("rho", "perturb")


def _of_base(name: str, doc: str = "As the base's own.") -> Any:
    """Return a method that is the base optimizer's."""

    def call(self: Wrapper, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.base, name)(*args, **kwargs)

    call.__doc__ = doc
    return call


class Wrapper(Optimizer, ABC):
    """A ``torch.optim.Optimizer`` whose groups, state and hooks are its base's own; it writes nothing into them."""

    def __init__(self, base: Optimizer, model: nn.Module, *, rho: float, perturbation: str, seed: int | None) -> None:
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
        self.model = model
        self.rho = checked_number("rho", rho)
        if perturbation not in ("rank", "global"):
            raise ValueError(f'perturbation must be "rank" or "global", got {perturbation!r}')
        self.perturbation = perturbation
        for group in base.param_groups:
            _check_group(group)
        self.base = base
        self._step: Any = None
        # initial_seed() follows torch.manual_seed, and draws nothing from the global stream
        self.generator = torch.Generator().manual_seed(torch.initial_seed() if seed is None else seed)
        super().__setstate__({})  # torch's hook tables, without the copy of the groups that its __init__ makes

    memory_by_parameter: ClassVar[Mapping[str, Literal["number", "tensor"]]] = {}
    """The parts of ``memory`` that have one value a parameter, by its place; a tensor is one like the parameter."""

    def memory(self) -> dict[str, Any]:
        """Return what later steps need from earlier ones, never changed in place."""
        return {}

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Take back what ``memory`` returned; nothing: begin anew."""

    @property
    def model(self) -> nn.Module:
        """The module that the base trains; a trainer that wraps it, as DistributedDataParallel does, sets it anew."""
        return self._model

    @model.setter
    def model(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise ValueError(f"model must be the torch.nn.Module that base trains, got {type(model).__name__}")
        if getattr(model, "static_graph", False):
            raise ValueError(
                "DistributedDataParallel(static_graph=True) expects one backward pass a step, and here are two with "
                "different graphs: leave static_graph out"
            )
        self._model = model
        self._parallel: Alone | None = None
        self._shared = False

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

    zero_grad = _of_base("zero_grad", "Clear ``.grad``, as the base does; ``step`` does not need it.")
    register_step_pre_hook = _of_base("register_step_pre_hook", "Run a hook before the base steps: the place to clip.")
    register_step_post_hook = _of_base("register_step_post_hook", "Run a hook just after the base has stepped.")
    register_state_dict_pre_hook = _of_base("register_state_dict_pre_hook")
    register_state_dict_post_hook = _of_base("register_state_dict_post_hook")
    register_load_state_dict_pre_hook = _of_base("register_load_state_dict_pre_hook")
    register_load_state_dict_post_hook = _of_base("register_load_state_dict_post_hook")

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs: the base's state, the generator and the method's memory.

        Ours stands among the base's: what belongs to a parameter in its state, the rest in the first group. So it goes
        wherever the base's goes, through ``torch.distributed.checkpoint`` too; but not back from its flattened form,
        which asks the base's own state for the names to read.
        """
        saved = self.base.state_dict()
        groups = [dict(group) for group in saved["param_groups"]]
        state = {n: dict(own) for n, own in saved["state"].items()}
        memory = self.memory()
        groups[0][f"{_OWN}{type(self).__name__}"] = self.generator.get_state()
        groups[0] |= {_OWN + name: value for name, value in memory.items() if name not in self.memory_by_parameter}
        for name, kind in self.memory_by_parameter.items():
            for n, p in enumerate(self._parameters()):
                state.setdefault(n, {})[_OWN + name] = self._saved(memory.get(name, {}).get(n), kind, p)
        return {**saved, "state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from ``state_dict``; one saved by the base optimizer alone starts with fresh memory."""
        groups, in_groups = _parted(dict(enumerate(state_dict["param_groups"])))
        state, by_parameter = _parted(state_dict["state"])
        memory = {name: value for own in in_groups.values() for name, value in own.items()}
        savers = [name for name in memory if isinstance(memory[name], Tensor) and memory[name].dtype == torch.uint8]
        if savers and savers != [type(self).__name__]:
            raise ValueError(
                f"this state was saved by {savers[0]}, not {type(self).__name__}; to keep only the base's part of it, "
                "save optimizer.base.state_dict()"
            )
        self._step = None
        settings = [{key: group[key] for key in _OWN_KEYS if key in group} for group in self.base.param_groups]
        self.base.load_state_dict({**state_dict, "state": state, "param_groups": list(groups.values())})
        if not savers:  # a state of the base alone knows nothing of the groups' own radii
            for group, kept in zip(self.base.param_groups, settings, strict=True):
                group.update({**kept, **group})
            return self.load_memory({})
        self.generator.set_state(memory.pop(savers[0]).cpu())
        self._shared = False
        parameters = self._parameters()
        keys = [key for group in groups.values() for key in group["params"]]  # numbers, or names of parameters
        for name, kind in self.memory_by_parameter.items():
            found = {n: by_parameter.get(key, {}).get(name) for n, key in enumerate(keys)}
            memory[name] = {n: _loaded(v, kind, parameters[n]) for n, v in found.items() if v is not None}
        self.load_memory(memory)

    def _saved(self, value: Any, kind: str, parameter: Tensor) -> Tensor:
        """Return what a parameter's state holds; what is missing is there too, so that every state looks alike."""
        if kind == "number":
            return torch.tensor(-1.0 if value is None else value, dtype=torch.float64, device="cpu")
        tensor = torch.zeros_like(parameter)
        if value is not None:
            self.parallel.local([tensor])[0].copy_(value)
        return tensor

    def __getstate__(self) -> dict[str, Any]:
        # a scheduler's wrapper around step, and hooks, stay behind, as they do for torch's own optimizers
        kept = {k: v for k, v in self.__dict__.items() if k != "step" and not k.startswith("_optimizer_")}
        fresh = {"_parallel": None, "_step": None, "_shared": False, "watch": Unwatched()}
        return {**kept, "generator": self.generator.get_state(), **fresh}

    def __setstate__(self, state: dict[str, Any]) -> None:
        generator = torch.Generator()
        generator.set_state(state["generator"])
        self.base = state["base"]  # Optimizer.__setstate__ reads the groups
        super().__setstate__({**state, "generator": generator})

    @property
    def parallel(self) -> Alone:
        """How the model is spread over ranks."""
        if self._parallel is None:
            self._parallel = parallel_of(self.model, self.perturbation)
        return self._parallel

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.base.param_groups for p in group["params"]]


def _parted(owners: Mapping[Any, Mapping[str, Any]]) -> tuple[dict[Any, dict[str, Any]], dict[Any, dict[str, Any]]]:
    """Part each owner's entries: the base's, and ours by their own names."""
    theirs = {k: {name: v for name, v in own.items() if not name.startswith(_OWN)} for k, own in owners.items()}
    ours = {k: {n.removeprefix(_OWN): v for n, v in own.items() if n.startswith(_OWN)} for k, own in owners.items()}
    return {k: own for k, own in theirs.items() if own}, ours


def _loaded(value: Tensor, kind: str, parameter: Tensor) -> Any:
    if kind == "number":
        return float(value)
    part: Tensor = value.to_local() if hasattr(value, "to_local") else value
    return part.to(parameter.device)


def _check_group(group: dict[str, Any]) -> None:
    if "rho" in group:
        checked_number("rho", group["rho"])
    if not isinstance(group.get("perturb", True), bool):
        raise ValueError(f"a group's perturb must be True or False, got {group['perturb']!r}")
