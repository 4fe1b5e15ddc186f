"""How is a setting searched, by one worker or many? With Optuna: its study, storage, samplers, pruner and heartbeat.

A word names a setting and its values: ``lr=0.01,0.05,0.1`` (these), ``rho=0.01..0.5:log`` (a range, by its logarithm),
``beta=0.2..1:0.2`` (a range in steps). Settings of the training and of the methods are named alike.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
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

from .plan import Comparison, PlannedRun, configured, folder_of
from .pool import Executor, StartedRun

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
RUN, FAILURE = "run", "failure"
"""Attributes of a trial: its run's folder, and why it gave no result."""
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
"""Trials that are not done again; one that was interrupted or lost with its worker is."""
RETRIES = 5

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=ExperimentalWarning)  # heartbeats, the grid, the sampler's constant_liar


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


@dataclass(frozen=True)
class Search:
    """What is searched, how, and by what trials are judged; the same description is the same search."""

    start: Comparison
    """The run that the trials vary, and what differs in it for a method."""
    words: tuple[str, ...]
    """The settings to search, as ``read_dimension`` takes them."""
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    trials: int = 20
    """How many in all, whoever does them; a grid has as many as it has points."""
    objective: Literal["accuracy", "loss"] = "accuracy"
    prune: bool = False

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ValueError(f"trials must be 1 or more, got {self.trials}")
        if not self.words:
            raise ValueError("a search needs settings to search: write --search lr=0.01..1:log rho=0.05,0.1")
        if len(self.dimensions) < len(self.words):
            raise ValueError(f"a setting is searched twice in {' '.join(self.words)}; give all its values in one word")
        values = self.dimensions.get("method")
        methods = values.choices if isinstance(values, CategoricalDistribution) else (self.start.config.method,)
        for name, values in self.dimensions.items():
            if not sum(_applies(name, str(method)) for method in methods):  # looks every method up
                raise ValueError(f"{name} is searched, and {', '.join(map(str, methods))} takes none; see esam methods")
            if self.sampler == "grid" and isinstance(values, FloatDistribution) and values.step is None:
                raise ValueError(f"a grid needs values of {name}: write {name}=0.1,0.2 or a range with a step")

    @property
    def dimensions(self) -> dict[str, BaseDistribution]:
        """What is searched; the method first, as the others depend on it."""
        return dict(sorted(map(read_dimension, self.words), key=lambda pair: pair[0] != "method"))

    def suggested(self, trial: Trial) -> Config:
        """Return the run that a trial is to be: the method first, then only the settings that it has."""
        chosen: dict[str, Any] = {}
        for name, values in self.dimensions.items():
            if not _applies(name, chosen.get("method", self.start.config.method)):
                continue
            if isinstance(values, CategoricalDistribution):
                chosen[name] = trial.suggest_categorical(name, values.choices)
            elif isinstance(values, (IntDistribution, FloatDistribution)):
                suggest: Any = trial.suggest_int if isinstance(values, IntDistribution) else trial.suggest_float
                chosen[name] = suggest(name, values.low, values.high, step=values.step, log=values.log)
        return self.config(chosen).check()

    def config(self, chosen: Mapping[str, Any]) -> Config:
        """Return a run with these values, all else as in the search, judged on held-out training data."""
        common = self.start.config
        config = configured(self.start, chosen.get("method", common.method), common.seed)
        fields = {name: value for name, value in chosen.items() if name in TRAINING}
        settings = {name: value for name, value in chosen.items() if name not in TRAINING}
        return dataclasses.replace(config, **fields, settings={**config.settings, **settings}, validation=True)

    def id(self) -> str:
        """Return a name that follows from the description alone, whatever the number of trials."""
        start = [self.start.config.as_json(), self.start.settings]
        described = [start, self.words, self.sampler, self.objective, self.prune]
        return hashlib.sha256(json.dumps(described, sort_keys=True, default=dict).encode()).hexdigest()[:10]


def _applies(name: str, method: str) -> bool:
    """Whether the method has this setting to search."""
    row = find_method(method)
    return name in TRAINING or (name in row.options() and name not in row.settings)


