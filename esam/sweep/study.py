"""How do many workers share one search through a database, each trial done exactly once?

The trials wait in the database from the start, and a worker takes one by a change of state that only one can make. (To
count trials and then to start one lets two workers start the last one.) A trial without signs of life waits again.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState

from esam.train.config import Config

from .search import Search

TOLD, FAILURE = "search", "failure"
RETRIES = 5
PATIENCE = 60.0
"""Seconds that a worker waits for the study which it is to join."""
KEY = 0x65_73_61_6D
"""Of the lock in PostgreSQL under which a study is made."""

optuna.logging.set_verbosity(optuna.logging.WARNING)


class SharedStudy:
    """A search in a database."""

    def __init__(self, url: str, name: str, search: Search) -> None:  # use create or join
        self.url, self.name, self.search = url, name, search
        self._storage = _storage(url, search.heartbeat)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=4) if search.prune else optuna.pruners.NopPruner()
        self.study = optuna.load_study(study_name=name, storage=self._storage, pruner=pruner)

    @classmethod
    def create(cls, url: str, name: str, search: Search) -> SharedStudy:
        """Make the study, or go on with it; whatever is missing of its trials waits then."""
        search.check()
        with _alone(url):  # two that make the tables of an empty database at once end each other
            storage = _storage(url, search.heartbeat)
            directions = [judge.direction for judge in search.judges]
            study = optuna.create_study(storage=storage, study_name=name, directions=directions, load_if_exists=True)
            told = study.user_attrs.get(TOLD)
            if told is not None and not search.same_as(Search.from_json(told)):
                raise ValueError(
                    f"the study {name!r} in {shown(url)} is another search; choose another --study or --storage"
                )
            if told is not None and told["trials"] > search.trials:
                search = Search.from_json({**search.as_json(), "trials": told["trials"]})
            study.set_user_attr(TOLD, search.as_json())
            for point in _missing(study, search):
                study.enqueue_trial(point)
        return cls(url, name, search)

    @classmethod
    def join(cls, url: str, name: str | None = None, patience: float = PATIENCE) -> SharedStudy:
        """Take part in a search that another worker has begun."""
        began = time.monotonic()
        while not (names := _studies(url)) or (name is not None and name not in names):
            if time.monotonic() - began > patience:
                told = f"a study {name!r}" if name else "a study"
                raise ValueError(f"{shown(url)} does not hold {told}; begin one with esam sweep --storage URL")
            time.sleep(0.5)
        if name is None and len(names) > 1:
            raise ValueError(f"{shown(url)} holds {len(names)} studies; choose one by --study: {', '.join(names)}")
        chosen = name or names[0]
        study = optuna.load_study(study_name=chosen, storage=_storage(url, None))
        if TOLD not in study.user_attrs:
            raise ValueError(f"the study {chosen!r} in {shown(url)} was not made by esam sweep")
        return cls(url, chosen, Search.from_json(study.user_attrs[TOLD]))

    def claim(self) -> Trial | None:
        """Take a trial that waits, as the only one; None where none does."""
        with _alone(self.url) if self.url.startswith("sqlite") else nullcontext():  # SQLite has no lock on a row
            for waiting in self.trials(TrialState.WAITING):
                number = self._id(waiting)
                try:
                    mine = self._storage.set_trial_state_values(number, TrialState.RUNNING)
                except UpdateFinishedTrialError:
                    continue
                if mine:
                    self._storage.record_heartbeat(number)
                    return Trial(self.study, number)
        return None

    def chosen(self, trial: Trial) -> Config:
        """Return the run that a trial is to be; what is drawn depends on its number, and by TPE on earlier trials."""
        self.study.sampler = self._sampler(trial.number)
        return self.search.space.suggested(trial, self.search.start).check()

    def first_number(self, trial: Trial) -> int:
        """Return the number of the trial that this one repeats, or its own."""
        with _quiet():
            frozen = self._storage.get_trial(self._id(trial))
            first = RetryHeartbeatStaleTrialCallback.retried_trial_number(frozen)
        return trial.number if first is None else int(first)

    def alive(self, trial: Trial) -> None:
        """Give a sign of life of a trial."""
        self._storage.record_heartbeat(self._id(trial))

    def take_up_lost(self) -> None:
        """Let the trials of workers that are gone wait again."""
        with _quiet():
            fail_stale_trials(self.study)

    def tell(self, trial: Trial, values: Sequence[float] | None, failure: str = "", pruned: bool = False) -> bool:
        """Write down what a trial came to; False where another worker has taken it up meanwhile."""
        state = TrialState.PRUNED if pruned else TrialState.COMPLETE if values is not None else TrialState.FAIL
        try:
            if failure:
                trial.set_user_attr(FAILURE, failure)
            self.study.tell(trial, values=values, state=state)
        except (UpdateFinishedTrialError, ValueError):  # the latter: told already
            return False
        return True

    def release(self, trial: Trial) -> None:
        """Let a trial that was interrupted wait again."""
        if self.tell(trial, None):
            with _quiet():
                RetryHeartbeatStaleTrialCallback()(self.study, self._storage.get_trial(self._id(trial)))

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Return the trials in these states, in their order; all, where none is named."""
        return list(self.study.get_trials(deepcopy=False, states=states or None))

    def done(self) -> list[FrozenTrial]:
        """Return the trials that came to their values."""
        return self.trials(TrialState.COMPLETE)

    def _id(self, trial: Trial | FrozenTrial) -> int:
        study = self._storage.get_study_id_from_name(self.name)
        return int(self._storage.get_trial_id_from_study_id_trial_number(study, trial.number))

    def _sampler(self, number: int) -> Any:
        seed = self.search.seed_of(number)
        if self.search.sampler != "tpe":
            return optuna.samplers.RandomSampler(seed=seed)
        with _quiet():
            return optuna.samplers.TPESampler(seed=seed, constant_liar=True)  # others' running trials count as poor


