"""In which kinds of training are methods compared? Each is small: SGD takes seconds on one core."""

from __future__ import annotations

from dataclasses import dataclass, replace

from esam.train.config import Config


@dataclass(frozen=True)
class Regime:
    """A row: a way of training, by the configuration of its base optimizer."""

    name: str
    title: str
    kind: str
    """What makes it different from the others."""
    config: Config
    """With the default learning rate and weight decay, which the search starts from."""


_SGD = Config(
    data="esam.frontier.tasks:cifar10", model="resnet8", method="base", batch_size=64, threads=1, device="cpu"
)
_ADAMW = replace(_SGD, optimizer="adamw", lr=1e-3, weight_decay=0.05)
_FITS = replace(_SGD, train_size=1_000, epochs=20)

REGIMES: dict[str, Regime] = {
    row.name: row
    for row in (
        Regime("fits", "CIFAR-10 (fits)", "SGD fits every training image", _FITS),
        Regime("short", "CIFAR-10 (short)", "too short to fit", replace(_SGD, train_size=2_000, epochs=5)),
        Regime("wrong20", "20 % wrong labels", "a fifth of the labels wrong", replace(_FITS, label_noise=0.2)),
        Regime("wrong40", "40 % wrong labels", "two fifths of the labels wrong", replace(_FITS, label_noise=0.4)),
        Regime(
            "cifar100",
            "CIFAR-100",
            "many classes, few images of each",
            replace(_SGD, data="esam.frontier.tasks:cifar100", train_size=2_000, epochs=15),
        ),
        Regime(
            "vit",
            "ViT (AdamW)",
            "attention, no BatchNorm",
            replace(_ADAMW, model="esam.frontier.nets:small_vit", train_size=1_000, epochs=20, lr=2e-3),
        ),
        Regime("adamw", "ResNet-8 (AdamW)", "AdamW as base", replace(_ADAMW, train_size=1_000, epochs=20)),
        Regime(
            "text",
            "Text (AdamW)",
            "words instead of images",
            replace(
                _ADAMW,
                data="esam.frontier.tasks:topics",
                model="esam.frontier.nets:reader",
                train_size=1_000,
                epochs=16,
                lr=3e-3,
            ),
        ),
        Regime(
            "finetune",
            "Fine-tuning",
            "weights from the other half of the classes",
            replace(
                _SGD,
                data="esam.frontier.tasks:cifar10_half",
                model="esam.frontier.nets:pretrained",
                train_size=500,
                epochs=15,
                lr=0.02,
            ),
        ),
    )
}
