"""Lightning with the callback: is it our own loop bit for bit, whatever the trainer does around a step?"""

import contextlib
import copy
import os
import warnings

import pytest
import snippets
import torch
import torch.nn.functional as F
from conftest import EVERY_ROW, mlp, normalised
from torch import nn
from two_ranks import RANKS, needs_gloo, on_two_ranks

from esam import METHODS, SAM

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
BATCHES, SIZE = 5, 8


def data(dtype=torch.float64, batches=BATCHES):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batches * SIZE, 6, dtype=dtype, generator=generator)
    return [(x[i : i + SIZE], x[i : i + SIZE, :3].argmax(1)) for i in range(0, len(x), SIZE)]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


class Loader:
    """Hands out batches and draws no random number: dropout must see the stream of our own loop."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


class Plain(LightningModule):
    """A module as anyone writes it: a mean loss, a log, a metric."""

    def __init__(self, net, method, **settings):
        super().__init__()
        self.net, self.method, self.settings = net, method, settings
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(3, average="micro")
        self.logged = []

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

    def sample_losses(self, batch, keep):
        x, y = batch
        return F.cross_entropy(self.net(x[keep]), y[keep], reduction="none")

    def training_step(self, batch, batch_idx):
        loss = self.sample_losses(batch, slice(None)).mean()
        self.log("loss", loss, batch_size=len(batch[0]))
        return {"loss": loss, "told": batch_idx}


def trainer(callbacks=(), *, ours=True, **settings):
    default = {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "logger": False, "enable_checkpointing": False}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(callbacks=[*([SharpnessAware()] if ours else []), *callbacks], **{**default, **quiet, **settings})


def module_of(method, build=normalised, dtype=torch.float64, **settings):
    torch.manual_seed(0)
    kind = Ranked if METHODS[method](sgd(net := build(dtype)), net, **settings).needs_losses else Plain
    torch.manual_seed(0)
    return kind(build(dtype), method, **settings)


def fitted(module, loader, callbacks=(), *, ckpt_path=None, **settings):
    torch.manual_seed(7)
    made = trainer(callbacks, **settings)
    made.fit(module, Loader(loader), ckpt_path=ckpt_path)
    return made


def by_hand(module, loader, *, epochs=2, window=1, clip=None, scaler=None, around=contextlib.nullcontext, broken=None):
    """Train a copy of the module by our own phases; return its net."""
    module = copy.deepcopy(module)
    net, configured = module.net, module.configure_optimizers()
    optimizer, scheduler = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    torch.manual_seed(7)
    step = 0
    for _ in range(epochs):
        for start in range(0, len(loader), window):
            for x, y in loader[start : start + window]:

                def closure(keep, x=x, y=y, factor=torch.inf if step == broken else 1.0):
                    with around():
                        losses = F.cross_entropy(net(x[keep]), y[keep], reduction="none") * factor
                    return losses if optimizer.needs_losses else losses.mean()

                optimizer.accumulate(closure, scaler=scaler, batch_size=len(x))
            optimizer.gradient()
            if scaler is not None:
                scaler.unscale_(optimizer)
            if clip is not None:
                clip(net.parameters())
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            scheduler.step()
            step += 1
    return net


def assert_same(a, b):
    for (name, x), (_, y) in zip(a.state_dict().items(), b.state_dict().items(), strict=True):
        assert torch.equal(x, y), f"{name}: off by {(x - y).abs().max()}"


# Our own loop ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY_ROW)
def test_a_trainer_takes_every_methods_steps_bit_for_bit(name):
    module = module_of(name)
    expected = by_hand(module, data())
    fitted(module, data())
    assert_same(module.net, expected)


@pytest.mark.parametrize("name", ["base", "sam", "esam", "slicesam", "looksam"])
@pytest.mark.parametrize("window", [2, 3])
def test_an_accumulated_batch_is_one_step_on_the_union_also_where_the_epoch_ends_inside_of_it(name, window):
    """Five batches in windows of two or three: the last window has one or two, and is their mean."""
    module = module_of(name)
    expected = by_hand(module, data(), window=window)
    made = fitted(module, data(), accumulate_grad_batches=window)
    assert_same(module.net, expected)
    assert made.global_step == 2 * -(-BATCHES // window)


@pytest.mark.parametrize("algorithm, clip", [("norm", nn.utils.clip_grad_norm_), ("value", nn.utils.clip_grad_value_)])
def test_the_trainer_clips_the_final_gradient(algorithm, clip):
    module = module_of("esam")
    clipped = by_hand(module, data(), clip=lambda parameters: clip(parameters, 0.01))
    fitted(module, data(), gradient_clip_val=0.01, gradient_clip_algorithm=algorithm)
    assert_same(module.net, clipped)


@pytest.mark.parametrize("name", ["sam", "esam"])
def test_bf16_mixed_is_autocast_in_every_pass(name):
    module = module_of(name, dtype=torch.float32)

    def around():
        return torch.autocast("cpu", torch.bfloat16, cache_enabled=False)

    loader = data(torch.float32)
    expected = by_hand(module, loader, around=around)
    fitted(module, loader, precision="bf16-mixed")
    assert_same(module.net, expected)


class Overflowing(Callback):
    """Make the losses of one step infinite."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        cls = type(pl_module)
        factor = torch.inf if trainer.global_step == self.step else 1.0
        if isinstance(pl_module, Ranked):
            pl_module.sample_losses = lambda batch, keep: cls.sample_losses(pl_module, batch, keep) * factor
        else:
            pl_module.training_step = lambda batch, batch_idx: cls.training_step(pl_module, batch, batch_idx) * factor


