"""``python -m experiments.paper``: the paper's tables and figures, made again; every claim judged.

python -m experiments.paper                              the items, and how far each is
python -m experiments.paper table1 --plan                all that its runs set, and what is left
python -m experiments.paper table1 --jobs 2 --data DIR   do what is missing, print the table, draw it
python -m experiments.paper runs --jobs 2 --data DIR     the whole run list, in order; killed, the same call resumes
python -m experiments.paper claims                       every claim and its verdict
python -m experiments.paper draw                         every picture, from the same
python -m experiments.paper commit                       add what was finished here to results/paper.jsonl.xz
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

from esam.report.sheets import Sheet, as_markdown, as_text

from .hyperparameters import SCALES, as_released
from .items import ITEMS, find_job, jobs_of, judged, run_list, unique
from .jobs import Job, serve, work_through
from .plan import item_list, item_plan, runs_sheet
from .results import Results
from .rules import CONTRADICTED, HOLDS, INCONCLUSIVE, NOT_RUN
from .store import PACK, Store

PICTURES = Path("docs/paper")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = parsed(arguments)
    if getattr(options, "data", None):
        os.environ["ESAM_DATA"] = str(options.data)
    try:
        return carried_out(options)
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        print(f"experiments.paper: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("experiments.paper: interrupted; the same command resumes", file=sys.stderr)
        return 130


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options; each command has its own, and refuses the others'."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m experiments.paper", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--scale", choices=SCALES, default="cpu", help="the paper's own size, or one for two CPU cores")
    common.add_argument(
        "--out", type=Path, default=Path("runs/paper"), help="where measurements go (default %(default)s)"
    )
    working = argparse.ArgumentParser(add_help=False)
    working.add_argument("--plan", action="store_true", help="say what would be done and what it sets; do nothing")
    working.add_argument("--jobs", type=int, default=1, help="processes at a time, one thread each (default 1)")
    working.add_argument(
        "--data", type=Path, help="folder with cifar10/, cifar100/ and tiny_imagenet_20.npz (or ESAM_DATA)"
    )
    working.add_argument(
        "--as-released", action="store_true", help="as the released script: Cutout, norm of drawn tensors, m"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, module in ITEMS.items():
        commands.add_parser(name, parents=[common, working], help=f"{module.NUMBER}: {module.TITLE}")
    commands.add_parser("runs", parents=[common, working], help="all runs, in order")
    claims = commands.add_parser("claims", parents=[common], help="every claim and its verdict")
    claims.add_argument("--markdown", action="store_true", help="as a table for a page")
    drawing = commands.add_parser("draw", parents=[common], help="every picture")
    drawing.add_argument("--pictures", type=Path, default=PICTURES, help="their folder (default %(default)s)")
    commands.add_parser("commit", parents=[common], help="add what was finished here to the committed pack")
    commands.add_parser("serve", parents=[common], help="do the jobs whose names come by standard input")
    options = parser.parse_args(arguments)
    if options.command is None:
        options.scale, options.out = "cpu", Path("runs/paper")
    return options


def results_of(options: argparse.Namespace) -> Results:
    """Return the results of the scale that is asked for: what is committed, and what was made here."""
    scale = SCALES[options.scale]()
    if getattr(options, "as_released", False):
        if options.scale != "paper":
            raise ValueError("--as-released is for --scale paper: the small nets train without augmentation")
        scale = as_released(scale)
    return Results(Store(options.out / scale.name, PACK if scale.name == "cpu" else None), scale)


def carried_out(options: argparse.Namespace) -> int:
    """Do what a command says."""
    results = results_of(options)
    if options.command is None:
        print(item_list(results))
    elif options.command == "claims":
        print(
            as_markdown(claims_table(results)) if options.markdown else f"{claims_words(results)}\n\n{counted(results)}"
        )
    elif options.command == "draw":
        paths = [path for module in ITEMS.values() for path in module.draw(results, options.pictures)]
        print("\n".join(map(str, paths)) or "nothing to draw yet")
    elif options.command == "commit":
        print(f"{results.store.commit()} files added to {results.store.pack}")
    elif options.command == "serve":
        serve(lambda name: find_job(results, name).do(results.store, results.scale))
    elif options.plan:
        print(as_text(runs_sheet(results)) if options.command == "runs" else item_plan(options.command, results))
    else:
        return made(options, results)
    return 0


def made(options: argparse.Namespace, results: Results) -> int:
    """Do the missing jobs of an item, or of all; print and draw the item."""
    if options.jobs < 1:
        raise ValueError(f"--jobs must be 1 or more, got {options.jobs}")
    command = ["-m", "experiments.paper", "serve", "--scale", options.scale, "--out", str(options.out)]

    def jobs() -> list[Job]:
        if options.command == "runs":
            return unique(job for _, some in run_list(results) for job in some)
        return jobs_of(options.command, results)

    failed = work_through(
        jobs,
        results.store,
        command,
        at_once=options.jobs,
        tell=lambda line: print(line, flush=True),
    )
    if options.command != "runs":
        module = ITEMS[options.command]
        print("\n\n".join(as_text(sheet) for sheet in module.tables(results)))
        for path in module.draw(results, results.store.folder / "pictures"):
            print(path)
    if failed:
        raise RuntimeError(f"{failed} failed; see {results.store.folder / 'log.txt'}. The others are done")
    return 0


def claims_table(results: Results) -> Sheet:
    """Return one line a claim: the paper's figure, the verdict, what was measured, the reason."""
    rows = [
        (f"{name}: {claim.text}", claim.paper, verdict.verdict, _measured(verdict.measured, verdict.reason))
        for name, claim, verdict in judged(results)
    ]
    return Sheet("", ("Claim", "Paper", "Verdict", "Measured, and why it cannot be told"), tuple(rows))


def _measured(words: str, reason: str) -> str:
    return f"{words}; {reason}" if reason else words


def claims_words(results: Results) -> str:
    """Return the claims for a terminal."""
    lines = [
        f"{verdict.verdict.upper():13} {name}: {claim.text} (paper: {claim.paper})\n{'':13} "
        + _measured(verdict.measured, verdict.reason)
        for name, claim, verdict in judged(results)
    ]
    return "\n".join(lines)


def counted(results: Results) -> str:
    """Return how many claims have each verdict."""
    counts = Counter(verdict.verdict for _, _, verdict in judged(results))
    order = (HOLDS, CONTRADICTED, INCONCLUSIVE, NOT_RUN)
    return f"{sum(counts.values())} claims: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in order)


if __name__ == "__main__":
    sys.exit(main())
