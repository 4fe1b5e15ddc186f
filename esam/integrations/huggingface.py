"""How does Hugging Face's Trainer take a sharpness-aware step? By a Trainer whose step runs the passes of a method."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

try:
    from transformers import Trainer
except ImportError as error:
    raise ImportError(
        "esam.integrations.huggingface needs transformers: pip install torch-esam[huggingface]"
    ) from error

from esam.optim import RECOMMENDED, SharpnessAware, method_of
from esam.optim.indexing import size_of

from .common import sharpness_aware

_IGNORED = -100
"""The label of a token that is not predicted, as everywhere in transformers."""
_PAIRING = {"DPOTrainer", "RewardTrainer"}
"""The trainers of TRL whose batch is [chosen; rejected]: a sample is a pair of rows there."""


class SharpnessAwareTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose steps are a method's; precision, accumulation, clipping, logs and checkpoints stay its own.

    With a Trainer of another package, put this class last: ``class MySFTTrainer(SFTTrainer, SharpnessAwareTrainer)``.
    The pairs of TRL's DPOTrainer and RewardTrainer stay together.

    ``compute_loss`` runs once for each pass, on the samples of that pass. A ranking that reads single losses (ESAM's by
    default) calls ``sample_losses`` in its place.

    Args:
        args, kwargs: Of ``transformers.Trainer``. Where ``optimizer_cls_and_kwargs`` makes one of esam's optimizers
            (``esam.factory.OptimizerFactory``), that is the method.
        method: A name of ``esam.list_methods()``, or a class as ``package.module:Class``; may be set in the class.
        settings: Of the method, by name; may be set in the class.
    """

    method: str = RECOMMENDED
    settings: Mapping[str, Any] = {}
    _window: int | None = None
    """How many samples all micro-batches of this step have; None: not known."""

    def __init__(
        self, *args: Any, method: str | None = None, settings: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self.method = self.method if method is None else method
        self.settings = self.settings if settings is None else settings
        method_of(self.method)  # a name that is none is refused before the model is moved
        super().__init__(*args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        after = cls.__mro__[cls.__mro__.index(SharpnessAwareTrainer) + 1]
        if after is not Trainer:
            raise ValueError(
                f"the training_step of {after.__name__} would never run; write class {cls.__name__}({after.__name__}, "
                "SharpnessAwareTrainer)"
            )

    def sharpness(self, base: torch.optim.Optimizer, model: nn.Module) -> SharpnessAware:
        """Wrap the Trainer's optimizer; override it where a name and settings do not say enough."""
        return method_of(self.method)(base, model, **self.settings)

    def sample_losses(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """Return one loss for each sample; by default for classification, regression and, a sequence each, tokens.

        Override it where the loss is your own.
        """
        unknown = None
        if self.label_smoother is not None or self.compute_loss_func is not None:
            unknown = "a loss with label smoothing or of your own is not known sample by sample"
        elif "labels" not in inputs:
            unknown = f"the inputs {', '.join(inputs)} have no labels"
        if unknown is not None:
            raise ValueError(
                f"this method ranks samples, and {unknown}; override sample_losses(model, inputs), or choose a method "
                "that ranks none, such as SAM"
            )
        outputs = model(**inputs)
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs.logits
        net = self.accelerator.unwrap_model(model)
        several = getattr(getattr(net, "config", None), "problem_type", None) == "multi_label_classification"
        causal = type(net).__name__.endswith(("ForCausalLM", "LMHeadModel"))
        shifted = causal or bool(getattr(self, "_loss_shifts_labels", False))
        return losses_of(logits, inputs["labels"], shifted=shifted, several=several)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Create the Trainer's optimizer, and wrap it."""
        base = super().create_optimizer(*args, **kwargs)
        if sharpness_aware(base) is None:
            model = args[0] if args else kwargs.get("model")
            self.optimizer = self.sharpness(base, self.model if model is None else model)
        return self.optimizer

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Collect the micro-batches of a step, and count their samples."""
        batches, items = super().get_batch_samples(*args, **kwargs)
        sizes = [self._count(batch) for batch in batches]
        self._window = None if None in sizes else sum(size for size in sizes if size is not None)
        return batches, items

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Take the passes of one micro-batch; return its part of the step's mean loss."""
        optimizer = self._checked_optimizer(model)
        model.train()
        rows = self._prepare_inputs(inputs)
        size = self._count(rows)
        share = 1 / getattr(self, "current_gradient_accumulation_steps", 1)
        if size is not None and self._window is not None:
            share = size / self._window

        def loss_of(part: Any) -> Tensor:
            count = self._count(part)
            kept = share if size is None or count is None else share * count / size
            part = {**part}  # a copy: compute_loss may pop the labels
            with self.compute_loss_context_manager(), nullcontext() if optimizer.first_pass else _uncounted(self):
                if optimizer.needs_losses:
                    return self.sample_losses(model, part)
                # tokens of all micro-batches: a part's sum is divided by the part's number of them
                items = num_items_in_batch if num_items_in_batch is None or kept == 1 else num_items_in_batch * kept
                loss: Tensor = self.compute_loss(model, part, num_items_in_batch=items)
                return loss

        def loss_of_pairs(keep: slice | Tensor) -> Tensor:
            return loss_of(_pairs(rows, keep))

        scaler = self.accelerator.scaler
        if self._is_paired(rows):
            losses = optimizer.accumulate(loss_of_pairs, batch_size=size, scaler=scaler)
        else:
            losses = optimizer.accumulate(loss_of, rows, scaler=scaler)
        if self.accelerator.sync_gradients:
            optimizer.gradient()
        loss: Tensor = losses.mean() * share
        return loss

    def _is_paired(self, batch: Any) -> bool:
        """Tell whether a batch is [chosen; rejected]."""
        return bool({kind.__name__ for kind in type(self).__mro__} & _PAIRING) and "input_ids" in batch

    def _count(self, batch: Any) -> int | None:
        return len(batch["input_ids"]) // 2 if self._is_paired(batch) else size_of(batch)

    def _checked_optimizer(self, model: nn.Module) -> SharpnessAware:
        """Return our optimizer, with the model as it is wrapped now."""
        optimizer = sharpness_aware(self.optimizer)
        if optimizer is None or self.is_deepspeed_enabled:
            raise ValueError(
                f"the Trainer steps by {type(self.optimizer).__name__}, which takes no second pass; let "
                "sharpness(base, model) return one of esam's optimizers, and leave DeepSpeed out"
            )
        if self.args.n_gpu > 1:
            raise ValueError(
                f"DataParallel over {self.args.n_gpu} GPUs hides the replicas from the optimizer; start one process a "
                "GPU: torchrun --nproc_per_node=..."
            )
        if isinstance(model, DistributedDataParallel) and optimizer.model is not model:
            optimizer.model = model
        return optimizer


@contextmanager
def _uncounted(trainer: Trainer) -> Iterator[None]:
    """Leave what TRL counts as it was: the samples of a later pass have been counted in the first."""
    counts = {name: vars(trainer)[name] for name in ("_metrics", "_total_train_tokens") if name in vars(trainer)}
    before = copy.deepcopy(counts)
    try:
        yield
    finally:
        vars(trainer).update(before)


def _pairs(batch: Mapping[str, Any], keep: slice | Tensor) -> dict[str, Any]:
    """Return some pairs of [chosen; rejected], both rows of each; what has one row a pair is taken along.

    >>> _pairs({"input_ids": torch.arange(6), "margin": torch.ones(3)}, torch.tensor([0, 2]))
    {'input_ids': tensor([0, 2, 3, 5]), 'margin': tensor([1., 1.])}
    """
    count = len(batch["input_ids"]) // 2
    pairs = torch.arange(count)[keep]
    indices = {count: pairs, 2 * count: torch.cat([pairs, pairs + count])}

    def taken(value: Any) -> Any:
        has_rows = isinstance(value, Tensor) and value.dim() > 0 and len(value) in indices
        return value[indices[len(value)].to(value.device)] if has_rows else value

    return {name: taken(value) for name, value in batch.items()}


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
