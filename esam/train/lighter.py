"""How does a model train in less time or memory than it would as it stands? Compiled, or with blocks run again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from esam.optim.buffers import kept_buffers

from .config import Config
from .spread import blocks_of


def lighter(model: nn.Module, config: Config) -> nn.Module:
    """Return the model, changed in place as the configuration asks for; its weights keep their names."""
    if config.checkpointing:
        recompute_blocks(model)
    if config.compile:
        parts = blocks_of(model) if config.strategy == "fsdp" else []
        for part in parts or [model]:  # shards are gathered block by block, outside of the graphs
            part.compile()
    return model


def recompute_blocks(model: nn.Module) -> None:
    """Let each block of a model keep only its input, and run again when backward comes to it.

    Running again moves no buffer: running statistics move once a step, as without it.
    """
    blocks = blocks_of(model)
    if not blocks:
        raise ValueError(
            "checkpointing runs blocks again, and the model has no layers that repeat in an nn.Sequential or "
            "nn.ModuleList; leave it out"
        )
    for block in blocks:
        block.forward = functools.partial(_run_again, block, block.forward)


def _run_again(block: nn.Module, forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs, **named)
    contexts = functools.partial(_contexts, block)
    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts, **named)


def _contexts(block: nn.Module) -> tuple[Any, Any]:
    return nullcontext(), kept_buffers(block)
