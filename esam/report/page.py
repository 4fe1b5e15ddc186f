"""How do records and tables become one HTML page that needs nothing else?"""

from __future__ import annotations

import base64
import hashlib
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from esam.files import write_atomically
from esam.report import settings
from esam.report.charts import Chart, Drawn, charts
from esam.report.results import details_sheet, results_sheet, searches, tried_sheet
from esam.report.sheets import Sheet
from esam.report.summaries import MethodSummary, summarise
from esam.report.verdict import Advice, Tile, advice, verdict
from esam.styles import MethodStyle, styles
from esam.train.record import RECORD_NAME, RunRecord, read_records

REPORT_NAME = "report.html"


@dataclass(frozen=True)
class Section:
    """One part of a page, from the first answer to the small print; what is empty is not shown."""

    title: str = ""
    lead: str = ""
    tiles: Sequence[Tile] = ()
    table: Sheet | None = None
    """The table whose rows the chips switch."""
    styles: Sequence[MethodStyle] = ()
    """One for each row of the table."""
    tags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Words behind a row's name."""
    best: Collection[str] = ()
    """Rows that are marked."""
    advice: Sequence[Advice] = ()
    sheets: Sequence[Sheet] = ()
    folded: Sequence[Sheet] = ()
    """Tables that open on a click."""
    left_out: Sequence[str] = ()
    charts: Sequence[Chart] = ()


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write one self-contained page about all the runs below `folder`, and return its path.

    The page goes to `out`, or to report.html in the folder. It loads nothing, so it can be sent around.
    """
    broken: list[str] = []
    records = read_records(folder, broken=broken)
    if not records and broken:
        raise ValueError(broken[0])
    if not records:
        raise ValueError(f"no {RECORD_NAME} in {folder} or below it: train something first, as by esam compare")
    path = Path(folder) / REPORT_NAME if out is None else Path(out)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of the page, such as {path / REPORT_NAME}")
    for problem in broken:
        warnings.warn(f"{problem}; its run is left out", stacklevel=2)
    conditions = summarise(records)
    every = [one for methods in conditions.values() for one in methods]
    named = styles({one.name: one.method for one in every})
    common, differing = settings.common_and_differing([run for one in every for run in one.runs])
    unread = [f"A record cannot be read, and its run is left out: {problem}." for problem in broken]
    runs = {title: [run for one in methods for run in one.runs] for title, methods in conditions.items()}
    finished = sum(record.finished for record in records)
    return write_page(
        path,
        title=_title(list(named), {str(record.config.get("data", "")) for record in records}),
        lead="" if len(conditions) == 1 else f"{finished} finished runs under {len(conditions)} conditions.",
        sections=[_section(title, methods, named) for title, methods in conditions.items()],
        notes=[*settings.notes(records), *unread],
        styles=list(named.values()),
        facts=[common, settings.data_sheet(records), settings.environments(records), differing],
        footer=_provenance(records, finished),
        runs=settings.run_data(runs),
    )


def write_page(
    path: Path,
    *,
    title: str,
    sections: Sequence[Section],
    footer: str,
    lead: str = "",
    notes: Sequence[str] = (),
    styles: Sequence[MethodStyle] = (),
    facts: Sequence[Sheet] = (),
    runs: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write a page of sections atomically: an earlier one stays as it is until the new one is complete.

    ``styles`` become chips that switch methods; ``facts`` are the small tables at the end, the last in full width;
    ``runs`` can be saved from the page. Without charts the page has no script.
    """
    figures = [{"title": c.title, "traces": c.traces, "layout": c.layout} for s in sections for c in s.charts]
    scripts: dict[str, str] = {}
    if figures:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # here, as tables do without it

        script = Path(__file__).with_name("report.js").read_text(encoding="utf-8")
        scripts = {"plotly": get_plotlyjs().replace("\r\n", "\n"), "script": script}
    environment = Environment(loader=PackageLoader("esam", "report"), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    page = environment.get_template("page.html").render(
        title=title,
        lead=lead,
        sections=sections,
        notes=notes,
        styles=styles,
        facts=facts,
        footer=footer,
        runs=runs,
        figures=figures,
        scripts=scripts,
        policy=_policy(scripts.values()),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode(errors="replace"))
    return path


def _section(title: str, methods: Sequence[MethodSummary], named: Mapping[str, MethodStyle]) -> Section:
    drawn = [Drawn(one, named[one.name]) for one in methods]
    answer, changes = verdict(methods), advice(methods)
    seeds = sorted({one.n for one in methods})
    over = f"Means of {seeds[0]} seeds" if len(seeds) == 1 else "Means over the seeds"
    caption = (
        f"{over} ± sample standard deviation; in brackets: 95 % interval, each by itself"
        if seeds[-1] > 1
        else "One seed"
    )
    tags = {one.name: [*(["base"] if one.is_base else [])] for one in methods}
    for change in changes:
        for name in change.names:
            tags[name].append(change.word)
    tried = tried_sheet(searches(methods))
    return Section(
        title=title,
        lead=answer.sentence,
        tiles=answer.tiles,
        table=results_sheet(methods, caption),
        styles=[one.style for one in drawn],
        tags=tags,
        best=answer.best,
        advice=changes,
        folded=[details_sheet(methods, "More figures"), tried],
        left_out=[item for one in methods for item in one.left_out()],
        charts=charts(drawn),
    )


def _title(names: Sequence[str], data: Collection[str]) -> str:
    listed = (
        " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if len(names) <= 4 else f"{len(names)} methods"
    )
    return (f"{listed} compared" if len(names) > 1 else listed) + (f" on {', '.join(data)}" if len(data) == 1 else "")


def _provenance(records: Sequence[RunRecord], finished: int) -> str:
    days = sorted({str(record.run.get("started", ""))[:10] for record in records})
    when = " to ".join([days[0], *days[1:][-1:]])
    return f"From the records of {finished} finished and {len(records) - finished} unfinished runs, started {when}."


def _policy(scripts: Iterable[str]) -> str:
    """Let the page run its own scripts and load nothing, so that no name in a record can do either."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src {allowed}"