class Sweep:
    """A search in a database; every worker that starts the same search there takes part in it."""

    def __init__(self, search: Search, url: str, *, heartbeat: int = 20) -> None:
        self.search = search
        self.direction, self.key = OBJECTIVES[search.objective]
        self.study = optuna.create_study(
            study_name=f"sweep-{search.id()}",
            storage=_storage(url, heartbeat),
            sampler=SAMPLERS[search.sampler](),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=4) if search.prune else optuna.pruners.NopPruner(),
            direction=self.direction,
            load_if_exists=True,  # begun before, or by another worker
        )

    def work(
        self,
        out: Path,
        executor: Executor,
        *,
        jobs: int = 1,
        tell: Callable[[str], None] = lambda _: None,
        poll: float = 0.2,
    ) -> None:
        """Do trials, ``jobs`` at a time, until there are enough; those of a worker that is gone are done again."""
        grid, most, stop = self.search.sampler == "grid", self.search.trials, threading.Event()
        enough = [] if grid else [MaxTrialsCallback(most, states=ENDED)]

        def objective(trial: Trial) -> float:
            """Do a trial and return its value; one without a result is pruned, as it would have none another time."""
            result = "pruned"
            try:
                config = self.search.suggested(trial)
                value = self._value(trial, PlannedRun(config, folder_of(config, out)), executor, stop, poll)
                result = f"{self.search.objective} {value:.4g}"
                return value
            except (ValueError, OSError, RuntimeError) as error:
                trial.set_user_attr(FAILURE, str(error))
                result = f"failed ({error})"
                raise TrialPruned from error
            finally:
                chosen = ", ".join(f"{name} {_short(value)}" for name, value in trial.params.items())
                tell(f"trial {trial.number} ({chosen}): {'interrupted' if stop.is_set() else result}")

        if enough and len(self.trials(*ENDED)) >= most:
            return
        with ThreadPoolExecutor(1) as thread:  # so that an interruption, which comes to this thread, can stop it
            optimizing = thread.submit(self.study.optimize, objective, n_jobs=jobs, callbacks=enough)
            try:
                optimizing.result()
            finally:
                stop.set()

    def _value(self, trial: Trial, run: PlannedRun, executor: Executor, stop: threading.Event, poll: float) -> float:
        """Do a trial's run, or resume it, and return what it is judged by; of equal ones, the first is done."""
        trial.set_user_attr(RUN, run.folder.name)
        if not run.ended:
            self._follow(trial, run, executor.start(run), stop, poll)
        record = run.record()
        if record is None or record.diverged:
            raise RuntimeError("it left no record" if record is None else (record.end or {}).get("error"))
        if (value := record.epochs[-1].get(self.key)) is None:
            raise ValueError(f"its record has no {self.search.objective}")
        return float(value)

    def _follow(self, trial: Trial, run: PlannedRun, started: StartedRun, stop: threading.Event, poll: float) -> None:
        """Wait for the end of a run; end one that falls behind the others, or where the worker is to stop."""
        reported, failure = 0, None
        try:
            while failure is None:
                failure = started.poll()
                record = run.record() if self.search.prune else None
                for line in () if record is None else record.epochs:
                    if line["epoch"] > reported and line.get(self.key) is not None:
                        reported = line["epoch"]
                        trial.report(line[self.key], reported)
                        if trial.should_prune():
                            raise TrialPruned
                if failure is None and stop.wait(poll):
                    self.study.enqueue_trial(trial.params)  # it waits for whoever comes next
                    raise _Stopped
        finally:
            if failure is None:
                started.end()
        if failure:
            raise RuntimeError(failure)

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Return the trials in these states, in their order; all of them if none is named."""
        return list(self.study.get_trials(deepcopy=False, states=states or None))

    def best_first(self) -> list[FrozenTrial]:
        """Return the trials that have a result, the best first."""
        sign = -1 if self.direction == "maximize" else 1
        return sorted(self.trials(TrialState.COMPLETE), key=lambda trial: (sign * trial.value, trial.number))


class _Stopped(Exception):
    """The worker is to end."""


def trials_sheet(sweep: Sweep, most: int = 20) -> Sheet:
    """Return the best trials as a table."""
    best, failed = sweep.best_first(), sum(FAILURE in trial.user_attrs for trial in sweep.trials())
    others = {"pruned": len(sweep.trials(TrialState.PRUNED)) - failed, "failed": failed}
    counts = [f"{len(best)} trials ended", *(f"{count} {how}" for how, count in others.items() if count)]
    names = list(sweep.search.dimensions)
    rows = [[f"trial {t.number}", *(_short(t.params.get(name, "")) for name in names), _short(t.value)] for t in best]
    head = ("Trial", *names, f"Held-out {sweep.search.objective}")
    return Sheet(f"{', '.join(counts)}; {sweep.search.sampler}", head, tuple(map(tuple, rows[:most])))


def shown_url(url: str) -> str:
    """Return a database's address as it may be shown: without a password."""
    return str(sqlalchemy.engine.make_url(url).render_as_string(hide_password=True))


def _storage(url: str, heartbeat: int) -> RDBStorage:
    parts = sqlalchemy.engine.make_url(url)
    engine: dict[str, Any] = {"poolclass": sqlalchemy.pool.NullPool}  # nothing stays open between queries
    if parts.drivername == "postgresql":
        parts = parts.set(drivername="postgresql+psycopg")
    if parts.drivername == "sqlite":
        Path(parts.database).parent.mkdir(parents=True, exist_ok=True)
        engine["connect_args"] = {"timeout": 60}
    for last in (False, False, True):  # two workers may make the tables of an empty database at once
        try:
            return RDBStorage(
                parts.render_as_string(hide_password=False),
                engine_kwargs=engine,
                heartbeat_interval=heartbeat,
                grace_period=3 * heartbeat,
                heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=RETRIES),
            )
        except sqlalchemy.exc.SQLAlchemyError as error:
            if isinstance(error, sqlalchemy.exc.OperationalError) and parts.drivername != "sqlite":
                reason = str(error.orig).splitlines()[0]
                raise ValueError(f"{shown_url(url)} (--storage) cannot be reached: {reason}") from error
            if last:
                raise
            time.sleep(1)
    raise AssertionError("the last attempt returns or raises")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
