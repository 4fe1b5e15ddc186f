"""Do runs on a Ray cluster end as they do here, also when a node is lost in the middle?"""

import contextlib
import tempfile
import threading
from pathlib import Path

import pytest
from conftest import timeless
from ray_nodes import IP, RayNodes, TooBusyError, free_ports, wait_until

from esam.cli import main
from esam.runs.ray import ray_cluster, run_on_node
from esam.train import Config, run
from esam.train.loaded_run import MEASURES
from esam.train.record import read_records

ray = pytest.importorskip("ray", reason="the extra [cluster] is not installed")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """A head and a node on loopback, with one CPU each."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray-") as folder:
        patch.setenv("ESAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("RAY_AUTH_MODE", "disabled")  # taken back at the end
        patch.setenv("RAY_TMPDIR", folder)  # short: a socket's path has at most 107 letters
        with contextlib.ExitStack() as stack:
            try:
                started = stack.enter_context(RayNodes(Path(folder), nodes=1, head_cpus=1))
            except TooBusyError as error:
                pytest.skip(f"the machine is too busy for Ray's own deadlines: {error}")
            yield started


def test_a_clusters_ports_differ_and_are_none_that_ray_takes_by_itself():
    ports = free_ports(200)
    assert len({*ports}) == 200 and {6379, 8265, 52365, *range(10_001, 20_000)}.isdisjoint(ports)


def test_a_node_that_does_not_see_the_folder_says_so(tmp_path):
    said = run_on_node("esam.runs.worker", tmp_path, "another configuration", {}, str(tmp_path))
    assert f"does not see the folder {tmp_path}" in said


@pytest.mark.parametrize(
    ("address", "cpus", "message"),
    [
        ("ray", -1, "must be 0 or more, got -1 and 0"),
        (f"{IP}:{free_ports(1)[0]}", 1, "no Ray cluster answers at 127.0.0.2"),
    ],
)
def test_what_cannot_be_connected_to_is_refused(address, cpus, message):
    with pytest.raises(ValueError, match=message), ray_cluster(address, cpus=cpus):
        pass


def test_what_no_node_has_is_refused_at_once(nodes):
    message = "no node of the cluster has 1 CPUs and 2 GPUs"
    with pytest.raises(ValueError, match=message), ray_cluster(nodes.address, gpus=2):
        pass


def test_the_commands_runs_end_as_they_do_here_though_a_node_is_killed_in_the_middle(nodes, tmp_path, capsys):
    out, killed = tmp_path / "out", []
    out.mkdir()

    def kill_once():
        def killed_one():
            for record in read_records(out, broken=[]):  # a line may be half written
                if record.last_epoch > 1 and not record.finished and nodes.kill_node_of(str(record.path.parent)):
                    killed.append(record)
                    return True
            return False

        wait_until(killed_one, "a run on the node")

    killer = threading.Thread(target=kill_once, daemon=True)
    killer.start()
    words = ["--data", "digits", "--model", "mlp", "--train-size", "200", "--batch-size", "50", "--epochs", "80"]
    words += ["--threads", "1", "--seeds", "0", "--methods", "base,esam", "--out", str(out)]
    assert main(["compare", *words, "--cluster", f"ray://{IP}:{nodes.client_port}"]) == 0
    assert len(killed) == 1 and f"{killed[0].method}, seed 0: epoch 80" in capsys.readouterr().out
    records = read_records(out)
    assert len(records) == 2 and all(record.finished for record in records) and (out / "report.html").exists()
    (there,) = [record for record in records if record.path == killed[0].path]
    here = run(Config.from_json(there.config), tmp_path / "here", measures=MEASURES)
    lines = [[record.run, *record.epochs, record.end] for record in (there, here)]
    assert timeless(lines[0]) == timeless(lines[1])
