"""The paper's experiments: whole at a tiny size, their data, their store, and the command."""

import dataclasses
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from esam import ESAM
from esam.analysis import ModelObjective
from esam.analysis.directions import cosine_similarity, inner
from esam.analysis.objective import norm_of, value_and_gradient
from esam.train.loaded_run import run_weights
from experiments.paper import probe
from experiments.paper.__main__ import main
from experiments.paper.data import WATCH, drawn, set_losses
from experiments.paper.figure4 import gradient_plane, objective_of
from experiments.paper.hyperparameters import PAPER, SCALES, paper_scale, tiny_scale
from experiments.paper.items import ITEMS, jobs_of, run_list
from experiments.paper.jobs import Training, training
from experiments.paper.page import draw_item, hours, item_plan, judged
from experiments.paper.results import Results, open_results
from experiments.paper.rules import NOT_RUN
from experiments.paper.store import EPOCHS, Store

ROOT = Path(__file__).parent.parent
RESNET = ("ResNet-18", "CIFAR-10")


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """All that the run list names, made in this process: starting one for each takes longer than the runs."""
    scale = dataclasses.replace(tiny_scale(), seeds=2, few=2, processes=2)
    results = Results(Store(tmp_path_factory.mktemp("paper"), None), scale)
    for _ in range(2):  # what follows from the grid comes in the second round
        for job in jobs_of(ITEMS, results):
            if not job.done(results.store):
                job.do(results.store, scale)
    return results


@pytest.mark.slow
def test_the_run_list_makes_every_item_and_leaves_no_claim_without_a_verdict(everything):
    assert not [job.name for job in jobs_of(ITEMS, everything) if not job.done(everything.store)]
    found = {f"{name}: {claim.text}": verdict.verdict for name, claim, verdict in judged(everything)}
    assert len(found) >= 60 and NOT_RUN not in found.values()


@pytest.mark.slow
def test_a_run_list_that_is_done_in_part_is_judged_by_what_is_there(everything, tmp_path):
    """Before: with Table 3 done and Figure 3 not, the command failed."""
    partial, judgeable = Results(Store(tmp_path, None), everything.scale), [0]
    for section in run_list(everything):
        for job in section.jobs:
            run, file = everything.store.folder / job.name, everything.store.folder / f"{job.name}.jsonl"
            (tmp_path / job.name).parent.mkdir(parents=True, exist_ok=True)
            if run.is_dir():
                shutil.copytree(run, tmp_path / job.name, dirs_exist_ok=True)
            else:
                shutil.copy(file, tmp_path / f"{job.name}.jsonl")
        judgeable.append(sum(verdict.verdict != NOT_RUN for _, _, verdict in judged(partial)))
        if "Table 3" in section.title:
            studied = [
                v.verdict for name, claim, v in judged(partial) if name == "figure3" and "beta" in claim.text[:6]
            ]
            assert studied == [NOT_RUN] * 2
    assert judgeable == sorted(judgeable)


@pytest.mark.slow
def test_probes_leave_a_training_as_it_would_be_without_them(everything, tmp_path):
    run = training(everything.scale, RESNET, "esam", 0)
    Training(run.name, run.config).do(Store(tmp_path, None), everything.scale)
    one, two = (run_weights(store.folder / run.name)[1] for store in (everything.store, Store(tmp_path, None)))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert run.probed and not training(everything.scale, RESNET, "sam", 0).probed


@pytest.mark.slow
def test_every_item_has_tables_and_pictures_from_its_records(everything, tmp_path):
    for name, module in ITEMS.items():
        sheets = module.tables(everything) if hasattr(module, "tables") else []
        paths = draw_item(name, everything, tmp_path)
        assert all(sheet.rows for sheet in sheets) and all(path.stat().st_size > 5_000 for path in paths), name
        assert sheets or paths, name
        assert item_plan(name, everything).endswith("0.0 core-h left")


