"""What does a person see before anything runs: how far each item is, all that a run sets, and what it will take?"""

from __future__ import annotations

from collections.abc import Iterable

from esam.optim import METHODS
from esam.report.sheets import Sheet, as_text
from esam.train import Config

from . import table1, table2, vit
from .data import DRAWN
from .hyperparameters import slug
from .items import ITEMS, jobs_of, run_list
from .jobs import Job, Training
from .results import Results

IMAGES = {"CIFAR-10": 50_000, "CIFAR-100": 50_000, "ImageNet": 1_281_167}
PASS = {
    "resnet8": 1.05e-4, "wrn10-1": 1.1e-4, "pyramidnet8": 2.1e-4, "resnet14": 2.5e-4, "resnet20": 3.7e-4,
    "experiments.paper.data:small_vit": 2.4e-4,
}  # fmt: skip
"""Seconds of a pass of one image on one core, about, where a forward is one and a backward two."""
HOURS = {"timing": 0.0108, "plane": 0.156, "flatness": 0.0081, "savings": 0.256}
"""Of one core, for a measurement that is no training, about."""


def hours(job: Job, results: Results) -> float:
    """Return the hours of one core, or at the paper's scale of training on its GPU by the printed speeds, about."""
    kind, column_slug = job.name.split("/")[:2]
    if not isinstance(job, Training):
        return 0.0 if results.scale.real else HOURS[kind]
    config = job.config
    if results.scale.real:
        tables = {**table1.PAPER, **table2.PAPER, **vit.PAPER}
        column = next(column for column in tables if slug(column) == column_slug)
        row = tables[column].get(config.method, tables[column]["sam"])
        return IMAGES[column[1]] * config.epochs / row.images / 3600
    images = DRAWN[config.data.split(":")[-1].split("_seed")[0]]
    units = METHODS[config.method].units(dict(config.settings)) + 0.75 * job.probed * results.scale.probed_batches
    return PASS.get(config.model, 1e-4) * units * images * config.epochs / 3600


def left(jobs: Iterable[Job], results: Results) -> tuple[int, int, float]:
    """Return how many jobs are done, how many there are, and the hours of those that are not."""
    every = list(jobs)
    missing = [job for job in every if not job.done(results.store)]
    return len(every) - len(missing), len(every), sum(hours(job, results) for job in missing)


def unit(results: Results) -> str:
    """Return what hours are of."""
    return "GPU-h of training left" if results.scale.real else "core-h left"


def item_list(results: Results) -> str:
    """Return the items, how far each is, and how many claims it has."""
    rows = []
    for name, module in ITEMS.items():
        done, total, need = left(jobs_of([name], results), results)
        rows.append((name, module.NUMBER, module.TITLE, f"{done} of {total}", f"{need:,.1f}", str(len(module.CLAIMS))))
    title = f"The paper's tables and figures, scale {results.scale.name}; items share runs"
    return as_text(Sheet(title, ("item", "paper", "", "measured", unit(results), "claims"), tuple(rows)))


def runs_sheet(results: Results) -> Sheet:
    """Return the whole run list with what is done of it."""
    rows, seen, total = [], set[str](), 0.0
    for section in run_list(results):
        new = [job for job in section.jobs if job.name not in seen]
        seen |= {job.name for job in new}
        done, count, need = left(new, results)
        total += need
        rows.append((section.title, f"{done} of {count}" if count else "follows from the grid", f"{need:.1f}"))
    return Sheet("", ("what, in this order", "done", unit(results)), (*rows, ("all", "", f"{total:.1f}")))


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
        seeds = {row: f"{min(own)} to {max(own)}" if len(own) > 1 else str(own[0]) for row, own in rows.items()}
        sheet = Sheet("Runs", ("net, data", "method", "training", "seeds"), tuple((*row, seeds[row]) for row in rows))
        lines += [as_text(sheet), ""]
    if others := [job.name.split("/")[0] for job in jobs if not isinstance(job, Training)]:
        lines += [f"{len(others)} other measurements: {', '.join(sorted(set(others)))}"]
    return "\n".join([*lines, f"{done} of {total} done; {need:,.1f} {unit(results)}"])


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
