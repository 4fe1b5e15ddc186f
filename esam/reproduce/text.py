"""What does a person see before anything runs: the list of items, and the plan of one?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from esam.report.sheets import Sheet, as_text
from esam.train.config import Config

from .cost import DATA, RATE_WORDS, RATES, forward_flops, hours, run_flops, total_flops, training_images, units
from .item import Item, Needs, Row
from .make import data_of, lacking
from .store import Store, configs

SHOWN = ("epochs", "batch_size", "train_size", "size", "augment", "optimizer", "lr", "momentum", "weight_decay")
SHOWN_METHOD = ("rho", "beta", "gamma", "ranking", "choose", "m")


def item_list(items: Mapping[str, Item], stores: Sequence[Store]) -> str:
    """Return the items, how far each is at every scale, and what is left to do."""
    head = ["Item", "In the paper", "Title"]
    for store in stores:
        head += [store.scale.name, "left"]
    lines = []
    for item in items.values():
        cells = [item.name, item.number, item.title]
        for store in stores:
            cells += [state(item, store), _hours(left(item, store), store)]
        lines.append(tuple(cells))
    totals = ["all", "", "each run counted once"]
    for store in stores:
        totals += ["", _hours(left_of_all(items, store), store)]
    sheet = Sheet("The paper's tables and figures", tuple(head), (*lines, tuple(totals)))
    told = "; ".join(f"{store.scale.name}: {RATE_WORDS[store.scale.machine]}" for store in stores)
    return f"{as_text(sheet)}\n\nHours of one core or GPU, counted: {told}.\nesam reproduce ITEM --plan tells more."


def state(item: Item, store: Store) -> str:
    """Say how far an item is."""
    if store.result(item) is not None:
        return "made"
    needs = item.needs(store.scale)
    total, missing = len(store.needed(needs)), len(store.missing(needs))
    if lacking(item, store):
        return "data not here"
    return "not made" if total == 0 else f"{total - missing} of {total} runs"


def left(item: Item, store: Store) -> float:
    """Return the operations that making an item would still take."""
    needs = item.needs(store.scale)
    if store.result(item) is not None:
        return 0.0
    return total_flops(run.config for run in store.missing(needs)) + analysis_flops(needs, store.scale.machine)


def left_of_all(items: Mapping[str, Item], store: Store) -> float:
    """Return the operations that making all items would still take, each run once."""
    waiting = [item.needs(store.scale) for item in items.values() if store.result(item) is None]
    runs = {run.folder.name: run.config for needs in waiting for run in store.missing(needs)}
    looked = {(row.task, needs.look): None for needs in waiting for row in needs.observed}
    once = 0.0
    for needs in waiting:
        for row, work in zip(needs.observed, needs.passes, strict=False):
            if (row.task, needs.look) in looked:  # several items read one look
                del looked[row.task, needs.look]
                once += forward_flops(work[0]) * work[1]
    others = sum(analysis_flops(needs, store.scale.machine) for needs in waiting if not needs.observed)
    return total_flops(runs.values()) + once + others


def analysis_flops(needs: Needs, machine: str) -> float:
    """Return the operations that the machine could do in the time of an item's analysis, training apart."""
    on_a_thread = needs.thread_flops * RATES[machine] / RATES["CPU"]
    return on_a_thread + sum(forward_flops(config) * images for config, images in needs.passes)


def plan_text(item: Item, store: Store) -> str:
    """Return data, models, hyper-parameters, runs done and missing, and what is left to do."""
    needs, machine = item.needs(store.scale), store.scale.machine
    rows = (*needs.observed, *needs.weights, *needs.rows)
    needed, missing = store.needed(needs), store.missing(needs)
    lines = [f"{item.name} ({item.number}): {item.title}", f"scale {store.scale.name}", ""]
    for config in data_of(needs):
        lines.append(f"data        {config.data} ({_amount(config)})")
        if config.data in lacking(item, store):
            how = f"; {DATA[config.data].how}" if config.data in DATA else ""
            lines.append(f"            not on this machine{how}")
    lines += [f"{name:<11} {words}" for name, words in needs.sizes.items()]
    if rows:
        lines += ["", as_text(_rows_sheet(rows)), ""]
        lines.append(f"runs        {len(needed)}: {len(needed) - len(missing)} done, {len(missing)} to train")
    training = total_flops(run.config for run in missing)
    whole = total_flops(run.config for run in needed.values())
    lines.append(f"training    {_hours(training, store)} left, of {_hours(whole, store)}")
    lines.append(f"analysis    {_hours(analysis_flops(needs, machine), store)}")
    lines.append(f"assumed     {RATE_WORDS[machine]}; a step costs its counted passes (SGD 3, SAM 6, ...)")
    return "\n".join([*lines, *(f"note        {note}" for note in item.notes)])


def _rows_sheet(rows: Sequence[Row]) -> Sheet:
    lines = []
    for row in rows:
        each = configs([row])
        config = each[0]
        common = ", ".join(f"{_words(key)} {_value(config, key)}" for key in SHOWN if getattr(config, key) is not None)
        own = ", ".join(f"{key} {_value(config, key)}" for key in SHOWN_METHOD if getattr(config, key) is not None)
        seeds = ", ".join(str(seed) for seed in row.comparison.seeds)
        cost = f"{run_flops(config):.2e}"
        lines.append((f"{row.task}: {row.label}", config.model, common, own, seeds, f"{units(config):.1f}", cost))
    head = ("Task, method", "model", "training", "method's own", "seeds", "units", "operations a run")
    return Sheet("Runs", head, tuple(lines))


def _value(config: Config, key: str) -> str:
    value = getattr(config, key)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _words(key: str) -> str:
    return key.replace("_", " ")


def _amount(config: Config) -> str:
    return f"{training_images(config):,} training images" if config.data in DATA else "all images"


def _hours(flops: float, store: Store) -> str:
    machine = store.scale.machine
    unit = "core-h" if machine == "CPU" else "GPU-h"
    found = hours(flops, machine)
    return "0" if found == 0 else f"{found:,.2f} {unit}" if found < 10 else f"{found:,.0f} {unit}"
