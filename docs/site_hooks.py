"""How do pages that are read in the repository become those of a site? For mkdocs and its reader of docstrings.

A picture that a page takes from ``results/`` goes along; any other link out of ``docs/`` is left as its words. The
changelog is the repository's own. Doctests in docstrings become blocks of code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
_OUTWARD = re.compile(r"(!?)\[([^\]]*)\]\(\.\./([^)]*)\)")
_DOCTEST = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """Put pages that mkdocs.yml does not name under a heading of their own, so that none is out of reach."""
    named = set(re.findall(r"[\w-]+\.md", str(config.nav)))
    others = sorted(page.name for page in (ROOT / "docs").glob("*.md") if page.name not in named)
    config.nav += [{"More": others}] if others else []
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the changelog, and the pictures of ``results/`` that some page shows."""
    changelog = (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=changelog))
    text = "".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))
    for path in sorted({path for picture, _, path in _OUTWARD.findall(text) if picture}):
        if (ROOT / path).is_file():  # a strict build tells of the others
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links out of ``docs/`` into what the site has of them."""
    return _OUTWARD.sub(lambda found: f"![{found[2]}]({found[3]})" if found[1] else found[2], markdown)


class Doctests(griffe.Extension):
    """Fences the doctests of every docstring."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change one object's docstring."""
        if obj.docstring:
            obj.docstring.value = _DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
