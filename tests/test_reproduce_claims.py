"""Do the rules come to the right verdict on results made up for each of them?"""

import pytest

from esam.recipes.paper import ITEMS
from esam.recipes.paper.claims import CLAIMS, judged
from esam.recipes.paper.verdicts import (
    FAILS,
    HOLDS,
    UNTESTED,
    at_least,
    best_share,
    costs,
    every_batch,
    every_epoch,
    faster,
    fits,
    flatter,
    higher_cosine,
    more_linear,
    rank_correlation,
    standard_error,
    unbiased,
)


def spread(mean, std=None, n=1):
    return {"mean": mean, "std": std, "n": n, "values": [mean] * n}


def accuracies(*pairs):
    tasks = {f"task {i}": {"ESAM": {"accuracy": a}, "SAM": {"accuracy": b}} for i, (a, b) in enumerate(pairs)}
    return {"tasks": tasks, "titles": {task: task for task in tasks}}


def test_every_claim_is_about_an_item_that_exists():
    assert {claim.item for claim in CLAIMS} <= set(ITEMS)


def test_a_claim_whose_item_was_not_made_is_not_tested():
    rows = judged({})
    assert len(rows) == len(CLAIMS) and {row.verdict for row in rows} == {UNTESTED}
    assert rows[0].measured == "linearity has not been made"


@pytest.mark.parametrize(
    ("mine", "theirs", "verdict"),
    [
        (spread(90.0, 1.0, 3), spread(89.0, 1.0, 3), HOLDS),
        (spread(89.0, 1.0, 3), spread(90.0, 1.0, 3), UNTESTED),  # 1 point lower, standard error .82
        (spread(88.0, 1.0, 3), spread(90.0, 1.0, 3), FAILS),
        (spread(90.0), spread(89.0), UNTESTED),  # one seed
        (spread(90.0, 1.0, 3), spread(None), UNTESTED),
    ],
)
def test_at_least_fails_when_the_mean_is_lower_by_two_standard_errors(mine, theirs, verdict):
    assert at_least("ESAM", "SAM")(accuracies((mine, theirs)))[1] == verdict


def test_at_least_is_judged_over_all_tasks_together():
    lower, higher = (spread(88.0, 1.0, 3), spread(90.0, 1.0, 3)), (spread(93.0, 1.0, 3), spread(90.0, 1.0, 3))
    told, verdict = at_least("ESAM", "SAM")(accuracies(lower, higher))
    assert verdict == HOLDS and told == (
        "+0.50 ± 0.58 over all: task 0 -2.00 ± 0.82; task 1 +3.00 ± 0.82 (points, n = 3 seeds)"
    )


@pytest.mark.parametrize(
    ("interval", "verdict"), [([1.40, 1.45], HOLDS), ([1.10, 1.20], FAILS), ([1.30, 1.45], UNTESTED)]
)
def test_speed_is_judged_by_the_whole_interval(interval, verdict):
    timed = {"a": {"ESAM": {"ratio": sum(interval) / 2, "interval": interval, "n": 15}}}
    told, found = faster("ESAM", 1.379)({"timed": timed, "titles": {"a": "ResNet-8 for a, CIFAR-10"}})
    assert found == verdict and told.startswith("ResNet-8, CIFAR-10 1") and "n = 15 steps" in told
    assert faster("ESAM-SWP", 1.0)({"timed": timed, "titles": {}})[1] == UNTESTED


@pytest.mark.parametrize(("interval", "verdict"), [([1.35, 1.4], HOLDS), ([1.5, 1.7], FAILS), ([1.4, 1.5], UNTESTED)])
def test_a_cost_is_judged_by_the_whole_interval(interval, verdict):
    timed = {"a": {"ESAM": {"time": sum(interval) / 2, "time interval": interval, "n": 15}}}
    told, found = costs("ESAM", 1.46)({"timed": timed, "titles": {"a": "a"}})
    assert found == verdict and f"({100 * interval[0]:.0f} to {100 * interval[1]:.0f})" in told
    assert costs("ESAM-SWP", 1.0)({"timed": timed, "titles": {}})[1] == UNTESTED


@pytest.mark.parametrize(("best", "n", "verdict"), [(0.6, 3, HOLDS), (0.9, 3, FAILS), (0.6, 1, UNTESTED)])
def test_the_best_beta_must_lie_in_the_interval_and_one_seed_tells_nothing(best, n, verdict):
    shares = [0.3, 0.6, 0.9]
    methods = {f"ESAM-SWP {s:g}": {"accuracy": spread(90 + (s == best), 1.0, n)} for s in shares}
    values = {"tasks": {"a": methods}, "shares": shares, "titles": {"a": "a"}}
    assert best_share("ESAM-SWP", 0.5, 0.6)(values)[1] == verdict


@pytest.mark.parametrize(("held", "of", "verdict"), [(95, 100, HOLDS), (94, 100, FAILS), (0, 0, UNTESTED)])
def test_every_batch_means_95_per_cent_of_them(held, of, verdict):
    values = {"tasks": {"a": {"held": {"x <= y": held}, "batches": of}}}
    assert every_batch("x <= y")(values) == (f"a: {held} of {of} batches", verdict)


def test_a_claim_about_every_batch_fails_with_one_task():
    tasks = {"a": {"held": {"x": 10}, "batches": 10}, "b": {"held": {"x": 5}, "batches": 10}}
    assert every_batch("x")({"tasks": tasks})[1] == FAILS


