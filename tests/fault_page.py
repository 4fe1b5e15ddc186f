"""All faults, and the page that shows them: docs/faults.md."""

import contextlib
import io
import os
import tempfile
from pathlib import Path
from unittest import mock

import fault_rows
import fault_rows_python
import fault_rows_runs
from fault_catalogue import HEAD, SURROUNDINGS, line, outcome
from fault_place import Place

CATALOGUE = {**fault_rows.ROWS, **fault_rows_runs.ROWS, **fault_rows_python.ROWS}


def page() -> str:
    """Return the tables of ``docs/faults.md``: every fault as it happens now."""
    parts = []
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, SURROUNDINGS | {"ESAM_CACHE": folder}):
        os.environ.pop("ESAM_DATA", None)
        before = Path.cwd()
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                place = Place(folder)
            for category, faults in CATALOGUE.items():
                rows = [line(fault, outcome(fault, place)) for fault in faults]
                parts.append("\n".join([f"### {category}", "", HEAD, *rows]))
        finally:
            os.chdir(before)
    return "\n\n".join(parts)
