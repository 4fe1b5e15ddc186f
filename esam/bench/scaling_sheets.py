"""How do the measurements on two ranks and the model of many devices look as tables?"""

from __future__ import annotations

from typing import Any

from esam.optim import METHODS
from esam.report.sheets import Sheet

from .exchange import Perturbation, exchange, passes
from .scaling import Links, Workload, efficiency, memory, most_ranks, step_time
from .stragglers import segments, straggling, unequal_kept

GPUS = Links(200e9, 20e9, devices=8, latency_inside=10e-6, latency_between=30e-6, overlap=0.8)
"""Assumed, measured nowhere: eight GPUs a machine with NVLink, one 200 Gb/s network card for each."""
RESNET50 = Workload("ResNet-50, 64 images a GPU", weights=4 * 25.6e6, sample_seconds=1 / 2400)
"""Assumed: bf16, some 2,400 images a second on one GPU."""
VIT_LARGE = Workload("ViT-L/16, 32 images a GPU", weights=4 * 304e6, sample_seconds=1 / 350)
"""Assumed: bf16, some 350 images a second on one GPU."""
SAMPLES = {RESNET50: 64, VIT_LARGE: 32}
WHOLE_BATCH = 4096
MANY = (8, 64, 1024)
NOISE = 0.1
SHOWN: tuple[tuple[str, Perturbation], ...] = (
    ("base", "rank"),
    ("sam", "rank"),
    ("sam", "global"),
    ("looksam", "rank"),
    ("esam-swp", "rank"),
    ("esam-swp", "global"),
    ("esam-sds", "rank"),
    ("esam-sds", "global"),
    ("esam", "rank"),
    ("esam", "global"),
    ("slicesam", "rank"),
    ("slicesam", "global"),
)


def exchange_sheet() -> Sheet:
    """Return what a step of each method exchanges, in whole gradients, and the bytes of that on two and many ranks."""
    rows = []
    for name, row in METHODS.items():
        ways: list[Perturbation] = ["rank", "global"] if "perturbation" in row.options() else ["rank"]
        for way in ways if passes(name).perturbed else ways[:1]:
            ddp, fsdp = (exchange(name, perturbation=way, strategy=how) for how in ("ddp", "fsdp"))
            told = [f"{v:.3g}" for v in (ddp.hidden, ddp.exposed, ddp.small, ddp.moved(1, 2), ddp.moved(1, 1024))]
            title = f"`{name}`, {way}" if len(ways) > 1 else f"`{name}`"
            shards = [] if way == "global" else [f"{v:.3g}" for v in (fsdp.gathers, fsdp.scatters)]
            rows.append((title, f"{row.units():.3g}", *told, *(shards or ["as above", "as above"])))
    head = ("step by", "units", "hidden", "exposed", "small", "sent, 2 ranks", "sent, 1,024", "gathers", "scatters")
    return Sheet("", head, tuple(rows))


def fitted(result: dict[str, Any]) -> tuple[Links, Workload]:
    """Return this machine's links and the workload as the measurements have them."""
    times = {int(size): seconds for size, seconds in result["exchange"].items()}
    least, most = min(times), max(times)
    latency = times[least]
    rate = most / max(times[most] - latency, 1e-9)  # on two ranks, an all-reduce sends each byte once
    links = Links(rate, rate, devices=2, latency_inside=latency / 2, latency_between=0.0, overlap=1.0)
    bench = result["bench"]
    seconds = result["steps"]["base, rank"]["beside"] / bench["batch_size"]
    return links, Workload(bench["model"], bench["weights"], seconds)


def fit_sheet(result: dict[str, Any]) -> Sheet:
    """Return measured steps beside the model's: alone, side by side, and on two ranks; and what was counted."""
    links, work = fitted(result)
    batch, rows = result["bench"]["batch_size"], []
    for title, took in result["steps"].items():
        name, way = title.split(", ")
        told = step_time(name, work, links, ranks=2, samples=batch, perturbation=way)
        model = exchange(name, _steady(name), perturbation=way)
        counted = result["counted"][title]
        measured = [f"{1e3 * took[key]:.0f}" for key in ("alone", "beside", "ranks")]
        pairs = [(counted["gradients"], model.hidden + model.exposed), (counted["small"], model.small)]
        rows.append(
            (f"`{name}`, {way}", *measured, f"{1e3 * told.seconds:.0f}", *(f"{a:.3g} / {b:.3g}" for a, b in pairs))
        )
    head = ("step by", "alone, ms", "side by side", "two ranks", "model", "gradients, counted / model", "small")
    return Sheet("", head, tuple(rows))


