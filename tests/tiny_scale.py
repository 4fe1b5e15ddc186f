"""All the paper's items at a size that is made in seconds: hand-written digits and a small perceptron."""

import dataclasses
import importlib

from esam.compare.plan import Comparison
from esam.recipes.paper.scales import BETAS, TS
from esam.reproduce.scale import Grid, Look, Savings, Scale, Search
from esam.train.config import Config

CONFIG = Config(
    data="digits",
    model="mlp",
    epochs=2,
    batch_size=30,
    train_size=60,
    rho=0.05,
    ranking="exact",
    mask="independent",
    threads=1,
)


def comparison(seeds=(0, 1), **changes):
    return Comparison(dataclasses.replace(CONFIG, **changes), seeds=seeds)


def tiny_scale(**changes):
    """Return the tiny scale; ``changes`` go to every configuration, such as data="elsewhere"."""
    first, second = comparison(**changes), comparison(lr=0.05, **changes)
    cifar = {
        (model, data): first if (model, data) == ("ResNet-18", "CIFAR-10") else second
        for model in ("ResNet-18", "WRN-28-10", "PyramidNet-110")
        for data in ("CIFAR-10", "CIFAR-100")
    }
    small = Grid(points=5, groups=2, reach=0.5, images=40)
    adaptive = comparison((0,), optimizer="adamw", lr=1e-3, m=10, **changes)
    return Scale(
        name="tiny",
        machine="CPU",
        cifar=cifar,
        imagenet={("ResNet-50", "ImageNet"): comparison((0,), gamma=0.7, m=15, **changes)},
        vit={("ViT-S/16", "ImageNet"): adaptive},
        defaults=(("ResNet-18", "CIFAR-10"),),
        study=(("ResNet-18", "CIFAR-10"),),
        study_seeds=(0,),
        study_shares=(0.3, 0.5, 0.6, 0.9),
        observed=(("ResNet-18", "CIFAR-10"), ("WRN-28-10", "CIFAR-10")),
        look=Look(2, 2, 10, gamma=0.5, rho=0.05, betas=BETAS, draws=1, ts=TS, mean_draws=5),
        landscape=(("ResNet-18", "CIFAR-10"), first),
        random_plane=small,
        adversarial=(("ResNet-18", "CIFAR-10"), first),
        adversarial_plane=small,
        vectors=2,
        savings=Savings((3, 4), (2, 3), (0.3, 0.6, 1.0), width=16, batch=4, draws=2),
        search=Search(
            dataclasses.replace(comparison((0,), validation=True, epochs=1, **changes), settings={"sam": {"rho": 0.1}}),
            (0.01, 0.1),
            (5e-4,),
            (30,),
        ),
        rounds=2,
    )


def here(launcher):
    """Run what a launcher has to run in this process: starting one for each takes longer than the runs."""
    for planned in launcher.runs:
        planned.prepare()
        importlib.import_module(planned.worker).main(planned.folder)
