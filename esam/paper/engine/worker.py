"""What does a probed run's own process do? ``python -m esam.paper.engine.worker FOLDER`` trains and probes it."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from esam.compare.plan import CONFIG_NAME
from esam.train.config import Config
from esam.train.runs import run
from esam.train.trained import MEASURES

from .observer import Observer, read_probe


def main(folder: Path) -> None:
    """Run, or resume, the configuration that stands in the folder, under its probe."""
    config, probe = Config.from_json(json.loads((folder / CONFIG_NAME).read_text())), read_probe(folder)
    probe = dataclasses.replace(probe, rho=config.settings.get("rho", probe.rho))  # as far as the run itself perturbs
    run(config, folder, measures=MEASURES, observe=Observer(folder, probe, config.epochs))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
