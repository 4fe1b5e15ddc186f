"""How is an optimizer made from names and settings alone? For configuration files, registries and sweeps."""

from __future__ import annotations

import fnmatch
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .optim import SharpnessAware, method_of
from .optim.registry import METHODS

__all__ = ["OptimizerFactory", "create_optimizer", "decay_groups", "list_methods"]


def list_methods(pattern: str = "*") -> list[str]:
    """Return the names of methods, all or those that match.

    >>> list_methods("esam*")
    ['esam', 'esam-random', 'esam-sds', 'esam-swp']
    """
    return sorted(fnmatch.filter(METHODS, pattern))


def create_optimizer(
    method: str,
    model: nn.Module,
    *,
    base: str | type[Optimizer] | Callable[..., Optimizer] = "sgd",
    no_decay: bool = True,
    **settings: Any,
) -> SharpnessAware:
    """Make a method's optimizer with its base from names: usable as a ``_target_`` of Hydra.

    Args:
        method: A name of ``list_methods()``, or a class as ``package.module:Class``.
        model: The module to train.
        base: The base by name, of torch.optim or else of pytorch_optimizer where that is installed; or a class.
        no_decay: Leave biases and norm layers (all tensors with fewer than two dimensions) out of ``weight_decay``.
        settings: Of the method (``rho``, ...) and of the base (``lr``, ``weight_decay``, ...), by name; a name that
            both know is the method's: pass the base as ``functools.partial(cls, ...)`` then.

    >>> optimizer = create_optimizer("sam", nn.Linear(4, 2), base="adamw", lr=1e-3, weight_decay=0.1, rho=0.1)
    >>> type(optimizer).__name__, type(optimizer.base).__name__, optimizer.rho
    ('SAM', 'AdamW', 0.1)
    """
    row = method_of(method)
    make = _base_class(base) if isinstance(base, str) else base
    of_method = _keywords(row.build.__init__) | _keywords(SharpnessAware.__init__)
    ours = {name: value for name, value in settings.items() if name in of_method}
    theirs = {name: value for name, value in settings.items() if name not in of_method}
    known = _keywords(make)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(make).parameters.values())
    if not takes_any and (unknown := sorted(set(theirs) - known)):
        raise ValueError(
            f"neither {row.named('the base')} nor {getattr(make, '__name__', base)} has a setting {unknown[0]!r}; "
            f"the method has {', '.join(sorted(row.options()))}; the base {', '.join(sorted(known - {'params'}))}"
        )
    decay = theirs.get("weight_decay", 0.0)
    parameters: Any = decay_groups(model, decay) if no_decay and decay else list(model.parameters())
    return row(make(parameters, **theirs), model, **ours)


class OptimizerFactory:
    """Make an optimizer as Hugging Face's Trainer asks for it.

    ``optimizer_cls_and_kwargs=(OptimizerFactory, {"method": "sam", "base": "adamw", "lr": 1e-4})``
    """

    def __call__(self, model: nn.Module, *, method: str, **settings: Any) -> SharpnessAware:
        """Make the optimizer."""
        return create_optimizer(method, model, **settings)


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two parameter groups: matrices and filters, which decay, and biases and norms, which do not.

    >>> [len(g["params"]) for g in decay_groups(nn.Linear(4, 2), 0.1)]
    [1, 1]
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _base_class(name: str) -> Callable[..., Optimizer]:
    wanted = name.lower().replace("_", "").replace("-", "")
    of_torch = {k.lower(): v for k, v in vars(torch.optim).items() if isinstance(v, type) and issubclass(v, Optimizer)}
    if wanted in of_torch:
        return of_torch[wanted]
    try:
        load: Callable[[str], Callable[..., Optimizer]] = importlib.import_module("pytorch_optimizer").load_optimizer
        return load(wanted)
    except ImportError:
        beyond = "; pip install torch-esam[bases] for a hundred more"
    except NotImplementedError:
        beyond = ""
    there = ", ".join(sorted(k for k in of_torch if k not in ("optimizer", "lbfgs")))
    raise ValueError(f"there is no base {name!r}; torch has {there}{beyond}")


def _keywords(function: Callable[..., Any]) -> set[str]:
    """Return the names of the keywords that a function takes."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
