"""Do a record's figures reach TensorBoard, Weights & Biases and MLflow, by their libraries, without a network?"""

import json
import socket
import struct
import time

import pytest

from esam.cli import main
from esam.train import Config
from esam.train.record import read_record
from esam.train.trackers import mlflow

WORDS = "train --data digits --model mlp --train-size 100 --batch-size 50 --epochs 2 --threads 1 --quiet"
TINY = WORDS.split()
NAMES = ("train_loss", "test_accuracy", "lr", "forwards")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """No tracker of somebody else's, and no way out of this machine."""
    for name in ("WANDB_MODE", "WANDB_DIR", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    connect = socket.socket.connect

    def local(self, address):
        far = self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost")
        assert not far, f"asked for {address}"
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local)


def recorded(folder):
    lines = read_record(folder / "record.jsonl").epochs
    return {name: [(line["epoch"], pytest.approx(line[name], rel=1e-6)) for line in lines] for name in NAMES}


def test_tensorboard_has_the_figures_of_the_record(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert main([*TINY, "--track", "tensorboard", "--out", str(tmp_path)]) == 0
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert {n: [(event.step, event.value) for event in events.Scalars(n)] for n in NAMES} == recorded(tmp_path)


def chunks(path):
    """The records of a log in LevelDB's format, which Weights & Biases keeps offline runs in."""
    data, position, whole = path.read_bytes(), 7, b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:  # the rest of a block, too short for a head
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # all of a record, or its end
            yield whole
            whole = b""


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the library's own parts
def test_wandb_has_the_figures_of_the_record_offline_in_the_runs_folder(tmp_path):
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    assert main([*TINY, "--track", "wandb", "--out", str(tmp_path)]) == 0
    (kept,) = tmp_path.glob("wandb/offline-run-*/*.wandb")

    def found():
        values = {name: [] for name in NAMES}
        for data in chunks(kept):
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                line = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
                for name in NAMES:
                    values[name].append((line["_step"], line[name]))
        return values

    until = time.monotonic() + 60  # a process of the library's own writes it, and may be last on a busy machine
    while found() != recorded(tmp_path) and time.monotonic() < until:
        time.sleep(0.2)
    assert found() == recorded(tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_mlflow_has_the_figures_of_the_record_in_the_runs_folder_and_a_resumed_run_goes_on(tmp_path):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    assert main([*TINY, "--track", "mlflow", "--out", str(tmp_path)]) == 0
    record = read_record(tmp_path / "record.jsonl")
    with mlflow(tmp_path, Config.from_json(record.config)) as log:
        log({"train_loss": 0.5}, 3)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("esam").experiment_id])
    history = {n: [(one.step, one.value) for one in client.get_metric_history(found.info.run_id, n)] for n in NAMES}
    assert history.pop("train_loss") == [*recorded(tmp_path)["train_loss"], (3, 0.5)]
    assert history == {name: values for name, values in recorded(tmp_path).items() if name != "train_loss"}
    assert found.data.params["model"] == "mlp" and found.data.params["rho"] == "0.05"
    assert found.info.status == "FINISHED"
