"""Small pictures, tables and folders of them for the tests of data; imported first, keeps datasets off the network."""

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}

from PIL import Image


def picture(number, size=(8, 8), mode="RGB"):
    """A picture of one colour that tells its number: red is 10 * number."""
    return Image.new(mode, size, (10 * number, 0, 255) if mode == "RGB" else 10 * number)


def table(datasets, count, *, labels=None, missing=()):
    """Pictures 0, 1, 2, ... with a fine label of four classes and a coarse one of two."""
    features = datasets.Features(
        {
            "coarse": datasets.ClassLabel(names=["few", "many"]),
            "photo": datasets.Image(),
            "fine": datasets.ClassLabel(names=["a", "b", "c", "d"]),
        }
    )
    rows = {
        "coarse": [number % 2 for number in range(count)],
        "photo": [None if number in missing else picture(number) for number in range(count)],
        "fine": labels or [number % 4 for number in range(count)],
    }
    return datasets.Dataset.from_dict(rows, features=features)


def parquet(folder, **tables):
    """Write tables in the hub's layout."""
    (folder / "data").mkdir(parents=True)
    for split, rows in tables.items():
        rows.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return folder


def class_folders(folder, counts, ending="png", size=(8, 8)):
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            picture(number, size).save(folder / name / f"{number:03}.{ending}")
    return folder


def reds(images):
    return (images[:, 0, 0, 0] // 10).tolist()
