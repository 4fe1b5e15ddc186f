"""The tables of README and docs are those of the committed records, and printed code is code."""

import importlib.util
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import snippets
import torch
import torch.nn.functional as F

import esam
import esam.analysis
from esam import METHODS, RECOMMENDED, SAM

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SPEC = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
tables = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tables)
PAGES = tables.PAGES


def test_the_tables_of_the_pages_are_what_make_docs_writes_and_every_table_is_on_a_page():
    pages = [page.read_text() for page in PAGES]
    assert [tables.written(text) for text in pages] == pages
    assert [name for name in tables.BLOCKS if f"<!-- {name} -->" not in "".join(pages)] == []


# Printed code --------------------------------------------------------------------------------------------------------


def test_the_readme_runs_as_printed_and_trains_with_the_recommended_method(capsys):
    torch.manual_seed(0)
    scope = snippets.run(ROOT / "README.md", {})
    assert scope["loss"] < 0.5  # of ten classes: chance is 2.3
    assert type(scope["optimizer"]) is METHODS[RECOMMENDED].build
    assert all(float(number) > 0 for number in capsys.readouterr().out.split())


def test_the_tutorial_runs_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scope = snippets.run("tutorial.md", {}, replace={"epochs=20": "epochs=1, threads=1", "[0, 1, 2]": "[0, 1]"})
    assert torch.isfinite(scope["loss"]) and Path(scope["result"].report).is_file()
    assert "SAM" in capsys.readouterr().out


def loop_scope():
    """What a reader's own loop has: a model, batches, a batch."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 10))
    x = torch.randn(32, 6)
    y = x.argmax(1)
    return {"torch": torch, "F": F, "model": model, "x": x, "y": y, "loader": [(x, y)] * 3}


@pytest.mark.parametrize("page", ["index.md", "loops.md", "choosing.md", "slicesam.md"])
def test_a_page_runs_as_printed(page):
    scope = snippets.run(page, {} if page == "index.md" else loop_scope())
    assert torch.isfinite(scope.get("loss", torch.zeros(())))


class LanguageModel(torch.nn.Module):
    """Tokens and targets in, logits and loss out."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Embedding(16, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 16))

    def forward(self, tokens, targets):
        logits = self.body(tokens)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Agent(torch.nn.Linear):
    """States and actions in, log-probabilities and values out."""

    def forward(self, states, actions):
        out = super().forward(states)
        return out[:, :10].log_softmax(1).gather(1, actions[:, None]).squeeze(1), out[:, 10]


def trained(script, net):
    """Return the parameters that a script of the page trains, with ``rho=0``."""
    torch.manual_seed(0)
    tokens = torch.Generator().manual_seed(1)
    scope = loop_scope() | {"SAM": SAM, "accumulation": 2, "autocast": nullcontext()}
    scope |= {"scaler": torch.amp.GradScaler("cpu")}
    scope |= {"get_batch": lambda: torch.randint(0, 16, (2, 4, 12), generator=tokens).unbind(0)}
    scope |= {"states": torch.randn(64, 6), "actions": torch.randint(0, 10, (64,)), "advantages": torch.randn(64)}
    scope |= {"old_logprob": torch.full((64,), -2.3), "returns": torch.randn(64)}
    scope |= {"model": LanguageModel() if net == "gpt" else scope["model"], "agent": Agent(6, 11)}
    exec(re.sub(r"rho=[0-9.]+", "rho=0.0", script), scope)
    return list(scope["agent" if net == "agent" else "model"].parameters())


@pytest.mark.parametrize(("number", "net"), [(0, "gpt"), (1, "agent")])
def test_a_script_takes_the_same_steps_before_and_after_its_diff_where_rho_is_zero(number, net):
    _, before, after = snippets.diffs("loops.md")[number]
    assert "backward()" in before and "backward()" not in after
    assert all(torch.equal(p, q) for p, q in zip(trained(before, net), trained(after, net), strict=True))


def test_the_page_on_fabric_runs_as_printed():
    lightning = pytest.importorskip("lightning.fabric")
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    scope = loop_scope() | {"fabric": fabric}
    assert torch.isfinite(snippets.run("trainers.md", scope, under="Fabric")["loss"])


def test_the_page_on_analysis_draws_its_picture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(4, 2)
    snippets.run("analysis.md", {"model": model, "batches": [(torch.randn(32, 4), torch.randint(0, 2, (32,)))]})
    assert (tmp_path / "my-minimum.png").stat().st_size > 1_000


def test_the_page_on_adding_a_method_adds_one(monkeypatch):
    """What it steps by is in test_new_method.py."""
    monkeypatch.setitem(METHODS, "toy", None)  # put back afterwards
    scope = snippets.run("adding.md", {"torch": torch, "model": torch.nn.Linear(3, 1)})
    assert scope["optimizer"].stretch == 3.0


def test_no_page_prints_code_that_no_test_runs():
    """Blocks marked py show other packages' code, or source that is tested where it is."""
    printed = {page.name for page in (ROOT / "docs").glob("*.md") if "```python\n" in page.read_text()}
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    assert {page for page in printed if f'"{page}"' not in tests} == set()


# What a reader looks for ---------------------------------------------------------------------------------------------


def test_everything_public_is_described():
    text = "".join((ROOT / "docs" / page).read_text() for page in ("api.md", "analysis.md"))
    shown = {line.split(".")[-1] for line in text.splitlines() if line[:3] == ":::"}
    in_words = {"METHODS", "RECOMMENDED", "Objective", "__version__"}
    assert {*esam.__all__, *esam.analysis.__all__} - in_words <= shown


def test_no_page_is_longer_than_a_readers_patience():
    limits = {"README.md": 9_500, "reproduce.md": 15_000}  # one line for each of the paper's claims
    assert {page.name for page in PAGES if len(page.read_text()) > limits.get(page.name, 10_000)} == set()


def test_the_summary_for_language_models_names_every_page():
    summary = (ROOT / "docs" / "llms.txt").read_text()
    assert {page.name for page in (ROOT / "docs").glob("*.md") if f"({page.name})" not in summary} == set()


# The site ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_site_has_every_page_reachable_from_the_first_no_broken_link_and_asks_no_other_server(tmp_path):
    """Built as ``make site`` does. It is strict: a link, an anchor, a picture or a name that is not there fails it."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert made.returncode == 0, made.stderr[-3000:]
    site = {page.stem: page.read_text() for page in tmp_path.glob("*.html")}
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert pages | {"changelog"} <= site.keys() and pages <= set(re.findall(r'href="(\w+)\.html"', site["index"]))
    assert "Probability that a tensor is perturbed" in site["api"]  # a docstring
    doctests = "&gt;&gt;&gt; "  # they are blocks of code
    assert doctests not in re.sub(r"<pre>.*?</pre>", "", site["api"], flags=re.DOTALL)
    for name, page in site.items():
        assert re.findall(r"<(?:script|img|iframe|source)[^>]* src=[\"']?(?:\w+:)?//", page) == [], name
        assert re.findall(r"<link[^>]* href=[\"']?(?:\w+:)?//", page) == [], name
    assert "https://" not in "".join(re.findall(r"@import[^;]*;|url\([^)]*\)", (tmp_path / "site.css").read_text()))
