"""What does the graph of a first pass hold? Looked at when only some of its weights are differentiated."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node


@dataclass(frozen=True)
class Graph:
    """The leaves that losses depend on, and the GroupNorms on the way."""

    leaves: frozenset[int]
    """By ``id``."""
    group_norms: tuple[Node, ...]

    def inputs_to_add(self, weights: list[Tensor]) -> list[GradientEdge]:
        """Return what must be differentiated besides these weights: the inputs of the GroupNorms that hold some.

        On the CPU and in channels_last, the backward of GroupNorm crashes the process (torch 2.13) when the gradient of
        its weight or bias is wanted but that of its input is not.
        """
        wanted = {id(w) for w in weights}
        edges: list[GradientEdge] = []
        for node in self.group_norms:
            (source, output), *own = node.next_functions
            if source is not None and any(id(getattr(fn, "variable", None)) in wanted for fn, _ in own):
                edges.append(GradientEdge(source, output))
        return edges


def graph_of(losses: Tensor) -> Graph:
    """Walk the graph behind some losses."""
    leaves: set[int] = set()
    group_norms: list[Node] = []
    seen: set[Node | None] = {None}
    rest = [losses.grad_fn]
    while rest:
        node = rest.pop()
        if node in seen or node is None:
            continue
        seen.add(node)
        rest.extend(fn for fn, _ in node.next_functions)
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves.add(id(variable))
        elif node.name().startswith("NativeGroupNormBackward"):
            group_norms.append(node)
    return Graph(frozenset(leaves), tuple(group_norms))
