"""How is a setting searched, by one worker or many? With Optuna: its study, storage, samplers, pruner and heartbeat.

A word names a setting and its values: ``lr=0.01,0.05,0.1`` (these), ``rho=0.01..0.5:log`` (a range, by its logarithm),
``beta=0.2..1:0.2`` (a range in steps). Settings of the training and of the methods are named alike.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.exceptions import ExperimentalWarning, TrialPruned, UpdateFinishedTrialError
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState

from esam.files import write_atomically
from esam.optim import METHODS
from esam.report.sheets import Sheet
from esam.train.config import Config, did_you_mean, find_method, is_factory
from esam.train.record import RunRecord

from .plan import Comparison, PlannedRun, configured
from .pool import Executor, stop_all

SAMPLERS = ("tpe", "random", "grid")
TRAINING: dict[str, type] = {
    **dict.fromkeys(("method", "model", "optimizer", "schedule", "augment", "precision"), str),
    **dict.fromkeys(("lr", "momentum", "weight_decay"), float),
    **dict.fromkeys(("epochs", "batch_size", "train_size", "size"), int),
}
"""Settings of the training that can be searched, by type."""
PAPER_GRID = ("lr=0.01,0.05,0.1,0.2", "weight_decay=0.0005,0.001", "batch_size=64,128,256")
"""The grid of the ESAM paper's appendix A.7."""
RUN, FAILURE, SEARCH = "run", "failure", "search"
"""Attributes of a trial: its run's folder, and why it failed; and of a study: what is searched."""
RETRIES = 5

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=ExperimentalWarning)  # heartbeats and the sampler's constant_liar


@dataclass(frozen=True)
class Objective:
    """A number of a run's end line, and which way is better."""

    title: str
    direction: str
    of: Callable[[Mapping[str, Any]], float | None]
    along: str = ""
    """The key of an epoch's line that shows how the run is going; "": none, and no trial can be pruned by it."""
    factor: float = 1.0


OBJECTIVES = {
    "accuracy": Objective(
        "Validation accuracy, %", "maximize", lambda end: end["test_accuracy"].get("last"), "test_accuracy", 100
    ),
    "loss": Objective("Validation loss", "minimize", lambda end: end.get("test_loss"), "test_loss"),
    "seconds": Objective("Seconds of training", "minimize", lambda end: end.get("seconds")),
    "cost": Objective(
        "Passes a sample (forward 1, backward 2)", "minimize", lambda end: end["forwards"] + 2 * end["backwards"]
    ),
    "memory": Objective("Peak memory, MB", "minimize", lambda end: end.get("peak_memory"), factor=1e-6),
    "sharpness": Objective("Sharpness", "minimize", lambda end: end.get("sharpness")),
}


@dataclass(frozen=True)
class Dimension:
    """A setting, and the values that it may have."""

    name: str
    kind: type
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None

    @classmethod
    def read(cls, word: str) -> Dimension:
        """Return what a word such as ``rho=0.01..0.5:log`` means."""
        name, equals, text = word.partition("=")
        kinds = {**{name: kind for row in METHODS.values() for name, kind in row.options().items()}, **TRAINING}
        if not equals or not text:
            raise ValueError(f"--search takes setting=values, such as lr=0.01,0.1 or rho=0.01..0.5:log, got {word!r}")
        if name not in kinds:
            raise ValueError(f"there is no setting {name!r} to search.{did_you_mean(name, kinds)}")
        kind = kinds[name]
        try:
            if ".." not in text:
                return cls(name, kind, values=tuple(kind(value) for value in text.split(",")))
            span, _, how = text.partition(":")
            low, high = (kind(end) for end in span.split(".."))
            step = None if how in ("", "log") else kind(how)
        except ValueError as error:
            raise ValueError(f"{word!r} is no range or list of values of type {kind.__name__} ({error})") from error
        if kind is str or not low < high or (how == "log" and low <= 0) or (step is not None and step <= 0):
            raise ValueError(
                f"{word!r}: a range is of numbers, from the lower to the higher, above 0 where it is log or has a step"
            )
        return cls(name, kind, low=low, high=high, log=how == "log", step=step)

    def suggest(self, trial: Trial) -> Any:
        """Return the value that a trial takes."""
        if self.values:
            return trial.suggest_categorical(self.name, list(self.values))
        if self.kind is int:
            return trial.suggest_int(self.name, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, step=self.step, log=self.log)

    def points(self) -> tuple[Any, ...]:
        """Return the values of a grid."""
        if self.values:
            return self.values
        if self.step is None:
            raise ValueError(f"a grid needs values of {self.name}: write {self.name}=0.1,0.2 or a range with a step")
        count = int((self.high - self.low) / self.step + 1e-9) + 1
        return tuple(self.kind(self.low + number * self.step) for number in range(count))

    def applies(self, method: str) -> bool:
        """Whether the method has this setting to search."""
        row = find_method(method)
        return self.name in TRAINING or (self.name in row.options() and self.name not in row.settings)


