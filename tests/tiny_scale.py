"""All the paper's items at a size that is made in seconds: hand-written digits and a small perceptron."""

import dataclasses
import importlib

from esam.compare.plan import Comparison
from esam.paper.engine.scale import ExperimentScale, LengthStudy, PlaneSize, Probe, SearchGrid, ToyMLPs
from esam.train.config import Config

CONFIG = Config(data="digits", model="mlp", epochs=2, batch_size=30, train_size=60, threads=1)


def comparison(seeds=(0, 1), **changes):
    return Comparison(dataclasses.replace(CONFIG, **changes), seeds=seeds)


def tiny_scale(**changes):
    """Return the tiny scale; ``changes`` go to every configuration, such as data="elsewhere"."""
    comparisons = {
        ("ResNet-18", "CIFAR-10"): comparison(**changes),
        ("WRN-28-10", "CIFAR-10"): comparison(lr=0.05, **changes),
        ("ResNet-50", "ImageNet"): comparison((0,), settings={"gamma": 0.7, "m": 15}, **changes),
        ("ViT-S/16", "ImageNet"): comparison((0,), optimizer="adamw", lr=1e-3, settings={"m": 10}, **changes),
    }
    first = ("ResNet-18", "CIFAR-10")
    start = comparison((0,), validation=True, epochs=1, **changes)
    plane = PlaneSize(points=5, groups=2, reach=0.5, images=40)
    return ExperimentScale(
        name="tiny",
        machine="CPU",
        comparisons=comparisons,
        beside=("esam-random",),
        ablation=(first, ("WRN-28-10", "CIFAR-10")),
        study=(("ResNet-18", "CIFAR-10"),),
        study_seeds=(0,),
        study_shares=(0.5, 0.6),
        probe=Probe(every=2, batches=2, batch_size=10, draws=1, mean_draws=5),
        landscape=("ResNet-18", "CIFAR-10"),
        random_plane=plane,
        adversarial_plane=plane,
        hessian_vectors=2,
        toys=ToyMLPs(width=16, draws=2, batch=4, serial=(3, 4), crossed=(2, 3), betas=(0.3, 0.6, 1.0)),
        search=SearchGrid(dataclasses.replace(start, settings={"sam": {"rho": 0.1}}), (0.01, 0.1), (5e-4,), (30,)),
        tuned={first: dataclasses.replace(comparisons[first], settings={"sam": {"lr": 0.05, "rho": 0.1}})},
        length=LengthStudy(first, (1, 2), (1,), (1,), gammas=(0.7,)),
        timed_rounds=2,
    )


def here(launcher):
    """Run what a launcher has to run in this process: starting one for each takes longer than the runs."""
    for planned in launcher.runs:
        planned.prepare()
        importlib.import_module(planned.worker).main(planned.folder)
