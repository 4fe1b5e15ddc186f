"""Data by name, from Parquet and from folders; pictures that are odd or broken; and a cache that heals."""

import ast
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from picture_makers import class_folders, parquet, picture, reds, table
from PIL import Image

from esam.train import Config
from esam.train import datasets as module
from esam.train.config import did_you_mean
from esam.train.datasets import table_listing
from esam.train.pictures import Decoder

LOCAL_COPIES = os.environ.get("ESAM_DATA")


def load_data(source, **settings):
    return module.load_data(Config(data=str(source), **settings))


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """A cache of the test's own, and no local copies."""
    monkeypatch.setenv("ESAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ESAM_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def datasets(monkeypatch, tmp_path):
    """The datasets package, with a cache of the test's own."""
    package = pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "huggingface"))
    return package


def test_packages_that_are_slow_to_import_are_imported_only_where_they_are_used():
    for path in (Path(__file__).parents[1] / "esam" / "train").rglob("*.py"):
        at_once = [node for node in ast.parse(path.read_text()).body if isinstance(node, (ast.Import, ast.ImportFrom))]
        named = {alias.name.split(".")[0] for node in at_once if isinstance(node, ast.Import) for alias in node.names}
        absolute = [node for node in at_once if isinstance(node, ast.ImportFrom) and not node.level]
        named |= {(node.module or "").split(".")[0] for node in absolute}
        assert not named & {"datasets", "sklearn", "timm"}, path


def test_digits_come_scaled_to_bytes_and_a_fifth_is_held_out():
    from sklearn.datasets import load_digits

    data = load_data("digits")
    assert (len(data.train[1]), len(data.test[1]), data.shape) == (1438, 359, (1, 8, 8))
    assert data.classes == tuple("0123456789")
    everything = torch.cat([data.train[0], data.test[0]]).flatten(1)
    originals = torch.from_numpy(np.rint(load_digits().images * 255 / 16)).to(torch.uint8).flatten(1)
    assert sorted(everything.tolist()) == sorted(originals.tolist())
    shares = data.test[1].bincount() / (data.test[1].bincount() + data.train[1].bincount())
    assert (shares - 0.2).abs().max() < 0.01
    assert torch.equal(data.test[0], load_data("digits", seed=5).test[0])
    assert load_data("digits", size=16).shape == (1, 16, 16)


def test_columns_are_found_by_their_type_the_finest_label_wins_and_unknown_ones_are_refused(datasets, tmp_path):
    folder = parquet(tmp_path / "set", train=table(datasets, 12), test=table(datasets, 5))
    data = load_data(folder)
    assert data.classes == ("a", "b", "c", "d")
    assert data.train[1].tolist() == [0, 1, 2, 3] * 3
    assert data.train[0].shape == (12, 3, 8, 8)
    assert reds(data.train[0]) == list(range(12))
    assert reds(data.test[0]) == list(range(5))
    assert load_data(folder, label_column="coarse").train[1].tolist() == [0, 1] * 6
    with pytest.raises(ValueError, match=r"one of 'fine', 'coarse', got 'course'. Did you mean 'coarse'\?"):
        load_data(folder, label_column="course")
    with pytest.raises(ValueError, match="image_column must be one of 'photo'"):
        load_data(folder, image_column="fine")


def test_validation_stands_in_for_a_test_split_that_lacks_its_labels(datasets, tmp_path):
    splits = {
        "train": table(datasets, 8),
        "validation": table(datasets, 3),
        "test": table(datasets, 4, labels=[-1] * 4),
    }
    data = load_data(parquet(tmp_path / "set", **splits))
    assert len(data.test[1]) == 3


def test_without_a_test_split_a_fifth_of_training_is_held_out(datasets, tmp_path):
    data = load_data(parquet(tmp_path / "set", train=table(datasets, 20)))
    assert (len(data.train[1]), len(data.test[1])) == (16, 4)
    assert sorted(reds(data.train[0]) + reds(data.test[0])) == list(range(20))
    assert sorted(data.test[1].tolist()) == [0, 1, 2, 3]


def test_a_hub_name_finds_the_local_copy_named_like_its_last_part(datasets, tmp_path, monkeypatch):
    parquet(tmp_path / "copies" / "cifar10", train=table(datasets, 8), test=table(datasets, 2))
    monkeypatch.setenv("ESAM_DATA", str(tmp_path / "copies"))
    data = load_data("uoft-cs/cifar10")
    assert len(data.train[1]) == 8


def test_a_set_of_the_hub_is_decoded_once_for_each_of_its_versions(datasets, monkeypatch):
    versions = [datasets.DatasetDict(train=table(datasets, count), test=table(datasets, 4)) for count in (8, 9)]
    monkeypatch.setattr(datasets, "load_dataset", lambda name: versions[0])
    first = load_data("someone/set")
    with monkeypatch.context() as patch:
        patch.setattr(module, "table_listing", lambda *_: pytest.fail("decoded again"))
        assert torch.equal(load_data("someone/set").train[0], first.train[0])
    monkeypatch.setattr(datasets, "load_dataset", lambda name: versions[1])
    assert len(load_data("someone/set").train[1]) == 9


