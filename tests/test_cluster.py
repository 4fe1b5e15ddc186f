"""Do runs on a Ray cluster end as they do here, also when a node is lost in the middle?"""

import dataclasses
import io
import tempfile
from pathlib import Path

import pytest
from ray_nodes import IP, RayNodes, free_ports, wait_until
from rich.console import Console

from esam.cli import main
from esam.runs import Comparison, PlannedRun, Pool, plan
from esam.runs.live import run_and_show
from esam.runs.ray import ClusterOptions, RayCluster, connected, run_on_node
from esam.train import Config, run
from esam.train.loaded_run import MEASURES
from esam.train.record import read_records

ray = pytest.importorskip("ray", reason="the extra [cluster] is not installed")
pytestmark = pytest.mark.slow

TINY = Config(data="digits", model="mlp", train_size=200, batch_size=50, epochs=2, threads=1)
TIMES = {"seconds", "train_seconds", "cpu_seconds", "images_per_second", "peak_memory", "started"}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """A head and two nodes on loopback."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray-") as folder:
        patch.setenv("ESAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("RAY_AUTH_MODE", "disabled")  # taken back at the end
        patch.setenv("RAY_TMPDIR", folder)  # short: a socket's path has at most 107 letters
        with RayNodes(Path(folder)) as started:
            yield started


@pytest.fixture
def driver(nodes):
    """This process, connected to the cluster."""
    with connected(nodes.address):
        wait_until(lambda: ray.cluster_resources().get("CPU") == 2, "two nodes")
        yield nodes


def timeless(record):
    """A record without what no two runs share."""
    return [{k: v for k, v in line.items() if k not in TIMES} for line in [record.run, *record.epochs, record.end]]


def test_a_node_that_does_not_see_the_folder_says_so(tmp_path):
    said = run_on_node(PlannedRun(TINY, tmp_path), "another token", {}, str(tmp_path))
    assert f"does not see the folder {tmp_path}; put --out on a file system that all nodes" in said


def test_what_no_node_has_is_refused_at_once(driver):
    with pytest.raises(ValueError, match="no node of the cluster has 1 CPUs and 2 GPUs for a run; ask for fewer"):
        RayCluster(gpus=2)


def test_the_command_hands_its_runs_to_the_cluster_of_an_address(nodes, tmp_path, capsys):
    words = ["--data", "digits", "--model", "mlp", "--train-size", "100", "--epochs", "1", "--threads", "1"]
    words += ["--methods", "base", "--seeds", "0", "--out", str(tmp_path / "out"), "--cluster", nodes.address]
    assert main(["compare", *words, "--cpus-per-run", "0.5"]) == 0
    assert "base, seed 0: epoch 1" in capsys.readouterr().out
    (record,) = read_records(tmp_path / "out")
    assert record.finished and (tmp_path / "out" / "report.html").exists()


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_search_hands_its_trials_to_a_cluster_by_rays_own_protocol(nodes, tmp_path, capsys):
    pytest.importorskip("optuna", reason="the extra [sweep] is not installed")
    words = ["--data", "digits", "--model", "mlp", "--train-size", "100", "--epochs", "1", "--threads", "1"]
    words += ["--search", "lr=0.05,0.1", "--sampler", "grid", "--jobs", "2", "--out", str(tmp_path / "out")]
    assert main(["sweep", *words, "--cluster", f"ray://{IP}:{nodes.client_port}"]) == 0
    # two at once may try a value twice
    assert {record.config["lr"] for record in read_records(tmp_path / "out")} == {0.05, 0.1}
    assert "report:" in capsys.readouterr().out


def test_a_place_that_cannot_be_is_refused():
    for options, jobs, message in (
        (
            ClusterOptions(cluster="ray", cpus_per_run=-1),
            1,
            "cpus_per_run and gpus_per_run must be 0 or more, got -1 and 0",
        ),
        (ClusterOptions(cluster="ray"), 0, "jobs must be 1 or more, got 0"),
        (ClusterOptions(cluster=f"{IP}:{free_ports(1)[0]}"), 1, "no Ray cluster answers at 127.0.0.2"),
    ):
        with pytest.raises(ValueError, match=message), options.executor(jobs):
            pass


def test_runs_end_as_they_do_here_though_a_node_is_killed_in_the_middle(driver, tmp_path):
    comparison = Comparison(dataclasses.replace(TINY, epochs=80), ("base", "esam"), (0,))
    runs, text = plan(comparison, tmp_path / "there"), io.StringIO()
    killed = []

    class WithAPowerCut(Pool):
        def run(self, runs, watch):
            def watch_and_kill():
                watch()
                for one in [] if killed else runs:
                    record = one.record()
                    if record is not None and record.last_epoch > 2 and not record.finished:
                        driver.kill_node_of(str(one.folder))
                        killed.append(one)
                        break

            super().run(runs, watch_and_kill)

    run_and_show(WithAPowerCut(executor=RayCluster(), poll=0.05), runs, Console(file=text, width=100))
    assert len(killed) == 1
    for planned in runs:
        here = run(planned.config, tmp_path / "here" / planned.folder.name, measures=MEASURES, keep_weights=True)
        assert planned.record().finished and timeless(planned.record()) == timeless(here)
        assert f"{planned.config.method}, seed 0: epoch 80" in text.getvalue()  # told as it went
