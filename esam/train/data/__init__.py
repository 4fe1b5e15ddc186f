"""Data sets by name or folder, and batches that any run with the same seed sees bit for bit.

``load_data(name)`` gives a ``Data``; ``Batches(data.train, 128, mean=data.mean, std=data.std, augment="basic")`` gives
the batches of any epoch, and its ``in_order()`` those for evaluation.
"""

from esam.train.data.batches import Batches
from esam.train.data.load import load_data
from esam.train.data.splits import Data, Split, StreamedSplit

__all__ = ["Batches", "Data", "Split", "StreamedSplit", "load_data"]
