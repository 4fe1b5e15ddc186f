"""Which networks do the regimes train that the registry of models lacks?"""

from __future__ import annotations

import io
from functools import lru_cache

import torch
from torch import Tensor, nn

from esam.files import write_atomically
from esam.train import Task
from esam.train.data.cache import cache_folder
from esam.train.evaluation import per_sample_cross_entropy
from esam.train.loop import cosine, fit
from esam.train.models import build_model
from esam.train.models.vit import Block, VisionTransformer
from esam.train.task import TaskBatches, class_count

from .tasks import VOCABULARY, WORDS, cifar10_half

PRETRAINING = {"images": 2_000, "epochs": 20, "lr": 0.1, "weight_decay": 5e-4, "seed": 1_000}


def small_vit(task: Task) -> nn.Module:
    """Return a vision transformer for 16 x 16: patches of 4, width 64, 4 blocks of 4 heads."""
    return VisionTransformer(patch=4, width=64, depth=4, heads=4, classes=class_count(task), channels=3, size=16)


class Reader(nn.Module):
    """A small transformer over words: two blocks, the mean of all places, one score a class."""

    def __init__(self, classes: int, *, width: int = 64, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(0.02 * torch.randn(1, WORDS, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, windows: Tensor) -> Tensor:
        """Return one score per class for each window of word numbers."""
        read = self.blocks(self.words(windows) + self.places)
        scores: Tensor = self.head(read.mean(1))
        return scores


def reader(task: Task) -> nn.Module:
    """Return a reader for the task's classes."""
    return Reader(class_count(task))


def pretrained(task: Task) -> nn.Module:
    """Return a ResNet-8 trained on the other half of the classes, with a new head for the task's."""
    model = build_model("resnet8", classes=class_count(task), size=16)
    own = {name: value for name, value in model.state_dict().items() if name.startswith("head")}
    model.load_state_dict({**_trunk(), **own})
    return model


@lru_cache(maxsize=1)
def _trunk() -> dict[str, Tensor]:
    """Return the trained weights below the head: trained once, then kept under $ESAM_CACHE."""
    path = cache_folder("pretrained resnet8", sorted(PRETRAINING.items())) / "weights.pt"
    if not path.exists():
        buffer = io.BytesIO()
        torch.save(_pretrain(), buffer)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, buffer.getbuffer())
    state: dict[str, Tensor] = torch.load(path, weights_only=True)
    return {name: value for name, value in state.items() if not name.startswith("head")}


def _pretrain() -> dict[str, Tensor]:
    task = cifar10_half(second=False)
    assert isinstance(task.train, tuple)
    images, labels = (part[: int(PRETRAINING["images"])] for part in task.train)
    with torch.random.fork_rng([]):  # the run's own random stream must not depend on whether this was cached
        torch.manual_seed(int(PRETRAINING["seed"]))
        model = build_model("resnet8", classes=5, size=16)
        sgd = torch.optim.SGD(
            model.parameters(), lr=PRETRAINING["lr"], momentum=0.9, weight_decay=PRETRAINING["weight_decay"]
        )
        batches = TaskBatches((images, labels), 64, seed=int(PRETRAINING["seed"]))
        fit(model, sgd, batches, epochs=int(PRETRAINING["epochs"]), schedule=cosine, loss=per_sample_cross_entropy)
    return model.state_dict()
