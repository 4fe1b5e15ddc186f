"""What does a person see before anything runs: the list of items, and the plan of one?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from esam.report.sheets import Sheet, as_text
from esam.train.config import Config, find_method

from .cost import DATA, RATE_WORDS, RATES, forward_flops, hours, run_flops, total_flops, training_images, units
from .item import Item, MethodRuns, Needs
from .make import Items, lacking
from .store import ResultStore, needed

GPUS = 8
"""In a machine, where nobody says."""
SHOWN = ("epochs", "batch_size", "train_size", "size", "augment", "optimizer", "lr", "momentum", "weight_decay")


def item_list(items: Items, stores: Sequence[ResultStore]) -> str:
    """Return the items, how far each is at every scale, and what is left to do."""
    head, totals = ["Item", "In the paper", "Title"], ["all", "", "each run counted once"]
    lines = [[item.name, item.number, item.title] for item in items.values()]
    for store in stores:
        head += [store.scale.name, "left"]
        totals += ["", _hours(left_of_all(items, store), store)]
        for line, item in zip(lines, items.values(), strict=True):
            line += [state(item, store), _hours(left(item, store), store)]
    sheet = Sheet("The paper's tables and figures", tuple(head), tuple(map(tuple, [*lines, totals])))
    told = "; ".join(f"{store.scale.name}: {RATE_WORDS[store.scale.machine]}" for store in stores)
    return f"{as_text(sheet)}\n\nHours of one core or GPU, counted: {told}.\nesam reproduce ITEM --plan tells more."


def state(item: Item[Any], store: ResultStore) -> str:
    """Say how far an item is."""
    if store.result(item) is not None:
        return "made"
    needs = item.needs(store.scale)
    if needs.empty:
        return "not at this scale"
    total, missing = len(needed(needs)), len(store.missing(needs))
    if lacking(item, store):
        return "data not here"
    return "not made" if total == 0 else f"{total - missing} of {total} runs"


def left(item: Item[Any], store: ResultStore) -> float:
    """Return the operations that making an item would still take."""
    needs = item.needs(store.scale)
    if store.result(item) is not None:
        return 0.0
    return total_flops(run.config for run in store.missing(needs)) + analysis_flops(needs, store.scale.machine)


def left_of_all(items: Items, store: ResultStore) -> float:
    """Return the operations that making all items would still take, each run and each probe once."""
    waiting = [item.needs(store.scale) for item in items.values() if store.result(item) is None]
    runs = {run.config.id(): run.config for needs in waiting for run in store.missing(needs)}
    probes = {
        (config.id(), needs.probe): forward_flops(config) * images
        for needs in waiting
        for probed, (_, images) in zip(needs.probed, needs.passes, strict=False)
        for config in probed.configs
    }
    others = sum(analysis_flops(needs, store.scale.machine) for needs in waiting if not needs.probed)
    return total_flops(runs.values()) + sum(probes.values()) + others


def analysis_flops(needs: Needs, machine: str) -> float:
    """Return the operations that the machine could do in the time of an item's analysis, training apart."""
    on_a_thread = needs.thread_flops * RATES[machine] / RATES["CPU"]
    return on_a_thread + sum(forward_flops(config) * images for config, images in needs.passes)


def plan_text(item: Item[Any], store: ResultStore) -> str:
    """Return data, models, hyper-parameters, runs done and missing, and what is left to do."""
    needs, machine = item.needs(store.scale), store.scale.machine
    every, missing = needed(needs), store.missing(needs)
    lines = [f"{item.name} ({item.number}): {item.title}", f"scale {store.scale.name}", ""]
    for config in {config.data: config for config in every.values()}.values():
        lines.append(f"data        {config.data} ({_amount(config)})")
        if config.data in lacking(item, store):
            how = f"; {DATA[config.data].how}" if config.data in DATA else ""
            lines.append(f"            not on this machine{how}")
    lines += [f"{name:<11} {words}" for name, words in needs.sizes.items()]
    if every:
        lines += ["", as_text(_runs_sheet(needs.every)), ""]
        lines.append(f"runs        {len(every)}: {len(every) - len(missing)} done, {len(missing)} to train")
    training, whole = total_flops(run.config for run in missing), total_flops(every.values())
    lines.append(f"training    {_hours(training, store)} left, of {_hours(whole, store)}")
    lines.append(f"analysis    {_hours(analysis_flops(needs, machine), store)}")
    lines.append(f"assumed     {RATE_WORDS[machine]}; a step costs its counted passes (SGD 3, SAM 6, ...)")
    return "\n".join([*lines, *(f"note        {note}" for note in item.notes)])


def commands(item: str, options: Sequence[str], gpus: int = GPUS) -> str:
    """Return the commands that make an item: on one GPU, on those of one machine, and on a cluster."""
    own = " ".join(["esam reproduce", item, *options])
    ways = {
        "one GPU, or a CPU": own,
        f"one machine, {gpus} GPUs, each run on all of them": f"torchrun --nproc-per-node {gpus} -m {own}",
        f"one machine, {gpus} GPUs, a run on each": f"{own} --cluster ray --gpus-per-run 1",
        "a cluster, a run on each GPU": f"{own} --cluster ray://HEAD:10001 --gpus-per-run 1",
    }
    note = "On several GPUs, a run's batch is parted, and BatchNorm normalises by each GPU's part."
    return "\n".join(["commands", *(f"  {how}:\n    {command}" for how, command in ways.items()), f"  {note}"])


def _runs_sheet(every: Sequence[MethodRuns]) -> Sheet:
    lines = []
    for runs in every:
        config = runs.configs[0]
        given = {key.replace("_", " "): getattr(config, key) for key in SHOWN}
        seeds = ", ".join(str(one.seed) for one in runs.configs)
        own = find_method(config.method).effective(config.settings)
        cells = (config.model, _pairs(given), _pairs(own), seeds, f"{units(config):.1f}")
        lines.append((f"{runs.workload.paper}: {runs.label}", *cells, f"{run_flops(config):.2e}"))
    head = ("Task, method", "model", "training", "method's own", "seeds", "units", "operations a run")
    return Sheet("Runs", head, tuple(lines))


def _pairs(values: Mapping[str, Any]) -> str:
    words = {key: f"{v:g}" if isinstance(v, float) else str(v) for key, v in values.items() if v is not None}
    return ", ".join(f"{key} {value}" for key, value in words.items())


def _amount(config: Config) -> str:
    return f"{training_images(config):,} training images" if config.data in DATA else "all images"


def _hours(flops: float, store: ResultStore) -> str:
    machine = store.scale.machine
    unit = "core-h" if machine == "CPU" else "GPU-h"
    found = hours(flops, machine)
    return "0" if found == 0 else f"{found:,.2f} {unit}" if found < 10 else f"{found:,.0f} {unit}"
