"""Which models, data and hyper-parameters? The paper's own, from its appendix, and the same experiments for two cores.

ESAM is the paper's form everywhere: exact ranking, tensors drawn independently. Where the paper's text and tables
disagree the table counts: weight decay 5e-4 for SGD and 1e-3 for SAM and ESAM (5e-4 on PyramidNet), batch 128 / 256 /
256. ViT-S/16 takes beta .5; the base optimizer of its row "SGD" is not told, and AdamW is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from esam.compare.plan import Comparison
from esam.recipes.cifar import cifar10_small
from esam.reproduce.scale import Grid, Look, Savings, Scale, Search, Task
from esam.train.config import Config

from .common import with_settings

HUB = {"CIFAR-10": "uoft-cs/cifar10", "CIFAR-100": "uoft-cs/cifar100", "ImageNet": "ILSVRC/imagenet-1k"}
CIFARS = ("CIFAR-10", "CIFAR-100")
PARTS = ("esam", "esam-swp", "esam-sds")
BETAS = tuple(round(0.1 * n, 1) for n in range(2, 10))
TS = tuple(round(0.25 * n - 0.5, 2) for n in range(11))


def paper_scale() -> Scale:
    """The paper's models, data, epochs and hyper-parameters (tables of its appendix A.7)."""
    cifar = {
        **_on_cifars("ResNet-18", _paper_resnet18),
        **_on_cifars("WRN-28-10", _paper_wrn),
        **_on_cifars("PyramidNet-110", _paper_pyramidnet),
    }
    imagenet = {(name, "ImageNet"): _paper_imagenet(model) for name, model in
                (("ResNet-50", "resnet50"), ("ResNet-101", "resnet101"))}  # fmt: skip
    resnet18, resnet50 = cifar["ResNet-18", "CIFAR-10"], imagenet["ResNet-50", "ImageNet"]
    four = tuple(task for task in cifar if task[0] != "PyramidNet-110")
    return Scale(
        name="paper",
        machine="GPU",
        cifar=cifar,
        imagenet=imagenet,
        vit={("ViT-S/16", "ImageNet"): _paper_vit()},
        defaults=(("ResNet-18", "CIFAR-10"), ("ResNet-18", "CIFAR-100")),
        study=four,
        study_seeds=(0, 1, 2),
        study_shares=(0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
        observed=four,
        look=Look(1, 4, 128, gamma=0.5, rho=0.05, betas=BETAS, draws=3, ts=TS, mean_draws=200),
        landscape=(("ResNet-50", "ImageNet"), resnet50),
        random_plane=Grid(points=100, groups=10, reach=1.0, images=1_000),
        adversarial=(("ResNet-18", "CIFAR-10"), resnet18),
        adversarial_plane=Grid(points=51, groups=3, reach=0.5, images=1_000),
        vectors=30,
        savings=Savings((50, 75, 100, 125), (25, 50, 65, 75), _ten_betas(), width=3_000, batch=128, draws=10),
        search=_search(resnet18),
        rounds=30,
    )


def cpu_scale() -> Scale:
    """Small models on a part of the real CIFAR, in one thread; ResNet-18's part is the recipe cifar10-small."""
    cifar = {
        **_on_cifars("ResNet-18", _cpu_resnet),
        **_on_cifars("WRN-28-10", lambda data: _shorter(_cpu_resnet(data), 12, model="wrn10-1", beta=0.5)),
        **_on_cifars("PyramidNet-110", lambda data: _shorter(_cpu_resnet(data), 6, model="pyramidnet8")),
    }
    imagenet = {(name, "ImageNet"): _cpu_imagenet(model) for name, model in
                (("ResNet-50", "resnet14"), ("ResNet-101", "resnet20"))}  # fmt: skip
    resnet18 = cifar["ResNet-18", "CIFAR-10"]
    return Scale(
        name="cpu",
        machine="CPU",
        cifar=cifar,
        imagenet=imagenet,
        vit={("ViT-S/16", "ImageNet"): _cpu_vit()},
        defaults=(("ResNet-18", "CIFAR-10"), ("ResNet-18", "CIFAR-100")),
        study=(("WRN-28-10", "CIFAR-10"),),
        study_seeds=(0,),
        study_shares=(0.3, 0.5, 0.7, 0.9),
        observed=tuple(task for task in cifar if task[0] != "PyramidNet-110"),
        look=Look(4, 4, 64, gamma=0.5, rho=0.05, betas=BETAS, draws=3, ts=TS, mean_draws=200),
        landscape=(("ResNet-18", "CIFAR-10"), resnet18),
        random_plane=Grid(points=21, groups=3, reach=1.0, images=500),
        adversarial=(("ResNet-18", "CIFAR-10"), resnet18),
        adversarial_plane=Grid(points=21, groups=2, reach=0.5, images=500),
        vectors=20,
        savings=Savings((50, 75, 100, 125), (25, 50, 65, 75), _ten_betas(), width=256, batch=128, draws=45),
        search=_search(_shorter(resnet18, 6)),
        rounds=20,
    )


SCALES: dict[str, Callable[[], Scale]] = {"cpu": cpu_scale, "paper": paper_scale}


def _paper_resnet18(data: str) -> Comparison:
    """200 epochs, batch 128, peak learning rate .05, rho .05, beta .6, gamma .5."""
    return _paper_cifar("resnet18", data, batch_size=128, rho=0.05, beta=0.6)


def _paper_wrn(data: str) -> Comparison:
    """200 epochs, batch 256, peak learning rate .05, rho .1, beta .5, gamma .5."""
    return _paper_cifar("wrn28-10", data, batch_size=256, rho=0.1, beta=0.5)


def _paper_pyramidnet(data: str) -> Comparison:
    """300 epochs, batch 256, peak learning rate .1, weight decay 5e-4 for all, rho .2, beta .6, gamma .5."""
    start = _paper_cifar("pyramidnet110", data, batch_size=256, rho=0.2, beta=0.6)
    config = dataclasses.replace(start.config, epochs=300, lr=0.1)
    return dataclasses.replace(start, config=config, settings={})


def _paper_cifar(model: str, data: str, *, batch_size: int, rho: float, beta: float) -> Comparison:
    config = Config(
        data=data,
        model=model,
        epochs=200,
        batch_size=batch_size,
        augment="basic",
        lr=0.05,
        weight_decay=5e-4,
        rho=rho,
        beta=beta,
        gamma=0.5,
        ranking="exact",
        choose="independent",
    )
    return Comparison(config, settings={method: {"weight_decay": 1e-3} for method in ("sam", *PARTS)})


def _paper_imagenet(model: str) -> Comparison:
    """90 epochs, batch 512, Inception-style crops, lr .2, weight decay 1e-4, rho .05, beta .6, gamma .7, m 128."""
    config = Config(
        data=HUB["ImageNet"],
        model=model,
        size=224,
        epochs=90,
        batch_size=512,
        augment="inception",
        lr=0.2,
        weight_decay=1e-4,
        rho=0.05,
        beta=0.6,
        gamma=0.7,
        m=128,
        ranking="exact",
        choose="independent",
    )
    return Comparison(config, seeds=(0,))


def _paper_vit() -> Comparison:
    """ImageNet's settings with beta .5; the paper does not tell the base optimizer: AdamW, lr 1e-3, weight decay .3."""
    start = _paper_imagenet("vit-s16")
    config = dataclasses.replace(start.config, model="vit-s16", beta=0.5, optimizer="adamw", lr=1e-3, weight_decay=0.3)
    return dataclasses.replace(start, config=config)


def _cpu_resnet(data: str) -> Comparison:
    """ResNet-8, 2,500 images, 40 epochs, batch 64, no augmentation, rho .05: cifar10-small, on either CIFAR."""
    start = cifar10_small()
    return dataclasses.replace(start, config=dataclasses.replace(start.config, data=data))


def _cpu_imagenet(model: str) -> Comparison:
    """5,000 images of CIFAR-100, 4 epochs, batch 128, Inception-style crops, m 32, gamma .7, one seed."""
    config = Config(
        data=HUB["CIFAR-100"],
        model=model,
        train_size=5_000,
        epochs=4,
        batch_size=128,
        evaluate_every=4,
        augment="inception",
        rho=0.05,
        gamma=0.7,
        m=32,
        ranking="exact",
        choose="independent",
        threads=1,
    )
    return Comparison(config, seeds=(0,))


def _cpu_vit() -> Comparison:
    """ViT-tiny, 1,000 images of CIFAR-10, 4 epochs, batch 64, AdamW, beta .5, gamma .7, one seed."""
    config = Config(
        data=HUB["CIFAR-10"],
        model="vit-tiny",
        train_size=1_000,
        epochs=4,
        batch_size=64,
        evaluate_every=4,
        optimizer="adamw",
        lr=1e-3,
        weight_decay=0.05,
        rho=0.05,
        beta=0.5,
        gamma=0.7,
        m=32,
        ranking="exact",
        choose="independent",
        threads=1,
    )
    return Comparison(config, seeds=(0,))


def _search(start: Comparison) -> Search:
    """The appendix's grid, one seed, judged on held-out training images and not on the test set."""
    start = dataclasses.replace(with_settings(start, validation=True), seeds=start.seeds[:1])
    return Search(start, (0.01, 0.05, 0.1, 0.2), (5e-4, 1e-3), (64, 128, 256))


def _on_cifars(model: str, recipe: Callable[[str], Comparison]) -> dict[Task, Comparison]:
    return {(model, data): recipe(HUB[data]) for data in CIFARS}


def _shorter(comparison: Comparison, epochs: int, **changes: Any) -> Comparison:
    return with_settings(comparison, epochs=epochs, evaluate_every=epochs, **changes)


def _ten_betas() -> tuple[float, ...]:
    return tuple(round(0.1 * n, 1) for n in range(1, 11))
