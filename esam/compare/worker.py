"""What does a run's own process do? ``python -m esam.compare.worker FOLDER`` runs the configuration in the folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from esam.train.config import Config
from esam.train.runs import run
from esam.train.trained import MEASURES

from .plan import CONFIG_NAME


def main(folder: Path) -> None:
    """Run, or go on with, the configuration that stands in the folder."""
    run(Config.from_json(json.loads((folder / CONFIG_NAME).read_text())), folder, measures=MEASURES, keep_weights=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