@dataclass(frozen=True)
class Search:
    """What is searched, how, and by what trials are judged; the same description is the same search."""

    config: Config
    words: tuple[str, ...]
    """The settings to search, as ``Dimension.read`` takes them."""
    sampler: str = "tpe"
    trials: int = 20
    """How many in all, whoever does them; a grid has as many as it has points."""
    objectives: tuple[str, ...] = ("accuracy",)
    prune: bool = False
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What differs for a method, as in a comparison."""
    heartbeat: int = 20
    """Seconds between a trial's signs of life; after three without one, another worker does it again."""

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise ValueError(f"sampler must be one of {', '.join(SAMPLERS)}, got {self.sampler!r}")
        for name in self.objectives:
            if name not in OBJECTIVES:
                hint = did_you_mean(name, OBJECTIVES)
                raise ValueError(f"there is no objective {name!r}.{hint} There are: {', '.join(OBJECTIVES)}")
        if not self.objectives or len(set(self.objectives)) < len(self.objectives):
            raise ValueError(f"a search needs objectives that differ, got {self.objectives}")
        if self.prune and (len(self.objectives) > 1 or not self.judges[0].along):
            raise ValueError("only a search for accuracy alone, or for loss alone, can be pruned; leave --prune out")
        if self.trials < 1 or self.heartbeat < 1:
            raise ValueError(f"trials and heartbeat must be 1 or more, got {self.trials} and {self.heartbeat}")
        names = [dimension.name for dimension in self.dimensions]
        if not names:
            raise ValueError("a search needs settings to search: write --search lr=0.01..1:log rho=0.05,0.1")
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"{twice[0]} is searched twice; give all its values in one word")
        methods = next((d.values for d in self.dimensions if d.name == "method"), (self.config.method,))
        for dimension in self.dimensions:
            if not sum(dimension.applies(method) for method in methods):  # looks every method up
                raise ValueError(f"{dimension.name} is searched, and {', '.join(methods)} takes none; see esam methods")
        if self.sampler == "grid":
            object.__setattr__(self, "trials", len(self.grid()))

    @property
    def dimensions(self) -> list[Dimension]:
        """What is searched; the method first, as the others depend on it."""
        return sorted(map(Dimension.read, self.words), key=lambda dimension: dimension.name != "method")

    @property
    def judges(self) -> list[Objective]:
        """The objectives."""
        return [OBJECTIVES[name] for name in self.objectives]

    def grid(self) -> list[dict[str, Any]]:
        """Return every point of the grid once; a setting that a method lacks makes no difference to it."""
        found: list[dict[str, Any]] = []
        for values in itertools.product(*(dimension.points() for dimension in self.dimensions)):
            point = dict(zip((d.name for d in self.dimensions), values, strict=True))
            method = point.get("method", self.config.method)
            chosen = {d.name: point[d.name] for d in self.dimensions if d.applies(method)}
            if chosen not in found:
                found.append(chosen)
        return found

    def suggested(self, trial: Trial) -> Config:
        """Return the run that a trial is to be: the method first, then only the settings that it has."""
        chosen: dict[str, Any] = {}
        for dimension in self.dimensions:
            if dimension.applies(chosen.get("method", self.config.method)):
                chosen[dimension.name] = dimension.suggest(trial)
        return self.with_choice(chosen).check()

    def with_choice(self, chosen: Mapping[str, Any]) -> Config:
        """Return a run with these values, all else as in the search, judged on held-out training data."""
        method = chosen.get("method", self.config.method)
        start = configured(Comparison(self.config, (), (), self.settings), method, self.config.seed)
        fields = {name: value for name, value in chosen.items() if name in TRAINING}
        settings = {name: value for name, value in chosen.items() if name not in TRAINING}
        return dataclasses.replace(start, **fields, settings={**start.settings, **settings}, validation=True)

    def functions(self) -> set[str]:
        """Return the functions and classes of the user's own that its runs would import."""
        searched = [value for d in self.dimensions if d.name in ("model", "method") for value in d.values]
        names = (self.config.data, self.config.model, self.config.method, *searched)
        return {name for name in names if is_factory(name)}

    def as_json(self) -> dict[str, Any]:
        """Return the search as plain JSON values."""
        lists = {"words": list(self.words), "objectives": list(self.objectives)}
        settings = {name: {**given} for name, given in self.settings.items()}
        return {**vars(self), **lists, "config": self.config.as_json(), "settings": settings}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Search:
        """Take back what ``as_json`` gave."""
        lists = {name: tuple(values[name]) for name in ("words", "objectives")}
        return cls(**{**values, **lists, "config": Config.from_json(values["config"])})

    def same_as(self, other: Search) -> bool:
        """Whether both are the same search, but for the number of trials."""
        free = {"trials": 1, "heartbeat": 1}
        return {**self.as_json(), **free} == {**other.as_json(), **free}


