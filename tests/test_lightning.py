"""Lightning with the callback: is it our own loop bit for bit, whatever the trainer does around a step?"""

import copy
import warnings

import pytest
import snippets
import torch
import torch.nn.functional as F
from conftest import mlp, normalised
from our_loop import BATCHES, SIZE, alike_on_two_ranks, assert_same, data, in_phases
from torch import nn
from two_ranks import RANKS, TwoRanks, needs_gloo

from esam import METHODS

pytest.importorskip("lightning")
import torchmetrics
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.plugins import MixedPrecision

from esam.integrations.lightning import SharpnessAware

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


class Loader(list):
    """Batches, and no random number drawn: dropout must see the stream of our own loop."""


class Plain(LightningModule):
    """A module as anyone writes it: a mean loss, a log, a metric."""

    def __init__(self, net, method, **settings):
        super().__init__()
        self.net, self.method, self.settings = net, method, settings
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(3, average="micro")

    def training_step(self, batch, batch_idx):
        x, y = batch
        out = self.net(x)
        loss = F.cross_entropy(out, y)
        self.log("loss", loss, on_step=True, on_epoch=True, batch_size=len(x))
        self.accuracy(out, y)
        return loss

    def configure_optimizers(self):
        optimizer = METHODS[self.method](sgd(self), self, seed=3, **self.settings)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5), "interval": "step"},
        }


class Ranked(Plain):
    """The same, with a loss for each sample."""

    factor = 1.0

    def training_step(self, batch, batch_idx):
        x, y = batch
        losses = F.cross_entropy(self.net(x), y, reduction="none") * self.factor
        self.log("loss", losses.mean(), batch_size=len(x))
        return {"loss": losses.mean(), "losses": losses, "told": batch_idx}


def trainer(callbacks=(), *, ours=True, **settings):
    default = {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "logger": False, "enable_checkpointing": False}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(callbacks=[*([SharpnessAware()] if ours else []), *callbacks], **{**default, **quiet, **settings})


def module_of(method, build=normalised, dtype=torch.float64, **settings):
    torch.manual_seed(0)
    return (Ranked if method == "esam" else Plain)(build(dtype), method, **settings)


def fitted(module, loader, callbacks=(), *, ckpt_path=None, **settings):
    torch.manual_seed(7)
    made = trainer(callbacks, **settings)
    made.fit(module, Loader(loader), ckpt_path=ckpt_path)
    return made


def by_hand(module, loader, *, epochs=2, wrap=lambda net: net, **how):
    """Train a copy of the module by our own phases; return its net."""
    module = copy.deepcopy(module)
    configured = module.configure_optimizers()
    optimizer, scheduler = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    optimizer.model = net = wrap(module.net)
    in_phases(net, optimizer, loader, epochs=epochs, after=scheduler.step, **how)
    return module.net


# Our own loop ---------------------------------------------------------------------------------------------------------


NORM, VALUE = nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_


