"""What replaces a vendored ``sam.py`` with ``first_step`` and ``second_step``? One changed import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .optim.buffers import SavedBuffers, buffer_owners
from .optim.checks import GuidanceWarning, checked_number, warn_caller
from .optim.distributed import SingleProcess
from .optim.optimizer import RHO_KEY, StandIn
from .optim.perturb import adaptive_ascent, l2_ascent, perturbed

__all__ = ["SAM"]

_SAID = False


class SAM(StandIn):
    """SAM by ``first_step`` and ``second_step``, with the signature of the widely copied ``sam.py``.

    Theta comes back bit for bit, also for tensors without a second gradient; the base's state is in ``state_dict``;
    ``scaler.step(optimizer)`` of a GradScaler takes the second step, and skips it where a gradient overflowed; with
    ``model``, BatchNorm's statistics and other buffers move in the first pass only.

    Args:
        params: Parameters, or groups of them; a group's own radius goes under ``rho``, or, where the base has a rho of
            its own, under ``sam_rho``.
        base_optimizer: The class of the base, such as ``torch.optim.SGD``.
        rho: Radius of the neighbourhood.
        adaptive: Scale the neighbourhood by the weights, as ASAM does (with eta = 0).
        model: The module that is trained: its buffers are put back after the second pass.
        kwargs: Of the base: ``lr``, ``momentum``, ...

    >>> net = nn.Linear(4, 2)
    >>> optimizer = SAM(net.parameters(), torch.optim.SGD, lr=0.1, model=net)
    >>> x = torch.randn(8, 4)
    >>> net(x).square().mean().backward()
    >>> optimizer.first_step(zero_grad=True)
    >>> net(x).square().mean().backward()
    >>> optimizer.second_step(zero_grad=True)
    """

    _step_supports_amp_scaling = True  # a GradScaler calls step() whatever overflowed, so that theta comes back

    def __init__(
        self,
        params: Iterable[Any],
        base_optimizer: Callable[..., Optimizer],
        rho: float = 0.05,
        adaptive: bool = False,
        *,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        if not callable(base_optimizer) or isinstance(base_optimizer, Optimizer):
            raise ValueError(
                "base_optimizer is a class here, such as torch.optim.SGD, and its settings follow by name; to wrap an "
                "optimizer that exists, use esam.SAM(base, model)"
            )
        self.rho, self.adaptive, self.model = checked_number("rho", rho), bool(adaptive), model
        self.base = base_optimizer(params, **kwargs)
        for group in self.base.param_groups if "rho" not in self.defaults else ():
            group.setdefault("rho", self.rho)  # where schedules read and write it
        self._moved: perturbed | None = None
        self._buffers = SavedBuffers()
        self._refuse_shards("esam.SAM(base, model), which takes a batch and all passes on it")
        self._adopt_hooks()
        _say_once(model)

    @property
    def base_optimizer(self) -> Optimizer:
        """The base."""
        return self.base

    def radius_of(self, group: Mapping[str, Any]) -> float:
        """Return a group's radius, by the key that ``sam.py`` reads."""
        if {group.get("adaptive", self.adaptive)} != {self.adaptive}:
            raise ValueError("adaptive is one for all groups here; pass it to SAM, and leave it out of the groups")
        own = {} if "rho" in self.defaults else {RHO_KEY: group.get("rho", self.rho)}
        return super().radius_of({**own, **group})

    @torch.no_grad()
    def first_step(self, zero_grad: bool = False) -> None:
        """Move the weights to theta + eps, by the gradient that ``backward`` has left, scaled or not."""
        if self._moved is not None:
            raise ValueError("first_step was called twice; call second_step, or restore(), in between")
        weights = self.parameters()
        radii = {**dict.fromkeys(range(len(weights)), 0.0), **self.radii()}  # sam.py's norm is that of all tensors
        g = SingleProcess().named(list(radii), [w.grad for w in weights])
        if not g:
            raise ValueError("first_step comes after backward: no parameter has a gradient")
        eps = adaptive_ascent(g, radii, weights, eta=0.0) if self.adaptive else l2_ascent(g, radii)
        if self.model is not None:
            self._buffers.save(buffer_owners(self.model))
        self._moved = perturbed([weights[n] for n in eps.index], eps.tensors)
        self._moved.__enter__()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad: bool = False) -> None:
        """Put theta back and let the base step, by the gradient that the second ``backward`` has left."""
        if self._moved is None:
            raise ValueError("second_step comes after first_step")
        self.restore()
        self.base.step()
        self._opt_called = True  # a scheduler asks whether step() has run before it
        if zero_grad:
            self.zero_grad()

    def restore(self) -> None:
        """Put theta and the buffers back, if they are not: after an error between the two steps."""
        if self._moved is not None:
            self._moved.restore()
            self._moved = None
            if self.model is not None:
                self._buffers.put_back()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the second step; with a closure that computes the loss and calls ``backward``, both.

        The gradients of the first pass are there already, as in ``sam.py``: the closure runs at theta + eps.
        """
        if closure is not None:
            self.first_step(zero_grad=True)
            try:
                with torch.enable_grad():
                    closure()
            except BaseException:
                self.restore()
                raise
        if self._moved is None:
            raise ValueError("step() without a closure takes the second step; call first_step() before it")
        scale, overflow = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        self.restore()
        if overflow is not None and bool(overflow):
            return None
        if scale is not None:
            with torch.no_grad():
                grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
                torch._foreach_mul_(grads, float(1 / scale))
        self.base.step()
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the base's state; between the two steps the weights are not theta, so it is refused there."""
        if self._moved is not None:
            raise ValueError("the weights are theta + eps between first_step and second_step; save after second_step")
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from ``state_dict``, also from one of ``sam.py``, which keeps nothing of the base's state."""
        self.restore()
        state = {n: entries for n, entries in state_dict["state"].items() if set(entries) != {"old_p"}}
        self.base.load_state_dict({**state_dict, "state": state})


def _say_once(model: nn.Module | None) -> None:
    global _SAID
    if _SAID:
        return
    _SAID = True
    buffers = "" if model is not None else "; pass model= to keep BatchNorm's statistics out of the second pass"
    warn_caller(
        "esam.compat.SAM repairs what sam.py gets wrong: resume keeps the base's state, tensors without a second "
        f"gradient return, a GradScaler may skip the step{buffers}. Loops that hand the batch over, "
        "`for x, y in optimizer.passes(x, y)` of esam.SAM, need no second forward of yours and take every method",
        GuidanceWarning,
    )
