"""``esam train``: one run, with checkpoints and a record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from esam.train.config import Config

from .parsing import ConfigFile, config_text, parse_run, take_recipe

if TYPE_CHECKING:
    from esam.compare.plan import Comparison
    from esam.train.record import RunRecord
    from esam.train.runs import Parts

    from .progress import View


@dataclass(frozen=True)
class TrainOptions:
    """One run. Killed or interrupted, the same command resumes."""

    config: tyro.conf.OmitArgPrefixes[Config]
    out: Path = Path("runs/train")
    """Folder of the record and the checkpoints."""
    file: ConfigFile = None
    """Options from a TOML file, as --print-config writes it; what is typed wins."""
    print_config: bool = False
    """Print every option as it takes effect, as such a file, and train nothing."""
    quiet: bool = False
    """Print the result alone."""
    track: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()
    """Also write the figures of each epoch by these libraries (extras of the same names), into the run's folder."""
    tensorboard: bool = False
    """The same as --track tensorboard."""


def train(arguments: list[str]) -> None:
    """``esam train``: one run."""
    recipe = take_recipe(arguments)
    options, config = parse_run("train", TrainOptions, arguments, recipe.config if recipe else Config())
    config = config if recipe is None else _of_recipe(recipe, config)
    if options.print_config:
        print(config_text("train", config, Config, {"out": options.out, "track": _tracked(options)}))
        return
    from rich.console import Console

    from esam.compare.check import check
    from esam.compare.plan import PlannedRun
    from esam.extras import require
    from esam.files import check_folder
    from esam.train.ranks import Ranks
    from esam.train.trackers import find_tracker

    require("safetensors", purpose="keeping the weights")
    check_folder(options.out)
    check([PlannedRun(config, options.out)])
    first = Ranks.current().first  # on several ranks this one alone tells, and writes
    trackers = [find_tracker(name, options.out, config) for name in _tracked(options)] if first else []
    try:
        record = _trained(config, options, trackers, Console(), quiet=options.quiet or not first)
    finally:
        for tracker in trackers:
            tracker.end()
    assert record.end is not None, "a run that is over has an end"
    if record.diverged:
        raise RuntimeError(f"{record.name} diverged: {record.end['error']}; record in {options.out}")
    last, best = (record.end["test_accuracy"][which] for which in ("last", "best"))
    told = "no epoch trained" if last is None else f"test accuracy {100 * last:.2f} % (best {100 * best:.2f} %)"
    if last is None and record.end["test_loss"] is not None:  # the targets are no classes
        told = f"test loss {record.end['test_loss']:.4g}"
    Console().print(f"{record.name}: {told}, record in {options.out}", highlight=False, markup=False, soft_wrap=True)


def _trained(config: Config, options: TrainOptions, trackers: list[Any], console: Any, *, quiet: bool) -> RunRecord:
    from esam.train.runs import run, title
    from esam.train.trained import MEASURES

    from .progress import shown

    with shown(config, title(config), console, quiet=quiet) as view:

        def watch(metrics: dict[str, Any]) -> None:
            view.epoch(metrics)
            for tracker in trackers:
                tracker.epoch(metrics)

        parts = _counted_parts(view)
        return run(config, options.out, measures=MEASURES, watch=watch, keep_weights=True, parts=parts)


def _counted_parts(view: View) -> Any:
    from esam.train.counted import Counted
    from esam.train.runs import configured_parts

    def made(config: Config) -> Parts:
        parts = configured_parts(config)
        return replace(parts, train=Counted(parts.train, view.batch))

    return made


def _tracked(options: TrainOptions) -> tuple[str, ...]:
    named = (*options.track, *(["tensorboard"] if options.tensorboard else []))
    return tuple(dict.fromkeys(named))


def _of_recipe(recipe: Comparison, asked: Config) -> Config:
    """Return the recipe's run of the method that was asked for, with whatever else was asked for in place."""
    from esam.compare.plan import configured

    whole = configured(recipe, asked.method, asked.seed)
    given = {name: value for name, value in vars(asked).items() if value != getattr(recipe.config, name)}
    own = {name: v for name, v in asked.settings.items() if recipe.config.settings.get(name) != v}
    return replace(whole, **{**given, "settings": {**whole.settings, **own}})
