"""How does a sharpness-aware optimizer stand in for its base wherever torch expects an optimizer?"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .checks import GuidanceWarning, checked_choice, checked_number, warn_caller
from .distributed import SingleProcess, ranks_of
from .gradients import Gradients

RHO_KEY = "sam_rho"
"""The key of a group's own radius; plain ``rho`` belongs to some bases, such as Adadelta."""
PERTURB_KEY = "perturb"
_PREFIX = "sharpness_aware_"
_BASE = f"{_PREFIX}base"
"""The key of a base's state that is not in torch's form, as that of pytorch_optimizer's Lookahead is."""


def _of_base(name: str, doc: str = "As the base's own.") -> Any:
    """Return a method that is the base optimizer's."""

    def call(self: StandIn, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.base, name)(*args, **kwargs)

    call.__doc__ = doc
    return call


class StandIn(Optimizer, ABC):
    """A ``torch.optim.Optimizer`` whose groups, state and hooks are its base's own."""

    base: Optimizer
    rho: float | None

    def radius_of(self, group: Mapping[str, Any]) -> float:
        """Return a group's radius; negative where the base maximises: the worst point nearby lies downhill."""
        if not group.get(PERTURB_KEY, True):
            return 0.0
        rho = checked_number(RHO_KEY, group.get(RHO_KEY, self.rho or 0.0))
        return -rho if group.get("maximize") else rho

    def radii(self) -> dict[int, float]:
        """Return the radius of each trainable tensor that has one, by its index."""
        radii: dict[int, float] = {}
        start = 0
        for group in self.param_groups:
            if (rho := self.radius_of(group)) != 0:
                radii.update([(start + n, rho) for n, p in enumerate(group["params"]) if p.requires_grad])
            start += len(group["params"])
        return radii

    def parameters(self) -> list[Tensor]:
        """Return all tensors of the optimizer; an index counts them."""
        return [p for group in self.base.param_groups for p in group["params"]]

    def _adopt_hooks(self) -> None:
        super().__setstate__({})  # torch's hook tables, without the copy of the groups that its __init__ makes

    def _refuse_shards(self, instead: str) -> None:
        if any(hasattr(p, "full_tensor") for group in self.param_groups for p in group["params"]):
            raise ValueError(
                f"{type(self).__name__} sees one rank's weights only, and these are sharded; use {instead}"
            )

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The base optimizer's own groups; each may carry its own radius, ``sam_rho``, or ``perturb=False``."""
        return self.base.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The base optimizer's own state."""
        return self.base.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The base optimizer's own defaults."""
        return getattr(self.base, "defaults", {})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base; ``sam_rho`` and ``perturb`` may be in it."""
        _check_group(param_group)
        self.base.add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear ``.grad``, as the base does."""
        self.base.zero_grad(set_to_none)

    register_step_pre_hook = _of_base("register_step_pre_hook", "Run a hook before the base steps: the place to clip.")
    register_step_post_hook = _of_base("register_step_post_hook", "Run a hook just after the base has stepped.")
    register_state_dict_pre_hook = _of_base("register_state_dict_pre_hook")
    register_state_dict_post_hook = _of_base("register_state_dict_post_hook")
    register_load_state_dict_pre_hook = _of_base("register_load_state_dict_pre_hook")
    register_load_state_dict_post_hook = _of_base("register_load_state_dict_post_hook")

    def __getattr__(self, name: str) -> Any:
        # schedule_free's bases have them, and trainers call them where an optimizer has them
        if name in ("train", "eval") and "base" in vars(self):
            return getattr(self.base, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        # a scheduler's wrapper around step, and hooks, stay behind, as they do for torch's own optimizers
        return {k: v for k, v in self.__dict__.items() if k != "step" and not k.startswith("_optimizer_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.base = state["base"]  # Optimizer.__setstate__ reads the groups
        super().__setstate__(state)


class Wrapper(StandIn):
    """A ``torch.optim.Optimizer`` whose groups, state and hooks are its base's own; it writes nothing into them."""

    remembered: ClassVar[tuple[str, ...]] = ()
    """The attributes that later steps read; replaced, never changed in place.

    Numbers; or what belongs to the parameters: ``Gradients``, or a vector with a number >= 0 for each, -1 for none.
    """

    def __init__(
        self, base: Optimizer, model: nn.Module, *, rho: float | None, perturbation: str, seed: int | None
    ) -> None:
        name = type(self).__name__
        if not isinstance(base, Optimizer):
            raise ValueError(
                f"base must be a torch.optim.Optimizer, got {type(base).__name__}; build it first: "
                f"{name}(torch.optim.SGD(model.parameters(), lr=0.1), model)"
            )
        if isinstance(base, StandIn):
            raise ValueError(f"base is sharpness-aware itself ({type(base).__name__}); pass its own base: base.base")
        if isinstance(base, torch.optim.LBFGS):
            raise ValueError("LBFGS calls a closure of its own several times a step; choose another base, such as SGD")
        self.base, self.model = base, model
        self.rho = None if rho is None else checked_number("rho", rho)
        self.perturbation = checked_choice("perturbation", perturbation, ("rank", "global"))
        for group in base.param_groups:
            _check_group(group)
        _check_model(base, model)
        self.steps = 0
        """How many steps the base has taken."""
        self._step: Any = None
        # initial_seed() follows torch.manual_seed, and draws nothing from the global stream
        self.generator = torch.Generator().manual_seed(torch.initial_seed() if seed is None else seed)
        self._adopt_hooks()
        self._initial = {name: getattr(self, name) for name in self.remembered if hasattr(self, name)}

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
        self._ranks: SingleProcess | None = None
        self._generator_shared = False

    @property
    def has_gradient(self) -> bool:
        """Whether ``gradient()`` has left something that nobody has stepped by."""
        return self._step is not None and self._step.ready

    @property
    def ranks(self) -> SingleProcess:
        """How the model is spread over ranks."""
        if self._ranks is None:
            self._ranks = ranks_of(self.model, self.perturbation)
        return self._ranks

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear ``.grad``, as the base does; no step needs it, and while one is running it does nothing."""
        if self._step is None or self._step.ready:
            super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs: the base's state, the generator and what is remembered.

        Ours is among the base's: what belongs to a parameter in its state, the rest in the first group. So it goes
        wherever the base's goes, through ``torch.distributed.checkpoint`` too; but not back from its flattened form,
        which asks the base's own state for the names to read.
        """
        saved = self._in_torchs_form(self.base.state_dict())
        groups = [dict(group) for group in saved["param_groups"]]
        state = {n: dict(entries) for n, entries in saved["state"].items()}
        groups[0][f"{_PREFIX}{type(self).__name__}"] = self.generator.get_state()
        groups[0][f"{_PREFIX}steps"] = self.steps
        # a step that nobody has stepped by is not remembered
        values = self.memory() if self._step is None else self._step.memory
        for name, value in zip(self.remembered, values, strict=True):
            if not isinstance(value, (Gradients, Tensor)):
                groups[0][_PREFIX + name] = value
                continue
            known = dict(iter(value) if isinstance(value, Gradients) else enumerate(value))
            for n, p in enumerate(self.parameters()):  # what is missing is there too: every state looks alike
                if isinstance(value, Gradients):
                    tensor = torch.zeros_like(p)
                    if n in known:
                        self.ranks.local([tensor])[0].copy_(known[n])
                else:
                    tensor = known.get(n, torch.tensor(-1.0, device="cpu")).to("cpu", torch.float64)
                state.setdefault(n, {})[_PREFIX + name] = tensor
        return {**saved, "state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from ``state_dict``; one saved by the base optimizer alone starts with fresh memory."""
        state_dict = self._in_torchs_form(state_dict)
        groups, in_groups = _parted(dict(enumerate(state_dict["param_groups"])))
        state, by_parameter = _parted(state_dict["state"])
        memory = {name: value for entries in in_groups.values() for name, value in entries.items()}
        savers = [name for name in memory if isinstance(memory[name], Tensor) and memory[name].dtype == torch.uint8]
        if savers and savers != [type(self).__name__]:
            raise ValueError(
                f"this state was saved by {savers[0]}, not {type(self).__name__}; to keep only the base's part of it, "
                "save optimizer.base.state_dict()"
            )
        self._step = None
        settings = [{k: g[k] for k in (RHO_KEY, PERTURB_KEY) if k in g} for g in self.base.param_groups]
        theirs = {**state_dict, "state": state, "param_groups": list(groups.values())}
        self.base.load_state_dict(state_dict.get(_BASE, theirs))
        if not savers:  # a state of the base alone knows nothing of the groups' own radii
            for group, kept in zip(self.base.param_groups, settings, strict=True):
                group.update({**kept, **group})
            self.steps = 0
            for name in self.remembered:
                value = getattr(self, name)
                setattr(self, name, Gradients() if isinstance(value, Gradients) else self._initial[name])
            return
        self.generator.set_state(memory.pop(savers[0]).cpu())
        self._generator_shared = False
        self.steps = int(memory["steps"])
        parameters = self.parameters()
        keys = [key for group in groups.values() for key in group["params"]]  # numbers, or names of parameters
        for name in self.remembered:
            found = {n: by_parameter.get(key, {}).get(name) for n, key in enumerate(keys)}
            known = {n: _local(t).to(parameters[n].device) for n, t in found.items() if t is not None}
            if isinstance(getattr(self, name), Gradients):
                known = {n: t.to(parameters[n].dtype) for n, t in known.items()}
                setattr(self, name, self.ranks.named(list(known), list(known.values())))
            elif isinstance(getattr(self, name), Tensor):
                setattr(
                    self, name, torch.stack([known.get(n, torch.tensor(-1.0)).double().cpu() for n in range(len(keys))])
                )
            else:
                setattr(self, name, memory[name])

    def _in_torchs_form(self, saved: dict[str, Any]) -> dict[str, Any]:
        if "param_groups" in saved:
            return saved
        return {"state": {}, "param_groups": [{"params": list(range(len(self.parameters())))}], _BASE: saved}

    def memory(self) -> list[Any]:
        """Return what is remembered."""
        return [getattr(self, name) for name in self.remembered]

    def recall(self, memory: list[Any]) -> None:
        """Remember what ``memory`` returned."""
        for name, value in zip(self.remembered, memory, strict=True):
            setattr(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        fresh = {"_ranks": None, "_step": None, "_generator_shared": False}
        return {**super().__getstate__(), "generator": self.generator.get_state(), **fresh}

    def __setstate__(self, state: dict[str, Any]) -> None:
        generator = torch.Generator()
        generator.set_state(state["generator"])
        super().__setstate__({**state, "generator": generator})


def _parted(owners: Mapping[Any, Mapping[str, Any]]) -> tuple[dict[Any, dict[str, Any]], dict[Any, dict[str, Any]]]:
    """Part each owner's entries: the base's, and ours by their names without the prefix."""
    theirs = {k: {n: v for n, v in entries.items() if not str(n).startswith(_PREFIX)} for k, entries in owners.items()}
    ours = {
        k: {n.removeprefix(_PREFIX): v for n, v in entries.items() if str(n).startswith(_PREFIX)}
        for k, entries in owners.items()
    }
    return {k: entries for k, entries in theirs.items() if entries}, ours


def _local(tensor: Any) -> Tensor:
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def _check_group(group: dict[str, Any]) -> None:
    if RHO_KEY in group:
        checked_number(f"a group's {RHO_KEY}", group[RHO_KEY])
    if not isinstance(group.get(PERTURB_KEY, True), bool):
        raise ValueError(f"a group's {PERTURB_KEY} must be True or False, got {group[PERTURB_KEY]!r}")


def _check_model(base: Optimizer, model: nn.Module) -> None:
    """Refuse a model that the base does not train at all; warn where it trains more than the model holds."""
    held = {id(p) for p in model.parameters()}
    trained = [p for group in base.param_groups for p in group["params"] if p.requires_grad]
    outside = sum(id(p) not in held for p in trained)
    if trained and outside == len(trained):
        raise ValueError(
            "the base trains none of the model's parameters; build it from model.parameters(), after whatever replaces "
            "them (fully_shard, a copy, a move to another type)"
        )
    if outside:
        warn_caller(
            f"the base trains {outside} tensors that are not the model's; running statistics (BatchNorm) of modules "
            "outside the model move in every pass: pass one module that holds all, such as nn.ModuleList([a, b])",
            GuidanceWarning,
        )
    known = {id(p) for p in trained}
    if others := [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in known]:
        warn_caller(
            f"the base does not train {len(others)} of the model's tensors that require a gradient, {others[0]} among "
            "them: their .grad is of parts of the batch or of perturbed weights, and is never cleared; freeze them "
            "(requires_grad_(False)), or let the base train them too",
            GuidanceWarning,
        )
