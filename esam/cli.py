"""The command line: parsing and printing only."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from esam.bench.config import Bench
from esam.train.config import Config
from esam.train.names import did_you_mean

if TYPE_CHECKING:
    from esam.compare.plan import Comparison
    from esam.reproduce.store import Store

USAGE = """\
usage: esam COMMAND [OPTIONS]

Sharpness-aware training for PyTorch at ESAM's price.

commands:
  compare [RECIPE]  train by several methods and seeds, alike in all else; table and report
  train [RECIPE]    one run, with checkpoints and a record
  analyze RUN       how sharp the minimum of a trained run is: sharpness, Hessian, landscape
  reproduce [ITEM]  the paper's tables and figures, made again; every claim checked
  bench step        what a step of each method costs: time, passes, memory
  report FOLDER     the records below a folder as one HTML page
  models            the models that can be named
  recipes           the experiments that can be named

`esam COMMAND --help` lists a command's options.
"""


@dataclass(frozen=True)
class TrainOptions:
    """One run. Killed or interrupted, the same command goes on where it was."""

    config: tyro.conf.OmitArgPrefixes[Config]
    out: Path = Path("runs/train")
    """Folder of the record and the checkpoints."""
    tensorboard: bool = False
    """Also write TensorBoard events into the folder (needs the extra `tensorboard`)."""


@dataclass(frozen=True)
class CompareOptions:
    """Several methods and seeds on the same data, order, initial weights and budget. Interrupted, it resumes."""

    config: tyro.conf.OmitArgPrefixes[Config]
    methods: tuple[str, ...] = ("sgd", "sam", "esam")
    """Methods to compare; sgd is the base optimizer alone."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One run of each method for each seed."""
    set: tuple[str, ...] = ()
    """What differs for a method, as in sam.rho=0.1 esam.gamma=0.7."""
    out: Path = Path("runs/compare")
    """Folder of the runs and of report.html."""
    jobs: int = 1
    """Runs at a time."""


@dataclass(frozen=True)
class ModelsOptions:
    """The models that --model can name, with their sizes."""


@dataclass(frozen=True)
class RecipesOptions:
    """The recipes that `esam compare` and `esam train` can name."""


@dataclass(frozen=True)
class BenchOptions:
    """What a step costs: contenders timed in turn in one run, passes counted, memory in processes of their own."""

    bench: tyro.conf.OmitArgPrefixes[Bench]
    contenders: tuple[str, ...] = ("sgd", "sam", "esam", "esam-exact", "esam-paper", "esam-swp", "esam-sds")
    """Who is timed; an unknown name is answered with all of them."""
    against: tuple[str, ...] = ()
    """Other packages to time beside them: pytorch_optimizer."""
    memory: bool = True
    """Measure memory too."""
    out: Path | None = None
    """Where to write the JSON record."""


@dataclass(frozen=True)
class AnalyzeOptions:
    """How sharp the minimum of a trained run is. The run is only read."""

    run: Annotated[Path, tyro.conf.Positional]
    """The folder of a run of `esam train`, or one of its checkpoint files."""
    images: int = 1_000
    """Training images that the loss is taken over, evenly spaced."""
    rho: float = 0.05
    """Radius of the sharpness."""
    steps: int = 10
    """Steps of projected ascent."""
    m: int = 128
    """m-sharpness: samples that share one perturbation."""
    eigenvalues: int = 1
    """How many of the Hessian's top eigenvalues; 0: nothing of the Hessian (it needs the extra `analysis`)."""
    vectors: int = 10
    """Random vectors for the Hessian's trace."""
    landscape: int = 0
    """Points a side of a loss landscape along filter-normalised random directions; 0: none."""
    reach: float = 1.0
    """How far the landscape goes; 1 is the norm of the weights' own filters."""
    groups: int = 1
    """Pairs of directions that the landscape is averaged over; the paper's is 10."""
    device: str = "auto"
    out: Path | None = None
    """Where to write the figures as JSON."""
    pictures: Path | None = None
    """Folder for the landscape: contour and surface as SVG and PNG, and its values. Interrupted, it resumes there."""


