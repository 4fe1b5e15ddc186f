"""The embedded default: real images that need no download, some of them wrongly labelled."""

from __future__ import annotations

from esam.runs.plan import Comparison
from esam.train.config import Config

NOTES = (
    "30 % of the training labels are wrong on purpose; the test labels are right. A net that is trained for long "
    "learns the wrong labels too, so the number of epochs decides much. Every method therefore has its own, the best "
    "of the same number of trials on held-out training images with right labels.",
    "SGD on a random part is the control for methods that train on a part of each batch: it too sees less of the data.",
    "One rho for all methods, not tuned. Times include no evaluation.",
)


def demo() -> Comparison:
    """Digits (scikit-learn, 1,797 images of 8 x 8), 30 % wrong labels, a small CNN, each method at its own length."""
    config = Config(
        data="digits",
        model="cnn",
        label_noise=0.3,
        epochs=20,
        batch_size=64,
        lr=0.05,
        settings={"rho": 0.1},
        threads=1,
        notes=NOTES,
    )
    return Comparison(
        config,
        methods=("base", "base-part", "sam", "esam", "esam-swp", "slicesam"),
        tune=4,
        tune_over=("epochs",),
    )