@pytest.mark.slow
def test_what_is_committed_is_never_replaced_and_judges_alone(everything, tmp_path):
    pack = tmp_path / "paper.jsonl.xz"
    added = Store(everything.store.folder, pack).commit()
    alone = Results(Store(tmp_path / "nothing here", pack), everything.scale)
    assert added > 50 and judged(alone) == judged(everything)
    with pytest.raises(ValueError, match="is committed in .* and stays as it is"):
        alone.store.write(alone.store.names("timing/")[0], [{}])
    assert Store(everything.store.folder, pack).commit() == 0
    assert not any("work" in name for name in alone.store.committed)
    run = training(everything.scale, RESNET, "esam", 0)  # its weights are not committed, so it is trained again
    again, first = (objective_of(r.store, r.scale, run, 30) for r in (alone, everything))
    assert float(again(again.parameters)) == float(first(first.parameters))
    probed = sum(name.endswith(EPOCHS) for name in alone.store.committed)
    assert probed == len(jobs_of(["appendix2"], alone))  # what steps saw is kept of these alone


def test_a_run_that_is_not_finished_is_not_committed(tmp_path):
    store = Store(tmp_path / "made", tmp_path / "x.jsonl.xz")
    store.write("train/a/record.jsonl", [{"kind": "run"}, {"kind": "epoch", "epoch": 1}])
    store.write("train/a/epochs.jsonl", [{"epoch": 1}])
    store.write("savings/x.work.jsonl", [{"draw": 0}])
    store.write("flat.jsonl", [{"x": 1}])
    assert store.commit() == 1 and list(store.committed) == ["flat.jsonl"]


def test_the_seed_draws_as_many_images_of_each_class_and_others_are_held_out():
    one, two = drawn("digits", 0), drawn("digits", 1)
    assert one.train[1].bincount().tolist() == [6] * 10
    assert not torch.equal(one.train[0], two.train[0]) and torch.equal(one.test[0], two.test[0])
    assert torch.equal(drawn("digits", 0).train[0], one.train[0])
    held = drawn("digits", 0, held_out=True)
    assert torch.equal(held.train[0], one.train[0])
    ours = {tuple(image.flatten().tolist()) for image in held.train[0]}
    assert not ours & {tuple(image.flatten().tolist()) for image in held.test[0]}


def test_the_watch_sees_the_losses_of_esams_own_step():
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    optimizer = ESAM(torch.optim.SGD(net.parameters(), lr=0.1), net, rho=0.3, beta=1.0, gamma=0.5)
    start = nn.functional.cross_entropy(net(x), y, reduction="none")
    gradient = torch.autograd.grad(start.mean(), list(net.parameters()))
    norm = torch.cat([g.flatten() for g in gradient]).norm()
    weights = [p.detach() + 0.3 * g / norm for p, g in zip(net.parameters(), gradient, strict=True)]
    moved = nn.functional.cross_entropy(x @ weights[0].T + weights[1], y, reduction="none")
    WATCH.epoch()
    with torch.no_grad():  # an evaluation in between is not taken for a step
        WATCH.loss(net(x), y)
    optimizer.step(lambda keep: WATCH.loss(net(x[keep]), y[keep]), batch_size=8)
    seen = WATCH.epoch()
    expected = set_losses(start.detach(), moved.detach(), 4)
    assert {name: values[0] for name, values in seen.items()} == pytest.approx(expected, rel=1e-5)
    rises = [expected[f"{name} at eps"] - expected[f"{name} at theta"] for name in ("B+", "B", "B-")]
    assert rises == sorted(rises, reverse=True)
    assert WATCH.epoch() == {}


