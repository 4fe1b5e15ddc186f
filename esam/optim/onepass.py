"""Which sharpness-aware optimizer needs no second pass, no closure and no change of the loop? Momentum-SAM."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from .checks import GuidanceWarning, checked_number, warn_caller
from .gradients import Gradients
from .optimizer import StandIn
from .perturb import l2_ascent, perturbed

MOMENTUM = ("momentum_buffer", "exp_avg")
NO_MOMENTUM = "the base keeps no momentum to perturb along; choose one that does, such as SGD(momentum=0.9) or AdamW"


def momenta(optimizer: StandIn, index: Iterable[int]) -> dict[int, Tensor]:
    """Return the base's momentum of each of these tensors that has one."""
    parameters = optimizer.parameters()
    states = {n: optimizer.state.get(parameters[n], {}) for n in index}
    return {n: s[key] for n, s in states.items() for key in MOMENTUM if s.get(key) is not None}


class MSAM(StandIn):
    """Momentum-SAM (Becker et al., 2024) as a plain optimizer: ``zero_grad``, ``backward``, ``step``, as ever.

    Gradients are taken at theta - rho v / ||v||, v the base's momentum, and ``step`` moves theta by them. With
    ``model``, the weights are there from a forward pass in training mode to the step, and theta otherwise. Without it
    they stay there: call ``eval()``, which brings theta back bit for bit, before weights are evaluated, saved, averaged
    or changed, and ``train()`` to go on.

    Args:
        params: Parameters, or groups of them; a group's own radius goes under ``sam_rho``, ``perturb=False`` has none.
        base: The class of the base, which must keep a momentum: SGD with one, Adam and its relatives.
        rho: Radius, about ten times SAM's.
        model: The module that is trained.
        settings: Of the base: ``lr``, ``momentum``, ...

    >>> net = nn.Linear(4, 2)
    >>> optimizer = MSAM(net.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9, model=net)
    >>> optimizer.zero_grad()
    >>> net(torch.randn(8, 4)).square().mean().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        params: Iterable[Any],
        base: Callable[..., Optimizer] = SGD,
        *,
        rho: float = 0.5,
        model: nn.Module | None = None,
        **settings: Any,
    ) -> None:
        self.rho = checked_number("rho", rho)
        if base is SGD:
            settings.setdefault("momentum", 0.9)
        self.base = base(params, **settings)
        if any(group.get("momentum") == 0 for group in self.param_groups):
            raise ValueError(NO_MOMENTUM)
        self._moved: perturbed | None = None
        self._versions: list[int] | None = None
        """How often each of the moved weights had been written to when they had moved."""
        self._refuse_shards('esam.METHODS["msam"](base, model)')
        self._adopt_hooks()
        self._hook, self._follows = _Follow(self), model is not None
        self._seen = False
        """Whether the model has made a forward pass in training mode since the last step: the next one goes there."""
        if model is not None:
            model.register_forward_pre_hook(self._hook)
            model.register_state_dict_pre_hook(self._hook)  # type: ignore[no-untyped-call]
            model.register_load_state_dict_pre_hook(self._hook)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def train(self) -> None:
        """Go to theta - rho v / ||v||, where gradients are taken."""
        if self._moved is not None:
            return
        radii = self.radii()
        v = momenta(self, radii)
        if radii and not v and self.state:
            raise ValueError(NO_MOMENTUM)
        if v:
            weights, eps = self.parameters(), l2_ascent(Gradients(v, v.values()), {n: -radii[n] for n in v})
            self._moved = perturbed([weights[n] for n in eps.index], eps.tensors)
            self._moved.__enter__()
            self._versions = [w._version for w in self._moved.weights]

    def eval(self) -> None:
        """Bring theta back, to evaluate and to save."""
        if self._moved is not None:
            if self._versions not in (None, [w._version for w in self._moved.weights]):
                raise ValueError(
                    "weights were changed while they stood at theta - rho v / ||v||, which would lose the change: call "
                    "optimizer.eval() before it and optimizer.train() after it, or pass model="
                )
            self._moved.restore()
            self._moved = None

    def close(self) -> None:
        """Bring theta back and let go of the model: before another optimizer takes over."""
        self.eval()
        self._hook.optimizer = None

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Let the base move theta by the gradients at hand, and go to the next point along the momentum."""
        loss = None
        if closure is not None:
            self.train()
            with torch.enable_grad():
                loss = closure()
        if self._moved is None and momenta(self, self.radii()):
            warn_caller(
                "this step's gradient was taken at theta, as the base alone takes it: the forward pass was none of the "
                "model in training mode; keep frozen layers alone in eval(), or call optimizer.train() before it",
                GuidanceWarning,
            )
        self.eval()
        self.base.step()
        if not self._seen:
            self.train()
        self._seen = False
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the base's state. Without ``model``, the weights are theta only after ``eval()``: save them then."""
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from ``state_dict``; call ``train()`` once the model's weights are loaded, or pass ``model``."""
        if self._follows:
            self.eval()
        self._moved = None  # without the model, the weights that were there are the caller's to load
        self.base.load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_versions": None}  # a copy's weights count anew


class _Follow:
    """A hook of the model: weights are the point to differentiate at in training passes, and theta in all others.

    A copy of the model, as averages of weights are, and a pickled model have no optimizer to move.
    """

    def __init__(self, optimizer: MSAM | None = None) -> None:
        self.optimizer = optimizer

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, model: nn.Module, *what: Any) -> None:
        if self.optimizer is None:
            return
        if model.training and isinstance(what[0], tuple):  # a forward pass: it hands its inputs over
            self.optimizer.train()
            self.optimizer._seen = True
        else:
            self.optimizer.eval()

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _Follow, ()
