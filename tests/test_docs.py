"""The tables of README and docs are those of the committed records, and README code is code."""

import importlib.util
import re
from pathlib import Path

import pytest
import snippets
import torch

from esam import METHODS, RECOMMENDED

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


def test_no_page_prints_code_that_no_test_runs():
    """Blocks marked py show other packages' code."""
    printed = {page.name for page in (ROOT / "docs").glob("*.md") if "```python\n" in page.read_text()}
    assert printed <= {"index.md", "choosing.md", "slicesam.md", "trainers.md", "peers.md", "own.md"}
