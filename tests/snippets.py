"""The code that a page prints is code: run it, block by block, in one scope."""

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def diffs(page):
    """Return, of each diff of a page, its heading, and the code before and after it."""
    found = []
    for section in re.split(r"^## ", (DOCS / page).read_text(), flags=re.MULTILINE):
        for block in re.findall(r"^```diff\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
            lines = block.splitlines()
            before, after = ("\n".join(line[1:] for line in lines if line[:1] in ("", " ", side)) for side in "-+")
            found.append((section.splitlines()[0], before, after))
    return found


def run(page, scope, under=None, replace=None):
    """Run the Python blocks of a page of the docs, or those under one of its headings; return the scope.

    ``replace`` makes what a reader runs in a minute what a test runs in a second.
    """
    text = (DOCS / page).read_text()
    for before, after in (replace or {}).items():
        assert before in text
        text = text.replace(before, after)
    if under is not None:
        text = re.split(r"^## ", text.split(f"\n## {under}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert blocks, f"{page} has no code there"
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"{page}, block {number}", "exec"), scope)
    return scope
