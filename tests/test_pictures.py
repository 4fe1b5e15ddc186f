"""Pictures that are odd, broken or too many, and a cache that heals."""

import pytest
import torch
from picture_makers import class_folders, own_cache, own_datasets, parquet, picture, reds, table
from PIL import Image

from esam.train.datasets import load_data
from esam.train.pictures import Decoder


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
        patch.setattr(Decoder, "decode_all", lambda *_: pytest.fail("decoded again"))
        again = load_data(folder)
    assert torch.equal(again.train[0], first.train[0])
    assert again.train[0].is_contiguous(memory_format=torch.channels_last)
    picture(25).save(folder / "cat" / "000.png")
    changed = load_data(folder)
    assert 25 in reds(changed.train[0]) + reds(changed.test[0])


def truncate(cache_file):
    cache_file.write_bytes(cache_file.read_bytes()[:-100])


@pytest.mark.parametrize("damage", [truncate, lambda file: file.write_text("{")])
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
