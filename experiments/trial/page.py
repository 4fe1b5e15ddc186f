"""How do the trial's records become a page? Its answers, tables and figure, as Markdown and PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from esam.report.sheets import Sheet, as_markdown

from .arms import ARMS
from .judge import PRICE, Answer, Answers, Task, answers, finished
from .records import read
from .stages import DEFAULT, EQUAL, LONGER, OWN, SLICE, SMALL
from .tasks import TASKS

ROOT = Path(__file__).resolve().parents[2]
RECORDS, FIGURE = ROOT / "results" / "trial.jsonl", ROOT / "docs" / "trial.png"
TITLES = {
    SLICE: "SliceSAM, SAM's radius",
    OWN: "SliceSAM, own radius",
    DEFAULT: "SliceSAM, defaults",
    EQUAL: "Base, SliceSAM's time",
    LONGER: "Base, twice as long",
}


def title(role: str) -> str:
    """Return what people read."""
    return TITLES.get(role) or ARMS[role].title


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    return as_markdown(Sheet("", tuple(head), tuple(map(tuple, rows))))


def digits(task: Task) -> int:
    """Return how many decimals a difference of a task's scores wants."""
    return 2 if task.sign == 1 else 3


def answered(tasks: Sequence[Task]) -> str:
    """Return the three questions' answers, and what they rest on."""
    if not tasks:
        return "No task of the final has been run yet."
    found, names = answers(tasks), {task.name for task in tasks}
    slow = [row.task for row in found.rows if row.slow]
    nowhere = " In no task does SAM gain." if found.value == "not run" else ""
    price = f"The mean price is {found.price:.2f} ({', '.join(slow)})."
    lines = [
        f"1. *The estimator: is SliceSAM, at SAM's radius, not worse than SAM in any task, for at most {PRICE} times "
        f"the base's time?* **{found.estimator.capitalize()}.** {price}",
        "2. *The value: where SAM gains, is SliceSAM better than the base of equal time, and does it keep half of "
        f"SAM's gain?* **{found.value.capitalize()}.**{nowhere}",
        "3. *Safety: at its defaults, is SliceSAM never under the tuned base by more than the margin?* "
        f"**{found.safety.capitalize()}.**",
    ]
    if open_tasks := [name for name in (*SMALL, "full") if name not in names]:
        lines.append(f"\nNot run yet: {', '.join(open_tasks)}. The answers are those of the other tasks.")
    return "\n".join(lines) + "\n\n" + questions(tasks, found)


def questions(tasks: Sequence[Task], found: Answers) -> str:
    """Return what each answer rests on, task by task."""
    head = (
        "Task",
        "SAM over base",
        "SliceSAM over SAM",
        "Not worse",
        "Price",
        "Over the best base of its time",
        "Defaults over base",
        "Safe",
    )
    rows = []
    for task, row in zip(tasks, found.rows, strict=True):
        sam, estimate, value, safety = (d.text(digits(task)) for d in (row.sam, row.estimate, row.value, row.safety))
        rows.append((row.task, sam, estimate, row.not_worse, f"{row.price:.2f}", value, safety, row.safe))
    return markdown(head, rows)


def other_arms(tasks: Sequence[Task]) -> str:
    """Return the same three questions' answers for every other arm, with the tasks that say otherwise than yes."""
    ours = ("base", EQUAL, LONGER, SLICE, OWN, DEFAULT)
    head = ("Arm", "Tasks", "1: not worse than SAM", "Price", "2: worth it where SAM gains", "3: not under the base")
    rows = []
    for role in dict.fromkeys(role for task in tasks for role in task.runs if role not in ours):
        found = answers(tasks, role, role, role)
        if found.rows:
            dear = ["price"] if found.price > PRICE else []
            first = _but(found.estimator, [(row.task, row.not_worse) for row in found.rows], dear)
            third = _but(found.safety, [(row.task, row.safe) for row in found.rows])
            price = f"{found.price:.2f}"
            rows.append((title(role), str(len(found.rows)), first, price, found.value, third))
    return markdown(head, rows)


def _but(answer: Answer, said: Sequence[tuple[str, Answer]], more: Sequence[str] = ()) -> str:
    """Return an answer with the tasks that did not say yes."""
    others = [task if one == answer else f"{task} {one}" for task, one in said if one != "yes"]
    return f"{answer}: {', '.join([*others, *more])}" if others or more else answer


def table(task: Task) -> str:
    """Return a task's arms: accuracy, loss and time of the same runs."""
    n = digits(task)
    unit = "points" if task.sign == 1 else "loss saved"
    head = (
        "Arm",
        "Accuracy, %",
        "Loss",
        f"Over base, {unit}",
        "Over best base",
        "Calibration, %",
        "4 bits, %",
        "Training, %",
        "Time",
        "n",
    )
    rows = []
    for role in (role for role in task.runs if task.runs[role]):
        accuracy, spread, count = task.mean(role, "accuracy")
        rows.append(
            (
                title(role),
                f"{accuracy:.2f} ± {spread:.2f}",
                f"{task.mean(role, 'loss')[0]:.3f}",
                task.over(role, "base").text(n) if role != "base" else "–",
                task.over(role, task.rival(role)).text(n) if role not in ("base", EQUAL, LONGER) else "–",
                f"{100 * task.mean(role, 'calibration')[0]:.1f}",
                f"{task.mean(role, 'accuracy_4_bits')[0]:.1f}",
                f"{fitted(task, role):.1f}",
                f"{task.total(role):.2f}",
                str(count),
            )
        )
    return markdown(head, rows)