@pytest.mark.parametrize("name", ["sam", "esam", "slicesam"])
def test_16_mixed_skips_a_step_that_overflows_as_our_loop_does(name):
    module, loader = module_of(name, mlp, torch.float32), data(torch.float32)

    def around():
        return torch.autocast("cpu", torch.half, cache_enabled=False)

    scaler, theirs = (torch.amp.GradScaler("cpu", init_scale=2.0**10) for _ in range(2))
    expected = by_hand(module, loader, around=around, scaler=scaler, broken=2)
    precision = MixedPrecision("16-mixed", "cpu", theirs)
    fitted(module, loader, [Overflowing(2)], plugins=[precision])
    assert theirs.get_scale() == scaler.get_scale() == 2.0**9
    assert_same(module.net, expected)


def test_parameter_groups_and_a_frozen_part_stay_the_users_own():
    class Grouped(Plain):
        def configure_optimizers(self):
            self.net[0].requires_grad_(False)
            groups = [{"params": self.net[:4].parameters(), "perturb": False}, {"params": self.net[4:].parameters()}]
            optimizer = SAM(torch.optim.AdamW(groups, lr=0.01), self, rho=0.1)
            scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    torch.manual_seed(0)
    module = Grouped(mlp(), "sam")
    frozen = module.net[0].weight.clone()
    expected = by_hand(module, data())
    fitted(module, data())
    assert_same(module.net, expected)
    assert torch.equal(module.net[0].weight, frozen)


# Around the step ------------------------------------------------------------------------------------------------------


class Told(Callback):
    """Keep what a trainer tells its callbacks."""

    def __init__(self):
        self.losses, self.counted, self.outputs, self.hooks = [], [], [], []

    def on_after_backward(self, trainer, pl_module):
        self.hooks.append(all(p.grad is not None for p in pl_module.parameters()))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.outputs.append(outputs)
        self.losses.append(float(trainer.callback_metrics["loss"]))
        self.counted.append(int(pl_module.accuracy._update_count))


@pytest.mark.parametrize("name", ["base", "sam", "esam-random"])
def test_a_step_logs_once_and_a_metric_counts_each_sample_once(name):
    told, module = Told(), module_of(name, mlp)
    made = fitted(module, data(), [told], max_epochs=1)
    assert told.counted == [1, 2, 3, 4, 5]
    assert sum(int(getattr(module.accuracy, s)) for s in ("tp", "fn")) == BATCHES * SIZE
    assert told.losses == pytest.approx([float(out["loss"]) for out in told.outputs])
    # the epoch's mean is that of the five first passes
    assert float(made.callback_metrics["loss_epoch"]) == pytest.approx(sum(told.losses) / BATCHES, rel=1e-6)
    assert made.global_step == BATCHES
    assert told.hooks == [True] * BATCHES


def test_metrics_see_the_pieces_of_a_batch_that_runs_in_parts_once_each():
    told, module = Told(), module_of("slicesam", mlp)
    fitted(module, data(), [told], max_epochs=1)
    assert sum(int(getattr(module.accuracy, s)) for s in ("tp", "fn")) == BATCHES * SIZE


def test_what_training_step_returns_beside_the_loss_reaches_the_callbacks():
    told = Told()
    fitted(module_of("esam", mlp), data(), [told], max_epochs=1)
    assert [out["told"] for out in told.outputs] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["looksam", "esam", "slicesam"])
