"""How is a setting searched, by one worker or many? With Optuna: its study, storage, samplers, pruner and heartbeat.

A word names a setting and its values: ``lr=0.01,0.05,0.1`` (these), ``rho=0.01..0.5:log`` (a range, by its logarithm),
``beta=0.2..1:0.2`` (a range in steps). Settings of the training and of the methods are named alike.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
import sqlalchemy
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning, TrialPruned
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.study import MaxTrialsCallback
from optuna.trial import FrozenTrial, Trial, TrialState

from esam.optim import METHODS
from esam.report.sheets import Sheet
from esam.train.config import Config, did_you_mean, find_method

from .plan import Comparison, folder_of, trial_config
from .worker import do_run, failure_line

TRAINING: dict[str, type] = {
    **dict.fromkeys(("method", "model", "optimizer", "schedule", "augment", "precision"), str),
    **dict.fromkeys(("lr", "momentum", "weight_decay"), float),
    **dict.fromkeys(("epochs", "batch_size", "train_size", "size"), int),
}
"""Settings of the training that can be searched, by type."""
OBJECTIVES = {"accuracy": ("maximize", "test_accuracy"), "loss": ("minimize", "test_loss")}
"""Which way is better, and where the value is in an epoch's line."""
SAMPLERS: dict[str, Callable[[], optuna.samplers.BaseSampler]] = {
    "tpe": functools.partial(optuna.samplers.TPESampler, constant_liar=True),  # others' running trials count as poor
    "random": optuna.samplers.RandomSampler,
    "grid": optuna.samplers.BruteForceSampler,  # ends the search after its last point
}
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
"""Trials that are not done again; one that was interrupted or lost with its worker is."""
HEARTBEAT, RETRIES = 20, 5
"""Seconds between signs of life of a worker; after three without one, its trial is done again, at most so often."""

warnings.filterwarnings("ignore", category=ExperimentalWarning)  # heartbeats, the grid, the sampler's constant_liar


@dataclass(frozen=True)
class SweepOptions:
    """A search for settings, judged on held-out training data. The same command resumes it, or takes part in it."""

    search: tuple[str, ...] = ()
    """What to search, as in lr=0.01..1:log rho=0.05,0.1 method=sam,esam."""
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    """How the next trial is chosen."""
    trials: int = 20
    """Trials in all, whoever does them; a grid has as many as it has points."""
    objective: Literal["accuracy", "loss"] = "accuracy"
    """What trials are judged by, on held-out training data."""
    prune: bool = False
    """End a trial that is worse than the median of the earlier ones at the same epoch."""
    out: Path = Path("runs/sweep")
    """Folder of the runs, and of the database unless --storage names another."""
    storage: str = ""
    """Database of the search: sqlite:///FILE, or postgresql://USER@HOST/NAME. On many machines, the same command with
    the same database is a worker of the same search; started twice here, two trials go on at a time."""


