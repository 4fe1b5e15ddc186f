"""What are a model's forward and backward as two graphs, and what passes from one to the other?"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_flatten

Tensors = Sequence[Tensor]


@dataclass(frozen=True)
class Halves:
    """The two graphs for one batch size."""

    forward: fx.GraphModule
    """(*tensors) -> (*outputs, *saved)."""
    backward: fx.GraphModule
    """(store, *output gradients) -> one gradient, or None, for each tensor; calls ``store.take(i)`` for the i-th saved
    tensor, just before its first use."""
    outputs: list[Tensor]
    """Fake tensors: the shapes and strides of the outputs, and of the gradients that the backward takes."""
    saved: list[Tensor]
    """Fake tensors, as many as the forward saves."""
    steps: list[object]
    """What is computed from what, without sizes: equal for two batch sizes if the Python code took the same way."""


def traced_halves(function: Callable[..., Tensors], tensors: Tensors) -> Halves:
    """Trace a function of tensors, without running it, and cut the graph in two; raises whatever tracing raises."""
    from torch._functorch.aot_autograd import aot_export_joint_simple  # here: slow to import, and private

    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        joint = aot_export_joint_simple(function, tuple(tensors), trace_joint=True)
    assert isinstance(joint, fx.GraphModule)
    *nodes, result = joint.graph.nodes
    inputs = [node for node in nodes if node.op == "placeholder"]
    results: list[Any] = tree_flatten(result.args)[0]
    count = len(results) - len(tensors)  # outputs, then one gradient for each tensor
    outputs, gradients = results[:count], results[count:]
    tangents = inputs[len(tensors) :]
    if len(tangents) != count:
        raise ValueError("an output of the model needs no gradient")

    reached = _ancestors(outputs)
    forward = set(inputs[: len(tensors)])
    for node in nodes:
        if node in reached or (node.target is operator.getitem and node.args[0] in forward):
            forward.add(node)
    # views cost nothing: the backward makes them anew, so that tensors are saved, and picked from, once
    again = {node for node in nodes if node in forward and (node.op == "get_attr" or _is_view(node))}
    wanted = _ancestors(gradients, stop=forward - again)
    saved = [node for node in nodes if node in wanted and node in forward - again]
    return Halves(
        _forward_graph(joint, [n for n in nodes if n in forward], [*outputs, *saved]),
        _backward_graph(joint, [n for n in nodes if n in wanted and n not in tangents], tangents, saved, gradients),
        [node.meta["val"] for node in tangents],
        [node.meta["val"] for node in saved],
        [(node.op, str(node.target), [n.name for n in node.all_input_nodes]) for node in joint.graph.nodes],
    )


def _ancestors(ends: Iterable[fx.Node | None], stop: Iterable[fx.Node] = ()) -> set[fx.Node]:
    """Return the ends and all that they are computed from; nodes at ``stop`` are returned but not looked behind."""
    found: set[fx.Node] = set()
    walls = set(stop)
    rest = [node for node in ends if node is not None]
    while rest:
        node = rest.pop()
        if node not in found:
            found.add(node)
            rest.extend([] if node in walls else node.all_input_nodes)
    return found


def _is_view(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return _is_view(node.all_input_nodes[0])
    if node.target is torch.ops.aten._unsafe_view.default:
        return True
    schema: Any = getattr(node.target, "_schema", None)
    return schema is not None and any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def _forward_graph(joint: fx.GraphModule, nodes: list[fx.Node], results: list[fx.Node]) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in results))
    return fx.GraphModule(joint, graph)


def _backward_graph(
    joint: fx.GraphModule,
    nodes: list[fx.Node],
    tangents: list[fx.Node],
    saved: list[fx.Node],
    gradients: Sequence[fx.Node | None],
) -> fx.GraphModule:
    graph = fx.Graph()
    store = graph.placeholder("store")
    copies = {node: graph.node_copy(node) for node in tangents}
    place = {node: i for i, node in enumerate(saved)}

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:
            copies[node] = graph.call_method("take", (store, place[node]))
        return copies[node]

    for node in nodes:
        if node not in place:
            copies[node] = graph.node_copy(node, copied)
    graph.output(tuple(None if node is None else copied(node) for node in gradients))
    return fx.GraphModule(joint, graph)
