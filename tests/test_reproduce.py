"""Is every item of the paper made end to end, each run once, also after an interruption, and are its words true?"""

import dataclasses
import json
import re

import pytest
import torch
from tiny_scale import CONFIG, comparison, here, tiny_scale

from esam.cli import main
from esam.compare import Launcher
from esam.paper.engine import make as making
from esam.paper.engine import worker
from esam.paper.engine.cost import forward_flops, hours, run_flops, training_images
from esam.paper.engine.item import Needs, Workload, runs_of
from esam.paper.engine.make import MissingData, data_here, make, write_report
from esam.paper.engine.observer import Observer, observed, read_observations, write_probe
from esam.paper.engine.plan_text import item_list, left, left_of_all, plan_text, state
from esam.paper.engine.store import CHECKPOINT_NAME, ResultStore, needed
from esam.paper.items import ITEMS, MAKING_ORDER
from esam.paper.scales import SCALES, as_released
from esam.recipes.cifar import cifar10_small
from esam.report.sheets import as_text
from esam.train.checkpoint import Checkpoint
from esam.train.runs import configured_data, prepared_model, run

pytestmark = pytest.mark.slow

SIXTEEN = {
    "table1", "table2", "table3", "vit", "figure1", "parameter-study", "landscapes", "adversarial-landscapes",
    "four-losses", "cosines", "linearity", "swp-savings", "grid-search", "sds-illustration", "own-best", "length",
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("ESAM_DATA", raising=False)
        patch.setenv("COLUMNS", "300")
        yield


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """All items, made once in the order of `esam reproduce all`; and how many runs each of them trained."""
    store, trained = ResultStore(tmp_path_factory.mktemp("reproduce"), tiny_scale()), {}

    for name in MAKING_ORDER:
        trained[name] = []

        def counted(launcher, name=name):
            trained[name] += [planned.config.id() for planned in launcher.runs]
            here(launcher)

        make(ITEMS[name], store, watch=counted, items=ITEMS)
    return store, trained


# Every item ----------------------------------------------------------------------------------------------------------


def test_the_papers_fourteen_items_and_our_two_are_there():
    assert set(ITEMS) == SIXTEEN == set(MAKING_ORDER) and len(MAKING_ORDER) == 16


def test_an_item_leaves_its_numbers_and_both_kinds_of_picture(everything):
    store, _ = everything
    for name, item in ITEMS.items():
        text = (store.folder / f"{name}.json").read_text()
        about = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
        assert about["item"] == name and about["scale"] == "tiny"
        assert about["environment"]["torch"] == torch.__version__
        vector = sorted(p.stem for p in store.folder.glob(f"{name}*.svg"))
        assert vector and vector == sorted(p.stem for p in store.folder.glob(f"{name}*.png"))
        for sheet in item.sheets(store.result(item).measured):
            assert sheet.rows and "nan" not in as_text(sheet).lower()


def test_runs_that_items_share_are_trained_once(everything):
    store, trained = everything
    every = [name for names in trained.values() for name in names]
    assert len(every) == len(set(every))
    assert set(every) == {key for item in ITEMS.values() for key in needed(item.needs(store.scale))}
    assert trained["cosines"] == trained["figure1"] == trained["adversarial-landscapes"] == []
    assert len(trained["four-losses"]) == 2


def test_pictures_that_an_item_no_longer_draws_go_and_those_of_others_stay(everything):
    store, _ = everything
    stale = store.folder / "table2-of-old.svg"
    stale.write_text("<svg/>")
    others = {path.name for path in store.folder.glob("*.svg")} - {stale.name}
    make(ITEMS["table2"], store, items=ITEMS)
    assert {path.name for path in store.folder.glob("*.svg")} == others


def test_what_is_made_trains_nothing_again_and_gives_the_same_numbers(everything):
    store, _ = everything
    before = store.result(ITEMS["landscapes"]).measured
    again = make(ITEMS["landscapes"], store, watch=lambda launcher: pytest.fail("nothing was missing"), items=ITEMS)
    assert again == before


def test_the_measured_accuracies_are_those_of_the_records(everything):
    store, _ = everything
    runs = next(r for r in ITEMS["table1"].needs(store.scale).runs if r.method == "sam")
    ends = [store.record(planned).end for planned in store.planned(runs)]
    own = store.result(ITEMS["table1"]).measured.workloads[0].find("sam")
    assert own.accuracy.values == tuple(100 * end["test_accuracy"]["last"] for end in ends)
    assert own.best.values == tuple(100 * end["test_accuracy"]["best"] for end in ends)
    assert own.train_accuracy.values == tuple(100 * end["train_accuracy"] for end in ends)


def test_speeds_are_those_of_steps_timed_in_turn_and_sams_is_one(everything):
    store, _ = everything
    for name in ("table1", "vit", "parameter-study"):
        for one in store.result(ITEMS[name]).measured.workloads:
            assert one.find("sam").speed.over_sam.value == 1 == one.find("base").speed.time_over_base.value
            rounds = {own.speed.rounds for own in one.methods if own.speed.images_per_second > 0}
            assert rounds == {store.scale.timed_rounds}


def test_a_title_names_the_model_that_was_trained_and_not_only_the_papers():
    assert Workload("ResNet-18", "CIFAR-10", "ResNet-8", "CIFAR-10").title == "ResNet-8 for ResNet-18, CIFAR-10"
    assert Workload("ResNet-50", "ImageNet", "mlp", "digits").title == "mlp, digits for ResNet-50, ImageNet"
    assert Workload("ResNet-18", "CIFAR-10", "ResNet-18", "CIFAR-10").title == "ResNet-18, CIFAR-10"


def test_the_page_has_every_item_and_needs_nothing_else(everything):
    store, _ = everything
    page = write_report(ITEMS, store).read_text()
    assert all(f'id="{name}"' in page for name in ITEMS)
    assert page.count("<img") == len(list(store.folder.glob("*.svg")))
    assert set(re.findall(r'src="([^:]*:)', page)) == {"data:"} and "<script" not in page
    assert "plotly" not in page and len(page) < 5e6


def test_a_damaged_result_is_refused_with_the_way_out(tmp_path):
    store = ResultStore(tmp_path, tiny_scale())
    store.folder.mkdir()
    (store.folder / "table1.json").write_text("{}")
    with pytest.raises(ValueError, match="table1.json holds no results.*make the item again"):
        store.result(ITEMS["table1"])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (('"format":3', '"format":4'), "that this version reads; delete it, or upgrade esam"),
        (('"item":"table2"', '"item":"table1"'), "holds no results of table2"),
        (('"label":"SAM"', '"label":7'), "holds no results .*make the item again"),
    ],
)
def test_results_that_mean_something_else_are_refused(everything, tmp_path, change, complaint):
    made, _ = everything
    store = ResultStore(tmp_path, made.scale)
    store.folder.mkdir()
    text = (made.folder / "table2.json").read_text()
    assert change[0] in text
    (store.folder / "table2.json").write_text(text.replace(*change))
    with pytest.raises(ValueError, match=complaint):
        store.result(ITEMS["table2"])
    (store.folder / "table2.json").write_text(text.replace('"format":3', '"format":2'))
    assert store.result(ITEMS["table2"]) is None  # an earlier version's count as not made


