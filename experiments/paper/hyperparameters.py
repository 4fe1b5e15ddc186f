"""Which hyper-parameters? The paper's own rows (tables of its appendix A.7), and what stands for them on a CPU.

Where text and tables of the paper disagree the table counts: batch 128 / 256 / 256, weight decay 5e-4 for SGD and 1e-3
for SAM and ESAM (5e-4 on PyramidNet). Ours, where the paper is silent: momentum .9; PyramidNet-110 with alpha 270;
ImageNet warms up for 5 epochs; ViT-S/16 takes AdamW with learning rate 1e-3 and weight decay .3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from esam.train import Config

Column = tuple[str, str]
"""A column of the paper's tables in its own words."""
THREE = ("base", "sam", "esam")
FIVE = ("base", "sam", "esam-swp", "esam-sds", "esam")
LABELS = {"base": "SGD", "sam": "SAM", "esam-swp": "ESAM-SWP", "esam-sds": "ESAM-SDS", "esam": "ESAM"}


def slug(column: Column) -> str:
    """Return a column's name in paths."""
    return "-".join(column).lower().replace("/", "")


@dataclass(frozen=True)
class Row:
    """How the paper trains one net: the same for SGD, SAM and ESAM but for weight decay and rho."""

    epochs: int
    batch: int
    augmentation: str
    lr: float
    decay_sgd: float
    decay: float
    """Weight decay of SAM and ESAM."""
    rho: float
    beta: float
    gamma: float
    m: int | None = None
    warmup: int = 0
    resolution: int | None = None
    optimizer: str = "sgd"


