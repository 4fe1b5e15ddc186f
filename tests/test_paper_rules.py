"""The rules by which the paper is judged, on made-up measurements whose verdict is known."""

import math

import pytest

from experiments.paper import rules
from experiments.paper.appendix4 import CASES, PRINTED
from experiments.paper.rules import CONTRADICTED, HOLDS, INCONCLUSIVE, Interval, Verdict

SEEDS = range(6)


def around(mean, spread=0.1):
    """Six seeds with this mean, alternating above and below it."""
    return {seed: mean + spread * (-1) ** seed for seed in SEEDS}


def test_an_interval_is_students_t_worked_out_by_hand():
    found = rules.interval([1.0, 2.0, 3.0])  # deviation 1, t of 2 degrees of freedom 4.3027
    assert found.mean == 2 and found.half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-5) and found.n == 3
    assert rules.interval([1.0]).half == math.inf


def test_differences_are_paired_by_seed_so_what_seeds_share_cancels():
    ours, theirs = {s: 10.0 * s + 1 for s in SEEDS}, {s: 10.0 * s for s in SEEDS}
    assert rules.paired(ours, theirs) == Interval(1.0, 0.0, 6)
    assert rules.paired({1: 1.0}, {2: 1.0}) is None


def test_tasks_are_averaged_by_seed_before_seeds_are_compared():
    # each task swings by seed, but in opposite ways: their mean does not
    swinging = [{s: 1.0 + (-1) ** s for s in SEEDS}, {s: 1.0 - (-1) ** s for s in SEEDS}]
    assert rules.over_tasks(swinging) == Interval(1.0, 0.0, len(SEEDS))
    assert rules.over_tasks([{0: 1.0, 1: 2.0}, {1: 4.0}]) == Interval(3.0, math.inf, 1)
    assert rules.over_tasks([{0: 1.0}, {1: 4.0}]) is None


@pytest.mark.parametrize(
    ("gap", "at_least", "better"),
    [
        (around(1.0), HOLDS, HOLDS),
        (around(-0.1), HOLDS, INCONCLUSIVE),  # a little under, well within the margin
        (around(-0.3, 0.5), INCONCLUSIVE, INCONCLUSIVE),  # too wide to tell
        (around(-1.0), CONTRADICTED, CONTRADICTED),
        (around(-0.25), HOLDS, CONTRADICTED),  # worse by less than the margin: at least as good, not better
    ],
)
def test_at_least_as_good_has_a_margin_and_better_has_none(gap, at_least, better):
    found = rules.interval(list(gap.values()))
    assert rules.above(found, -rules.MARGIN, "").verdict == at_least
    assert rules.above(found, 0.0, "").verdict == better


def test_few_seeds_unfitted_images_and_a_sam_that_does_not_lead_leave_it_open():
    good = Verdict(HOLDS, "")
    assert rules.guarded(good, n=6, fits={"SAM": 100.0}).verdict == HOLDS
    assert rules.guarded(good, n=5, fits={}).reason == "5 of 6 seeds"
    assert "SAM 98.0 %" in rules.guarded(good, n=6, fits={"SAM": 98.0}).reason
    assert rules.guarded(good, n=6, fits={}, sam_leads=False).verdict == INCONCLUSIVE
    assert rules.guarded(Verdict(rules.NOT_RUN, ""), n=1, fits={}).verdict == rules.NOT_RUN


def test_an_argmax_carries_an_error():
    values = {0.3: around(30.0), 0.5: around(35.0), 0.7: around(33.0)}
    assert rules.best_of(values, (0.5, 0.6)).verdict == HOLDS
    assert rules.best_of(values, (0.3,)).verdict == CONTRADICTED
    near = {0.5: {s: 35 + 0.5 * (s % 2) for s in SEEDS}, 0.7: {s: 35 + 0.5 * ((s + 1) % 2) for s in SEEDS}}
    assert rules.best_of(near, (0.5,)).verdict == INCONCLUSIVE
    assert rules.best_of({0.7: around(33.0)}, (0.5,)).verdict == rules.NOT_RUN


