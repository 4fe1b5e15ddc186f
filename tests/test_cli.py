"""Does the command line do what its words say, help who asks, and answer a wrong word with the right one?"""

import csv
import dataclasses
import io
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from rich.console import Console

from esam import __version__
from esam.cli import COMMANDS, main
from esam.cli.compare import read_seeds
from esam.cli.parsing import UsageError, parse_all
from esam.optim import METHODS
from esam.recipes import RECIPES
from esam.runs import Comparison
from esam.runs.live import RunView
from esam.train import Config
from esam.train.models import MODELS
from esam.train.record import read_record, read_records

TINY = ["--data", "digits", "--model", "mlp", "--train-size", "100", "--batch-size", "50"]
TINY += ["--epochs", "2", "--threads", "1"]
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def esam(capsys):
    """Run a command; gives its exit code and what it printed on both channels."""

    def command(*words):
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:  # after help
            code = stop.code
        return code, *capsys.readouterr()

    return command


# Help ----------------------------------------------------------------------------------------------------------------


def test_help_names_every_command_those_for_everyone_first(esam):
    code, out, err = esam("--help")
    assert (code, err) == (0, "") and out == esam()[1] == esam("-h")[1]
    assert re.findall(r"^  (\w+)\b", out, re.MULTILINE) == list(COMMANDS)
    assert out.index("\n  doctor") < out.index("for research") < out.index("\n  analyze")


@pytest.mark.parametrize("command", [*COMMANDS, "train demo"])
def test_help_fits_into_80_columns_and_says_something_of_every_option(esam, command):
    code, out, _ = esam(*command.split(), "--help")
    assert code == 0 and out.startswith(f"usage: esam {command.removesuffix(' demo')}")
    assert max(map(len, out.splitlines())) <= 80
    options = re.findall(r"^  (?:-h, )?(--[\w-]+).*\n?", out, re.MULTILINE)
    for option in options:
        said = re.search(rf"{option},?(?: \S+)*?\s{{2,}}(\S.*)|{option},? .*\n {{20,}}(\S.*)", out)
        assert said and not next(filter(None, said.groups())).startswith("(default"), option


def test_help_of_a_run_starts_with_what_everybody_needs_and_leaves_methods_settings_to_their_list(esam):
    _, out, _ = esam("compare", "--help")
    assert out.startswith("usage: esam compare [RECIPE] [OPTIONS]\n")
    options = re.findall(r"^  (--[\w-]+)", out, re.MULTILINE)
    assert options[:7] == ["--data", "--model", "--methods", "--seeds", "--epochs", "--lr", "--batch-size"]
    assert {"--method", "--seed", "--settings", "--rho", "--gamma"}.isdisjoint(options) and "esam methods NAME" in out
    _, out, _ = esam("train", "demo", "--help")
    assert "(default: 0.3)" in re.search(r"--label-noise.*?--", out, re.DOTALL)[0]  # the recipe's own


def test_help_does_without_torch():
    for words in (["--help"], ["compare", "--help"], ["train", "--help"], ["predict", "--help"]):
        program = f"import sys; from esam.cli import main\ntry: main({words})\nexcept SystemExit: pass\n"
        program += "sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0, words


def test_the_version_is_the_packages_own(esam):
    assert esam("--version") == (0, f"{__version__}\n", "")


def test_every_setting_of_every_method_has_a_sentence(esam):
    for name, row in METHODS.items():
        code, out, _ = esam("methods", name)
        assert code == 0 and row.summary in " ".join(out.split()) and max(map(len, out.splitlines())) <= 80
        told = re.findall(r"^--([\w-]+) +.+?  +\S.{15,}", out, re.MULTILINE)  # its value, and a sentence
        assert told == [key.replace("_", "-") for key in row.options()]


def test_what_can_be_named_is_listed(esam):
    for command, known in (("methods", METHODS), ("models", MODELS), ("recipes", RECIPES)):
        begun = dict.fromkeys(re.findall(r"^[\w-]+", esam(command)[1], re.MULTILINE))
        assert [name for name in begun if name in known] == [*known]


# Words to values -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """All kinds."""

    run: Path
    files: tuple[Path, ...]
    methods: tuple[str, ...] = ("a",)
    notes: tuple[str, ...] = ()
    kind: Literal["sgd", "adamw"] = "sgd"
    size: int | None = None
    """Pixels: 100 % of them."""
    lr: float = 0.1
    memory: bool = True
    method: str = "kept"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("r a b --size 8 --lr 1e-3", {"run": Path("r"), "files": (Path("a"), Path("b")), "size": 8, "lr": 0.001}),
        ("r a --methods base,sam esam", {"methods": ("base", "sam", "esam"), "memory": True, "size": None}),
        ("r a --notes one,two --no-memory --kind=adamw", {"notes": ("one,two",), "memory": False, "kind": "adamw"}),
        ("r a --no-memory --memory", {"memory": True}),
        ("--lr 1 r --kind sgd a", {"run": Path("r"), "files": (Path("a"),), "lr": 1.0}),
    ],
)
def test_words_become_values(words, wanted):
    (found,), typed = parse_all("toy", [Options], words.split(), defaults={"lr": 3.0})
    assert {name: getattr(found, name) for name in wanted} == wanted
    assert found.lr == typed.get("lr", 3.0) and found.method == "kept"


