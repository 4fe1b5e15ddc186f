"""Which faults and limits of torch's autograd do we step around, or refuse?"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node


class GraphFaults:
    """Knows, from the first graph it sees, what the first passes of a model must mind."""

    def __init__(self) -> None:
        self._group_norm: bool | None = None
        self.others_may_rest = False
        """Whether weights without a part in a pass may lose ``requires_grad`` meanwhile: not before a graph was seen,
        not with GroupNorm (the crash below), not with a compiled graph (another one would be compiled each time)."""

    def inputs_to_add(self, losses: Tensor, weights: list[Tensor]) -> list[GradientEdge]:
        """Return what must be differentiated besides the weights: the inputs of the GroupNorms that hold them.

        On the CPU and in channels_last, the backward of GroupNorm crashes the process (torch 2.13) when the gradient of
        its weight or bias is wanted but that of its input is not.
        """
        if self._group_norm is None:
            nodes = list(_nodes(losses))
            _refuse_reentrant_checkpoints(nodes)
            self._group_norm = any(map(_is_group_norm, nodes))
            self.others_may_rest = not self._group_norm and not any(map(_is_compiled, nodes))
        if not self._group_norm:
            return []
        wanted = {id(w) for w in weights}
        edges: list[GradientEdge] = []
        for node in filter(_is_group_norm, _nodes(losses)):
            (source, output), *own = node.next_functions
            if source is not None and any(id(getattr(fn, "variable", None)) in wanted for fn, _ in own):
                edges.append(GradientEdge(source, output))
        return edges


def _nodes(losses: Tensor) -> Iterator[Node]:
    seen: set[Node] = set()
    rest = [losses.grad_fn]
    while rest:
        node = rest.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            rest.extend(fn for fn, _ in node.next_functions)


def _is_group_norm(node: Node) -> bool:
    return node.name().startswith("NativeGroupNormBackward")


def _is_compiled(node: Node) -> bool:
    return node.name().startswith("CompiledFunction")


def _refuse_reentrant_checkpoints(nodes: list[Node]) -> None:
    if any(node.name() == "CheckpointFunctionBackward" for node in nodes):
        raise ValueError(
            "the model uses reentrant checkpoints, and the first pass cannot see the layers inside; use "
            "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
        )