def fitted(task: Task, role: str) -> float:
    """Return the mean training accuracy at the end."""
    found = [record["train_accuracy"] for record in task.runs[role].values() if not record["diverged"]]
    return sum(found) / len(found) if found else float("nan")


def settings(task: Task) -> str:
    """Return what an arm of the final ran with, in one line."""
    parts = []
    for role in ("base", "sam", OWN, "ascent", "msam"):
        if task.runs.get(role):
            run = next(iter(task.runs[role].values()))
            radius = "" if run["rho"] is None else f", rho {run['rho']:g}"
            parts.append(f"{title(role)}: {run['epochs']:g} epochs{radius}")
    run = next(iter(task.runs["base"].values()))
    return f"Learning rate {run['lr']:.2g}, weight decay {run['weight_decay']:.2g}. " + "; ".join(parts) + "."


def tables(tasks: Sequence[Task]) -> str:
    """Return every task with its arms."""
    parts = []
    for task in tasks:
        parts += [f"### {task.name}: {TASKS[task.name].title}", settings(task), table(task)]
    return "\n\n".join(parts) or "None yet."


def short(tasks: Sequence[Task]) -> str:
    """Return the README's table: accuracy, loss and time of the same runs, an arm a row and a task a column."""
    if not tasks:
        return "The runs are not done."
    roles = ("base", EQUAL, LONGER, "sam", DEFAULT, "msam", "esam")
    head = ("Arm", *(f"{task.name}, n = {len(task.runs['base'])}" for task in tasks))
    return markdown(head, [(title(role), *(cell(task, role) for task in tasks)) for role in roles])


def cell(task: Task, role: str) -> str:
    """Return accuracy, loss and time over the base's; bold where the bound of its difference is above 0."""
    if not task.runs.get(role):
        return "not run"
    places = digits(task) - 1
    accuracy, loss = f"{task.mean(role, 'accuracy')[0]:.1f}", f"{task.mean(role, 'loss')[0]:.2f}"
    gain, count = task.over(role, "base"), len(task.runs[role])
    if role != "base":
        bound = f" ± {gain.reach:.{places}f}"
        accuracy, loss = (accuracy + bound, loss) if task.sign == 1 else (accuracy, loss + bound)
    found = f"{accuracy}, {loss}" + (f", {task.total(role):.2f}×" if role != "base" else "")
    found += "" if count == len(task.runs["base"]) else f" (n = {count})"
    return f"**{found}**" if role != "base" and gain.above(0) == "yes" else found


def figure(tasks: Sequence[Task], path: Path = FIGURE) -> None:
    """Draw the gain over the best base within an arm's time, task by task, all arms."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = dict.fromkeys(role for task in tasks for role in task.runs)
    roles = [role for role in shown if role not in ("base", EQUAL, LONGER)]
    columns = min(3, len(tasks))
    rows = -(-len(tasks) // columns)
    drawn, axes = plt.subplots(
        rows, columns, figsize=(2.6 * columns + 2.2, rows * (0.25 * len(roles) + 1.1) + 0.6), sharey=True, squeeze=False
    )
    for axis in axes.flat[len(tasks) :]:
        axis.set_visible(False)
    for axis, task in zip(axes.flat, tasks, strict=False):
        found = {role: task.over(role, task.rival(role)) for role in roles if task.runs.get(role)}
        reach = {role: gain.reach if len(gain.values) > 1 else 0.0 for role, gain in found.items()}
        # ESAM is so far below that it would press the others together: an arrow and its number
        lowest = min(0.0, *(gain.mean - reach[role] for role, gain in found.items() if role != "esam"))
        highest = max(0.0, *(gain.mean + reach[role] for role, gain in found.items()))
        edge = lowest - 0.12 * (highest - lowest)
        for place, role in enumerate(reversed(roles)):
            if role not in found:
                continue
            colour = "#7e2afc" if role.startswith("slicesam") else "#d17a12" if role == "sam" else "#66707d"
            if found[role].mean < edge:
                axis.plot(edge, place, "<", color=colour, markersize=5)
                value = f"  {found[role].mean:+.{digits(task) - 1}f}"
                axis.text(edge, place, value, color=colour, fontsize=7, va="center")
            else:
                style = {"color": colour, "capsize": 2, "markersize": 4}
                axis.errorbar(found[role].mean, place, xerr=reach[role], fmt="o", **style)
        axis.set_xlim(edge - 0.04 * (highest - edge), highest + 0.06 * (highest - edge))
        axis.axvline(0, color="#99a", linewidth=0.8)
        n = len(task.runs["base"])
        axis.set_title(f"{task.name}, n = {n}, base step {1000 * task.base_step():.0f} ms", fontsize=8)
        axis.set_xlabel("points of accuracy" if task.sign == 1 else "loss saved", fontsize=8)
        axis.tick_params(labelsize=8)
    axes[0][0].set_yticks(range(len(roles)), [title(role) for role in reversed(roles)])
    drawn.suptitle("Gain over the best base within an arm's time (bars: one-sided 95 % bounds)", fontsize=9)
    drawn.tight_layout()
    drawn.savefig(path, dpi=150)
    plt.close(drawn)


def committed() -> list[Task]:
    """Return the tasks that the committed records can judge."""
    return finished(read(RECORDS))
