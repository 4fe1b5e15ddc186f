"""A run's process that takes the lock of its folder, says so, and holds it for good."""

import sys
import time
from pathlib import Path

from esam.files import folder_lock

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with folder_lock(folder):
        (folder / "held").touch()
        time.sleep(600)
