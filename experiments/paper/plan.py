"""What does a person see before anything runs: how far each item is, all that a run sets, and what it will take?"""

from __future__ import annotations

from collections.abc import Iterable

from esam.report.sheets import Sheet, as_text
from esam.train import Config

from . import table1, table2, vit
from .hyperparameters import slug
from .items import ITEMS, jobs_of, run_list
from .jobs import Job, Training
from .results import Results

IMAGES = {"CIFAR-10": 50_000, "CIFAR-100": 50_000, "ImageNet": 1_281_167}


def hours(job: Job, results: Results) -> float:
    """Return the hours of one core, or at the paper's scale of its own GPU by the printed speeds, about."""
    if not (results.scale.real and isinstance(job, Training)):
        return job.hours(results.scale)
    for column, rows in (table1.PAPER | table2.PAPER | vit.PAPER).items():  # type: ignore[operator]
        if job.name.split("/")[1] == slug(column):
            speed = rows.get(job.config.method, rows["sam"]).images
            return float(IMAGES[column[1]] * job.config.epochs / speed / 3600)
    raise ValueError(f"{job.name} is in no table of the paper")


def left(jobs: Iterable[Job], results: Results) -> tuple[int, int, float]:
    """Return how many jobs are done, how many there are, and the hours of those that are not."""
    every = list(jobs)
    missing = [job for job in every if not job.done(results.store)]
    return len(every) - len(missing), len(every), sum(hours(job, results) for job in missing)


def item_list(results: Results) -> str:
    """Return the items, how far each is, and how many claims it has."""
    rows = []
    for name, module in ITEMS.items():
        done, total, need = left(jobs_of([name], results), results)
        rows.append((name, module.NUMBER, module.TITLE, f"{done} of {total}", f"{need:,.1f}", str(len(module.CLAIMS))))
    head = ("item", "paper", "", "measured", "GPU-h left" if results.scale.real else "core-h left", "claims")
    title = f"The paper's tables and figures, scale {results.scale.name}; items share runs"
    return as_text(Sheet(title, head, tuple(rows)))


def runs_sheet(results: Results) -> Sheet:
    """Return the whole run list with what is done of it."""
    rows, seen, total = [], set[str](), 0.0
    for section in run_list(results):
        new = [job for job in section.jobs if job.name not in seen]
        seen |= {job.name for job in new}
        done, count, need = left(new, results)
        total += need
        rows.append((section.title, f"{done} of {count}" if count else "follows from the grid", f"{need:.1f}"))
    head = ("what, in this order", "done", "GPU-h left" if results.scale.real else "core-h left")
    return Sheet("", head, (*rows, ("all", "", f"{total:.1f}")))


def item_plan(name: str, results: Results) -> str:
    """Return all that the runs of an item set, and what is left to do."""
    jobs, module = jobs_of([name], results), ITEMS[name]
    done, total, need = left(jobs, results)
    lines = [f"{module.NUMBER}: {module.TITLE}", (module.__doc__ or "").strip(), ""]
    rows = dict[tuple[str, ...], list[int]]()
    for job in jobs:
        if isinstance(job, Training):
            rows.setdefault(_settings(job.config), []).append(job.config.seed)
    if rows:
        head = ("net, data", "method", "training", "seeds")
        lines += [as_text(Sheet("Runs", head, tuple((*row, _seeds(seeds)) for row, seeds in rows.items()))), ""]
    others = [job for job in jobs if not isinstance(job, Training)]
    if others:
        lines += [f"{len(others)} other measurements: {', '.join(sorted({job.name.split('/')[0] for job in others}))}"]
    unit = "GPU-hours at the paper's printed speeds" if results.scale.real else "core-hours, about"
    return "\n".join([*lines, f"{done} of {total} done; {need:,.1f} {unit} left"])


def _settings(config: Config) -> tuple[str, ...]:
    momentum = f", momentum {config.momentum:g}" if config.optimizer == "sgd" else ""
    size = f", {config.size} pixels" if config.size else ""
    training = (
        f"{config.epochs} epochs, batch {config.batch_size}, {config.optimizer}, lr {config.lr:g}, "
        f"weight decay {config.weight_decay:g}{momentum}, {config.schedule} schedule, "
        f"warm-up {config.warmup:g} epochs, augmentation {config.augment}{size}"
    )
    settings = " ".join(f"{name} {value:g}" for name, value in config.settings.items())
    data = config.data.split(":")[-1].split("_seed")[0]
    return (f"{config.model.split(':')[-1]}, {data}", f"{config.method} {settings}".strip(), training)


def _seeds(seeds: list[int]) -> str:
    return f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else str(seeds[0])
