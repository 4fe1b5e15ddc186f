"""Does each method get its settings by the same budget, without the test data; is a bad result told with a way out?"""

import dataclasses
import math

import pytest
import torch
from test_own import TEST, TRAIN, compared
from torch.utils.data import DataLoader, TensorDataset

from esam.cli import main
from esam.report.results import tried_sheet
from esam.runs import Comparison, plan
from esam.runs.tuning import FACTORS, SEED, Trial, first_points, further_point, trial_runs, tune
from esam.train import Config, run
from esam.train.record import RECORD_NAME, RecordWriter, read_records

TINY = Config(data="digits", model="mlp", train_size=200, batch_size=50, epochs=2, threads=1)
METHODS = ("base", "sam", "asam", "esam")
ALL = Comparison(TINY, METHODS)
EVERY = ("rho", "lr", "weight_decay", "epochs")


def finished(planned, accuracy):
    """Write the record of a run; None: it diverged."""
    if planned.record() is not None:
        return
    config = planned.config
    run = {"name": config.method.upper(), "method": config.method, "seed": config.seed, "config": config.as_json()}
    writer = RecordWriter.create(planned.folder / RECORD_NAME, {**run, "environment": {}})
    status = "finished" if accuracy is not None else "diverged"
    writer.end(status=status, test_accuracy={"last": accuracy, "best": accuracy}, train_accuracy=1.0)


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """Search by a rule that says how good a configuration is; what was asked for comes back too."""

    def make(accuracy, tries=4, comparison=ALL, over=("rho",), rounds=0):
        asked = {}
        comparison = dataclasses.replace(comparison, tune=tries, tune_over=over)
        monkeypatch.setattr("esam.runs.tuning.ROUNDS", rounds)

        def launch(runs):
            for one in runs:
                asked[one.folder] = one
                finished(one, accuracy(one.config))

        return tune(comparison, tmp_path / "search", launch), [*asked.values()]

    return make


def tried(comparison, method, name="rho"):
    return [trial[name] for trial in comparison.tuned[method]["trials"]]


def test_every_method_with_a_radius_gets_as_many_trials_around_its_own_value_on_held_out_data(tuned):
    comparison, asked = tuned(lambda config: 0.5)
    assert "base" not in comparison.tuned and len({run.folder for run in asked}) == len(asked) == 12
    assert tried(comparison, "sam") == tried(comparison, "esam") == [0.05, 0.025, 0.1, 0.0125]
    assert tried(comparison, "asam") == [0.5, 0.25, 1.0, 0.125]
    assert all(run.config.validation and run.config.seed == SEED for run in asked)
    assert all(run.config.epochs == TINY.epochs for run in asked)


def test_the_best_value_is_taken_the_smaller_of_equals_and_none_that_diverged(tuned, tmp_path):
    rules = {"sam": {0.1: 0.9}, "asam": {1.0: 0.8, 0.25: 0.8}, "esam": {0.05: 0.7, 0.1: None}}
    comparison, _ = tuned(lambda config: rules[config.method].get(config.settings["rho"], 0.1))
    assert comparison.settings == {"sam": {"rho": 0.1}, "asam": {"rho": 0.25}, "esam": {"rho": 0.05}}
    chosen = [run.config.settings for run in plan(comparison, tmp_path)][:4]
    assert chosen == [{}, {"rho": 0.1}, {"rho": 0.25}, {"rho": 0.05}]
    rows = tried_sheet(comparison.tuned).rows
    assert ("esam", "0.1", "–", "") in rows and ("sam", "0.1", "90.00", "chosen") in rows
    with pytest.raises(RuntimeError, match="no trial let sam come to its end; lower lr"):
        tuned(lambda config: None, comparison=Comparison(dataclasses.replace(TINY, epochs=3), ("sam",)), tries=2)


def test_other_settings_of_a_method_stay_and_a_given_rho_is_where_the_search_begins(tuned):
    start = Comparison(TINY, ("esam",), settings={"esam": {"gamma": 0.7, "rho": 0.2}})
    comparison, asked = tuned(lambda config: config.settings["rho"], tries=3, comparison=start)
    assert tried(comparison, "esam") == [0.2, 0.1, 0.4]
    assert all(run.config.settings["gamma"] == 0.7 for run in asked)
    assert comparison.settings == {"esam": {"gamma": 0.7, "rho": 0.4}}


