"""What do others pay for a step? The patterns found outside this package, written here to be timed beside ours."""

import torch
import torch.nn.functional as F

from esam.bench.steps import Contender, base_optimizer


class TwoStepSAM:
    """SAM as it is usually written: a method for the way up, one for the way back, a loop over the parameters."""

    def __init__(self, base, rho=0.05):
        self.base, self.rho = base, rho
        self.parameters = [p for group in base.param_groups for p in group["params"]]
        self.old = {}

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm(p=2) for p in self.parameters if p.grad is not None]).norm(p=2)
        scale = self.rho / (norm + 1e-12)
        for p in self.parameters:
            if p.grad is None:
                continue
            self.old[p] = p.data.clone()
            p.add_(p.grad * scale.to(p))
        self.base.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for p in self.parameters:
            if p.grad is None:
                continue
            p.data = self.old[p]
        self.base.step()
        self.base.zero_grad()


class ReleasedESAM:
    """ESAM with the costs of its release: three forward passes a step, the middle one only to rank the samples.

    Tensors are drawn at the end of a step for the next one, and those left out are frozen until the next first pass is
    over; eps is divided by beta and by the norm of the drawn part; the ranking is paid even where it decides nothing.
    """

    def __init__(self, base, model, rho=0.05, beta=0.6, gamma=0.5):
        self.base, self.model, self.rho, self.beta, self.gamma = base, model, rho, beta, gamma
        self.parameters = [p for group in base.param_groups for p in group["params"]]
        self.eps = {}

    def step(self, x, y):
        losses = F.cross_entropy(self.model(x), y, reduction="none")
        losses.mean().backward()
        self._up()
        with torch.no_grad():
            rise = F.cross_entropy(self.model(x), y, reduction="none") - losses.detach()
            cutoff = rise.topk(int(len(y) * self.gamma)).values[-1]
            keep = rise > cutoff if self.gamma < 1 else torch.ones_like(y, dtype=torch.bool)
        F.cross_entropy(self.model(x[keep]), y[keep]).backward()
        self._down()

    @torch.no_grad()
    def _up(self):
        drawn = [p for p in self.parameters if p.grad is not None]
        norm = torch.stack([p.grad.norm(p=2) for p in drawn]).norm(p=2)
        for p in drawn:
            self.eps[p] = p.grad * (self.rho / (norm + 1e-7) / self.beta)
            p.add_(self.eps[p])
        for p in self.parameters:
            p.requires_grad = True
        self.base.zero_grad()

    @torch.no_grad()
    def _down(self):
        for p, eps in self.eps.items():
            p.sub_(eps)
        self.eps.clear()
        self.base.step()
        self.base.zero_grad()
        for p in self.parameters:
            p.requires_grad = bool(torch.rand(()) < self.beta)


def two_step_sam(model, x, y):
    """Take SAM's step by the pattern of first_step and second_step."""
    optimizer = TwoStepSAM(base_optimizer(model))

    def step():
        F.cross_entropy(model(x), y).backward()
        optimizer.first_step()
        F.cross_entropy(model(x), y).backward()
        optimizer.second_step()

    return step


def released_esam(model, x, y):
    """Take ESAM's step as released."""
    optimizer = ReleasedESAM(base_optimizer(model), model)
    return lambda: optimizer.step(x, y)


def released_swp(model, x, y):
    """Take the step of ESAM-SWP as released: gamma = 1, and still the pass that ranks."""
    optimizer = ReleasedESAM(base_optimizer(model), model, gamma=1.0)
    return lambda: optimizer.step(x, y)


def pytorch_optimizer_sam(model, x, y):
    """Take the step of the SAM in the package pytorch_optimizer (the extra bench)."""
    from pytorch_optimizer import SAM as TheirSAM

    settings = {"lr": 1e-3, "momentum": 0.9, "weight_decay": 5e-4}
    optimizer = TheirSAM(model.parameters(), base_optimizer=torch.optim.SGD, rho=0.05, **settings)

    def step():
        F.cross_entropy(model(x), y).backward()
        optimizer.first_step(zero_grad=True)
        F.cross_entropy(model(x), y).backward()
        optimizer.second_step(zero_grad=True)

    return step


OTHER_PACKAGES = {"pytorch_optimizer": Contender(pytorch_optimizer_sam, 6.0)}
PEERS = {
    "sam, two-step pattern": Contender(two_step_sam, 6.0),
    "esam, as released": Contender(released_esam, 5.1),
    "esam-swp, as released": Contender(released_swp, 6.6),
}