def links_words(result: dict[str, Any]) -> str:
    """Say what the links of this machine were found to be."""
    links, work = fitted(result)
    env, bench = result["environment"], result["bench"]
    return (
        f"{bench['model']}, {bench['batch_size']} samples a rank, {bench['rounds']} rounds, {env['hardware']}, one "
        f"thread a rank, torch {env['torch']}. Gloo over loopback: {links.rate(2) / 1e6:,.0f} MB/s, "
        f"{1e6 * links.latency(2):,.0f} µs for a few numbers; a gradient is {work.weights / 1e6:.1f} MB."
    )


def many_sheet(work: Workload) -> Sheet:
    """Return time over the base's, and efficiency, on many GPUs."""
    rows, samples = [], SAMPLES[work]
    for name, way in SHOWN:
        how: dict[str, Any] = {"samples": samples, "perturbation": way}
        cells = []
        for ranks in MANY:
            time = step_time(name, work, GPUS, ranks=ranks, **how).seconds
            base = step_time("base", work, GPUS, ranks=ranks, samples=samples).seconds
            cells += [f"{time / base:.2f}", f"{100 * efficiency(name, work, GPUS, ranks=ranks, **how):.0f}"]
        shards = [
            step_time(n, work, GPUS, ranks=MANY[-1], strategy="fsdp", samples=samples).seconds for n in (name, "base")
        ]
        far = most_ranks(name, work, GPUS, batch=WHOLE_BATCH, perturbation=way)
        sharded = f"{shards[0] / shards[1]:.2f}" if way == "rank" else ""
        rows.append((f"`{name}`, {way}", *cells, f"{far}", sharded))
    head = ["step by"]
    for ranks in MANY:
        head += [f"{ranks:,}: time / base", "eff., %"]
    return Sheet("", (*head, f"GPUs for {WHOLE_BATCH:,}", "1,024 in shards: time / base"), tuple(rows))


def memory_sheet(result: dict[str, Any]) -> Sheet:
    """Return what each device holds, activations apart: in units of the weights, and for a large net.

    What the base holds beyond its gradient is activations, and they are the same for all.
    """
    rows = []
    for name, peak in result["held"].items():
        held = 1 + peak - result["held"]["base"]
        whole, shards = (
            memory(held, VIT_LARGE, ranks=ranks, state=2.0, strategy=how) / 2**30  # type: ignore[arg-type]
            for ranks, how in ((1, "ddp"), (64, "fsdp"))
        )
        rows.append((f"`{name}`", f"{held:.1f}", f"{whole:.1f}", f"{1024 * shards:.0f}"))
    head = ("step by", "held, in weights", "ViT-L, AdamW, in a replica, GiB", "in 64 shards, MiB")
    return Sheet("", head, tuple(rows))


def straggler_sheet() -> Sheet:
    """Return the simulated price of waiting for the slowest rank."""
    rows = []
    for name, way in SHOWN:
        parts = segments(name, way)
        told = [f"{straggling(parts, ranks, NOISE):.2f}" for ranks in MANY]
        rows.append((f"`{name}`, {way}", " + ".join(f"{p:.3g}" for p in parts), *told))
    return Sheet("", ("step by", "units between waits", *(f"{ranks:,} ranks" for ranks in MANY)), tuple(rows))


def kept_sheet() -> Sheet:
    """Return the simulated imbalance, were samples ranked over all ranks together."""
    rows = []
    for alike in (0.0, 0.1, 0.3):
        told = [f"{unequal_kept(ranks, 64, 0.5, alike=alike, steps=20):.2f}" for ranks in MANY]
        rows.append((f"{alike:g}", *told))
    return Sheet(
        "", ("share of a score that a rank's samples have in common", *(f"{n:,} ranks" for n in MANY)), tuple(rows)
    )


def _steady(name: str) -> dict[str, Any]:
    """Return the settings that a method was counted with."""
    return {"radius": "constant"} if name == "slicesam" else {}
