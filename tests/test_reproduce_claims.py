"""Do the rules come to the right verdict on results made up for each of them?"""

import pytest

from esam.paper.claims import CLAIMS, judged
from esam.paper.engine.item import Workload
from esam.paper.engine.observer import MeanPerturbation
from esam.paper.engine.store import Result, ResultStore
from esam.paper.engine.values import Repeated
from esam.paper.items import ITEMS
from esam.paper.items.four_losses import AT_THETA
from esam.paper.items.linearity import BetaZetas, LinearityFigures
from esam.paper.items.planes import LandscapeFigures, Minimum
from esam.paper.items.probes import ProbedRun, ProbeFigures, Series
from esam.paper.items.savings_timing import Fit, Saving, predicted
from esam.paper.items.swp_savings import CaseFigures, SavingsFigures
from esam.paper.items.tables import MethodFigures, TableFigures, WorkloadFigures
from esam.paper.items.timing import Ratio, Speed
from esam.paper.verdicts import (
    CONTRADICTED,
    HOLDS,
    INCONCLUSIVE,
    NOT_RUN,
    at_least,
    best_share,
    costs,
    every_batch,
    every_epoch,
    faster,
    flatter,
    form_of_savings,
    more_linear,
    nearer,
    smallest_that_keeps,
    unbiased,
)

TASK = Workload("ResNet-18", "CIFAR-10", "ResNet-8", "CIFAR-10")
SLOW = Speed(100.0, Ratio(1.0, 1.0, 1.0), Ratio(2.0, 2.0, 2.0), 1.0, 20)


def result(measured, device="cpu"):
    environment = {"device": device, "hardware": "Some Processor"}
    return Result("item", "tiny", (), environment, measured)


def over_seeds(mean, spread=0.0, n=3):
    """Return n values with this mean and, for three, this standard deviation."""
    return Repeated(tuple(mean + spread * offset for offset in (-1, 0, 1)[-n:])) if n == 3 else Repeated((mean,) * n)


def row(method, accuracy=None, train=99.0, speed=SLOW, share=None, loss=0.01):
    accuracy = accuracy or over_seeds(90.0, 1.0)
    return MethodFigures(method, method, share, accuracy, None, over_seeds(train), speed, None, over_seeds(loss))


def table(*tasks, device="cpu"):
    return result(TableFigures(tuple(WorkloadFigures(TASK, 1, rows) for rows in tasks)), device)


def test_every_claim_is_about_an_item_that_exists_and_is_not_run_before_it_is_made(tmp_path):
    from tiny_scale import tiny_scale

    assert {claim.item for claim in CLAIMS} <= set(ITEMS)
    assert {found.verdict for _, found in judged(ResultStore(tmp_path, tiny_scale()))} == {NOT_RUN}


# Accuracy ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "theirs", "verdict"),
    [
        (over_seeds(92.0, 1.0), over_seeds(90.0, 1.0), HOLDS),  # a standard error of .82 each way
        (over_seeds(91.0, 1.0), over_seeds(90.0, 1.0), INCONCLUSIVE),
        (over_seeds(88.0, 1.0), over_seeds(90.0, 1.0), CONTRADICTED),
        (over_seeds(95.0, n=1), over_seeds(90.0, n=1), INCONCLUSIVE),  # one seed
        (Repeated((None, None)), over_seeds(90.0, 1.0), INCONCLUSIVE),
    ],
)
def test_accuracies_are_told_apart_by_two_standard_errors(mine, theirs, verdict):
    assert at_least("esam", "sam")(table((row("esam", mine), row("sam", theirs)))).verdict == verdict


