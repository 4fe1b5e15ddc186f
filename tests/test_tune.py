"""Does each method get its settings by the same budget, without the test data; is a bad result told with a way out?"""

import dataclasses
import itertools

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import esam
from esam.cli import main
from esam.compare import Comparison, Launcher, plan
from esam.compare.tune import FACTORS, SEED, Tried, tell_search, trials, tune
from esam.report import summarise, write_report
from esam.report.advice import advice
from esam.report.results import results_sheet
from esam.report.tuned import tried_sheet
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

    def make(rule, tries=4, comparison=ALL, **more):
        asked = []

        def launch(runs):
            asked.extend(runs)
            for one in runs:
                finished(one, rule(one.config.method, one.config.settings.get("rho")))

        return *tune(comparison, tmp_path, tries, launch, **more), asked

    return make


def test_every_method_with_a_radius_gets_as_many_tries_around_its_own_value(tuned):
    _, tried, asked = tuned(lambda method, rho: 0.5)
    values = {method: [one.values["rho"] for one in tried if one.method == method] for method in METHODS}
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
    assert Tried("esam", {"rho": 0.1}) in tried
    assert [r.config.settings for r in plan(comparison, tmp_path)][:4] == [
        {},
        {"rho": 0.1},
        {"rho": 0.25},
        {"rho": 0.05},
    ]
    rows = tried_sheet(comparison.tuned).rows
    assert ("esam", "0.1", "–", "") in rows and ("sam", "0.1", "90.00", "chosen") in rows


def test_other_settings_of_a_method_stay_and_a_given_rho_is_where_the_search_begins(tuned):
    start = Comparison(TINY, ("esam",), settings={"esam": {"gamma": 0.7, "rho": 0.2}})
    comparison, tried, asked = tuned(lambda method, rho: rho, tries=3, comparison=start)
    assert [one.values["rho"] for one in tried] == [0.2, 0.1, 0.4]
    assert all(run.config.settings["gamma"] == 0.7 for run in asked)
    assert comparison.settings == {"esam": {"gamma": 0.7, "rho": 0.4}}


def test_a_search_that_cannot_be_is_refused(tuned):
    for tries in (-1, 0, len(FACTORS) + 1):
        with pytest.raises(ValueError, match=f"tune must be in 1..8 trials for each method, got {tries}"):
            tuned(lambda method, rho: 0.5, tries=tries)
    with pytest.raises(RuntimeError, match="no trial let sam come to its end; lower lr"):
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
    printed = capsys.readouterr().out
    assert "Tuned on held-out training data" in printed and "rho, tuned" in printed
    assert compared[0].config["tuned"]["chosen"] == {"rho": best} and len(compared[0].config["tuned"]["trials"]) == 2
    assert "Tuned on held-out training data" in (tmp_path / "out" / "report.html").read_text()


# Learning rate and weight decay --------------------------------------------------------------------------------------

OVER = ("rho", "lr", "weight_decay")


def test_the_base_too_gets_as_many_trials_and_every_method_the_same_learning_rates(tmp_path):
    found = trials(ALL, tmp_path, 6, OVER)
    assert {method: len(runs) for method, runs in found.items()} == dict.fromkeys(METHODS, 6)
    rates = {method: [(point["lr"], point["weight_decay"]) for _, point in runs] for method, runs in found.items()}
    assert all(of_method == rates["base"] for of_method in rates.values())
    assert rates["base"][0] == (TINY.lr, TINY.weight_decay)  # the first trial is the method as it is
    for several in found.values():
        for name in several[0][1]:  # each setting takes each multiple once
            start = several[0][1][name]
            assert sorted(point[name] / start for _, point in several) == pytest.approx(sorted(FACTORS[:6]))
    for one, point in itertools.chain.from_iterable(found.values()):
        assert one.config.lr == point["lr"] and one.config.weight_decay == point["weight_decay"]
        assert one.config.validation and one.config.settings.get("rho") == point.get("rho")
    assert len({run.folder for several in found.values() for run, _ in several}) == 6 * len(METHODS)


def test_the_same_seed_tries_the_same_and_another_seed_pairs_the_values_otherwise(tmp_path):
    def points(seed):
        return {
            method: [point for _, point in runs] for method, runs in trials(ALL, tmp_path, 8, OVER, seed=seed).items()
        }

    assert points(SEED) == points(SEED) and points(SEED) != points(SEED + 1)


