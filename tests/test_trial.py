"""The trial's own rules, on records that are made up so that the answer is known."""

import math
from dataclasses import asdict, replace

import pytest

from experiments.trial import page
from experiments.trial.judge import Difference, Task, answers, finished, joint
from experiments.trial.records import append, read
from experiments.trial.run import HORIZONS, Run
from experiments.trial.stages import EQUAL, FINAL_SEEDS, SLICE, Ladder, Missing, climb, final, open_runs, pilot, tuned
from experiments.trial.tasks import TASKS

START = Run("tune", "cifar10", "sam", 0, 0.1, 5e-4, 20, 0.05)
LADDER = Ladder("rho", (0.5, 1, 2), 2, 0.125, 8)


def record(run: Run, accuracy: float, seconds: float = 1.0, **more: object) -> dict:
    values = {"accuracy": accuracy, "loss": 3 - accuracy / 50, "calibration": 0.1}
    values |= {"accuracy_8_bits": accuracy, "accuracy_4_bits": accuracy - 1}
    averages = {f"ema_{h}_{name}": value for h in HORIZONS for name, value in values.items()}
    return {**asdict(run), "diverged": False, "steps": 100, "seconds": seconds * 100, **values, **averages, **more}


def filled(best, stages=("pilot", "tune", "final"), tasks=("cifar10",)) -> dict:
    """Run stages with made-up outcomes until nothing is open."""
    records: dict = {}
    while runs := [run for stage in stages for run in open_runs(records, stage, tasks)]:
        records |= {run.key: best(run) for run in runs}
    return records


def test_the_best_radius_is_found_inside_and_the_search_goes_on_beyond_an_end():
    def outcome(run):
        return record(run, 60 - abs(math.log2(run.rho / 0.2)))

    records: dict = {}
    while True:
        try:
            best = climb(records, START, LADDER, (1, 2), lambda r: r["accuracy"])
            break
        except Missing as missing:
            records |= {run.key: outcome(run) for run in missing.runs}
    assert best.rho == pytest.approx(0.2)
    assert max(r["rho"] for r in records.values()) == pytest.approx(0.4), "one step beyond the best was tried"
    assert len(records) == 2 * 5


def test_everyone_has_the_same_trials_and_the_final_has_every_role():
    def outcome(run):
        off = abs(math.log(run.lr / 0.1)) + abs(math.log(run.epochs / 20)) + abs(math.log(run.weight_decay / 5e-4))
        off += abs(math.log(run.rho / {"msam": 0.5, "rwp": 0.1}.get(run.arm, 0.05))) if run.rho else 0
        return record(run, 60 - off)

    records = filled(outcome, ("pilot", "tune", "final", "last"))
    base, sam = pilot(records, "cifar10")
    assert (base.lr, base.epochs, sam.rho) == (pytest.approx(0.1), 20, 0.05)
    for arm in ("sam", "slicesam", "ascent", "msam", "rwp"):
        trials = {(r["rho"], r["epochs"]) for r in records.values() if r["stage"] == "tune" and r["arm"] == arm}
        assert len(trials) == 5, arm
        assert tuned(records, "cifar10", arm).epochs == 20
    roles = final(records, "cifar10")
    assert {len(runs) for runs in roles.values()} == {len(FINAL_SEEDS)}
    assert roles[SLICE][0] == replace(roles["sam"][0], arm="slicesam"), "at SAM's own radius and length"


@pytest.mark.parametrize(
    ("values", "bound", "answer"),
    [
        ((0.1, 0.2, 0.0, 0.1, 0.2, 0.0), -0.5, "yes"),
        ((-1.1, -1.2, -1.0, -1.1, -1.2, -1.0), -0.5, "no"),
        ((-1.5, 1.5, -1.5, 1.5, -1.0, 0.0), -0.5, "cannot tell"),
        ((), -0.5, "not run"),
        ((2.0,), -0.5, "cannot tell"),
    ],
)
def test_a_difference_is_judged_by_a_one_sided_t_bound(values, bound, answer):
    assert Difference(values).above(bound) == answer


def test_the_bound_is_students():
    # n = 6, deviation 1: t(.95, 5) = 2.015048, over the root of 6
    values = (1.0, -1.0, 1.0, -1.0, 0.5, -0.5)
    deviation = math.sqrt(sum(v * v for v in values) / 5)
    assert Difference(values).reach == pytest.approx(2.015048 * deviation / math.sqrt(6), rel=1e-6)


