"""Does a record survive what happens to files: kills, full disks, newer versions, numbers that JSON lacks?"""

import errno
import getpass
import json
import lzma
import math
import os
import platform
import re
import socket
import subprocess
from pathlib import Path

import pack_records
import pytest

from esam.train.record import (
    RecordWriter,
    environment,
    read_pack,
    read_record,
    read_records,
    write_pack,
)

ROOT = Path(__file__).parent.parent

RUN = {"name": "ESAM", "method": "esam", "seed": 0, "config": {"rho": 0.05}, "environment": {"torch": "2.13"}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "esam-0" / "record.jsonl"


def write_epochs(writer, last, first=1):
    for epoch in range(first, last + 1):
        writer.epoch(epoch=epoch, lr=0.1, train_loss=1 / epoch, test_accuracy=0.5 + epoch / 100, seconds=2.0 * epoch)


def test_what_was_written_is_read_back_with_the_extra_keys(path):
    writer = RecordWriter.create(path, {**RUN, "colour": "blue"})
    writer.epoch(epoch=1, train_loss=0.25, temperature=61)
    writer.end(test_accuracy={"last": 0.9, "best": 0.91}, remark="ok")
    record = read_record(path)
    assert (record.name, record.method, record.seed, record.config) == ("ESAM", "esam", 0, {"rho": 0.05})
    assert record.run["colour"] == "blue" and record.run["format"] == 1 and record.run["started"]
    assert record.epochs == ({"kind": "epoch", "epoch": 1, "train_loss": 0.25, "temperature": 61},)
    assert record.end["test_accuracy"] == {"last": 0.9, "best": 0.91} and record.end["remark"] == "ok"
    assert record.finished and record.last_epoch == 1


def test_a_run_that_goes_on_or_ended_otherwise_is_not_finished(path):
    writer = RecordWriter.create(path, RUN)
    assert read_record(path).end is None and not read_record(path).finished
    writer.end(status="diverged")
    assert read_record(path).diverged and not read_record(path).finished


def test_numbers_that_are_not_finite_become_null_at_any_depth(path):
    writer = RecordWriter.create(path, {**RUN, "config": {"deep": [math.inf, {"er": math.nan}]}})
    writer.epoch(epoch=1, train_loss=math.nan, test_loss=-math.inf)
    text = path.read_text()
    assert not re.search("nan|inf", text, re.IGNORECASE)
    record = read_record(path)
    assert record.config == {"deep": [None, {"er": None}]}
    assert record.epochs[0]["train_loss"] is None and record.epochs[0]["test_loss"] is None


def test_numbers_that_overflow_or_are_no_json_are_read_as_none(path):
    RecordWriter.create(path, RUN)
    with path.open("a") as file:
        file.write('{"kind": "epoch", "epoch": 1, "train_loss": 1e999, "test_loss": NaN}\n')
    assert read_record(path).epochs[0]["train_loss"] is None and read_record(path).epochs[0]["test_loss"] is None


@pytest.mark.parametrize("cut", [1, 2, 20, 40])
def test_a_kill_while_the_last_line_was_written_loses_at_most_that_line(path, cut):
    write_epochs(RecordWriter.create(path, RUN), 3)
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_record(path).last_epoch == (3 if cut == 1 else 2)  # cut 1 takes the line break only
    write_epochs(RecordWriter.resume(path, epoch=2), 4, first=3)
    assert [line["epoch"] for line in read_record(path).epochs] == [1, 2, 3, 4]


def test_a_broken_line_in_the_middle_is_refused_with_path_and_number(path):
    write_epochs(RecordWriter.create(path, RUN), 3)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1] + lines[2][:20] + "\n" + lines[3])
    with pytest.raises(ValueError, match=re.escape(f"{path}, line 3: no JSON")):
        read_record(path)


def test_a_record_without_its_first_line_is_refused(path):
    write_epochs(RecordWriter.create(path, RUN), 2)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(ValueError, match="line 1: a record has one line of kind"):
        read_record(path)


@pytest.mark.parametrize("content", ["", "\n\n", '{"kind": "ru', "[1, 2]", "\x00" * 30, "[" * 100_000])
def test_a_file_that_is_no_record_is_refused_at_line_one(path, content):
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(ValueError, match="line 1: "):
        read_record(path)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"kind": "epoch", "epoch": 1, "train_loss": "low"}', '"train_loss" must be a number'),
        ('{"kind": "epoch", "epoch": "one"}', '"epoch" must be of type int'),
        ('{"kind": "epoch", "epoch": 0}', "epochs must rise"),
        ('{"kind": "end", "status": "finished", "test_accuracy": 0.9}', '"test_accuracy" must be of type dict'),
        ('{"kind": "end", "status": "finished", "test_accuracy": {"last": true}}', '"last" must be a number'),
        ('{"kind": "mood"}', 'expected an object of kind "run", "epoch" or "end"'),
        ('{"kind": "run", "format": "1"}', '"format" must be of type int'),
    ],
)
def test_a_line_that_makes_no_sense_is_refused_even_at_the_end(path, line, complaint):
    RecordWriter.create(path, RUN)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match="line 2: .*" + re.escape(complaint)):
        read_record(path)


