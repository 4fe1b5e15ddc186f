"""What do the command and docs/reproduce.md show? How far the runs are, what they set and take, and every verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from esam.optim import METHODS
from esam.report.sheets import Sheet, as_markdown, as_text
from esam.train import Config
from experiments.packs import read_pack

from . import table1, table2, vit
from .data import DRAWN
from .hyperparameters import slug
from .items import ITEMS, jobs_of, sections_of
from .jobs import Job, Training
from .results import Claim, Results, open_results
from .rules import CONTRADICTED, HOLDS, INCONCLUSIVE, NOT_RUN, Verdict
from .store import FIRST_ROUND, PACK

PICTURES = PACK.parents[1] / "docs" / "paper"
IMAGES = {"CIFAR-10": 50_000, "CIFAR-100": 50_000, "ImageNet": 1_281_167}
PASS = {
    "resnet8": 1.05e-4, "wrn10-1": 1.1e-4, "resnet14": 2.5e-4, "resnet20": 3.7e-4,
    "experiments.paper.nets:pyramidnet8": 2.1e-4, "experiments.paper.nets:small_vit": 2.4e-4,
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


def left(jobs: Sequence[Job], results: Results) -> tuple[str, float, str]:
    """Return how many jobs of how many are done, the hours of the others, and what these hours are of."""
    missing = [hours(job, results) for job in jobs if not job.done(results.store)]
    unit = "GPU-h of training left" if results.scale.real else "core-h left"
    return f"{len(jobs) - len(missing)} of {len(jobs)}", sum(missing), unit


def item_list(results: Results) -> str:
    """Return the items, how far each is, and how many claims it has."""
    rows = []
    for name, module in ITEMS.items():
        done, need, unit = left(jobs_of([name], results), results)
        rows.append((name, module.NUMBER, module.TITLE, done, f"{need:,.1f}", str(len(module.CLAIMS))))
    title = f"The paper's tables and figures, scale {results.scale.name}; items share runs"
    return as_text(Sheet(title, ("item", "paper", "", "measured", unit, "claims"), tuple(rows)))


def runs_sheet(results: Results, names: Iterable[str] = tuple(ITEMS)) -> Sheet:
    """Return the run list, or what of it some items need, with what is done."""
    rows, seen, total = [], set[str](), 0.0
    for section in sections_of(names, results):
        new = [job for job in section.jobs if job.name not in seen]
        seen |= {job.name for job in new}
        done, need, unit = left(new, results)
        total += need
        rows.append((section.title, done if new else "follows from the grid", f"{need:.1f}"))
    return Sheet("", ("what, in this order", "done", unit), (*rows, ("all", "", f"{total:.1f}")))


def item_plan(name: str, results: Results) -> str:
    """Return all that the runs of an item set, and what is left to do."""
    jobs, module = jobs_of([name], results), ITEMS[name]
    done, need, unit = left(jobs, results)
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
    return "\n".join([*lines, f"{done} done; {need:,.1f} {unit}"])


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


def draw_item(name: str, results: Results, folder: Path) -> list[Path]:
    """Draw an item's pictures into a folder; A.7 has none."""
    return ITEMS[name].draw(results, folder) if hasattr(ITEMS[name], "draw") else []


Judged = tuple[str, Claim, Verdict]
"""A claim with its item and its verdict."""


def judged(results: Results) -> list[Judged]:
    """Return every claim with its item and its verdict."""
    return [(name, claim, claim.judge(results)) for name, module in ITEMS.items() for claim in module.CLAIMS]


def counted(verdicts: Iterable[str]) -> str:
    """Say how many claims have each verdict."""
    counts = Counter(verdicts)
    order = (HOLDS, CONTRADICTED, INCONCLUSIVE, NOT_RUN)
    return f"{counts.total()} claims: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in order)


def committed() -> Results:
    """Return what is committed."""
    return open_results("cpu", Path("nowhere"))


def counts() -> str:
    """Return the page's count of verdicts."""
    return f"**{counted(verdict.verdict for _, _, verdict in judged(committed()))}.**"


def claims() -> str:
    """Return one line a claim that has been measured, and where the others are."""
    found = judged(committed())
    head, rows = ("Claim", "Paper", "Verdict", "Here"), list[tuple[str, ...]]()
    for name, module in ITEMS.items():
        own = [row for row in found if row[0] == name and row[2].verdict != NOT_RUN]
        rows += [(f"**{module.NUMBER}**", "", "", "")] if own else []
        rows += [(claim.text, claim.paper, one.verdict, one.words(short=True)) for _, claim, one in own]
    missing = Counter(name for name, _, verdict in found if verdict.verdict == NOT_RUN)
    words = "\n\nNot run yet: " + ", ".join(f"{n} of {name}" for name, n in missing.items()) + "." if missing else ""
    return as_markdown(Sheet("", head, tuple(rows))) + words


def first_round() -> str:
    """Return how many claims had which verdict in the first round, by its own rules."""
    return f"Its verdicts: {counted(line['verdict'] for line in read_pack(FIRST_ROUND)['cpu/verdicts.jsonl'])}."


def runs() -> str:
    """Return what of the run list is done; one sentence once that is all of it."""
    results = committed()
    done, need, _ = left(jobs_of(ITEMS, results), results)
    return as_markdown(runs_sheet(results)) if need else f"{done} measurements are done."


def pictures() -> str:
    """Return the pictures that are committed."""
    return "\n\n".join(f"![{path.stem}](paper/{path.name})" for path in sorted(PICTURES.glob("*.png")))
