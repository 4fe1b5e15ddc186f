"""Bad inputs and faults by category, each with its outcome; ``docs/faults.md`` shows them all."""

import contextlib
import io
import re
import shlex
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

from fault_place import TINY, Place

from esam.cli import main

LONGEST = 230
"""Letters of a message that the page shows."""
LISTS = (" There are: ", " Choose one of ", " Known names: ", " For full helptext", " Argument helptext")
"""Where the page cuts a message: whatever can be named follows, or another library's advice."""


@dataclass(frozen=True)
class Fault:
    """What is wrong, what is done, and what must be said of it."""

    what: str
    """In words, or the command as it is typed; T stands for a small training."""
    says: str
    """What the message must hold: the remedy, or what lets one find it."""
    code: int | str = 1
    """The exit code, or the kind of the exception."""
    do: Callable[[Place], object] | None = None
    """What to call, where it is no command."""
    spoil: Callable[[Place], object] = field(default=lambda place: None)
    """What to do first."""
    typed: str | None = None
    """The command, where it is not ``what``."""
    never: str = "Traceback"
    """What the message must not hold."""
    leaves: bool = False
    """Whether the folder ``out`` may be there afterwards: the fault strikes in the middle of the work."""
    until: str | None = None
    """Where the page cuts the message: what follows is another library's, and changes with it."""


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    code: int | str
    message: str
    printed: str


def outcome(fault: Fault, place: Place) -> Outcome:
    """Let a fault happen, in this process."""
    place.clear()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("always")
        fault.spoil(place)
        if fault.do is None:
            code, message = _commanded(fault, place), None
        else:
            code, message = _called(fault.do, place)
    told = _plain(message if message is not None else err.getvalue(), place)
    return Outcome(code, told, out.getvalue())


def _commanded(fault: Fault, place: Place) -> int | str:
    try:
        return main([placed(word, place) for word in _words(fault)])
    except SystemExit as stop:  # tyro's own way out
        return stop.code


def _called(do, place):
    """The kind of what a call raises; or the code and the words of a command that it has run."""
    try:
        if (ran := do(place)) is not None:
            return ran
    except (ValueError, TypeError, RuntimeError, ImportError, OSError) as error:
        return type(error).__name__, str(error)
    return "accepted", ""


def _words(fault):
    return shlex.split(re.sub(r"\bT\b", TINY, fault.typed if fault.typed is not None else fault.what))


def placed(word, place):
    return word.replace("OUT", str(place.out))


def _plain(message, place):
    """A message without boxes, breaks, others' headings, and the folder that the test happens to be in."""
    message = message[max(0, message.find("esam: ")) :]  # a library may have had its word before
    message = re.sub(r"[╭╮╰╯│─]|-{5,}|^[|+]|[|+]$", " ", message, flags=re.MULTILINE)
    message = " ".join(message.replace(f"{place.root}/", "").replace(str(place.root), ".").split())
    message = re.sub(r"^(Invalid choice|Unrecognized options|Value error) ", "", message)
    return message.removeprefix("esam: ").replace(" esam: ", " / ")


def line(fault: Fault, found: Outcome) -> str:
    """Return the row of the page."""
    told = found.message
    for end in (*LISTS, *([fault.until] if fault.until else [])):
        if end in told:
            told = told.split(end)[0].rstrip(" (:") + " …"
    told = told if len(told) <= LONGEST else told[:LONGEST].rsplit(" ", 1)[0] + " …"
    told = told or "(nothing)"
    what = f"`esam {fault.what}`" if fault.do is None and fault.typed is None else fault.what
    return " | ".join(
        ["", what.replace("|", "\\|"), str(found.code), told.replace("|", "\\|").replace("<", "&lt;"), ""]
    ).strip()


HEAD = "| What | Outcome | What is said |\n| --- | --- | --- |"
SURROUNDINGS = {
    "COLUMNS": "300",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
}
