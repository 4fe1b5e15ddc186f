"""What does an observed run's own process do? ``python -m esam.reproduce.worker FOLDER`` trains it and looks."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from esam.compare.plan import CONFIG_NAME
from esam.train.config import Config
from esam.train.runs import run
from esam.train.trained import MEASURES

from .observe import Observer, read_look


def main(folder: Path) -> None:
    """Run, or go on with, the configuration that stands in the folder, under its look."""
    config, look = Config.from_json(json.loads((folder / CONFIG_NAME).read_text())), read_look(folder)
    if config.rho is not None:  # as far as the run itself perturbs
        look = dataclasses.replace(look, rho=config.rho)
    run(config, folder, measures=MEASURES, observe=Observer(folder, look, config.epochs))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