def test_a_probe_leaves_the_net_as_it_was_and_sees_the_loss_in_train_mode():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).train()
    x, y = torch.randn(16, 4), torch.randint(0, 3, (16,))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    batch = probe.TrainMode(net, [(x, y)])
    found = probe.inside(batch, 0.05, 0.5, seed=0)
    deep = probe.along(batch, 0.05, 0.5, 50, seed=0)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    with torch.no_grad():  # last: in train mode it moves BatchNorm's statistics
        assert torch.allclose(batch(batch.parameters), nn.functional.cross_entropy(net(x), y), rtol=1e-6)
    assert -1 <= found["cosine B-"] <= 1 and found["cosine B+"] > 0
    assert deep["zeta sam"] < 0.05 and deep["mean cosine"] > 0.8 and 0.3 < deep["mean distance"] < 2


def test_a_probed_run_that_is_interrupted_has_every_epoch_once_and_as_it_would_have_been(tmp_path, monkeypatch):
    scale = tiny_scale()
    run, whole, cut = training(scale, RESNET, "esam", 0), Store(tmp_path / "whole", None), Store(tmp_path / "cut", None)
    run.do(whole, scale)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(probe, "along", interrupted)  # in the first epoch's observation, after its steps
        run.do(cut, scale)
    run.do(cut, scale)
    seen = cut.lines(f"{run.name}/{EPOCHS}")
    assert [line["epoch"] for line in seen] == [1, 2] and seen == whole.lines(f"{run.name}/{EPOCHS}")


def test_the_papers_rows_become_the_papers_runs():
    scale = paper_scale()
    assert len(PAPER) == 9 and set(SCALES["cpu"]().columns) == set(PAPER)
    sam = scale.config(RESNET, "sam", 0)
    assert (sam.epochs, sam.batch_size, sam.lr, sam.weight_decay, sam.augment) == (200, 128, 0.05, 1e-3, "basic")
    assert sam.settings == {"rho": 0.05} and scale.config(RESNET, "base", 0).weight_decay == 5e-4
    wide = scale.config(("WRN-28-10", "CIFAR-100"), "esam", 1)
    assert wide.settings == {"rho": 0.1, "beta": 0.5, "gamma": 0.5} and wide.batch_size == 256
    large = scale.config(("ResNet-50", "ImageNet"), "esam", 0)
    assert large.settings == {"rho": 0.05, "m": 128, "beta": 0.6, "gamma": 0.7}
    assert (large.size, large.warmup, large.epochs, large.weight_decay) == (224, 5, 90, 1e-4)
    assert scale.config(("PyramidNet-110", "CIFAR-10"), "sam", 0).weight_decay == 5e-4
    assert scale.config(("ViT-S/16", "ImageNet"), "base", 0).optimizer == "adamw"


def test_equal_runs_have_one_name_and_other_runs_another():
    scale = SCALES["cpu"]()
    names = [training(scale, RESNET, "esam-swp", 0, beta=beta).name for beta in (0.5, 0.6)]
    assert names[1] == training(scale, RESNET, "esam-swp", 0).name != names[0]
    assert training(scale, RESNET, "base", 0, weight_decay=1e-3).name != training(scale, RESNET, "base", 0).name
    runs = [job for job in jobs_of(ITEMS, Results(Store(Path("nowhere"), None), scale)) if isinstance(job, Training)]
    assert len({job.config.id() for job in runs}) == len(runs)


def test_the_plan_prints_all_that_the_paper_sets(tmp_path):
    results = Results(Store(tmp_path, None), paper_scale())
    text = item_plan("table2", results)
    expected = "augmentation inception, 224 pixels"
    assert f"momentum 0.9, cosine schedule, warm-up 5 epochs, {expected}" in text and "m 128" in text
    assert "momentum" not in item_plan("vit", results)  # AdamW has betas of its own
    run = training(results.scale, ("ResNet-50", "ImageNet"), "sam", 0)
    assert hours(run, results) == pytest.approx(1_281_167 * 90 / 654 / 3600)