def test_what_could_not_be_drawn_is_refused_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr("esam.paper.engine.make.find_spec", lambda name: None)
    store = ResultStore(tmp_path, tiny_scale())
    with pytest.raises(ImportError, match=r"matplotlib and curvlinops must be installed: pip install torch-esam"):
        make(ITEMS["landscapes"], store, items=ITEMS, watch=lambda launcher: pytest.fail("it trains"))


@pytest.mark.parametrize(("own", "taken"), [({"rho": 0.2}, 0.2), ({}, 0.05)])
def test_a_run_is_probed_as_far_as_it_perturbs_itself(tmp_path, monkeypatch, own, taken):
    config, probes = dataclasses.replace(CONFIG, method="esam", settings=own), []
    (tmp_path / "config.json").write_text(json.dumps(config.as_json()))
    write_probe(tmp_path, tiny_scale().probe)
    monkeypatch.setattr(worker, "Observer", lambda folder, probe, epochs: probes.append(probe))
    monkeypatch.setattr(worker, "run", lambda *_, **__: None)
    worker.main(tmp_path)
    assert probes[0].rho == taken


# Interruption --------------------------------------------------------------------------------------------------------


def test_an_interrupted_item_resumes(tmp_path):
    store, seen = ResultStore(tmp_path, tiny_scale()), []

    def interrupted(launcher):
        here(Launcher(launcher.runs[:2]))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(ITEMS["table2"], store, items=ITEMS, watch=interrupted)
    assert store.result(ITEMS["table2"]) is None
    assert state(ITEMS["table2"], store) == "2 of 3 runs"
    make(ITEMS["table2"], store, items=ITEMS, watch=lambda launcher: (seen.extend(launcher.runs), here(launcher)))
    assert [planned.config.method for planned in seen] == ["esam"]
    assert state(ITEMS["table2"], store) == "made"


