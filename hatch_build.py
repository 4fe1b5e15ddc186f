"""Turns the README into what a package index shows: links into the repository become their words, pictures go."""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Description(MetadataHookInterface):
    """Sets the description of wheel and sdist."""

    def update(self, metadata: dict) -> None:
        """Add the README without what only a clone can follow."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = re.sub(r"!\[[^\]]*\]\((?!https://)[^)]*\)\n+", "", text)
        text = re.sub(r"\[([^\]]*)\]\((?!https://)[^)]*\)", r"\1", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
