"""Does the command line do what its words say, and answer a wrong word with the right one?"""

import json
import re
import subprocess
import sys

import pytest

from esam import __version__
from esam.cli import COMMANDS, main
from esam.compare import Comparison, Launcher
from esam.recipes import RECIPES
from esam.train import Config
from esam.train.models import MODELS
from esam.train.record import read_record, read_records

TINY = ["--data", "digits", "--model", "mlp", "--train-size", "200", "--batch-size", "50"]
TINY += ["--epochs", "2", "--threads", "1"]


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("ESAM_DATA", raising=False)
        patch.setenv("COLUMNS", "300")
        yield


@pytest.fixture
def esam(capsys):
    """Run a command; gives its exit code and what it printed on both channels."""

    def command(*words):
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:  # tyro's own way out
            code = stop.code
        return code, *capsys.readouterr()

    return command


# Help ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"]])
def test_help_names_every_command(esam, words):
    code, out, err = esam(*words)
    assert code == 0 and err == ""
    assert all(re.search(rf"^  {command}\b", out, re.MULTILINE) for command in COMMANDS)


@pytest.mark.parametrize(
    ("command", "mentions"),
    [
        ("train", ["--method", "--rho", "--out", "--tensorboard", "--precision {float32,bf16,fp16}"]),
        ("train demo", ["--method", "--label-noise FLOAT", "(default: 0.3)"]),
        ("compare", ["--methods", "--seeds", "--set", "--jobs", "sam.rho=0.1"]),
        ("compare demo", ["--methods", "esam-swp"]),
        ("analyze", ["--landscape INT", "--pictures", "--eigenvalues", "folder of a run"]),
        ("report", ["--out"]),
        ("bench", ["esam bench step [OPTIONS]", "esam bench step --help"]),
        ("models", ["esam models"]),
        ("recipes", ["esam recipes"]),
    ],
)
def test_every_command_explains_its_options(esam, command, mentions):
    code, out, _ = esam(*command.split(), "--help")
    assert code == 0 and f"usage: esam {command.split()[0]}" in out
    assert [word for word in mentions if word not in out] == []


def test_the_version_is_the_packages_own(esam):
    assert esam("--version") == (0, f"{__version__}\n", "")


def test_help_does_without_torch():
    program = "import sys; from esam.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


def test_models_and_recipes_are_listed(esam):
    code, out, _ = esam("models")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == list(MODELS)
    code, out, _ = esam("recipes")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == list(RECIPES)