def test_resuming_drops_the_epochs_after_the_checkpoint_and_the_end(path):
    writer = RecordWriter.create(path, {**RUN, "extra": [1]})
    write_epochs(writer, 5)
    writer.end(test_accuracy={"last": 0.5, "best": 0.5})
    before = path.read_bytes().splitlines(keepends=True)
    writer = RecordWriter.resume(path, epoch=3)
    assert path.read_bytes() == b"".join(before[:4])
    writer.epoch(epoch=4, train_loss=9.0)
    assert read_record(path).epochs[-1]["train_loss"] == 9.0 and read_record(path).end is None


def test_a_new_record_is_whole_and_never_overwrites_one(path):
    with pytest.raises(ValueError, match='"method" must be of type str, got None'):
        RecordWriter.create(path, {key: value for key, value in RUN.items() if key != "method"})
    assert not path.exists()
    RecordWriter.create(path, RUN)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="already holds a record"):
        RecordWriter.create(path, {**RUN, "seed": 1})
    assert path.read_bytes() == before


def test_epochs_must_rise_and_nothing_follows_the_end(path):
    writer = RecordWriter.create(path, RUN)
    write_epochs(writer, 3)
    with pytest.raises(ValueError, match="epochs must rise"):
        writer.epoch(epoch=3)
    with pytest.raises(ValueError, match="cannot go on after epoch 4"):  # a checkpoint that is ahead of the record
        RecordWriter.resume(path, epoch=4)
    writer.end()
    with pytest.raises(ValueError, match='a line after the "end" line'):
        writer.epoch(epoch=4)
    assert read_record(path).last_epoch == 3


def full_disk(descriptor, data, write=os.write):
    write(descriptor, data[: len(data) // 2])
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("action", ["append", "resume"])
def test_a_full_disk_is_named_and_leaves_the_record_as_it_was(path, monkeypatch, action):
    writer = RecordWriter.create(path, RUN)
    write_epochs(writer, 3)
    before = path.read_bytes()
    monkeypatch.setattr(os, "write", full_disk)
    with pytest.raises(OSError, match="the disk is full; the old file is kept") as caught:
        writer.epoch(epoch=4) if action == "append" else RecordWriter.resume(path, epoch=1)
    monkeypatch.undo()
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(path)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]
    writer.epoch(epoch=4)
    assert read_record(path).last_epoch == 4


def test_each_line_is_on_the_disk_when_the_call_returns(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    writer = RecordWriter.create(path, RUN)
    writer.epoch(epoch=1)
    assert synced[-1] == path.stat().st_size and len(synced) == 2


def test_records_are_found_below_the_folder_sorted_by_name_and_seed(tmp_path):
    for name, seed in [("SGD", 10), ("SGD", 2), ("ESAM", 1)]:
        RecordWriter.create(tmp_path / "a" / f"{name}{seed}" / "record.jsonl", {**RUN, "name": name, "seed": seed})
    (tmp_path / "a" / "notes.jsonl").write_text("not ours")
    assert [(r.name, r.seed) for r in read_records(tmp_path)] == [("ESAM", 1), ("SGD", 2), ("SGD", 10)]
    assert read_records(tmp_path / "a" / "SGD2")[0].seed == 2
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        read_records(tmp_path / "nowhere")


def test_the_environment_names_the_hardware_and_never_the_host_the_user_or_a_path():
    found = environment()
    assert list(found) == ["python", "torch", "esam", "commit", "device", "hardware", "threads", "platform"]
    assert found["hardware"] and found["threads"] >= 1 and found["python"] == platform.python_version()
    for private in (socket.gethostname(), getpass.getuser(), os.path.expanduser("~"), os.getcwd()):
        assert private not in json.dumps(found).split('"') and not (len(private) > 4 and private in json.dumps(found))


def test_the_commit_is_that_of_the_checkout_and_never_of_a_repository_around_it(tmp_path):
    from esam.train.record import _commit

    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    (tmp_path / "site-packages").mkdir()
    (tmp_path / "code.py").write_text("1")
    git("init")
    assert _commit(tmp_path) is None  # no commit yet
    git("add", "code.py")
    git("commit", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert _commit(tmp_path) == head and _commit(tmp_path / "site-packages") is None
    (tmp_path / "code.py").write_text("2")
    assert _commit(tmp_path) == f"{head}-dirty"


# Many in one file -----------------------------------------------------------------------------------------------------


def test_records_of_a_pack_are_those_of_the_folder_that_was_packed(tmp_path):
    for seed in (0, 1):
        path = tmp_path / "runs" / f"sam-{seed}" / "record.jsonl"
        writer = RecordWriter.create(path, {**RUN, "seed": seed, "config": {"method": "sam", "settings": {}}})
        write_epochs(writer, 25)
        writer.end(test_accuracy={"last": 0.5, "best": 0.5})
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