def test_the_command_lists_judges_and_refuses_what_it_would_ignore(tmp_path, capsys):
    out = ["--out", str(tmp_path)]
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ITEMS)
    assert main(["claims", *out]) == 0 and "claims:" in capsys.readouterr().out
    assert main(["runs", "--plan", *out]) == 0 and "Figure 1" in capsys.readouterr().out
    assert main(["runs", "--plan", "--only", "vit", *out]) == 0 and "Figure 1" not in capsys.readouterr().out
    assert main(["table1", "--jobs", "0", *out]) == 1 and "--jobs must be 1 or more" in capsys.readouterr().err
    for words in (["tabel1"], ["claims", "--plan"], ["table1", "--scale", "huge"], ["runs", "--only", "tabel1"]):
        with pytest.raises(SystemExit):
            main(words)


@pytest.mark.slow
def test_killed_at_any_moment_it_leaves_no_process_and_the_same_call_goes_on(tmp_path):
    command = [sys.executable, "-m", "experiments.paper", "appendix7", "--scale", "tiny", "--out", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as first:
        assert "A.7" in first.stdout.readline() and "done" in first.stdout.readline()
        first.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while _children_of_session(first.pid) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not _children_of_session(first.pid)
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert again.returncode == 0, again.stderr
    results = open_results("tiny", tmp_path)
    assert all(job.done(results.store) for job in jobs_of(["appendix7"], results))
    assert "A.7: the best of each method's search" in again.stdout and "1 claims:" in again.stdout


@pytest.mark.slow
def test_a_job_that_fails_is_named_and_the_others_are_done(tmp_path):
    run = training(tiny_scale(), RESNET, "esam", 0)
    (tmp_path / "tiny" / run.name).mkdir(parents=True)
    (tmp_path / "tiny" / run.name / "record.jsonl").write_text('{"kind": "nonsense"}\n')
    command = [sys.executable, "-m", "experiments.paper", "appendix2", "--scale", "tiny", "--out", str(tmp_path)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert made.returncode == 1 and "1 failed" in made.stderr and run.name in made.stdout
    results = open_results("tiny", tmp_path)
    assert [job.name for job in jobs_of(["appendix2"], results) if not job.done(results.store)] == [run.name]


def _children_of_session(session):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z" and int(path.parent.name) != os.getpid():
            found.append(path.parent.name)
    return found


def test_the_axes_of_a5_are_orthogonal_and_span_the_gradients_of_the_halves():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    objective = ModelObjective(net, [(torch.randn(20, 4).double(), torch.randint(0, 3, (20,)))])
    theta = objective.parameters
    x, y = gradient_plane(objective, 0, 0.1)
    halves = torch.randperm(20, generator=torch.Generator().manual_seed(0)).tensor_split(2)
    g, h = (value_and_gradient(objective.only(rows), theta)[1] for rows in halves)
    assert inner(x, y) == pytest.approx(0, abs=1e-12)
    for axis, half in ((x, g), (y, h)):
        assert float(norm_of(axis.values())) == pytest.approx(0.1 * float(norm_of(half.values())))
    assert cosine_similarity(g, x) == pytest.approx(1)
    assert math.hypot(cosine_similarity(h, x), cosine_similarity(h, y)) == pytest.approx(1)


def test_swps_eps_is_sams_on_average():
    gradient = {"a": torch.tensor([3.0, 0.0]).double(), "b": torch.tensor([0.0, 4.0]).double()}
    generator = torch.Generator().manual_seed(0)
    draws = [probe.swp_eps(gradient, 0.5, beta=0.8, generator=generator) for _ in range(2000)]
    assert sorted({round(e["a"][0].item(), 12) for e in draws}) == [0.0, 0.375]
    # at least one tensor is drawn: each then has 0.8 + 0.2 * 0.2 / 2 = 0.82
    # so the share drawn is within 3.5 standard errors, sqrt(0.82 * 0.18 / 2000) = 0.0086
    assert sum(e["a"][0].item() > 0 for e in draws) / 2000 == pytest.approx(0.82, abs=0.03)