# Wrong words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "unknown command 'trian'. Did you mean 'train'"),
        (["compare", "dmeo"], "unknown recipe 'dmeo'. Did you mean 'demo'"),
        (["train", "cifar10-smal"], "unknown recipe 'cifar10-smal'. Did you mean 'cifar10-small'"),
        (["train", *TINY, "--method", "easm"], "unknown method 'easm'. Did you mean 'esam'"),
        (["train", *TINY, "--model", "resnet9"], "there is no model 'resnet9'. Did you mean 'resnet8'"),
        (["train", *TINY, "--data", "digist"], "'digist': .* Did you mean 'digits'"),
        (["train", *TINY, "--augment", "cutuot"], "Did you mean 'cutout'"),
        (["train", *TINY, "--method", "sam", "--gamma", "0.5"], "sam takes no --gamma; its settings: rho, m"),
        (["train", *TINY, "--gamma", "7"], r"gamma must be in \(0, 1\], got 7"),
        (["train", *TINY, "--device", "gpu"], "device must be auto, cpu or one that torch finds here"),
        (["train", *TINY, "--epochs", "-1"], "epochs must be 0 or more, got -1"),
        (["compare", *TINY, "--methods", "sgd", "asm"], "unknown method 'asm'. Did you mean 'asam'"),
        (["compare", *TINY, "--set", "rho=0.1"], "--set takes method.setting=value, such as sam.rho=0.1"),
        (["compare", *TINY, "--set", "sam.roh=0.1"], "sam has no setting 'roh' of its own. Did you mean 'rho'"),
        (["compare", *TINY, "--set", "esan.rho=0.1"], "unknown method 'esan'. Did you mean 'esam'"),
        (["compare", *TINY, "--set", "sam.seed=1"], "sam has no setting 'seed' of its own"),
        (["compare", *TINY, "--jobs", "0"], "jobs must be 1 or more, got 0"),
        (["report", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_a_wrong_word_ends_with_1_and_the_nearest_right_one(esam, tmp_path, words, message):
    folder = [] if words[0] in ("trian", "report") else ["--out", tmp_path / "run"]
    code, out, err = esam(*words, *folder)
    assert (code, out) == (1, "")
    assert re.match(f"esam: .*{message}", err) and "Traceback" not in err


@pytest.mark.parametrize("words", [["train", "--epoch", "3"], ["models", "--all"], ["train", "--precision", "fp8"]])
def test_an_unknown_option_ends_with_2_and_no_traceback(esam, words):
    code, _, err = esam(*words)
    assert code == 2 and "Traceback" not in err and words[1] in err


def test_an_empty_folder_has_no_report(esam, tmp_path):
    code, _, err = esam("report", tmp_path)
    assert code == 1 and "train something first" in err


# Commands ------------------------------------------------------------------------------------------------------------


def test_train_obeys_its_options_and_prints_what_it_records(esam, tmp_path):
    code, out, _ = esam("train", *TINY, "--method", "sam", "--rho", "0.2", "--seed", "3", "--out", tmp_path / "run")
    assert code == 0
    record = read_record(tmp_path / "run" / "record.jsonl")
    asked = {
        "method": "sam",
        "settings": {"rho": 0.2},
        "seed": 3,
        "model": "mlp",
        "train_size": 200,
        "batch_size": 50,
        "epochs": 2,
    }
    assert asked.items() <= record.config.items() and record.finished and record.end["sharpness"] > 0
    for line in record.epochs:
        accuracy = 100 * line["test_accuracy"]
        assert f"epoch {line['epoch']} of 2: train loss {line['train_loss']:.4f}, test accuracy {accuracy:.2f} %" in out
    last, best = (100 * record.end["test_accuracy"][which] for which in ("last", "best"))
    assert f"SAM: test accuracy {last:.2f} % (best {best:.2f} %), record in {tmp_path / 'run'}" in out


def test_train_again_returns_the_finished_run_and_refuses_another_in_its_place(esam, tmp_path):
    out = ["--out", tmp_path / "[red] run"]
    _, first, _ = esam("train", *TINY, *out)
    code, second, _ = esam("train", *TINY, *out)
    assert code == 0 and second == first.splitlines(keepends=True)[-1] and "[red] run" in second
    code, _, err = esam("train", *TINY, "--seed", "1", *out)
    assert code == 1 and "holds another run" in err


def test_an_interrupted_training_says_how_to_go_on_and_goes_on(esam, tmp_path, monkeypatch):
    words = ["train", *TINY, "--out", tmp_path]

    def interrupted(self, metrics):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("esam.cli.progress.Lines.epoch", interrupted)
        code, _, err = esam(*words)
    assert code == 130 and err == "esam: interrupted; the same command resumes\n"
    code, _, _ = esam(*words)
    assert code == 0 and [line["epoch"] for line in read_record(tmp_path / "record.jsonl").epochs] == [1, 2]


def test_no_epochs_are_no_crash(esam, tmp_path):
    code, out, _ = esam("train", *TINY, "--epochs", "0", "--out", tmp_path)
    assert code == 0 and "ESAM: no epoch trained" in out


def test_tensorboard_gets_the_recorded_numbers_and_the_lines_are_still_printed(esam, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    code, out, _ = esam("train", *TINY, "--tensorboard", "--out", tmp_path)
    assert code == 0 and "epoch 2 of 2: train loss" in out
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    record = read_record(tmp_path / "record.jsonl")
    for name in ("train_loss", "test_accuracy", "lr", "forwards"):
        written = [(event.step, event.value) for event in events.Scalars(name)]
        assert written == [(line["epoch"], pytest.approx(line[name], rel=1e-6)) for line in record.epochs]


def test_a_recipe_is_a_start_that_options_change(esam, tmp_path):
    words = ["--epochs", "1", "--model", "mlp", "--train-size", "100", "--out", tmp_path]
    assert esam("train", "demo", *words)[0] == 0
    config = read_record(tmp_path / "record.jsonl").config
    assert (config["label_noise"], config["epochs"], config["model"]) == (0.3, 1, "mlp")
    assert config["settings"] == {"rho": 0.1}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A tiny comparison in a process of its own, as a user starts it."""
    folder = tmp_path_factory.mktemp("compared")
    words = [*TINY, "--methods", "sgd", "sam", "--seeds", "0", "--set", "sam.rho=0.1", "--jobs", "2", "--out", folder]
    command = [sys.executable, "-m", "esam", "compare", *map(str, words)]
    return folder, subprocess.run(command, capture_output=True, text=True)


def test_compare_leaves_a_record_of_each_run_a_table_and_a_report(compared):
    folder, done = compared
    assert (done.returncode, done.stderr) == (0, "")
    records = {record.method: record for record in read_records(folder)}
    assert records.keys() == {"base", "sam"} and all(record.finished for record in records.values())
    for record in records.values():
        assert f"{100 * record.end['test_accuracy']['last']:.2f}" in done.stdout
        assert f"{record.method}, seed 0: epoch 2, train loss {record.epochs[-1]['train_loss']:.3f}" in done.stdout
    assert f"report: {folder / 'report.html'}" in done.stdout
    assert "SAM" in (folder / "report.html").read_text()


def test_a_setting_of_one_method_stands_in_its_record_only(compared):
    settings = {record.method: record.config["settings"] for record in read_records(compared[0])}
    assert settings == {"base": {}, "sam": {"rho": 0.1}}


def test_report_writes_the_page_where_it_is_told(esam, compared, tmp_path):
    code, out, err = esam("report", compared[0], "--out", tmp_path / "page.html")
    assert (code, out, err) == (0, f"{tmp_path / 'page.html'}\n", "")
    assert (tmp_path / "page.html").read_text() == (compared[0] / "report.html").read_text()


def test_settings_are_added_to_the_recipes_own(esam, tmp_path, monkeypatch):
    recipe = Comparison(Config(), ("sam", "esam"), (0,), {"sam": {"rho": 0.3, "m": 8}, "esam": {"gamma": 0.7}})
    monkeypatch.setitem(RECIPES, "demo", lambda: recipe)
    planned = []
    monkeypatch.setattr(Launcher, "__call__", lambda self, watch=None: planned.extend(self.runs))
    esam("compare", "demo", "--set", "sam.rho=0.1", "esam.ranking=random", "--out", tmp_path)
    settings = {run.config.method: run.config.settings for run in planned}
    assert settings == {"sam": {"rho": 0.1, "m": 8}, "esam": {"gamma": 0.7, "ranking": "random"}}


def test_a_configuration_survives_the_way_through_json():
    config = Config(settings={"rho": 0.1}, notes=("one", "two"), train_size=5)
    assert Config.from_json(json.loads(json.dumps(config.as_json()))) == config


def test_a_configuration_of_an_earlier_version_is_the_run_that_it_was():
    old = {"method": "sgd", "rho": None, "choose": None, "epochs": 3, "notes": ["a remark"], "threads": 2}
    assert Config.from_json(old).identity() == Config(method="base", epochs=3).identity()
    random_half = Config.from_json({"method": "esam", "rho": 0.1, "ranking": None, "choose": None})
    assert random_half == Config(method="esam-random", settings={"rho": 0.1})
    paper = Config.from_json({"method": "esam", "rho": 0.1, "ranking": "exact", "choose": "independent"})
    assert paper == Config(method="esam", settings={"rho": 0.1})


def test_remarks_threads_and_the_device_do_not_make_another_run():
    plain = Config(method="sam")
    assert Config(method="sam", notes=("a",), threads=3, device="cpu").id() == plain.id()
    assert Config(method="sam", settings={"rho": 0.05}).id() == plain.id()  # its default, said
    assert Config(method="sam", settings={"rho": 0.1}).id() != plain.id()


def test_a_recipes_own_settings_reach_a_single_run(esam, tmp_path, monkeypatch):
    settings = {"sam": {"rho": 0.3, "weight_decay": 0.01}, "esam": {"rho": 0.7}}
    recipe = Comparison(Config(model="mlp", train_size=100, epochs=0), ("sam", "esam"), (0,), settings)
    monkeypatch.setitem(RECIPES, "demo", lambda: recipe)
    for method, words, rho in (("sam", [], 0.3), ("esam", [], 0.7), ("sam", ["--rho", "0.2"], 0.2)):
        folder = tmp_path / f"{method}{rho}"
        assert esam("train", "demo", "--method", method, *words, "--out", folder)[0] == 0
        config = read_record(folder / "record.jsonl").config
        assert config["settings"] == {"rho": rho}
        assert config["weight_decay"] == (0.01 if method == "sam" else 5e-4)


@pytest.mark.parametrize(
    ("package", "install"), [("tyro", "torch-esam[train]"), ("scipy.sparse", "torch-esam[analysis]"), ("odd", "odd")]
)
def test_a_missing_package_is_answered_by_what_to_install(esam, monkeypatch, package, install):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr("esam.cli.import_module", missing)
    assert esam("train") == (1, "", f"esam: train needs {package}; run: pip install {install}\n")
