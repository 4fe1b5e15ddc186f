"""How does Hugging Face's Trainer take a sharpness-aware step? By a mixin over ``create_optimizer`` and the step.

```python
class MyTrainer(SharpnessAware, Trainer):
    sharpness = staticmethod(lambda base, model: SAM(base, model, rho=0.05))
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

from esam.optim import SharpnessAware as Optimizer
from esam.optim.indexing import size_of

from .common import sharpness_aware

_IGNORED = -100
"""The label of a token that is not predicted, as everywhere in transformers."""


class SharpnessAware:
    """Let a Trainer step by esam's optimizers: ``class MyTrainer(SharpnessAware, Trainer)``.

    ``sharpness(base, model)``, a static method or one of esam's classes, wraps the optimizer that the Trainer creates.
    Precision, accumulation, clipping, schedulers, logs and checkpoints are the Trainer's own.

    ``compute_loss`` runs once for each pass, on the samples of that pass. A ranking that reads single losses (ESAM's by
    default) calls ``sample_losses`` in its place.
    """

    args: Any
    accelerator: Any
    model: Any
    optimizer: Any
    _window: int | None = None
    """How many samples all micro-batches of this step have; None: not known."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        owners = [c for c in cls.__mro__ if "training_step" in vars(c) and not issubclass(c, SharpnessAware)]
        if owners and cls.__mro__.index(owners[0]) < cls.__mro__.index(SharpnessAware):
            raise ValueError(
                f"{owners[0].__name__} stands before SharpnessAware, so its own step would be taken; write "
                f"class {cls.__name__}(SharpnessAware, {owners[0].__name__})"
            )

    @staticmethod
    def sharpness(base: torch.optim.Optimizer, model: nn.Module) -> Optimizer:
        """Wrap the Trainer's optimizer by a method: for you to say which."""
        raise ValueError(
            "the Trainer does not say which method to use; add to the class: "
            "sharpness = staticmethod(lambda base, model: esam.SAM(base, model))"
        )

    def sample_losses(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """Return one loss for each sample; by default for classification, regression and, a sequence each, tokens.

        Override it where the loss is your own.
        """
        if getattr(self, "label_smoother", None) is not None or getattr(self, "compute_loss_func", None) is not None:
            raise ValueError(
                "this method ranks samples, and a loss with label smoothing or of your own is not known sample by "
                "sample; override sample_losses(model, inputs), or choose a method that ranks none, such as SAM"
            )
        if "labels" not in inputs:
            raise ValueError(
                f"this method ranks samples, and the inputs {', '.join(inputs)} have no labels; override "
                "sample_losses(model, inputs), or choose a method that ranks none, such as SAM"
            )
        outputs = model(**inputs)
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs.logits
        kind = getattr(getattr(self.accelerator.unwrap_model(model), "config", None), "problem_type", None)
        several = kind == "multi_label_classification"
        return losses_of(logits, inputs["labels"], shifted=self._predicts_next(model), several=several)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Create the Trainer's optimizer, and wrap it."""
        base = cast(Any, super()).create_optimizer(*args, **kwargs)
        if sharpness_aware(base) is None:
            model = args[0] if args else kwargs.get("model")
            self.optimizer = self.sharpness(base, self.model if model is None else model)
            if not isinstance(self.optimizer, Optimizer):
                raise ValueError(
                    f"sharpness(base, model) returned {type(self.optimizer).__name__}; return one of esam's "
                    "optimizers, such as esam.SAM(base, model)"
                )
        return self.optimizer

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Collect the micro-batches of a step, and count their samples."""
        batches, items = cast(Any, super()).get_batch_samples(*args, **kwargs)
        sizes = [size_of(batch) for batch in batches]
        known = [size for size in sizes if size is not None]
        self._window = sum(known) if len(known) == len(sizes) else None
        return batches, items

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Take the passes of one micro-batch; return its part of the step's mean loss."""
        optimizer = self._ours(model)
        model.train()
        inputs = cast(Any, self)._prepare_inputs(inputs)
        paired = self._pairs_rows(inputs)
        inputs = pairs_of_rows(inputs) if paired else inputs
        size = size_of(inputs)
        steps = getattr(self, "current_gradient_accumulation_steps", 1)
        share = 1 / steps if size is None or self._window is None else size / self._window

        def loss_of(samples: Any) -> Tensor:
            count = size_of(samples)
            kept = share if size is None or count is None else share * count / size
            part = {**(rows_of_pairs(samples) if paired else samples)}  # a copy: compute_loss may pop the labels
            with cast(Any, self).compute_loss_context_manager():
                if optimizer.needs_losses:
                    return self.sample_losses(model, part)
                # tokens of all micro-batches: a part's sum is divided by the part's number of them
                items = num_items_in_batch if num_items_in_batch is None or kept == 1 else num_items_in_batch * kept
                loss: Tensor = cast(Any, self).compute_loss(model, part, num_items_in_batch=items)
                return loss

        scaler = self.accelerator.scaler
        losses = optimizer.accumulate(loss_of, inputs, scaler=scaler)
        if self.accelerator.sync_gradients:
            optimizer.gradient()
        loss: Tensor = losses.mean() * share
        return loss

    def _pairs_rows(self, inputs: Mapping[str, Any]) -> bool:
        """Tell whether a batch is [chosen; rejected], as TRL's DPOTrainer has it: a sample is then a pair of rows."""
        names = [kind.__name__ for kind in type(self).__mro__]
        return "DPOTrainer" in names and not any(str(key).startswith("chosen") for key in inputs)

    def _ours(self, model: nn.Module) -> Optimizer:
        """Return our optimizer, with the model as it is wrapped now."""
        optimizer = sharpness_aware(self.optimizer)
        if optimizer is None or getattr(self, "is_deepspeed_enabled", False):
            raise ValueError(
                f"the Trainer steps by {type(self.optimizer).__name__}, which takes no second pass; leave DeepSpeed "
                "out, and let create_optimizer return what SharpnessAware made"
            )
        if self.args.n_gpu > 1:
            raise ValueError(
                f"DataParallel over {self.args.n_gpu} GPUs hides the replicas from the optimizer; start one process a "
                "GPU: torchrun --nproc_per_node=..."
            )
        if isinstance(model, DistributedDataParallel) and optimizer.model is not model:
            optimizer.model = model
        return optimizer

    def _predicts_next(self, model: nn.Module) -> bool:
        """Tell whether a token's logits are for the next one."""
        name = type(self.accelerator.unwrap_model(model)).__name__
        return bool(getattr(self, "_loss_shifts_labels", False)) or name.endswith(("ForCausalLM", "LMHeadModel"))


def pairs_of_rows(batch: Any) -> Any:
    """Return [chosen; rejected], of 2 B rows, as B pairs: shape (B, 2, ...)."""
    size = size_of(batch)

    def paired(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dim() == 0 or len(leaf) != size or size % 2:
            return leaf
        return leaf.reshape(2, size // 2, *leaf.shape[1:]).transpose(0, 1)

    return tree_map(paired, {**batch})


def rows_of_pairs(batch: Any) -> Any:
    """Return pairs as [chosen; rejected] again.

    >>> rows_of_pairs(pairs_of_rows({"x": torch.arange(6)}))
    {'x': tensor([0, 1, 2, 3, 4, 5])}
    """
    size = size_of(batch)
    return tree_map(
        lambda t: t.transpose(0, 1).flatten(0, 1) if isinstance(t, Tensor) and t.shape[:2] == (size, 2) else t,
        batch,
    )


def losses_of(logits: Tensor, labels: Tensor, *, shifted: bool = False, several: bool = False) -> Tensor:
    """Return one loss for each sample: cross-entropy, squared error, or the mean over the tokens of each sequence.

    ``shifted``: the logits of a token are for the next one, as in causal language models. ``several``: a sample may
    have several labels, each 0 or 1.

    >>> losses_of(torch.zeros(2, 3, 4), torch.tensor([[1, 2, 3], [1, 2, -100]]), shifted=True)
    tensor([1.3863, 1.3863])
    """
    if several:
        return F.binary_cross_entropy_with_logits(logits.float(), labels, reduction="none").mean(1)
    if labels.is_floating_point():
        return (logits.reshape(labels.shape) - labels).square().reshape(len(labels), -1).mean(1)
    if labels.dim() == 1:
        return F.cross_entropy(logits.float(), labels, reduction="none")
    if shifted:
        logits, labels = logits[:, :-1], labels[:, 1:]
    tokens = F.cross_entropy(logits.float().transpose(1, 2), labels, ignore_index=_IGNORED, reduction="none")
    return tokens.sum(1) / labels.ne(_IGNORED).sum(1).clamp(min=1)
