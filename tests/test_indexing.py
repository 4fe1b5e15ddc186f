"""Which samples of which batch does ``take`` return, and what does it refuse?"""

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from esam import SAM, SliceSAM, take

KEEP = torch.tensor([0, 2])
Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Record:
    x: torch.Tensor
    name: str = "a"


class Plain:
    def __init__(self, x):
        self.x, self.epoch = x, 7


class Encoding(UserDict):
    """As transformers' BatchEncoding: a UserDict with something beside its data."""

    extra = None


def rows(n, *shape):
    return torch.arange(n).reshape(n, *[1] * len(shape)).expand(n, *shape).clone()


@pytest.mark.parametrize(
    ("batch", "read"),
    [
        (rows(4, 3), lambda t: t),
        ((rows(4, 3), rows(4)), lambda t: t[1]),
        ([rows(4, 3), rows(4)], lambda t: t[0]),
        ([rows(4, 2, 2), rows(4, 2)], lambda t: t[1]),
        (OrderedDict(x=rows(4, 2)), lambda t: t["x"]),
        (Encoding({"x": rows(4)}), lambda t: t["x"]),
        (Pair(rows(4), rows(4, 5)), lambda t: t.y),
        (Record(rows(4)), lambda t: t.x),
        (Plain(rows(4)), lambda t: t.x),
        (np.arange(4), torch.as_tensor),
        ({"deep": [{"x": rows(4)}, None]}, lambda t: t["deep"][0]["x"]),
        ([rows(12, 3)[:n] for n in (5, 7, 9, 12)], lambda t: torch.tensor([{5: 0, 9: 2}[len(s)] for s in t])),
        (([rows(12, 3)] * 4, [0, 1, 2, 3]), lambda t: torch.tensor(t[1])),
        (([rows(12, 3) + i for i in range(4)], torch.arange(4)), lambda t: torch.stack([s[0, 0] for s in t[0]])),
    ],
)
def test_the_samples_are_taken_from_whatever_holds_them(batch, read):
    found = read(take(batch, KEEP))
    assert torch.equal(found.reshape(2, -1)[:, 0].long(), KEEP)
    assert take(batch, slice(None)) is batch
    assert type(take(batch, KEEP)) is type(batch)


def test_strings_are_taken_where_they_are_as_many_as_the_samples_and_numbers_stay():
    found = take({"x": rows(4), "names": list("abcd"), "classes": ["p", "q"], "n": 3}, KEEP)
    assert torch.equal(found.pop("x"), KEEP) and found == {"names": ["a", "c"], "classes": ["p", "q"], "n": 3}
    encoding = Encoding({"x": rows(4)})
    encoding.extra = "kept"
    assert take(encoding, KEEP).extra == "kept"


UNKNOWN = {
    "equal tensors, no other evidence": [torch.zeros(3, 5, 5)] * 8,
    "samples or columns": ([torch.zeros(4, 2)] * 4, torch.zeros(4)),
    "dicts of images": [{"x": rows(3, 5, 5) + i, "y": i} for i in range(4)],
    "rows differ": {"x": rows(3), "y": rows(4)},
    "nothing": "text",
}


@pytest.mark.parametrize("batch", UNKNOWN.values(), ids=UNKNOWN)
def test_what_cannot_be_told_is_refused(batch):
    with pytest.raises(ValueError, match=r"index it yourself|samples or columns"):
        take(batch, KEEP)


def test_jagged_tensors_are_refused_and_sparse_ones_are_taken():
    sparse = torch.eye(4).to_sparse()
    assert torch.equal(take(sparse, KEEP).to_dense(), torch.eye(4)[KEEP])
    jagged = torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(5, 3)], layout=torch.jagged)
    model = nn.Linear(3, 1)
    optimizer = SliceSAM(torch.optim.SGD(model.parameters(), lr=0.1), model, share=0.5)
    with pytest.raises(ValueError, match="nested"):
        optimizer.step(lambda t: model(t.values()).mean(), jagged)


def test_time_first_batches_are_taken_along_their_own_dimension():
    assert take(rows(4, 3).T, KEEP, dim=1).shape == (3, 2)
    model = nn.Linear(3, 1).double()
    optimizer = SliceSAM(torch.optim.SGD(model.parameters(), lr=0.1), model, share=0.25, seed=0)
    shapes = []

    def loss_of(x, y, state):
        shapes.append((*x.shape[:2], len(y), len(state)))
        return model(x).squeeze(2).mean(0) - y

    optimizer.step(loss_of, torch.randn(5, 8, 3).double(), torch.randn(8).double(), torch.zeros(9), dim=(1, 0, None))
    assert shapes == [(5, 8, 8, 9), (5, 2, 2, 9), (5, 6, 6, 9), (5, 2, 2, 9)]
    with pytest.raises(ValueError, match="dim"):
        optimizer.step(loss_of, torch.randn(5, 8, 3).double(), torch.randn(8).double(), dim=(1,))


def test_a_batch_that_cannot_be_cut_is_whole_for_methods_that_do_not_cut():
    model = nn.Linear(2, 1)
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), model)
    loss = optimizer.step(lambda nodes, edges: model(nodes).mean() + edges.sum() * 0, torch.ones(3, 2), torch.ones(7))
    assert loss.isfinite()