@dataclass(frozen=True)
class ReproduceOptions:
    """A table or figure of the paper, made again. Interrupted, the same command goes on where it was."""

    item: Annotated[str, tyro.conf.Positional] = ""
    """An item's name, `all`, or `claims`; without one, the items are listed."""
    scale: Literal["cpu", "paper"] = "cpu"
    """The paper's own size (for GPUs), or the same experiment at a size for two CPU cores."""
    out: Path = Path("runs/reproduce")
    """Results go to OUT/SCALE: a JSON file and pictures for each item, and report.html."""
    shared: tuple[Path, ...] = ()
    """Other folders whose finished runs are used, such as results/cifar10/runs."""
    jobs: int = 1
    """Runs at a time."""
    plan: bool = False
    """Tell what would be done, and what it would cost; do nothing."""
    markdown: bool = False
    """Print the claims as Markdown."""


@dataclass(frozen=True)
class ReportOptions:
    """The records below a folder as one self-contained HTML page."""

    folder: Annotated[Path, tyro.conf.Positional]
    out: Path | None = None
    """Where to write the page; FOLDER/report.html if not given."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = arguments.pop(0) if arguments else "--help"
    if command in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if command in ("-V", "--version"):
        import esam

        print(esam.__version__)
        return 0
    try:
        if command not in COMMANDS:
            raise ValueError(f"unknown command {command!r}.{did_you_mean(command, COMMANDS)} See esam --help")
        COMMANDS[command](arguments)
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        print(f"esam: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("esam: interrupted; the same command goes on where it was", file=sys.stderr)
        return 130
    return 0


def train(arguments: list[str]) -> None:
    """``esam train``: one run."""
    recipe = _recipe(arguments)
    options = _parse("train", TrainOptions, arguments, config=recipe.config if recipe else Config())
    from rich.console import Console

    from esam.measures import MEASURES
    from esam.train.runs import run

    watchers: list[Callable[[dict[str, Any]], None]] = [_print_epoch]
    if options.tensorboard:
        from esam.train.tensorboard import event_writer

        watchers.append(event_writer(options.out))

    def watch(metrics: dict[str, Any]) -> None:
        for watcher in watchers:
            watcher(metrics)

    record = run(options.config, options.out, measures=MEASURES, watch=watch)
    assert record.end is not None, "a finished run has an end"
    last, best = (record.end["test_accuracy"][which] for which in ("last", "best"))
    told = "no epoch trained" if last is None else f"test accuracy {100 * last:.2f} % (best {100 * best:.2f} %)"
    Console().print(f"{record.name}: {told}, record in {options.out}", highlight=False, markup=False, soft_wrap=True)


def compare(arguments: list[str]) -> None:
    """``esam compare``: several methods and seeds, a table and a report."""
    recipe = _recipe(arguments)
    given = {"methods": recipe.methods, "seeds": recipe.seeds} if recipe else {}
    start = recipe.config if recipe else Config(rho=None)
    options = _parse("compare", CompareOptions, arguments, config=start, **given)
    from rich.console import Console

    from esam.compare.launch import Launcher
    from esam.compare.live import show_results, watch
    from esam.compare.plan import Comparison, plan
    from esam.report import write_report

    settings = {method: dict(own) for method, own in recipe.settings.items()} if recipe else {}
    for method, own in _settings(options.set).items():
        settings[method] = {**settings.get(method, {}), **own}
    runs = plan(Comparison(options.config, options.methods, options.seeds, settings), options.out)
    console = Console()
    failure: RuntimeError | None = None
    try:
        watch(Launcher(runs, jobs=options.jobs), console)
    except RuntimeError as error:  # what the other runs gave is shown all the same
        failure = error
    if any(run.record() for run in runs):
        show_results(runs, console)
        console.print(f"report: {write_report(options.out)}", highlight=False, markup=False, soft_wrap=True)
    if failure is not None:
        raise failure


def bench(arguments: list[str]) -> None:
    """``esam bench step``: what a step costs."""
    if arguments[:1] != ["step"]:
        raise ValueError(f"esam bench knows one thing to measure, step, got {arguments[:1] or 'nothing'}")
    options = _parse("bench step", BenchOptions, arguments[1:], bench=Bench())
    import json

    from rich.console import Console

    from esam.bench.contenders import contender
    from esam.bench.memory import peak_memory
    from esam.bench.steps import bench_steps, steps_table
    from esam.files import write_atomically

    contenders = {name: contender(name) for name in (*options.contenders, *options.against)}
    result = bench_steps(options.bench, contenders)
    if options.memory:
        for name, row in result["contenders"].items():
            row["memory"] = peak_memory(options.bench, contenders[name])
    console = Console()
    console.print(steps_table(result), width=console.width if console.is_terminal else 120)
    if options.out is not None:
        write_atomically(options.out, (json.dumps(result, indent=1) + "\n").encode())


def analyze(arguments: list[str]) -> None:
    """``esam analyze``: how sharp a run's minimum is."""
    options = _parse("analyze", AnalyzeOptions, arguments)
    if options.pictures is not None and not options.landscape:
        raise ValueError("--pictures draws the landscape; say how fine, such as --landscape 31")
    from esam.analyze import described, figures, load_run, random_landscape
    from esam.files import write_atomically
    from esam.train.record import encode

    run = load_run(options.run, images=options.images, device=options.device)
    asked = {name: getattr(options, name) for name in ("rho", "steps", "m", "eigenvalues", "vectors")}
    result = {**described(run), **figures(run, **asked)}
    print(f"{run.record.name}, seed {run.record.seed}, epoch {run.epoch}, {run.objective.count:,} training images")
    for label, value in _figure_rows(result):
        print(f"  {label:44} {value}")
    if options.landscape:
        kept = None if options.pictures is None else options.pictures / "landscape.json"
        grid = {"points": options.landscape, "reach": options.reach, "groups": options.groups}
        with _progress("landscape") as progress:
            found = random_landscape(run, **grid, path=kept, progress=progress)
        result["landscape"] = found.as_json()
        print(f"  {'landscape, lowest and highest loss':44} {found.mean.min():.4g} to {found.mean.max():.4g}")
        if options.pictures is not None:
            from esam.analysis.plot import contours, surfaces

            for draw, name in ((contours, "contour"), (surfaces, "surface")):
                for path in draw(options.pictures / name, {run.record.name: found}):
                    print(path)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.out, encode(result))