def test_a_probed_run_is_resumed_in_a_process_of_its_own_with_all_it_saw(tmp_path, monkeypatch):
    scale, save = tiny_scale(), Checkpoint.save
    item, store = ITEMS["linearity"], ResultStore(tmp_path, scale)
    needs = item.needs(scale)
    planned = store.missing(needs)[0]
    write_probe(planned.folder, needs.probe)
    planned.prepare()
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", lambda self, state: (save(self, state), _die()))
        with pytest.raises(KeyboardInterrupt):
            worker.main(planned.folder)
    assert [seen.epoch for seen in read_observations(planned.folder)] == [1] and not planned.record().finished
    make(item, store, items=ITEMS)  # by the launcher, in a process
    assert [seen.epoch for seen in read_observations(planned.folder)] == [1, 2]
    assert planned.record().finished
    whole = ResultStore(tmp_path / "whole", scale)
    assert make(item, whole, items=ITEMS, watch=here) == store.result(item).measured


def _die():
    raise KeyboardInterrupt


def test_a_probed_run_that_lost_what_it_saw_is_not_taken_for_done(everything, tmp_path):
    store, _ = everything
    needs = ITEMS["linearity"].needs(store.scale)
    planned = store.probed(needs.probed[0], needs.probe)[0]
    kept = (planned.folder / "observations.json").read_bytes()
    (planned.folder / "observations.json").unlink()
    with pytest.raises(ValueError, match="not probed as asked; delete it to train it again"):
        store.missing(needs)
    (planned.folder / "observations.json").write_bytes(kept)


def test_a_probed_run_is_bit_for_bit_the_run_that_nobody_probes(tmp_path):
    config = dataclasses.replace(CONFIG, method="esam")
    alone = run(config, tmp_path / "alone")
    watched = run(config, tmp_path / "watched", observe=Observer(tmp_path / "watched", tiny_scale().probe, 2))
    assert [line["train_loss"] for line in watched.epochs] == [line["train_loss"] for line in alone.epochs]
    assert watched.end["test_loss"] == alone.end["test_loss"]


# What is there already -----------------------------------------------------------------------------------------------


def test_runs_of_another_folder_are_shared_and_left_alone(everything, tmp_path):
    store, _ = everything
    other = ResultStore(tmp_path, store.scale, shared=[store.folder / "runs", *(store.folder / "observed").glob("*")])
    needs = ITEMS["table2"].needs(store.scale)
    assert other.missing(needs) == [] and len(ResultStore(tmp_path, store.scale).missing(needs)) == len(needed(needs))
    make(ITEMS["table2"], other, items=ITEMS, watch=lambda launcher: pytest.fail("nothing was missing"))
    assert not (other.folder / "runs").exists()
    with pytest.raises(ValueError, match="is not a folder"):
        ResultStore(tmp_path, store.scale, shared=[tmp_path / "nowhere"])


def test_a_record_without_its_weights_is_kept_and_the_weights_are_trained_beside_it(tmp_path):
    store = ResultStore(tmp_path, tiny_scale())
    (runs,) = runs_of(("a", "b"), comparison((0,)), ("base",))
    (planned,) = store.planned(runs)
    planned.prepare()
    run(planned.config, planned.folder)
    assert store.with_weights(planned) == planned
    (planned.folder / CHECKPOINT_NAME).unlink()
    elsewhere = store.with_weights(planned)
    assert elsewhere.folder == store.folder / "weights" / planned.folder.name
    assert store.missing(Needs(weights=(runs,))) == [elsewhere] and store.missing(Needs(runs=(runs,))) == []