@pytest.mark.parametrize(("held", "verdict"), [(19, HOLDS), (18, FAILS)])
def test_every_epoch_is_judged_by_epochs_and_tells_the_batches_too(held, verdict):
    own = {"epochs": list(range(20)), "held in epochs": {"x": held}, "held": {"x": 3}, "batches": 80}
    told, found = every_epoch("x")({"tasks": {"ResNet-8 for ResNet-18, CIFAR-10": own}})
    assert told == f"ResNet-8, CIFAR-10: {held} of 20 epochs, 3 of 80 batches" and found == verdict


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ([0.1, 0.1, 0.2, None], HOLDS),
        ([-0.1, -0.1, -0.2], FAILS),
        ([-0.1, 0.1, -0.2], UNTESTED),
        ([0.3, -0.2, 0.1], UNTESTED),
        ([0.1], UNTESTED),
    ],
)
def test_cosines_are_compared_batch_by_batch_however_much_batches_differ(gaps, verdict):
    others = [-0.9, 0.5, 0.0, 0.1][: len(gaps)]
    mine = {"mean": 0.5, "values": [None if gap is None else a + gap for a, gap in zip(others, gaps, strict=True)]}
    overall = {"B+": mine, "B_rand": {"mean": 0.4, "values": others}}
    told, found = higher_cosine("B+", "B_rand")({"tasks": {"a": {"overall": overall}}})
    assert found == verdict and f"n = {sum(gap is not None for gap in gaps)} batches" in told


@pytest.mark.parametrize(("distance", "verdict"), [(0.05, HOLDS), (0.5, FAILS)])
def test_the_mean_perturbation_may_be_as_far_as_chance_explains(distance, verdict):
    one = {"cosine": 0.99, "norm": 1.0, "distance": distance, "expected distance": 0.05, "draws": 200}
    assert unbiased({"expectation": [one, one]})[1] == verdict
    assert unbiased({"expectation": []})[1] == UNTESTED


@pytest.mark.parametrize(
    ("zetas", "sam", "verdict"), [((1, 2, 3, 4), 5, HOLDS), ((4, 3, 2, 1), 5, FAILS), ((1, 2, 3, 4), 0.5, FAILS)]
)
def test_linearity_must_fall_with_beta_and_below_sam(zetas, sam, verdict):
    betas = [0.2, 0.4, 0.6, 0.8]
    zeta = {f"{b:g}": spread(float(z)) for b, z in zip(betas, zetas, strict=True)}
    values = {"betas": betas, "zeta": {"divided": zeta}, "sam": spread(sam, 0.1, 40)}
    assert more_linear("divided")(values)[1] == verdict
    assert more_linear("divided")({**values, "betas": betas[:2]})[1] == UNTESTED


@pytest.mark.parametrize(
    ("r_squared", "k2", "verdict"), [(0.99, 0.1, HOLDS), (0.9, 0.1, FAILS), (0.99, 0.03, UNTESTED), (0.99, -0.1, FAILS)]
)
def test_the_form_of_g_must_explain_the_measurements_by_both_terms_in_both_cases(r_squared, k2, verdict):
    case = {
        "fit": {"k1": 0.3, "k2": 0.1, "k2_error": 0.02, "r_squared": 0.99},
        "savings": [{"saved": 1, "predicted": 0, "error": 0.1}] * 4,
    }
    other = {**case, "fit": {**case["fit"], "r_squared": r_squared, "k2": k2}}
    assert fits({"serial": case, "crossed": other})[1] == verdict


@pytest.mark.parametrize(("error", "verdict"), [(0.01, FAILS), (0.1, UNTESTED)])
def test_a_form_that_explains_little_fails_only_where_noise_does_not_explain_the_rest(error, verdict):
    fit = {"k1": 0.3, "k2": 0.1, "k2_error": 0.02, "r_squared": 0.9}
    savings = [{"saved": 0.3, "predicted": 0.25, "error": error}] * 4
    assert fits({"serial": {"fit": fit, "savings": savings}})[1] == verdict


@pytest.mark.parametrize(
    ("sam", "sgd", "verdict"),
    [
        (spread(1.0, 0.1, 3), spread(2.0, 0.1, 3), HOLDS),
        (spread(2.0, 0.1, 3), spread(1.0, 0.1, 3), FAILS),
        (spread(1.2, 1.0, 3), spread(1.0, 1.0, 3), UNTESTED),
        (spread(1.0, 1.0, 3), spread(1.2, 1.0, 3), UNTESTED),
        (spread(1.0), spread(2.0), UNTESTED),  # one seed each
        (spread(None), spread(2.0), UNTESTED),
    ],
)
def test_a_minimum_is_flatter_when_it_is_so_by_two_standard_errors(sam, sgd, verdict):
    assert flatter("SAM", "trace")({"methods": {"SAM": {"trace": sam}, "SGD": {"trace": sgd}}})[1] == verdict


def test_a_flat_place_tells_how_far_the_images_are_fitted_there():
    sgd, sam = ({"trace": spread(mean, 0.1, 3), "loss": spread(loss)} for mean, loss in ((2.0, 0.01), (1.0, 1.2)))
    told, _ = flatter("SAM", "trace")({"methods": {"SAM": sam, "SGD": sgd}})
    assert told.endswith("(n = 3 seeds); training loss 1.2 and 0.01")


def test_the_parts_of_a_verdict_are_right():
    assert standard_error(spread(0, 3.0, 9), spread(0, 4.0, 16)) == pytest.approx(2**0.5)
    assert standard_error(spread(0, None, 1), spread(0, 4.0, 16)) is None
    assert rank_correlation([0.2, 0.4, 0.6], [3, 2, 1]) == -1
