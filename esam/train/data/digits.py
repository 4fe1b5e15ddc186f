"""Where do the 1,797 hand-written digits come from?"""

from __future__ import annotations

import numpy as np
import torch

from esam.train.data.catalogue import Catalogue, divided, whole_listing
from esam.train.data.pictures import ArrayPictures

BRIGHTEST = 16  # the set's own scale is 0..16


class Digits:
    """scikit-learn's embedded digits: 8x8, grey, ten classes; needs no network."""

    def identity(self) -> str:
        """Give a constant: the digits ship with scikit-learn and do not change."""
        return "scikit-learn digits"

    def catalogue(self) -> Catalogue:
        """List the digits, a fifth of them held out as a test set."""
        try:
            from sklearn.datasets import load_digits  # type: ignore[import-untyped]
        except ImportError as error:
            raise ImportError("the digits come with scikit-learn; `pip install scikit-learn`") from error
        bunch = load_digits()
        images = np.rint(bunch.images * (255 / BRIGHTEST)).astype(np.uint8)
        train, test, note = divided(whole_listing(ArrayPictures(images), torch.from_numpy(bunch.target)))
        return Catalogue(train, test, tuple(str(name) for name in bunch.target_names), note)
