"""``python -m esam``."""

import sys

from esam.cli import main

if __name__ == "__main__":
    sys.exit(main())
