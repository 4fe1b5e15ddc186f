"""What is ready-made for Hugging Face? A Trainer that takes a method by its name.

```python
trainer = SharpnessAwareTrainer(model, args, train_dataset=data, method="sam", settings={"rho": 0.05})
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

try:
    from transformers import Trainer
except ImportError as error:
    raise ImportError("esam.integrations.trainer needs transformers: pip install torch-esam[huggingface]") from error

from esam.optim import RECOMMENDED, SharpnessAware, method_of

from .huggingface import SharpnessAware as Steps


class SharpnessAwareTrainer(Steps, Trainer):  # type: ignore[misc]
    """A Trainer whose steps are a method's; everything else is transformers' own.

    For a Trainer of another kind, such as TRL's: ``class MySFTTrainer(SharpnessAware, SFTTrainer)`` with the mixin of
    ``esam.integrations.huggingface``. DPOTrainer's pairs stay together.

    Args:
        args, kwargs: Of ``transformers.Trainer``. Where ``optimizer_cls_and_kwargs`` makes one of esam's optimizers
            (``esam.factory.OptimizerFactory``), that is the method.
        method: A name of ``esam.list_methods()``, or a class as ``package.module:Class``.
        settings: Of the method, by name.
    """

    def __init__(
        self, *args: Any, method: str = RECOMMENDED, settings: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self._method, self._settings = method_of(method), dict(settings or {})
        super().__init__(*args, **kwargs)

    def sharpness(self, base: Optimizer, model: nn.Module) -> SharpnessAware:  # type: ignore[override]
        """Wrap the Trainer's optimizer."""
        return self._method(base, model, **self._settings)
