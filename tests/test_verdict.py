"""Does a comparison say who won and at what price, or that it cannot be told, and what to change?"""

import pytest

from esam.optim import METHODS
from esam.report.results import answer_text
from esam.report.summaries import summarise
from esam.report.verdict import advice, verdict
from esam.train.config import Config
from esam.train.record import RunRecord

NAMES = {"base": "SGD", "sam": "SAM", "esam": "ESAM", "slicesam": "SliceSAM", "base-part": "SGD on a part"}
FACTS = {"train": 200, "test": 100, "fingerprint": "f00d", "classes": ["a", "b", "c"]}


def compared(results, data=FACTS, **config):
    """The methods of a comparison: for each its runs, as test accuracies or as whole ends of records."""
    records = []
    for method, ends in results.items():
        for seed, end in enumerate(ends):
            end = end if isinstance(end, dict) else {"test_accuracy": {"last": end}, "train_accuracy": 1.0}
            settings = Config(method=method, seed=seed, **{"epochs": 200, "batch_size": 16, **config}).as_json()
            first = {"name": NAMES[method], "method": method, "seed": seed, "config": settings, "environment": {}}
            first |= {"data": data, "effective": {"method": METHODS[method].effective({})}}
            records.append(RunRecord(None, first, (), {"status": "finished", "test_accuracy": {}, **end}))
    (methods,) = summarise(records).values()
    return methods


def timed(seconds, *accuracies, **more):
    return [{"test_accuracy": {"last": a}, "cpu_seconds": seconds, "train_accuracy": 1.0, **more} for a in accuracies]


WON = {
    "base": timed(10, 0.70, 0.71, 0.72),
    "sam": timed(20, 0.80, 0.81, 0.82),
    "esam": timed(17, 0.79, 0.80, 0.83),
    "base-part": timed(6, 0.5, 0.51, 0.52),
}


def test_a_clear_winner_is_named_with_gain_price_and_those_not_distinguishable_from_it():
    found = verdict(compared(WON))
    # Welch with n = 3 and deviations of 1 point: 2.78 sqrt(2/3) = 2.3
    assert found.sentence == (
        "Best: SAM with 81.0 % ± 1.0, 10.0 points over SGD (95 % interval 7.7 to 12.3, 3 seeds), at 2.00 times SGD's "
        "processor time. Not distinguishable from it: ESAM (1.70 times)."
    )
    assert found.best == ("SAM", "ESAM")


@pytest.mark.parametrize(
    ("results", "start"),
    [
        ({"base": [0.70, 0.72], "sam": [0.71, 0.74]}, "Whether any method beats SGD cannot be told from 2 seeds"),
        ({"base": [0.80, 0.81], "sam": [0.60, 0.61]}, "No method beats SGD (80.5 % ± 0.7, 2 seeds)."),
        ({"base": [0.70], "sam": [0.742]}, "Which method is better cannot be told from one seed: the highest is SAM"),
        (
            {"base": [0.70], "sam": [0.80, 0.81], "esam": [0.8, 0.8]},
            "Which method is better cannot be told from one seed",
        ),
        ({"base": [0.34, 0.33], "sam": [0.36, 0.35]}, "All methods are at chance (33 % of 3 classes)"),
        ({"sam": [0.7, 0.8]}, "SAM reached 75.0 % ± 7.1 with 2 seeds."),
        ({"base": [{"status": "diverged"}]}, "SGD diverged with 1 of 1 seeds."),
        (
            {"base": [{"test_loss": 1.0}, {"test_loss": 1.01}], "sam": [{"test_loss": 0.5}, {"test_loss": 0.51}]},
            "Best: SAM with a test loss of 0.505",
        ),
    ],
)
def test_what_cannot_be_told_is_said_so(results, start):
    found = verdict(compared(results))
    assert found.sentence.startswith(start)
    if len(next(iter(results.values()))) == 1:
        assert "points over" not in found.sentence