def test_the_short_scale_shares_the_records_of_cifar10_small():
    scale = SCALES["short"]()
    (task, *_), methods = ITEMS["table3"].needs(scale).runs, cifar10_small().methods
    recipe = needed(Needs(runs=runs_of(("a", "b"), cifar10_small(), methods))).keys()
    ablation = [runs for runs in ITEMS["table3"].needs(scale).runs if runs.workload == task.workload]
    assert len(ablation) == 5 and needed(Needs(runs=tuple(ablation))).keys() <= recipe
    three = needed(ITEMS["adversarial-landscapes"].needs(scale)).keys()
    assert len(three) == 9 and all(three <= needed(ITEMS[n].needs(scale)).keys() for n in ("table1", "landscapes"))


def test_the_study_shares_the_ablations_runs_at_its_own_beta_and_gamma():
    scale = SCALES["short"]()
    study, ablation = (needed(ITEMS[name].needs(scale)).keys() for name in ("parameter-study", "table3"))
    assert len(study & ablation) == 9 + 2 and len(study) == 9 + 8


@pytest.mark.parametrize("scale", SCALES)
def test_esam_is_the_papers_form_everywhere(scale):
    configs = {key: c for item in ITEMS.values() for key, c in needed(item.needs(SCALES[scale]())).items()}
    forms = [config.identity()["settings"] for config in configs.values() if config.method == "esam"]
    assert forms and {form["mask"] for form in forms} == {"independent"}
    aligned = [form for form in forms if form["ranking"] != "exact"]
    assert len(aligned) == (0 if scale == "short" else 3 * len(SCALES[scale]().length.variant_epochs))


def test_every_method_searches_as_many_points_where_rho_is_searched():
    runs = ITEMS["grid-search"].needs(SCALES["cpu"]()).runs
    assert {method: sum(one.method == method for one in runs) for method in ("base", "sam", "esam")} == {
        "base": 4, "sam": 4, "esam": 4,
    }  # fmt: skip
    configs = [one.configs[0] for one in runs if one.method == "sam"]
    pairs = [(c.lr, c.weight_decay, c.settings["rho"]) for c in configs]
    assert all(len({(point[a], point[b]) for point in pairs}) == 4 for a, b in ((0, 1), (0, 2), (1, 2)))
    assert all(one.configs[0].validation for one in runs)


def test_the_cpu_scale_has_the_papers_learning_rate_for_each_sample_its_decays_and_its_radii():
    ours, theirs = SCALES["cpu"]().comparisons, SCALES["paper"]().comparisons
    for task, own in ours.items():
        mine, paper = own.config, theirs[task].config
        assert mine.lr / mine.batch_size == pytest.approx(paper.lr / paper.batch_size)
        assert (mine.weight_decay, mine.settings, own.settings) == (
            paper.weight_decay, paper.settings, theirs[task].settings,
        )  # fmt: skip
        assert mine.epochs == 200 and mine.schedule == "cosine"


def test_the_released_scripts_own_ways_are_one_option_away(tmp_path):
    released = as_released(SCALES["paper"]())
    for (_, data), own in released.comparisons.items():
        config = own.config
        if data == "ImageNet":
            assert config.augment == "inception" and "norm" not in config.settings
        else:
            assert config.augment == "cutout" and config.settings["norm"] == "selected"
            assert config.settings["m"] == config.batch_size // 2
    text = plan_text(ITEMS["table1"], ResultStore(tmp_path, released))
    line = next(line for line in text.splitlines() if line.startswith("ResNet-18, CIFAR-10: ESAM "))
    assert "augment cutout" in line and "norm selected" in line and "m 64" in line
    assert "augment" in line and "scale paper-as-released" in text


def test_what_a_scale_has_nothing_for_is_said_and_not_made(tmp_path):
    store = ResultStore(tmp_path, SCALES["cpu"]())
    with pytest.raises(ValueError, match="table2 has nothing to be made from at the scale cpu; --scale short"):
        make(ITEMS["table2"], store, items=ITEMS)
    assert state(ITEMS["table2"], store) == "not at this scale" and not store.folder.exists()