#                    epochs batch augmentation  lr    SGD's decay, SAM's  rho  beta gamma   m  warm-up resolution
PAPER: dict[Column, Row] = {
    ("ResNet-18", "CIFAR-10"): Row(200, 128, "basic", 0.05, 5e-4, 1e-3, 0.05, 0.6, 0.5),
    ("ResNet-18", "CIFAR-100"): Row(200, 128, "basic", 0.05, 5e-4, 1e-3, 0.05, 0.6, 0.5),
    ("WRN-28-10", "CIFAR-10"): Row(200, 256, "basic", 0.05, 5e-4, 1e-3, 0.1, 0.5, 0.5),
    ("WRN-28-10", "CIFAR-100"): Row(200, 256, "basic", 0.05, 5e-4, 1e-3, 0.1, 0.5, 0.5),
    ("PyramidNet-110", "CIFAR-10"): Row(300, 256, "basic", 0.1, 5e-4, 5e-4, 0.2, 0.6, 0.5),
    ("PyramidNet-110", "CIFAR-100"): Row(300, 256, "basic", 0.1, 5e-4, 5e-4, 0.2, 0.6, 0.5),
    ("ResNet-50", "ImageNet"): Row(90, 512, "inception", 0.2, 1e-4, 1e-4, 0.05, 0.6, 0.7, 128, 5, 224),
    ("ResNet-101", "ImageNet"): Row(90, 512, "inception", 0.2, 1e-4, 1e-4, 0.05, 0.6, 0.7, 128, 5, 224),
    ("ViT-S/16", "ImageNet"): Row(90, 512, "inception", 1e-3, 0.3, 0.3, 0.05, 0.5, 0.7, 128, 5, 224, "adamw"),
}
GRID = {"lr": (0.01, 0.05, 0.1, 0.2), "weight_decay": (5e-4, 1e-3), "batch_size": (64, 128, 256)}
"""A.7: what each method's learning rate, weight decay and batch size were searched in."""
DEPTHS = {"serial": (50, 75, 100, 125), "crossed": (25, 50, 65, 75)}
"""A.4: layers of its MLPs; its table begins at 25 where its text says 35."""
SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Figure 3: values of beta, and of gamma."""
CIFAR6 = tuple(column for column in PAPER if column[1] != "ImageNet")
CIFAR4 = tuple(column for column in CIFAR6 if column[0] != "PyramidNet-110")
RESNET = ("ResNet-18", "CIFAR-10")

STUDY: tuple[Column, ...] = (("ResNet-18", "CIFAR-10"), ("WRN-28-10", "CIFAR-10"))
"""The columns on which Figure 3 is made on a CPU."""

_OURS = "experiments.paper.nets:"
_NETS = {
    "ResNet-18": ("resnet18", "resnet8", "ResNet-8"),
    "WRN-28-10": ("wrn28-10", "wrn10-1", "WRN-10-1"),
    "PyramidNet-110": (f"{_OURS}pyramidnet110", f"{_OURS}pyramidnet8", "PyramidNet-8"),
    "ResNet-50": (f"{_OURS}resnet50", "resnet14", "ResNet-14"),
    "ResNet-101": (f"{_OURS}resnet101", "resnet20", "ResNet-20"),
    "ViT-S/16": (f"{_OURS}vit_s16", f"{_OURS}small_vit", "a small ViT"),
}
"""The paper's net, what stands for it on a CPU, and that one's name."""
_DATA = {
    "CIFAR-10": ("uoft-cs/cifar10", "cifar10"),
    "CIFAR-100": ("uoft-cs/cifar100", "cifar100"),
    "ImageNet": ("ILSVRC/imagenet-1k", "imagenet20"),
}
NET_TITLES = {model: title for _, model, title in _NETS.values()}


@dataclass(frozen=True)
class Scale:
    """A size of all experiments: the paper's own, or one for a CPU where every method fits its images."""

    name: str
    columns: Mapping[Column, Config]
    """The configuration of SGD for each column; what methods change comes from the paper's row."""
    seeds: int = 6
    few: int = 3
    """Seeds of Table 2, Figure 3, the ViT and the probes; raised to 6, the same command runs the other three."""
    shares: tuple[float, ...] = SHARES
    grid: Mapping[str, tuple[float, ...]] = field(default_factory=lambda: GRID)
    grid_epochs: int = 100
    width: int = 3_000
    """Units of a layer in A.4's MLPs; the paper's own."""
    depths: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: DEPTHS)
    betas: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    draws: int = 10
    processes: int = 5
    """In which steps are timed."""
    rounds: int = 40
    plane: tuple[int, int] = (51, 10)
    """Figure 4: points a side, pairs of directions; the paper has 100 and 10."""
    gradient_plane: tuple[int, int] = (31, 5)
    """The same for the figure of A.5."""
    plane_images: int = 160
    coarse: tuple[int, int] = (7, 3)
    """The same for every seed's minimum."""
    images: int = 250
    """On which a minimum's flatness is measured."""
    vectors: int = 20
    """Behind the Hessian's trace."""
    probed_batches: int = 2
    mean_draws: int = 200

    @property
    def real(self) -> bool:
        """Whether the paper's own nets are trained on all of its data."""
        return self.name.startswith("paper")

    def config(self, column: Column, method: str, seed: int, **changes: Any) -> Config:
        """Return a run's configuration: the column's, with what the paper changes for the method, and our changes.

        A change that is a setting of the method, such as beta, goes to the method.
        """
        row, start = PAPER[column], self.columns[column]
        settings: dict[str, Any] = {} if method == "base" else {"rho": row.rho}
        if method != "base" and row.m is not None:
            settings["m"] = max(1, row.m * start.batch_size // row.batch)
        settings |= {"beta": row.beta} if method in ("esam", "esam-swp") else {}
        settings |= {"gamma": row.gamma} if method in ("esam", "esam-sds") else {}
        settings |= {name: changes.pop(name) for name in ("rho", "beta", "gamma") if name in changes}
        decay = row.decay_sgd if method == "base" else row.decay
        decay *= start.weight_decay / row.decay_sgd
        changes = {"weight_decay": decay, **changes}
        data = start.data if self.real else f"{start.data}_seed{seed}"
        if changes.pop("held_out", False):
            changes |= {"validation": True} if self.real else {}
            data = data if self.real else f"{data}_held_out"
        return dataclasses.replace(start, method=method, seed=seed, data=data, settings=settings, **changes)


def paper_scale() -> Scale:
    """Return the paper's nets, data and hyper-parameters, for GPUs."""
    columns = {}
    for (net, data), row in PAPER.items():
        columns[net, data] = Config(
            data=_DATA[data][0], model=_NETS[net][0], method="base", epochs=row.epochs, batch_size=row.batch,
            augment=row.augmentation, lr=row.lr, weight_decay=row.decay_sgd, warmup=row.warmup, size=row.resolution,
            optimizer=row.optimizer,  # type: ignore[arg-type]
        )  # fmt: skip
    return Scale(
        "paper", columns, plane=(100, 10), gradient_plane=(100, 10), plane_images=1_000, images=1_000, rounds=100
    )


def cpu_scale() -> Scale:
    """Return small nets on 1,000 images of 16 x 16, drawn by the seed, 200 epochs: every method fits them.

    The paper's learning rate for each sample, weight decays and radii, batch 128, no augmentation, one thread. 1,000
    images of 20 of ImageNet's classes stand for ImageNet.
    """
    columns = {}
    for (net, data), row in PAPER.items():
        columns[net, data] = Config(
            data=f"experiments.paper.data:{_DATA[data][1]}", model=_NETS[net][1], method="base", epochs=200,
            batch_size=128, lr=row.lr * 128 / row.batch, weight_decay=row.decay_sgd, evaluate_every=200,
            threads=1, device="cpu",
        )  # fmt: skip
    vit = ("ViT-S/16", "ImageNet")
    columns[vit] = dataclasses.replace(columns[vit], optimizer="adamw", lr=2e-3, weight_decay=0.05, warmup=5)
    return Scale("cpu", columns)


def tiny_scale() -> Scale:
    """Return everything in seconds, on hand-written digits: to try the machinery, not to learn anything."""
    start = Config(
        data="experiments.paper.data:digits", model="mlp", method="base", epochs=2, batch_size=30, evaluate_every=2,
        threads=1, device="cpu", weight_decay=5e-4,
    )  # fmt: skip
    columns = {column: dataclasses.replace(start, optimizer=row.optimizer) for column, row in PAPER.items()}  # type: ignore[arg-type]
    grid = {"lr": (0.01, 0.05), "weight_decay": (5e-4, 1e-3), "batch_size": (128,)}
    return Scale(
        "tiny", columns, seeds=3, few=2, shares=(0.3, 0.5, 0.6), grid=grid, grid_epochs=1, width=16,
        depths={"serial": (3, 4), "crossed": (2, 3)}, betas=(0.3, 0.6, 0.9, 1.0), draws=3, rounds=2, processes=5,
        plane=(5, 2), gradient_plane=(5, 2), plane_images=20, coarse=(3, 2), images=30, vectors=2, mean_draws=5,
    )  # fmt: skip


SCALES = {"cpu": cpu_scale, "paper": paper_scale, "tiny": tiny_scale}
