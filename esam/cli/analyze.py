"""``esam analyze``: how sharp the minimum of a trained run is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .parsing import parse

if TYPE_CHECKING:
    from esam.analysis import ModelObjective


@dataclass(frozen=True)
class AnalyzeOptions:
    """How sharp the minimum of a trained run is. The run is only read."""

    run: Path
    """Folder of a run of `esam train` or `esam compare`."""
    images: int = 1_000
    """Training images that the loss is taken over, evenly spaced."""
    rho: float = 0.05
    """Radius of the sharpness."""
    steps: int = 10
    """Steps of projected ascent."""
    m: int = 128
    """m-sharpness: samples that share one perturbation."""
    gamma: float = 0.5
    """The share of the images that SDS would keep."""
    eigenvalues: int = 1
    """How many of the Hessian's top eigenvalues; 0: nothing of the Hessian (it needs the extra `analysis`)."""
    vectors: int = 10
    """Random vectors for the Hessian's trace."""
    landscape: int = 0
    """Points a side of a loss landscape along filter-normalised random directions, such as 31; 0: none."""
    reach: float = 1.0
    """How far the landscape goes; 1 is the norm of the weights' own filters."""
    groups: int = 1
    """Pairs of directions that the landscape is averaged over; the paper's is 10."""
    batch_size: int = 250
    """Images that are evaluated together: more take more memory."""
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
    from esam.files import check_folder
    from esam.train.loaded_run import figures, load_run
    from esam.train.record import environment

    if options.landscape:
        even_axis(options.reach, options.landscape)  # refuses before the work what cannot be drawn after it
    for name in ("groups", "m", "steps"):
        if getattr(options, name) < 1:
            raise ValueError(f"{name} must be 1 or more, got {getattr(options, name)!r}")
    if options.out is not None:
        check_folder(options.out)
        if options.landscape:
            require("matplotlib", purpose="drawing pictures")
    if options.eigenvalues:
        require("scipy", purpose="the Hessian (--eigenvalues 0 leaves it out)")
    run = load_run(options.run, device=options.device)
    objective = run.objective(images=options.images, batch_size=options.batch_size)
    device = str(next(run.model.parameters()).device)
    about = {"run": run.about["run"], "epoch": run.epoch, "images": objective.count, "environment": environment(device)}
    asked = ("rho", "steps", "m", "gamma", "eigenvalues", "vectors")
    result = {**about, **figures(objective, **{name: getattr(options, name) for name in asked})}
    print(f"{run.record.name}, seed {run.record.seed}, epoch {run.epoch}, {objective.count:,} training images")
    for label, value in _figure_rows(result):
        print(f"  {label:44} {value}")
    _write(options.out, result)  # a landscape may take long
    if options.landscape:
        _write(options.out, {**result, "landscape": _landscape(run.record.name, objective, options)})


def _write(folder: Path | None, result: dict[str, Any]) -> None:
    from esam.files import write_atomically
    from esam.train.record import encode

    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "analysis.json", encode(result))


def _landscape(name: str, objective: ModelObjective, options: AnalyzeOptions) -> dict[str, Any]:
    """Work out, tell and draw the loss on a plane."""
    from rich.console import Console
    from rich.progress import Progress

    from esam.train.loaded_run import random_landscape

    kept = None if options.out is None else options.out / "landscape.json"
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("landscape")

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        how: dict[str, Any] = {"reach": options.reach, "groups": options.groups, "path": kept, "progress": progress}
        found = random_landscape(objective, points=options.landscape, **how)
    print(f"  {'landscape, lowest and highest loss':44} {found.mean.min():.4g} to {found.mean.max():.4g}")
    if options.out is not None:
        from esam.analysis.plot import contours

        print(*contours(options.out / "contour", {name: found}), sep="\n")
    return found.as_json()


def _figure_rows(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Say the figures of an analysis in words."""
    yield "loss", f"{result['loss']:.4g}"
    for name, words in (
        ("sharpness", "sharpness R_S (rho {rho:g})"),
        ("ascent_sharpness", "sharpness, {steps} steps of ascent (rho {rho:g})"),
        ("m_sharpness", "m-sharpness (m {m}, rho {rho:g})"),
        ("adaptive_sharpness", "adaptive sharpness (rho {rho:g})"),
        ("linearity", "linearity zeta along SAM's eps (rho {rho:g})"),
    ):
        if name in result:
            yield words.format(**result[name]), f"{result[name]['value']:.4g}"
    if "selection" in result:
        sets, cosines = result["selection"]["sets"], result["selection"]["cosines"]
        for which, name in (("plus", "B+"), ("minus", "B-"), ("random", "B_rand")):
            label = f"{name}, {sets[which]['count']} images: rise, cosine to all"
            yield label, f"{sets[which]['rise']:.4g}, {cosines[which]:.3f}"
    if "eigenvalues" in result:
        yield "Hessian, top eigenvalues", ", ".join(f"{value:.4g}" for value in result["eigenvalues"])
        yield "Hessian, trace ± standard error", f"{result['trace']['value']:.4g} ± {result['trace']['error']:.2g}"