def reproduce(arguments: list[str]) -> None:
    """``esam reproduce``: the paper's tables and figures."""
    options = _parse("reproduce", ReproduceOptions, arguments)
    from esam.recipes.paper import ITEMS, SCALES
    from esam.reproduce.store import Store

    names = [*ITEMS, "all", "claims"]
    if options.item and options.item not in names:
        hint = did_you_mean(options.item, names)
        raise ValueError(f"unknown item {options.item!r}.{hint} There are: {', '.join(names)}")
    stores = {name: Store(options.out, scale(), shared=options.shared) for name, scale in SCALES.items()}
    store = stores[options.scale]
    if not options.item:
        from esam.reproduce.text import item_list

        print(item_list(ITEMS, list(stores.values())))
    elif options.item == "claims":
        _print_claims(store, options.markdown)
    elif options.plan:
        from esam.reproduce.text import plan_text

        chosen = list(ITEMS) if options.item == "all" else [options.item]
        print("\n\n".join(plan_text(ITEMS[name], store) for name in chosen))
    else:
        _make_items(options.item, store, options.jobs)


def _make_items(asked: str, store: Store, jobs: int) -> None:
    """Make one item or all; what fails does not keep the others from being made."""
    from rich.console import Console

    from esam.compare.live import watch
    from esam.recipes.paper import ITEMS, MAKING_ORDER
    from esam.recipes.paper.claims import claims_part
    from esam.report.sheets import as_text
    from esam.reproduce.make import make, write_report

    console, failures = Console(), []
    for name in MAKING_ORDER if asked == "all" else [asked]:
        item = ITEMS[name]
        print(f"{item.name}: {item.title}", flush=True)
        try:
            measured = make(
                item,
                store,
                jobs=jobs,
                tell=lambda line: print(f"  {line}", flush=True),
                watch=lambda launcher: watch(launcher, console),
                others=ITEMS,
            )
        except (ValueError, RuntimeError, OSError, ImportError) as error:
            if asked != "all":
                raise
            print(f"  not made: {error}", flush=True)
            failures.append(name)
            continue
        for sheet in item.sheets(measured):
            print(f"\n{as_text(sheet)}")
        page = write_report(ITEMS, store, [claims_part(ITEMS, store)])
        print(f"\nresults: {store.path(item)}.json, page: {page}\n", flush=True)
    if failures:
        raise RuntimeError(f"not made: {', '.join(failures)}; see above. The others are in {store.folder}")


