"""Does each method get its rho by the same budget, without the test data, and is a bad result told with a way out?"""

import dataclasses

import pytest

from esam.cli import main
from esam.compare import Comparison, Launcher, plan
from esam.compare.tune import FACTORS, SEED, Tried, tried_sheet, tune
from esam.report import summarise
from esam.report.advice import advice
from esam.train import Config, run
from esam.train.record import RECORD_NAME, RecordWriter, read_records

TINY = Config(data="digits", model="mlp", train_size=200, batch_size=50, epochs=2, threads=1)
METHODS = ("base", "sam", "asam", "esam")
ALL = Comparison(TINY, METHODS)


def finished(run, accuracy):
    """Write the record of a run that came to this accuracy; None: it diverged."""
    config = run.config
    first = {"name": config.method, "method": config.method, "seed": config.seed, "config": config.as_json()}
    writer = RecordWriter.create(run.folder / RECORD_NAME, {**first, "environment": {}})
    writer.epoch(epoch=1, test_accuracy=accuracy)
    writer.end(
        status="diverged" if accuracy is None else "finished", test_accuracy={"last": accuracy, "best": accuracy}
    )


@pytest.fixture
def tuned(tmp_path):
    """Tune, with accuracies by a rule of one's own; gives the new comparison, what was tried, and all the runs."""

    def make(rule, tries=4, comparison=ALL):
        asked = []

        def launch(runs):
            asked.extend(runs)
            for one in runs:
                finished(one, rule(one.config.method, one.config.settings["rho"]))

        return *tune(comparison, tmp_path, tries, launch), asked

    return make


def test_every_method_with_a_radius_gets_as_many_tries_around_its_own_value(tuned):
    _, tried, asked = tuned(lambda method, rho: 0.5)
    values = {method: [one.rho for one in tried if one.method == method] for method in METHODS}
    assert values["base"] == []
    assert values["sam"] == values["esam"] == [0.05, 0.025, 0.1, 0.0125]
    assert values["asam"] == [0.5, 0.25, 1.0, 0.125]
    assert len({run.folder for run in asked}) == len(asked) == 12


def test_no_run_of_the_search_sees_the_test_data_or_a_seed_of_the_comparison(tuned):
    _, _, asked = tuned(lambda method, rho: 0.5)
    assert all(run.config.validation and run.config.seed == SEED for run in asked)
    assert all(run.config.epochs == TINY.epochs for run in asked)


def test_the_best_value_is_taken_the_smaller_of_equals_and_none_that_diverged(tuned, tmp_path):
    rules = {"sam": {0.1: 0.9}, "asam": {1.0: 0.8, 0.25: 0.8}, "esam": {0.05: 0.7, 0.1: None}}
    comparison, tried, _ = tuned(lambda method, rho: rules[method].get(rho, 0.1))
    assert comparison.settings == {"sam": {"rho": 0.1}, "asam": {"rho": 0.25}, "esam": {"rho": 0.05}}
    assert Tried("esam", 0.1, None) in tried
    assert [r.config.settings for r in plan(comparison, tmp_path)][:4] == [
        {},
        {"rho": 0.1},
        {"rho": 0.25},
        {"rho": 0.05},
    ]
    assert ("esam", "0.1", "–") in tried_sheet(tried).rows and ("sam", "0.1", "90.00") in tried_sheet(tried).rows


def test_other_settings_of_a_method_stay_and_a_given_rho_is_where_the_search_begins(tuned):
    start = Comparison(TINY, ("esam",), settings={"esam": {"gamma": 0.7, "rho": 0.2}})
    comparison, tried, asked = tuned(lambda method, rho: rho, tries=3, comparison=start)
    assert [one.rho for one in tried] == [0.2, 0.1, 0.4]
    assert all(run.config.settings["gamma"] == 0.7 for run in asked)
    assert comparison.settings == {"esam": {"gamma": 0.7, "rho": 0.4}}


def test_a_search_that_cannot_be_is_refused(tuned):
    for tries in (-1, 0, len(FACTORS) + 1):
        with pytest.raises(ValueError, match=f"tune must be in 1..8 values for each method, got {tries}"):
            tuned(lambda method, rho: 0.5, tries=tries)
    with pytest.raises(RuntimeError, match="no value of rho that was tried let sam come to its end; lower lr"):
        tuned(lambda method, rho: None)


def test_the_command_tunes_beside_its_folder_and_compares_by_what_it_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ESAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Launcher, "__call__", lambda self, look=None: [run(r.config, r.folder) for r in self.runs])
    words = ["--data", "digits", "--model", "mlp", "--train-size", "100", "--batch-size", "50", "--epochs", "1"]
    words += ["--threads", "1", "--methods", "base", "sam", "--seeds", "0", "--out", str(tmp_path / "out")]
    assert main(["compare", *words, "--tune", "2"]) == 0
    searched, compared = (read_records(tmp_path / name) for name in ("out-tuning", "out"))
    scores = {r.config["settings"]["rho"]: r.end["test_accuracy"]["last"] for r in searched}
    assert scores.keys() == {0.05, 0.025} and all(r.config["validation"] for r in searched)
    best = max(scores, key=lambda rho: (scores[rho], -rho))
    assert {r.method: r.config["settings"] for r in compared} == {"base": {}, "sam": {"rho": best}}
    assert "Tuned on held-out training data" in capsys.readouterr().out


# What to change ------------------------------------------------------------------------------------------------------


def told(folder, *results):
    """What is advised for (method, test accuracy, training accuracy)."""
    for method, accuracy, fitted in results:
        name = {"base": "SGD", "sam": "SAM", "esam": "ESAM"}[method]
        config = dataclasses.replace(TINY, method=method).as_json()
        run = {"name": name, "method": method, "seed": 0, "config": config, "environment": {}}
        writer = RecordWriter.create(folder / method / RECORD_NAME, run)
        writer.end(test_accuracy={"last": accuracy, "best": accuracy}, train_accuracy=fitted)
    (methods,) = summarise(read_records(folder)).values()
    return advice(methods)


def test_a_method_that_did_not_fit_is_told_what_to_change(tmp_path):
    (line,) = told(tmp_path, ("base", 0.868, 0.96), ("sam", 0.87, 0.96), ("esam", 0.556, 0.61))
    assert line.startswith("ESAM has fitted 61 % of its training data, SGD all of it")
    assert "gamma 1, with which all samples train (now 0.5)" in line and "a smaller rho (now 0.05)" in line


def test_where_nothing_is_fitted_more_training_is_advised_and_no_setting(tmp_path):
    lines = told(tmp_path, ("base", 0.5, 0.6), ("sam", 0.5, 0.55))
    assert len(lines) == 2 and all("more epochs, or a larger model" in line and "rho" not in line for line in lines)


def test_a_fitted_method_that_loses_by_more_than_a_point_is_told_to_be_tuned(tmp_path):
    (line,) = told(tmp_path, ("base", 0.90, 1.0), ("sam", 0.885, 1.0))
    assert line.startswith("SAM is 1.5 points under SGD though it fits") and "--tune 4" in line


def test_nothing_is_advised_where_nothing_is_wrong(tmp_path):
    assert told(tmp_path, ("base", 0.90, 1.0), ("sam", 0.895, 0.99), ("esam", 0.92, 0.97)) == []
