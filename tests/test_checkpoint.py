"""Does a run that was interrupted, cut short or damaged end exactly as one that was left alone?"""

import os
import pickle
import resource
import signal
from contextlib import nullcontext

import pytest
import torch
from conftest import Interrupted, contents, mlp, normalised, same, timeless
from torch.utils.data import DataLoader, TensorDataset

from esam import METHODS
from esam.train import Checkpoint, cosine, fit

EPOCHS = 3


def samples(dtype):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(24, 6, generator=generator, dtype=dtype)
    return TensorDataset(x, torch.randint(0, 3, (24,), generator=generator))


class Run:
    """Everything that one start of a program builds; `go` trains it, and interrupts it where it is told to."""

    def __init__(self, folder, method="sgd", precision="float32", seed=0):
        fp16 = precision == "fp16"
        self.precision, dtype = precision, torch.float32 if fp16 else torch.float64
        torch.manual_seed(seed)
        self.model = (mlp if fp16 else normalised)(dtype)
        base = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
        settings = {"k": 3} if method == "looksam" else {"seed": seed}
        self.optimizer = base if method == "sgd" else METHODS[method](base, self.model, **settings)
        data = samples(dtype)
        self.train, self.test = DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=16)
        self.checkpoint = Checkpoint(folder)
        self.metrics = []

    def go(self, *, epochs=EPOCHS, stop_after=None, fail_in=None):
        calls = 0

        def loss(outputs, targets):
            nonlocal calls
            calls += torch.is_grad_enabled()
            if calls == fail_in:
                raise Interrupted
            return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

        def on_epoch(metrics):
            if metrics["epoch"] == stop_after:
                raise Interrupted  # the epoch is trained, its checkpoint is not written yet
            self.metrics.append(timeless(metrics))

        how = {"epochs": epochs, "loss": loss, "schedule": cosine, "precision": self.precision, "on_epoch": on_epoch}
        fit(self.model, self.optimizer, self.train, self.test, checkpoint=self.checkpoint, **how)
        return self

    def stop(self, epoch):
        """Train until that many epochs are saved, and no further: the schedule is still that of the whole run."""
        with pytest.raises(Interrupted):
            self.go(stop_after=epoch + 1)

    def end(self):
        """Everything that is saved at the end, without the times."""
        state = self.checkpoint.load()
        return {**state, "progress": timeless(state["progress"])}


def assert_resumes(folder, interruptions, **settings):
    """Interrupt a run in these ways one after the other, let it end, and compare with one that was left alone."""
    alone = Run(folder / "alone", **settings).go()
    metrics = {}
    for interruption in [*interruptions, {}]:
        run = Run(folder / "disturbed", **settings)
        with pytest.raises(Interrupted) if interruption else nullcontext():
            run.go(**interruption)
        metrics |= {m["epoch"]: m for m in run.metrics}  # a later line takes the place of the same epoch's earlier one
    assert same(run.model.state_dict(), alone.model.state_dict())
    assert same(run.end(), alone.end())
    assert list(metrics.values()) == alone.metrics


# Interrupted ---------------------------------------------------------------------------------------------------------

# before anything is saved: in the first pass, in the second, after an epoch; then in and after every later epoch
STOPS = [{"fail_in": 1}, {"fail_in": 2}, {"stop_after": 1}, {"stop_after": 2}, {"fail_in": 3}, {"stop_after": 3}]


@pytest.mark.parametrize("method", ["sgd", "esam", "looksam"])  # the contract has what every method remembers
def test_a_run_interrupted_again_and_again_ends_bit_for_bit_as_if_left_alone(tmp_path, method):
    assert_resumes(tmp_path, STOPS, method=method)


def test_the_scale_of_fp16_goes_on_where_it_was(tmp_path):
    assert_resumes(tmp_path, [{"stop_after": 2}, {"stop_after": 3}], method="esam", precision="fp16")


def test_the_checkpoint_alone_decides_how_a_run_goes_on(tmp_path):
    alone = Run(tmp_path / "alone", "looksam").go()
    Run(tmp_path / "run", "looksam").stop(2)
    other = Run(tmp_path / "run", "looksam", seed=99).go()  # other weights, order and masks
    assert same(other.model.state_dict(), alone.model.state_dict())
    assert same(other.end(), alone.end())


def test_a_run_that_had_ended_trains_no_more_unless_it_is_given_more_epochs(tmp_path):
    Run(tmp_path).go(epochs=2)
    assert Run(tmp_path).go(epochs=2).metrics == []
    assert [m["epoch"] for m in Run(tmp_path).go().metrics] == [3]