def test_an_unknown_name_is_answered_with_the_nearest_and_the_ways_to_give_one(datasets):
    assert did_you_mean("uoft-cs/cifar10", ["digits", "uoft-cs/cifar10"]) == ""  # whatever is wrong, not the name
    with pytest.raises(ValueError, match="Did you mean 'uoft-cs/cifar10'"):
        load_data("cifar10")
    with pytest.raises(ValueError, match=r"Did you mean 'uoft-cs/cifar10"):
        load_data("uoft-cs/cifar11")


def test_class_folders_give_classes_in_alphabetical_order_and_the_files_of_each_sorted(tmp_path):
    in_order = [
        "Zebra/0.png",
        "cat/0.png",
        "cat/10.PNG",
        "cat/9.png",
        "cat/in/0.png",  # folders inside a class belong to it, whatever they are called
        "cat-2/0.png",  # as text, "cat-2/" stands before "cat/"
        "cat-2/in/0.png",
        "cat-2/in-b/0.png",
        "train station/0.png",  # a class, whatever its name looks like
    ]
    for number, name in reversed(list(enumerate(in_order))):
        file = tmp_path / "set" / "train" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(file)
    for stray in (".hidden.png", "notes.txt", "0.png.bak"):
        (file.parent / stray).write_text("no picture")
    class_folders(tmp_path / "set" / "val", {"cat-2": 1, "cat": 2})
    data = load_data(tmp_path / "set")
    assert data.classes == ("Zebra", "cat", "cat-2", "train station")
    assert reds(data.train[0]) == list(range(9))
    assert data.train[1].tolist() == [0, 1, 1, 1, 1, 2, 2, 2, 3]
    assert data.test[1].tolist() == [1, 1, 2]


@pytest.mark.parametrize(
    ("names", "sizes"),
    [
        (("Train", "Test"), (4, 2)),
        (("training", "testing"), (4, 2)),
        (("TRAIN", "Val"), (4, 2)),
        (("train",), (3, 1)),
        (("train", "tst"), "tst holds class folders, and there is no test beside it"),
        (("trian", "test"), "test holds class folders, and there is no train beside it"),
    ],
)
def test_folders_of_a_division_are_known_in_any_case_and_half_a_division_is_refused(tmp_path, names, sizes):
    for number, name in enumerate(names):
        class_folders(tmp_path / "set" / name, {"cat": 2 - number, "dog": 2 - number})
    if isinstance(sizes, str):
        with pytest.raises(ValueError, match=sizes):
            load_data(tmp_path / "set")
        return
    data = load_data(tmp_path / "set")
    assert (data.classes, (len(data.train[1]), len(data.test[1]))) == (("cat", "dog"), sizes)


def test_a_class_may_be_a_link_to_a_folder_and_a_loop_multiplies_no_picture(tmp_path):
    folder = class_folders(tmp_path / "set", {"cat": 5, "dog": 4})
    (folder / "wolf").symlink_to(class_folders(tmp_path / "elsewhere", {"wolf": 5}) / "wolf")
    (folder / "cat" / "again").symlink_to(folder / "cat")
    data = load_data(folder)
    assert (data.train[1].bincount() + data.test[1].bincount()).tolist() == [5, 4, 5]
    assert data.test[1].bincount().tolist() == [1, 1, 1]  # a flat folder is divided for you


def test_noise_and_subset_touch_training_only():
    clean, noisy = load_data("digits", train_size=500), load_data("digits", train_size=500, label_noise=0.2)
    assert torch.equal(clean.train[0], noisy.train[0])
    assert (clean.train[1] != noisy.train[1]).sum() == 100
    assert torch.equal(clean.test[1], noisy.test[1])
    assert clean.train[1].bincount().tolist() == [50] * 10


@pytest.mark.skipif(LOCAL_COPIES is None, reason="ESAM_DATA names no folder with cifar10 and cifar100")
def test_cifar_has_the_mean_deviation_and_classes_that_everybody_quotes(datasets, monkeypatch):
    monkeypatch.setenv("ESAM_DATA", LOCAL_COPIES)
    data = load_data("uoft-cs/cifar10")
    assert data.test[1].bincount().tolist() == [1_000] * 10
    assert data.classes[:3] == ("airplane", "automobile", "bird")
    assert data.transform.mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=1e-4)
    assert data.transform.std == pytest.approx((0.2470, 0.2435, 0.2616), abs=1e-4)
    for column, count in ((None, 100), ("coarse_label", 20)):
        splits = datasets.load_dataset(str(Path(LOCAL_COPIES) / "cifar100"))
        found = table_listing("cifar100", splits, Config(label_column=column))
        assert len(found.classes) == count
        assert found.train[1].bincount().tolist() == [50_000 // count] * count


# Pictures, decoded and cached ----------------------------------------------------------------------------------------


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
    damage(next(cache.rglob("*.pt")))
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
