"""Imports go down only, read from the syntax tree."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "esam"

# who may import whom, within the package; optim imports nothing but torch
ALLOWED = {
    "optim": set(),
    "analysis": {"optim", "files"},
    "train": {"optim", "analysis", "files"},
    "report": {"optim", "train", "files"},
    "bench": {"optim", "train", "report"},
    "compare": {"optim", "train", "report", "files"},
    "reproduce": {"optim", "train", "analysis", "compare", "report", "files"},
    "recipes": {"optim", "train", "analysis", "compare", "bench", "reproduce", "report", "files"},
    "integrations": {"optim"},
}


def imports(path):
    """Yield the absolute dotted names that a file imports."""
    package = ("esam", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            yield ".".join([*start, *([node.module] if node.module else [])])


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down_only(path):
    room = path.relative_to(ROOT).parts[0]
    if room not in ALLOWED:
        return
    for name in imports(path):
        if name.split(".")[0] == "esam" and name.count("."):
            assert name.split(".")[1] in ALLOWED[room] | {room}, f"{path.name} imports {name}"


def test_optim_needs_torch_and_the_standard_library_only():
    for path in (ROOT / "optim").rglob("*.py"):
        for name in imports(path):
            assert name.split(".")[0] in {"esam", "torch"} | sys.stdlib_module_names, f"{path.name} imports {name}"


def test_nothing_fast_imports_the_reference():
    for path in FILES:
        assert path.name == "reference.py" or not any(n.endswith("reference") for n in imports(path)), path


def test_a_method_file_is_small_and_overrides_no_step():
    for name in ("sam", "asam", "looksam", "esam"):
        text = (ROOT / "optim" / f"{name}.py").read_text()
        assert "def step" not in text