def test_a_best_value_at_an_edge_is_followed_outwards_and_every_method_gets_as_many_trials(tuned):
    best = {"base": 0.1, "sam": 0.8}  # inside what is tried, and far outside
    comparison, _ = tuned(
        lambda config: 1 - abs(math.log(config.lr / best[config.method])),
        tries=3,
        comparison=Comparison(TINY, ("base", "sam")),
        over=("lr",),
        rounds=3,
    )
    assert tried(comparison, "sam", "lr") == [0.1, 0.05, 0.2, 0.4, 0.8, 1.6]
    assert comparison.settings == {"base": {"lr": 0.1}, "sam": {"lr": 0.8}}
    assert len(tried(comparison, "base", "lr")) == 6
    assert any(tried(comparison, "base", "lr")[3] == pytest.approx(math.sqrt(0.1 * lr), rel=1e-5) for lr in (0.05, 0.2))


def test_the_length_is_a_whole_number_of_epochs_and_one_epoch_is_no_edge():
    base = Comparison(dataclasses.replace(TINY, epochs=10), ("base",), tune=4, tune_over=("epochs",))
    assert [point["epochs"] for point in first_points(base)["base"]] == [10, 5, 20, 2]
    trials = [Trial({"epochs": n}, score) for n, score in ((2, 0.5), (1, 0.9), (4, 0.4))]
    assert further_point(trials) == {"epochs": 1}
    with pytest.raises(ValueError, match="a budget in seconds"):
        first_points(dataclasses.replace(base, config=dataclasses.replace(TINY, budget=3.0)))


def test_the_base_too_gets_as_many_trials_and_every_method_the_same_learning_rates(tmp_path):
    wanted = dataclasses.replace(ALL, tune=6, tune_over=EVERY)
    found = first_points(wanted)
    assert {method: len(points) for method, points in found.items()} == dict.fromkeys(METHODS, 6)
    common = {m: [{k: v for k, v in point.items() if k != "rho"} for point in points] for m, points in found.items()}
    assert all(points == common["base"] for points in common.values())
    assert common["base"][0] == {"lr": TINY.lr, "weight_decay": TINY.weight_decay, "epochs": TINY.epochs}
    for name in ("lr", "weight_decay"):  # each setting takes each multiple once
        start = getattr(TINY, name)
        assert sorted(point[name] / start for point in found["sam"]) == pytest.approx(sorted(FACTORS[:6]))
    for method, runs in trial_runs(wanted, found, tmp_path).items():
        for one, point in zip(runs, found[method], strict=True):
            config = one.config
            values = {"lr": config.lr, "weight_decay": config.weight_decay, "epochs": config.epochs, **config.settings}
            assert values == point and config.validation
    assert first_points(wanted) == found


@pytest.mark.parametrize(
    ("tries", "over", "complaint"),
    [
        (0, ("rho",), "tune must be in 1..8 trials for each method, got 0"),
        (9, ("rho",), "tune must be in 1..8 trials for each method, got 9"),
        (4, ("rho", "momentum"), "one or more of rho, lr, weight_decay, epochs, each once, got .*momentum"),
        (4, ("lr", "lr"), "each once"),
        (4, (), "must name one or more"),
        (4, ("weight_decay",), "weight_decay is 0, and so is each multiple"),
    ],
)
def test_a_search_that_cannot_be_is_refused(tries, over, complaint):
    config = dataclasses.replace(TINY, weight_decay=0)
    with pytest.raises(ValueError, match=complaint):
        first_points(Comparison(config, METHODS, tune=tries, tune_over=over))