class SharedStudy:
    """A search in a database, and the workers' part in it."""

    def __init__(self, url: str, name: str, search: Search, seed: int | None) -> None:  # use create or join
        self.url, self.name, self.search = url, name, search
        pruner = optuna.pruners.MedianPruner(n_startup_trials=4) if search.prune else optuna.pruners.NopPruner()
        self.study = optuna.load_study(study_name=name, storage=_storage(url, search.heartbeat), pruner=pruner)
        tpe = optuna.samplers.TPESampler(seed=seed, constant_liar=True)  # others' running trials count as poor
        self.study.sampler = tpe if search.sampler == "tpe" else optuna.samplers.RandomSampler(seed=seed)

    @classmethod
    def create(cls, url: str, name: str, search: Search) -> SharedStudy:
        """Create the study, or continue it with more trials."""
        storage = _storage(url, search.heartbeat)
        directions = [judge.direction for judge in search.judges]
        study = optuna.create_study(storage=storage, study_name=name, directions=directions, load_if_exists=True)
        if (known := study.user_attrs.get(SEARCH)) is not None:
            there = Search.from_json(known)
            if not search.same_as(there):
                raise ValueError(
                    f"the study {name!r} in {shown(url)} is another search; choose another --study or --storage"
                )
            search = dataclasses.replace(search, trials=max(search.trials, there.trials))
        study.set_user_attr(SEARCH, search.as_json())
        for point in search.grid() if search.sampler == "grid" else []:
            study.enqueue_trial(point, skip_if_exists=True)
        return cls(url, name, search, search.config.seed + len(study.trials))  # resumed, it draws other values

    @classmethod
    def join(cls, url: str, name: str | None = None) -> SharedStudy:
        """Take part in a search that another worker has begun."""
        parts = sqlalchemy.engine.make_url(url)
        there = parts.drivername != "sqlite" or (parts.database is not None and Path(parts.database).exists())
        names = optuna.get_all_study_names(_storage(url, None)) if there else []
        if not names or (name is not None and name not in names):
            what = f"a study {name!r}" if name else "a study"
            raise ValueError(f"{shown(url)} does not hold {what}; begin one with esam sweep --storage URL")
        if name is None and len(names) > 1:
            raise ValueError(f"{shown(url)} holds {len(names)} studies; choose one by --study: {', '.join(names)}")
        chosen = name or names[0]
        known = optuna.load_study(study_name=chosen, storage=_storage(url, None)).user_attrs.get(SEARCH)
        if known is None:
            raise ValueError(f"the study {chosen!r} in {shown(url)} was not made by esam sweep")
        return cls(url, chosen, Search.from_json(known), seed=None)  # not what another worker draws

    def work(
        self,
        out: Path,
        executor: Executor,
        *,
        jobs: int = 1,
        tell: Callable[[str], None] = lambda _: None,
        poll: float = 0.2,
    ) -> None:
        """Do trials, ``jobs`` at a time, until all have ended; those of a worker that is gone are done again."""
        stop = threading.Event()
        trials = _Trials(self, out, executor, tell, poll, stop)
        with ThreadPoolExecutor(jobs) as threads:
            workers = [threads.submit(trials.work) for _ in range(jobs)]
            try:
                for worker in workers:
                    while not worker.done():
                        time.sleep(poll)
                    worker.result()
            finally:
                stop.set()

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Return the trials in these states, in their order; all of them if none is named."""
        return list(self.study.get_trials(deepcopy=False, states=states or None))

    def done(self) -> list[FrozenTrial]:
        """Return the trials that have a result."""
        return self.trials(TrialState.COMPLETE)

    def best_first(self) -> list[FrozenTrial]:
        """Return the trials that have a result, the best first; of several objectives, the Pareto front first."""
        judges, done = self.search.judges, self.done()
        front = {trial.number for trial in self.study.best_trials} if len(judges) > 1 and done else set()
        sign = -1 if judges[0].direction == "maximize" else 1
        return sorted(done, key=lambda trial: (trial.number not in front, sign * trial.values[0], trial.number))


@dataclass
class _Trials:
    """One worker's trials: each is an ordinary run, followed by its record."""

    shared: SharedStudy
    out: Path
    executor: Executor
    tell: Callable[[str], None]
    poll: float
    stop: threading.Event
    lock: threading.Lock = field(default_factory=threading.Lock)
    going: int = 0

    def work(self) -> None:
        """Do one trial after the other."""
        shared, study = self.shared, self.shared.study
        while not self.stop.is_set():
            fail_stale_trials(study)  # their workers are gone; they wait again
            with self.lock:
                states = [_state(trial) for trial in shared.trials()]
                ended, running = states.count("ended"), max(self.going, states.count("running"))
                if ended >= shared.search.trials:
                    return
                free = "waiting" in states or ended + running < shared.search.trials
                self.going += free
            if not free:  # others do the last ones
                time.sleep(self.poll)
                continue
            try:
                with suppress(_Failed, _Stopped, UpdateFinishedTrialError):  # the last: another worker has it now
                    study.optimize(self._objective, n_trials=1)
            except ValueError as error:
                if "Cannot tell" not in str(error):  # Optuna's words for the same
                    raise
            finally:
                self.going -= 1

    def _objective(self, trial: Trial) -> list[float]:
        search = self.shared.search
        try:
            config = search.suggested(trial)
            name = f"trial{trial.number:04d}-{config.method.replace(':', '.')}-{config.id()}"
            run = PlannedRun(config, self.out / trial.user_attrs.get(RUN, name))  # one that was begun is resumed
            trial.set_user_attr(RUN, run.folder.name)
            record = self._run(trial, run)
            values = [None if (value := j.of(record.end or {})) is None else j.factor * value for j in search.judges]
            if None in values:
                lacking = [n for n, v in zip(search.objectives, values, strict=True) if v is None]
                raise _Failed(f"its record has no {' and no '.join(lacking)}")
        except (_Failed, ValueError, OSError) as error:
            trial.set_user_attr(FAILURE, str(error))
            self._report(trial, f"failed ({error})")
            raise _Failed(str(error)) from error
        except TrialPruned as pruned:
            self._report(trial, str(pruned))
            raise
        found = [float(value) for value in values if value is not None]
        self._report(trial, ", ".join(f"{n} {v:.4g}" for n, v in zip(search.objectives, found, strict=True)))
        return found

    def _run(self, trial: Trial, run: PlannedRun) -> RunRecord:
        """Return the record of the finished run."""
        started, reported = self.executor.start(run), 0
        try:
            while (failure := started.poll()) is None:
                if self.stop.wait(self.poll):
                    raise _Stopped
                if self.shared.search.prune:
                    reported = self._prune(trial, run, reported)
        except BaseException as error:
            stop_all([started])
            if not isinstance(error, TrialPruned):  # interrupted: it waits for whoever comes next
                self.shared.study.enqueue_trial(trial.params, user_attrs={RUN: run.folder.name})
            raise
        record = run.record()
        if failure or record is None or record.end is None:
            raise _Failed(failure or "it left no record")
        if record.diverged:
            raise _Failed(str(record.end.get("error")))
        if self.shared.search.prune:
            self._prune(trial, run, reported)
        return record

    def _prune(self, trial: Trial, run: PlannedRun, reported: int) -> int:
        """Report the evaluations that are new; end the trial at one that falls behind the others."""
        record, judge = run.record(), self.shared.search.judges[0]
        for line in () if record is None else record.epochs:
            if line["epoch"] > reported and line.get(judge.along) is not None:
                reported = line["epoch"]
                trial.report(judge.factor * line[judge.along], reported)
                if trial.should_prune():
                    raise TrialPruned("pruned")
        return reported

    def _report(self, trial: Trial, result: str) -> None:
        chosen = ", ".join(f"{name} {_short(value)}" for name, value in trial.params.items())
        self.tell(f"trial {trial.number} ({chosen}): {result}")