@pytest.mark.parametrize(("mine", "theirs"), [(94.9, 100.0), (100.0, 94.9), (50.0, 50.0)])
def test_an_accuracy_is_not_judged_where_either_method_has_not_fitted_its_images(mine, theirs):
    rows = (row("esam", over_seeds(80.0, 0.1), mine), row("sam", over_seeds(90.0, 0.1), theirs))
    found = at_least("esam", "sam")(table(rows))
    assert found.verdict == INCONCLUSIVE and "95 %" in found.why
    assert f"esam {mine:.1f} %, sam {theirs:.1f} %" in found.measured


@pytest.mark.parametrize(("loss", "verdict"), [(0.06, CONTRADICTED), (0.061, INCONCLUSIVE)])
def test_an_accuracy_is_not_judged_where_training_losses_are_far_apart(loss, verdict):
    rows = (row("esam", over_seeds(80.0, 0.1), loss=loss), row("sam", over_seeds(90.0, 0.1)))
    found = at_least("esam", "sam")(table(rows))
    assert found.verdict == verdict and ("further apart than 0.05" in found.why) == (verdict == INCONCLUSIVE)


def test_a_task_outside_the_guard_does_not_weigh_on_those_inside_it():
    inside = (row("esam", over_seeds(93.0, 0.1)), row("sam", over_seeds(90.0, 0.1)))
    outside = (row("esam", over_seeds(10.0, 0.1), 30.0), row("sam", over_seeds(90.0, 0.1)))
    assert at_least("esam", "sam")(table(inside, outside)).verdict == HOLDS
    assert at_least("esam", "sam")(table(outside, outside)).verdict == INCONCLUSIVE


def test_the_tasks_inside_the_guard_are_judged_together():
    lower = (row("esam", over_seeds(88.0, 1.0)), row("sam", over_seeds(90.0, 1.0)))
    higher = (row("esam", over_seeds(95.0, 1.0)), row("sam", over_seeds(90.0, 1.0)))
    found = at_least("esam", "sam")(table(lower, higher))
    assert found.verdict == HOLDS and found.measured.startswith("+1.50 ± 0.58 on ")


@pytest.mark.parametrize(
    ("best", "n", "train", "verdict"),
    [(0.6, 3, 99.0, HOLDS), (0.9, 3, 99.0, CONTRADICTED), (0.6, 1, 99.0, INCONCLUSIVE), (0.9, 3, 60.0, INCONCLUSIVE)],
)
def test_the_best_beta_must_lie_in_the_interval_by_several_seeds_that_fit(best, n, train, verdict):
    rows = tuple(row("esam-swp", over_seeds(90 + (s == best), 1.0, n), train, share=s) for s in (0.3, 0.6, 0.9))
    assert best_share("esam-swp", 0.5, 0.6)(table(rows)).verdict == verdict


@pytest.mark.parametrize(
    ("here", "below", "train", "verdict"),
    [
        (93.0, 80.0, 99.0, HOLDS),
        (80.0, 70.0, 99.0, CONTRADICTED),
        (93.0, 93.0, 99.0, INCONCLUSIVE),  # a smaller one would do
        (90.0, 80.0, 99.0, INCONCLUSIVE),  # level with SAM
        (93.0, 80.0, 60.0, INCONCLUSIVE),
    ],
)
def test_the_smallest_gamma_keeps_sams_accuracy_where_the_next_smaller_does_not(here, below, train, verdict):
    shares = {0.3: below, 0.5: here, 0.7: 95.0}
    rows = tuple(row("esam-sds", over_seeds(mean, 1.0), train, share=share) for share, mean in shares.items())
    judge = smallest_that_keeps("esam-sds", 0.5, "sam")
    assert judge(table((*rows, row("sam", over_seeds(90.0, 1.0))))).verdict == verdict
    missing = judge(table((rows[0], row("sam"))))
    assert missing.verdict == INCONCLUSIVE and missing.why == "the value is not among them"


