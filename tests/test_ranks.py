"""One run on two ranks, as torchrun starts them: is it the run of one process, and does it go on as one?

One pair of processes runs what the tests send it: ``ranks(function, ...)`` is ``function(Ranks, ...)`` on each of them.
The steps of every method are in test_distributed.py.
"""

import contextlib
import functools
import os

import pytest
import torch
from counting import Counting
from torch import nn
from torch.distributed.fsdp import fully_shard
from two_ranks import RANKS, TwoRanks, assert_near, needs_gloo

from esam import METHODS
from esam.cli import main
from esam.train import Checkpoint, Config, evaluate, fit, run
from esam.train.batches import Batches, Normalise, parts_of
from esam.train.distributed import Ranks, in_parallel
from esam.train.record import read_record
from experiments.scaling import EXCHANGES

pytestmark = [needs_gloo, pytest.mark.slow]

BATCH, EPOCHS = 7, 10  # parts of 3 and 4
SAMPLES = 4 * BATCH + 1  # in 5 batches, the last of a single sample: one rank has none of its own
TRAINED = ("base", "sam", "looksam")
COUNTED_STEPS = 20
COUNTED = list(EXCHANGES)
DRAWN_BY_CHANCE = {"esam", "esam-swp", "esam-random"}
RUN = Config(model="mlp", method="sam", settings={"perturbation": "global"}, train_size=100, batch_size=32, epochs=3)


# A small problem ------------------------------------------------------------------------------------------------------


def net():
    torch.manual_seed(0)
    layers = (nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    return nn.Sequential(*layers).double()


def samples(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 3, (count,), generator=generator)


def fitted(ranks, name, *, epochs=EPOCHS, checkpoint=None):
    """Train by the trainer's loop; return weights, training losses and test figures of every epoch."""
    train = Batches(samples(SAMPLES), BATCH, seed=5)
    test = [samples(7, seed=2), samples(2, seed=3), samples(1, seed=4)]
    model = in_parallel(net(), ranks)
    base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    settings = {"perturbation": "global"} if "perturbation" in METHODS[name].options() else {}
    optimizer = METHODS[name](base, model, seed=3, **settings)
    seen = []
    fit(model, optimizer, train, test, epochs=epochs, ranks=ranks, checkpoint=checkpoint, on_epoch=seen.append)
    figures = [(line["train_loss"], line["test_loss"], line["test_accuracy"], line["images"]) for line in seen]
    passes = seen[-1]["forwards"], seen[-1]["backwards"]
    return [p.detach().clone() for p in model.parameters()], torch.tensor(figures).double(), passes


# What runs on each rank -----------------------------------------------------------------------------------------------


def resumed(ranks, folder):
    """Save after half of the epochs; go on, with new parts, to the end."""
    checkpoint = Checkpoint(folder / "two")
    fitted(ranks, "base-ema", epochs=EPOCHS // 2, checkpoint=checkpoint)
    if ranks.first:
        Checkpoint(folder / "two-half").save(checkpoint.load())
    return fitted(ranks, "base-ema", checkpoint=checkpoint)


def dropped(ranks):
    """Return which of many ones dropout keeps in the first pass on this rank."""
    model = in_parallel(nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5)), ranks)
    kept = []
    model.module[1].register_forward_hook(lambda layer, inputs, output: kept.append(output == 0))
    optimizer = METHODS["base"](torch.optim.SGD(model.parameters(), lr=0.1), model)
    batches = [(torch.ones(64, 1), torch.ones(64, 1))]
    fit(model, optimizer, batches, epochs=1, ranks=ranks, loss=lambda o, t: (o - t).square().mean(1))
    return kept[0].flatten()