class _Failed(Exception):
    """A run that cannot give a result, and would not another time."""


class _Stopped(Exception):
    """The worker is to end."""


def trials_sheet(shared: SharedStudy, most: int = 20) -> Sheet:
    """Return the best trials as a table."""
    names = [dimension.name for dimension in shared.search.dimensions]
    rows = tuple(
        (f"trial {t.number}", *(_short(t.params.get(name, "")) for name in names), *(f"{v:.4g}" for v in t.values))
        for t in shared.best_first()[:most]
    )
    return Sheet(_title(shared), ("Trial", *names, *(judge.title for judge in shared.search.judges)), rows)


def write_search(shared: SharedStudy, out: Path) -> Path:
    """Write one self-contained page about a search, with Optuna's own figures, and return where it is."""
    from jinja2 import Template
    from optuna import visualization
    from plotly.io import to_html  # type: ignore[import-untyped]

    if not (done := shared.done()):
        raise ValueError("no trial came to its end: see the log.txt of their runs")
    judges = shared.search.judges
    targets: list[tuple[Any, str]] = [(None, judges[0].title)]
    figures = []
    if len(judges) > 1:
        targets = [(lambda trial, n=n: trial.values[n], judge.title) for n, judge in enumerate(judges)]
    if len(judges) in (2, 3):
        figures.append(visualization.plot_pareto_front(shared.study, target_names=[title for _, title in targets]))
    for target, title in targets:
        figures.append(visualization.plot_optimization_history(shared.study, target=target, target_name=title))
        figures.append(visualization.plot_slice(shared.study, target=target, target_name=title))
    if len(judges) == 1 and len(done) > 3 and len({trial.values[0] for trial in done}) > 1:
        figures.append(visualization.plot_param_importances(shared.study))
    drawn = [to_html(figure, include_plotlyjs=number == 0, full_html=False) for number, figure in enumerate(figures)]
    failed = [f"trial {t.number}: {t.user_attrs[FAILURE]}" for t in shared.trials() if FAILURE in t.user_attrs]
    page = Template(_PAGE, autoescape=True).render(
        title=f"A search on {shared.search.config.data}",
        sheet=trials_sheet(shared),
        failed=failed,
        drawn=drawn,
        source=f"the study {shared.name} in {shown(shared.url)}",
    )
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "report.html", page.encode(errors="replace"))
    return out / "report.html"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse}td,th{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}</style></head><body>
