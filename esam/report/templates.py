"""How does a page come from a template? Whatever it is given leaves escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from esam.files import write_atomically


def render(template: str, **values: Any) -> str:
    """Give the template filled with the values."""
    environment = Environment(loader=PackageLoader("esam", "report"), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    return environment.get_template(template).render(**values)


def write_html(path: Path, page: str) -> Path:
    """Write a page whole: an earlier one stays as it is until the new one is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode(errors="replace"))
    return path