@pytest.mark.parametrize(
    ("words", "seeds"),
    [("3", (0, 1, 2)), ("0", (0,)), ("4 2", (4, 2)), ("5..7 1", (5, 6, 7, 1)), ("-1", (-1,)), ("7..7", (7,))],
)
def test_seeds_are_counted_or_named(words, seeds):
    assert read_seeds(words.split()) == seeds


@pytest.mark.parametrize("word", ["x", "1..x", "1.5", "99999999999999999999999", "1..10000000"])
def test_seeds_that_cannot_be_read_are_refused(word):
    with pytest.raises(UsageError, match=f"--seeds .*{word}"):
        read_seeds([word])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", "RUN"),
        ("r a --lrr 1", "Did you mean '--lr'"),
        ("r a --lr fast", "--lr: takes a number, got 'fast'"),
        ("r a --size 1.5", "--size: takes a whole number"),
        ("r a --kind adam", "Did you mean 'adamw'"),
        ("r a --lr", "--lr"),
        ("r a --method x", "--method"),
    ],
)
def test_a_word_that_cannot_be_read_is_named(words, named):
    with pytest.raises(UsageError, match=re.escape(named)):
        parse_all("toy", [Options], words.split())


@pytest.mark.parametrize(("package", "install"), [("rich", "torch-esam[train]"), ("odd", "odd")])
def test_a_missing_package_is_answered_by_what_to_install(esam, monkeypatch, package, install):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr("esam.cli.import_module", missing)
    assert esam("train") == (1, "", f"esam: train needs {package}; run: pip install {install}\n")


# Commands ------------------------------------------------------------------------------------------------------------


def test_train_obeys_its_options_prints_what_it_records_and_again_returns_the_finished_run(esam, tmp_path):
    words = ["train", *TINY, "--method", "sam", "--rho", "0.2", "--seed", "3", "--out", tmp_path / "[red] run"]
    code, out, _ = esam(*words)
    record = read_record(tmp_path / "[red] run" / "record.jsonl")
    asked = {"method": "sam", "settings": {"rho": 0.2}, "seed": 3, "model": "mlp", "train_size": 100, "epochs": 2}
    assert code == 0 and asked.items() <= record.config.items() and record.end["sharpness"] > 0
    for line in record.epochs:
        accuracy = 100 * line["test_accuracy"]
        assert f"epoch {line['epoch']} of 2, train loss {line['train_loss']:.3f}, test {accuracy:.2f} %" in out
    assert esam(*words) == (0, out.splitlines(keepends=True)[-1], "")


def test_an_interrupted_training_resumes(esam, tmp_path, monkeypatch):
    def interrupted(self, metrics):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("esam.runs.live.RunView.epoch", interrupted)
        code, _, err = esam("train", *TINY, "--out", tmp_path)
    assert code == 130 and err == "esam: interrupted; the same command resumes\n"
    assert esam("train", *TINY, "--out", tmp_path)[0] == 0
    assert [line["epoch"] for line in read_record(tmp_path / "record.jsonl").epochs] == [1, 2]


def test_a_recipe_is_a_start_that_options_change(esam, tmp_path):
    words = "train demo --epochs 1 --method sam --model mlp --train-size 100 --threads 1 --quiet --out"
    code, out, _ = esam(*words.split(), tmp_path / "run")
    config = read_record(tmp_path / "run" / "record.jsonl").config
    assert (config["label_noise"], config["epochs"], config["model"]) == (0.3, 1, "mlp")
    assert (code, config["settings"], out.count("\n")) == (0, {"rho": 0.1}, 1)


