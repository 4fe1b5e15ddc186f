"""The tables of README and docs are those of the committed records, and README code is code."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import snippets
import torch

import esam
import esam.analysis
from esam import METHODS, RECOMMENDED, SAM

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SPEC = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
tables = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tables)


@pytest.mark.parametrize(
    "page", [page for page in tables.PAGES if page.name != "faults.md"], ids=lambda page: page.name
)  # test_fault_catalogue compares that one, line by line
def test_a_pages_tables_are_what_make_docs_writes(page):
    text = page.read_text()
    assert tables.written(text) == text


def test_every_table_stands_on_a_page():
    pages = "".join(page.read_text() for page in tables.PAGES)
    assert [name for name in tables.BLOCKS if f"<!-- {name} -->" not in pages] == []


def test_the_readme_can_be_read_in_one_sitting():
    assert len(README) <= 9_500


def test_the_readmes_loop_is_the_recommended_methods_and_learns():
    torch.manual_seed(0)
    x = torch.randn(96, 64)
    scope = {"loader": [(x[i : i + 32], x[i : i + 32, :10].argmax(1)) for i in (0, 32, 64)]}
    exec(BLOCKS[0], scope)
    assert scope["loss"] < 0.5
    assert type(scope["optimizer"]) is METHODS[RECOMMENDED].build


def test_the_readmes_phases_are_one_step():
    model, twin = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    twin.load_state_dict(model.state_dict())
    x = torch.randn(8, 3)
    whole, phases = (METHODS["sam"](torch.optim.SGD(m.parameters(), lr=0.1), m) for m in (model, twin))
    loss = whole.step(lambda keep: model(x[keep]).square().mean())
    scope = {"optimizer": phases, "closure": lambda keep: twin(x[keep]).square().mean()}
    exec(BLOCKS[1], scope)
    assert scope["loss"] == loss and torch.equal(model.weight, twin.weight)


def test_the_readmes_analysis_runs_on_a_users_own_model(capsys):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    batches = [(torch.randn(32, 5), torch.randint(0, 2, (32,))) for _ in range(2)]
    exec(BLOCKS[2], {"model": model, "batches": batches})
    first, second = capsys.readouterr().out.splitlines()
    assert all(float(number) > 0 for number in first.split()) and second.count(",") == 2


def names_of_tests():
    return {
        name for path in (ROOT / "tests").glob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }


def test_every_wish_has_an_answer_and_a_test_that_exists():
    rows = [line.split("|") for line in (ROOT / "docs" / "wishes.md").read_text().splitlines() if "`test_" in line]
    assert len(rows) >= 20
    for _, wish, answer, test, _ in rows:
        assert answer.strip(), wish
        assert set(re.findall(r"`(test_\w+)`", test)) <= names_of_tests(), wish


def test_the_pages_for_a_start_and_for_choosing_run_as_printed():
    x = torch.randn(32, 64)
    scope = snippets.run("index.md", {"loader": [(x, x[:, :10].argmax(1))] * 2})
    assert torch.isfinite(scope["loss"])
    snippets.run("choosing.md", scope)
    snippets.run("slicesam.md", scope)


def test_the_gallerys_picture_of_ones_own_model_is_drawn_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(4, 2)
    snippets.run("gallery.md", {"model": model, "batches": [(torch.randn(8, 4), torch.randint(0, 2, (8,)))]})
    assert (tmp_path / "my-minimum.png").stat().st_size > 1_000


def test_the_page_on_adding_a_method_adds_one_that_is_sam_unstretched(monkeypatch):
    monkeypatch.setitem(METHODS, "toy", None)  # put back afterwards
    torch.manual_seed(0)
    model, twin, x = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1), torch.randn(8, 3)
    twin.load_state_dict(model.state_dict())
    scope = snippets.run("adding.md", {"torch": torch, "model": model})
    assert scope["optimizer"].stretch == 3.0
    toy = METHODS["toy"](torch.optim.SGD(model.parameters(), lr=0.1), model, stretch=1.0)
    toy.step(lambda keep: model(x[keep]).square().mean())
    SAM(torch.optim.SGD(twin.parameters(), lr=0.1), twin).step(lambda keep: twin(x[keep]).square().mean())
    assert torch.equal(model.weight, twin.weight)


def test_no_page_prints_code_that_no_test_runs():
    """Blocks marked py show other packages' code, or source that is tested where it stands."""
    printed = {page.name for page in (ROOT / "docs").glob("*.md") if "```python\n" in page.read_text()}
    run = {"index.md", "choosing.md", "slicesam.md", "gallery.md", "adding.md", "trainers.md", "peers.md", "own.md"}
    assert printed <= run


def test_everything_public_stands_on_the_api_page():
    shown = {line.split(".")[-1] for line in (ROOT / "docs" / "api.md").read_text().splitlines() if line[:3] == ":::"}
    told = {"METHODS", "RECOMMENDED", "Objective", "__version__"}  # in words
    assert {*esam.__all__, *esam.analysis.__all__} - told <= shown


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as ``make site`` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert found.returncode == 0, found.stderr[-3000:]
    return folder


def test_the_site_has_every_page_every_picture_and_docstrings_with_no_broken_link(site):
    """The build is strict: a link, an anchor, a picture or a name that is not there fails it."""
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert pages | {"changelog"} <= {page.stem for page in site.glob("*.html")}
    api = (site / "api.html").read_text()
    assert "Probability that a tensor is perturbed" in api  # a docstring
    assert "&gt;&gt;&gt; " not in re.sub(r"<pre>.*?</pre>", "", api, flags=re.DOTALL)  # doctests stand in blocks
    assert len(list((site / "results").rglob("*.png"))) >= 8


def test_every_page_can_be_reached_from_the_first(site):
    linked = set(re.findall(r'href="(\w+)\.html"', (site / "index.html").read_text()))
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= linked


def test_the_site_asks_no_other_server_for_anything(site):
    for page in site.glob("*.html"):
        fetched = re.findall(r"<(?:script|img|iframe|source)[^>]* src=[\"']?(\w+:)?//", page.read_text())
        fetched += re.findall(r"<link[^>]* href=[\"']?(\w+:)?//", page.read_text())
        assert fetched == [], page.name
    assert "https://" not in "".join(re.findall(r"@import[^;]*;|url\([^)]*\)", (site / "site.css").read_text()))
