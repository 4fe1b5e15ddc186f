"""A worker that takes the lock of its folder, says so, and holds it for good."""

import time

from esam.files import folder_lock


def main(folder):
    """Hold the folder."""
    with folder_lock(folder):
        (folder / "held").touch()
        time.sleep(600)
