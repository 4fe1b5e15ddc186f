"""The embedded default: real images that need no download, some of them wrongly labelled."""

from __future__ import annotations

from esam.compare.plan import Comparison
from esam.train.config import Config

NOTES = (
    "30 % of the training labels are wrong on purpose; the test labels are right. A net that fits all of them has "
    "learnt the errors too; one that is kept in flat minima leaves many of them out. So does one that sees less of the "
    "data: SGD on a random part is the control for every method that trains on half of each batch.",
    "ESAM and ESAM-SDS train on the half of each batch whose loss rises most under the perturbation, as the paper has "
    "it. Once the net has learnt something, wrong labels are over-represented there: in the end 41-44 % of what they "
    "keep, of 30 % in the data. So they learn later than the others: see the accuracy against epochs. ESAM-random "
    "trains on a random half.",
    "One rho for all methods, chosen for a clear picture and not tuned for each. Times include no evaluation.",
)


def demo() -> Comparison:
    """Digits (scikit-learn, 1,797 images of 8 x 8), 30 % wrong labels, a small CNN, 40 epochs, 3 seeds."""
    config = Config(
        data="digits",
        model="cnn",
        label_noise=0.3,
        epochs=40,
        batch_size=64,
        lr=0.05,
        settings={"rho": 0.1},
        threads=1,
        notes=NOTES,
    )
    return Comparison(
        config, methods=("base", "base-part", "sam", "esam", "esam-swp", "esam-sds", "esam-random", "slicesam")
    )
