"""How do records become one HTML page that needs nothing else?"""

from __future__ import annotations

import base64
import hashlib
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from esam.files import write_atomically
from esam.report import settings
from esam.report.charts import charts
from esam.report.results import details_sheet, results_sheet, searches, tried_sheet
from esam.report.summaries import MethodSummary, summarise
from esam.report.verdict import advice, listed, verdict
from esam.styles import MethodStyle, styles
from esam.train.record import RECORD_NAME, RunRecord, read_records

REPORT_NAME = "report.html"


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write one self-contained page about all the runs below `folder`, and return its path.

    The page goes to `out`, or to report.html in the folder. It loads nothing, so it can be sent around. It is written
    atomically: an earlier one stays as it is until the new one is complete.
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
    unread = [f"A record cannot be read, and its run is left out: {problem}." for problem in broken]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _page(records, unread).encode(errors="replace"))
    return path


def _page(records: Sequence[RunRecord], unread: Sequence[str]) -> str:
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # slow, and tables do without it

    conditions = summarise(records)
    every = [summary for methods in conditions.values() for summary in methods]
    style_of = styles({summary.name: summary.method for summary in every})
    sections = [_section(title, methods, style_of) for title, methods in conditions.items()]
    figures = [{"title": c.title, "traces": c.traces, "layout": c.layout} for s in sections for c in s["charts"]]
    finished = sum(record.finished for record in records)
    common, differing = settings.common_and_differing([run for summary in every for run in summary.runs])
    ours = Path(__file__).with_name("report.js").read_text(encoding="utf-8")
    scripts = [get_plotlyjs().replace("\r\n", "\n"), ours]
    environment = Environment(loader=PackageLoader("esam", "report"), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    return environment.get_template("page.html").render(
        title=_title(list(style_of), {str(record.config.get("data", "")) for record in records}),
        lead="" if len(conditions) == 1 else f"{finished} finished runs under {len(conditions)} conditions.",
        sections=sections,
        styles=list(style_of.values()),
        notes=[*settings.notes(records), *unread],
        facts=[common, settings.data_sheet(records), settings.environment_sheet(records)],
        differing=differing,
        footer=_provenance(records, finished),
        figures=figures,
        scripts=scripts,
        policy=_policy(scripts),
    )


def _section(title: str, methods: Sequence[MethodSummary], style_of: Mapping[str, MethodStyle]) -> dict[str, Any]:
    """Return what the page shows of one condition, from the answer to the small print."""
    changes, seeds = advice(methods), sorted({summary.n for summary in methods})
    over = f"Means of {seeds[0]} seeds" if len(seeds) == 1 else "Means over the seeds"
    words = f"{over} ± sample standard deviation; in brackets: 95 % interval, each by itself"
    tags = {summary.name: ["base"] if summary.is_base else [] for summary in methods}
    for change in changes:
        for name in change.names:
            tags[name].append(change.word)
    return {
        "title": title,
        "verdict": verdict(methods),
        "table": results_sheet(methods, words if seeds[-1] > 1 else "One seed"),
        "styles": [style_of[summary.name] for summary in methods],
        "tags": tags,
        "advice": changes,
        "folded": [details_sheet(methods, "More figures"), tried_sheet(searches(methods))],
        "left_out": [item for summary in methods for item in summary.left_out()],
        "charts": charts([(summary, style_of[summary.name]) for summary in methods]),
    }


def _title(names: Sequence[str], data: Collection[str]) -> str:
    title = listed(names) if len(names) <= 4 else f"{len(names)} methods"
    return (f"{title} compared" if len(names) > 1 else title) + (f" on {', '.join(data)}" if len(data) == 1 else "")


def _provenance(records: Sequence[RunRecord], finished: int) -> str:
    days = sorted({str(record.run.get("started", ""))[:10] for record in records})
    when = " to ".join([days[0], *days[1:][-1:]])
    return f"From the records of {finished} finished and {len(records) - finished} unfinished runs, started {when}."


def _policy(scripts: Iterable[str]) -> str:
    """Let the page run its own scripts and load nothing, so that no name in a record can do either."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src {allowed}"