# Data ----------------------------------------------------------------------------------------------------------------


def test_missing_data_are_named_with_the_way_to_get_them_and_with_what_can_be_made_now(tmp_path, monkeypatch):
    monkeypatch.setitem(making.DATA, "nowhere", dataclasses.replace(making.DATA["digits"], how="fetch it from there"))
    store = ResultStore(tmp_path, tiny_scale(data="nowhere"))
    with pytest.raises(MissingData) as error:
        make(ITEMS["table1"], store, items=ITEMS, watch=here)
    message = str(error.value)
    assert "table1 at the scale tiny needs the data nowhere" in message
    assert "To get it: fetch it from there." in message
    assert "What can be made now: swp-savings." in message
    assert not store.folder.exists()


def test_what_is_finished_can_be_made_without_the_data(everything, monkeypatch):
    store, _ = everything
    monkeypatch.setattr("esam.train.runs.configured_data", lambda config: pytest.fail("no data are needed"))
    make(ITEMS["table2"], store, items=ITEMS)


def test_data_are_looked_for_where_they_would_be(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    assert data_here("digits") and data_here(str(tmp_path)) and not data_here("uoft-cs/cifar10")
    (tmp_path / "cache" / "uoft-cs___cifar10").mkdir(parents=True)
    assert data_here("uoft-cs/cifar10")
    (tmp_path / "imagenet-1k").mkdir()
    monkeypatch.setenv("ESAM_DATA", str(tmp_path))
    assert data_here("ILSVRC/imagenet-1k")


# What is told before -------------------------------------------------------------------------------------------------


def test_the_counted_operations_of_a_run_are_worked_out_by_hand():
    config = dataclasses.replace(CONFIG, method="sam")
    assert forward_flops(config) == 2 * (64 * 256 + 256 * 256 + 256 * 10)
    assert run_flops(config) == forward_flops(config) * (6 * 2 * 60 + 2 * 360 + 60)
    assert training_images(dataclasses.replace(config, train_size=None, validation=True)) == 1_150
    assert hours(3600 * 60e9, "CPU") == 1
    with pytest.raises(ValueError, match="the cost on 'elsewhere' cannot be told"):
        run_flops(dataclasses.replace(config, data="elsewhere"))


@pytest.mark.parametrize("scale", SCALES)
def test_a_plan_names_data_hyper_parameters_runs_and_cost(tmp_path, scale):
    store = ResultStore(tmp_path, SCALES[scale]())
    for name in ITEMS.keys() - {"length", "own-best"} if scale == "short" else ("table1", "grid-search", "swp-savings"):
        item = ITEMS[name]
        text = plan_text(item, store)
        assert f"{name} ({item.number})" in text and f"scale {scale}" in text
        assert ("GPU-h" if scale == "paper" else "core-h") in text and "operations a second" in text
        if name == "swp-savings":
            assert "layers of" in text
        else:
            assert "epochs" in text and "weight decay" in text and re.search(r"runs +\d+: 0 done, \d+ to train", text)


def test_the_plan_of_table_2_has_the_papers_hyper_parameters(tmp_path):
    text = plan_text(ITEMS["table2"], ResultStore(tmp_path, SCALES["paper"]()))
    line = next(line for line in text.splitlines() if line.startswith("ResNet-50, ImageNet: ESAM"))
    assert "epochs 90, batch size 512, size 224, augment inception, optimizer sgd, lr 0.2" in line
    for own in (
        "weight decay 0.0001",
        "rho 0.05",
        "beta 0.6",
        "gamma 0.7",
        "ranking exact",
        "mask independent",
        "m 128",
    ):
        assert own in line
    assert "ILSVRC/imagenet-1k (1,281,167 training images)" in text
    assert "not on this machine; accept its terms at https://huggingface.co" in text


def test_the_list_tells_states_and_counts_each_run_once(everything, tmp_path):
    store, _ = everything
    fresh = ResultStore(tmp_path, store.scale)
    text = item_list(ITEMS, [store, fresh])
    assert all(re.search(rf"^{name} .* made +0 ", text, re.MULTILINE) for name in ITEMS)
    assert "0 of 14 runs" in text  # table1: four methods on one task and three on another, 2 seeds
    each = sum(left(item, fresh) for item in ITEMS.values())
    assert 0 == left_of_all(ITEMS, store) < left_of_all(ITEMS, fresh) < each


def test_the_small_scales_take_one_to_five_hours_on_two_cores(tmp_path):
    for scale in ("cpu", "short"):
        store = ResultStore(tmp_path, SCALES[scale]())
        assert 1 < hours(left_of_all(ITEMS, store), "CPU") / 2 < 5


# The command ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def esam(capsys, monkeypatch):
    monkeypatch.setattr("esam.paper.scales.SCALES", {"cpu": tiny_scale, "short": tiny_scale, "paper": tiny_scale})
    monkeypatch.setattr("esam.compare.live.watch", lambda launcher, console: here(launcher))

    def command(*words):
        code = main(["reproduce", *map(str, words)])
        return code, *capsys.readouterr()

    return command


def test_the_command_lists_plans_makes_and_judges(esam, tmp_path):
    code, out, _ = esam("--out", tmp_path)
    assert code == 0 and all(name in out for name in ITEMS)
    code, out, _ = esam("table2", "--plan", "--out", tmp_path)
    assert code == 0 and "3: 0 done, 3 to train" in out and not (tmp_path / "tiny").exists()
    code, out, err = esam("table2", "--out", tmp_path)
    assert code == 0, err
    assert "ResNet-50, ImageNet: ESAM" in out and "report.html" in out
    assert (tmp_path / "tiny" / "table2.json").exists()
    code, out, _ = esam("claims", "--out", tmp_path)
    assert code == 0 and "NOT RUN: SWP's speed\n  paper: 108.3 to 110.5 %" in out
    code, out, _ = esam("claims", "--markdown", "--out", tmp_path)
    assert code == 0 and out.startswith("| Claim | Paper | Verdict | Measured here |\n| --- |")


def test_an_unknown_item_is_answered_with_the_nearest(esam, tmp_path):
    code, _, err = esam("tabel1", "--out", tmp_path)
    assert code == 1 and "unknown item 'tabel1'. Did you mean 'table1'?" in err


def test_all_makes_what_can_be_made_and_says_what_could_not(esam, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "esam.paper.scales.SCALES",
        {"cpu": lambda: tiny_scale(data="nowhere"), "short": tiny_scale, "paper": tiny_scale},
    )
    code, out, err = esam("all", "--out", tmp_path)
    assert code == 1 and (tmp_path / "tiny" / "swp-savings.json").exists()
    assert "not made: four-losses, cosines" in err and "needs the data nowhere" in out


# Looking inside ------------------------------------------------------------------------------------------------------


def test_a_probe_leaves_the_model_as_it_was_and_sees_the_same_twice():
    probe = tiny_scale().probe
    config = dataclasses.replace(CONFIG, model="cnn")
    data = configured_data(config)
    model = prepared_model(config, data, torch.device("cpu"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    stream = torch.get_rng_state()
    first = observed(model, data, probe, epoch=1)
    assert observed(model, data, probe, epoch=1) == first
    assert observed(model, data, probe, epoch=2).batches != first.batches
    assert torch.equal(torch.get_rng_state(), stream) and model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert len(first.batches) == probe.batches
    at_theta, at_eps = probe.ts.index(0.0), probe.ts.index(1.0)
    for batch in first.batches:
        assert [zetas.beta for zetas in batch.swp_zetas] == list(probe.betas)
        assert all(len(zetas.divided) == len(zetas.undivided) == probe.draws for zetas in batch.swp_zetas)
        for own in (batch.all, batch.plus, batch.minus):  # the same forward passes in float32
            assert own.along[at_theta] == pytest.approx(own.loss, rel=1e-5)
            assert own.along[at_eps] == pytest.approx(own.perturbed_loss, rel=1e-5)


def test_a_run_is_probed_after_the_first_the_last_and_every_so_many_epochs():
    assert dataclasses.replace(tiny_scale().probe, every=4).epochs(10) == [1, 4, 8, 10]
