"""Does a search find what it should, each trial once, whoever does it, and without a look at the test set?"""

import dataclasses

import forked
import pytest

from esam.cli import main
from esam.train import Config, run
from esam.train.record import read_records

pytest.importorskip("optuna", reason="the extra [sweep] is not installed")
from optuna.trial import TrialState
from sweep_workers import Here, Stuck, work

from esam.runs.sweep import PAPER_GRID, Dimension, Search, SharedStudy, trials_sheet, write_search

TINY = Config(data="digits", model="mlp", method="sam", train_size=200, batch_size=50, epochs=2, seed=100, threads=1)


EXPERIMENTAL = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")  # pytest sets filters anew
pytestmark = [pytest.mark.usefixtures("own_cache"), EXPERIMENTAL]


def begun(folder, *words, name="search", **more):
    search = Search(TINY, words, **{"sampler": "random", "trials": 4, **more})
    return SharedStudy.create(f"sqlite:///{folder}/search.db", name, search)


def worked(folder, *words, **more):
    study = begun(folder, *words, **more)
    study.work(folder, Here(), poll=0.01)
    return study


# The space -----------------------------------------------------------------------------------------------------------


def test_a_grid_holds_every_point_once_and_nothing_that_a_method_lacks():
    search = Search(TINY, ("method=base,sam", "rho=0.05,0.1", "epochs=1..5:2"), sampler="grid")
    points = search.grid()
    assert len(points) == 3 + 2 * 3 and {"method": "base", "epochs": 3} in points
    assert {"method": "sam", "rho": 0.1, "epochs": 5} in points


def test_the_grid_that_needs_no_words_is_the_papers():
    paper = {"lr": (0.01, 0.05, 0.1, 0.2), "weight_decay": (5e-4, 1e-3), "batch_size": (64, 128, 256)}
    assert {d.name: d.values for d in map(Dimension.read, PAPER_GRID)} == paper


def test_a_choice_changes_what_is_searched_and_judges_on_held_out_data():
    search = Search(TINY, ("lr=0.1..1",), settings={"sam": {"rho": 0.3}})
    config = search.with_choice({"lr": 0.5})
    assert config == dataclasses.replace(TINY, lr=0.5, settings={"rho": 0.3}, validation=True)


@pytest.mark.parametrize(
    ("words", "more", "message"),
    [
        ((), {}, "a search needs settings"),
        (("lr",), {}, "takes setting=values"),
        (("lrr=1,2",), {}, "there is no setting 'lrr' to search. Did you mean 'lr'"),
        (("seed=1,2",), {}, "there is no setting 'seed'"),
        (("lr=a,b",), {}, "'lr=a,b' is no range or list of values of type float"),
        (("lr=1..0.1",), {}, "from the lower to the higher"),
        (("lr=0..1:log",), {}, "above 0 where it is log"),
        (("lr=1,2", "lr=3,4"), {}, "lr is searched twice"),
        (("gamma=0.5,1",), {}, "gamma is searched, and sam takes none"),
        (("method=sam,esann",), {}, "unknown method 'esann'"),
        (("lr=0.1..1",), {"sampler": "grid"}, "a grid needs values of lr"),
        (("lr=1,2",), {"objectives": ("accuracy", "costs")}, "there is no objective 'costs'. Did you mean 'cost'"),
        (("lr=1,2",), {"objectives": ("accuracy", "cost"), "prune": True}, "can be pruned"),
        (("lr=1,2",), {"trials": 0}, "must be 1 or more"),
    ],
)
def test_a_search_that_cannot_be_is_refused(words, more, message):
    with pytest.raises(ValueError, match=message):
        Search(TINY, words, **more)


# Trials --------------------------------------------------------------------------------------------------------------


def test_trials_are_ordinary_runs_that_never_see_the_test_set_and_the_best_is_the_best(tmp_path):
    study = worked(tmp_path, "lr=0.001..0.5:log", "rho=0.05,0.1")
    records = read_records(tmp_path)
    assert len(records) == 4 and all(record.finished and record.config["validation"] for record in records)
    by_folder = {record.path.parent.name: record for record in records}
    for trial in study.done():
        record = by_folder[trial.user_attrs["run"]]
        assert record.config["lr"] == trial.params["lr"] and record.config["settings"]["rho"] == trial.params["rho"]
        assert trial.values == [100 * record.end["test_accuracy"]["last"]]
    best = max(records, key=lambda record: record.end["test_accuracy"]["last"])
    assert study.best_first()[0].user_attrs["run"] == best.path.parent.name
    again = run(Config.from_json(best.config), tmp_path / "again")
    assert again.end["test_loss"] == best.end["test_loss"]


def test_workers_at_the_same_time_share_the_trials(tmp_path):
    study = begun(tmp_path, "lr=0.001..0.5:log", trials=6)
    workers = [forked.start(work, study.url, tmp_path / "runs") for _ in range(2)]
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert 6 <= len(study.done()) <= 7 and len({trial.params["lr"] for trial in study.done()}) == len(study.done())


def test_the_same_search_goes_on_and_another_under_its_name_is_refused(tmp_path):
    worked(tmp_path, "lr=0.01,0.1", trials=2)
    longer = begun(tmp_path, "lr=0.01,0.1", trials=3)
    longer.work(tmp_path, Here(), poll=0.01)
    assert [trial.state for trial in longer.trials()] == [TrialState.COMPLETE] * 3
    assert begun(tmp_path, "lr=0.01,0.1", trials=1).search.trials == 3
    with pytest.raises(ValueError, match="is another search; choose another --study or --storage"):
        begun(tmp_path, "lr=0.01,0.2", trials=3)


