"""What is printed: bars and lines, effective defaults, tables in every form, and nothing that nobody asked for."""

import csv
import dataclasses
import io
import json
import re
import subprocess
import sys

import pytest
from rich.console import Console

from esam.cli import main
from esam.cli.progress import shown
from esam.cli.wording import as_typed
from esam.compare import Comparison, plan
from esam.optim import METHODS
from esam.recipes import RECIPES
from esam.train import Config, run
from esam.train.models import MODELS
from esam.train.record import read_records
from esam.train.trained import MEASURES

TINY = Config(data="digits", model="mlp", train_size=100, batch_size=50, epochs=2, threads=1)
WORDS = "--data digits --model mlp --train-size 100 --batch-size 50 --epochs 2 --threads 1"
TYPED = WORDS.split()
BENCH = "bench step --model mlp --batch-size 8 --size 8 --rounds 2 --no-memory"


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A comparison whose runs are done, so that the command has only to show them."""
    out = tmp_path_factory.mktemp("done")
    for planned in plan(Comparison(TINY, ("base", "sam"), (0, 1)), out):
        run(planned.config, planned.folder, measures=MEASURES)
    return [*TYPED, "--methods", "base", "sam", "--seeds", "0", "1", "--out", str(out)], out


# Options as they are typed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "typed"),
    [
        ("batch_size must be 1 or more, got 0", "--batch-size must be 1 or more, got 0"),
        ("pass size=, such as size=32, and all", "pass --size, such as --size 32, and all"),
        ("got image_column='x'; leave it out", "got --image-column 'x'; leave it out"),
        ("lower lr (0.1) or rho (0.05)", "lower --lr (0.1) or --rho (0.05)"),
        ("2 things are wrong:\n  epochs must be 0 or more", "2 things are wrong:\n  --epochs must be 0 or more"),
        ("/data/batch_size/x.png is 8x8", "/data/batch_size/x.png is 8x8"),
        ("the model has other tensors", "the model has other tensors"),
        ("leave --train-size out", "leave --train-size out"),
        ("give it as build_model= (--model a:b)", "give it as build_model= (--model a:b)"),
    ],
)
def test_a_message_names_options_as_they_are_typed_and_leaves_all_else_alone(message, typed):
    assert as_typed(message) == typed


def test_compare_offers_no_option_that_it_would_ignore(capsys):
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    offered = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
    assert {"--methods", "--seeds", "--batch-size", "--rho"} <= offered
    assert offered.isdisjoint({"--method", "--seed", "--settings"})


# Progress ------------------------------------------------------------------------------------------------------------


def seen(config, *, terminal, quiet=False):
    """What is shown of three epochs of four batches, the first of which an earlier run had done."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=140, color_system=None)
    with shown(config, "ESAM", console, quiet=quiet) as view:
        for epoch in (2, 3):
            for number in range(4):
                view.batch(epoch, number, 4)
            view.epoch({"epoch": epoch, "seconds": 2.0 * epoch, "train_loss": 0.25, "test_accuracy": 0.5})
    return text.getvalue()


def test_a_pipe_gets_a_line_an_epoch_with_the_total_and_the_time_left_and_first_what_takes_effect():
    first, *lines = seen(dataclasses.replace(TINY, epochs=3), terminal=False).splitlines()
    assert first.startswith("ESAM: rho 0.05, beta 0.6, gamma 0.5") and "sgd, lr 0.1, weight decay 0.0005" in first
    assert re.fullmatch(r"epoch 2 of 3: train loss 0.2500, test accuracy 50.00 %, about .* left", lines[0])
    assert lines[1] == "epoch 3 of 3: train loss 0.2500, test accuracy 50.00 %"


def test_a_budget_is_counted_in_seconds():
    lines = seen(dataclasses.replace(TINY, budget=10.0), terminal=False).splitlines()
    assert re.match("epoch 2, 4 of 10 s: .*about 6.0 s left", lines[1]), lines[1]


