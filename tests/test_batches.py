"""Batches that any run can repeat, labels made wrong to the number asked for, and subsets that stay balanced."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from esam.train import batches as batches_module
from esam.train.batches import Batches, Normalise
from esam.train.datasets import channel_statistics
from esam.train.samples import balanced_subset, flip_labels, held_out

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)


@pytest.fixture
def split():
    """Twenty random pictures; label i for picture i, so that a batch's labels tell which pictures it holds."""
    images = torch.randint(0, 256, (20, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return (images, torch.arange(20))


def batches_of(split, batch_size=6, **options):
    return Batches(split, batch_size, transform=Normalise(MEAN, STD), **{"augment": "basic", "seed": 7} | options)


def same(one, other):
    pairs = list(zip(one, other, strict=True))
    return bool(pairs) and all(torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in pairs)


@pytest.mark.parametrize("augment", ["basic", "inception"])
def test_two_runs_with_one_seed_see_the_same_batches_and_the_global_generator_is_neither_read_nor_moved(split, augment):
    torch.manual_seed(1)
    first = list(batches_of(split, augment=augment).epoch(3))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = batches_of(split, augment=augment)
    list(second.epoch(0)), list(second)
    assert same(first, second.epoch(3))
    assert torch.equal(torch.get_rng_state(), state)


def test_epochs_and_seeds_differ_in_order_and_they_and_batches_in_augmentation(split):
    orders = [batches_of(split, seed=seed).order(epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order.tolist()) for order in orders}) == 4
    alike = (split[0][:1].expand(20, -1, -1, -1), torch.zeros(20, dtype=torch.int64))
    drawn = [x for seed in (0, 1) for epoch in (0, 1) for x, _ in batches_of(alike, 10, seed=seed).epoch(epoch)]
    assert len({tuple(x.flatten().tolist()) for x in drawn}) == 8


def test_an_epoch_holds_every_picture_once_in_the_order_it_says(split):
    batches = batches_of(split)
    labels = torch.cat([y for _, y in batches.epoch(5)])
    assert torch.equal(labels, batches.order(5))
    assert torch.equal(labels.sort().values, torch.arange(20))
    assert [len(y) for _, y in batches.epoch(5)] == [6, 6, 6, 2]
    assert (len(batches), len(batches_of(split, 5))) == (4, 4)


def test_evaluation_keeps_the_order_and_only_normalises(split):
    x = torch.cat([x for x, _ in batches_of(split)])
    mean, std = (torch.tensor(values, dtype=torch.float64).view(1, 3, 1, 1) for values in (MEAN, STD))
    # Four roundings to 24 bits (scale, product, shift, sum) of numbers below 8: at most 4 * 8 * 2**-25 in all.
    exact = (split[0].double() / 255 - mean) / std
    torch.testing.assert_close(x.double(), exact, atol=2.0**-20, rtol=0)
    assert torch.equal(torch.cat([y for _, y in batches_of(split)]), split[1])


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_the_memory_format_changes_the_layout_and_no_value(split, memory_format):
    batches = list(batches_of(split, memory_format=memory_format).epoch(0))
    assert all(x.is_contiguous(memory_format=memory_format) and x.dtype == torch.float32 for x, _ in batches)
    assert same(batches, batches_of(split).epoch(0))


def test_statistics_are_those_of_the_definition_and_a_flat_channel_divides_by_one(split):
    mean, std = channel_statistics(split[0])
    values = split[0].double() / 255
    torch.testing.assert_close(torch.tensor(mean, dtype=torch.float64), values.mean((0, 2, 3)))
    torch.testing.assert_close(torch.tensor(std, dtype=torch.float64), values.std((0, 2, 3), unbiased=False))
    assert channel_statistics(torch.full((2, 1, 4, 4), 51, dtype=torch.uint8)) == (pytest.approx((0.2,)), (1.0,))


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), max_size=60),
    share=st.floats(0, 1),
    extra=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_exactly_the_share_of_labels_is_wrong_and_none_keeps_its_class(labels, share, extra, seed):
    clean = torch.tensor(labels, dtype=torch.int64)
    noisy = flip_labels(clean, share, classes=5 + extra, seed=seed)
    assert (noisy != clean).sum() == round(share * len(labels))
    assert len(labels) == 0 or 0 <= noisy.min() <= noisy.max() < 5 + extra
    assert torch.equal(noisy, flip_labels(clean, share, classes=5 + extra, seed=seed))


def test_a_wrong_label_is_each_other_class_equally_often():
    noisy = flip_labels(torch.full((40_000,), 2), 1.0, classes=5, seed=0)
    counts = noisy.bincount(minlength=5)
    assert counts[2] == 0
    assert (counts[counts > 0] - 10_000).abs().max() < 5 * 87


@settings(max_examples=60, deadline=None)
@given(labels=st.lists(st.integers(0, 5), min_size=1, max_size=60), seed=st.integers(0, 99), data=st.data())
def test_a_subset_is_as_balanced_as_the_classes_allow_and_grows_around_smaller_ones(labels, seed, data):
    size = data.draw(st.integers(1, len(labels)))
    clean = torch.tensor(labels)
    chosen = balanced_subset(clean, size, seed=seed)
    assert len(chosen.unique()) == size
    taken, offered = clean[chosen].bincount(minlength=6), clean.bincount(minlength=6)
    not_exhausted = taken[taken < offered]
    assert len(not_exhausted) == 0 or taken.max() <= not_exhausted.min() + 1
    if size > 1:
        assert set(balanced_subset(clean, size - 1, seed=seed).tolist()) < set(chosen.tolist())


def test_a_fifth_of_each_class_is_held_out_and_a_class_of_one_stays_in_training():
    labels = torch.cat([torch.zeros(50), torch.ones(100), torch.full((1,), 2)]).long()
    kept, held = held_out(labels)
    assert labels[held].bincount(minlength=3).tolist() == [10, 20, 0]
    assert torch.equal(torch.cat([kept, held]).sort().values, torch.arange(151))


class Numbers(Dataset):
    """Tells, with each sample, which process read it."""

    def __len__(self):
        return 20

    def __getitem__(self, row):
        return torch.tensor([float(row), float(os.getpid())]), row


# From Python 3.12 on, forking workers beside native threads warns; torch's DataLoader forks all the same.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_dataset_of_ones_own_is_read_by_worker_processes_in_the_same_order():
    here, there = (Batches(Numbers(), 8, seed=3, workers=workers) for workers in (0, 2))
    ours, theirs = list(here.epoch(1)), list(there.epoch(1))
    assert [y.tolist() for _, y in ours] == [y.tolist() for _, y in theirs]
    assert {float(x[0, 1]) for x, _ in ours} == {float(os.getpid())}
    readers = {float(pid) for x, _ in theirs for pid in x[:, 1]}
    assert float(os.getpid()) not in readers and len(readers) == 2


def test_inputs_that_are_large_stay_where_they_are_and_batches_move(split, monkeypatch):
    monkeypatch.setattr(batches_module, "MOST_ON_DEVICE", 100)
    (x, y), *_ = Batches(split, 6, device="meta").epoch(1)
    assert (x.device.type, y.device.type) == ("meta", "cpu")  # the loop moves the targets