<h1>{{ title }}</h1><p>{{ sheet.title }}.</p>
<p>Every trial is judged on training data that it does not train on; the test set is not read. The best of many trials
is optimistic: compare it again, with other seeds.</p>
<table><tr>{% for word in sheet.head %}<th>{{ word }}</th>{% endfor %}</tr>
{% for row in sheet.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</table>
{% for line in failed %}<p>{{ line }}</p>{% endfor %}
{% for figure in drawn %}{{ figure | safe }}{% endfor %}
<p>From {{ source }}.</p></body></html>
"""


def shown(url: str) -> str:
    """Return a database's address as it may be shown: without a password."""
    return str(sqlalchemy.engine.make_url(url).render_as_string(hide_password=True))


def _storage(url: str, heartbeat: int | None) -> RDBStorage:
    parts = sqlalchemy.engine.make_url(url)
    if parts.drivername == "postgresql":
        parts = parts.set(drivername="postgresql+psycopg")
    if parts.drivername == "sqlite" and parts.database:
        Path(parts.database).parent.mkdir(parents=True, exist_ok=True)
    alive = {} if heartbeat is None else {"heartbeat_interval": heartbeat, "grace_period": 3 * heartbeat}
    patient = {"connect_args": {"timeout": 60}} if parts.drivername == "sqlite" else {}
    options = {"poolclass": sqlalchemy.pool.NullPool, **patient}  # nothing stays open between two questions
    retry = RetryHeartbeatStaleTrialCallback(max_retry=RETRIES)
    address = parts.render_as_string(hide_password=False)
    for left in (2, 1, 0):
        try:
            return RDBStorage(address, engine_kwargs=options, heartbeat_stale_trial_callback=retry, **alive)
        except sqlalchemy.exc.SQLAlchemyError as error:
            if isinstance(error, sqlalchemy.exc.OperationalError) and parts.drivername != "sqlite":
                reason = str(error.orig).splitlines()[0]
                raise ValueError(f"{shown(url)} (--storage, --join) cannot be reached: {reason}") from error
            if not left:
                raise
        time.sleep(1)  # two workers that make the tables of an empty database at once: the other one has made them
    raise AssertionError("returned or raised")


def _state(trial: FrozenTrial) -> str:
    if trial.state in (TrialState.WAITING, TrialState.RUNNING):
        return str(trial.state.name).lower()
    lost = trial.state == TrialState.FAIL and FAILURE not in trial.user_attrs  # with its worker; it is done again
    return "lost" if lost else "ended"


def _title(shared: SharedStudy) -> str:
    states = [_state(trial) for trial in shared.trials()]
    done, pruned = len(shared.done()), len(shared.trials(TrialState.PRUNED))
    failed = states.count("ended") - done - pruned
    others = {"pruned": pruned, "failed": failed}
    counts = ", ".join([f"{done} trials ended", *(f"{count} {how}" for how, count in others.items() if count)])
    return f"{counts}; {shared.search.sampler}, judged by {' and '.join(shared.search.objectives)}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