# Damaged -------------------------------------------------------------------------------------------------------------


def state(number):
    """The least that a checkpoint holds."""
    return {"model": {"weight": torch.full((1000,), number)}, "progress": {"epoch": number}}


def flip(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGES = {
    "emptied": lambda data: b"",
    "cut in half": lambda data: data[: len(data) // 2],
    "zeros at the end": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "one bit flipped": flip,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_reported_and_left_there_and_the_one_before_it_read(tmp_path, damage):
    checkpoint = Checkpoint(tmp_path)
    for number in (1, 2):
        checkpoint.save(state(number))
    checkpoint.path.write_bytes(DAMAGES[damage](checkpoint.path.read_bytes()))
    before = contents(tmp_path)
    with pytest.warns(UserWarning, match=r"checkpoint.pt cannot be read .* the checkpoint before it"):
        assert same(checkpoint.load(), state(1))
    assert contents(tmp_path) == before
    for number in (3, 4):  # the damaged one never takes the place of the good one before it
        checkpoint.save(state(number))
        kept = torch.load(checkpoint.previous, weights_only=True)
        assert same(kept, state({3: 1, 4: 3}[number]))


def test_two_damaged_checkpoints_are_an_error_that_says_what_to_do(tmp_path):
    Run(tmp_path).go(epochs=2)
    checkpoint = Checkpoint(tmp_path)
    for path in (checkpoint.path, checkpoint.previous):
        path.write_bytes(b"")
    before = contents(tmp_path)
    with (
        pytest.warns(UserWarning, match="cannot be read"),
        pytest.raises(ValueError, match="delete the folder to start the run again"),
    ):
        Run(tmp_path).go()
    assert contents(tmp_path) == before  # and stays an error: nothing starts anew behind the user's back


def test_a_checkpoint_with_code_in_it_is_refused_and_the_code_does_not_run(tmp_path):
    marker = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(marker),)

    checkpoint = Checkpoint(tmp_path)
    torch.save({"model": Bomb()}, checkpoint.path)
    checkpoint.previous.write_bytes(pickle.dumps(Bomb()))
    with pytest.warns(UserWarning, match="cannot be read"), pytest.raises(ValueError, match="can be read"):
        checkpoint.load()
    assert not marker.exists()
    torch.load(checkpoint.path, weights_only=False)  # the trap is a real one
    assert marker.exists()


# Writing -------------------------------------------------------------------------------------------------------------


def test_the_last_state_and_the_one_before_it_are_kept_and_nothing_else(tmp_path):
    checkpoint = Checkpoint(tmp_path / "new" / "folder")
    assert checkpoint.load() is None and not checkpoint.folder.exists()
    for number in range(4):
        checkpoint.save(state(number))
        (checkpoint.folder / ".checkpoint.pt.1234abcd.tmp").write_bytes(b"half")  # what a kill while writing leaves
        assert same(checkpoint.load(), state(number))
    checkpoint.save(state(4))
    assert same(torch.load(checkpoint.previous, weights_only=True), state(3))
    assert sorted(p.name for p in checkpoint.folder.iterdir()) == ["checkpoint.previous.pt", "checkpoint.pt"]


def test_a_write_that_the_system_cuts_short_keeps_what_was_there(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.save(state(1))
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        with pytest.raises(OSError):
            checkpoint.save({**state(2), "more": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert same(checkpoint.load(), state(1))
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


@pytest.mark.parametrize("renames", [0, 1])
def test_a_kill_between_the_renames_loses_one_epoch_at_most(tmp_path, monkeypatch, renames):
    alone = Run(tmp_path / "alone", "esam").go()
    Run(tmp_path / "run", "esam").stop(2)
    done, replace = [], os.replace

    def killed(source, target):
        if len(done) == renames:
            raise Interrupted
        done.append(target)
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(Interrupted):
            Run(tmp_path / "run", "esam").go()
    again = Run(tmp_path / "run", "esam").go()
    assert [m["epoch"] for m in again.metrics] == [3]
    assert same(again.end(), alone.end())
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["checkpoint.previous.pt", "checkpoint.pt"]


# Another run's checkpoint --------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_precision_is_refused(tmp_path):
    Run(tmp_path).go(epochs=1)
    with pytest.raises(ValueError, match="without a scaler"):
        Run(tmp_path, precision="fp16").go()
