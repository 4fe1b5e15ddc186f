"""Does the model of many devices give what can be worked out by hand, and the simulation what theory says?"""

import dataclasses
import math

import pytest
import torch

from esam import METHODS
from esam.bench.exchange import exchange, passes
from esam.bench.scaling import Links, Workload, efficiency, memory, most_ranks, step_time
from esam.bench.scaling_sheets import SHOWN, exchange_sheet, fit_sheet, fitted
from esam.bench.stragglers import segments, straggling, unequal_kept

LINKS = Links(inside=100.0, between=10.0, devices=4, latency_inside=0.5, latency_between=2.0, overlap=0.5)
WORK = Workload("by hand", weights=300.0, sample_seconds=0.3)


def test_links_count_the_slowest_on_the_way_and_the_hops_of_a_tree():
    assert (LINKS.rate(4), LINKS.rate(5)) == (100.0, 10.0)
    assert LINKS.latency(4) == 2 * 2 * 0.5
    assert LINKS.latency(16) == 2 * (2 * 0.5 + 2 * 2.0)
    assert LINKS.parted(300.0, 1) == 0
    assert LINKS.parted(300.0, 4) == pytest.approx(3 / 4 * 3 + 1)
    assert LINKS.summed(300.0, 4) == pytest.approx(2 * (3 / 4 * 3 + 1))


def test_a_step_is_compute_and_what_no_pass_hides():
    # base: 10 samples take 3 s, of which a backward of 2 s hides 1 s of an exchange of 6.5 s
    base = step_time("base", WORK, LINKS, ranks=4, samples=10)
    assert (base.compute, base.waiting) == pytest.approx((3.0, 5.5))
    assert base.moved == pytest.approx(2 * 300 * 3 / 4)
    sam = step_time("sam", WORK, LINKS, ranks=4, samples=10)
    assert (sam.compute, sam.waiting, sam.moved) == pytest.approx((6.0, 5.5, base.moved))
    one_eps = step_time("sam", WORK, LINKS, ranks=4, samples=10, perturbation="global")
    assert one_eps.waiting == pytest.approx(5.5 + 6.5 + LINKS.latency(4))
    assert one_eps.moved == 2 * sam.moved
    half = step_time("esam-sds", WORK, LINKS, ranks=4, samples=10)
    assert half.waiting == pytest.approx(6.0)  # a backward of the kept half hides half as much
    shards = step_time("sam", WORK, LINKS, ranks=4, samples=10, strategy="fsdp")
    assert shards.moved == pytest.approx(6 * 300 * 3 / 4)
    assert shards.waiting == pytest.approx(6 * 3.25 - 0.5 * 6 + LINKS.latency(4))
    assert step_time("sam", WORK, LINKS, ranks=1, samples=10).waiting == 0


def test_faster_links_and_larger_parts_scale_further():
    fast = dataclasses.replace(LINKS, between=1e9, inside=1e9, latency_inside=0.0, latency_between=0.0)
    for name, way in SHOWN:
        how = {"perturbation": way}
        assert efficiency(name, WORK, fast, ranks=64, samples=10, **how) == pytest.approx(1.0, abs=1e-6)
        assert efficiency(name, WORK, LINKS, ranks=64, samples=10, **how) < 1
        assert most_ranks(name, WORK, fast, batch=64, **how) == 64
        assert most_ranks(name, WORK, LINKS, batch=64, **how) <= most_ranks(name, WORK, LINKS, batch=4096, **how) < 4096


def test_every_method_of_the_registry_has_an_exchange_and_one_eps_costs_no_less_than_one_each():
    for name in METHODS:
        both = [exchange(name, perturbation=way) for way in ("rank", "global")]
        assert all(0 < one.hidden <= 1 and one.exposed >= 0 for one in both), name
        assert both[1].exposed >= both[0].exposed
        assert 0 < passes(name).last <= 1
    assert len(exchange_sheet().rows) > len(METHODS)


def test_memory_is_parted_by_shards_alone():
    assert memory(2.0, WORK) == 4 * 300
    assert memory(2.0, WORK, ranks=8) == 4 * 300
    assert memory(2.0, WORK, ranks=8, state=2.0, strategy="fsdp") == 5 * 300 / 8


def test_stragglers_cost_nothing_without_noise_and_what_order_statistics_say_with_it():
    assert straggling([3.0], 64, 0.0) == pytest.approx(1.0, abs=1e-6)
    # the largest of two normal draws is 1 / sqrt(pi) deviations above the mean; 1 % of noise is nearly normal
    slow = straggling([1.0], 2, 0.01, steps=40_000)
    assert slow == pytest.approx(1 + 0.01 / math.sqrt(math.pi), abs=3e-4)


def test_two_waits_a_step_cost_more_than_one():
    for name in ("sam", "esam", "slicesam"):
        one, two = (segments(name, way) for way in ("rank", "global"))
        assert len(one) == 1 and len(two) == 2 and sum(one) == pytest.approx(sum(two))
        assert straggling(two, 64, 0.2) > straggling(one, 64, 0.2) > 1
    assert segments("base", "global") == [3.0]


def test_ranks_keep_alike_where_all_is_kept_and_unequally_where_scores_are_the_ranks_own():
    assert unequal_kept(8, 16, 1.0) == pytest.approx(1.0)
    shuffled, alike = unequal_kept(8, 64, 0.5), unequal_kept(8, 64, 0.5, alike=0.5)
    assert 1 < shuffled < alike <= 2


def test_the_fit_reads_the_link_and_the_base_off_the_measurements():
    steps = {"base, rank": {"alone": 1.0, "beside": 2.0, "ranks": 2.5}}
    result = {
        "exchange": {"1024": 1e-4, "1000000": 1e-4 + 1e-2},
        "bench": {"model": "net", "batch_size": 4, "rounds": 1, "weights": 1e6},
        "steps": steps,
        "counted": {"base, rank": {"gradients": 1.0, "small": 0.0}},
    }
    links, work = fitted(result)
    assert links.summed(1e6, 2) == pytest.approx(1e-4 + 1e-2)
    assert work.base_seconds(4) == 2.0
    ((title, *cells),) = fit_sheet(result).rows
    assert title == "`base`, rank" and cells[:4] == ["1000", "2000", "2500", "2000"]


def test_the_simulation_is_repeatable():
    torch.manual_seed(1)
    assert straggling([3.0], 8, 0.1) == straggling([3.0], 8, 0.1)
