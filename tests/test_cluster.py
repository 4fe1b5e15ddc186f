"""Do runs on a Ray cluster end as they do here, also when a node is lost in the middle?"""

import tempfile
import threading
import time

import pytest
from conftest import timeless

from esam.cli import main
from esam.runs.ray import ray_cluster, run_on_node
from esam.train import Config, run
from esam.train.loaded_run import MEASURES
from esam.train.record import read_records

pytest.importorskip("ray", reason="the extra [cluster] is not installed")
from ray.cluster_utils import Cluster

pytestmark = pytest.mark.slow

IP = "127.0.0.2"  # loopback as well; Ray takes 127.0.0.1 for the machine's outward address
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A head and a node on loopback, with one CPU each."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray-") as folder:
        patch.setenv("ESAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else a token in one's home is the head's, and not its nodes'
        patch.setenv("RAY_TMPDIR", folder)  # short: a socket's path has at most 107 letters
        head = {"node_ip_address": IP, "include_dashboard": False, "_system_config": QUICK}
        started = Cluster(initialize_head=True, head_node_args=head)
        try:
            started.add_node(node_ip_address=IP)
            yield started
        finally:
            started.shutdown()


def test_a_node_that_does_not_see_the_folder_says_so(tmp_path):
    said = run_on_node("esam.runs.worker", tmp_path, "another configuration", {}, str(tmp_path))
    assert f"does not see the folder {tmp_path}" in said


@pytest.mark.parametrize(
    ("address", "cpus", "message"),
    [("ray", -1, "must be 0 or more, got -1 and 0"), ("127.0.0.1:1", 1, "no Ray cluster answers at 127.0.0.1:1")],
)
def test_what_cannot_be_connected_to_is_refused(address, cpus, message):
    with pytest.raises(ValueError, match=message), ray_cluster(address, cpus=cpus):
        pass


def test_what_no_node_has_is_refused_at_once(cluster):
    message = "no node of the cluster has 1 CPUs and 2 GPUs"
    with pytest.raises(ValueError, match=message), ray_cluster(cluster.address, gpus=2):
        pass


def test_the_commands_runs_end_as_they_do_here_though_a_node_is_killed_in_the_middle(cluster, tmp_path, capsys):
    out, seen = tmp_path / "out", []
    out.mkdir()

    def kill_the_node():
        while len(seen) < 2 or any(record.last_epoch < 2 for record in seen):  # one run on each node
            time.sleep(0.05)
            seen[:] = read_records(out, broken=[])  # a line may be half written
        (node,) = cluster.worker_nodes
        cluster.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=kill_the_node, daemon=True)
    killer.start()
    words = ["--data", "digits", "--model", "mlp", "--train-size", "200", "--batch-size", "50", "--epochs", "80"]
    words += ["--threads", "1", "--seeds", "0", "--methods", "base,esam", "--out", str(out)]
    assert main(["compare", *words, "--cluster", cluster.address]) == 0
    killer.join()
    assert not any(record.finished for record in seen)  # when the node was killed
    told = capsys.readouterr().out
    records = read_records(out)
    assert len(records) == 2 and (out / "report.html").exists()
    for there in records:
        assert there.finished and f"{there.method}, seed 0: epoch 80" in told
        here = run(Config.from_json(there.config), tmp_path / there.method, measures=MEASURES)
        lines = [[record.run, *record.epochs, record.end] for record in (there, here)]
        assert timeless(lines[0]) == timeless(lines[1])
