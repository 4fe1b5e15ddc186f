"""An optimizer looks at its first steps: is each warning there when its cause is, and once? Is training the same?"""

import copy
import gc
import pickle
import warnings
import weakref

import pytest
import torch
from conftest import EVERY_ROW, mlp, normalised, problem

from esam import ESAM, METHODS, SAM, GuidanceWarning
from esam.optim import guidance
from esam.optim.guidance import LOOKS, SHOWN, Unwatched
from esam.train import fit


def start(name, build=mlp, batch=12, **settings):
    p = problem(build, batch=batch)
    return p, METHODS[name](torch.optim.SGD(p.model.parameters(), lr=0.01, momentum=0.9), p.model, seed=3, **settings)


def warned(name, steps, build=mlp, batch=12, samples=None, **settings):
    """Return what was warned of in so many steps, and where."""
    p, optimizer = start(name, build, batch, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GuidanceWarning)
        for _ in range(steps):
            if samples is not None:
                optimizer.watch.samples(samples)
            optimizer.step(p.closure, batch_size=batch)
    found = [one for one in caught if issubclass(one.category, GuidanceWarning)]
    assert all(one.filename == __file__ for one in found)  # the user's line, not ours
    return [str(one.message) for one in found]


@pytest.mark.parametrize("name", EVERY_ROW)
def test_looking_at_the_first_steps_leaves_every_methods_training_bit_for_bit(name):
    (p, looking), (q, blind) = start(name, normalised), start(name, normalised)
    blind.watch = Unwatched()
    curves = []
    for own, optimizer in ((p, looking), (q, blind)):
        torch.manual_seed(1)
        curves.append([float(optimizer.step(own.closure)) for _ in range(LOOKS[1] + 1)])
    assert curves[0] == curves[1]
    torch.testing.assert_close(p.model.state_dict(), q.model.state_dict(), rtol=0, atol=0)
    assert looking.watch.steps == LOOKS[1] + 1


@pytest.mark.parametrize("name", ["sam", "slicesam"])
def test_a_healthy_training_is_not_disturbed_and_the_look_ends(name):
    p, optimizer = start(name, batch=64)
    with warnings.catch_warnings():
        warnings.simplefilter("error", GuidanceWarning)
        for _ in range(LOOKS[-1]):
            assert type(optimizer.watch) is not Unwatched
            optimizer.step(p.closure, batch_size=64)
    assert type(optimizer.watch) is Unwatched


def test_a_radius_far_off_is_told_once_with_the_factor_to_divide_by():
    (told,) = warned("sam", LOOKS[2] + 1, rho=5.0)
    assert "the perturbation is very long for this model" in told and "divide rho by 10" in told
    (told,) = warned("sam", LOOKS[1], rho=1e-8)
    assert "very short" in told and "multiply rho by 1000" in told


def test_a_radius_that_grows_is_judged_by_where_it_ends():
    assert warned("slicesam", LOOKS[1] + 1, batch=64) == []  # after five steps it is a small part of rho
    p, optimizer = start("slicesam", batch=64)
    for _ in range(8):
        optimizer.step(p.closure, batch_size=64)
    watch = optimizer.watch
    grown = [ratio / full for ratio, full in zip(watch.ratios, watch.full_ratios, strict=True)]
    assert all(0 < one < 0.3 for one in grown) and grown == sorted(grown)


def test_batchnorm_with_a_tiny_kept_part_is_told_in_the_first_step_and_only_with_batchnorm():
    (told,) = warned("esam", LOOKS[2], normalised)
    assert "BatchNorm normalises by 6 samples in the second pass, of 12" in told and "larger batches" in told
    assert warned("esam", LOOKS[1], mlp) == [] == warned("esam", LOOKS[1], normalised, batch=32)


def test_bf16_weights_that_swallow_eps_are_told_in_the_first_step():
    model = mlp(torch.bfloat16)
    x = torch.randn(8, 6, dtype=torch.bfloat16)
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), model, rho=1e-4)
    with pytest.warns(GuidanceWarning, match="bfloat16 rounds it away, .*torch.autocast"):
        optimizer.step(lambda keep: model(x[keep]).square().mean(1))