# Speed ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "device", "verdict"),
    [
        ((1.40, 1.45), "cpu", HOLDS),
        ((1.10, 1.20), "cpu", INCONCLUSIVE),  # a CPU does not contradict a GPU
        ((1.10, 1.20), "cuda:0", CONTRADICTED),
        ((1.30, 1.45), "cuda:0", INCONCLUSIVE),
    ],
)
def test_a_speed_is_judged_by_its_whole_interval_and_names_its_device(interval, device, verdict):
    speed = Speed(100.0, Ratio(sum(interval) / 2, *interval), SLOW.time_over_base, 1.0, 15)
    found = faster("esam", 1.379)(table((row("esam", speed=speed),), device=device))
    assert found.verdict == verdict and "n = 15 steps, Some Processor" in found.measured
    assert ("1 thread" in found.measured) == (device == "cpu")


@pytest.mark.parametrize(
    ("interval", "verdict"), [((1.35, 1.4), HOLDS), ((1.5, 1.7), CONTRADICTED), ((1.4, 1.5), INCONCLUSIVE)]
)
def test_a_cost_is_judged_by_its_whole_interval(interval, verdict):
    speed = Speed(100.0, SLOW.over_sam, Ratio(sum(interval) / 2, *interval), 1.0, 15)
    assert costs("esam", 1.46)(table((row("esam", speed=speed),), device="cuda:0")).verdict == verdict


def case(r_squared=0.99, k2=0.1, off=0.0, error=0.1, name="serial"):
    fit = Fit(0.3, k2, r_squared, 0.02)
    return CaseFigures(name, tuple(Saving(50, b, predicted(fit, 50, b) + off, error, 10) for b in (0.2, 0.5)), fit)


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        (case(), HOLDS),
        (case(k2=0.03), INCONCLUSIVE),
        (case(k2=-0.1), CONTRADICTED),
        (case(r_squared=0.9, off=0.05, error=0.1), INCONCLUSIVE),  # noise explains it
        (case(r_squared=0.9, off=0.05, error=0.01), CONTRADICTED),
    ],
)
def test_the_form_of_g_must_explain_the_measurements_by_both_terms_in_both_cases(other, verdict):
    figures = SavingsFigures(1, (case(), other))
    assert form_of_savings(result(figures, "cuda:0")).verdict == verdict
    on_cpu = INCONCLUSIVE if verdict == CONTRADICTED else verdict
    assert form_of_savings(result(figures)).verdict == on_cpu


# Inside a batch ------------------------------------------------------------------------------------------------------


def probed(*tasks):
    """Return runs with these series: {name: values of one batch an epoch}."""
    runs = []
    for series in tasks:
        epochs = tuple(range(len(next(iter(series.values())))))
        whole = {name: Series(tuple((value,) for value in values)) for name, values in series.items()}
        runs.append(ProbedRun(TASK, epochs, whole))
    return result(ProbeFigures(tuple(runs)))


def ascending(count, of):
    return {"B- at theta": [1.0] * of, "B+ at theta": [2.0] * count + [0.5] * (of - count)}


@pytest.mark.parametrize("rule", [every_batch, every_epoch])
@pytest.mark.parametrize(("count", "of", "verdict"), [(95, 100, HOLDS), (94, 100, CONTRADICTED)])
def test_every_means_95_per_cent_of_them_on_every_task(rule, count, of, verdict):
    found = rule(AT_THETA)(probed(ascending(100, 100), ascending(count, of)))
    assert found.verdict == verdict and f"{count} of {of}" in found.measured


def test_an_epoch_counts_by_the_means_over_its_batches():
    series = {"B- at theta": Series(((1.0, 1.0, 1.0),)), "B+ at theta": Series(((0.9, 0.9, 3.0),))}
    runs = result(ProbeFigures((ProbedRun(TASK, (1,), series),)))
    assert every_epoch(AT_THETA)(runs).verdict == HOLDS and every_batch(AT_THETA)(runs).verdict == CONTRADICTED


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ([0.1, 0.1, 0.2, None], HOLDS),
        ([-0.1, -0.1, -0.2], CONTRADICTED),
        ([-0.1, 0.1, -0.2], INCONCLUSIVE),
        ([0.1], INCONCLUSIVE),
    ],
)
def test_cosines_are_compared_batch_by_batch_however_much_batches_differ(gaps, verdict):
    others = [-0.9, 0.5, 0.0, 0.1][: len(gaps)]
    mine = [None if gap is None else other + gap for other, gap in zip(others, gaps, strict=True)]
    found = nearer("B_rand")(probed({"B+": mine, "B_rand": others}))
    assert found.verdict == verdict and f"n = {sum(gap is not None for gap in gaps)} batches" in found.measured