def test_an_interrupted_trial_waits_again_with_its_choice_and_resumes_in_its_folder(tmp_path, monkeypatch):
    study = begun(tmp_path, "lr=0.001..0.5:log", trials=1)
    place = Stuck(tmp_path / "sign")

    def interrupt(_):
        if (tmp_path / "sign").exists():
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("esam.runs.sweep.time.sleep", interrupt)
        study.work(tmp_path, place, poll=0.01)
    study.work(tmp_path, Here(), poll=0.01)
    (done,) = study.done()
    (lost,) = study.trials(TrialState.FAIL)
    assert done.params == lost.params and done.user_attrs["run"] == lost.user_attrs["run"]
    assert done.user_attrs["run"].startswith("trial0000-")


def test_a_run_that_fails_or_diverges_is_told_and_the_search_goes_on(tmp_path):
    told = []
    study = begun(tmp_path, "batch_size=0,50", "lr=0.1,1e30", sampler="grid")
    study.work(tmp_path, Here(), tell=told.append, poll=0.01)
    assert len(study.done()) == 1 and study.done()[0].params == {"batch_size": 50, "lr": 0.1}
    assert sum("failed (batch_size must be 1 or more, got 0)" in line for line in told) == 2
    assert sum("the loss was not finite" in line for line in told) == 1
    again = begun(tmp_path, "batch_size=0,50", "lr=0.1,1e30", sampler="grid")
    again.work(tmp_path, Stuck(tmp_path / "sign"), poll=0.01)  # what failed by itself is not tried again
    assert not (tmp_path / "sign").exists()


def test_a_hopeless_trial_is_pruned_at_the_evaluation_where_it_falls_behind(tmp_path):
    values = "lr=0.1,0.11,0.12,0.13,0.14,0.0"
    study = begun(tmp_path, values, sampler="grid", prune=True)
    study.work(tmp_path, Here(), poll=0.01)
    (pruned,) = study.trials(TrialState.PRUNED)
    assert pruned.params == {"lr": 0.0} and max(pruned.intermediate_values) == 1
    assert all(max(trial.intermediate_values) == 2 for trial in study.done())


def test_several_objectives_give_the_front_that_is_worked_out_by_hand(tmp_path):
    study = worked(tmp_path, "method=base,sam", "epochs=1,3", sampler="grid", objectives=("accuracy", "cost"))
    values = {trial.number: trial.values for trial in study.done()}
    assert {cost for _, cost in values.values()} == {3.0, 6.0, 9.0, 18.0}
    front = {
        number
        for number, (accuracy, cost) in values.items()
        if not any((a >= accuracy and c <= cost and (a, c) != (accuracy, cost)) for a, c in values.values())
    }
    assert {trial.number for trial in study.study.best_trials} == front
    assert {trial.number for trial in study.best_first()[: len(front)]} == front
    page = write_search(study, tmp_path).read_text()
    assert "Pareto-front Plot" in page and "Passes a sample" in page


def test_the_page_shows_history_importances_and_a_slice_of_every_setting(tmp_path):
    study = worked(tmp_path, "lr=0.001,0.3", "momentum=0,0.9", sampler="grid")
    page = write_search(study, tmp_path).read_text()
    for title in ("Optimization History Plot", "Slice Plot", "Hyperparameter Importances"):
        assert title in page
    assert "4 trials ended; grid, judged by accuracy" in page and "https://cdn" not in page.split("<body>")[1][:2000]
    assert trials_sheet(study).rows[0][0] == f"trial {study.best_first()[0].number}"


# The command ---------------------------------------------------------------------------------------------------------


def test_the_command_searches_in_processes_resumes_and_can_be_joined(tmp_path, capsys, monkeypatch):
    words = ["--data", "digits", "--model", "mlp", "--train-size", "100", "--epochs", "1", "--threads", "1"]
    words += ["--method", "base", "--search", "lr=0.01,0.1", "--sampler", "grid", "--out", str(tmp_path / "out")]
    assert main(["sweep", *words, "--jobs", "2"]) == 0
    out = capsys.readouterr().out
    # two processes at once: which trial has which value is open, and so is whether one value is tried twice
    assert "(lr 0.01): accuracy" in out and "trials ended; grid, judged by accuracy" in out
    records = read_records(tmp_path / "out")
    assert {record.seed for record in records} == {100} and {record.config["lr"] for record in records} == {0.01, 0.1}
    assert (tmp_path / "out" / "report.html").exists()
    monkeypatch.setattr("esam.runs.pool.WorkerProcess", None)  # starting anything would fail
    assert main(["sweep", *words]) == 0
    assert main(["sweep", "--join", f"sqlite:///{tmp_path}/out/sweep.db", "--out", str(tmp_path / "other")]) == 0
    assert (tmp_path / "other" / "report.html").exists()


def test_a_worker_that_joins_imports_no_function_that_it_was_not_told_of(tmp_path, capsys):
    url = f"sqlite:///{tmp_path}/own.db"
    config = dataclasses.replace(TINY, model="somebody.elses:net")
    SharedStudy.create(url, "own", Search(config, ("lr=0.1,0.2",), trials=1))
    assert main(["sweep", "--join", url, "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().err
    assert "a database's word is no reason to run it: add --allow somebody.elses:net" in told


def test_a_database_without_a_study_cannot_be_joined(tmp_path):
    with pytest.raises(ValueError, match="does not hold a study; begin one with esam sweep --storage URL"):
        SharedStudy.join(f"sqlite:///{tmp_path}/none.db")
    assert not (tmp_path / "none.db").exists()