def test_settings_of_one_method_are_added_to_the_recipes_own(esam, tmp_path, monkeypatch):
    recipe = Comparison(Config(), ("sam", "esam"), (0,), {"sam": {"rho": 0.3, "m": 8}, "esam": {"gamma": 0.7}})
    monkeypatch.setitem(RECIPES, "demo", lambda: recipe)
    begun = []
    monkeypatch.setattr("esam.cli.compare._run", lambda comparison, *_: begun.append(comparison))
    assert esam("compare", "demo", "--set", "sam.rho=0.1", "esam.ranking=random", "--out", tmp_path)[0] == 0
    assert begun[0].settings == {"sam": {"rho": 0.1, "m": 8}, "esam": {"gamma": 0.7, "ranking": "random"}}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A tiny comparison in a process of its own, as a user starts it."""
    folder = tmp_path_factory.mktemp("compared")
    words = [*TINY, "--methods", "base,sam", "--seeds", "2", "--set", "sam.rho=0.1", "--jobs", "2", "--out", folder]
    command = [sys.executable, "-m", "esam", "compare", *map(str, words)]
    return folder, words, subprocess.run(command, capture_output=True, text=True)


def test_compare_leaves_a_record_of_each_run_a_verdict_a_table_and_a_report(compared):
    folder, _, done = compared
    assert (done.returncode, done.stderr) == (0, "")
    records = {(record.method, record.seed): record for record in read_records(folder)}
    assert records.keys() == {(method, seed) for method in ("base", "sam") for seed in (0, 1)}
    assert {key: record.config["settings"] for key, record in records.items()}["sam", 1] == {"rho": 0.1}
    assert "Test acc., %" in done.stdout and f"report: {folder / 'report.html'}" in done.stdout
    assert "SAM" in (folder / "report.html").read_text()


def test_report_writes_the_page_where_it_is_asked_to(esam, compared, tmp_path):
    code, out, err = esam("report", compared[0], "--out", tmp_path / "page.html")
    assert (code, out, err) == (0, f"{tmp_path / 'page.html'}\n", "")
    assert (tmp_path / "page.html").read_text() == (compared[0] / "report.html").read_text()


def test_the_table_is_given_in_every_form_and_nothing_else_on_its_channel(esam, compared):
    said = {form: esam("compare", *compared[1], "--format", form)[1] for form in ("csv", "json", "md")}
    assert [row["Method"] for row in csv.DictReader(io.StringIO(said["csv"]))] == ["SGD", "SAM"]
    assert re.findall(r"^\| (\w+)", said["md"], re.MULTILINE) == ["Method", "SGD", "SAM"]
    for row in json.loads(said["json"]):
        ends = [record.end for record in read_records(compared[0]) if record.method == row["method"]]
        assert row["test_accuracy"] == pytest.approx(sum(end["test_accuracy"]["last"] for end in ends) / 2)
        assert row["seeds"] == [0, 1] and row["sharpness_std"] > 0


# Progress ------------------------------------------------------------------------------------------------------------

RUN = Config(data="digits", model="mlp", method="esam", train_size=100, batch_size=50, epochs=3, threads=1)


def seen(config, **how):
    """What is shown of three epochs of four batches, the first of which an earlier run had done."""
    text = io.StringIO()
    console = Console(file=text, width=80, color_system=None, **how)
    with RunView(config, console) as view:
        for epoch in (2, 3):
            for number in range(4):
                view.batch(epoch, number, 4)
            view.epoch({"epoch": epoch, "seconds": 2.0 * epoch, "train_loss": 0.25, "test_accuracy": 0.5})
    return text.getvalue()


def test_a_pipe_gets_what_takes_effect_and_a_line_an_epoch_with_the_time_left():
    first, *lines = seen(RUN).splitlines()
    assert first.startswith("ESAM: rho 0.05, beta 0.6, gamma 0.5") and "sgd, lr 0.1, weight decay 0.0005" in first
    assert re.fullmatch(r"epoch 2 of 3, train loss 0.250, test 50.00 %, about .* left", lines[0])
    assert lines[1] == "epoch 3 of 3, train loss 0.250, test 50.00 %"
    budget = seen(dataclasses.replace(RUN, budget=10.0)).splitlines()
    assert re.match("epoch 2, 4 of 10 s, train loss 0.250, test 50.00 %", budget[1]), budget[1]


@pytest.mark.parametrize("budget", [None, 6.0])
def test_a_terminal_of_80_columns_gets_a_bar_with_its_times_that_ends_full(budget):
    text = seen(dataclasses.replace(RUN, budget=budget), force_terminal=True)
    last = [line for line in text.replace("\r", "\n").splitlines() if "100 %" in line][-1]
    assert re.search(r"━ 100 % \d:\d\d:\d\d left, epoch 3.* train loss 0.250, test 50.00 %", last), last


def test_quiet_is_quiet():
    assert seen(RUN, force_terminal=True, quiet=True) == seen(RUN, quiet=True) == ""


# Channels ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_reader_that_has_gone_is_no_error_and_a_sign_that_cannot_be_shown_is_none_either(tmp_path):
    command = [sys.executable, "-m", "esam", "methods"]
    quick = ["compare", "--data", "digits", "--methods", "base", "--seeds", "1", "--epochs", "1", "--out", tmp_path]
    for own in (command, [*command[:-1], *quick]):  # the second prints through rich
        with subprocess.Popen(own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
            program.stdout.close()
            assert (program.stderr.read(), program.wait()) == ("", 141)
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path), "PATH": ""}
    done = subprocess.run(command, capture_output=True, env=ascii_only)
    assert (done.returncode, done.stderr) == (0, b"") and b"?g?" in done.stdout
