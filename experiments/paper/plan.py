"""What does a person see before anything runs: how far each item is, all that a run sets, and what it will take?"""

from __future__ import annotations

from collections.abc import Iterable

from esam.optim import METHODS
from esam.report.sheets import Sheet, as_text
from esam.train import Config

from . import table1, table2, vit
from .appendix4 import Savings
from .figure4 import Flatness, Plane
from .items import ITEMS, jobs_of, run_list
from .jobs import Job, Training
from .results import Results
from .speed import Timing

SECONDS = {
    "resnet8": 1.1e-4, "wrn10-1": 1.2e-4, "pyramidnet8": 2.5e-4, "resnet14": 2.3e-4, "resnet20": 3.4e-4,
    "experiments.paper.data:small_vit": 2e-4,
}  # fmt: skip
"""Of a pass of one image on one core, about: from the recorded times of earlier runs; the last three are scaled."""
IMAGES = {"CIFAR-10": 50_000, "CIFAR-100": 50_000, "ImageNet": 1_281_167}


def hours(job: Job, results: Results) -> float:
    """Return the hours of one core, or at the paper's scale of its own GPU, that a job takes, about."""
    scale = results.scale
    if isinstance(job, Training):
        if scale.real:
            return _gpu_hours(job.config)
        units = METHODS[job.config.method].units(dict(job.config.settings))
        images = 1_500 if "imagenet" in job.config.data else 1_000
        return SECONDS.get(job.config.model, 1e-4) * units * images * job.config.epochs / 3600
    if isinstance(job, Savings):  # a pass takes 6 operations a weight and sample, and a core does 64e9 a second
        weights = job.layers * scale.width**2 * (2 if job.case == "crossed" else 1)
        return 6 * weights * 128 * (len(scale.betas) + 1) * (scale.draws + 1) * 0.8 / 64e9 / 3600
    if isinstance(job, (Flatness, Plane)):
        points, pairs = scale.plane if isinstance(job, Plane) else scale.coarse
        images = scale.plane_images if isinstance(job, Plane) else scale.images
        passes = points**2 * pairs * (1 if isinstance(job, Plane) else 2)
        passes += 0 if isinstance(job, Plane) else 6 * (60 + scale.vectors)
        return SECONDS.get(job.run.config.model, 1e-4) * images * passes / 3600
    if isinstance(job, Timing):
        each = SECONDS.get(scale.columns[job.column].model, 1e-4) * 5.5 * scale.columns[job.column].batch_size
        return each * (19 if job.study else 5) * (scale.rounds + 3) / 3600
    return 0.0


def _gpu_hours(config: Config) -> float:
    """Return a run's hours at the speed that the paper prints for it, or for the nearest method that it has."""
    for paper in (table1.PAPER, table2.PAPER, vit.PAPER):
        for (net, data), rows in paper.items():
            known = net.lower().replace("wrn-", "wrn").replace("-", "").replace("/", "")
            same = known == config.model.replace("-", "").replace("/", "") and data in _data_title(config.data)
            if same:
                row = rows.get(config.method) or rows["sam"]
                return IMAGES[data] * config.epochs / row.images / 3600
    return 0.0


def _data_title(data: str) -> str:
    return {"uoft-cs/cifar10": "CIFAR-10", "uoft-cs/cifar100": "CIFAR-100"}.get(data, "ImageNet")


def left(jobs: Iterable[Job], results: Results) -> tuple[int, int, float]:
    """Return how many jobs are done, how many there are, and the hours of those that are not."""
    every = list(jobs)
    missing = [job for job in every if not job.done(results.store)]
    return len(every) - len(missing), len(every), sum(hours(job, results) for job in missing)


def item_list(results: Results) -> str:
    """Return the items, how far each is, and how many claims it has."""
    rows = []
    for name, module in ITEMS.items():
        done, whole, need = left(jobs_of(name, results), results)
        rows.append((name, module.NUMBER, module.TITLE, f"{done} of {whole}", f"{need:,.1f}", str(len(module.CLAIMS))))
    unit = "GPU-h left" if results.scale.real else "core-h left"
    head = ("item", "paper", "", "measured", unit, "claims")
    return as_text(Sheet(f"The paper's tables and figures, scale {results.scale.name}", head, tuple(rows)))


def runs_sheet(results: Results) -> Sheet:
    """Return the whole run list with what is done of it."""
    rows, seen = [], set[str]()
    for title, jobs in run_list(results):
        new = [job for job in jobs if job.name not in seen]
        seen |= {job.name for job in new}
        done, whole, need = left(new, results)
        rows.append((title, f"{done} of {whole}" if whole else "follows from the grid", f"{need:.1f}"))
    total = sum(float(row[2]) for row in rows)
    head = ("what, in this order", "done", "core-h left")
    return Sheet("All runs", head, (*rows, ("all", "", f"{total:.1f}")))


def item_plan(name: str, results: Results) -> str:
    """Return all that the runs of an item set, and what is left to do."""
    jobs = jobs_of(name, results)
    done, whole, need = left(jobs, results)
    module = ITEMS[name]
    lines = [f"{module.NUMBER}: {module.TITLE}", (module.__doc__ or "").strip(), ""]
    rows = dict[tuple[str, ...], list[int]]()
    for job in jobs:
        if isinstance(job, Training):
            rows.setdefault(_settings(job.config), []).append(job.config.seed)
    head = ("net, data", "method", "training", "seeds")
    if rows:
        sheet = Sheet("Runs", head, tuple((*row, _seeds(seeds)) for row, seeds in rows.items()))
        lines += [as_text(sheet), ""]
    others = [job for job in jobs if not isinstance(job, Training)]
    lines += (
        [f"{len(others)} other measurements: {', '.join(sorted({job.name.split('/')[0] for job in others}))}"]
        if others
        else []
    )
    unit = "GPU-hours at the paper's printed speeds" if results.scale.real else "core-hours, about"
    return "\n".join([*lines, f"{done} of {whole} done; {need:,.1f} {unit} left"])


def _settings(config: Config) -> tuple[str, ...]:
    base = f"{config.optimizer}, lr {config.lr:g}, weight decay {config.weight_decay:g}"
    base += f", momentum {config.momentum:g}" if config.optimizer == "sgd" else ""
    told = f"{config.epochs} epochs, batch {config.batch_size}, {base}, {config.schedule} schedule"
    told += f", warm-up {config.warmup:g} epochs, augmentation {config.augment}"
    told += f", {config.size} pixels" if config.size else ""
    own = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in config.settings.items()
    )
    data = config.data.split(":")[-1].split("_seed")[0]
    return (f"{config.model.split(':')[-1]}, {data}", f"{config.method} {own}".strip(), told)


def _seeds(seeds: list[int]) -> str:
    return f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else str(seeds[0])
