"""Are the runs of a comparison alike in all but the method?"""

import dataclasses

import pytest
import torch

from esam import METHODS
from esam.runs import Comparison, plan
from esam.train import Config
from esam.train.build import batches_of, prepared_model
from esam.train.datasets import load_data

TINY = Config(data="digits", model="mlp", train_size=200, batch_size=50, epochs=2, threads=1)

pytestmark = pytest.mark.usefixtures("own_cache")


# The plan ------------------------------------------------------------------------------------------------------------


def test_every_method_gets_every_seed_and_whole_comparisons_come_first(tmp_path):
    runs = plan(Comparison(TINY, methods=("base", "sam", "esam"), seeds=(3, 5)), tmp_path)
    expected = [("base", 3), ("sam", 3), ("esam", 3), ("base", 5), ("sam", 5), ("esam", 5)]
    assert [(r.config.method, r.config.seed) for r in runs] == expected
    assert len({r.folder for r in runs}) == 6
    for planned in runs:
        assert dataclasses.replace(planned.config, method=TINY.method, seed=0) == TINY  # alike in all else


def test_the_base_is_shared_by_comparisons_that_differ_in_the_methods_settings_only(tmp_path):
    one, other = (
        {r.config.method: r.folder for r in plan(Comparison(config, ("base", "esam"), (0,)), tmp_path)}
        for config in (TINY, dataclasses.replace(TINY, settings={"gamma": 0.7}))
    )
    assert one["base"] == other["base"] and one["esam"] != other["esam"]


def test_a_common_setting_reaches_the_methods_that_have_it_and_no_other(tmp_path):
    config = dataclasses.replace(TINY, settings={"rho": 0.2, "beta": 0.3, "gamma": 0.7})
    runs = plan(Comparison(config, tuple(METHODS), (0,)), tmp_path)
    taken = {r.config.method: r.config.settings for r in runs}
    assert taken["base"] == {}
    assert taken["base-part"] == {"gamma": 0.7}
    assert taken["sam"] == taken["asam"] == taken["looksam"] == {"rho": 0.2}
    assert taken["esam"] == {"rho": 0.2, "beta": 0.3, "gamma": 0.7}
    assert taken["esam-swp"] == {"rho": 0.2, "beta": 0.3}  # a gamma would make it ESAM
    assert taken["esam-sds"] == {"rho": 0.2, "gamma": 0.7}


def test_a_setting_of_one_method_reaches_that_method_only(tmp_path):
    settings = {"sam": {"rho": 0.2}, "esam-swp": {"gamma": 0.9}}
    runs = plan(Comparison(TINY, ("sam", "esam", "esam-swp"), (0,), settings), tmp_path)
    assert [r.config.settings for r in runs] == [{"rho": 0.2}, {}, {"gamma": 0.9}]


def test_a_method_or_seed_that_is_named_twice_is_run_once(tmp_path):
    runs = plan(Comparison(TINY, ("base", "sam", "base"), (0, 0)), tmp_path)
    assert [(r.config.method, r.config.seed) for r in runs] == [("base", 0), ("sam", 0)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("base", "esamm")}, "unknown method 'esamm'. Did you mean 'esam'"),
        ({"settings": {"sam": {"rhoo": 0.1}}}, "sam has no setting 'rhoo' of its own. Did you mean 'rho'"),
        ({"settings": {"base": {"rho": 0.1}}}, "base has no setting 'rho' of its own"),
        ({"settings": {"sam": {"seed": 1}}}, "sam has no setting 'seed' of its own"),
        ({"methods": ()}, "needs methods and seeds"),
        ({"seeds": ()}, "needs methods and seeds"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        plan(dataclasses.replace(Comparison(TINY), **changes), tmp_path)


# Alike ---------------------------------------------------------------------------------------------------------------


def test_every_method_starts_from_the_same_weights_and_sees_the_same_batches(tmp_path):
    data = load_data(Config(train_size=200))
    device = torch.device("cpu")
    seen = {}
    for planned in plan(Comparison(TINY, ("base", "sam", "esam-swp", "slicesam"), (4,)), tmp_path):
        config = dataclasses.replace(planned.config, augment="shift")
        model = prepared_model(config, data, device)
        batches = list(batches_of(config, data, device, torch.contiguous_format)[0].epoch(2))
        seen[config.method] = [*model.parameters(), *(tensor for batch in batches for tensor in batch)]
    for tensors in seen.values():
        assert all(map(torch.equal, tensors, seen["base"]))
