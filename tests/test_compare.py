"""Are the runs of a comparison alike in all but the method, each done once, and shown as they were recorded?"""

import dataclasses
import io
import signal
import subprocess
import sys

import pytest
import torch
from rich.console import Console

from esam import METHODS
from esam.compare import Comparison, Launcher, PlannedRun, launch, plan
from esam.compare.live import show_results, watch
from esam.train import Config, run
from esam.train.data import load_data
from esam.train.runs import batches_of, prepared_model
from esam.train.trained import MEASURES

TINY = Config(data="digits", model="mlp", train_size=200, batch_size=50, epochs=2, threads=1)


pytestmark = pytest.mark.usefixtures("own_cache")


# The plan ------------------------------------------------------------------------------------------------------------


def test_every_method_gets_every_seed_and_whole_comparisons_come_first(tmp_path):
    runs = plan(Comparison(TINY, methods=("sgd", "sam", "esam"), seeds=(3, 5)), tmp_path)
    expected = [("base", 3), ("sam", 3), ("esam", 3), ("base", 5), ("sam", 5), ("esam", 5)]
    assert [(r.config.method, r.config.seed) for r in runs] == expected
    assert len({r.folder for r in runs}) == 6
    for planned in runs:
        assert dataclasses.replace(planned.config, method="esam", seed=0) == TINY  # alike in all else


def test_the_same_plan_gives_the_same_folders_and_another_setting_another(tmp_path):
    comparison = Comparison(TINY, methods=("sgd", "esam"), seeds=(0,))
    assert plan(comparison, tmp_path) == plan(comparison, tmp_path)
    longer = dataclasses.replace(comparison, config=dataclasses.replace(TINY, epochs=3))
    assert not {r.folder for r in plan(comparison, tmp_path)} & {r.folder for r in plan(longer, tmp_path)}


@pytest.mark.parametrize("change", [{"rho": 0.2}, {"gamma": 0.7, "beta": 0.3}, {"ranking": "random"}, {"m": 16}])
def test_the_base_is_shared_by_comparisons_that_differ_in_the_methods_settings_only(tmp_path, change):
    one, other = (
        {r.config.method: r.folder for r in plan(Comparison(config, ("sgd", "esam"), (0,)), tmp_path)}
        for config in (TINY, dataclasses.replace(TINY, settings=change))
    )
    assert one["base"] == other["base"] and one["esam"] != other["esam"]


def test_a_common_setting_reaches_the_methods_that_have_it_and_no_other(tmp_path):
    config = dataclasses.replace(TINY, settings={"rho": 0.2, "beta": 0.3, "gamma": 0.7})
    runs = plan(Comparison(config, tuple(METHODS), (0,)), tmp_path)
    taken = {r.config.method: r.config.settings for r in runs}
    assert taken["base"] == {}
    assert taken["base-part"] == {"gamma": 0.7}
    assert taken["sam"] == taken["asam"] == taken["looksam"] == {"rho": 0.2}
    assert taken["esam"] == {"rho": 0.2, "beta": 0.3, "gamma": 0.7}
    assert taken["esam-swp"] == {"rho": 0.2, "beta": 0.3}  # a gamma would make it ESAM
    assert taken["esam-sds"] == {"rho": 0.2, "gamma": 0.7}


def test_a_setting_of_one_method_reaches_that_method_only(tmp_path):
    settings = {"sam": {"rho": 0.2}, "esam-swp": {"gamma": 0.9}}
    runs = plan(Comparison(TINY, ("sam", "esam", "esam-swp"), (0,), settings), tmp_path)
    assert [r.config.settings for r in runs] == [{"rho": 0.2}, {}, {"gamma": 0.9}]


