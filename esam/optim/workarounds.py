"""Which faults of torch do we step around?"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node


def has_group_norm(model: nn.Module) -> bool:
    """Tell whether ``group_norm_inputs`` has anything to look for in this model."""
    return any(isinstance(layer, nn.GroupNorm) for layer in model.modules())


def group_norm_inputs(losses: Tensor, weights: Iterable[Tensor]) -> list[GradientEdge]:
    """Return the inputs of the GroupNorms that hold these weights, to be differentiated too.

    On the CPU and in channels_last, the backward of GroupNorm crashes the process (torch 2.13) when the gradient of its
    weight or bias is wanted but that of its input is not.
    """
    wanted = {id(w) for w in weights}
    edges: list[GradientEdge] = []
    seen: set[Node] = set()
    rest = [losses.grad_fn]
    while rest:
        node = rest.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().startswith("NativeGroupNormBackward"):
            (source, output), *own = node.next_functions
            if source is not None and any(id(getattr(fn, "variable", None)) in wanted for fn, _ in own):
                edges.append(GradientEdge(source, output))
        rest.extend(fn for fn, _ in node.next_functions)
    return edges
