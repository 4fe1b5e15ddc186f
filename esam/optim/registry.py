"""Which methods are there, by name? One row is the whole method; everything else in the package reads it here."""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from .methods.aesam import AESAM
from .methods.controls import Base, BaseAverage, BasePart
from .methods.esam import ESAM
from .methods.friendly import FSAM
from .methods.gsam import GSAM
from .methods.looksam import LookSAM
from .methods.momentum import MomentumSAM
from .methods.sam import ASAM, SAM, SAMON
from .methods.slicesam import SliceSAM
from .step import SharpnessAware

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Method:
    """A row of the registry. Records name a method by its key there, so a class may be renamed."""

    title: str
    """What people read; ``{base}`` stands for the base optimizer's own name."""
    summary: str
    """What a step does, in one sentence."""
    build: type[SharpnessAware]
    colour: str | None
    """In every chart, as #rrggbb; None: whichever is free."""
    cost: Callable[[Settings], float]
    """All settings -> what a step costs, counted: a forward pass 1, a backward pass 1 for inputs and 1 for weights."""
    settings: Settings = field(default_factory=dict)
    """What makes the class this method."""
    kind: Literal["method", "control"] = "method"
    """A method to train with, or a control that gains are measured against."""

    def __call__(self, base: Optimizer, model: nn.Module, **settings: Any) -> SharpnessAware:
        """Build the optimizer; ``settings`` go before the row's own."""
        return self.build(base, model, **{**self.settings, **settings})

    def named(self, base: str) -> str:
        """Return the title, given the base optimizer's name.

        >>> METHODS["base"].named("AdamW")
        'AdamW'
        """
        return self.title.format(base=base)

    def options(self) -> dict[str, type]:
        """Return the settings that a command line may offer, each with the type of its value."""
        hints = typing.get_type_hints(self.build.__init__)
        return {name: _plain_type(hints[name]) for name in _keywords(self.build)}

    def effective(self, settings: Settings | None = None) -> dict[str, Any]:
        """Return every setting that counts, by its value: what was given, the row's own, the class's defaults.

        Two runs are the same when these are; a setting without effect beside the others (a ranking where all samples
        are kept) is left out.
        """
        every = {**_keywords(self.build), **self.settings, **(settings or {})}
        return {name: value for name, value in every.items() if name not in self.build.ineffective(every)}

    def units(self, settings: Settings | None = None) -> float:
        """Return what a step costs with these settings: the base optimizer 3, SAM 6.

        >>> round(METHODS["esam"].units(), 2)
        5.1
        """
        return self.cost({**_keywords(self.build), **self.settings, **(settings or {})})


def method_of(name: str) -> Method:
    """Return the row of that key, or one made from a class: ``package.module:Class``.

    The class may bring ``title``, ``summary``, ``colour`` and ``cost``, a function of its settings.

    >>> method_of("esam.optim.methods.sam:SAM").named("SGD")
    'SAM'
    """
    if name in METHODS:
        return METHODS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(
            f"there is no method {name!r}; there are {', '.join(METHODS)}, or a class as package.module:Class"
        )
    try:
        build = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name}: {error}; write package.module:Class, importable from the current folder") from error
    if not (isinstance(build, type) and issubclass(build, SharpnessAware)):
        raise ValueError(f"{name} is not a subclass of esam.SharpnessAware")
    summary = (inspect.getdoc(build) or build.__name__).split("\n")[0]
    return Method(
        str(getattr(build, "title", build.__name__)),
        str(getattr(build, "summary", summary)),
        build,
        getattr(build, "colour", None),
        getattr(build, "cost", lambda _: 6.0),
    )


def _keywords(build: type[SharpnessAware]) -> dict[str, Any]:
    """Return a class's settings with their defaults; seed and loss are a run's, not a method's."""
    parameters = inspect.signature(build).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ("seed", "loss")}


def _plain_type(hint: Any) -> type:
    """Return what a word on the command line is turned into: ``int | None`` is int, a name or a function is str."""
    kinds = [kind for kind in (float, int) if kind in (hint, *typing.get_args(hint))]
    return kinds[0] if kinds else str


def _esam_cost(settings: Settings) -> float:
    backward = 2 * settings["beta"] if settings["mask"] == "suffix" else 1 + settings["beta"]
    ranking = 1.0 if settings["ranking"] == "exact" and settings["gamma"] < 1 else 0.0
    return float(1 + backward + ranking + 3 * settings["gamma"])


RECOMMENDED = "sam"
"""The method to begin with: others have reproduced its gains, and no cheaper one has shown here that it keeps them."""

METHODS: dict[str, Method] = {
    "base": Method("{base}", "The base optimizer alone.", Base, "#66707d", lambda _: 3.0, kind="control"),
    "base-part": Method(
        "{base} on a random part",
        "The control: the base on a random share gamma of each batch.",
        BasePart,
        "#828cd2",
        lambda settings: 3 * settings["gamma"],
        kind="control",
    ),
    "base-ema": Method(
        "{base}, averaged",
        "The control: the base, evaluated at a running average of its weights.",
        BaseAverage,
        None,
        lambda _: 3.0,
        kind="control",
    ),
    "sam": Method("SAM", "The gradient at theta + rho g / ‖g‖.", SAM, "#d17a12", lambda _: 6.0),
    "asam": Method("ASAM", "A neighbourhood that scales with the weights.", ASAM, "#b0329c", lambda _: 6.0),
    "sam-on": Method("SAM-ON", "SAM in the norm layers alone.", SAMON, None, lambda _: 5.0),
    "looksam": Method(
        "LookSAM",
        "SAM every k-th step; in between, what it taught is added.",
        LookSAM,
        "#0d8f58",
        lambda settings: 3 + 3 / settings["k"],
    ),
    "esam": Method("ESAM", "The paper's Algorithm 1: SWP and SDS.", ESAM, "#2b87e8", _esam_cost),
    "esam-swp": Method(
        "ESAM-SWP", "SWP alone: a share beta of the tensors is perturbed.", ESAM, "#c4273a", _esam_cost, {"gamma": 1.0}
    ),
    "esam-sds": Method(
        "ESAM-SDS", "SDS alone: the samples whose loss rises most train.", ESAM, "#5a50dc", _esam_cost, {"beta": 1.0}
    ),
    "esam-random": Method(
        "ESAM-random",
        "A random half trains; tensors are drawn from a random depth on.",
        ESAM,
        "#e4539f",
        _esam_cost,
        {"ranking": "random", "mask": "suffix"},
    ),
    "slicesam": Method(
        "SliceSAM",
        "The batch's gradient, with SAM's correction from an eighth of the batch.",
        SliceSAM,
        "#7e2afc",
        lambda settings: 3 + 3 * (settings["overhead"] or settings["share"]),
    ),
    "fsam": Method("F-SAM", "SAM with eps along the batch's own noise.", FSAM, None, lambda _: 6.0),
    "gsam": Method("GSAM", "SAM that also closes the gap to the loss itself.", GSAM, None, lambda _: 6.0),
    "ae-sam": Method("AE-SAM", "SAM where the gradient norm is high for its time.", AESAM, None, lambda _: 4.5),
    "msam": Method("Momentum-SAM", "One pass, at a point against the momentum.", MomentumSAM, None, lambda _: 3.0),
}