@pytest.mark.slow
def test_a_dear_or_twice_worse_slice_is_refuted_and_an_equal_one_holds():
    def world(loss_to_sam: float, price: float):
        def outcome(run):
            gain = {"base": 0.0, "sam": 2.0, "slicesam": 2.0 - loss_to_sam}.get(run.arm, 0.5)
            noise = 0.01 * ((run.seed * 7 + len(run.arm)) % 5)
            cost = {"base": 1.0, "sam": 2.0, "slicesam": price}.get(run.arm, 1.0)
            length = -abs(math.log2(run.epochs / 20))
            radius = -abs(math.log2(run.rho / 0.05)) if run.rho and run.arm in ("sam", "slicesam", "esam") else 0.0
            return record(run, 60 + gain + noise + length + radius, 0.2 * cost)

        return outcome

    def judged(loss_to_sam, price):
        tasks = ("cifar10", "noisy")
        records = filled(world(loss_to_sam, price), tasks=tasks)
        return answers([Task(records, name) for name in tasks])

    fair = judged(0.1, 1.1)
    assert (fair.estimator, fair.value, fair.safety) == ("yes", "yes", "yes")
    assert judged(0.1, 1.4).estimator == "no", "too dear"
    assert judged(1.5, 1.1).estimator == "no", "worse in two tasks"


def test_the_page_says_what_the_records_say(tmp_path):
    def outcome(run):
        gain = {"base": 0.0, "sam": 2.0, "slicesam": 0.5}.get(run.arm, 1.0)
        length = -abs(math.log2(run.epochs / 20))
        return record(run, 60 + gain + length + 0.01 * (run.seed % 3), 0.2, train_accuracy=99.0)

    tasks = [Task(filled(outcome, tasks=("noisy",)), "noisy")]
    said = page.answered(tasks)
    assert "**No.**" in said.splitlines()[1], "SAM gains two points, and the slice keeps a quarter of them"
    assert "Not run yet: vit, gpt" in said
    assert "| SAM | 62.01 ± 0.01 |" in page.tables(tasks)
    assert "| ESAM | 1 | cannot tell: noisy no | 1.00 |" in page.other_arms(tasks), "refuted by two tasks, not by one"
    page.figure(tasks, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5_000


def test_at_full_size_only_the_bases_learning_rate_is_searched():
    start = TASKS["full"].lr

    def outcome(run):
        gain = {"base": 0.0, "sam": 0.4, "slicesam": 0.3}.get(run.arm, 0.2)
        off = abs(math.log(run.lr / start / 2)) - 0.01 * (run.seed % 3)
        return record(run, 91 + gain - off, 2.0 if run.arm == "sam" else 1.0, train_accuracy=99.0)

    records = filled(outcome, tasks=("full",))
    searched = [r for r in records.values() if r["stage"] == "pilot"]
    assert {r["lr"] / start for r in searched} == {0.5, 1, 2, 4}
    task = Task(records, "full")
    assert {len(runs) for runs in task.runs.values()} == {4}
    assert task.runs["slicesam"] == task.runs[SLICE], "one arm, at one radius"
    assert task.rival("sam") == "base", "no base of SAM's time is run"
    assert answers([task]).estimator == "yes"
    assert "full: CIFAR-10, all 50,000" in page.tables(finished(records))


def test_two_seeds_are_added_where_the_first_question_cannot_be_told():
    def outcome(run, spread):
        off = abs(math.log(run.epochs / 20)) + abs(math.log(run.lr / 0.1))
        return record(run, 60 - off + (spread * (run.seed % 2 - 0.5) if run.arm == "slicesam" else 0.0), 1.0)

    for spread, count in ((0.1, 6), (4.0, 8)):
        records = filled(lambda run, spread=spread: outcome(run, spread))
        assert len({r["seed"] for r in records.values() if r["stage"] == "final"}) == count


def test_answers_join():
    assert joint(["yes", "yes"]) == "yes"
    assert joint(["yes", "no", "cannot tell"]) == "no"
    assert joint(["yes", "cannot tell"]) == "cannot tell"
    assert joint([]) == "not run"


def test_the_base_of_equal_time_is_longer_by_the_measured_price():
    def outcome(run):
        off = abs(math.log(run.epochs / 20)) + abs(math.log(run.lr / 0.1))
        return record(run, 60 - off, 1.12 if run.arm == "slicesam" else 1.0)

    records = filled(outcome)
    assert final(records, "cifar10")[EQUAL][0].epochs == pytest.approx(20 * 1.12)


def test_records_are_lines_and_a_torn_one_is_left_out(tmp_path):
    path = tmp_path / "trial.jsonl"
    append(path, record(START, 50.0))
    with path.open("a") as file:
        file.write('{"stage": "tu')
    assert list(read(path)) == [START.key]
