"""Many records in one file: what is written is what is read, and the same records are the same bytes."""

import json
import lzma
from pathlib import Path

import pack_records
import pytest

from esam.train.record import RecordWriter, read_pack, read_record, read_records, write_pack

ROOT = Path(__file__).parent.parent


def write_record(folder, seed, epochs=25):
    writer = RecordWriter.create(
        folder / "record.jsonl",
        {"name": "SAM", "method": "sam", "seed": seed, "config": {"method": "sam", "settings": {}, "seed": seed}},
    )
    for epoch in range(1, epochs + 1):
        writer.epoch(epoch=epoch, train_loss=1 / epoch)
    writer.end(test_accuracy={"last": 0.5, "best": 0.5})


def test_records_of_a_pack_are_those_of_the_folder_that_was_packed(tmp_path):
    for seed in (0, 1):
        write_record(tmp_path / "runs" / f"sam-{seed}", seed)
    write_pack(tmp_path / "all.jsonl.xz", pack_records.finished_runs(tmp_path / "runs"))
    packed = read_records(tmp_path / "all.jsonl.xz")
    assert [record.seed for record in packed] == [0, 1]
    alone = read_record(tmp_path / "runs" / "sam-1" / "record.jsonl")
    assert packed[1].run == alone.run and packed[1].end == alone.end
    assert [line["epoch"] for line in packed[1].epochs] == [1, 10, 11, 20, 21]


def test_the_same_files_in_another_order_are_the_same_bytes(tmp_path):
    files = {"a/record.jsonl": [{"x": 0.1}], "b.jsonl": [{"y": None}, {"z": "é"}]}
    write_pack(tmp_path / "one.jsonl.xz", files)
    write_pack(tmp_path / "two.jsonl.xz", dict(reversed(files.items())))
    assert (tmp_path / "one.jsonl.xz").read_bytes() == (tmp_path / "two.jsonl.xz").read_bytes()
    assert read_pack(tmp_path / "one.jsonl.xz") == files


def test_what_is_no_pack_is_refused_with_a_remedy(tmp_path):
    path = tmp_path / "x.jsonl.xz"
    path.write_bytes(b"no xz")
    with pytest.raises(ValueError, match="is no pack .* restore the file"):
        read_pack(path)
    path.write_bytes(lzma.compress(b'{"name": 1}\n'))
    with pytest.raises(ValueError, match="is no pack"):
        read_pack(path)
    with pytest.raises(ValueError, match="ends with .jsonl.xz"):
        write_pack(tmp_path / "x.zip", {})
    with pytest.raises(ValueError):
        write_pack(tmp_path / "y.jsonl.xz", {"a": [{"x": float("nan")}]})
    assert not (tmp_path / "y.jsonl.xz").exists()


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*.jsonl.xz")), ids=lambda path: path.name)
def test_the_committed_packs_can_be_read_and_name_no_machine(path):
    for name, lines in read_pack(path).items():
        text = json.dumps(lines)
        assert lines and "/home/" not in text and "/work/" not in text, name


def test_results_are_few_files():
    assert sum(path.is_file() for path in (ROOT / "results").rglob("*")) < 100
