"""How does a worker do trials? Each is an ordinary run at the place of the others, watched through its record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.trial import Trial, TrialState

from esam.compare.launch import Place, StartedRun, stop_all
from esam.compare.plan import PlannedRun

from .study import SharedStudy

RUN = "run"
"""The attribute of a trial that names its run's folder."""


@dataclass
class _Going:
    trial: Trial
    run: PlannedRun
    started: StartedRun
    alive: float
    reported: int = 0


class Worker:
    """Takes trials of a shared study until all have ended."""

    def __init__(
        self,
        study: SharedStudy,
        out: Path,
        place: Place,
        *,
        jobs: int = 1,
        tell: Callable[[str], None] = lambda _: None,
        poll: float = 0.5,
    ) -> None:
        self.study, self.out, self.place, self.jobs, self.tell, self.poll = study, out, place, jobs, tell, poll

    def __call__(self) -> None:
        """Do trials; wait for those of other workers, and take them up where a worker is gone."""
        going: list[_Going] = []
        looked = 0.0
        try:
            while True:
                if time.monotonic() - looked > self.study.search.heartbeat:
                    self.study.take_up_lost()
                    looked = time.monotonic()
                while len(going) < self.jobs and (trial := self.study.claim()) is not None:
                    if (one := self._started(trial)) is not None:
                        going.append(one)
                if not going and not self.study.trials(TrialState.RUNNING, TrialState.WAITING):
                    return
                time.sleep(self.poll)
                for one in list(going):
                    if self._over(one):
                        going.remove(one)
        finally:
            stop_all([one.started for one in going])
            for one in going:  # interrupted: they wait for whoever comes next
                self.study.release(one.trial)

    def _started(self, trial: Trial) -> _Going | None:
        try:
            config = self.study.chosen(trial)
        except ValueError as error:
            self._end(trial, None, None, failure=str(error))
            return None
        first = self.study.first_number(trial)  # one that is taken up resumes
        run = PlannedRun(config, self.out / f"trial{first:04d}-{config.method}-{config.id()}")
        trial.set_user_attr(RUN, run.folder.name)
        return _Going(trial, run, self.place.start(run), time.monotonic())

    def _over(self, one: _Going) -> bool:
        """Tell whether a trial has ended, or was ended; give signs of life until then."""
        if time.monotonic() - one.alive > self.study.search.heartbeat / 2:
            self.study.alive(one.trial)
            one.alive = time.monotonic()
        complaint = one.started.look()
        if self.study.search.prune and self._hopeless(one):
            if complaint is None:
                stop_all([one.started])
            return self._end(one.trial, one.run, None, pruned=True)
        if complaint is None:
            return False
        record = one.run.record()
        if complaint or record is None or record.end is None:
            return self._end(one.trial, one.run, None, failure=complaint or "it left no record")
        if record.diverged:
            single = len(self.study.search.objectives) == 1  # Optuna ranks what was pruned last, and only then
            return self._end(one.trial, one.run, None, failure=str(record.end.get("error")), pruned=single)
        values = [judge.value(record) for judge in self.study.search.judges]
        if None in values:
            lacking = [n for n, v in zip(self.study.search.objectives, values, strict=True) if v is None]
            return self._end(one.trial, one.run, None, failure=f"its record tells no {' and no '.join(lacking)}")
        return self._end(one.trial, one.run, values)

    def _hopeless(self, one: _Going) -> bool:
        """Report the evaluations that are new, in their order; tell whether the trial should end at one of them."""
        record = one.run.record()
        if record is None:
            return False
        for epoch, value in self.study.search.judges[0].reports(record):
            if epoch > one.reported:
                one.reported = epoch
                one.trial.report(value, epoch)
                if one.trial.should_prune():
                    return True
        return False

    def _end(self, trial: Trial, run: PlannedRun | None, values: Any, failure: str = "", pruned: bool = False) -> bool:
        kept = self.study.tell(trial, values, failure, pruned)
        chosen = ", ".join(f"{name} {_short(value)}" for name, value in trial.params.items())
        if not kept:
            how = "taken up by another worker meanwhile"
        elif values is not None:
            pairs = zip(self.study.search.objectives, values, strict=True)
            how = ", ".join(f"{name} {value:.4g}" for name, value in pairs)
        else:
            how = f"failed ({failure})" if failure else "pruned"
        self.tell(f"trial {trial.number} ({chosen}): {how}")
        return True


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
