"""Which models, data and hyper-parameters? The paper's own, from its appendix, and two sizes of them for two cores.

Where the paper's text and tables disagree the table counts: weight decay 5e-4 for SGD and 1e-3 for SAM and ESAM (5e-4
on PyramidNet), batch 128 / 256 / 256. ViT-S/16 takes beta .5; the base optimizer of its row "SGD" is not told, and
AdamW is taken, and so is a warm-up of 5 epochs on ImageNet, where the paper speaks of a peak learning rate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from esam.compare.plan import Comparison
from esam.recipes.cifar import cifar10_small
from esam.train.config import Config

from .engine.item import with_changes
from .engine.scale import ExperimentScale, LengthStudy, PaperTask, PlaneSize, Probe, SearchGrid, ToyMLPs

CIFARS = {"CIFAR-10": "uoft-cs/cifar10", "CIFAR-100": "uoft-cs/cifar100"}
IMAGENET = "ILSVRC/imagenet-1k"
DECAYS = {method: {"weight_decay": 1e-3} for method in ("sam", "esam", "esam-swp", "esam-sds", "esam-random")}
LENGTHS = (25, 50, 100, 200, 400)
"""Epochs in the study of how long SDS takes."""
OWN_BEST: dict[str, dict[str, Any]] = {
    "base": {"lr": 0.1, "weight_decay": 5e-4},
    "sam": {"lr": 0.1, "weight_decay": 1e-3, "rho": 0.1},
    "esam": {"lr": 0.1, "weight_decay": 1e-3, "rho": 0.1},
}
"""What each method's own search found on ResNet-8, CIFAR-10: the best points of the item grid-search."""
FOUR = tuple((model, data) for model in ("ResNet-18", "WRN-28-10") for data in CIFARS)
"""The tasks of the paper's ablation, which are studied and probed too."""


