"""What does a process of the pool do? The job whose name is in its folder."""

from __future__ import annotations

import json
from pathlib import Path

from esam.runs.plan import CONFIG_NAME

from .items import find_job
from .results import open_results


def main(folder: Path) -> None:
    """Do a job, or go on with it."""
    order = json.loads((folder / CONFIG_NAME).read_text())
    results = open_results(order["scale"], Path(order["out"]))
    find_job(results, order["job"]).do(results.store, results.scale)
