"""Imports go down only, read from the syntax tree; methods stay small."""

import ast
import graphlib
import sys
from pathlib import Path

from esam import METHODS

ROOT = Path(__file__).parent.parent / "esam"

# who may import whom, within the package; optim imports nothing but torch
ALLOWED = {
    "files": set(),
    "extras": set(),
    "optim": set(),
    "styles": {"optim"},
    "analysis": {"optim", "files", "styles"},
    "train": {"optim", "analysis", "files", "extras"},
    "report": {"optim", "train", "analysis", "files", "extras", "styles"},
    "bench": {"optim", "train", "report", "files"},
    "runs": {"optim", "train", "analysis", "report", "files", "extras"},
    "recipes": {"optim", "train", "runs"},
    "integrations": {"optim"},
    "compat": {"optim"},
    "factory": {"optim"},
    "cli": {"optim", "train", "analysis", "runs", "report", "bench", "recipes", "files", "extras"},
    "__init__": {"optim", "factory", "train", "runs"},  # what is public, on first use
    "__main__": {"cli"},
}
FILES = sorted(ROOT.rglob("*.py"))


def room_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path):
    """Yield the absolute dotted names that a file imports, modules and what is taken from them."""
    package = ("esam", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def test_every_room_is_in_the_table_and_the_table_has_no_cycle():
    assert {room_of(path) for path in FILES} <= ALLOWED.keys()
    list(graphlib.TopologicalSorter(ALLOWED).static_order())  # raises CycleError


def test_imports_go_down_only_never_to_the_experiments_nor_to_the_reference():
    for path, name in ((file, name) for file in FILES for name in imports(file)):
        package, _, rest = name.partition(".")
        inner = rest.split(".")[0]
        if package == "esam" and inner and ((ROOT / inner).is_dir() or (ROOT / f"{inner}.py").exists()):
            assert inner in ALLOWED[room_of(path)] | {room_of(path)}, (path, name)
        assert package != "experiments" and "reference" not in name.split("."), (path, name)
        if room_of(path) == "optim":
            assert package in {"esam", "torch"} | sys.stdlib_module_names, (path, name)


def lines_of_code(path):
    """Count lines without blank ones, comments and docstrings."""
    source = path.read_text()
    words = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            words.update(range(node.lineno, node.end_lineno + 1))
    lines = enumerate(source.splitlines(), start=1)
    return sum(n not in words and bool(line.strip()) and not line.strip().startswith("#") for n, line in lines)


def test_a_methods_file_has_at_most_90_lines_of_code_and_optim_at_most_20_files():
    files = {Path(sys.modules[row.build.__module__].__file__) for row in METHODS.values()}
    sizes = {path.name: lines_of_code(path) for path in files}
    assert {"sam.py", "looksam.py", "esam.py"} <= sizes.keys()
    assert all(15 <= size <= 90 for size in sizes.values()), sizes
    assert len(list((ROOT / "optim").glob("*.py"))) <= 20