def counted(ranks, name, way, wrapped=in_parallel):
    """Return what a step exchanges on average: large messages in whole gradients, small ones by number."""
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4))).double()
    size = sum(8 * p.numel() for p in model.parameters())
    model = wrapped(model, ranks)
    settings = {"perturbation": way} if "perturbation" in METHODS[name].options() else {}
    base = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = METHODS[name](base, model, seed=3, **settings)
    x = torch.randn(8, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(ranks.rank))

    def closure(keep):
        return model(x[keep]).square().mean(1)

    for _ in range(5):  # a period of LookSAM; momenta, norms and buckets are then known
        optimizer.step(closure, batch_size=8)
    with Counting() as counting:
        for _ in range(COUNTED_STEPS):
            optimizer.step(closure, batch_size=8)
    found = dict.fromkeys(("sum", "gather", "scatter", "small"), 0.0)
    for kind, bytes_ in counting.sizes:
        large = bytes_ > 512 and kind != "broadcast"
        found[kind if large else "small"] += (bytes_ / size if large else 1) / COUNTED_STEPS
    return found


class ByName(nn.Module):
    """Takes tensors by name, as a text model does."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, values, shift):
        return self.net(values + shift)


def named(ranks):
    """Train on dicts, whole batches of them; return the weights, and the accuracy on each class."""
    torch.manual_seed(0)
    model = in_parallel(ByName(), ranks)
    optimizer = METHODS["sam"](torch.optim.SGD(model.parameters(), lr=0.05), model, perturbation="global")
    cut = [(x, y) for x, y in zip(*(torch.split(part, BATCH) for part in samples(SAMPLES)), strict=True)]
    batches = [{"values": x, "shift": x.flip(1), "labels": y} for x, y in cut]
    fit(model, optimizer, batches, batches, epochs=2, ranks=ranks)
    found = evaluate(model, batches, ranks=ranks, by_class=True)
    return [p.detach() for p in model.parameters()], found["class_accuracy"]


def trained(ranks, path):
    return run(RUN, path)


def command(ranks, words):
    with contextlib.redirect_stdout(None) if ranks.rank else contextlib.nullcontext():
        return main(words)


def sharded(model, ranks):
    return fully_shard(model)


def on_rank(rank, folder, function, *arguments, **settings):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), ESAM_CACHE=str(folder / "cache"))
    return function(Ranks.current(), *arguments, **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def ranks(folder):
    with TwoRanks(folder, fork=True) as both:
        yield functools.partial(both, on_rank, folder)


# What must hold -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRAINED)
def test_two_ranks_with_one_eps_train_as_one_process_does_on_the_joined_batches(ranks, name):
    """Over 50 steps, in float64, where sums in another order agree to some 1e-14."""
    weights, figures, passes = fitted(Ranks(), name)
    for there, told, counted in ranks(fitted, name):
        torch.testing.assert_close(told, figures, rtol=0, atol=1e-6)
        for x, y in zip(there, weights, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-6)
        assert counted == pytest.approx(passes, rel=0.05)  # a borrowed sample runs too


@pytest.mark.parametrize("augment", ["none", "shift", "basic", "inception"])
def test_the_parts_of_a_batch_are_augmented_as_the_whole_is(augment):
    images = torch.randint(0, 256, (10, 3, 16, 16), generator=torch.Generator().manual_seed(0)).byte()
    batches = Batches((images, torch.arange(10)), 7, transform=Normalise((0.5,) * 3, (0.2,) * 3), augment=augment)
    for (joined, rows), (x, y) in zip(joined_parts(batches, 2), batches.epoch(2), strict=True):
        assert torch.equal(rows, y)
        # not bit for bit: a vector kernel may round the end of a shorter batch otherwise
        torch.testing.assert_close(joined, x)


def joined_parts(batches, epoch, ranks=3):
    """Return, batch by batch, what the ranks count of it, next to each other."""
    shares = zip(*(parts_of(batches, Ranks(rank, ranks), epoch) for rank in range(ranks)), strict=True)
    counted = [[(x, y) for x, y, rows in own if rows.weight] for own in shares]
    return [tuple(torch.cat(part) for part in zip(*own, strict=True)) for own in counted]


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_sample_is_some_ranks_once_and_a_steps_parts_make_up_the_batch_of_one_process(ranks):
    """Shuffled, in order, and cut from batches that are whole already."""
    rows = torch.arange(SAMPLES)
    batches = Batches((rows.double()[:, None], rows), BATCH, seed=5)
    whole = [(rows[a : a + BATCH], rows[a : a + BATCH]) for a in range(0, SAMPLES, BATCH)]
    for given, epoch, order in ((batches, 1, batches.order(1)), (batches, None, rows), (whole, None, rows)):
        found = [y.tolist() for _, y in joined_parts(given, epoch, ranks)]
        assert found == [b.tolist() for b in order.split(BATCH)]


def test_a_run_saved_on_two_ranks_goes_on_on_two_and_on_one(ranks, folder):
    whole = fitted(Ranks(), "base-ema")
    assert_near(ranks(resumed, folder)[0][0], whole[0])
    half = Checkpoint(folder / "two-half")
    assert half.load()["progress"]["epoch"] == EPOCHS // 2
    on_one = fitted(Ranks(), "base-ema", checkpoint=half)
    assert_near(on_one[0], whole[0])
    torch.testing.assert_close(on_one[1], whole[1][EPOCHS // 2 :], rtol=0, atol=1e-12)


def test_a_run_saved_by_one_process_goes_on_on_two_ranks(ranks, folder):
    whole, half = fitted(Ranks(), "base-ema"), Checkpoint(folder / "one-half")
    fitted(Ranks(), "base-ema", epochs=EPOCHS // 2, checkpoint=half)
    for weights, figures, _ in ranks(fitted, "base-ema", checkpoint=half):
        assert_near(weights, whole[0])
        torch.testing.assert_close(figures, whole[1][EPOCHS // 2 :], rtol=0, atol=1e-12)


def test_tensors_by_name_are_cut_for_the_ranks_and_reach_the_models_arguments(ranks):
    weights, accuracy = named(Ranks())
    for there, told in ranks(named):
        assert_near(there, weights)
        assert told == accuracy
    assert len(accuracy) == 3


def test_ranks_draw_other_dropout_masks(ranks):
    assert not torch.equal(*ranks(dropped))


def test_rank_0_writes_one_record_and_one_checkpoint_that_one_process_takes_for_its_own(ranks, folder):
    path = folder / "run"
    one, other = ranks(trained, path)
    assert one == other == read_record(path / "record.jsonl")
    assert one.finished and [line["ranks"] for line in one.epochs] == [2, 2, 2]
    assert len(one.end["class_accuracy"]) == 10
    assert Checkpoint(path).load()["progress"]["epoch"] == 3
    assert run(RUN, path) == one  # on one


def test_the_ranks_compare_each_run_together_and_rank_0_tells(ranks, folder):
    words = ["compare", "--methods", "base", "sam", "--seeds", "0", "--epochs", "2", "--train-size", "100"]
    words += ["--model", "mlp", "--threads", "1", "--out", str(folder / "compare")]
    assert ranks(command, words) == [0, 0]
    records = [read_record(path) for path in (folder / "compare").rglob("record.jsonl")]
    assert sorted(record.method for record in records) == ["base", "sam"]
    assert all(record.finished and record.epochs[-1]["ranks"] == 2 for record in records)
    assert (folder / "compare" / "report.html").exists()


def test_a_command_that_has_nothing_to_share_is_refused_under_torchrun(ranks):
    assert ranks(command, ["report"]) == [1, 1]


@pytest.mark.parametrize(("name", "way"), COUNTED)
def test_the_model_of_many_devices_exchanges_what_two_ranks_do(ranks, name, way):
    model = EXCHANGES[name, way]
    for found in ranks(counted, name, way):
        by_chance = name in DRAWN_BY_CHANCE and way == "global"  # biases alone are no large message
        assert found["sum"] == pytest.approx(1 + model.exposed, abs=0.3 if by_chance else 1e-9)
        assert found["small"] == pytest.approx(model.small, abs=0.3 if by_chance else 1e-9)


@pytest.mark.parametrize(
    ("name", "passes", "ranking"), [("base", 1, 0), ("sam", 2, 0), ("esam", 2, 1), ("slicesam", 3, 0)]
)
def test_shards_scatter_once_for_each_pass_and_gather_no_more_than_twice(ranks, name, passes, ranking):
    found, _ = ranks(counted, name, "rank", sharded)
    assert found["scatter"] == pytest.approx(passes, abs=1e-9)
    assert 0 < RANKS * found["gather"] <= 2 * passes + ranking  # each rank gives its half; a root is not gathered again