def _print_claims(store: Store, markdown: bool) -> None:
    from esam.recipes.paper import ITEMS
    from esam.recipes.paper.claims import claims_sheet, judged_at
    from esam.report.sheets import as_markdown

    rows = judged_at(ITEMS, store)
    if markdown:
        print(as_markdown(claims_sheet(rows)))
        return
    for row in rows:
        print(f"{row.verdict.upper()}: {row.claim}\n  paper: {row.paper}\n  here:  {row.measured}")
    counts = {
        verdict: sum(row.verdict == verdict for row in rows) for verdict in dict.fromkeys(r.verdict for r in rows)
    }
    print(f"\n{len(rows)} claims at the scale {store.scale.name}: {', '.join(f'{n} {v}' for v, n in counts.items())}")


def report(arguments: list[str]) -> None:
    """``esam report``: records to a page."""
    options = _parse("report", ReportOptions, arguments)
    from esam.report import write_report

    print(write_report(options.folder, options.out))


def models(arguments: list[str]) -> None:
    """``esam models``: what can be named."""
    _parse("models", ModelsOptions, arguments)
    from esam.train.models import MODELS

    for name, model in MODELS.items():
        print(f"{name:14} {model.parameters:>11,} parameters  {model.summary}")


def recipes(arguments: list[str]) -> None:
    """``esam recipes``: what can be named."""
    _parse("recipes", RecipesOptions, arguments)
    from esam.recipes import RECIPES

    for name, recipe in RECIPES.items():
        print(f"{name:20} {(recipe.__doc__ or '').splitlines()[0]}")


COMMANDS = {
    "compare": compare,
    "train": train,
    "analyze": analyze,
    "reproduce": reproduce,
    "bench": bench,
    "report": report,
    "models": models,
    "recipes": recipes,
}


def _parse(command: str, options: type[Any], arguments: list[str], **defaults: Any) -> Any:
    default = options(**defaults) if defaults else None
    extra = {} if default is None else {"default": default}
    return tyro.cli(options, prog=f"esam {command}", args=arguments, **extra)


def _recipe(arguments: list[str]) -> Comparison | None:
    """Take a recipe's name off the front of the arguments."""
    if not arguments or arguments[0].startswith("-"):
        return None
    from esam.recipes import RECIPES

    name = arguments.pop(0)
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}.{did_you_mean(name, RECIPES)} There are: {', '.join(RECIPES)}")
    return RECIPES[name]()


def _settings(words: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Read sam.rho=0.1 as {"sam": {"rho": 0.1}}, each value by the type of its field."""
    fields = {f.name: f for f in dataclasses.fields(Config)}
    settings: dict[str, dict[str, Any]] = {}
    for word in words:
        method, dot, rest = word.partition(".")
        name, equals, value = rest.partition("=")
        if not dot or not equals or name not in fields:
            hint = did_you_mean(name, fields)
            raise ValueError(f"--set takes method.setting=value, such as sam.rho=0.1, got {word!r}.{hint}")
        parsed = tyro.cli(Config, args=[f"--{name.replace('_', '-')}", value])
        settings.setdefault(method, {})[name] = getattr(parsed, name)
    return settings


def _figure_rows(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Say the figures of an analysis in words."""
    yield "loss", f"{result['loss']:.4g}"
    for name, words in (
        ("sharpness", "sharpness R_S (rho {rho:g})"),
        ("ascent_sharpness", "sharpness, {steps} steps of ascent (rho {rho:g})"),
        ("m_sharpness", "m-sharpness (m {m}, rho {rho:g})"),
        ("adaptive_sharpness", "adaptive sharpness (rho {rho:g})"),
    ):
        yield words.format(**result[name]), f"{result[name]['value']:.4g}"
    if "eigenvalues" in result:
        yield "Hessian, top eigenvalues", ", ".join(f"{value:.4g}" for value in result["eigenvalues"])
        yield "Hessian, trace ± standard error", f"{result['trace']['value']:.4g} ± {result['trace']['error']:.2g}"


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on the error channel, and give the function that moves it."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_epoch(metrics: dict[str, Any]) -> None:
    accuracy = metrics.get("test_accuracy")
    tail = f", test accuracy {100 * accuracy:.2f} %" if accuracy is not None else ""
    print(f"epoch {metrics['epoch']}: train loss {metrics['train_loss']:.4f}{tail}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
