"""Does a search find what it should, each trial once, whoever does it, and without a look at the test set?"""

import dataclasses
import time

import forked
import postgres
import pytest

from esam.cli import main
from esam.train import Config
from esam.train.record import read_records

pytest.importorskip("optuna", reason="the extra [sweep] is not installed")
import optuna
from optuna.trial import FixedTrial, TrialState
from sweep_workers import get_stuck, work

from esam.runs import Comparison
from esam.runs.sweep import Sweep, SweepOptions, shown_url

TINY = Config(data="digits", model="mlp", method="sam", train_size=200, batch_size=50, epochs=2, seed=100, threads=1)
EXPERIMENTAL = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")  # pytest sets filters anew
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache"), EXPERIMENTAL]


def begun(folder, *words, **more):
    return Sweep(Comparison(TINY), SweepOptions(words, out=folder, **{"sampler": "random", "trials": 4, **more}))


def worked(folder, *words, **more):
    sweep = begun(folder, *words, **more)
    sweep.work()
    return sweep


# The space -----------------------------------------------------------------------------------------------------------


def test_a_choice_changes_what_is_searched_and_judges_on_held_out_data():
    search = Sweep(Comparison(TINY, settings={"sam": {"rho": 0.3}}), SweepOptions(("lr=0.1..1",)))
    config = search.suggested(FixedTrial({"lr": 0.5}))
    assert config == dataclasses.replace(TINY, lr=0.5, settings={"rho": 0.3}, validation=True)


@pytest.mark.parametrize(
    ("words", "more", "message"),
    [
        ((), {}, "a search needs settings"),
        (("lr",), {}, "takes setting=values"),
        (("lrr=1,2",), {}, "there is no setting 'lrr' to search. Did you mean 'lr'"),
        (("lr=a,b",), {}, "'lr=a,b' is no range or list of values of type float"),
        (("lr=1..0.1",), {}, "'lr=1..0.1' is no range"),
        (("model=a..b",), {}, "'model=a..b' is no range"),
        (("lr=1,2", "lr=3,4"), {}, "a setting is searched twice"),
        (("gamma=0.5,1",), {}, "gamma is searched, and sam takes none"),
        (("method=sam,esann",), {}, "unknown method 'esann'"),
        (("lr=0.1..1",), {"sampler": "grid"}, "a grid needs values of lr"),
        (("lr=1,2",), {"trials": 0}, "must be 1 or more"),
    ],
)
def test_a_search_that_cannot_be_is_refused(words, more, message):
    with pytest.raises(ValueError, match=message):
        Sweep(Comparison(TINY), SweepOptions(words, **more))


# Trials --------------------------------------------------------------------------------------------------------------


def test_trials_are_ordinary_runs_that_never_see_the_test_set_and_the_best_is_the_best(tmp_path):
    sweep = worked(tmp_path, "lr=0.001..0.5:log", "rho=0.05,0.1")
    records = read_records(tmp_path)
    assert len(records) == 4 and all(record.finished and record.config["validation"] for record in records)
    by_folder = {record.path.parent.name: record for record in records}
    for trial in sweep.best_first():
        record = by_folder[trial.user_attrs["run"]]
        assert record.config["lr"] == trial.params["lr"] and record.config["settings"]["rho"] == trial.params["rho"]
        assert trial.value == record.end["test_accuracy"]["last"]
    best = max(records, key=lambda record: record.end["test_accuracy"]["last"])
    assert sweep.best_first()[0].user_attrs["run"] == best.path.parent.name


def test_the_same_search_goes_on_and_another_in_the_same_database_is_another_study(tmp_path, monkeypatch):
    assert len(worked(tmp_path, "lr=0.01..0.1", trials=2).best_first()) == 2
    assert len(worked(tmp_path, "lr=0.01..0.1", trials=3).study.trials) == 3
    monkeypatch.setattr("esam.runs.sweep.do_run", None)  # beginning anything would fail
    assert len(worked(tmp_path, "lr=0.01..0.1", trials=3).study.trials) == 3
    assert begun(tmp_path, "lr=0.01..0.2", trials=3).study.trials == []