def test_what_was_chosen_reaches_the_runs_their_records_and_the_table_also_of_runs_that_were_done_before(tmp_path):
    comparison = Comparison(TINY, ("base", "sam"), (0,))
    for one in plan(comparison, tmp_path / "out"):  # without a search, and the base's own values are its best
        finished(one, 0.8)

    def launch(runs):
        for one in runs:
            wanted = {"base": 1, "sam": 2}[one.config.method]
            finished(one, 0.9 if one.config.lr == wanted * TINY.lr else 0.5)

    comparison, _ = tune(comparison, tmp_path / "search", 4, launch, ("rho", "lr"))
    runs = plan(comparison, tmp_path / "out")
    tell_search(runs)
    finished(runs[1], 0.85)
    rate = next(point for _, point in trials(ALL, tmp_path, 4, ("rho", "lr"))["sam"] if point["lr"] == 2 * TINY.lr)
    assert [(run.config.lr, run.config.settings) for run in runs] == [
        (TINY.lr, {}),
        (2 * TINY.lr, {"rho": rate["rho"]}),
    ]
    records = [run.record() for run in runs]
    assert [r.config["tuned"]["chosen"] for r in records] == [{"lr": TINY.lr}, rate]
    (methods,) = summarise(records).values()
    sheet = results_sheet(methods)
    assert sheet.head[-2:] == ("lr, tuned", "rho, tuned")
    assert [row[-2:] for row in sheet.rows] == [("0.1", "–"), ("0.2", f"{rate['rho']:g}")]
    assert "Tuned on held-out training data" in write_report(tmp_path / "out").read_text()


@pytest.mark.parametrize(
    ("config", "over", "complaint"),
    [
        (TINY, ("rho", "momentum"), "tune_over can hold rho, lr, weight_decay, got 'momentum'"),
        (TINY, ("lr", "lr"), "each once"),
        (TINY, (), "must name one or more"),
        (dataclasses.replace(TINY, weight_decay=0), ("weight_decay",), "weight_decay is 0, and so is each multiple"),
    ],
)
def test_a_search_over_what_cannot_be_searched_is_refused(tmp_path, config, over, complaint):
    with pytest.raises(ValueError, match=complaint):
        trials(Comparison(config, METHODS), tmp_path, 4, over)


def test_what_to_search_for_without_a_search_is_refused(tmp_path, capsys):
    assert main(["compare", "--tune-over", "lr", "--out", str(tmp_path)]) == 1
    assert "add --tune 4" in capsys.readouterr().err


X = torch.randn(60, 4, generator=torch.Generator().manual_seed(3))
Y = (X[:, 0] > 0).long()


def own(out, train=(X[:40], Y[:40]), targets=Y, **more):
    build = lambda: torch.nn.Linear(4, 2)  # noqa: E731
    defaults = {"methods": ["base", "sam"], "seeds": [0], "epochs": 2, "tell": None, "threads": 1, "tune": 3}
    return esam.compare(build, train, (X[40:], targets[40:]), out=out, **(defaults | more))


def test_from_python_the_search_is_the_same_and_resumes_and_an_optimizers_groups_move_together(tmp_path, monkeypatch):
    def optimizer(parameters):
        weight, bias = parameters
        groups = [{"params": [weight]}, {"params": [bias], "lr": 0.02}]
        return torch.optim.SGD(groups, lr=0.1, weight_decay=1e-2)

    asked = {"optimizer": optimizer, "tune_over": OVER, "batch_size": 8}
    result = own(tmp_path / "out", **asked)
    searched = read_records(tmp_path / "out-tuning")
    assert len(searched) == 6 and all((r.data["train"], r.data["test"]) == (32, 8) for r in searched)
    for record in searched:
        assert record.run["effective"]["base"]["lr"] == pytest.approx(record.config["lr"])
        assert record.run["effective"]["base"]["weight_decay"] == pytest.approx(record.config["weight_decay"])
    for record in result.records:
        assert (record.data["train"], record.data["test"]) == (40, 20)
        chosen = {name: record.config["settings"].get(name, record.config.get(name)) for name in OVER}
        best = max(
            (r for r in searched if r.method == record.method),
            key=lambda r: r.end["test_accuracy"]["last"],
        )
        assert record.config["tuned"]["chosen"].items() <= chosen.items()
        scores = [trial["accuracy"] for trial in record.config["tuned"]["trials"]]
        assert max(scores) == best.end["test_accuracy"]["last"]
    monkeypatch.setattr("esam.train.runs.fit", None)  # training anything would fail
    assert [r.end for r in own(tmp_path / "out", **asked).records] == [r.end for r in result.records]


def test_targets_that_are_no_classes_are_tuned_by_their_loss(tmp_path):
    loss = lambda o, t: (o[:, 0] - t).square()  # noqa: E731
    found = own(tmp_path / "out", (X[:40], X[:40, 1]), X[:, 1], loss=loss, batch_size=8, tune_over=("lr",))
    search = found.records[0].config["tuned"]
    losses = {trial["lr"]: trial["loss"] for trial in search["trials"]}
    assert search["chosen"]["lr"] == min(losses, key=losses.get) and len(losses) == 3


def test_a_loader_is_tuned_on_samples_given_for_it_and_else_refused(tmp_path):
    loader = DataLoader(TensorDataset(X[:40], Y[:40]), batch_size=8, shuffle=True)
    with pytest.raises(ValueError, match="a DataLoader cannot be divided; give such samples as validation="):
        own(tmp_path / "out", loader)
    own(tmp_path / "out", loader, validation=(X[40:50], Y[40:50]), methods=["sam"], tune=1)
    (searched,) = read_records(tmp_path / "out-tuning")
    assert (searched.data["train"], searched.data["test"]) == (40, 10)
    with pytest.raises(ValueError, match="there is none; add tune=4"):
        own(tmp_path / "out", tune=0, validation=(X[40:50], Y[40:50]))


