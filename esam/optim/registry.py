"""Which methods are there, by name? One row is the whole method; everything else in the package reads it here."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from .methods.aesam import AESAM
from .methods.averaged import BaseAverage
from .methods.base import Base, BasePart
from .methods.esam import ESAM
from .methods.follow import FollowingESAM
from .methods.headsam import HeadSAM
from .methods.level import LevelSDS
from .methods.looksam import LookSAM
from .methods.momentum import MomentumSAM
from .methods.noise import RandomPerturbation
from .methods.partsam import PartSAM
from .methods.saf import SAF
from .methods.sam import ASAM, SAM
from .methods.slicesam import SliceSAM
from .methods.sometimes import SometimesSAM
from .methods.unbiased import UnbiasedSAM
from .step import SharpnessAware

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Method:
    """A row of the registry."""

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
    kind: Literal["method", "control", "study"] = "method"
    """A method to train with; a control that gains are measured against; or a step that is there to be compared."""

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

    def effective(self, given: Settings | None = None) -> dict[str, Any]:
        """Return every setting that counts, by its value: what was given, the row's own, the class's defaults.

        Two runs are the same when these are; a setting without effect beside the others (a ranking where all samples
        are kept) is left out.
        """
        whole = {**_keywords(self.build), **self.settings, **(given or {})}
        return {name: value for name, value in whole.items() if name not in self.build.idle(whole)}

    def units(self, given: Settings | None = None) -> float:
        """Return what a step costs with these settings: the base optimizer 3, SAM 6.

        >>> round(METHODS["esam"].units(), 2)
        5.1
        """
        return self.cost({**_keywords(self.build), **self.settings, **(given or {})})


def _keywords(build: type[SharpnessAware]) -> dict[str, Any]:
    """Return a class's settings with their defaults; the seed is a run's, not a method's."""
    parameters = inspect.signature(build).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "seed"}


def _plain_type(hint: Any) -> type:
    """Return what a word on the command line is turned into: ``int | None`` is int, a name or a function is str."""
    kinds = [kind for kind in (float, int) if kind in (hint, *typing.get_args(hint))]
    return kinds[0] if kinds else str


def _esam_cost(settings: Settings) -> float:
    backward = 2 * settings["beta"] if settings["mask"] == "suffix" else 1 + settings["beta"]
    ranking = 1.0 if settings["ranking"] == "exact" and settings["gamma"] < 1 else 0.0
    return float(1 + backward + ranking + 3 * settings["gamma"])


def _slice_cost(settings: Settings) -> float:
    runs = 1 if settings["ranking"] == "random" or settings["share"] == 1 else 2  # a ranked slice runs at theta again
    return float(3 + 3 * runs * settings["share"] / settings["k"])


def _part_cost(settings: Settings) -> float:
    first = 3 if settings["tensors"] == "all" else 2  # norm layers have next to no weights
    return float(first * settings["share"] + 3 * (settings["share"] if settings["descent"] == "part" else 1))


def _sometimes_cost(settings: Settings) -> float:
    return float(3 + 3 * settings["share"])


RECOMMENDED = "slicesam"
"""The method that we recommend: best on the map of ``esam frontier``, at little more than SGD's price."""

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
    "esam-follow": Method(
        "ESAM, gamma following",
        "ESAM that keeps more of each batch as long as the loss is high.",
        FollowingESAM,
        None,
        _esam_cost,
        kind="study",
    ),
    "sds-level": Method(
        "SDS, steps of the batch's length",
        "ESAM-SDS whose gradient is as long as the whole batch's.",
        LevelSDS,
        None,
        lambda settings: _esam_cost({**settings, "beta": 1.0, "mask": "independent"}),
        kind="study",
    ),
    "slicesam": Method(
        "SliceSAM",
        "The batch's gradient, with SAM's correction from an eighth of the batch.",
        SliceSAM,
        "#7e2afc",
        _slice_cost,
    ),
    "sam-ascent-part": Method(
        "SAM, ascent on a part",
        "eps from a quarter of the batch; all of it descends.",
        PartSAM,
        None,
        _part_cost,
        kind="study",
    ),
    "sam-descent-part": Method(
        "SAM, descent on a part",
        "eps from the whole batch; a random half of it descends.",
        ESAM,
        None,
        _esam_cost,
        {"beta": 1.0, "ranking": "random"},
        kind="study",
    ),
    "sam-half": Method(
        "SAM on a half",
        "Both passes on one random half of the batch.",
        PartSAM,
        None,
        _part_cost,
        {"share": 0.5, "descent": "part"},
        kind="study",
    ),
    "sam-on": Method(
        "SAM-ON",
        "SAM in the norm layers alone.",
        PartSAM,
        None,
        _part_cost,
        {"share": 1.0, "tensors": "norm", "rho": 0.5},
    ),
    "sam-late": Method(
        "SAM, late", "SAM in the last quarter of training.", SometimesSAM, None, _sometimes_cost, kind="study"
    ),
    "sam-early": Method(
        "SAM, early",
        "SAM in the first quarter of training.",
        SometimesSAM,
        None,
        _sometimes_cost,
        {"when": "early"},
        kind="study",
    ),
    "sam-every": Method(
        "SAM, every fourth",
        "SAM in every fourth step.",
        SometimesSAM,
        None,
        _sometimes_cost,
        {"when": "every"},
        kind="study",
    ),
    "ae-sam": Method("AE-SAM", "SAM where the gradient norm is high for its time.", AESAM, None, lambda _: 4.5),
    "sam-unbiased": Method(
        "SAM, unbiased part",
        "The second pass on a part, drawn by the loss and weighted back.",
        UnbiasedSAM,
        None,
        lambda settings: 3 + 3 * settings["gamma"],
        kind="study",
    ),
    "msam": Method("Momentum-SAM", "One pass, at a point against the momentum.", MomentumSAM, None, lambda _: 3.0),
    "msam-along": Method(
        "Momentum-SAM, along",
        "One pass, at a point along the momentum.",
        MomentumSAM,
        None,
        lambda _: 3.0,
        {"direction": "along", "rho": 0.1},
        kind="study",
    ),
    "rwp": Method(
        "Random perturbation",
        "One pass, at a random point nearby.",
        RandomPerturbation,
        None,
        lambda _: 3.0,
        kind="study",
    ),
    "head-sam": Method(
        "Head-SAM",
        "SAM in the last layer, sample by sample, in closed form.",
        HeadSAM,
        None,
        lambda _: 3.0,
        kind="study",
    ),
    "saf": Method("SAF", "Outputs stay near those of three epochs ago.", SAF, None, lambda _: 3.0),
}