@pytest.mark.parametrize(
    ("name", "ours", "theirs"),
    [
        *((name, {}, {}) for name in ("base", "sam", "esam", "looksam")),
        # six batches in windows of four or five: the last window has two or one, and is their mean
        ("slicesam", {"window": 4}, {"accumulate_grad_batches": 4}),
        ("esam", {"window": 5}, {"accumulate_grad_batches": 5}),
        ("esam", {"clip": NORM}, {"gradient_clip_val": 0.01}),
        ("esam", {"clip": VALUE}, {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}),
        *((name, {"cast": torch.bfloat16}, {"precision": "bf16-mixed"}) for name in ("sam", "esam")),
    ],
)
def test_a_trainer_takes_a_methods_steps_bit_for_bit(name, ours, theirs):
    dtype = torch.float32 if "cast" in ours else torch.float64
    module, loader = module_of(name, dtype=dtype), data(dtype)
    expected = by_hand(module, loader, **ours)
    made = fitted(module, loader, **theirs)
    assert_same(module.net, expected)
    assert made.global_step == 2 * -(-BATCHES // ours.get("window", 1))


class Overflowing(Callback):
    """Make the losses of one step infinite."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        pl_module.factor = torch.inf if trainer.global_step == self.step else 1.0


def test_16_mixed_skips_a_step_that_overflows_as_our_loop_does():
    module, loader = module_of("esam", mlp, torch.float32), data(torch.float32)
    scaler, theirs = (torch.amp.GradScaler("cpu", init_scale=2.0**10) for _ in range(2))
    expected = by_hand(module, loader, cast=torch.half, scaler=scaler, broken=2)
    fitted(module, loader, [Overflowing(2)], plugins=[MixedPrecision("16-mixed", "cpu", theirs)])
    assert theirs.get_scale() == scaler.get_scale() == 2.0**9
    assert_same(module.net, expected)


# Around the step ------------------------------------------------------------------------------------------------------


class Told(Callback):
    """Keep what a trainer tells its callbacks."""

    def __init__(self):
        self.losses, self.outputs, self.final = [], [], []

    def on_after_backward(self, trainer, pl_module):
        self.final.append(all(p.grad is not None for p in pl_module.parameters()))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.outputs.append(outputs)
        self.losses.append(float(trainer.callback_metrics["loss"]))


def test_a_step_logs_once_and_its_hooks_run_once():
    told = Told()
    made = fitted(module_of("sam", mlp), data(), [told], max_epochs=1)
    assert told.losses == pytest.approx([float(out["loss"]) for out in told.outputs])
    # the epoch's mean is that of the first passes
    assert float(made.callback_metrics["loss_epoch"]) == pytest.approx(sum(told.losses) / BATCHES, rel=1e-6)
    assert made.global_step == BATCHES and told.final == [True] * BATCHES
    fitted(module_of("esam", mlp), data(), [ranked := Told()], max_epochs=1)
    assert [out["told"] for out in ranked.outputs] == [*range(BATCHES)]  # what training_step returns beside the loss


@pytest.mark.parametrize("name", ["sam", "slicesam", "esam-random"])
def test_a_metric_counts_each_sample_once_also_of_a_batch_in_parts(name):
    module = module_of(name, mlp)
    fitted(module, data(), max_epochs=1)
    assert sum(int(getattr(module.accuracy, s)) for s in ("tp", "fn")) == BATCHES * SIZE


def test_a_resumed_run_is_the_one_that_went_on_bit_for_bit(tmp_path):
    whole, first, second = (module_of("looksam", mlp) for _ in range(3))  # no dropout: its random state is not kept
    fitted(whole, data(), max_epochs=3)
    fitted(first, data(), max_epochs=1).save_checkpoint(tmp_path / "run.ckpt")
    fitted(second, data(), max_epochs=3, ckpt_path=tmp_path / "run.ckpt")
    assert_same(second.net, whole.net)


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step:UserWarning", "ignore:.*Detected call of:UserWarning")
def test_weight_averagings_extra_epoch_moves_statistics_and_no_weight():
    swa = StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=1, annealing_epochs=1)
    module = module_of("sam")
    fitted(module, data(), [swa], max_epochs=3)
    for ours, averaged in zip(module.net.parameters(), swa._average_model.net.parameters(), strict=True):
        assert torch.equal(ours, averaged)
    assert int(module.net[1].num_batches_tracked) == BATCHES


def test_one_callback_serves_one_fit_after_the_other_also_after_an_error():
    made, module = trainer(max_epochs=1), module_of("sam")
    broken = module_of("sam")
    broken.training_step = lambda batch, batch_idx: 1 / 0
    with pytest.raises(ZeroDivisionError):
        made.fit(broken, Loader(data()))
    expected = by_hand(module, data(), epochs=1)
    torch.manual_seed(7)
    made.fit(module, Loader(data()))
    assert_same(module.net, expected)
    assert "_make_closure" not in vars(made.fit_loop.epoch_loop.automatic_optimization)


def test_the_pages_code_runs():
    options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    x = torch.randn(16, 8)
    scope = {"options": {**options, "enable_model_summary": False}, "loader": Loader([(x, x[:, :3].argmax(1))])}
    assert snippets.run("trainers.md", scope, under="Lightning")["trainer"].global_step == 2


# Errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sam", "esam"])
def test_without_the_callback_no_precision_trains_in_silence(name):
    with pytest.raises(ValueError, match=r"callbacks=\[esam.integrations.lightning.SharpnessAware\(\)\]"):
        fitted(module_of(name), data(), ours=False)
    precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    with pytest.raises(ValueError, match="gradient"):
        fitted(module_of(name, mlp, torch.float32), data(torch.float32), ours=False, plugins=[precision])


def changed(name="sam", **attributes):
    module = module_of(name, mlp)
    for key, value in attributes.items():
        setattr(module, key, value)
    return module


MORE = {"loss": torch.tensor(2.0), "losses": torch.ones(8)}


class OwnBackward(Plain):
    def backward(self, loss):
        loss.backward()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: changed(configure_optimizers=lambda: sgd(mlp())), r"got SGD; return esam.SAM\(torch.optim.SGD"),
        (lambda: changed(automatic_optimization=False), "under manual optimization leave it out"),
        (lambda: Plain(mlp(), "esam"), r"training_step return .\"loss\": losses.mean\(\), \"losses\": losses"),
        (lambda: OwnBackward(mlp(), "sam"), "OwnBackward overrides backward"),
        (lambda: changed(training_step=lambda batch, batch_idx: None), "returned no loss; a batch cannot be skip"),
        (lambda: changed("esam", training_step=lambda *_: MORE), "everything that is trained on belongs into them"),
    ],
)
def test_what_cannot_work_is_refused_with_a_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        fitted(make(), data())


# Two processes --------------------------------------------------------------------------------------------------------


def both(name, window, loader):
    warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
    warnings.filterwarnings("ignore", ".*(does not have many workers|sync_dist=True)", UserWarning)
    many = {"devices": RANKS, "strategy": "ddp", "use_distributed_sampler": False}
    module = module_of(name, mlp)
    expected = by_hand(module, loader, window=window, wrap=nn.parallel.DistributedDataParallel)
    fitted(module, loader, accumulate_grad_batches=window, **many)
    return module.net, expected


@needs_gloo
@pytest.mark.slow
def test_two_ranks_take_our_loops_steps_and_end_alike(tmp_path):
    with TwoRanks(tmp_path, fork=True) as ranks:
        alike_on_two_ranks(ranks, both)