def test_a_phase_that_is_yet_to_begin_is_told_in_the_first_step_and_one_that_has_begun_is_not():
    (told,) = warned("sam-late", LOOKS[1] + 1, total_steps=1000)
    assert "perturbs nothing in its next 749 steps" in told and "total_steps counts its steps, not its epochs" in told
    assert warned("sam-late", LOOKS[1]) == [] == warned("sam-early", LOOKS[1], total_steps=1000)


def test_a_phase_that_never_begins_is_told():
    """SliceSAM's radius grows as the loss falls; a loss that rises leaves it at 0."""
    p, optimizer = start("slicesam")
    with pytest.warns(GuidanceWarning, match='no step of 200 was perturbed: .*has not fallen; try radius="constant"'):
        for number in range(LOOKS[-1]):
            rising = 1.0 + number
            optimizer.step(lambda keep, rising=rising: 0 * p.closure(keep) + rising, batch_size=12)


def test_groups_that_are_all_left_out_are_told_and_a_radius_of_zero_is_the_base():
    p = problem()
    base = torch.optim.SGD([{"params": list(p.model.parameters()), "perturb": False}], lr=0.1)
    optimizer = SAM(base, p.model)
    with pytest.warns(GuidanceWarning, match="no step can be perturbed: every group has perturb=False"):
        optimizer.step(p.closure)
    assert warned("sam", LOOKS[1], rho=0.0) == [] == warned("base", LOOKS[1])


def stubborn(batch):
    return -torch.arange(len(batch.losses), dtype=torch.float64)  # the first half, whatever happens


def test_samples_that_a_ranking_keeps_again_and_again_are_listed():
    (told,) = warned("esam", LOOKS[-1], ranking=stubborn, samples=range(100, 112))
    assert "keeps the same samples again and again: 6 of 12" in told
    assert "look at their labels (100, 101, 102, 103, 104, 105)" in told
    assert warned("esam", LOOKS[-1], ranking="random", samples=range(100, 112)) == []


def test_a_training_loop_of_ours_tells_which_samples_it_takes():
    class Ordered:
        def __len__(self):
            return 2

        def order(self, number):
            return torch.arange(24)

        def epoch(self, number):
            torch.manual_seed(0)
            x, y = torch.randn(24, 6), torch.randint(0, 3, (24,))
            yield from zip(x.split(12), y.split(12), strict=True)

    model = mlp(torch.float32)
    optimizer = ESAM(torch.optim.SGD(model.parameters(), lr=0.01), model, ranking=stubborn)
    watch = optimizer.watch
    fit(model, optimizer, Ordered(), epochs=SHOWN)
    assert watch.suspects() == [*range(6), *range(12, 18)]


def test_graphs_made_again_and_again_are_told_and_those_of_a_phase_are_not(monkeypatch):
    def made(growing):
        counts = iter([0, 2, 3, 3, *growing, *[10] * 300])
        monkeypatch.setattr(guidance, "graph_count", lambda: next(counts))
        return warned("sam", LOOKS[-1])

    assert made([4, 10]) == []
    (told,) = made([4, 5, 6, 10])
    assert "torch.compile made 7 graphs after the first 3 steps" in told and "drop_last=True" in told


def test_the_warnings_filter_switches_it_off_and_a_copy_of_the_optimizer_is_unwatched():
    p, optimizer = start("sam", rho=5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", GuidanceWarning)
        for _ in range(LOOKS[1]):
            optimizer.step(p.closure)
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(twin.watch) is Unwatched


def test_an_optimizer_that_looks_at_itself_is_freed_with_its_last_reference():
    p, optimizer = start("sam")
    optimizer.step(p.closure)
    gone = weakref.ref(optimizer)
    gc.disable()
    try:
        del optimizer
        assert gone() is None
    finally:
        gc.enable()


def test_a_warning_that_is_an_error_leaves_a_step_that_counts():
    p, q = problem(), problem()
    optimizers = [SAM(torch.optim.SGD(own.model.parameters(), lr=0.1), own.model, rho=5.0) for own in (p, q)]
    optimizers[1].watch = Unwatched()
    raised = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", GuidanceWarning)
        for _ in range(LOOKS[1] + 1):
            try:
                optimizers[0].step(p.closure)
            except GuidanceWarning:
                raised += 1
            optimizers[1].step(q.closure)
    assert raised == 1
    torch.testing.assert_close(p.model.state_dict(), q.model.state_dict(), rtol=0, atol=0)