# What to change ------------------------------------------------------------------------------------------------------


def told(folder, *results, **more):
    """What is advised for (method, test accuracy, training accuracy); None: the run diverged."""
    for seed, (method, accuracy, fitted) in enumerate(results):
        name = {"base": "SGD", "sam": "SAM", "esam": "ESAM", "slicesam": "SliceSAM"}[method]
        config = dataclasses.replace(TINY, method=method, epochs=200, **more).as_json()
        run = {"name": name, "method": method, "seed": seed, "config": config, "environment": {}}
        run["data"] = {"train": 200, "test": 100, "fingerprint": "f00d"}
        writer = RecordWriter.create(folder / f"{seed}" / RECORD_NAME, run)
        status = "finished" if accuracy is not None else "diverged"
        writer.end(status=status, test_accuracy={"last": accuracy, "best": accuracy}, train_accuracy=fitted)
    (methods,) = summarise(read_records(folder)).values()
    return advice(methods)


def test_a_method_that_did_not_fit_is_told_what_to_change(tmp_path):
    (line,) = told(tmp_path, ("base", 0.868, 0.96), ("sam", 0.87, 0.96), ("esam", 0.556, 0.61))
    assert line.startswith("ESAM has fitted 61 % of its training data, SGD 96 %: it was not trained to the end.")
    assert "gamma 1, with which all samples train (now 0.5)" in line and "a smaller rho (now 0.05)" in line


def test_a_run_of_few_steps_is_told_so_whatever_its_epochs(tmp_path):
    (line,) = told(tmp_path, ("base", 0.868, 0.96), ("esam", 0.556, 0.61), batch_size=128)
    assert "not trained to the end; 200 epochs are but 400 steps here. Try more epochs" in line


def test_where_nothing_is_fitted_more_training_is_advised_and_no_setting(tmp_path):
    lines = told(tmp_path, ("base", 0.5, 0.6), ("sam", 0.5, 0.55))
    assert len(lines) == 2 and all("more epochs, or a larger model" in line and "rho" not in line for line in lines)


def test_a_fitted_method_that_loses_by_more_than_a_point_is_told_to_be_tuned_and_a_tuned_one_is_not(tmp_path):
    (line,) = told(tmp_path / "plain", ("base", 0.90, 1.0), ("sam", 0.885, 1.0))
    assert line.startswith("SAM is 1.5 points under SGD though it fits") and "--tune 4" in line
    search = {
        "trials": [{"rho": rho, "accuracy": 0.9, "loss": None} for rho in (0.05, 0.025)],
        "chosen": {"rho": 0.025},
    }
    (line,) = told(tmp_path / "tuned", ("base", 0.90, 1.0), ("sam", 0.885, 1.0), tuned=search)
    assert "its rho is the smallest that was tried" in line and "--tune" not in line


def test_a_loss_within_what_seeds_differ_by_is_told_as_such(tmp_path):
    (line,) = told(tmp_path, ("base", 0.90, 1.0), ("base", 0.96, 1.0), ("sam", 0.90, 1.0), ("sam", 0.93, 1.0))
    assert line.startswith("SAM is 1.5 points under SGD") and "by no more than seeds differ" in line


def test_a_method_that_diverged_is_told_what_to_lower(tmp_path):
    (line,) = told(tmp_path, ("base", 0.9, 1.0), ("sam", None, None), ("sam", 0.9, 1.0))
    assert line.startswith("SAM diverged with 1 of 2 seeds") and "a lower lr (now 0.1) or a smaller rho" in line


def test_a_method_outside_its_range_is_told_why(tmp_path):
    (line,) = told(tmp_path / "noisy", ("base", 0.90, 1.0), ("esam", 0.80, 1.0), label_noise=0.2)
    assert "where labels are wrong, its ranking keeps those first" in line
    (line,) = told(tmp_path / "few", ("base", 0.90, 1.0), ("slicesam", 0.80, 1.0), batch_size=16)
    assert "its correction is that of 2 samples of each batch" in line


def test_targets_that_are_no_classes_are_judged_by_their_loss(tmp_path):
    for seed, (method, loss) in enumerate((("base", 1.0), ("sam", 1.04), ("esam", 1.2))):
        config = dataclasses.replace(TINY, method=method).as_json()
        run = {"name": method.upper(), "method": method, "seed": seed, "config": config, "environment": {}}
        RecordWriter.create(tmp_path / method / RECORD_NAME, run).end(test_accuracy={}, test_loss=loss)
    (methods,) = summarise(read_records(tmp_path)).values()
    (line,) = advice(methods)
    assert line.startswith("ESAM has 1.2 times BASE's test loss") and "gamma 1" in line


def test_nothing_is_advised_where_nothing_is_wrong(tmp_path):
    assert told(tmp_path, ("base", 0.90, 1.0), ("sam", 0.895, 0.99), ("esam", 0.92, 0.97)) == []