def linear(zetas=(1, 2, 3, 4), sam=5.0, distance=0.05):
    swp = tuple(BetaZetas(0.2 * n, over_seeds(z), over_seeds(z)) for n, z in enumerate(zetas, start=1))
    mean = MeanPerturbation(0.6, 200, 0.99, 1.0, distance, 0.05)
    return result(LinearityFigures(TASK, (1, 2), over_seeds(sam), swp, (mean, mean)))


@pytest.mark.parametrize(("distance", "verdict"), [(0.05, HOLDS), (0.5, CONTRADICTED), (None, INCONCLUSIVE)])
def test_the_mean_perturbation_may_be_as_far_as_chance_explains(distance, verdict):
    assert unbiased(linear(distance=distance)).verdict == verdict


@pytest.mark.parametrize(
    ("zetas", "sam", "verdict"),
    [
        ((1, 2, 3, 4), 5.0, HOLDS),
        ((4, 3, 2, 1), 5.0, CONTRADICTED),
        ((1, 2, 3, 4), 0.5, CONTRADICTED),
        ((1, 2), 5.0, INCONCLUSIVE),
    ],
)
def test_zeta_must_rise_with_beta_and_begin_below_sam(zetas, sam, verdict):
    assert more_linear(lambda one: one.divided)(linear(zetas, sam)).verdict == verdict


# Flatness ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sam", "base", "train", "verdict"),
    [
        (over_seeds(1.0, 0.1), over_seeds(2.0, 0.1), 99.0, HOLDS),
        (over_seeds(2.0, 0.1), over_seeds(1.0, 0.1), 99.0, CONTRADICTED),
        (over_seeds(1.2, 1.0), over_seeds(1.0, 1.0), 99.0, INCONCLUSIVE),
        (over_seeds(1.0, n=1), over_seeds(2.0, n=1), 99.0, INCONCLUSIVE),  # one seed each
        (Repeated((None,)), over_seeds(2.0, 0.1), 99.0, INCONCLUSIVE),
        (over_seeds(1.0, 0.1), over_seeds(2.0, 0.1), 58.0, INCONCLUSIVE),  # flat for it has not fitted its images
    ],
)
def test_a_minimum_is_flatter_by_two_standard_errors_where_the_images_are_fitted(sam, base, train, verdict):
    minima = (
        Minimum("base", "SGD", over_seeds(100.0), (), (), base),
        Minimum("sam", "SAM", over_seeds(train), (), (), sam),
    )
    found = flatter("sam", lambda own: own.rise)(result(LandscapeFigures(TASK, minima)))
    assert found.verdict == verdict
    assert f"SAM {train:.1f} %, SGD 100.0 %" in found.measured + found.why


def test_a_minimum_at_another_loss_is_not_called_flatter():
    minima = (
        Minimum("base", "SGD", over_seeds(100.0), (), (), over_seeds(2.0, 0.1), train_loss=over_seeds(0.001)),
        Minimum("sam", "SAM", over_seeds(96.0), (), (), over_seeds(1.0, 0.1), train_loss=over_seeds(0.1)),
    )
    found = flatter("sam", lambda own: own.rise)(result(LandscapeFigures(TASK, minima)))
    assert found.verdict == INCONCLUSIVE and found.why == "training losses further apart than 0.05: by 0.10"
