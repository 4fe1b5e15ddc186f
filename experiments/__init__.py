"""Research with esam, beside the package and not in the wheel: it imports esam, never the other way."""
