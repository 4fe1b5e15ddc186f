"""Are the paper's numbers and settings the paper's, and does each of its networks take steps as the items ask?"""

import dataclasses
import math
from functools import cache

import pytest
import torch
import torch.nn.functional as F

from esam.analysis.cost import CASES, fit_savings, measure_savings
from esam.recipes.paper import ITEMS, SCALES, table1, table2, table3, vit
from esam.recipes.paper.swp_savings import PAPER as SAVINGS
from esam.reproduce.cost import DATA
from esam.reproduce.store import configs
from esam.train.models import build_model
from esam.train.runs import build_optimizer

PAPER = SCALES["paper"]()


BATCH, M = 4, 2


@cache
def step_twice(config):
    """Take two steps on a few synthetic images at the real resolution; return the losses and how far theta went."""
    torch.manual_seed(0)
    facts = DATA[config.data]
    size = config.size or facts.size
    model = build_model(config.model, classes=facts.classes, channels=facts.channels, size=size)
    model = model.to(memory_format=torch.channels_last).train()
    optimizer = build_optimizer(config, model)
    x = torch.randn(BATCH, facts.channels, size, size).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, facts.classes, (BATCH,))
    start = [p.detach().clone() for p in model.parameters()]

    def closure(keep):
        return F.cross_entropy(model(x[keep]), y[keep], reduction="none")

    losses = [float(optimizer.step(closure, batch_size=BATCH)) for _ in range(2)]
    moved = sum(float((p.detach() - s).abs().sum()) for p, s in zip(model.parameters(), start, strict=True))
    return losses, moved, size


def settings_to_step(item):
    """Every network of an item by every method and form, in small steps of a small batch.

    Of a study's values the first stands for all; a data set differs in the number of its classes alone, and the
    smallest network shows that.
    """
    needs = item.needs(PAPER)
    common = {"seed": 0, "validation": False, "epochs": 1, "lr": 1e-3, "weight_decay": 5e-4, "batch_size": BATCH}
    chosen = {}
    for row in (*needs.rows, *needs.weights, *needs.observed):
        config = dataclasses.replace(configs([row])[0], **common)
        data = config.data if config.model == "resnet18" else None
        key = (config.model, config.method, config.ranking, config.choose, data)
        chosen.setdefault(key, dataclasses.replace(config, m=M if config.m else None))
    return list(chosen.values())


@pytest.mark.parametrize("name", [name for name in ITEMS if name != "swp-savings"])
def test_an_item_at_the_papers_scale_is_built_and_stepped(name):
    stepped = settings_to_step(ITEMS[name])
    assert stepped
    for config in stepped:
        losses, moved, size = step_twice(config)
        assert all(0 < loss < 50 for loss in losses) and losses[0] != losses[1], (config.model, losses)
        assert moved > 0 and size == (224 if config.model in ("resnet50", "resnet101", "vit-s16") else 32)


def test_the_papers_mlps_are_built_at_their_width_and_timed():
    assert PAPER.savings.width == 3_000
    found = measure_savings(CASES["crossed"], layers=(2,), betas=(0.1, 0.5), width=3_000, batch=2, draws=2)
    assert [saving.beta for saving in found] == [0.1, 0.5] and math.isfinite(fit_savings(found).k1)


def test_every_network_of_the_paper_is_stepped():
    models = {c.model for item in ITEMS.values() if item.name != "swp-savings" for c in settings_to_step(item)}
    assert models == {"resnet18", "wrn28-10", "pyramidnet110", "resnet50", "resnet101", "vit-s16"}


# The appendix --------------------------------------------------------------------------------------------------------


def own(task, method):
    """The configuration of a method on a task of Table 1."""
    rows = ITEMS["table1"].needs(PAPER).rows
    return next(configs([row])[0] for row in rows if row.task == task and row.label == method)


