"""How does each part of the page look in HTML? Text comes in raw and leaves escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from esam.report.charts import Chart, Drawn
from esam.report.groups import Group
from esam.report.groups import words as as_words
from esam.report.table import columns

NO_BREAK = "\N{NO-BREAK SPACE}"


def chips(keys: Mapping[str, str], colours: Mapping[str, str]) -> str:
    """The one control of the page: a checkbox a method, from {name: key}."""
    boxes = "".join(
        f'<label class="chip" style="--colour: {colours[name]}">'
        f'<input type="checkbox" checked data-switch="{key}"><span>{escape(name)}</span></label>'
        for name, key in keys.items()
    )
    return f'<fieldset class="chips"><legend>Show</legend>{boxes}</fieldset>'


def results(drawn: Sequence[Drawn], caption: str) -> str:
    """The table of one section, in a box of its own that scrolls where the screen is narrow."""
    shown = columns([one.row for one in drawn])
    head = "".join(
        f'<th scope="col" title="{escape(c.explanation)}">{_kept_together(escape(c.title))}</th>' for c in shown
    )
    body = ""
    for one in drawn:
        tag = '<span class="tag">base</span>' if one.row.is_base else ""
        name = f'<span class="dot" style="--colour: {one.colour}"></span>{escape(one.row.name)}{tag}'
        cells = "".join(f"<td>{_cell(column.cell(one.row))}</td>" for column in shown)
        body += f'<tr data-group="{one.key}"><th scope="row">{name}</th>{cells}</tr>'
    return _box(
        f'<table class="results"><caption>{escape(caption)}</caption>'
        f'<thead><tr><th scope="col">Method</th>{head}</tr></thead><tbody>{body}</tbody></table>',
        "Results",
    )


def left_out(groups: Sequence[Group]) -> str:
    """What the table's averages do not hold: unfinished runs, and runs whose seed a later run repeats."""
    items = []
    for group in groups:
        for run in group.unfinished:
            planned = run.config.get("epochs")
            state = "unfinished" if run.end is None else f"unfinished ({run.end['status']})"
            of = f" of {planned}" if isinstance(planned, int) else ""
            items.append(f"{group.name}, seed {run.seed}: {state}, {run.last_epoch}{of} epochs recorded")
        if group.repeats:
            items.append(f"{group.name}: {group.repeats} of the runs repeat a seed; the latest of each seed counts")
    if not items:
        return ""
    return f'<div class="left-out"><p>Not in the averages:</p><ul>{_items(items)}</ul></div>'


def figure(chart: Chart, number: int) -> str:
    """The place of one chart, with its heading and its contents in words."""
    return (
        f"<figure><figcaption><h3>{escape(chart.title)}</h3><p>{escape(chart.reading)}</p></figcaption>"
        f'<div class="chart" id="chart-{number}" role="img" aria-label="{escape(chart.label)}"></div></figure>'
    )


def remarks(notes: Sequence[str]) -> str:
    """The remark box, or nothing."""
    if not notes:
        return ""
    paragraphs = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f'<aside class="remarks" role="note" aria-label="Remarks">{paragraphs}</aside>'


def facts(title: str, entries: Mapping[str, str]) -> str:
    """A two-column table of names and values, or nothing."""
    if not entries:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{escape(as_words(key))}</th><td>{escape(value)}</td></tr>'
        for key, value in entries.items()
    )
    return _box(f'<table class="facts"><caption>{escape(title)}</caption><tbody>{rows}</tbody></table>', title)


def differences(title: str, settings: Mapping[str, Mapping[str, str]], names: Sequence[str]) -> str:
    """A table of the settings that differ, one column a name, or nothing."""
    if not settings:
        return ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    rows = ""
    for key, values in settings.items():
        cells = "".join(f"<td>{escape(values[name])}</td>" for name in names)
        rows += f'<tr><th scope="row">{escape(as_words(key))}</th>{cells}</tr>'
    return _box(
        f'<table class="facts differences"><caption>{escape(title)}</caption>'
        f'<thead><tr><th scope="col">Setting</th>{head}</tr></thead><tbody>{rows}</tbody></table>',
        title,
    )


def reproduce(commands: Sequence[str]) -> str:
    """The commands that made the runs, or nothing."""
    if not commands:
        return ""
    return f'<h2>Reproduce</h2><pre tabindex="0"><code>{escape(chr(10).join(commands))}</code></pre>'


def paragraph(sentence: str) -> str:
    """A paragraph whose numbers stay with their units."""
    return f"<p>{_kept_together(escape(sentence))}</p>"


def _items(items: Sequence[str]) -> str:
    return "".join(f"<li>{escape(item)}</li>" for item in items)


def _cell(text: str) -> str:
    value, plus_minus, rest = escape(text).partition(" ± ")
    return f'{value} <span class="spread">± {rest}</span>' if plus_minus else value.replace(" ", NO_BREAK)


def _box(table: str, label: str) -> str:
    # a box that scrolls must be reachable by keyboard, hence tabindex
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'


def _kept_together(text: str) -> str:
    for loose in (" %", " ± ", "n = ", "vs "):
        text = text.replace(loose, loose.replace(" ", NO_BREAK))
    return text
