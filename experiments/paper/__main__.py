"""``python -m experiments.paper``: the paper's tables and figures, made again; every claim judged.

python -m experiments.paper                              the items, and how far each is
python -m experiments.paper runs --plan                  the whole run list, in order, with its core-hours
python -m experiments.paper runs --jobs 2 --data DIR     do it, and commit; killed, the same call resumes
python -m experiments.paper table1 --plan                all that its runs set, and what is left
python -m experiments.paper table1 --jobs 2 --data DIR   do what is missing, print the table, draw it
python -m experiments.paper claims                       every claim and its verdict
python -m experiments.paper draw                         every picture, from the same, into docs/paper/

``runs`` commits: it adds what is finished to results/paper.jsonl.xz, where nothing is ever replaced. A process of A.4
takes 11 GB, so one runs at a time. To keep two cores busy there, start ``runs --only appendix4``, and ``runs --only``
with the other items, with one process each.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from esam.report.sheets import as_text

from .hyperparameters import SCALES
from .items import ITEMS, sections_of
from .jobs import work_through
from .page import PICTURES, Judged, counted, draw_item, item_list, item_plan, judged, runs_sheet
from .results import Results, open_results


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = parsed(arguments)
    if getattr(options, "data", None):
        os.environ["ESAM_DATA"] = str(options.data.absolute())
    try:
        carry_out(options)
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        print(f"experiments.paper: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("experiments.paper: interrupted; the same command resumes", file=sys.stderr)
        return 130
    return 0


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options; each command has its own, and refuses the others'."""
    common, working = (argparse.ArgumentParser(add_help=False) for _ in range(2))
    common.add_argument("--scale", choices=SCALES, default="cpu", help="the paper's own size, or one for two CPU cores")
    common.add_argument(
        "--out", type=Path, default=Path("runs/paper"), help="where measurements go (default %(default)s)"
    )
    working.add_argument("--plan", action="store_true", help="say what would be done and what it sets; do nothing")
    working.add_argument("--jobs", type=int, default=1, help="processes at a time, one thread each (default 1)")
    working.add_argument("--data", type=Path, help="folder with cifar10/, cifar100/, tiny_imagenet_20.npz (ESAM_DATA)")
    parser = argparse.ArgumentParser(
        "python -m experiments.paper", None, __doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(scale="cpu", out=Path("runs/paper"))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, module in ITEMS.items():
        commands.add_parser(name, parents=[common, working], help=f"{module.NUMBER}: {module.TITLE}")
    runs = commands.add_parser("runs", parents=[common, working], help="all runs, in order")
    runs.add_argument("--only", nargs="+", choices=ITEMS, default=list(ITEMS), metavar="ITEM", help="of these items")
    commands.add_parser("claims", parents=[common], help="every claim and its verdict")
    commands.add_parser("draw", parents=[common], help="every picture")
    return parser.parse_args(arguments)


def carry_out(options: argparse.Namespace) -> None:
    """Do what a command says."""
    results, command = open_results(options.scale, options.out), options.command
    if command is None:
        print(item_list(results))
    elif command == "claims":
        print_claims(judged(results))
    elif command == "draw":
        print(*(path for name in ITEMS for path in draw_item(name, results, PICTURES)), sep="\n")
    elif options.plan:
        print(as_text(runs_sheet(results, options.only)) if command == "runs" else item_plan(command, results))
    elif command == "runs":
        make(options.only, results, options.jobs, commit=results.store.pack is not None)
    else:
        make([command], results, options.jobs)
        if tables := getattr(ITEMS[command], "tables", None):  # a figure has none
            print(*map(as_text, tables(results)), sep="\n\n", end="\n\n")
        print_claims([row for row in judged(results) if row[0] == command])
        print(*draw_item(command, results, results.store.folder / "pictures"), sep="\n")


def make(names: list[str], results: Results, at_once: int, *, commit: bool = False) -> None:
    """Do the missing jobs of some items, section by section; raises at the end if any failed."""
    if at_once < 1:
        raise ValueError(f"--jobs must be 1 or more, got {at_once}")
    failed = 0
    for title in [section.title for section in sections_of(names, results)]:
        # asked for again each time: some runs follow from what others found
        section = next(section for section in sections_of(names, results) if section.title == title)
        print(title, flush=True)
        fit = 1 if section.alone else at_once
        failed += work_through(section.jobs, results.store, results.scale, at_once=fit, fresh=section.fresh)
        if commit:
            results.store.commit()
    if failed:
        raise RuntimeError(f"{failed} failed, as said above; the others are done, and the same command resumes")


def print_claims(found: Sequence[Judged]) -> None:
    """Print claims and their verdicts for a terminal."""
    for name, claim, verdict in found:
        print(f"{verdict.verdict.upper():13} {name}: {claim.text} (paper: {claim.paper})\n{'':13} {verdict.words()}")
    print(f"\n{counted(verdict.verdict for _, _, verdict in found)}")


if __name__ == "__main__":
    sys.exit(main())
