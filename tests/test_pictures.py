"""Pictures that are odd or broken, a cache that heals, and streams that give the batches memory would give."""

import numpy as np
import pytest
import torch
from picture_makers import class_folders, own_cache, own_datasets, parquet, picture, reds, table
from PIL import Image

from esam.train.batches import Batches, Normalise
from esam.train.datasets import load_data
from esam.train.pictures import StreamedPictures

# From Python 3.12 on, forking workers beside native threads warns; torch's DataLoader forks all the same.
streams = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    return own_cache(monkeypatch, tmp_path)


@pytest.fixture
def datasets(monkeypatch, tmp_path):
    return own_datasets(monkeypatch, tmp_path)


def test_differing_sizes_ask_for_size_and_with_it_the_middle_is_kept(tmp_path):
    folder = class_folders(tmp_path / "set", {"cat": 5})
    wide = Image.new("RGB", (40, 20), (0, 255, 0))
    wide.paste((255, 0, 0), (10, 0, 30, 20))
    wide.save(folder / "cat" / "wide.png")
    with pytest.raises(ValueError, match=r"wide\.png is 40x20 .* size="):
        load_data(folder)
    data = load_data(folder, size=10)
    everything = torch.cat([data.train[0], data.test[0]])
    assert everything.shape == (6, 3, 10, 10)
    red = torch.tensor([255, 0, 0], dtype=torch.uint8).view(3, 1, 1)
    inside = everything[:, :, :, 1:-1]  # the outermost columns mix with what was cut off, as resizing first would
    assert any(torch.equal(image, red.expand(3, 10, 8)) for image in inside)


def test_a_photo_taken_sideways_is_set_upright(tmp_path):
    folder = class_folders(tmp_path / "set", {"cat": 5}, size=(4, 6))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by a quarter to see it upright
    picture(1, (6, 4)).save(folder / "cat" / "sideways.png", exif=exif)
    assert load_data(folder).shape == (3, 6, 4)


def test_grey_pictures_have_one_channel_and_a_coloured_one_among_them_is_named(tmp_path):
    for number in range(40):
        (tmp_path / "set" / "cat").mkdir(parents=True, exist_ok=True)
        picture(number % 20, mode="L").save(tmp_path / "set" / "cat" / f"{number:02}.png")
    assert load_data(tmp_path / "set").shape == (1, 8, 8)
    picture(1).save(tmp_path / "set" / "cat" / "01.png")
    with pytest.raises(ValueError, match=r"01\.png: it is coloured"):
        load_data(tmp_path / "set")


def test_a_row_without_a_picture_is_named(datasets, tmp_path):
    folder = parquet(tmp_path / "set", train=table(datasets, 40, missing={17}), test=table(datasets, 4))
    with pytest.raises(ValueError, match=r"row 17 of .*set/train, column 'photo': the row holds no picture"):
        load_data(folder)


def test_a_second_load_reads_the_cache_and_a_changed_picture_does_not(tmp_path, monkeypatch):
    folder = class_folders(tmp_path / "set", {"cat": 10})
    first = load_data(folder)
    with monkeypatch.context() as patch:
        patch.setattr(StreamedPictures, "in_memory", lambda self: pytest.fail("decoded again"))
        again = load_data(folder)
    assert torch.equal(again.train[0], first.train[0])
    assert again.train[0].is_contiguous(memory_format=torch.channels_last)
    picture(25).save(folder / "cat" / "000.png")
    changed = load_data(folder)
    assert 25 in reds(changed.train[0]) + reds(changed.test[0])


def truncate(cache_file):
    cache_file.write_bytes(cache_file.read_bytes()[:-100])


def change_one_bit(cache_file):
    content = bytearray(cache_file.read_bytes())
    content[-5] ^= 1
    cache_file.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, change_one_bit, lambda file: file.write_text("{")])
