"""A self-tuning submission to AlgoPerf (MLCommons): NadamW with a sharpness-aware method of esam.

The benchmark measures the time to a target on eight tasks, so a method's price counts there as its gain does. All
settings are fixed below, as the self-tuning rules ask; METHOD is any name of ``esam.list_methods()``. In a checkout of
mlcommons/algorithmic-efficiency, with esam installed:

    torchrun --standalone --nproc_per_node=4 submission_runner.py --framework=pytorch --tuning_ruleset=self \
        --workload=imagenet_resnet --submission_path=submission.py
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from algoperf import spec

import esam

METHOD: str = "slicesam"
SETTINGS: dict[str, Any] = {"rho": 0.05}
BASE: dict[str, Any] = {"lr": 2e-3, "betas": (0.9, 0.995), "weight_decay": 0.05, "decoupled_weight_decay": True}
WARMUP, CLIP, LABEL_SMOOTHING = 0.05, 1.0, 0.1
BATCH_SIZES = {
    "criteo1tb": 262_144,
    "fastmri": 32,
    "imagenet_resnet": 1_024,
    "imagenet_vit": 1_024,
    "librispeech_conformer": 256,
    "librispeech_deepspeech": 256,
    "ogbg": 512,
    "wmt": 128,
}


def get_batch_size(workload_name: str) -> int:
    """Return the number of samples in a step, over all devices."""
    return BATCH_SIZES[workload_name]


def init_optimizer_state(
    workload: spec.Workload, model_params: Any, model_state: Any, hyperparameters: Any, rng: Any
) -> dict[str, Any]:
    """Return the optimizer, and a schedule of warm-up and cosine over the steps that the benchmark hints at."""
    warm = max(1, round(WARMUP * workload.step_hint))

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        done = min(1.0, (step - warm) / max(1, workload.step_hint - warm))
        return 0.5 * (1 + math.cos(math.pi * done))

    # a batch of molecules is one graph, which has no parts
    whole = {"loss": "whole"} if "ogbg" in type(workload).__name__.lower() else {}
    optimizer = esam.create_optimizer(METHOD, model_params, base="nadam", **BASE, **SETTINGS, **whole)
    return {"optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, factor)}


def update_params(
    workload: spec.Workload,
    current_param_container: Any,
    current_params_types: Any,
    model_state: Any,
    hyperparameters: Any,
    batch: dict[str, Any],
    loss_type: Any,
    optimizer_state: dict[str, Any],
    eval_results: list[tuple[int, float]],
    global_step: int,
    rng: Any,
    train_state: dict[str, Any] | None = None,
) -> tuple[dict[str, Any], Any, Any]:
    """Take one step: every pass of the method, clipping, the base, the schedule."""
    optimizer, model = optimizer_state["optimizer"], current_param_container
    model.train()
    smoothing = LABEL_SMOOTHING if loss_type is spec.LossType.SOFTMAX_CROSS_ENTROPY else 0.0

    def loss_of(samples: dict[str, Any]) -> torch.Tensor:
        logits, _ = workload.model_fn(  # in PyTorch the model holds its own state
            params=model,
            augmented_and_preprocessed_input_batch=samples,
            model_state=model_state,
            mode=spec.ForwardPassMode.TRAIN,
            rng=rng,
            update_batch_norm=True,
        )
        found = workload.loss_fn(
            label_batch=samples["targets"],
            logits_batch=logits,
            mask_batch=samples.get("weights"),
            label_smoothing=smoothing,
        )
        return found["summed"] / found["n_valid_examples"]

    optimizer.accumulate(loss_of, batch)
    loss = optimizer.gradient()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer_state["scheduler"].step()
    if global_step % 100 == 0 and workload.metrics_logger is not None:
        workload.metrics_logger.append_scalar_metrics({"loss": float(loss), "grad_norm": float(norm)}, global_step)
    return optimizer_state, current_param_container, model_state


def prepare_for_eval(
    workload: spec.Workload,
    current_param_container: Any,
    current_params_types: Any,
    model_state: Any,
    hyperparameters: Any,
    loss_type: Any,
    optimizer_state: dict[str, Any],
    eval_results: list[tuple[int, float]],
    global_step: int,
    rng: Any,
) -> tuple[dict[str, Any], Any, Any]:
    """Hand everything back: between steps the weights are theta."""
    return optimizer_state, current_param_container, model_state


def data_selection(
    workload: spec.Workload,
    input_queue: Iterator[dict[str, Any]],
    optimizer_state: dict[str, Any],
    current_param_container: Any,
    model_state: Any,
    hyperparameters: Any,
    global_step: int,
    rng: Any,
) -> dict[str, Any]:
    """Take the next batch."""
    return next(input_queue)