def test_the_smallest_value_that_keeps_sam_is_judged_on_both_sides():
    sam = around(36.0)
    assert rules.smallest_that_keeps({0.3: around(34.0), 0.5: around(36.1)}, 0.5, sam).verdict == HOLDS
    assert rules.smallest_that_keeps({0.3: around(36.0), 0.5: around(36.1)}, 0.5, sam).verdict == CONTRADICTED
    assert rules.smallest_that_keeps({0.3: around(33.0), 0.5: around(34.0)}, 0.5, sam).verdict == CONTRADICTED
    wide = {0.3: around(34.0), 0.5: {s: 36.0 + (-1) ** (s // 2) for s in SEEDS}}
    assert rules.smallest_that_keeps(wide, 0.5, sam).verdict == INCONCLUSIVE


def test_every_epoch_has_an_error_and_violations_are_dated():
    fine = [[0.1, 0.2, 0.15]] * 40
    assert rules.every_epoch(fine, 1).verdict == HOLDS
    noisy = [*fine[1:], [-0.3, 0.29, 0.0]]  # a mean just below zero, far within its error
    assert rules.every_epoch(noisy, 1).verdict == HOLDS
    broken = [[-1.0 + 0.001 * n for n in range(24)], *fine[1:]]
    found = rules.every_epoch(broken, 5)
    assert found.verdict == CONTRADICTED and "all before the images are fitted" in found.measured
    assert "1 after the images are fitted" in rules.every_epoch(broken, 1).measured
    often = [[-0.3, 0.29, 0.0]] * 10 + fine[:30]
    assert rules.every_epoch(often, None).verdict == INCONCLUSIVE


def test_a_speed_is_the_median_of_processes_with_their_spread():
    found = rules.speed_ratio([1.1, 1.2, 1.15, 1.1, 1.2])
    assert found.mean == 1.15 and found.low > 1.05 and found.n == 5
    slow = Verdict(CONTRADICTED, "90 %")
    assert rules.on_a_cpu(slow).verdict == INCONCLUSIVE and rules.on_a_cpu(Verdict(HOLDS, "")).verdict == HOLDS


def test_the_fit_of_the_papers_form_finds_the_constants_that_made_the_data():
    points = {(n, b): 0.3 * (1 - b) + 0.2 * (1 - b) / (n * b) for n in (10, 20, 40) for b in (0.1, 0.3, 0.5, 0.9)}
    fit = rules.fit_savings(points)
    assert fit.k1.mean == pytest.approx(0.3) and fit.k2.mean == pytest.approx(0.2) and fit.r_squared > 0.9999
    assert rules.form_holds(fit, "").verdict == HOLDS
    alone = rules.fit_savings({key: 0.3 * (1 - key[1]) + 1e-3 * (-1) ** n for n, key in enumerate(points)})
    assert rules.form_holds(alone, "").verdict != HOLDS  # k1 does all the work
    assert rules.papers_constant(fit.k1, 0.31, "").verdict == HOLDS
    assert rules.papers_constant(fit.k2, 0.1, "").verdict == CONTRADICTED
    assert rules.papers_constant(Interval(0.3, 0.2, 12), 0.31, "").verdict == INCONCLUSIVE  # would agree with anything


@pytest.mark.parametrize("case", ["serial", "crossed"])
def test_the_papers_printed_fit_explains_its_printed_savings(case):
    k1, k2 = CASES[case].fit
    printed = {(n, b): g for n, row in CASES[case].printed.items() for b, g in zip(PRINTED, row, strict=True)}
    for (layers, beta), percent in printed.items():
        assert abs(100 * (k1 * (1 - beta) + k2 * (1 - beta) / (layers * beta)) - percent) < 1.6
    fit = rules.fit_savings({key: percent / 100 for key, percent in printed.items()})
    assert fit.k1.mean == pytest.approx(k1, rel=0.05)


def test_a_claim_on_all_tasks_is_as_good_as_its_worst():
    every = [Verdict(HOLDS, "a"), Verdict(INCONCLUSIVE, "b", "wide"), Verdict(HOLDS, "c")]
    found = rules.worst(every)
    assert found == Verdict(INCONCLUSIVE, "b | a | c", "wide") and found.words(short=True) == "b; wide"
    assert rules.worst([], "not timed") == Verdict(rules.NOT_RUN, "not timed")
    assert rules.worst([*every, Verdict(CONTRADICTED, "d")]).verdict == CONTRADICTED