def test_the_command_tunes_beside_its_folder_and_compares_by_what_it_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ESAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("esam.runs.live.run_all", lambda runs, *_: [run(r.config, r.folder) for r in runs])
    words = ["--data", "digits", "--model", "mlp", "--train-size", "100", "--batch-size", "50", "--epochs", "1"]
    words += ["--threads", "1", "--methods", "base", "sam", "--seeds", "0", "--out", str(tmp_path / "out")]
    assert main(["compare", *words, "--tune", "2"]) == 0
    searched, runs = (read_records(tmp_path / name) for name in ("out-tuning", "out"))
    scores = {r.config["settings"]["rho"]: r.end["test_accuracy"]["last"] for r in searched}
    assert {0.05, 0.025} < scores.keys() and all(r.config["validation"] for r in searched)
    best = max(scores, key=lambda rho: (scores[rho], -rho))
    assert {r.method: r.config["settings"] for r in runs} == {"base": {}, "sam": {"rho": best}}
    printed = capsys.readouterr().out
    assert "Tuned on held-out training data" in printed and "rho, tuned" in printed
    assert "Tuned on held-out training data" in (tmp_path / "out" / "report.html").read_text()
    assert runs[0].config["tuned"]["chosen"] == {"rho": best}
    assert main(["compare", "--tune-over", "lr", "--out", str(tmp_path)]) == 1
    assert "add --tune 4" in capsys.readouterr().err


# From Python ---------------------------------------------------------------------------------------------------------


def own(out, **more):
    return compared(out, **{"build": lambda: torch.nn.Linear(4, 2), "tune": 3, **more})


def test_from_python_the_search_is_the_same_and_resumes_and_an_optimizers_groups_move_together(tmp_path, monkeypatch):
    def optimizer(parameters):
        weight, bias = parameters
        groups = [{"params": [weight]}, {"params": [bias], "lr": 0.02}]
        return torch.optim.SGD(groups, lr=0.1, weight_decay=1e-2)

    asked = {"optimizer": optimizer, "tune_over": EVERY}
    result = own(tmp_path / "out", **asked)
    searched = read_records(tmp_path / "out-tuning")
    assert len(searched) >= 6 and all((r.data["train"], r.data["test"]) == (32, 8) for r in searched)
    for record in searched:
        assert record.run["effective"]["base"]["lr"] == pytest.approx(record.config["lr"])
        assert record.run["effective"]["base"]["weight_decay"] == pytest.approx(record.config["weight_decay"])
    for record in result.records:
        assert record.config["optimizer"] == "SGD(lr=0.1, weight_decay=0.01; lr=0.02, weight_decay=0.01)"
        assert (record.data["train"], record.data["test"]) == (40, 20)
        values = {name: record.config["settings"].get(name, record.config.get(name)) for name in EVERY}
        assert record.config["tuned"]["chosen"].items() <= values.items()
        best = max(r.end["test_accuracy"]["last"] for r in searched if r.method == record.method)
        assert max(trial["accuracy"] for trial in record.config["tuned"]["trials"]) == best
    monkeypatch.setattr("esam.train.runner.fit", None)  # training anything would fail
    assert [r.end for r in own(tmp_path / "out", **asked).records] == [r.end for r in result.records]


def test_targets_that_are_no_classes_are_tuned_by_their_loss(tmp_path):
    train, test = ((x, x[:, 1]) for x, _ in (TRAIN, TEST))
    loss = lambda o, t: (o[:, 0] - t).square()  # noqa: E731
    found = own(tmp_path / "out", train=train, test=test, loss=loss, tune_over=("lr",))
    search = found.records[0].config["tuned"]
    losses = {trial["lr"]: trial["loss"] for trial in search["trials"] if trial["loss"] is not None}
    assert search["chosen"]["lr"] == min(losses, key=losses.get) and len(losses) >= 3


def test_a_loader_is_tuned_on_samples_given_for_it_and_else_refused(tmp_path):
    loader, held_out = DataLoader(TensorDataset(*TRAIN), batch_size=8, shuffle=True), [part[:10] for part in TEST]
    with pytest.raises(ValueError, match="a DataLoader cannot be divided; give such samples as validation="):
        own(tmp_path / "out", train=loader)
    own(tmp_path / "out", train=loader, validation=tuple(held_out), methods=["sam"], tune=1)
    (searched,) = read_records(tmp_path / "out-tuning")
    assert (searched.data["train"], searched.data["test"]) == (40, 10)
    with pytest.raises(ValueError, match="there is none; add tune=4"):
        own(tmp_path / "out", tune=0, validation=tuple(held_out))
