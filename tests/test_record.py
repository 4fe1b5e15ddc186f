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

import pytest

from esam.train.record import RecordWriter, _commit, environment, read_record, read_records
from experiments.packs import finished_runs, packed_records, read_pack, write_pack

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
    record = read_record(path)
    assert (record.name, record.method, record.seed, record.config) == ("ESAM", "esam", 0, {"rho": 0.05})
    assert record.run["colour"] == "blue" and record.run["format"] == 1 and record.run["started"]
    assert record.epochs == ({"kind": "epoch", "epoch": 1, "train_loss": 0.25, "temperature": 61},)
    assert record.end is None and not record.finished and record.last_epoch == 1


@pytest.mark.parametrize("status", ["finished", "diverged"])
def test_the_last_line_tells_how_a_run_ended(path, status):
    RecordWriter.create(path, RUN).end(status=status, test_accuracy={"last": 0.9, "best": 0.91}, remark="ok")
    record = read_record(path)
    assert record.end["test_accuracy"] == {"last": 0.9, "best": 0.91} and record.end["remark"] == "ok"
    assert (record.finished, record.diverged) == (status == "finished", status == "diverged")


def test_numbers_that_are_not_finite_are_written_as_null_at_any_depth_and_read_as_none(path):
    writer = RecordWriter.create(path, {**RUN, "config": {"deep": [math.inf, {"er": math.nan}]}})
    writer.epoch(epoch=1, train_loss=math.nan, test_loss=-math.inf)
    assert not re.search("nan|inf", path.read_text(), re.IGNORECASE)
    with path.open("a") as file:  # by another program: an overflow, and what is no JSON
        file.write('{"kind": "epoch", "epoch": 2, "train_loss": 1e999, "test_loss": NaN}\n')
    record = read_record(path)
    assert record.config == {"deep": [None, {"er": None}]}
    assert all(line["train_loss"] is None and line["test_loss"] is None for line in record.epochs)


@pytest.mark.parametrize("cut", [1, 2, 20, 40])
def test_a_kill_while_the_last_line_was_written_loses_at_most_that_line(path, cut):
    write_epochs(RecordWriter.create(path, RUN), 3)
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_record(path).last_epoch == (3 if cut == 1 else 2)  # cut 1 takes the line break only
    write_epochs(RecordWriter.resume(path, epoch=2), 4, first=3)
    assert [line["epoch"] for line in read_record(path).epochs] == [1, 2, 3, 4]


@pytest.mark.parametrize("content", ["", "\n\n", '{"kind": "ru', "[1, 2]", "\x00" * 30, "[" * 100_000])
def test_a_file_that_is_no_record_is_refused_at_line_one(path, content):
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(ValueError, match="line 1: "):
        read_record(path)


FIRST = json.dumps({"kind": "run", "format": 1, **RUN})
END = '{"kind": "end", "status": "finished", "test_accuracy": {}}'


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (['{"kind": "epoch", "epoch": 1}'], "line 1: a record has one line of kind"),
        ([FIRST.replace('"method": "esam", ', "")], '"method" must be of type str, got None'),
        ([FIRST.replace('"format": 1', '"format": 2')], "newer version of esam (format 2, this one reads up to 1)"),
        ([FIRST, FIRST], "line 2: a record has one line of kind"),
        ([FIRST, '{"kind": "epo', END], "line 2: no JSON"),
        ([FIRST, '{"kind": "epoch", "epoch": 1, "train_loss": "low"}'], '"train_loss" must be a number'),
        ([FIRST, '{"kind": "epoch", "epoch": "one"}'], '"epoch" must be of type int'),
        ([FIRST, '{"kind": "epoch", "epoch": 0}'], "epochs must rise"),
        ([FIRST, END.replace("{}", "0.9")], '"test_accuracy" must be of type dict'),
        ([FIRST, END.replace("{}", '{"last": "high"}')], '"last" must be a number'),
        ([FIRST, '{"kind": "mood"}'], 'expected an object of kind "run", "epoch" or "end"'),
        ([FIRST, '{"kind": "run", "format": "1"}'], '"format" must be of type int'),
        ([FIRST, END, '{"kind": "epoch", "epoch": 1}'], 'line 3: a line after the "end" line'),
    ],
)
def test_a_line_that_makes_no_sense_is_refused_even_at_the_end(path, lines, complaint):
    path.parent.mkdir()
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}, line .*{re.escape(complaint.split(': ')[-1])}"):
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
    with pytest.raises(ValueError, match="cannot go on after epoch 5"):  # a checkpoint that is ahead of the record
        RecordWriter.resume(path, epoch=5)


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


def test_each_line_is_on_the_disk_when_the_call_returns(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    RecordWriter.create(path, RUN).epoch(epoch=1)
    assert synced[-1] == path.stat().st_size and len(synced) == 2


def test_records_are_found_below_the_folder_sorted_by_name_and_seed(tmp_path):
    for name, seed in [("SGD", 10), ("SGD", 2), ("ESAM", 1)]:
        RecordWriter.create(tmp_path / "a" / f"{name}{seed}" / "record.jsonl", {**RUN, "name": name, "seed": seed})
    (tmp_path / "a" / "notes.jsonl").write_text("not ours")
    assert [(r.name, r.seed) for r in read_records(tmp_path)] == [("ESAM", 1), ("SGD", 2), ("SGD", 10)]
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        read_records(tmp_path / "nowhere")


def test_the_environment_names_the_hardware_and_never_the_host_the_user_or_a_path():
    found = environment()
    assert list(found) == ["python", "torch", "esam", "commit", "device", "hardware", "threads", "platform"]
    assert found["hardware"] and found["threads"] >= 1 and found["python"] == platform.python_version()
    for private in (socket.gethostname(), getpass.getuser(), os.path.expanduser("~"), os.getcwd()):
        assert private not in json.dumps(found).split('"') and not (len(private) > 4 and private in json.dumps(found))


def test_the_commit_is_that_of_the_checkout_and_never_of_a_repository_around_it(tmp_path):
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
    write_pack(tmp_path / "all.jsonl.xz", finished_runs(tmp_path / "runs"))
    packed = packed_records(tmp_path / "all.jsonl.xz")
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
    for content in (b"no xz", lzma.compress(b'{"name": 1}\n')):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is no pack .* restore the file"):
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
    assert sum(path.is_file() for path in (ROOT / "results").rglob("*")) < 100  # results are few files