def test_a_method_or_seed_that_is_named_twice_is_run_once(tmp_path):
    runs = plan(Comparison(TINY, ("sgd", "sam", "sgd"), (0, 0)), tmp_path)
    assert [(r.config.method, r.config.seed) for r in runs] == [("base", 0), ("sam", 0)]
    assert Launcher([*runs, *runs]).runs == runs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("sgd", "esamm")}, "unknown method 'esamm'. Did you mean 'esam'"),
        ({"settings": {"esan": {"rho": 0.1}}}, "unknown method 'esan'. Did you mean 'esam'"),
        ({"settings": {"sam": {"rhoo": 0.1}}}, "sam has no setting 'rhoo' of its own. Did you mean 'rho'"),
        ({"settings": {"sam": {"gamma": 0.1}}}, "sam has no setting 'gamma' of its own"),
        ({"settings": {"sgd": {"rho": 0.1}}}, "sgd has no setting 'rho' of its own"),
        ({"settings": {"sam": {"seed": 1}}}, "sam has no setting 'seed' of its own"),
        ({"settings": {"sam": {"method": "esam"}}}, "sam has no setting 'method' of its own"),
        ({"methods": ()}, "needs methods and seeds"),
        ({"seeds": ()}, "needs methods and seeds"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        plan(dataclasses.replace(Comparison(TINY), **changes), tmp_path)


# Alike ---------------------------------------------------------------------------------------------------------------


def test_every_method_starts_from_the_same_weights_and_sees_the_same_batches(tmp_path):
    data = load_data("digits", train_size=200)
    device = torch.device("cpu")
    seen = {}
    for planned in plan(Comparison(TINY, tuple(METHODS), (4,)), tmp_path):
        config = dataclasses.replace(planned.config, augment="shift")
        model = prepared_model(config, data, device)
        batches = list(batches_of(config, data, device, torch.contiguous_format)[0].epoch(2))
        seen[config.method] = [*model.parameters(), *(tensor for batch in batches for tensor in batch)]
    for tensors in seen.values():
        assert all(map(torch.equal, tensors, seen["base"]))


def test_every_method_meets_the_same_loss_in_its_first_step(tmp_path):
    config = dataclasses.replace(TINY, batch_size=200, epochs=1, label_noise=0.1)  # one step: its loss is at theta
    apart = ("base-part", "sam-half", "sam-ascent-part", "rwp")  # their first pass has a part of the batch, or noise
    methods = [name for name in METHODS if name not in (*apart, "sam-on")]  # which needs norm layers
    runs = plan(Comparison(config, tuple(methods), (4, 5)), tmp_path)
    losses = {(r.config.method, r.config.seed): run(r.config, r.folder).epochs[0]["train_loss"] for r in runs}
    assert len({losses[method, 4] for method in methods}) == 1
    assert len({losses[method, 5] for method in methods}) == 1
    assert losses["base", 4] != losses["base", 5]


# Launched ------------------------------------------------------------------------------------------------------------


def files(runs):
    return {p: p.stat().st_mtime_ns for r in runs for p in r.folder.iterdir()}


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """A small comparison, run in processes of its own without a terminal, and what was printed meanwhile."""
    runs = plan(Comparison(TINY, ("sgd", "esam"), (0,)), tmp_path_factory.mktemp("launched"))
    text = io.StringIO()
    watch(Launcher(runs, jobs=2, poll=0.05), Console(file=text, width=100))
    return runs, text.getvalue()


def test_the_processes_record_what_the_same_runs_record_in_this_one(launched, tmp_path):
    timed = {"seconds", "train_seconds", "cpu_seconds", "images_per_second", "peak_memory"}
    for planned in launched[0]:
        here = run(planned.config, tmp_path / planned.folder.name, measures=MEASURES)
        there = planned.record()
        assert there.finished and there.end["sharpness"] > 0
        for one, other in zip([*here.epochs, here.end], [*there.epochs, there.end], strict=True):
            assert {k: v for k, v in one.items() if k not in timed} == {
                k: v for k, v in other.items() if k not in timed
            }


def test_finished_runs_are_not_touched_by_another_launch(launched, monkeypatch):
    runs, _ = launched
    before = files(runs)
    monkeypatch.setattr(launch, "_start", None)  # starting anything would fail
    looks = []
    Launcher(runs)(lambda: looks.append(1))
    assert files(runs) == before and looks == [1]


def test_without_a_terminal_each_epoch_is_a_plain_line_with_its_numbers(launched):
    runs, text = launched
    assert "\x1b" not in text
    for planned in runs:
        last = planned.record().epochs[-1]
        name = f"{planned.config.method}, seed 0"
        figures = f"train loss {last['train_loss']:.3f}, test {100 * last['test_accuracy']:.2f} %"
        assert f"{name}: epoch 2, {figures}" in text


def test_the_table_shows_the_numbers_of_the_records(launched):
    runs, _ = launched
    text = io.StringIO()
    show_results(runs, Console(file=text, width=200))
    for planned in runs:
        end = planned.record().end
        shown = [end["test_accuracy"]["last"], end["test_accuracy"]["best"], end["train_accuracy"]]
        assert all(f"{100 * value:.2f}" in text.getvalue() for value in shown)
        assert f"{end['train_loss']:#.3g}" in text.getvalue() and f"{end['forwards']:g}" in text.getvalue()
    assert "SGD reached" in text.getvalue() and "ESAM reached" in text.getvalue()


def test_a_failing_run_is_reported_with_its_last_line_and_stops_no_other(tmp_path):
    good = plan(Comparison(TINY, ("sgd",), (0,)), tmp_path)[0]
    bad = PlannedRun(dataclasses.replace(TINY, model="mpl"), tmp_path / "bad")
    with pytest.raises(RuntimeError) as error:
        Launcher([bad, good], poll=0.05)()
    assert str(error.value).startswith("1 of 2 runs failed:\n  esam, seed 0: ValueError: there is no model 'mpl'")
    assert "Did you mean 'mlp'" in str(error.value) and str(tmp_path / "bad" / "log.txt") in str(error.value)
    assert good.record().finished and bad.record() is None


@pytest.fixture
def processes(monkeypatch):
    """Let runs be small programs instead of workers; the list holds what was started."""
    started, real = [], subprocess.Popen

    def start(program):
        def instead(command, **options):
            started.append(real([sys.executable, "-c", program], **options))
            return started[-1]

        monkeypatch.setattr(launch.subprocess, "Popen", instead)
        return started

    return start


def unfinished(folder, count):
    return [PlannedRun(dataclasses.replace(TINY, seed=seed), folder / str(seed)) for seed in range(count)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interruption_ends_the_processes_that_were_started(tmp_path, processes, error):
    started = processes("import time; time.sleep(600)")

    def interrupt():
        raise error

    with pytest.raises(error):
        Launcher(unfinished(tmp_path, 3), jobs=2, poll=0.01)(interrupt)
    assert [process.poll() for process in started] == [-signal.SIGTERM] * 2  # the third was never started


def test_no_more_runs_go_on_at_a_time_than_jobs(tmp_path, processes):
    started = processes("import time; time.sleep(0.2)")
    most = []
    Launcher(unfinished(tmp_path, 5), jobs=2, poll=0.01)(
        lambda: most.append(sum(process.poll() is None for process in started))
    )
    assert len(started) == 5 and max(most) == 2


def test_a_run_that_dies_without_a_word_is_reported_by_its_signal(tmp_path, processes):
    runs = unfinished(tmp_path, 1)
    processes("print('a complaint of old'); raise SystemExit(1)")
    with pytest.raises(RuntimeError, match="a complaint of old"):
        Launcher(runs, poll=0.01)()
    processes("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(RuntimeError, match="esam, seed 0: ended by SIGKILL") as error:
        Launcher(runs, poll=0.01)()
    assert "of old" not in str(error.value)
    processes("raise SystemExit(3)")
    with pytest.raises(RuntimeError, match="esam, seed 0: no message"):
        Launcher(runs, poll=0.01)()


def test_a_run_has_as_many_threads_as_it_was_given(tmp_path, processes):
    processes("import os, sys; sys.exit('threads ' + os.environ['OMP_NUM_THREADS'])")
    with pytest.raises(RuntimeError, match="threads 3"):
        Launcher([PlannedRun(dataclasses.replace(TINY, threads=3), tmp_path)], poll=0.01)()


def test_no_jobs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="jobs must be 1 or more, got 0"):
        Launcher([], jobs=0)


def test_an_interrupted_launch_goes_on_where_it_was(tmp_path, launched):
    runs = plan(Comparison(dataclasses.replace(TINY, epochs=60), ("esam",), (0,)), tmp_path)

    class Enough(Exception):
        pass

    def until_some_epochs():
        record = runs[0].record()
        if record is not None and record.last_epoch >= 3:
            raise Enough

    with pytest.raises(Enough):
        Launcher(runs, poll=0.01)(until_some_epochs)
    assert not runs[0].record().finished
    Launcher(runs, poll=0.05)()
    record = runs[0].record()
    assert record.finished and [line["epoch"] for line in record.epochs] == list(range(1, 61))
    alone = run(runs[0].config, tmp_path / "alone")
    assert [line["train_loss"] for line in alone.epochs] == [line["train_loss"] for line in record.epochs]
