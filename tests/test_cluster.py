"""Do runs on a Ray cluster end as they do here, also when a node is lost in the middle?"""

import dataclasses
import io
import json
import tempfile
from pathlib import Path

import pytest
from ray_nodes import IP, RayNodes, free_ports, wait_until
from rich.console import Console
from tiny_scale import tiny_scale

from esam.cli import main
from esam.compare import Comparison, Launcher, PlannedRun, plan
from esam.compare.cluster import RayCluster, connected
from esam.compare.live import watch
from esam.compare.where import Where
from esam.frontier.elsewhere import Elsewhere
from esam.frontier.worker import attempt
from esam.paper.scales import SCALES
from esam.train import Config, run
from esam.train.record import read_record, read_records
from esam.train.trained import MEASURES

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


def test_where_a_node_does_not_see_the_folder_its_record_is_sent_as_it_grows_and_the_files_fetched(driver, tmp_path):
    config = dataclasses.replace(TINY, epochs=40)
    good, seen = PlannedRun(config, tmp_path / "good"), set()
    bad = PlannedRun(dataclasses.replace(TINY, model="mpl"), tmp_path / "bad")

    def look():
        seen.add(0 if good.record() is None else good.record().last_epoch)

    with pytest.raises(RuntimeError, match="1 of 2 runs failed:\n  esam, seed 0: ValueError: there is no model 'mpl'"):
        Launcher([bad, good], poll=0.05, place=RayCluster(shared=False))(look)
    assert len(seen) > 2, seen
    here = run(config, tmp_path / "here", measures=MEASURES, keep_weights=True)
    assert timeless(good.record()) == timeless(here)
    for name in ("last.safetensors", "best.safetensors"):
        assert (good.folder / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


def test_the_arenas_runs_leave_the_same_records_and_nothing_else(driver, tmp_path):
    planned, told = PlannedRun(TINY, tmp_path / "regime" / "entrant" / "runs" / "run"), []
    Elsewhere(RayCluster(), told.append, poll=0.05).make("main", [planned])
    attempt(TINY.as_json(), tmp_path / "here")
    assert timeless(planned.record()) == timeless(read_record(tmp_path / "here" / "record.jsonl"))
    assert {path.name for path in planned.folder.iterdir()} == {"record.jsonl"}
    assert told[0].startswith("regime/entrant/runs seed 0: ") and told[1] == "  main: 1 of 1"


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


def test_a_search_hands_its_trials_to_a_cluster_by_rays_own_protocol(nodes, tmp_path, capsys):
    pytest.importorskip("optuna", reason="the extra [sweep] is not installed")
    words = ["--data", "digits", "--model", "mlp", "--train-size", "100", "--epochs", "1", "--threads", "1"]
    words += ["--search", "lr=0.05,0.1", "--sampler", "grid", "--jobs", "2", "--out", str(tmp_path / "out")]
    assert main(["sweep", *words, "--cluster", f"ray://{IP}:{nodes.client_port}"]) == 0
    assert sorted(record.config["lr"] for record in read_records(tmp_path / "out")) == [0.05, 0.1]
    assert "report:" in capsys.readouterr().out


def test_a_probed_run_of_the_paper_leaves_on_the_cluster_all_it_saw(nodes, tmp_path, monkeypatch):
    monkeypatch.setitem(SCALES, "cpu", tiny_scale)
    assert main(["reproduce", "linearity", "--out", str(tmp_path), "--cluster", nodes.address]) == 0
    (result,) = (json.loads(path.read_text()) for path in tmp_path.glob("*/linearity.json"))
    assert result["measured"]


def test_a_place_that_cannot_be_is_refused():
    for where, jobs, message in (
        (Where(cluster="ray", cpus_per_run=-1), 1, "cpus_per_run and gpus_per_run must be 0 or more, got -1 and 0"),
        (Where(cluster="ray"), 0, "jobs must be 1 or more, got 0"),
        (Where(cluster=f"{IP}:{free_ports(1)[0]}"), 1, "no Ray cluster answers at 127.0.0.2"),
    ):
        with pytest.raises(ValueError, match=message), where.place(jobs):
            pass


def test_runs_end_as_they_do_here_though_a_node_is_killed_in_the_middle(driver, tmp_path):
    comparison = Comparison(dataclasses.replace(TINY, epochs=80), ("base", "esam"), (0,))
    runs, text = plan(comparison, tmp_path / "there"), io.StringIO()
    killed = []

    class WithAPowerCut(Launcher):
        def __call__(self, look):
            def look_and_kill():
                look()
                for one in [] if killed else runs:
                    record = one.record()
                    if record is not None and record.last_epoch > 2 and not record.finished:
                        driver.kill_node_of(str(one.folder))
                        killed.append(one)
                        break

            super().__call__(look_and_kill)

    watch(WithAPowerCut(runs, poll=0.05, place=RayCluster()), Console(file=text, width=100))
    assert len(killed) == 1
    for planned in runs:
        here = run(planned.config, tmp_path / "here" / planned.folder.name, measures=MEASURES, keep_weights=True)
        assert planned.record().finished and timeless(planned.record()) == timeless(here)
        assert f"{planned.config.method}, seed 0: epoch 80" in text.getvalue()  # told as it went
        assert not (planned.folder / ".cluster").exists()
