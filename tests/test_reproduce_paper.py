"""Are the paper's numbers and settings the paper's, and does each of its networks take steps as the items ask?"""

import dataclasses
import shlex

import pytest
import torch
import torch.nn.functional as F

from esam.cli import main
from esam.paper.engine.cost import DATA
from esam.paper.engine.store import needed
from esam.paper.items import ITEMS, table1, table2, table3, vit
from esam.paper.items.savings_timing import predicted
from esam.paper.items.swp_savings import PAPER_FITS, PAPER_SAVINGS
from esam.paper.items.tables import Printed
from esam.paper.scales import SCALES
from esam.train.models import build_model
from esam.train.runs import build_optimizer

pytestmark = pytest.mark.slow

PAPER = SCALES["paper"]()


BATCH, M = 2, 1


def stepped(config):
    """Take a step on a few synthetic images at the real resolution; return the loss and whether all of theta moved."""
    torch.manual_seed(0)
    facts = DATA[config.data]
    size = config.size or facts.size
    model = build_model(config.model, classes=facts.classes, channels=facts.channels, size=size)
    model = model.to(memory_format=torch.channels_last).train()
    settings = {**config.settings, **({"m": M} if "m" in config.settings else {})}
    optimizer = build_optimizer(dataclasses.replace(config, settings=settings, lr=1e-3), model)
    x = torch.randn(BATCH, facts.channels, size, size).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, facts.classes, (BATCH,))
    start = [p.detach().clone() for p in model.parameters()]
    loss = optimizer.step(lambda keep: F.cross_entropy(model(x[keep]), y[keep], reduction="none"), batch_size=BATCH)
    return float(loss), all((p != s).any() for p, s in zip(model.parameters(), start, strict=True))


def test_every_network_of_the_paper_takes_esams_step_and_the_smallest_every_methods():
    every = {key: config for item in ITEMS.values() for key, config in needed(item.needs(PAPER)).items()}
    chosen = {
        (config.model, config.method): config
        for config in every.values()
        if config.method == "esam" or config.model == "resnet18"
    }
    small = {method for model, method in chosen if model == "resnet18"}
    assert small == {"base", "sam", "esam", "esam-swp", "esam-sds", "esam-random", "sds-level"} and len(chosen) == 7 + 5
    for config in chosen.values():
        loss, moved = stepped(config)
        assert 0 < loss < 50 and moved, config


# The appendix --------------------------------------------------------------------------------------------------------


def own(item, model, data, method):
    """The configuration of a method on a task of a table."""
    tasks = [
        r for r in ITEMS[item].needs(PAPER).runs if (r.workload.paper_model, r.workload.paper_data) == (model, data)
    ]
    return next(runs.configs[0] for runs in tasks if runs.method == method)


def settings(config):
    return config.identity()["settings"]


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
    base, sam, esam = (own("table1", model, data, method) for method in ("base", "sam", "esam"))
    for config in (base, sam, esam):
        assert (config.epochs, config.batch_size, config.lr, config.augment) == (epochs, batch, lr, "basic")
        assert config.schedule == "cosine" and config.train_size is None
    assert [c.weight_decay for c in (base, sam, esam)] == [decays[0], decays[1], decays[1]]
    assert [settings(c).get("rho") for c in (base, sam, esam)] == [None, rho, rho]
    assert [settings(esam)[name] for name in ("beta", "gamma", "m")] == [beta, 0.5, None]


def test_three_seeds_on_cifar_and_the_paper_s_one_on_imagenet():
    assert {tuple(c.seed for c in runs.configs) for runs in ITEMS["table1"].needs(PAPER).runs} == {(0, 1, 2)}
    assert {tuple(c.seed for c in runs.configs) for runs in ITEMS["table2"].needs(PAPER).runs} == {(0,)}


def test_the_vit_takes_beta_one_half():
    config = own("vit", "ViT-S/16", "ImageNet", "esam")
    assert (config.model, config.size) == ("vit-s16", 224)
    assert [settings(config)[name] for name in ("beta", "gamma", "m")] == [0.5, 0.7, 128]


def test_landscape_grid_linearity_and_search_are_the_papers():
    assert (PAPER.random_plane.points, PAPER.random_plane.groups) == (100, 10)
    assert PAPER.probe.betas == (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    search = needed(ITEMS["grid-search"].needs(PAPER))
    assert len(search) == 3 * 4 * 2 * 3 and {config.weight_decay for config in search.values()} == {5e-4, 1e-3}
    assert PAPER.toys.serial == (50, 75, 100, 125) and PAPER.toys.width == 3_000


# The printed numbers -------------------------------------------------------------------------------------------------


def test_the_papers_numbers_are_quoted_as_printed():
    assert table1.PAPER["ResNet-18", "CIFAR-10"]["esam"] == Printed(96.56, 2409, 140.3, 0.08)
    assert table1.PAPER["WRN-28-10", "CIFAR-100"]["sam"] == Printed(83.42, 391, 100.0, 0.04)
    assert table1.PAPER["PyramidNet-110", "CIFAR-100"]["esam"] == Printed(85.56, 381, 137.9, 0.05)
    assert table2.PAPER["ResNet-101", "ImageNet"]["esam"] == Printed(79.09, 564, 128.7)
    assert table3.PAPER["WRN-28-10", "CIFAR-100"]["esam-sds"] == Printed(84.46, 492, 125.8)
    assert vit.PAPER["ViT-S/16", "ImageNet"]["esam-swp"] == Printed(80.88, 616)
    assert PAPER_SAVINGS["serial"][125] == {0.9: 2.94, 0.5: 14.87, 0.1: 29.42}


@pytest.mark.parametrize("paper", [table1.PAPER, table2.PAPER, table3.PAPER])
def test_the_printed_speeds_are_the_printed_images_over_sams(paper):
    for task, rows in paper.items():
        for row in rows.values():
            if row.speed is not None:  # the paper rounds, and once misprints
                ratio = 100 * row.images_per_second / rows["sam"].images_per_second
                assert abs(ratio - row.speed) < 1.0, (task, row)


@pytest.mark.parametrize("case", ["serial", "crossed"])
def test_the_printed_fit_explains_the_printed_savings(case):
    for layers, by_beta in PAPER_SAVINGS[case].items():
        for beta, percent in by_beta.items():
            assert abs(100 * predicted(PAPER_FITS[case], layers, beta) - percent) < 1.6, (layers, beta)


def test_the_plan_prints_the_commands_for_one_gpu_for_one_machine_and_for_a_cluster(tmp_path, capsys):
    words = ["table3", "--scale", "paper", "--out", "runs/big", "--shared", str(tmp_path)]
    assert main(["reproduce", *words, "--plan"]) == 0
    told = capsys.readouterr().out.partition("\ncommands\n")[2]
    printed = [shlex.split(line) for line in told.splitlines() if line.startswith("    ")]
    asked = ["esam", "reproduce", *words]
    assert printed[0] == asked
    assert printed[1] == ["torchrun", "--nproc-per-node", "8", "-m", *asked]
    assert [command[-3:-2] for command in printed[2:]] == [["ray"], ["ray://HEAD:10001"]]
    assert main([*printed[0][1:], "--plan"]) == 0  # what is printed can be typed
