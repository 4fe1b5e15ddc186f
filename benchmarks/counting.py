"""What does a block of code exchange between ranks? Counted below everything: what reaches torch's c10d."""

from collections import Counter

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

KINDS = {
    "allreduce_": "sum",
    "allreduce_coalesced_": "sum",
    "_allgather_base_": "gather",
    "allgather_into_tensor_coalesced_": "gather",
    "allgather_": "gather",
    "_reduce_scatter_base_": "scatter",
    "reduce_scatter_tensor_coalesced_": "scatter",
    "broadcast_": "broadcast",
}


class Counting(TorchDispatchMode):
    """Counts, inside its block, the exchanges of each kind and the bytes that this rank gave to them."""

    def __init__(self):
        super().__init__()
        self.calls, self.bytes, self.sizes = Counter(), Counter(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d" and (kind := KINDS.get(func._schema.name.split("::")[1])):
            sent = tree_leaves(args[1] if kind in ("gather", "scatter") else args[0])
            size = sum(tensor.numel() * tensor.element_size() for tensor in sent if isinstance(tensor, Tensor))
            self.calls[kind] += 1
            self.bytes[kind] += size
            self.sizes.append((kind, size))
        return func(*args, **(kwargs or {}))
