"""Keep of finished runs what the results need: the epochs that were evaluated, and every tenth: ``FOLDER...``.

A run of 200 epochs has 200 lines; results are committed, and no table or figure of ours reads each epoch of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from esam.files import write_atomically

EVERY = 10


def thinned(text: str) -> str:
    """Return a finished record without most of its epochs; one that is not finished as it is."""
    lines = [json.loads(line) for line in text.splitlines()]
    if not lines or lines[-1].get("kind") != "end":
        return text
    kept = [raw for raw, line in zip(text.splitlines(), lines, strict=True) if _kept(line)]
    return "\n".join(kept) + "\n"


def _kept(line: dict[str, object]) -> bool:
    number = line.get("epoch")
    return line.get("kind") != "epoch" or "test_loss" in line or (isinstance(number, int) and number % EVERY in (0, 1))


def main() -> None:
    """Thin every record below the given folders."""
    for folder in sys.argv[1:]:
        for path in sorted(Path(folder).rglob("record.jsonl")):
            before = path.read_text()
            after = thinned(before)
            if after != before:
                write_atomically(path, after.encode())


if __name__ == "__main__":
    main()