@pytest.mark.parametrize("data", ["CIFAR-10", "CIFAR-100"])
@pytest.mark.parametrize(
    ("model", "epochs", "batch", "lr", "rho", "beta", "decays"),
    [
        ("ResNet-18", 200, 128, 0.05, 0.05, 0.6, (5e-4, 1e-3)),
        ("WRN-28-10", 200, 256, 0.05, 0.1, 0.5, (5e-4, 1e-3)),
        ("PyramidNet-110", 300, 256, 0.1, 0.2, 0.6, (5e-4, 5e-4)),
    ],
)
def test_the_hyper_parameters_on_cifar_are_the_tables(data, model, epochs, batch, lr, rho, beta, decays):
    sgd, sam, esam = (own(f"{model}, {data}", method) for method in ("SGD", "SAM", "ESAM"))
    for config in (sgd, sam, esam):
        assert (config.epochs, config.batch_size, config.lr, config.augment) == (epochs, batch, lr, "basic")
        assert config.schedule == "cosine" and config.train_size is None
    assert [c.weight_decay for c in (sgd, sam, esam)] == [decays[0], decays[1], decays[1]]
    assert [c.rho for c in (sgd, sam, esam)] == [None, rho, rho]
    assert (esam.beta, esam.gamma, esam.m) == (beta, 0.5, None)


def test_three_seeds_on_cifar_and_the_paper_s_one_on_imagenet():
    assert {row.comparison.seeds for row in ITEMS["table1"].needs(PAPER).rows} == {(0, 1, 2)}
    assert {row.comparison.seeds for row in ITEMS["table2"].needs(PAPER).rows} == {(0,)}


def test_the_vit_takes_beta_one_half():
    config = next(configs([r])[0] for r in ITEMS["vit"].needs(PAPER).rows if r.label == "ESAM")
    assert (config.model, config.beta, config.gamma, config.size) == ("vit-s16", 0.5, 0.7, 224)


def test_landscape_grid_linearity_and_search_are_the_papers():
    assert (PAPER.random_plane.points, PAPER.random_plane.groups) == (100, 10)
    assert PAPER.look.betas == (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    assert len(ITEMS["grid-search"].needs(PAPER).rows) == 3 * 4 * 2 * 3
    assert {c.weight_decay for r in ITEMS["grid-search"].needs(PAPER).rows for c in configs([r])} == {5e-4, 1e-3}
    assert PAPER.savings.serial == (50, 75, 100, 125)


# The printed numbers -------------------------------------------------------------------------------------------------


def test_the_papers_numbers_are_quoted_as_printed():
    assert table1.PAPER["ResNet-18", "CIFAR-10"]["ESAM"] == table1.Printed(96.56, 0.08, 2409, 140.3)
    assert table1.PAPER["WRN-28-10", "CIFAR-100"]["SAM"] == table1.Printed(83.42, 0.04, 391, 100.0)
    assert table1.PAPER["PyramidNet-110", "CIFAR-100"]["ESAM"] == table1.Printed(85.56, 0.05, 381, 137.9)
    assert table2.PAPER["ResNet-101", "ImageNet"]["ESAM"] == table2.Printed(79.09, None, 564, 128.7)
    assert table3.PAPER["WRN-28-10", "CIFAR-100"]["ESAM-SDS"] == table3.Printed(84.46, None, 492, 125.8)
    assert vit.PAPER["ViT-S/16", "ImageNet"]["ESAM-SWP"] == vit.Printed(80.88, None, 616)
    assert SAVINGS["serial"]["g"]["125"] == {"0.9": 2.94, "0.5": 14.87, "0.1": 29.42}


@pytest.mark.parametrize("paper", [table1.PAPER, table2.PAPER, table3.PAPER])
def test_the_printed_speeds_are_the_printed_images_over_sams(paper):
    for task, rows in paper.items():
        for row in rows.values():
            if row.speed is not None:  # the paper rounds, and once misprints
                ratio = 100 * row.images_per_second / rows["SAM"].images_per_second
                assert abs(ratio - row.speed) < 1.0, (task, row)


@pytest.mark.parametrize("case", ["serial", "crossed"])
def test_the_printed_fit_explains_the_printed_savings(case):
    fit = SAVINGS[case]["fit"]
    for layers, by_beta in SAVINGS[case]["g"].items():
        for beta, percent in by_beta.items():
            b = float(beta)
            form = fit["k1"] * (1 - b) + fit["k2"] * (1 - b) / (int(layers) * b)
            assert abs(100 * form - percent) < 1.6, (layers, beta)
