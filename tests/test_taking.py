"""take(batch, keep): the same samples of everything that a batch may be made of."""

import collections
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from esam import take
from esam.optim.taking import size_of

KEEP = torch.tensor([3, 0])
Pair = collections.namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Graph:
    nodes: torch.Tensor
    name: str = "g"
    masks: dict = field(default_factory=dict)


class Object:
    def __init__(self):
        self.x, self.note = torch.arange(4), "kept"


class Encoding(collections.UserDict):
    """As a tokenizer returns it: a dict with something beside."""

    def __init__(self, data=None, beside=None):
        super().__init__(data)
        self.beside = beside


def test_every_tensor_of_a_nested_batch_is_indexed_and_the_rest_stays():
    batch = {"x": torch.arange(4), "more": [torch.arange(8).view(4, 2), {"y": torch.arange(4) * 10}], "epoch": 3}
    found = take(batch, KEEP)
    assert found["x"].tolist() == [3, 0]
    assert found["more"][0].tolist() == [[6, 7], [0, 1]]
    assert found["more"][1]["y"].tolist() == [30, 0]
    assert found["epoch"] == 3
    assert batch["x"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "batch, expected",
    [
        (Pair(torch.arange(4), torch.arange(4) + 4), Pair(torch.tensor([3, 0]), torch.tensor([7, 4]))),
        ((torch.arange(4), ["a", "b", "c", "d"]), (torch.tensor([3, 0]), ["d", "a"])),
        ([torch.arange(4), (5, 6, 7, 8)], [torch.tensor([3, 0]), (8, 5)]),
        ([torch.arange(4), torch.tensor(2.0), None], [torch.tensor([3, 0]), torch.tensor(2.0), None]),
    ],
    ids=["named tuple", "strings", "numbers", "scalars"],
)
def test_lists_and_tuples_keep_their_type(batch, expected):
    found = take(batch, KEEP)
    assert type(found) is type(batch)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_objects_are_copied_and_the_callers_own_stays_whole():
    graph, plain = Graph(torch.arange(4), masks={"train": torch.tensor([True, False, True, False])}), Object()
    found, other = take(graph, KEEP), take(plain, KEEP)
    assert found.nodes.tolist() == [3, 0] and found.masks["train"].tolist() == [False, True] and found.name == "g"
    assert other.x.tolist() == [3, 0] and other.note == "kept"
    assert len(graph.nodes) == len(plain.x) == len(graph.masks["train"]) == 4


def test_a_mapping_of_its_own_type_keeps_what_it_has_beside_its_entries():
    batch = Encoding({"ids": torch.arange(4)}, beside="vocabulary")
    found = take(batch, KEEP)
    assert type(found) is Encoding and found.beside == "vocabulary"
    assert found["ids"].tolist() == [3, 0] and batch["ids"].tolist() == [0, 1, 2, 3]


def test_arrays_and_slices_are_taken_too():
    batch = (torch.arange(4), np.arange(4) * 2, list("abcd"))
    x, a, names = take(batch, slice(1, 3))
    assert x.tolist() == [1, 2] and a.tolist() == [2, 4] and names == ["b", "c"]
    assert take(batch, KEEP)[1].tolist() == [6, 0]


def test_everything_is_the_batch_itself():
    batch = {"x": torch.arange(4)}
    assert take(batch, slice(None)) is batch
    assert take("anything", slice(None)) == "anything"


@pytest.mark.parametrize(
    "batch, held", [({"x": torch.zeros(4), "w": torch.zeros(3)}, r"tensors of \[3, 4\] rows"), ("text", "no tensor")]
)
def test_a_batch_of_unknown_size_is_refused_with_a_remedy(batch, held):
    assert size_of(batch) is None
    with pytest.raises(ValueError, match=held + ".*index it yourself"):
        take(batch, KEEP)


def test_rows_are_asked_for_on_the_device_that_holds_them():
    batch = torch.zeros(4, 2, device="meta")
    assert take(batch, KEEP).shape == (2, 2)