def test_a_resumed_run_is_the_one_that_went_on_bit_for_bit(name, tmp_path):
    whole, first, second = (module_of(name, mlp) for _ in range(3))  # without dropout: Lightning keeps no random state
    fitted(whole, data(), max_epochs=3)
    fitted(first, data(), max_epochs=1).save_checkpoint(tmp_path / "run.ckpt")
    fitted(second, data(), max_epochs=3, ckpt_path=tmp_path / "run.ckpt")
    assert_same(second.net, whole.net)


def test_a_resume_without_the_methods_state_warns(tmp_path):
    first = module_of("looksam", mlp)
    first.configure_optimizers = lambda: sgd(first)
    fitted(first, data(), max_epochs=1, ours=False).save_checkpoint(tmp_path / "run.ckpt")
    second = module_of("looksam", mlp)
    second.configure_optimizers = lambda: METHODS["looksam"](sgd(second), second)
    with pytest.warns(UserWarning, match="saved by the base optimizer alone"):
        fitted(second, data(), ckpt_path=tmp_path / "run.ckpt")


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


def test_without_the_callback_the_error_names_it():
    with pytest.raises(ValueError, match=r"callbacks=\[esam.integrations.lightning.SharpnessAware\(\)\]"):
        fitted(module_of("sam"), data(), ours=False)


@pytest.mark.parametrize("name", ["sam", "esam"])
def test_without_the_callback_no_precision_trains_in_silence(name):
    precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    with pytest.raises(ValueError, match="gradient"):
        fitted(module_of(name, mlp, torch.float32), data(torch.float32), ours=False, plugins=[precision])


def changed(name="sam", **attributes):
    module = module_of(name, mlp)
    for key, value in attributes.items():
        setattr(module, key, value)
    return module


class OwnBackward(Plain):
    def backward(self, loss):
        loss.backward()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: changed(configure_optimizers=lambda: sgd(mlp())), r"got SGD; return esam.SAM\(torch.optim.SGD"),
        (lambda: changed(automatic_optimization=False), r"under manual optimization leave it out"),
        (lambda: Plain(mlp(), "esam"), r"Plain needs sample_losses\(batch, keep\)"),
        (lambda: OwnBackward(mlp(), "sam"), "OwnBackward overrides backward"),
        (
            lambda: changed(training_step=lambda batch, batch_idx: None),
            "training_step returned no loss; a batch cannot be skip",
        ),
        (
            lambda: changed("esam", training_step=lambda batch, batch_idx: torch.ones(())),
            "called self.sample_losses 0 times",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_a_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        fitted(make(), data())


def test_a_loss_that_is_more_than_the_mean_of_its_samples_is_refused():
    module = module_of("esam", mlp)
    module.training_step = lambda batch, batch_idx: module.sample_losses(batch, slice(None)).mean() + 1
    with pytest.raises(ValueError, match="everything that is trained on belongs into it"):
        fitted(module, data())


# Two processes --------------------------------------------------------------------------------------------------------


def share(rank):
    return data(batches=2 * BATCHES)[rank::RANKS]


def cases(rank):
    warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
    warnings.filterwarnings("ignore", ".*(does not have many workers|sync_dist=True)", UserWarning)
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": str(RANKS), "MASTER_PORT": "0"}

    def distributed(name, **settings):
        module = module_of(name, mlp)
        fitted(module, share(rank), devices=RANKS, strategy="ddp", use_distributed_sampler=False, **settings)
        return module.net.state_dict()

    for name in ("sam", "esam", "slicesam"):
        yield name, lambda name=name: distributed(name)
    yield "accumulated", lambda: distributed("sam", accumulate_grad_batches=2)
    yield "by hand", lambda: hand_on_ranks(rank, window=1)
    yield "accumulated by hand", lambda: hand_on_ranks(rank, window=2)


def hand_on_ranks(rank, window):
    module = module_of("sam", mlp)
    net = nn.parallel.DistributedDataParallel(module.net)
    optimizer = SAM(sgd(net), net, seed=3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    loader = share(rank)
    for _ in range(2):
        for start in range(0, BATCHES, window):
            for x, y in loader[start : start + window]:
                optimizer.accumulate(lambda keep, x=x, y=y: F.cross_entropy(net(x[keep]), y[keep]), batch_size=len(x))
            optimizer.gradient()
            optimizer.step()
            scheduler.step()
    return module.net.state_dict()


@needs_gloo
@pytest.mark.slow
def test_two_ranks_take_our_loops_steps_and_end_alike(tmp_path):
    first, second = on_two_ranks(tmp_path, cases, fork=True)
    for name in ("sam", "esam", "slicesam", "accumulated"):
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=0)
    torch.testing.assert_close(first["sam"], first["by hand"], rtol=0, atol=0)
    torch.testing.assert_close(first["accumulated"], first["accumulated by hand"], rtol=0, atol=0)