def shown(url: str) -> str:
    """Return a database's address as it may be shown: without a password."""
    return str(sqlalchemy.engine.make_url(url).render_as_string(hide_password=True))


@contextmanager
def _quiet() -> Iterator[None]:
    """Use what Optuna calls experimental without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


def _missing(study: Any, search: Search) -> Iterator[dict[str, Any]]:
    """Give what must still be put in line: of a grid its points, else as many empty trials."""
    counted = [t for t in study.get_trials(deepcopy=False) if t.state != TrialState.FAIL or FAILURE in t.user_attrs]
    if search.sampler == "grid":
        there = [{**trial.params, **trial.system_attrs.get("fixed_params", {})} for trial in counted]
        yield from (point for point in search.space.grid(search.start) if point not in there)
    else:
        yield from ({} for _ in range(search.trials - len(counted)))


def _storage(url: str, heartbeat: int | None) -> Any:
    parts = sqlalchemy.engine.make_url(url)
    if parts.drivername == "postgresql":
        parts = parts.set(drivername="postgresql+psycopg")
    if parts.drivername == "sqlite" and parts.database:
        Path(parts.database).parent.mkdir(parents=True, exist_ok=True)
    lively = {} if heartbeat is None else {"heartbeat_interval": heartbeat, "grace_period": 3 * heartbeat}
    waits = {"connect_args": {"timeout": 60}} if parts.drivername == "sqlite" else {}
    options = {"poolclass": sqlalchemy.pool.NullPool, **waits}  # nothing stays open between two questions
    with _quiet():
        try:
            again = RetryHeartbeatStaleTrialCallback(max_retry=RETRIES)
            url = parts.render_as_string(hide_password=False)
            return RDBStorage(url, engine_kwargs=options, heartbeat_stale_trial_callback=again, **lively)
        except sqlalchemy.exc.OperationalError as error:
            raise ValueError(
                f"{shown(url)} (--storage) cannot be reached: {str(error.orig).splitlines()[0]}"
            ) from error


def _studies(url: str) -> list[str]:
    """Return the studies in a database; none where it has no tables, which are not made here."""
    parts = sqlalchemy.engine.make_url(url)
    if parts.drivername == "sqlite" and parts.database and not Path(parts.database).exists():
        return []
    if parts.drivername == "postgresql":
        parts = parts.set(drivername="postgresql+psycopg")
    engine = sqlalchemy.create_engine(parts)
    try:
        if not {"studies", "version_info", "alembic_version"} <= set(sqlalchemy.inspect(engine).get_table_names()):
            return []
        with engine.connect() as connection:
            named = connection.execute(sqlalchemy.text("SELECT study_name FROM studies ORDER BY study_id"))
            return [row[0] for row in named]
    except sqlalchemy.exc.OperationalError as error:
        raise ValueError(f"{shown(url)} (--join) cannot be reached: {str(error.orig).splitlines()[0]}") from error
    finally:
        engine.dispose()


def _alone(url: str) -> AbstractContextManager[Any]:
    """Keep other workers out of a block."""
    parts = sqlalchemy.engine.make_url(url)
    if parts.drivername == "sqlite" and parts.database:
        from filelock import FileLock

        Path(parts.database).parent.mkdir(parents=True, exist_ok=True)
        return FileLock(f"{parts.database}.lock")
    return _advisory_lock(parts) if parts.drivername.startswith("postgresql") else nullcontext()


@contextmanager
def _advisory_lock(parts: Any) -> Iterator[None]:
    engine = sqlalchemy.create_engine(parts.set(drivername="postgresql+psycopg"))
    try:
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text(f"SELECT pg_advisory_lock({KEY})"))
            yield  # closing the connection lets go of it
    except sqlalchemy.exc.OperationalError as error:
        raise ValueError(f"{shown(str(parts))} (--storage) cannot be reached: {error.orig}") from error
    finally:
        engine.dispose()
