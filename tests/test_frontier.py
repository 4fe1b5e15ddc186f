"""The arena on stand-ins of seconds: digits, two regimes, a few methods."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from esam.compare.plan import PlannedRun
from esam.frontier.engine import Engine, ended
from esam.frontier.entrants import ENTRANTS, PROTECTED
from esam.frontier.regimes import REGIMES, Regime
from esam.frontier.rules import finalists, mean_ranks, ranks, survivors
from esam.frontier.search import WITH_KNOB, WITHOUT_KNOB, Point, best_point, final, points, trial
from esam.frontier.stages import Arena, arena_of, make
from esam.optim import METHODS
from esam.train.config import Config
from esam.train.record import read_records

pytestmark = pytest.mark.slow

CONFIG = Config(
    data="esam.frontier.tasks:digits", model="mlp", method="base", train_size=60, batch_size=30, epochs=2, threads=1
)
TINY = {
    "fits": Regime("fits", "Digits", "clean", CONFIG),
    "wrong": Regime("wrong", "Digits, wrong labels", "noise", replace(CONFIG, label_noise=0.3)),
}


def tiny(folder, names=("base", "sam")):
    return Arena(folder, TINY, {name: ENTRANTS[name] for name in names}, screened=("fits",), fewest=0)


def records_of(folder):
    return {str(record.path): record for record in read_records(folder)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The map of two entrants in two regimes, screened, with three seeds."""
    arena, told = tiny(tmp_path_factory.mktemp("frontier")), []
    make(arena, ("screen", "main"), jobs=2, tell=told.append)
    return arena, told


def test_every_entrant_is_searched_alike_and_run_with_every_seed(made):
    arena, _ = made
    for regime in TINY:
        for name in arena.entrants:
            assert len(list((arena.folder / regime / name / "search").iterdir())) == 4
            runs = read_records(arena.folder / regime / name / "runs")
            assert [record.seed for record in runs] == [0, 1, 2]
            assert all(record.finished for record in runs)


def test_runs_take_the_point_that_did_best_on_the_held_out_part(made):
    arena, _ = made
    trials = [run.record() for run in arena.trials(["sam"], ["wrong"])]
    best = max(trials, key=lambda record: record.end["test_accuracy"]["last"])
    assert all(record.config["validation"] for record in trials)
    for run in arena.finals(["sam"], ["wrong"], (0, 1, 2)):
        assert not run.config.validation
        for name in ("lr", "weight_decay", "settings"):
            assert run.record().config[name] == best.config[name]


def test_only_records_are_kept_of_an_ended_run(made):
    arena, _ = made
    kept = {path.name for path in arena.folder.rglob("*") if path.is_file()}
    assert kept == {"record.jsonl"}


def test_a_finished_map_is_not_run_again(made, monkeypatch):
    arena, _ = made
    monkeypatch.setattr("esam.frontier.engine._started", lambda: pytest.fail("nothing is left to run"))
    make(arena, ("screen", "main"), jobs=2, tell=lambda line: None)


def test_a_record_that_is_gone_is_made_again_with_the_same_numbers(made):
    arena, _ = made
    run = arena.finals(["sam"], ["fits"], (1,))[0]
    before = run.record()
    os.remove(before.path)
    make(arena, ("main",), jobs=1, tell=lambda line: None)
    for name in ("test_loss", "train_loss", "train_accuracy"):
        assert run.record().end[name] == before.end[name]


def test_a_run_that_fails_is_recorded_and_the_others_go_on(tmp_path):
    broken = PlannedRun(replace(CONFIG, model="no_such_package:net"), tmp_path / "a" / "broken")
    whole = PlannedRun(CONFIG, tmp_path / "a" / "whole")
    told = []
    with Engine(1, told.append) as engine:
        engine.make("runs", [broken, whole])
    assert broken.record().end["status"] == "failed"
    assert "no_such_package" in broken.record().end["error"]
    assert ended(broken)
    assert whole.record().finished
    assert any("failed" in line for line in told)


