"""How is one pass over a batch run: forward, backward, and the sum over its pieces?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from .ascent import tensor_norms
from .batch import Piece
from .ranking import HeadWatch
from .workarounds import GraphFaults

_T = TypeVar("_T")
Gradients = dict[int, Tensor]
"""The gradients that a pass reached, by the tensors' places among the optimizer's parameters."""


def first_pass(
    pieces: list[Piece],
    weights: list[Tensor],
    index: list[int],
    scaler: GradScaler | None,
    model: nn.Module,
    faults: GraphFaults,
    watch: HeadWatch | None = None,
) -> tuple[Tensor, Gradients]:
    """Return each sample's loss at theta and the gradient of their mean with respect to these weights only.

    Nothing is computed or saved for other weights, backward stops at the earliest of these, and ``.grad`` is not
    touched.
    """
    losses: list[Tensor] = []
    gradients: Gradients = {}
    scale = 1.0 if scaler is None else scaler.get_scale()
    others = _others(model, weights) if faults.others_may_rest else []
    with unsynchronised(model), _at_rest(others), nullcontext() if watch is None else watch.watching():
        for piece in pieces:
            piece_losses = piece.first_losses(graph_expected=not others)
            if not piece_losses.requires_grad:  # it uses none of these weights
                losses.append(piece_losses)
                continue
            loss = _scaled(piece_losses.mean(), scaler)
            inputs: list[Any] = [*weights, *faults.inputs_to_add(piece_losses, weights)]
            if watch is not None:
                inputs.append(watch.take_output(len(piece_losses)))
            found = torch.autograd.grad(loss, inputs, allow_unused=True)
            if watch is not None:
                watch.give_gradient(found[-1] / scale, len(piece_losses))
            losses.append(piece_losses.detach())
            reached = {
                n: g.to_dense() if g.is_sparse else g for n, g in zip(index, found, strict=False) if g is not None
            }
            gradients = added(gradients, reached, len(losses[-1]) / len(losses[0]))
    # the size of the batch is known only now
    factor = len(losses[0]) / sum(map(len, losses)) / scale
    return torch.cat(losses), added({}, gradients, factor)


def _others(model: nn.Module, weights: list[Tensor]) -> list[Tensor]:
    """Return the model's trainable weights that are not among these."""
    wanted = set(map(id, weights))
    return [p for p in model.parameters() if p.requires_grad and id(p) not in wanted]


@contextmanager
def _at_rest(weights: list[Tensor]) -> Iterator[None]:
    """Keep these weights out of the graph, so that the forward pass saves nothing for their gradients."""
    try:
        for w in weights:
            w.requires_grad_(False)
        yield
    finally:
        for w in weights:
            w.requires_grad_(True)


def plain_pass(pieces: list[Piece], parameters: list[Tensor], scaler: GradScaler | None, model: nn.Module) -> Tensor:
    """Return each sample's loss at theta and leave the gradient of their mean in ``.grad``."""
    losses: list[Tensor] = []
    for piece, last in marking_the_last(pieces):
        with nullcontext() if last else unsynchronised(model):
            piece_losses = piece.first_losses()
            losses.append(piece_losses.detach())
            share = len(losses[-1]) / len(losses[0])
            gradients = [p.grad for p in parameters if p.grad is not None]
            if last and gradients:
                # the size of the batch is known only now; ranks differ in it, so scale before they exchange gradients
                whole = len(losses[0]) / sum(map(len, losses))
                torch._foreach_mul_(gradients, whole)
                share *= whole
            _backward(piece_losses, share, scaler)
    return torch.cat(losses)


def second_pass(
    keeps: list[tuple[Piece, Tensor | None]], share: float, scaler: GradScaler | None, model: nn.Module, last: bool
) -> None:
    """Add ``share`` times the mean gradient of the kept samples to ``.grad``; ranks are synchronised on the last."""
    kept = sum(piece.count(keep) for piece, keep in keeps)
    for (piece, keep), last_piece in marking_the_last(keeps):
        with nullcontext() if last and last_piece else unsynchronised(model):
            _backward(piece.losses_again(keep), share * piece.count(keep) / kept, scaler)


def overflowed(gradients: Gradients) -> bool:
    """Tell whether any gradient holds an inf or a NaN."""
    return not all(map(math.isfinite, tensor_norms(list(gradients.values()))))


def added(totals: Gradients, gradients: Gradients, factor: float) -> Gradients:
    """Return totals + factor * gradients. Nothing in place: gradients may share memory with one another."""
    if factor != 1 and gradients:
        gradients = dict(zip(gradients, torch._foreach_mul(list(gradients.values()), factor), strict=True))
    if not totals:
        return gradients
    return {**totals, **{n: totals[n] + g if n in totals else g for n, g in gradients.items()}}


def mean_over_ranks(gradients: Gradients, parameters: list[Tensor], model: nn.Module) -> Gradients:
    """Return the gradients averaged over the ranks of a DistributedDataParallel model; a missing one counts as zero."""
    group = getattr(model, "process_group", None)
    if group is None:
        return gradients
    places = [n for n, p in enumerate(parameters) if p.requires_grad]
    whole = [gradients.get(n, torch.zeros_like(parameters[n])) for n in places]
    flat = torch.cat([g.flatten() for g in whole])
    torch.distributed.all_reduce(flat, group=group)
    parts = torch.split(flat / torch.distributed.get_world_size(group), [g.numel() for g in whole])
    return {n: part.view_as(parameters[n]) for n, part in zip(places, parts, strict=True)}


def unsynchronised(model: nn.Module) -> AbstractContextManager[Any]:
    """Keep gradients on this rank under DistributedDataParallel; it counts forward passes too, so they stand inside."""
    no_sync = getattr(model, "no_sync", None)
    return nullcontext() if no_sync is None else no_sync()


def marking_the_last(items: Sequence[_T]) -> Iterator[tuple[_T, bool]]:
    """Yield each item and whether it is the last."""
    return ((item, i == len(items) - 1) for i, item in enumerate(items))


def _scaled(loss: Tensor, scaler: GradScaler | None) -> Tensor:
    return loss if scaler is None else scaler.scale(loss)


def _backward(losses: Tensor, share: float, scaler: GradScaler | None) -> None:
    loss = losses.mean() if share == 1 else losses.mean() * share
    _scaled(loss, scaler).backward()  # type: ignore[no-untyped-call]
