"""Does the command that the report prints make the same runs?"""

import shlex

import pytest

from esam.cli.compare import CompareOptions, SharedConfig
from esam.cli.parsing import parse_run, settings_by_method
from esam.recipes.cifar import cifar10_small
from esam.recipes.demo import demo
from esam.report.command import commands_for
from esam.report.groups import sections
from esam.runs import Comparison, plan
from esam.train import Config
from esam.train.record import RunRecord

TUNED = Comparison(
    Config(data="my photos", model="resnet20", size=64, validation=True, budget=1.5),
    ("base", "sam", "esam", "slicesam"),
    (3, 1),
    {"base": {"lr": 0.2}, "sam": {"lr": 1e-05, "rho": 0.025}, "esam": {"gamma": 0.7, "mask": "suffix"}},
    tuned={"sam": {"trials": [], "chosen": {"rho": 0.025}}},
)


def records(comparison, folder, **more):
    for run in plan(comparison, folder):
        config = run.config
        first = {"name": config.method, "method": config.method, "seed": config.seed, "config": config.as_json()}
        yield RunRecord(run.folder, {**first, "environment": {}, **more}, (), None)


def groups(found):
    return [group for several in sections(list(found)).values() for group in several]


def planned_by(command, folder):
    esam, compare, *words = shlex.split(command)
    assert (esam, compare) == ("esam", "compare")
    options, config = parse_run("compare", CompareOptions, words, Config(), shape=SharedConfig)
    settings = settings_by_method(options.set)
    return {run.folder.name for run in plan(Comparison(config, options.methods, options.seeds, settings), folder)}


ALONE = Comparison(Config(), ("base", "sam"), (3,), {})


@pytest.mark.parametrize(
    "comparison", [TUNED, demo(), cifar10_small(), ALONE], ids=["tuned", "demo", "cifar", "seed 3"]
)
def test_the_command_of_a_report_plans_the_runs_that_it_was_made_from(tmp_path, comparison):
    (command,) = commands_for(groups(records(comparison, tmp_path)))
    assert planned_by(command, tmp_path) == {run.folder.name for run in plan(comparison, tmp_path)}
    assert "notes" not in command and "threads" not in command


def test_variants_of_a_method_take_a_command_each_and_a_setting_of_all_is_said_once(tmp_path):
    runs = []
    for gamma in (0.5, 0.7):
        config = Config(settings={"rho": 0.1})
        runs += records(Comparison(config, ("base", "sam", "esam"), (0,), {"esam": {"gamma": gamma}}), tmp_path)
    first, second = commands_for(groups(runs))
    assert "--rho 0.1 --gamma 0.5 --methods base sam esam" in first and "--set" not in first
    assert "--rho 0.1 --gamma 0.7 --methods esam" in second
    assert planned_by(first, tmp_path) | planned_by(second, tmp_path) == {
        f"{run.method}-seed0-{Config.from_json(run.config).id()}" for run in runs
    }


def test_what_no_command_line_can_name_has_no_command(tmp_path):
    assert commands_for(groups(records(TUNED, tmp_path, data={"model": "abc", "fingerprint": "f"}))) == []
