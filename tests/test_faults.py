"""A thousand faults, wherever they strike before the base moves: does one leave a trace?"""

import copy
import inspect
import itertools
import random
import signal
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
from conftest import Problem, problem
from torch import nn

import esam.optim
from esam import METHODS

pytestmark = pytest.mark.slow

ROWS = {
    **{name: (name, {}) for name in ("base-ema", "sam", "esam", "esam-random", "slicesam", "ae-sam", "msam")},
    "looksam": ("looksam", {"k": 2}),  # so that both kinds of its steps come up
    "esam aligned": ("esam", {"ranking": "aligned"}),
    "sam in groups": ("sam", {"m": 4}),
}
FAULTS = 1000 // len(ROWS) + 1
PARTS = ("plan", "finish")
OPTIM = str(Path(esam.optim.__file__).parent)


class Struck(Exception):
    """A fault of ours."""


class Average(nn.Module):
    """Keeps a running mean that is replaced, not written in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8, dtype=torch.float64))

    def forward(self, h):
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return h - self.mean


def network(dtype):
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), Average(), nn.Linear(8, 8), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(8, 3)).to(dtype)


class Breaking:
    """Strikes at the n-th call of a place; knows whether it did, and how often a step came by each place."""

    def __init__(self, place=None, number=0, error=None):
        self.place, self.number, self.error, self.struck = place, number, error, False
        self.passed = Counter()

    def __call__(self, place):
        self.passed[place] += 1
        if place == self.place and self.passed[place] == self.number:
            self.struck = True
            if self.error is not signal.SIGINT:
                raise self.error
            if threading.current_thread() is not threading.main_thread():
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGINT)  # a real one: the handler raises KeyboardInterrupt

    def anywhere(self, frame, event, argument):
        """Strike where a real interrupt may: when a function of the package begins, or has called into torch.

        A profile function; one that begins a generator anew is left out: Python closes the generator unseen.
        """
        code = frame.f_code
        begins = event == "call" and not code.co_flags & inspect.CO_GENERATOR
        if code.co_filename.startswith(OPTIM) and (begins or event == "c_return"):
            self("anywhere")


class BreakingScaler(torch.amp.GradScaler):
    """Tells of every call that a step makes."""

    def __init__(self, fault, scale):
        super().__init__("cpu", init_scale=scale)
        self.fault = fault

    def scale(self, outputs):
        self.fault("scaler")
        return super().scale(outputs)

    def unscale_(self, optimizer):
        self.fault("scaler")
        super().unscale_(optimizer)


class Run:
    """A model in training, its optimizer, and the places where a fault may strike."""

    def __init__(self, row):
        name, settings = ROWS[row]
        p = problem(network)
        self.model, self.x, self.y = p.model, p.x, p.y
        base = torch.optim.SGD(p.model.parameters(), lr=0.05, momentum=0.9)
        self.optimizer = METHODS[name](base, p.model, seed=3, **settings)
        self.fault = Breaking()
        self.moved = False
        p.model[2].register_forward_hook(self._forward)
        base.register_step_pre_hook(lambda *_: self.fault("before the base"))
        base.register_step_post_hook(lambda *_: setattr(self, "moved", True))
        for part in PARTS:
            self._watch(part, getattr(self.optimizer, part))

    def _watch(self, part, own):
        def watched(*args, **settings):
            self.fault("a part of the method")
            return own(*args, **settings)

        setattr(self.optimizer, part, watched)

    def _forward(self, layer, inputs, output):
        self.fault("forward")
        if output.requires_grad:
            output.register_hook(lambda gradient: self.fault("backward"))

    def loss_of(self, x, y):
        self.fault("loss")
        losses = Problem(self.model, x, y).loss_of(x, y)
        if torch.is_grad_enabled():
            try:
                self.fault("value")
            except Struck as struck:
                return losses * struck.args[0]
        return losses

    def step(self, form, seed, scale=None):
        """Take a step in one of the forms; a fault ends it."""
        torch.manual_seed(seed)
        self.moved = False
        scaler = None if scale is None else BreakingScaler(self.fault, scale)
        halves = [(self.x[:6], self.y[:6]), (self.x[6:], self.y[6:])]
        if form == "passes":
            for x, y in self.optimizer.passes(self.x, self.y):
                self.optimizer.backward(self.loss_of(x, y))
            self.optimizer.step()
        elif form == "phases":
            for half in halves:
                self.optimizer.accumulate(self.loss_of, *half, scaler=scaler)
            self.optimizer.gradient()
            if scaler is None:
                self.optimizer.step()
            else:  # as a trainer does, with a scaler of torch's own
                scaler.fault = Breaking()
                scaler.unscale_(self.optimizer)
                scaler.step(self.optimizer)
        else:
            profile = sys.getprofile()
            if self.fault.place == "anywhere":
                sys.setprofile(self.fault.anywhere)
            try:
                if form == "step":
                    self.optimizer.step(self.loss_of, self.x, self.y, scaler=scaler)
                else:
                    closures = [lambda keep, x=x, y=y: self.loss_of(x[keep], y[keep]) for x, y in halves]
                    self.optimizer.step(closures, scaler=scaler, batch_size=[6, 6])
            finally:
                sys.setprofile(profile)

    def everything(self):
        return {
            "weights and buffers": self.model.state_dict(),
            "optimizer and generator": self.optimizer.state_dict(),
            "random numbers": torch.get_rng_state(),
            "requires_grad": [w.requires_grad for w in self.model.parameters()],
            "modes": [layer.training for layer in self.model.modules()],
        }

    def tensors(self):
        return [(id(t), t.data_ptr()) for t in self.model.parameters()], [id(b) for b in self.model.buffers()]


def differences(a, b, where=""):
    """Return the places at which two nests of values differ in a bit."""
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return [where]
        return [place for key in a for place in differences(a[key], b[key], f"{where} {key}")]
    if isinstance(a, list):
        return [place for n, pair in enumerate(zip(a, b, strict=True)) for place in differences(*pair, f"{where} {n}")]
    same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    return [] if same else [where]


@pytest.fixture(autouse=True)
def interrupts_raise():
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


PLACES = ("loss", "forward", "backward", "scaler", "a part of the method", "before the base", "anywhere")
ERRORS = (Struck("on purpose"), KeyboardInterrupt, signal.SIGINT)


@pytest.mark.parametrize("row", ROWS)
def test_no_fault_leaves_a_trace_and_the_next_step_is_an_undisturbed_twins(row):
    run, twin = Run(row), Run(row)
    chance = random.Random(row)
    passed, struck = {}, Counter()
    for step in itertools.count():
        torch.manual_seed(step)
        before, tensors = copy.deepcopy(run.everything()), run.tensors()
        for _ in range(3):  # faults in a row, then a step left alone
            place = chance.choice(PLACES)
            form = chance.choice(
                ["step", "list"] if place in ("anywhere", "scaler") else ["step", "list", "phases", "passes"]
            )
            scale = (
                2.0**10 if place == "scaler" or (form != "passes" and chance.random() < 0.2) else None
            )  # a power of two: it cancels
            number = chance.randint(1, passed.get((form, place), 10))
            run.fault = Breaking(place, number, chance.choice(ERRORS))
            left = [w.grad if place in ("anywhere", "scaler") else None for w in run.model.parameters()]
            what = f"{run.fault.error!r} at {place} {number} in {form}"
            try:
                run.step(form, step, scale)
            except (Struck, KeyboardInterrupt):
                assert run.fault.struck
            else:
                assert not run.fault.struck  # that place does not come up so often
            if run.moved:
                break
            struck[place] += 1
            assert differences(run.everything(), before) == [], what
            assert run.tensors() == tensors, what
            # before anything was begun, the gradient of the last step is still there
            assert all(w.grad is None or w.grad is g for w, g in zip(run.model.parameters(), left, strict=True)), what
        else:
            run.fault = Breaking("anywhere" if place == "anywhere" else None)
            run.step(form, step, scale)
        passed |= {(form, place): times for place, times in run.fault.passed.items()}
        twin.step(form, step, scale)
        assert differences(run.everything(), twin.everything()) == [], what
        if sum(struck.values()) >= (FAULTS if set(struck) == set(PLACES) else 4 * FAULTS):  # a place may be rare
            break
    assert set(struck) == set(PLACES), struck


VALUES = {"nan": (float("nan"), 2.0**10), "inf": (float("inf"), 2.0**10), "overflow": (1e300, 2.0**100)}
"""By what the losses of one pass are multiplied, and the scale."""


@pytest.mark.parametrize("row", ROWS)
def test_a_pass_that_is_not_finite_moves_no_weight_and_poisons_no_later_step(row):
    run, twin = Run(row), Run(row)
    chance = random.Random(row)
    skipped = Counter()
    for attempt in range(30):
        kind = list(VALUES)[attempt % 3]
        factor, scale = VALUES[kind]
        form = chance.choice(["step", "list", "phases"])
        run.fault = Breaking("value", chance.randint(1, 4), Struck(factor))
        before = copy.deepcopy(run.everything())
        run.step(form, attempt, scale)
        if not run.fault.struck:  # fewer passes than that
            twin.step(form, attempt, scale)
        else:
            assert not run.moved
            skipped[kind] += 1
            assert (
                differences(
                    dict(run.model.named_parameters()),
                    {name: before["weights and buffers"][name] for name, _ in run.model.named_parameters()},
                )
                == []
            )
            assert (
                differences(
                    run.optimizer.base.state_dict()["state"],
                    {
                        n: {"momentum_buffer": own["momentum_buffer"]}
                        for n, own in before["optimizer and generator"]["state"].items()
                        if "momentum_buffer" in own
                    },
                )
                == []
            )
            # what it drew and the statistics of its first pass stay, as the base's own would
            twin.model.load_state_dict(copy.deepcopy(run.model.state_dict()))
            twin.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
        run.fault = Breaking()
        run.step(form, attempt)
        twin.step(form, attempt)
        assert run.moved
        assert all(torch.isfinite(t).all() for t in run.model.state_dict().values())
        assert differences(run.everything(), twin.everything()) == [], kind
    assert min(skipped[kind] for kind in VALUES) > 0, skipped