def paper_scale() -> ExperimentScale:
    """The paper's models, data, epochs and hyper-parameters (tables of its appendix A.7)."""
    cifar = Comparison(Config(epochs=200, augment="basic", lr=0.05, weight_decay=5e-4), settings=DECAYS)
    large = Comparison(
        Config(
            data=IMAGENET, size=224, epochs=90, batch_size=512, augment="inception", lr=0.2, weight_decay=1e-4, warmup=5
        ),
        seeds=(0,),
    )
    wide = {"batch_size": 256, "settings": {"rho": 0.1, "beta": 0.5}}
    pyramid = {"batch_size": 256, "epochs": 300, "lr": 0.1, "settings": {"rho": 0.2}}
    m_sharpness = {"gamma": 0.7, "m": 128}
    vit = {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.3, "settings": {**m_sharpness, "beta": 0.5}}
    comparisons = {
        **_on_cifars("ResNet-18", with_changes(cifar, model="resnet18")),
        **_on_cifars("WRN-28-10", with_changes(cifar, model="wrn28-10", **wide)),
        **_on_cifars(
            "PyramidNet-110", dataclasses.replace(with_changes(cifar, model="pyramidnet110", **pyramid), settings={})
        ),
        ("ResNet-50", "ImageNet"): with_changes(large, model="resnet50", settings=m_sharpness),
        ("ResNet-101", "ImageNet"): with_changes(large, model="resnet101", settings=m_sharpness),
        ("ViT-S/16", "ImageNet"): with_changes(large, model="vit-s16", **vit),
    }
    return ExperimentScale(
        name="paper",
        machine="GPU",
        comparisons=comparisons,
        beside=("esam-random",),
        ablation=FOUR,
        study=FOUR,
        study_seeds=(0, 1, 2),
        study_shares=(0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
        probe=Probe(every=1, batches=4, batch_size=128),
        landscape=("ResNet-50", "ImageNet"),
        random_plane=PlaneSize(points=100, groups=10, reach=1.0, images=1_000),
        adversarial_plane=PlaneSize(points=51, groups=3, reach=0.5, images=1_000),
        hessian_vectors=30,
        toys=ToyMLPs(width=3_000, draws=10),
        search=SearchGrid(_judged_on_held_out(comparisons["ResNet-18", "CIFAR-10"])),
        tuned={},
        length=LengthStudy(("ResNet-18", "CIFAR-10"), LENGTHS, LENGTHS, LENGTHS),
        timed_rounds=100,
    )


def cpu_scale() -> ExperimentScale:
    """A small model on few images of the real CIFAR, 16 x 16, trained as long as the paper's: every method fits them.

    The paper's learning rate for each sample, weight decays and radii, without augmentation, in one thread.
    """
    common = Config(size=16, train_size=1_000, epochs=200, evaluate_every=200, lr=0.05, weight_decay=5e-4, threads=1)
    cifar = Comparison(common, settings=DECAYS)
    wide = {"lr": 0.025, "settings": {"rho": 0.1, "beta": 0.5}}
    pyramid = with_changes(cifar, model="pyramidnet8", data=CIFARS["CIFAR-10"], settings={"rho": 0.2})
    comparisons = {
        **_on_cifars("ResNet-18", with_changes(cifar, model="resnet8")),
        **_on_cifars("WRN-28-10", with_changes(cifar, model="wrn10-1", **wide)),
        ("PyramidNet-110", "CIFAR-10"): dataclasses.replace(pyramid, settings={}),
    }
    first = ("ResNet-18", "CIFAR-10")
    return ExperimentScale(
        name="cpu",
        machine="CPU",
        comparisons=comparisons,
        beside=(),
        ablation=(first,),
        study=(first,),
        study_seeds=(0, 1),
        study_shares=(0.3, 0.5, 0.7),
        probe=Probe(every=20, batches=4, batch_size=128),
        landscape=first,
        random_plane=PlaneSize(points=21, groups=3, reach=1.0, images=500),
        adversarial_plane=PlaneSize(points=21, groups=2, reach=0.5, images=500),
        hessian_vectors=20,
        toys=ToyMLPs(width=256, draws=100, betas=(0.1, 0.3, 0.5, 0.7, 0.9, 1.0)),
        search=SearchGrid(
            _judged_on_held_out(_shorter(comparisons[first], 100)),
            lrs=(0.05, 0.1),
            batch_sizes=(128,),
            rhos=(0.05, 0.1),
        ),
        tuned={first: dataclasses.replace(comparisons[first], settings=OWN_BEST)},
        length=LengthStudy(first, LENGTHS, LENGTHS, (50, 200)),
        timed_rounds=100,
    )


def short_scale() -> ExperimentScale:
    """Small models on a part of the real CIFAR, trained too short to fit it: what ESAM pays for where time is short.

    ResNet-18's part is the recipe cifar10-small.
    """
    resnet = cifar10_small()
    large = Comparison(
        Config(
            data=CIFARS["CIFAR-100"], train_size=5_000, epochs=4, evaluate_every=4, augment="inception", threads=1,
            settings={"gamma": 0.7, "m": 32},
        ),
        seeds=(0,),
    )  # fmt: skip
    vit = {"data": CIFARS["CIFAR-10"], "train_size": 1_000, "batch_size": 64, "augment": "none", "optimizer": "adamw"}
    vit |= {"lr": 1e-3, "weight_decay": 0.05, "settings": {**large.config.settings, "beta": 0.5}}
    comparisons = {
        **_on_cifars("ResNet-18", resnet),
        **_on_cifars("WRN-28-10", _shorter(resnet, 12, model="wrn10-1", settings={"beta": 0.5})),
        **_on_cifars("PyramidNet-110", _shorter(resnet, 6, model="pyramidnet8")),
        ("ResNet-50", "ImageNet"): with_changes(large, model="resnet14"),
        ("ResNet-101", "ImageNet"): with_changes(large, model="resnet20"),
        ("ViT-S/16", "ImageNet"): with_changes(large, model="vit-tiny", **vit),
    }
    return ExperimentScale(
        name="short",
        machine="CPU",
        comparisons=comparisons,
        beside=("esam-random",),
        ablation=FOUR,
        study=(("WRN-28-10", "CIFAR-10"),),
        study_seeds=(0,),
        study_shares=(0.3, 0.5, 0.7, 0.9),
        probe=Probe(every=4, batches=4, batch_size=64),
        landscape=("ResNet-18", "CIFAR-10"),
        random_plane=PlaneSize(points=21, groups=3, reach=1.0, images=500),
        adversarial_plane=PlaneSize(points=21, groups=2, reach=0.5, images=500),
        hessian_vectors=20,
        toys=ToyMLPs(width=256, draws=45),
        search=SearchGrid(_judged_on_held_out(_shorter(resnet, 6))),
        tuned={},
        length=None,
        timed_rounds=20,
    )


SCALES: dict[str, Callable[[], ExperimentScale]] = {"cpu": cpu_scale, "short": short_scale, "paper": paper_scale}


def as_released(scale: ExperimentScale) -> ExperimentScale:
    """Return a scale with what the released script does on CIFAR and the paper does not say.

    Cutout, the norm of the drawn tensors alone, and one perturbation for each of two GPUs (m = 64 in batches of 128).
    """
    comparisons = {}
    for task, own in scale.comparisons.items():
        settings = {**own.config.settings, "norm": "selected", "m": own.config.batch_size // 2}
        released = with_changes(own, augment="cutout", settings=settings)
        comparisons[task] = released if task[1] in CIFARS else own
    return dataclasses.replace(scale, name=f"{scale.name}-as-released", comparisons=comparisons)


def _judged_on_held_out(start: Comparison) -> Comparison:
    """Return the start of a search: one seed, judged on held-out training images and not on the test set."""
    return dataclasses.replace(with_changes(start, validation=True), seeds=start.seeds[:1])


def _on_cifars(model: str, comparison: Comparison) -> Mapping[PaperTask, Comparison]:
    return {(model, name): with_changes(comparison, data=data) for name, data in CIFARS.items()}


def _shorter(comparison: Comparison, epochs: int, **changes: Any) -> Comparison:
    return with_changes(comparison, epochs=epochs, evaluate_every=epochs, **changes)
