"""Which extra brings an optional package, and is the package here before the work begins?"""

from __future__ import annotations

from importlib.util import find_spec

EXTRAS = {
    **dict.fromkeys(("rich", "plotly", "jinja2", "filelock", "numpy", "PIL", "sklearn"), "train"),
    **dict.fromkeys(("datasets", "safetensors"), "train"),
    **dict.fromkeys(("scipy", "matplotlib"), "analysis"),
    "ray": "cluster",
    **dict.fromkeys(("optuna", "psycopg"), "sweep"),
    "pytorch_optimizer": "bases",
}
"""The extra of torch-esam that has a package, by the name that is imported."""


def what_to_install(package: str) -> str:
    """Return what pip should be given for a package: the extra that has it, or the package itself."""
    root = package.split(".")[0]
    return f"torch-esam[{EXTRAS[root]}]" if root in EXTRAS else root


def missing(*packages: str, purpose: str) -> list[str]:
    """Return a sentence for each of the packages that is not installed, with what to run."""
    absent = [package for package in packages if find_spec(package) is None]
    return [f"{purpose} needs {package}; run: pip install {what_to_install(package)}" for package in absent]


def require(*packages: str, purpose: str) -> None:
    """Refuse, before any work, what could not be done for want of a package."""
    if sentences := missing(*packages, purpose=purpose):
        raise ImportError("; ".join(sentences))
