"""``esam analyze``: how sharp the minimum of a trained run is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from .parsing import parse


@dataclass(frozen=True)
class AnalyzeOptions:
    """How sharp the minimum of a trained run is. The run is only read."""

    run: Annotated[Path, tyro.conf.Positional]
    """The folder of a run of `esam train`, or one of its checkpoint files."""
    images: int = 1_000
    """Training images that the loss is taken over, evenly spaced."""
    rho: float = 0.05
    """Radius of the sharpness."""
    steps: int = 10
    """Steps of projected ascent."""
    m: int = 128
    """m-sharpness: samples that share one perturbation."""
    eigenvalues: int = 1
    """How many of the Hessian's top eigenvalues; 0: nothing of the Hessian (it needs the extra `analysis`)."""
    vectors: int = 10
    """Random vectors for the Hessian's trace."""
    landscape: int = 0
    """Points a side of a loss landscape along filter-normalised random directions; 0: none."""
    reach: float = 1.0
    """How far the landscape goes; 1 is the norm of the weights' own filters."""
    groups: int = 1
    """Pairs of directions that the landscape is averaged over; the paper's is 10."""
    device: str = "auto"
    out: Path | None = None
    """Where to write the figures as JSON."""
    pictures: Path | None = None
    """Folder for the landscape: contour and surface as SVG and PNG, and its values. Interrupted, it resumes there."""


def analyze(arguments: list[str]) -> None:
    """``esam analyze``: how sharp a run's minimum is."""
    options = parse("analyze", AnalyzeOptions, arguments)
    if options.pictures is not None and not options.landscape:
        raise ValueError("--pictures draws the landscape; say how fine, such as --landscape 31")
    from esam.analyze import described, figures, load_run, random_landscape
    from esam.files import write_atomically
    from esam.train.record import encode

    run = load_run(options.run, images=options.images, device=options.device)
    asked = {name: getattr(options, name) for name in ("rho", "steps", "m", "eigenvalues", "vectors")}
    result = {**described(run), **figures(run, **asked)}
    print(f"{run.record.name}, seed {run.record.seed}, epoch {run.epoch}, {run.objective.count:,} training images")
    for label, value in _figure_rows(result):
        print(f"  {label:44} {value}")
    if options.landscape:
        kept = None if options.pictures is None else options.pictures / "landscape.json"
        grid = {"points": options.landscape, "reach": options.reach, "groups": options.groups}
        with _progress("landscape") as progress:
            found = random_landscape(run, **grid, path=kept, progress=progress)
        result["landscape"] = found.as_json()
        print(f"  {'landscape, lowest and highest loss':44} {found.mean.min():.4g} to {found.mean.max():.4g}")
        if options.pictures is not None:
            from esam.analysis.plot import contours, surfaces

            for draw, name in ((contours, "contour"), (surfaces, "surface")):
                for path in draw(options.pictures / name, {run.record.name: found}):
                    print(path)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.out, encode(result))


def _figure_rows(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Say the figures of an analysis in words."""
    yield "loss", f"{result['loss']:.4g}"
    for name, words in (
        ("sharpness", "sharpness R_S (rho {rho:g})"),
        ("ascent_sharpness", "sharpness, {steps} steps of ascent (rho {rho:g})"),
        ("m_sharpness", "m-sharpness (m {m}, rho {rho:g})"),
        ("adaptive_sharpness", "adaptive sharpness (rho {rho:g})"),
    ):
        yield words.format(**result[name]), f"{result[name]['value']:.4g}"
    if "eigenvalues" in result:
        yield "Hessian, top eigenvalues", ", ".join(f"{value:.4g}" for value in result["eigenvalues"])
        yield "Hessian, trace ± standard error", f"{result['trace']['value']:.4g} ± {result['trace']['error']:.2g}"


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on the error channel, and give the function that moves it."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, total: bar.update(task, completed=done, total=total)