class Sweep:
    """A search in a database; every worker that starts the same search there takes part in it."""

    def __init__(self, start: Comparison, options: SweepOptions) -> None:
        self.start, self.options = start, options
        self.direction, self.key = OBJECTIVES[options.objective]
        self.url = options.storage or f"sqlite:///{(options.out / 'sweep.db').absolute()}"
        if options.trials < 1:
            raise ValueError(f"trials must be 1 or more, got {options.trials}")
        if not options.search:
            raise ValueError("a search needs settings to search: write --search lr=0.01..1:log rho=0.05,0.1")
        # the method first, as the others depend on it
        self.dimensions = dict(sorted(map(read_dimension, options.search), key=lambda pair: pair[0] != "method"))
        if len(self.dimensions) < len(options.search):
            words = " ".join(options.search)
            raise ValueError(f"a setting is searched twice in {words}; give all its values in one word")
        values = self.dimensions.get("method")
        methods = values.choices if isinstance(values, CategoricalDistribution) else (start.config.method,)
        for name, values in self.dimensions.items():
            if not sum(_applies(name, str(method)) for method in methods):  # looks every method up
                raise ValueError(f"{name} is searched, and {', '.join(map(str, methods))} takes none; see esam methods")
            if options.sampler == "grid" and isinstance(values, FloatDistribution) and values.step is None:
                raise ValueError(f"a grid needs values of {name}: write {name}=0.1,0.2 or a range with a step")

    @functools.cached_property
    def study(self) -> optuna.Study:
        """The search in the database; its name follows from the description, whatever the number of trials."""
        options = self.options
        start = [self.start.config.as_json(), self.start.settings]
        described = [start, options.search, options.sampler, options.objective, options.prune]
        digest = hashlib.sha256(json.dumps(described, sort_keys=True, default=dict).encode()).hexdigest()
        return optuna.create_study(
            study_name=f"sweep-{digest[:10]}",
            storage=_storage(self.url),
            sampler=SAMPLERS[options.sampler](),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=4) if options.prune else optuna.pruners.NopPruner(),
            direction=self.direction,
            load_if_exists=True,  # begun before, or by another worker
        )

    def work(self) -> None:
        """Do trials in this process until there are enough, or all of a grid; Optuna logs each trial."""
        most = [] if self.options.sampler == "grid" else [MaxTrialsCallback(self.options.trials, states=ENDED)]
        if not most or len(self.study.get_trials(states=ENDED)) < self.options.trials:
            self.study.optimize(self._value, callbacks=most)

    def _value(self, trial: Trial) -> float:
        """Do a trial's run, or resume it, and return what it is judged by.

        A trial without a result is pruned, as it would have none another time.
        """

        def report(metrics: dict[str, Any]) -> None:
            if metrics.get(self.key) is not None:
                trial.report(metrics[self.key], metrics["epoch"])
                if trial.should_prune():
                    raise TrialPruned

        try:
            config = self.suggested(trial)
            folder = folder_of(config, self.options.out)
            trial.set_user_attr("run", folder.name)
            record = do_run(config, folder, watch=report)
        except KeyboardInterrupt:
            self.study.enqueue_trial(trial.params)  # it waits for whoever comes next
            raise
        except TrialPruned:
            raise
        except Exception as error:  # of any kind: the model, the data and the loss may be the user's
            raise TrialPruned(f"It failed: {failure_line(error)}") from error
        if record.diverged:
            raise TrialPruned(f"It diverged: {(record.end or {}).get('error')}")
        if (value := record.epochs[-1].get(self.key)) is None:
            raise TrialPruned(f"Its record has no {self.options.objective}")
        return float(value)

    def suggested(self, trial: Trial) -> Config:
        """Return the run that a trial is to be: the method first, then only the settings that it has."""
        method, chosen = self.start.config.method, dict[str, Any]()
        for name, values in self.dimensions.items():
            if not _applies(name, method):
                continue
            if isinstance(values, CategoricalDistribution):
                chosen[name] = trial.suggest_categorical(name, values.choices)
            elif isinstance(values, (IntDistribution, FloatDistribution)):
                suggest: Any = trial.suggest_int if isinstance(values, IntDistribution) else trial.suggest_float
                chosen[name] = suggest(name, values.low, values.high, step=values.step, log=values.log)
            method = chosen.pop("method", method)
        return trial_config(self.start, method, chosen, self.start.config.seed).check()

    def best_first(self) -> list[FrozenTrial]:
        """Return the trials that have a result, the best first."""
        sign = -1 if self.direction == "maximize" else 1
        done = self.study.get_trials(states=[TrialState.COMPLETE])
        return sorted(done, key=lambda trial: (sign * trial.value, trial.number))

    def sheet(self, most: int = 20) -> Sheet:
        """Return the best trials as a table."""
        best, pruned = self.best_first(), len(self.study.get_trials(states=[TrialState.PRUNED]))
        title = f"{len(best)} trials ended{f', {pruned} pruned or failed' if pruned else ''}; {self.options.sampler}"
        head = ("Trial", *self.dimensions, f"Held-out {self.options.objective}")
        rows = [(f"trial {t.number}", *(t.params.get(name, "") for name in self.dimensions), t.value) for t in best]
        words = [tuple(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row) for row in rows]
        return Sheet(title, head, tuple(words[:most]))


def read_dimension(word: str) -> tuple[str, BaseDistribution]:
    """Return the setting that a word such as ``rho=0.01..0.5:log`` names, and the values it may have."""
    name, equals, text = word.partition("=")
    kinds = {**{name: kind for row in METHODS.values() for name, kind in row.options().items()}, **TRAINING}
    if not equals or not text:
        raise ValueError(f"--search takes setting=values, such as lr=0.01,0.1 or rho=0.01..0.5:log, got {word!r}")
    if name not in kinds:
        raise ValueError(f"there is no setting {name!r} to search.{did_you_mean(name, kinds)}")
    kind = kinds[name]
    try:
        if ".." not in text:
            return name, CategoricalDistribution([kind(value) for value in text.split(",")])
        span, _, how = text.partition(":")
        low, high = (kind(end) for end in span.split(".."))
        log, step = how == "log", None if how in ("", "log") else kind(how)
        if kind is int:
            return name, IntDistribution(low, high, log=log, step=step or 1)
        return name, FloatDistribution(low, high, log=log, step=step)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{word!r} is no range or list of values of type {kind.__name__}: {error}") from error


def _applies(name: str, method: str) -> bool:
    """Whether the method has this setting to search."""
    row = find_method(method)
    return name in TRAINING or (name in row.options() and name not in row.settings)


def shown_url(url: str) -> str:
    """Return a database's address as it may be shown: without a password."""
    return repr(sqlalchemy.engine.make_url(url))


def _storage(url: str, attempts: int = 2) -> RDBStorage:
    parts = sqlalchemy.engine.make_url(url)
    engine: dict[str, Any] = {"poolclass": sqlalchemy.pool.NullPool}  # nothing stays open between queries
    if parts.drivername == "postgresql":
        parts = parts.set(drivername="postgresql+psycopg")
    if parts.drivername == "sqlite":
        Path(parts.database).parent.mkdir(parents=True, exist_ok=True)
        engine["connect_args"] = {"timeout": 60}
    try:
        return RDBStorage(
            parts.render_as_string(hide_password=False),
            engine_kwargs=engine,
            heartbeat_interval=HEARTBEAT,
            grace_period=3 * HEARTBEAT,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=RETRIES),
        )
    except sqlalchemy.exc.SQLAlchemyError as error:
        if attempts > 1:  # two workers may make the tables of an empty database at once
            time.sleep(1)
            return _storage(url, attempts - 1)
        reason = str(getattr(error, "orig", error)).splitlines()[0]
        raise ValueError(f"{shown_url(url)} (--storage) cannot be reached: {reason}") from error
