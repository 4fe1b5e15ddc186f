"""Is every item of the paper made end to end, each run once, also after an interruption, and are its words true?"""

import dataclasses
import inspect
import json
import re

import pytest
import torch
from tiny_scale import CONFIG, comparison, here, tiny_scale

from esam import ESAM
from esam.cli import main
from esam.compare import Launcher, plan
from esam.recipes.cifar import cifar10_small
from esam.recipes.paper import ITEMS, MAKING_ORDER, SCALES
from esam.recipes.paper.common import DEFAULT, DEFAULT_FORM, rows_of
from esam.report.sheets import as_text
from esam.reproduce import make as making
from esam.reproduce import worker
from esam.reproduce.cost import forward_flops, hours, run_flops, training_images, units
from esam.reproduce.item import Needs, Row
from esam.reproduce.make import MissingData, data_here, make, write_report
from esam.reproduce.observe import Observer, observed, read_observations, write_look
from esam.reproduce.store import CHECKPOINT_NAME, Store, configs
from esam.reproduce.text import item_list, left, left_of_all, plan_text, state
from esam.train.checkpoint import Checkpoint
from esam.train.config import Config
from esam.train.record import read_record
from esam.train.runs import configured_data, prepared_model, run

FOURTEEN = {
    "table1", "table2", "table3", "vit", "figure1", "parameter-study", "landscapes", "adversarial-landscapes",
    "four-losses", "cosines", "linearity", "swp-savings", "grid-search", "sds-illustration",
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
    store, trained = Store(tmp_path_factory.mktemp("reproduce"), tiny_scale()), {}

    for name in MAKING_ORDER:
        trained[name] = []

        def counted(launcher, name=name):
            trained[name] += [planned.folder.name for planned in launcher.runs]
            here(launcher)

        make(ITEMS[name], store, watch=counted, others=ITEMS)
    return store, trained


# Every item ----------------------------------------------------------------------------------------------------------


def test_the_fourteen_items_are_there():
    assert set(ITEMS) == FOURTEEN == set(MAKING_ORDER) and len(MAKING_ORDER) == 14


@pytest.mark.parametrize("name", sorted(FOURTEEN))
def test_an_item_leaves_its_numbers_and_both_kinds_of_picture(everything, name):
    store, _ = everything
    text = (store.folder / f"{name}.json").read_text()
    result = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert result["item"] == name and result["scale"] == "tiny" and result["paper"] == ITEMS[name].paper
    assert result["environment"]["torch"] == torch.__version__
    vector = sorted(p.stem for p in store.folder.glob(f"{name}*.svg"))
    assert vector and vector == sorted(p.stem for p in store.folder.glob(f"{name}*.png"))
    for sheet in ITEMS[name].sheets(result["measured"]):
        assert sheet.rows and "nan" not in as_text(sheet).lower()


def test_runs_that_items_share_are_trained_once(everything):
    store, trained = everything
    every = [name for names in trained.values() for name in names]
    assert len(every) == len(set(every))
    needed = {name for item in ITEMS.values() for name in store.needed(item.needs(store.scale))}
    assert set(every) == needed
    assert trained["cosines"] == trained["figure1"] == trained["adversarial-landscapes"] == []
    assert len(trained["four-losses"]) == 2


def test_pictures_that_an_item_no_longer_draws_go_and_those_of_others_stay(everything):
    store, _ = everything
    stale = store.folder / "table2-of-old.svg"
    stale.write_text("<svg/>")
    others = {path.name for path in store.folder.glob("*.svg")} - {stale.name}
    make(ITEMS["table2"], store, others=ITEMS)
    assert {path.name for path in store.folder.glob("*.svg")} == others


def test_what_is_made_trains_nothing_again_and_gives_the_same_numbers(everything):
    store, _ = everything
    before = store.result(ITEMS["landscapes"])
    again = make(ITEMS["landscapes"], store, watch=lambda launcher: pytest.fail("nothing was missing"), others=ITEMS)
    assert again == before["measured"]


def test_the_measured_accuracies_are_those_of_the_records(everything):
    store, _ = everything
    row = next(r for r in ITEMS["table1"].needs(store.scale).rows if r.label == "SAM")
    ends = [read_record(store.record(r).path).end for r in store.planned(row)]
    measured = store.result(ITEMS["table1"])["measured"]["tasks"][row.task]["SAM"]
    assert measured["accuracy"]["values"] == [100 * end["test_accuracy"]["last"] for end in ends]
    assert measured["accuracy"]["n"] == 2


def test_speeds_are_those_of_steps_timed_in_turn_and_sams_is_one(everything):
    store, _ = everything
    for name in ("table1", "figure1", "parameter-study"):
        measured = store.result(ITEMS[name])["measured"]
        for task, methods in measured["tasks"].items():
            timed = measured["timed"][task]
            assert timed.keys() == methods.keys() and timed["SAM"]["ratio"] == 1 == timed["SGD"]["time"]
            assert all(one["images_per_second"] > 0 and one["n"] == store.scale.rounds for one in timed.values())


def test_the_tables_name_the_model_that_was_trained_and_not_only_the_papers(everything):
    store, _ = everything
    measured = store.result(ITEMS["table2"])["measured"]
    assert "mlp, digits for ResNet-50, ImageNet: SAM" in as_text(ITEMS["table2"].sheets(measured)[0])
    row = Row("ResNet-18, CIFAR-10", "SAM", comparison(model="resnet8", data="uoft-cs/cifar10"))
    assert row.title == "ResNet-8 for ResNet-18, CIFAR-10"
    whole = dataclasses.replace(row, comparison=comparison(model="resnet18", data="uoft-cs/cifar10"))
    assert whole.title == "ResNet-18, CIFAR-10"


def test_the_page_has_every_item_and_needs_nothing_else(everything):
    store, _ = everything
    page = write_report(ITEMS, store).read_text()
    assert all(f'id="{name}"' in page for name in ITEMS)
    assert page.count("<img") == len(list(store.folder.glob("*.svg")))
    assert set(re.findall(r'src="([^:]*:)', page)) == {"data:"} and "<script" not in page
    assert "plotly" not in page and len(page) < 5e6


def test_a_damaged_result_is_refused_with_the_way_out(tmp_path):
    store = Store(tmp_path, tiny_scale())
    store.folder.mkdir()
    (store.folder / "table1.json").write_text("{}")
    with pytest.raises(ValueError, match="table1.json holds no results.*make the item again"):
        store.result(ITEMS["table1"])


def test_results_of_an_earlier_version_count_as_not_made_and_of_a_later_one_are_refused(everything, tmp_path):
    made, _ = everything
    store = Store(tmp_path, made.scale)
    store.folder.mkdir()
    text = (made.folder / "table1.json").read_text()
    (store.folder / "table1.json").write_text(text.replace('"format": 2', '"format": 1', 1))
    assert store.result(ITEMS["table1"]) is None
    (store.folder / "table1.json").write_text(text.replace('"format": 2', '"format": 3', 1))
    with pytest.raises(ValueError, match="that this version reads; delete it, or upgrade esam"):
        store.result(ITEMS["table1"])


def test_what_could_not_be_drawn_is_refused_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr("esam.reproduce.make.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"matplotlib and curvlinops must be installed: pip install torch-esam"):
        make(ITEMS["landscapes"], Store(tmp_path, tiny_scale()), watch=lambda launcher: pytest.fail("it trains"))


@pytest.mark.parametrize(("own", "taken"), [(0.2, 0.2), (None, 0.05)])
def test_an_observed_run_is_looked_at_as_far_as_it_perturbs_itself(tmp_path, monkeypatch, own, taken):
    config, looks = dataclasses.replace(CONFIG, method="esam", rho=own), []
    (tmp_path / "config.json").write_text(json.dumps(config.as_json()))
    write_look(tmp_path, dataclasses.replace(tiny_scale().look, rho=0.05))
    monkeypatch.setattr(worker, "Observer", lambda folder, look, epochs: looks.append(look))
    monkeypatch.setattr(worker, "run", lambda *_, **__: None)
    worker.main(tmp_path)
    assert looks[0].rho == taken


# Interruption --------------------------------------------------------------------------------------------------------


def test_an_interrupted_item_goes_on_where_it_was(tmp_path):
    store, seen = Store(tmp_path, tiny_scale()), []

    def interrupted(launcher):
        here(Launcher(launcher.runs[:2]))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(ITEMS["table2"], store, watch=interrupted)
    assert store.result(ITEMS["table2"]) is None
    assert state(ITEMS["table2"], store) == "2 of 3 runs"
    make(ITEMS["table2"], store, watch=lambda launcher: (seen.extend(launcher.runs), here(launcher)))
    assert [planned.config.method for planned in seen] == ["esam"]
    assert state(ITEMS["table2"], store) == "made"


def test_an_observed_run_is_resumed_in_a_process_of_its_own_with_all_it_saw(tmp_path, monkeypatch):
    scale, save = tiny_scale(), Checkpoint.save
    item, store = ITEMS["linearity"], Store(tmp_path, scale)
    needs = item.needs(scale)
    planned = store.missing(needs)[0]
    store.prepare([planned], needs.look)
    planned.prepare()
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", lambda self, state: (save(self, state), _die()))
        with pytest.raises(KeyboardInterrupt):
            worker.main(planned.folder)
    assert list(read_observations(planned.folder)) == [1] and not planned.record().finished
    make(item, store)  # by the launcher, in a process
    assert list(read_observations(planned.folder)) == [1, 2]
    assert planned.record().finished
    whole = Store(tmp_path / "whole", scale)
    make(item, whole, watch=here)
    assert store.result(item)["measured"] == whole.result(item)["measured"]


def _die():
    raise KeyboardInterrupt


def test_an_observed_run_that_lost_what_it_saw_is_not_taken_for_done(everything, tmp_path):
    store, _ = everything
    needs = ITEMS["linearity"].needs(store.scale)
    planned = store.looked_into(needs.observed[0], needs.look)[0]
    kept = (planned.folder / "observations.json").read_bytes()
    (planned.folder / "observations.json").unlink()
    with pytest.raises(ValueError, match="not looked into as asked; delete it to train it again"):
        store.missing(needs)
    (planned.folder / "observations.json").write_bytes(kept)


def test_an_observed_run_is_bit_for_bit_the_run_that_nobody_looks_into(tmp_path):
    config = dataclasses.replace(CONFIG, method="esam")
    alone = run(config, tmp_path / "alone")
    watched = run(config, tmp_path / "watched", observe=Observer(tmp_path / "watched", tiny_scale().look, 2))
    assert [line["train_loss"] for line in watched.epochs] == [line["train_loss"] for line in alone.epochs]
    assert watched.end["test_loss"] == alone.end["test_loss"]


# What is there already -----------------------------------------------------------------------------------------------


def test_runs_of_another_folder_are_shared_and_left_alone(everything, tmp_path):
    store, _ = everything
    other = Store(tmp_path, store.scale, shared=[store.folder / "runs", *(store.folder / "observed").glob("*")])
    needs = ITEMS["table2"].needs(store.scale)
    assert other.missing(needs) == [] and len(Store(tmp_path, store.scale).missing(needs)) == len(other.needed(needs))
    make(ITEMS["table2"], other, watch=lambda launcher: pytest.fail("nothing was missing"))
    assert not (other.folder / "runs").exists()
    with pytest.raises(ValueError, match="is not a folder"):
        Store(tmp_path, store.scale, shared=[tmp_path / "nowhere"])


def test_a_record_without_its_weights_is_kept_and_the_weights_are_trained_beside_it(tmp_path):
    store = Store(tmp_path, tiny_scale())
    row = rows_of(("a", "b"), comparison((0,)), ("sgd",))[0]
    planned = store.planned(row)[0]
    planned.prepare()
    run(planned.config, planned.folder)
    assert store.with_weights(planned) == planned
    (planned.folder / CHECKPOINT_NAME).unlink()
    elsewhere = store.with_weights(planned)
    assert elsewhere.folder == store.folder / "weights" / planned.folder.name
    assert store.missing(Needs(weights=(row,))) == [elsewhere] and store.missing(Needs(rows=(row,))) == []


def test_the_cpu_scale_shares_the_records_of_cifar10_small(tmp_path):
    scale = SCALES["cpu"]()
    recipe = {p.folder.name for p in plan(cifar10_small(), tmp_path)}
    store = Store(tmp_path, scale)
    ablation = [r for r in ITEMS["table3"].needs(scale).rows if r.task == "ResNet-18, CIFAR-10"]
    assert {p.folder.name for row in ablation for p in store.planned(row)} == recipe
    three = {name for name in recipe if name.startswith(("sgd", "sam", "esam-seed"))}
    for name in ("table1", "figure1", "landscapes"):
        assert three <= set(store.needed(ITEMS[name].needs(scale)))
    assert set(store.needed(ITEMS["adversarial-landscapes"].needs(scale))) == three


def test_the_study_shares_the_ablations_run_at_the_default_beta_and_gamma(tmp_path):
    scale = SCALES["cpu"]()
    store = Store(tmp_path, scale)
    study, ablation = (set(store.needed(ITEMS[name].needs(scale))) for name in ("parameter-study", "table3"))
    assert len(study & ablation) == 9 + 2 and len(study) == 9 + 8


@pytest.mark.parametrize("scale", SCALES)
def test_esam_is_the_papers_form_and_the_default_is_written_out(scale):
    for item in ITEMS.values():
        needs = item.needs(SCALES[scale]())
        for row in (*needs.rows, *needs.weights, *needs.observed):
            for config in configs([row]):
                if row.label == DEFAULT:
                    assert {"ranking": config.ranking, "choose": config.choose} == DEFAULT_FORM
                elif config.method == "esam":
                    assert (config.ranking, config.choose) == ("exact", "independent"), (item.name, row.label)


# Data ----------------------------------------------------------------------------------------------------------------


def test_missing_data_are_named_with_the_way_to_get_them_and_with_what_can_be_made_now(tmp_path, monkeypatch):
    monkeypatch.setitem(making.DATA, "nowhere", dataclasses.replace(making.DATA["digits"], how="fetch it from there"))
    store = Store(tmp_path, tiny_scale(data="nowhere"))
    with pytest.raises(MissingData) as error:
        make(ITEMS["table1"], store, watch=here, others=ITEMS)
    message = str(error.value)
    assert "table1 at the scale tiny needs the data nowhere" in message
    assert "To get it: fetch it from there." in message
    assert "What can be made now: swp-savings." in message
    assert not store.folder.exists()


def test_what_is_finished_can_be_made_without_the_data(everything, monkeypatch):
    store, _ = everything
    monkeypatch.setattr("esam.train.runs.configured_data", lambda config: pytest.fail("no data are needed"))
    make(ITEMS["table2"], store)


def test_data_are_looked_for_where_they_would_be(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    assert data_here("digits") and data_here(str(tmp_path)) and not data_here("uoft-cs/cifar10")
    (tmp_path / "cache" / "uoft-cs___cifar10").mkdir(parents=True)
    assert data_here("uoft-cs/cifar10")
    (tmp_path / "imagenet-1k").mkdir()
    monkeypatch.setenv("ESAM_DATA", str(tmp_path))
    assert data_here("ILSVRC/imagenet-1k")


# What is told before -------------------------------------------------------------------------------------------------


def test_the_counted_units_are_those_of_the_design():
    paper = {"ranking": "exact", "mask": "independent"}
    assert units(Config(method="sgd")) == 3 and units(Config(method="sam")) == 6
    assert units(Config(method="esam", **paper)) == pytest.approx(5.1)
    assert units(Config(method="esam", gamma=0.7, **paper)) == pytest.approx(5.7)
    assert units(Config(method="esam-swp", mask="independent")) == pytest.approx(5.6)
    assert units(Config(method="esam-sds", ranking="exact")) == pytest.approx(5.5)
    assert units(Config(method="esam", ranking="gradient", mask="suffix")) == pytest.approx(3.7)


def test_the_counted_operations_of_a_run_are_worked_out_by_hand():
    config = dataclasses.replace(CONFIG, method="sam")
    assert forward_flops(config) == 2 * (64 * 256 + 256 * 256 + 256 * 10)
    assert run_flops(config) == forward_flops(config) * (6 * 2 * 60 + 2 * 360 + 60)
    assert training_images(dataclasses.replace(config, train_size=None, validation=True)) == 1_150
    assert hours(3600 * 60e9, "CPU") == 1
    with pytest.raises(ValueError, match="the cost on 'elsewhere' cannot be told"):
        run_flops(dataclasses.replace(config, data="elsewhere"))


@pytest.mark.parametrize("name", sorted(FOURTEEN))
@pytest.mark.parametrize("scale", SCALES)
def test_a_plan_names_data_hyper_parameters_runs_and_cost(tmp_path, name, scale):
    text = plan_text(ITEMS[name], Store(tmp_path, SCALES[scale]()))
    assert f"{name} ({ITEMS[name].number})" in text and f"scale {scale}" in text
    assert ("GPU-h" if scale == "paper" else "core-h") in text and "operations a second" in text
    if name == "swp-savings":
        assert "layers of" in text
    else:
        assert "epochs" in text and "weight decay" in text and re.search(r"runs +\d+: 0 done, \d+ to train", text)


def test_the_plan_of_table_2_has_the_papers_hyper_parameters(tmp_path):
    text = plan_text(ITEMS["table2"], Store(tmp_path, SCALES["paper"]()))
    line = next(line for line in text.splitlines() if line.startswith("ResNet-50, ImageNet: ESAM"))
    assert "epochs 90, batch size 512, size 224, augment inception, optimizer sgd, lr 0.2" in line
    assert (
        "weight decay 0.0001" in line
        and "rho 0.05, beta 0.6, gamma 0.7, ranking exact, choose independent, m 128" in line
    )
    assert "ILSVRC/imagenet-1k (1,281,167 training images)" in text
    assert "not on this machine; accept its terms at https://huggingface.co" in text


def test_the_list_tells_states_and_counts_each_run_once(everything, tmp_path):
    store, _ = everything
    fresh = Store(tmp_path, store.scale)
    text = item_list(ITEMS, [store, fresh])
    assert all(re.search(rf"^{name} .* made +0 ", text, re.MULTILINE) for name in ITEMS)
    assert "0 of 14 runs" in text  # table1: 2 tasks apart, 7 rows of 2 seeds
    each = sum(left(item, fresh) for item in ITEMS.values())
    assert 0 == left_of_all(ITEMS, store) < left_of_all(ITEMS, fresh) < each


def test_the_cpu_scale_takes_three_to_four_hours_on_two_cores(tmp_path):
    store = Store(tmp_path, SCALES["cpu"]())
    assert 2.5 < hours(left_of_all(ITEMS, store), "CPU") / 2 < 4.5


# The command ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def esam(capsys, monkeypatch):
    monkeypatch.setattr("esam.recipes.paper.SCALES", {"cpu": tiny_scale, "paper": tiny_scale})
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
    assert code == 0 and "NOT TESTED AT THIS SCALE: SWP's speed\n  paper: 108.3 to 110.5 %" in out
    code, out, _ = esam("claims", "--markdown", "--out", tmp_path)
    assert code == 0 and out.startswith("| Claim | Paper | Verdict | Measured here |\n| --- |")


def test_an_unknown_item_is_answered_with_the_nearest(esam, tmp_path):
    code, _, err = esam("tabel1", "--out", tmp_path)
    assert code == 1 and "unknown item 'tabel1'. Did you mean 'table1'?" in err


def test_all_makes_what_can_be_made_and_says_what_could_not(esam, tmp_path, monkeypatch):
    monkeypatch.setattr("esam.recipes.paper.SCALES", {"cpu": lambda: tiny_scale(data="nowhere"), "paper": tiny_scale})
    code, out, err = esam("all", "--out", tmp_path)
    assert code == 1 and (tmp_path / "tiny" / "swp-savings.json").exists()
    assert "not made: four-losses, cosines" in err and "needs the data nowhere" in out


# Looking inside ------------------------------------------------------------------------------------------------------


def test_a_look_leaves_the_model_as_it_was_and_sees_the_same_twice():
    look = tiny_scale().look
    config = dataclasses.replace(CONFIG, model="cnn")
    data = configured_data(config)
    model = prepared_model(config, data, torch.device("cpu"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    stream = torch.get_rng_state()
    first = observed(model, data, look)
    assert observed(model, data, look) == first != observed(model, data, look, seed=1)
    assert torch.equal(torch.get_rng_state(), stream) and model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert len(first["selection"]) == look.batches and first["selection"][0]["plus"]["count"] == 5
    for batch in first["linearity"]:
        for beta in ("0.2", "0.9"):
            assert len(batch["divided"][beta]) == look.draws
    along, chosen = first["along"][0], first["selection"][0]
    at_theta, at_eps = look.ts.index(0.0), look.ts.index(1.0)
    assert along["plus"][at_theta] == pytest.approx(chosen["plus"]["loss"], rel=1e-5)
    assert along["minus"][at_eps] == pytest.approx(chosen["minus"]["perturbed_loss"], rel=1e-5)


def test_a_run_is_looked_into_after_the_first_the_last_and_every_so_many_epochs():
    assert dataclasses.replace(tiny_scale().look, every=4).epochs(10) == [1, 4, 8, 10]


# Tables of words -----------------------------------------------------------------------------------------------------


def test_the_row_of_the_default_is_the_default():
    taken = inspect.signature(ESAM).parameters
    assert {name: taken[name].default for name in DEFAULT_FORM} == DEFAULT_FORM