def test_an_interrupted_trial_waits_again_with_its_choice_and_resumes_in_its_folder(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("esam.runs.sweep.do_run", interrupted)
        worked(tmp_path, "lr=0.001..0.5:log", trials=1)
    sweep = worked(tmp_path, "lr=0.001..0.5:log", trials=1)
    (done,) = sweep.best_first()
    (lost,) = sweep.study.get_trials(states=[TrialState.FAIL])
    assert done.params == lost.params and done.user_attrs["run"] == lost.user_attrs["run"]


def test_a_run_that_fails_or_diverges_is_told_and_the_search_goes_on(tmp_path, caplog):
    optuna.logging.enable_propagation()
    sweep = worked(tmp_path, "batch_size=0,50", "lr=0.1,1e30", sampler="grid")
    optuna.logging.disable_propagation()
    assert [trial.params for trial in sweep.best_first()] == [{"batch_size": 50, "lr": 0.1}]
    told = "\n".join({*caplog.messages})
    assert told.count("pruned. It failed: ValueError: batch_size must be 1 or more, got 0") == 2
    assert told.count("the loss was not finite") == 1
    assert "1 trials ended, 3 pruned or failed" in sweep.sheet().title


def test_a_grid_has_every_point_once_without_settings_that_a_method_has_not(tmp_path):
    sweep = worked(tmp_path, "method=base,sam", "rho=0.1,0.2", "epochs=1..3:2", sampler="grid", objective="loss")
    tried = [{"method": "sam", **trial.params} for trial in sweep.best_first()]
    points = [{"method": "base", "epochs": n} for n in (1, 3)]
    points += [{"method": "sam", "rho": rho, "epochs": n} for rho in (0.1, 0.2) for n in (1, 3)]
    assert len(tried) == len(points) and all(point in tried for point in points)
    assert sweep.best_first()[0].value == min(record.end["test_loss"] for record in read_records(tmp_path))


def test_a_hopeless_trial_is_pruned_at_the_evaluation_where_it_falls_behind(tmp_path):
    sweep = begun(tmp_path, "lr=0.1,0.11,0.12,0.13,0.14,0.0", sampler="grid", prune=True)
    for lr in (0.1, 0.11, 0.12, 0.13, 0.14, 0.0):  # in this order: the first four are not judged
        sweep.study.enqueue_trial({"lr": lr})
    sweep.work()
    (pruned,) = sweep.study.get_trials(states=[TrialState.PRUNED])
    assert pruned.params == {"lr": 0.0} and max(pruned.intermediate_values) == 1
    assert all(max(trial.intermediate_values) == 2 for trial in sweep.best_first())


# The command ---------------------------------------------------------------------------------------------------------


def test_the_command_searches_and_resumes(tmp_path, capsys, monkeypatch):
    words = ["--data", "digits", "--model", "mlp", "--train-size", "100", "--epochs", "1", "--threads", "1"]
    words += ["--method", "base", "--search", "lr=0.001,0.1", "momentum=0,0.9", "--sampler", "grid"]
    words += ["--out", str(tmp_path / "out")]
    assert main(["sweep", *words]) == 0
    out = capsys.readouterr().out
    assert "4 trials ended; grid" in out and "Held-out accuracy" in out
    records = read_records(tmp_path / "out")
    assert {record.seed for record in records} == {100} and {record.config["lr"] for record in records} == {0.001, 0.1}
    monkeypatch.setattr("esam.train.runner.fit", None)  # training anything would fail
    assert main(["sweep", *words]) == 0


# Workers, on a real PostgreSQL ---------------------------------------------------------------------------------------

BASE = Comparison(dataclasses.replace(TINY, method="base", epochs=1))
SHARED = SweepOptions(("lr=0.01..0.2:log",), sampler="random", trials=4)


@pytest.mark.slow
@pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing() or "never")
def test_workers_that_begin_at_once_share_a_search_and_do_again_what_one_lost_when_it_was_killed(tmp_path):
    cache = str(tmp_path / "cache")
    with postgres.server() as url:
        shared = dataclasses.replace(SHARED, out=tmp_path / "runs", storage=url)
        stuck = forked.start(get_stuck, BASE, shared, tmp_path / "sign", ESAM_CACHE=cache)
        while not (tmp_path / "sign").exists():
            assert stuck.is_alive()
            time.sleep(0.02)
        stuck.kill()
        stuck.join()
        time.sleep(4)  # three heartbeats: it is known to be gone
        workers = [forked.start(work, BASE, shared, ESAM_CACHE=cache) for _ in range(2)]
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [0, 0]
        sweep = Sweep(BASE, shared)
        (lost,) = sweep.study.get_trials(states=[TrialState.FAIL])
        done = sweep.best_first()
    assert SHARED.trials <= len(done) <= SHARED.trials + 1
    (again,) = [trial for trial in done if trial.user_attrs["run"] == lost.user_attrs["run"]]
    assert again.params == lost.params  # the same choice, in the same folder
    records = read_records(tmp_path / "runs")
    assert len(records) == len(done) and all(record.finished for record in records)


def test_an_address_without_a_server_is_told_without_its_password():
    away = "postgresql://me:secret@127.0.0.1:1/none"
    with pytest.raises(ValueError, match="cannot be reached") as error:
        Sweep(BASE, dataclasses.replace(SHARED, storage=away)).study  # noqa: B018
    assert "secret" not in str(error.value) and "me:***@127.0.0.1" in shown_url(away)