@pytest.mark.parametrize("lonely", [0.75, 0.99])
def test_a_method_with_one_seed_does_not_keep_the_others_from_being_compared(lonely):
    lost = {"status": "diverged"}
    found = verdict(compared({**WON, "esam": [lonely, lost, lost]}))
    assert found.sentence.startswith("Best: SAM with 81.0 % ± 1.0, 10.0 points over SGD") and found.best == ("SAM",)
    assert f"With one seed only, and so not compared: ESAM ({100 * lonely:.1f} %). ESAM diverged" in found.sentence


def test_one_seed_gives_the_error_of_the_test_set_instead_of_a_gain():
    sentence = verdict(compared({"base": [0.70], "sam": [0.742]})).sentence
    assert "100 test samples alone leave ± 8.6 points" in sentence  # 1.96 sqrt(0.742 * 0.258 / 100)


def test_chance_is_the_share_of_the_commonest_class_and_never_a_perfect_score_on_few_samples():
    uneven, few = {**FACTS, "of_each_class": {"test": [80, 10, 10]}}, {**FACTS, "test": 4}
    found = verdict(compared({"base": [0.8, 0.8], "sam": [0.8, 0.81]}, uneven)).sentence
    assert "80 %, the commonest of 3 classes" in found
    assert "chance" not in verdict(compared({"base": [1.0, 1.0], "sam": [1.0, 0.75]}, few)).sentence


def test_one_line_names_all_that_did_not_fit_with_learning_rate_batch_size_and_epochs():
    ends = [{"test_accuracy": {"last": 0.5}, "train_accuracy": 0.6}] * 2
    (found,) = advice(compared({"base": ends, "sam": ends}, batch_size=64, epochs=30))
    assert found.word == "under-fits" and found.names == ("SGD", "SAM") and "rho" not in found.line
    for words in ("30 epochs are only 120 steps", "(500, now 30)", "(32, now 64)", "learning rate (0.01, now 0.1)"):
        assert words in found.line  # 200 samples in batches of 64 are 4 steps, and 2,000 steps 500 epochs


def test_where_the_base_has_fitted_the_others_are_advised_on_their_own_settings():
    ends = [{"test_accuracy": {"last": 0.5}, "train_accuracy": 0.6}] * 2
    (found,) = advice(compared({"base": [0.8, 0.8], "esam": ends}))
    assert found.names == ("ESAM",) and "SGD has" in found.line
    assert "gamma 1" in found.line and "a smaller rho" in found.line


def test_a_method_that_is_clearly_behind_is_to_be_tuned_and_a_tuned_one_is_not():
    results = {"base": [0.90, 0.91, 0.92], "sam": [0.80, 0.81, 0.82]}
    (found,) = advice(compared(results))
    assert (found.word, found.names) == ("behind", ("SAM",))
    assert "SAM (10.0 points)" in found.line and "--tune" in found.line
    trials = [{"rho": rho, "accuracy": 0.9, "loss": None} for rho in (0.05, 0.025)]
    (found,) = advice(compared(results, tuned={"trials": trials, "chosen": {"rho": 0.025}}))
    assert "--tune" not in found.line
    assert advice(compared({"base": [0.90, 0.96], "sam": [0.90, 0.93]})) == []  # no more than seeds differ


def test_a_method_that_takes_more_time_than_its_passes_count_is_warned_of():
    slow = {"base": timed(10, 0.9, 0.91), "sam": timed(16, 0.9, 0.91), "slicesam": timed(27, 0.9, 0.91)}
    (found,) = advice(compared(slow, batch_size=128))
    assert (found.word, found.names) == ("slow", ("SliceSAM",)) and "SliceSAM 2.70 times" in found.line
    assert [each.counted_ratio for each in compared(slow, budget=9.0)] == [None] * 3  # which all spend whole


def test_a_run_that_diverged_names_what_to_lower():
    (found,) = advice(compared({"base": [0.9, 0.9], "sam": [{"status": "diverged"}, 0.9]}))
    assert found.line.startswith("SAM diverged with 1 of 2 seeds")
    assert "lr (now 0.1)" in found.line and "rho" in found.line


def test_the_terminal_gets_the_verdict_the_table_and_the_advice():
    lines = answer_text(compared(WON), width=100).splitlines()
    assert lines[0].startswith("Best: SAM") and any(line.startswith("SAM ") for line in lines)
    assert lines[-1].startswith("- Behind SGD") and "SGD on a part" in lines[-1]
