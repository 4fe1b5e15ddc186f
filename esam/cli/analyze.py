"""``esam analyze``: how sharp the minimum of a trained run is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .parsing import parse

if TYPE_CHECKING:
    from esam.analysis import Landscape, ModelObjective


@dataclass(frozen=True)
class AnalyzeOptions:
    """How sharp the minimum of a trained run is. The run is only read."""

    run: Path
    """Folder of a run of `esam train` or `esam compare`."""
    images: int = 1_000
    """Training images that the loss is taken over, evenly spaced."""
    rho: float = 0.05
    """Radius of the sharpness."""
    eigenvalues: int = 1
    """How many of the Hessian's top eigenvalues; 0: nothing of the Hessian (it needs the extra `analysis`)."""
    landscape: int = 0
    """Points a side of a loss landscape along two filter-normalised random directions, such as 31; 0: none."""
    device: str = "auto"
    """cpu, cuda, ...; auto: an accelerator where there is one."""
    out: Path | None = None
    """Folder for the figures (analysis.json), and for picture (SVG and PNG) and values of the landscape, which resumes
    there if it is interrupted."""


def analyze(arguments: list[str]) -> None:
    """``esam analyze``: how sharp a run's minimum is."""
    options = parse("analyze", AnalyzeOptions, arguments)
    from esam.analysis import even_axis
    from esam.extras import require
    from esam.files import check_writable, write_atomically
    from esam.train.loaded_run import figures, load_run
    from esam.train.record import encode, environment

    if options.landscape:
        even_axis(1.0, options.landscape)  # refuses before the work what cannot be drawn after it
    if options.out is not None:
        check_writable(options.out / "analysis.json")
        if options.landscape:
            require("matplotlib", purpose="drawing pictures")
    if options.eigenvalues:
        require("scipy", purpose="the Hessian (--eigenvalues 0 leaves it out)")
    run = load_run(options.run, device=options.device)
    objective = run.objective(images=options.images)
    device = str(next(run.model.parameters()).device)
    about = {"run": run.about["run"], "epoch": run.epoch, "images": objective.count, "environment": environment(device)}
    result = {**about, **figures(objective, rho=options.rho, eigenvalues=options.eigenvalues)}
    print(f"{run.record.name}, seed {run.record.seed}, epoch {run.epoch}, {objective.count:,} training images")
    for label, value in _figure_rows(result):
        print(f"  {label:44} {value}")
    if options.out is not None:  # before a landscape, which may take long
        write_atomically(options.out / "analysis.json", encode(result))
    if not options.landscape:
        return
    plane = _landscape(objective, options)
    print(f"  {'landscape, lowest and highest loss':44} {plane.mean.min():.4g} to {plane.mean.max():.4g}")
    if options.out is not None:
        from esam.analysis.plot import contours

        print(*contours(options.out / "contour", {run.record.name: plane}), sep="\n")
        write_atomically(options.out / "analysis.json", encode({**result, "landscape": plane.as_json()}))


def _landscape(objective: ModelObjective, options: AnalyzeOptions) -> Landscape:
    """Return the loss on a plane, with a bar while it is computed."""
    from rich.console import Console
    from rich.progress import Progress

    from esam.analysis import even_axis, landscape, random_plane

    theta, axis = objective.parameters, even_axis(1.0, options.landscape)
    kept = None if options.out is None else options.out / "landscape.json"
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("landscape")

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        directions = [(objective, random_plane(theta, seed=0))]
        return landscape(directions, theta, [axis, axis], path=kept, progress=progress)


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
