"""How do run records become one HTML page that needs nothing else?"""

from __future__ import annotations

import base64
import hashlib
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from esam.report import settings, words
from esam.report.advice import verdicts
from esam.report.charts import Drawn, endings
from esam.report.colours import assign_colours
from esam.report.command import commands_for
from esam.report.curves import histories
from esam.report.data import data_sheet, taken_data
from esam.report.landscapes import Surroundings, landscape_charts, read_analyses
from esam.report.results import results_sheet
from esam.report.sheets import Sheet
from esam.report.summaries import MethodSummary, summarise
from esam.report.templates import render, write_html
from esam.report.tuned import searches, tried_sheet
from esam.train.record import RECORD_NAME, RunRecord, read_records

REPORT_NAME = "report.html"


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write one self-contained page about all the runs below `folder`, and return where it is.

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
    for told in broken:
        warnings.warn(f"{told}; its run is left out", stacklevel=2)
    return write_html(path, _page(records, read_analyses(Path(folder)), broken))


def _page(records: Sequence[RunRecord], analyses: Sequence[Surroundings], broken: Sequence[str] = ()) -> str:
    """The page as text; the same records and analyses give the same page."""
    conditions = summarise(records)
    every = [one for methods in conditions.values() for one in methods]
    colours = assign_colours({one.name: one.group.method for one in every})
    keys = {name: f"g{number}" for number, name in enumerate(colours)}
    sections = [
        _section(condition, [Drawn(one, keys[one.name], colours[one.name]) for one in methods], analyses)
        for condition, methods in conditions.items()
    ]
    common, differing = settings.common_and_differing([run for one in every for run in one.group.runs])
    return filled_page(
        title=_title(list(keys), {str(record.config.get("data", "")) for record in records}),
        lead=_lead(records, conditions),
        notes=[*settings.notes(records), *(f"A record cannot be read, and its run is left out: {t}." for t in broken)],
        chips=[(name, keys[name], colours[name]) for name in keys],
        sections=sections,
        common=common,
        environment=settings.environments(records),
        differing=differing,
        footer=provenance(records),
        data=data_sheet(records),
        taken=taken_data(
            {title: [run for one in found for run in one.group.runs] for title, found in conditions.items()}
        ),
    )


def filled_page(
    *,
    sections: Sequence[Mapping[str, Any]],
    data: Sheet = Sheet("Data", ("Entry", "Value"), ()),  # noqa: B008 - frozen
    taken: Sequence[Mapping[str, Any]] = (),
    **told: Any,
) -> str:
    """A page of sections, each with a table and charts, and with all that it needs to draw them.

    ``taken`` are the runs that can be saved from it.
    """
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # here, as tables do without it

    script = Path(__file__).with_name("report.js").read_text(encoding="utf-8")
    scripts = {"plotly": get_plotlyjs().replace("\r\n", "\n"), "script": script}
    figures = [
        {"title": c.title, "traces": c.traces, "layout": c.layout} for section in sections for c in section["charts"]
    ]
    told |= {"policy": _policy(scripts.values()), "figures": figures, "data": data, "taken": taken}
    return render("page.html", sections=sections, **scripts, **told)


def _section(condition: str, drawn: Sequence[Drawn], analyses: Sequence[Surroundings]) -> dict[str, Any]:
    methods = [one.summary for one in drawn]
    found = verdicts(methods)
    every = [*histories(drawn), *endings(drawn), *landscape_charts(drawn, analyses)]
    every.sort(key=lambda chart: chart.wide)  # in pairs, and then what takes a row of its own
    return {
        "condition": condition,
        "sentences": words.sentences(methods),
        "sheet": results_sheet(methods, "Means over the seeds ± sample standard deviation"),
        "drawn": drawn,
        "verdicts": found,
        "tags": {verdict.name: verdict.word for verdict in found},
        "search": tried_sheet(searches(methods)),
        "commands": commands_for([one.group for one in methods]),
        "left_out": [item for one in methods for item in one.group.left_out()],
        "charts": [chart for chart in every if chart.traces],
    }


def _title(names: Sequence[str], data: Collection[str]) -> str:
    told = (
        " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if len(names) <= 4 else f"{len(names)} methods"
    )
    return (f"{told} compared" if len(names) > 1 else told) + (f" on {', '.join(data)}" if len(data) == 1 else "")


def _lead(records: Sequence[RunRecord], conditions: Mapping[str, Sequence[MethodSummary]]) -> str:
    if len(conditions) == 1:
        return words.sentences(*conditions.values())
    finished = sum(record.finished for record in records)
    return f"{finished} finished runs under {len(conditions)} conditions, each with a table: {'; '.join(conditions)}."


def provenance(records: Sequence[RunRecord]) -> str:
    """Say which records a page is made from."""
    finished = sum(record.finished for record in records)
    days = sorted({str(record.run.get("started", ""))[:10] for record in records})
    when = " to ".join([days[0], *days[1:][-1:]])
    return f"From the records of {finished} finished and {len(records) - finished} unfinished runs, started {when}."


def _policy(scripts: Iterable[str]) -> str:
    """Let the page run its own two scripts and load nothing, so that no name in a record can do either."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src {allowed}"
