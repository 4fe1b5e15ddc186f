"""How do run records become one HTML page that needs nothing else?"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from esam.files import write_atomically
from esam.palette import assign_colours
from esam.report import markup, settings, words
from esam.report.charts import Drawn, charts
from esam.report.groups import Section, compare
from esam.report.table import section_rows
from esam.train.record import RECORD_NAME, RunRecord, read_records


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write one self-contained page about all the runs below `folder`, and return where it is.

    The page goes to `out`, or to report.html in the folder. It loads nothing, so it opens from disk and can be sent
    around. An earlier report stays as it is until the new one is complete.
    """
    records = read_records(folder)
    if not records:
        raise ValueError(
            f"no {RECORD_NAME} in {folder} or below it: train something first, for instance with esam compare"
        )
    path = Path(folder) / "report.html" if out is None else Path(out)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of the page, such as {path / 'report.html'}")
    page = render(records)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode(errors="replace"))
    return path


def render(records: Sequence[RunRecord]) -> str:
    """The page as text; the same records give the same page."""
    sections = compare(records)
    names = {group.name: group.method for section in sections for group in section.groups}
    colours = assign_colours(names)
    keys = {name: f"g{number}" for number, name in enumerate(names)}
    figures: list[dict[str, Any]] = []
    body = "".join(_section(section, colours, keys, figures) for section in sections)
    scripts = {"plotly": _plotly_js(), "script": _asset("report.js")}
    title = _title(records, list(names))
    return Template(_asset("page.html")).substitute(
        policy=_policy(scripts.values()),
        title=escape(title),
        style=_asset("report.css"),
        lead=markup.paragraph(_lead(records, sections)),
        remarks=markup.remarks(settings.notes(records)),
        chips=markup.chips(keys, colours),
        sections=body,
        settings=_settings(records, sections),
        reproduce=markup.reproduce(settings.commands(records)),
        footer=escape(_provenance(records)),
        figures=_json_for_html(figures),
        **scripts,
    )


def _section(section: Section, colours: dict[str, str], keys: dict[str, str], figures: list[dict[str, Any]]) -> str:
    groups = {group.name: group for group in section.groups}
    rows = section_rows(section)
    drawn = [Drawn(groups[row.name], row, keys[row.name], colours[row.name]) for row in rows]
    heading = f"<h2>{escape(_capital(section.title))}</h2>" if section.title else ""
    places = ""
    for chart in charts(drawn):
        places += markup.figure(chart, len(figures))
        figures.append({"traces": chart.traces, "layout": chart.layout})
    return (
        f"<section>{heading}{markup.paragraph(words.summary(rows)) if heading else ''}"
        f"{markup.results(drawn, 'Means over the seeds ± sample standard deviation')}{markup.left_out(section.groups)}"
        f'<div class="charts">{places}</div></section>'
    )


def _title(records: Sequence[RunRecord], names: Sequence[str]) -> str:
    told = words.joined(names) if len(names) <= 4 else f"{len(names)} methods"
    common, _ = settings.common_and_differing(records)
    data = next((f" on {common[key]}" for key in ("data", "dataset", "data.name") if key in common), "")
    return (f"{told} compared" if len(names) > 1 else told) + data


def _lead(records: Sequence[RunRecord], sections: Sequence[Section]) -> str:
    if len(sections) == 1:
        return words.summary(section_rows(sections[0]))
    finished = sum(record.finished for record in records)
    titles = "; ".join(section.title for section in sections)
    return f"{finished} finished runs under {len(sections)} conditions, each with its own table and charts: {titles}."


def _provenance(records: Sequence[RunRecord]) -> str:
    finished = sum(record.finished for record in records)
    days = sorted(str(record.run.get("started", ""))[:10] for record in records)
    when = f"started {days[0]}" if days[0] == days[-1] else f"started from {days[0]} to {days[-1]}"
    return f"From the records of {finished} finished and {len(records) - finished} unfinished runs, {when}."


def _settings(records: Sequence[RunRecord], sections: Sequence[Section]) -> str:
    groups = [group for section in sections for group in section.groups]
    names = dict.fromkeys(run.name for group in groups for run in (*group.finished, *group.unfinished))
    common, differing = settings.common_and_differing(records)
    tables = markup.facts("Common to all runs", common) + markup.facts("Environment", settings.environments(records))
    return f'<div class="pair">{tables}</div>{markup.differences("What differs", differing, list(names))}'


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _asset(name: str) -> str:
    return files("esam.report").joinpath(name).read_text(encoding="utf-8")


def _plotly_js() -> str:
    try:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # here, as tables do without it
    except ImportError as error:
        raise ImportError("the report draws its charts with plotly: pip install plotly") from error
    return str(get_plotlyjs()).replace("\r\n", "\n")


def _policy(scripts: Any) -> str:
    """Let the page run its own two scripts and load nothing, so that no name in a record can do either."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src {allowed}"


def _json_for_html(value: Any) -> str:
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