def test_a_worker_that_dies_in_a_run_is_replaced_and_the_run_recorded_as_failed(tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text("import os, signal\ndef task():\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    monkeypatch.syspath_prepend(tmp_path)  # a spawned process takes it over
    deadly = PlannedRun(replace(CONFIG, data="deadly:task"), tmp_path / "a" / "deadly")
    first, second = (PlannedRun(replace(CONFIG, seed=seed), tmp_path / "a" / str(seed)) for seed in (0, 1))
    with Engine(1, lambda line: None) as engine:
        engine.make("runs", [deadly, first])
        os.kill(engine._workers[0].process.pid, signal.SIGKILL)  # while it waits
        engine._workers[0].process.join()
        engine.make("runs", [second])
    assert deadly.record().end["status"] == "failed"
    assert "its process ended with -9" in deadly.record().end["error"]
    assert first.record().finished
    assert second.record().finished


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_frontier import tiny
from esam.frontier.stages import make
if __name__ == "__main__":
    make(tiny(Path(sys.argv[1]), ("base",)), ("screen", "main"), jobs=1, tell=lambda line: None)
"""


def test_a_map_that_is_killed_goes_on_where_it_was(tmp_path):
    out, script = tmp_path / "out", tmp_path / "killed.py"
    script.write_text(KILLED)
    process = subprocess.Popen([sys.executable, script, out, os.path.dirname(__file__)], start_new_session=True)
    deadline = time.monotonic() + 120
    while len(list(out.rglob("record.jsonl"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = {path: record for path, record in records_of(out).items() if record.finished}
    arena = tiny(out, ("base",))
    assert before
    assert len(before) < 14
    make(arena, ("screen", "main"), jobs=1, tell=lambda line: None)
    after = records_of(out)
    assert len(after) == 14  # 4 trials and 3 seeds in 2 regimes
    assert all(record.finished for record in after.values())
    assert all(after[path].run["started"] == record.run["started"] for path, record in before.items())


def test_every_regime_and_entrant_makes_configurations_that_the_registry_takes():
    for regime in REGIMES.values():
        for entrant in ENTRANTS.values():
            tried = {trial(regime, entrant, point).id() for point in points(entrant)}
            assert len(tried) == 4, f"{entrant.name} in {regime.name} tries a point twice"
            options = METHODS[entrant.method].options()
            assert set(final(regime, entrant, Point(), 0).settings) <= set(options)


def test_an_entrants_length_and_the_search_set_the_epochs():
    fits = REGIMES["fits"]
    assert final(fits, ENTRANTS["base-long"], Point(), 0).epochs == 2 * fits.config.epochs
    assert trial(fits, ENTRANTS["base"], Point()).epochs == fits.config.epochs / 2
    assert ENTRANTS["base-long"].units() == 2
    assert ENTRANTS["sam"].units() == 2
    assert ENTRANTS["sam-short"].units() == 1
    assert ENTRANTS["base-half"].units() == 0.5


def test_points_try_each_value_and_ties_go_to_the_default():
    assert len(WITH_KNOB) == len(WITHOUT_KNOB)
    assert {point.value for point in WITH_KNOB} == {0, 1}
    assert best_point(WITH_KNOB, [0.5, 0.4, 0.5, 0.5]) == Point()
    assert best_point(WITH_KNOB, [0.5, 0.6, 0.6, 0.1]) == WITH_KNOB[1]
    with pytest.raises(ValueError, match="one accuracy"):
        best_point(WITH_KNOB, [0.5])


ACCURACIES = {
    "base": {"a": 50, "b": 50, "c": 50},
    "long": {"a": 40, "b": 40, "c": 40},
    "low": {"a": 47, "b": 48, "c": 48.9},
    "near": {"a": 48, "b": 48, "c": 48},
    "beaten": {"a": 52, "b": 52, "c": 52},
    "winner": {"a": 53.1, "b": 53.1, "c": 53.1},
    "dear": {"a": 60, "b": 60, "c": 60},
    "level": {"a": 53.1, "b": 53.1, "c": 52.2},
}
UNITS = {"base": 1, "long": 2, "low": 0.5, "near": 0.9, "beaten": 1.2, "winner": 1.1, "dear": 2, "level": 1.3}


def test_a_method_far_under_the_base_or_beaten_everywhere_for_no_more_is_dropped():
    rule = {"controls": ["base", "long"], "fewest": 0}
    assert survivors(ACCURACIES, UNITS, protected=(), **rule) == ["base", "long", "near", "winner", "dear", "level"]
    kept = survivors(ACCURACIES, UNITS, protected=("low",), **rule)
    assert kept == ["base", "long", "low", "near", "winner", "dear", "level"]


def test_the_best_of_the_dropped_fill_up_the_fewest():
    staying = survivors(ACCURACIES, UNITS, controls=["base", "long"], protected=(), fewest=5)
    assert "beaten" in staying
    assert "low" not in staying


def test_ranks_count_from_the_best_and_equals_share():
    assert ranks({"a": 3, "b": 5, "c": 3, "d": 1}) == {"b": 1, "a": 2.5, "c": 2.5, "d": 4}
    found = {"a": {"x": 1, "y": 2}, "b": {"x": 2, "y": 1}, "c": {"x": 0, "y": 0, "z": 9}}
    assert mean_ranks(found) == {"a": 1.5, "b": 1.5, "c": 3}


def test_the_finalists_are_the_best_methods_with_sam_and_the_base():
    found = {name: {"a": value} for name, value in {"base": 9, "x": 8, "y": 7, "sam": 1, "z": 6}.items()}
    assert finalists(found, controls=["base"], count=2) == ["x", "y", "sam", "base"]


def test_the_protected_take_part():
    assert set(PROTECTED) - {"slicesam"} <= set(ENTRANTS)


def test_an_unknown_regime_or_entrant_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no regime 'fit'.*Did you mean 'fits'"):
        arena_of(tmp_path, regimes=["fit"])
    with pytest.raises(ValueError, match="no entrant 'sma'.*Did you mean 'sam'"):
        arena_of(tmp_path, entrants=["sma"])


def test_windows_of_the_test_text_are_not_in_the_training_text():
    from esam.frontier.tasks import topics

    task = topics()
    train = {tuple(row) for row in task.train[0].tolist()}
    assert len(task.classes) == 10
    assert sum(tuple(row) in train for row in task.test[0].tolist()) == 0