def test_a_damaged_cache_is_noticed_and_healed(tmp_path, cache, damage):
    folder = class_folders(tmp_path / "set", {"cat": 20})
    first = load_data(folder)
    damage(next(cache.rglob("*.safetensors")))
    with pytest.warns(UserWarning, match="is damaged"):
        healed = load_data(folder)
    for data in (healed, load_data(folder)):  # the second of these without a warning
        assert torch.equal(data.train[0], first.train[0])
        assert torch.equal(data.test[1], first.test[1])
    assert not [file for file in cache.rglob("*") if file.name.startswith(".")]


def test_a_cache_that_cannot_be_written_is_only_a_warning(tmp_path, cache):
    cache.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="point ESAM_CACHE at"):
        assert len(load_data(class_folders(tmp_path / "set", {"cat": 10})).train[1]) == 8


@streams
def test_a_set_beyond_the_memory_limit_is_streamed_with_the_same_batches(tmp_path):
    class_folders(tmp_path / "set" / "train", {"cat": 13, "dog": 12}, "jpg", (40, 30))
    class_folders(tmp_path / "set" / "test", {"cat": 3, "dog": 4}, "jpg", (30, 40))
    options = {"size": 16, "train_size": 20, "label_noise": 0.1}
    whole, streamed = (load_data(tmp_path / "set", memory_limit=limit, **options) for limit in (2**30, 1_000))
    assert isinstance(whole.train, tuple)
    assert isinstance(streamed.train, StreamedPictures)
    assert streamed.transform.mean == whole.transform.mean and streamed.transform.std == whole.transform.std
    state = torch.get_rng_state()
    for name, workers in (("train", 2), ("test", 0)):
        memory, stream = (
            Batches(getattr(data, name), 6, transform=data.transform, augment="cutout", seed=2, workers=workers)
            for data in (whole, streamed)
        )
        for one, other in (
            (memory.epoch(4), stream.epoch(4)),
            (memory, stream),
        ):
            for (x, y), (u, v) in zip(one, other, strict=True):
                assert torch.equal(x, u)
                assert torch.equal(y, v)
    assert torch.equal(torch.get_rng_state(), state)


@streams
def test_a_table_is_streamed_too(datasets, tmp_path):
    folder = parquet(tmp_path / "set", train=table(datasets, 12), test=table(datasets, 5))
    data = load_data(folder, memory_limit=100)
    batches = Batches(data.test, 3, transform=Normalise((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)), workers=1)
    shades = torch.cat([x[:, 0, 0, 0] for x, _ in batches])
    torch.testing.assert_close(shades * 25.5, torch.arange(5.0))


@streams
def test_a_worker_that_meets_a_broken_picture_names_it(tmp_path):
    folder = class_folders(tmp_path / "set", {"cat": 40}, "jpg")
    data = load_data(folder, memory_limit=100)
    (folder / "cat" / "017.jpg").write_bytes(b"broken since")
    with pytest.raises(ValueError, match=r"cat/017\.jpg"):
        list(Batches(data.train, 40, transform=data.transform, workers=1))


@streams
def test_streamed_inception_crops_are_taken_of_the_whole_picture(tmp_path):
    """One bright column at the left edge of wide pictures: the central square that a thumbnail keeps has none of it."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(8):
            pixels = np.zeros((40, 120, 3), dtype=np.uint8)
            pixels[:, :20] = 255
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    data = load_data(tmp_path, size=16, memory_limit=0)
    assert isinstance(data.train, StreamedPictures) and data.train.in_memory()[0].max() == 0
    seen = {}
    for workers in (0, 2):
        batches = Batches(
            data.train, 5, transform=Normalise((0.0,) * 3, (1.0,) * 3), augment="inception", seed=1, workers=workers
        )
        seen[workers] = torch.cat([x for x, _ in batches.epoch(1)])
    assert seen[0].shape[1:] == (3, 16, 16) and torch.equal(seen[0], seen[2])
    bright = seen[0].amax((1, 2, 3)) > 0.9
    assert bright.any() and not bright.all()  # a box of 8 to 100 % of the area reaches the edge now and then
    again = torch.cat([x for x, _ in batches.epoch(2)])
    assert not torch.equal(again, seen[0])
