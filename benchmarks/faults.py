"""Does a fault anywhere in a step leave a trace? Exceptions and real signals, injected until so many struck.

    python benchmarks/faults.py [--faults 10000]

A fault strikes in the loss function, a forward or backward hook, the scaler, a part of the method, the base's own hook,
or at any call inside the package, in steps of every form. After it, weights, buffers, the optimizer's state and random
numbers are compared bit for bit with those before, and the next step with that of an undisturbed twin.
``tests/test_faults.py`` has a short form.
"""

import argparse
import copy
import inspect
import itertools
import random
import signal
import sys
import threading
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import esam.optim
from esam import METHODS

ROWS = {
    **{name: (name, {}) for name in ("base-ema", "sam", "esam", "esam-random", "slicesam", "ae-sam", "msam")},
    "looksam": ("looksam", {"k": 2}),  # so that both kinds of its steps come up
    "sam in groups": ("sam", {"m": 4}),
}
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


def network():
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), Average(), nn.Linear(8, 8), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(8, 3)).double()


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
        torch.manual_seed(0)
        self.model = network()
        self.x, self.y = torch.randn(12, 6, dtype=torch.float64), torch.randint(0, 3, (12,))
        base = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.optimizer = METHODS[name](base, self.model, seed=3, **settings)
        self.fault = Breaking()
        self.moved = False
        self.model[2].register_forward_hook(self._forward)
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
        return F.cross_entropy(self.model(x), y, reduction="none")

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


PLACES = ("loss", "forward", "backward", "scaler", "a part of the method", "before the base", "anywhere")
ERRORS = (Struck("on purpose"), KeyboardInterrupt, signal.SIGINT)


def inject(row, faults):
    """Let so many faults strike a method's steps; return how many struck at each place, and what any of them left."""
    run, twin = Run(row), Run(row)
    chance = random.Random(row)
    passed, struck, left = {}, Counter(), []
    for step in itertools.count():
        torch.manual_seed(step)
        before, tensors = copy.deepcopy(run.everything()), run.tensors()
        for _ in range(3):  # faults in a row, then a step left alone
            place = chance.choice(PLACES)
            form = chance.choice(["step", "list"] + ["phases", "passes"] * (place not in ("anywhere", "scaler")))
            scaled = place == "scaler" or (form != "passes" and chance.random() < 0.2)
            scale = 2.0**10 if scaled else None  # a power of two: it cancels
            run.fault = Breaking(place, chance.randint(1, passed.get((form, place), 10)), chance.choice(ERRORS))
            what = f"{run.fault.error!r} at {place} {run.fault.number} in {form}"
            grads = [w.grad if place in ("anywhere", "scaler") else None for w in run.model.parameters()]
            try:
                run.step(form, step, scale)
            except (Struck, KeyboardInterrupt):
                assert run.fault.struck
            else:
                assert not run.fault.struck  # that place does not come up so often
            if run.moved:
                break
            struck[place] += 1
            left += [f"{what}: {where}" for where in differences(run.everything(), before)]
            if run.tensors() != tensors:
                left.append(f"{what}: tensors were replaced")
            # before anything was begun, the gradient of the last step is still there
            if not all(w.grad is None or w.grad is g for w, g in zip(run.model.parameters(), grads, strict=True)):
                left.append(f"{what}: a gradient")
        else:
            run.fault = Breaking("anywhere" if place == "anywhere" else None)
            run.step(form, step, scale)
        passed |= {(form, place): times for place, times in run.fault.passed.items()}
        twin.step(form, step, scale)
        left += [f"{what}: {where} after the next step" for where in differences(run.everything(), twin.everything())]
        if left or sum(struck.values()) >= faults:
            return struck, left


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=10_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    total = 0
    for row in ROWS:
        struck, left = inject(row, -(-arguments.faults // len(ROWS)))
        total += sum(struck.values())
        print(f"{row}: {sum(struck.values()):,} faults, {len(left)} left a trace", *left, sep="\n  ", flush=True)
    print(f"{total:,} faults")