@pytest.mark.parametrize("budget", [None, 6.0])
def test_a_terminal_gets_a_bar_that_ends_full(budget):
    told = seen(dataclasses.replace(TINY, epochs=3, budget=budget), terminal=True)
    assert "━" in told and "100 %" in told and "epoch 3" in told and "test accuracy 50.00 %" in told


def test_quiet_is_quiet():
    assert seen(TINY, terminal=True, quiet=True) == seen(TINY, terminal=False, quiet=True) == ""


def test_a_quiet_training_prints_its_result_alone(capsys, tmp_path):
    assert main(["train", *TYPED, "--epochs", "1", "--quiet", "--out", str(tmp_path)]) == 0
    assert re.fullmatch(r"ESAM: test accuracy .*\n", capsys.readouterr().out)


# Tables --------------------------------------------------------------------------------------------------------------


def table(capsys, form, *words):
    assert main([*words, "--format", form]) == 0
    text = capsys.readouterr().out
    if form == "json":
        found = json.loads(text)
        return found[0].get("rows", found)
    if form == "csv":
        return list(csv.DictReader(io.StringIO(text)))
    lines = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
    head, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.mark.parametrize("form", ["csv", "json", "md"])
def test_lists_are_given_in_every_form(capsys, form):
    for command, known in (("methods", METHODS), ("models", MODELS), ("recipes", RECIPES)):
        rows = table(capsys, form, command)
        assert {row["name"] for row in rows} == set(known)
    assert {str(row["parameters"]) for row in table(capsys, form, "models")} == {
        str(m.parameters) for m in MODELS.values()
    }


@pytest.mark.parametrize("form", ["csv", "json", "md"])
def test_a_bench_is_given_in_every_form(capsys, form):
    rows = table(capsys, form, *BENCH.split(), "--contenders", "base", "sam")
    assert [(row["step by"], float(row["units"])) for row in rows] == [("base", 3), ("sam", 6)]


def test_a_bench_fits_into_80_columns_where_nobody_says_how_wide_the_reader_is(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(BENCH.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and sum(line.startswith("slicesam ") for line in lines) == 2
    assert "units: a forward pass is 1" in " ".join(lines)


def test_a_comparison_as_json_has_the_numbers_of_the_records_and_nothing_else_on_its_channel(capsys, done):
    words, out = done
    found = {row["method"]: row for row in table(capsys, "json", "compare", *words)}
    for method, row in found.items():
        ends = [record.end for record in read_records(out) if record.method == method]
        assert row["accuracy"]["mean"] == pytest.approx(sum(end["test_accuracy"]["last"] for end in ends) / 2)
        assert row["seeds"] == [0, 1] and row["sharpness"]["n"] == 2
    assert found["sam"]["gain_in_points"] is not None


@pytest.mark.parametrize("form", ["csv", "md"])
def test_a_comparison_is_given_in_every_form(capsys, done, form):
    rows = table(capsys, form, "compare", *done[0])
    assert [row["Method"] for row in rows] == ["SGD", "SAM"]


def test_a_comparison_says_first_what_takes_effect_and_a_quiet_one_does_not(capsys, done):
    assert main(["compare", *done[0]]) == 0
    out = capsys.readouterr().out
    assert out.startswith("4 runs, each 2 epochs of mlp on digits, batches of 50; sgd, lr 0.1")
    assert "  sam: rho 0.05" in out and "SAM reached" in out and "report:" in out
    assert main(["compare", *done[0], "--quiet"]) == 0
    assert "runs, each" not in (quiet := capsys.readouterr().out) and "SAM reached" in quiet


# Channels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--help"], ["report", "--help"]])
def test_a_reader_that_has_gone_is_no_error(words):
    program = subprocess.Popen(
        [sys.executable, "-m", "esam", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    program.stdout.close()
    assert program.wait() == 141 and program.stderr.read() == ""
    program.stderr.close()
