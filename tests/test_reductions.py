"""Where one method must be another, bit for bit."""

import pytest
import torch
from conftest import EVERY_METHOD, normalised, problem
from torch import nn

from esam import ASAM, ESAM, METHODS, SAM, LookSAM
from esam.optim import Base
from esam.optim.methods.base import BasePart


def trained(build, problem_of=normalised, steps=8, base=None, set_weights=None):
    p = problem(problem_of, dtype=torch.float32)
    if set_weights:
        set_weights(p.model)
    base = base or (lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-3))
    optimizer = build(base(p.model.parameters()), p.model)
    losses = [float(optimizer.step(p.closure)) for _ in range(steps)]
    return [*p.model.state_dict().values()], losses, torch.get_rng_state()


def plain(base, model):
    """The base optimizer, driven by the same closure."""

    class Loop:
        def step(self, closure):
            base.zero_grad()
            loss = closure(slice(None)).mean()
            loss.backward()
            base.step()
            return loss.detach()

    return Loop()


def assert_same(a, b):
    for x, y in zip(a[0], b[0], strict=True):
        assert torch.equal(x, y)
    assert a[1] == b[1]
    assert torch.equal(a[2], b[2]), "the global random stream moved differently"


@pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("name", EVERY_METHOD)
def test_rho_zero_is_the_base_optimizer_bit_for_bit(name, base):
    make = lambda params: base(params, lr=0.01)  # noqa: E731
    assert_same(trained(lambda b, m: METHODS[name](b, m, rho=0.0), base=make), trained(plain, base=make))


def test_the_row_base_is_the_base_optimizer_bit_for_bit_even_where_groups_carry_a_radius():
    make = lambda params: torch.optim.SGD([{"params": list(params), "rho": 0.5}], lr=0.1, momentum=0.9)  # noqa: E731
    assert_same(trained(Base, base=make), trained(plain, base=make))


def test_esam_with_beta_and_gamma_one_is_sam_bit_for_bit():
    build = lambda b, m: ESAM(b, m, rho=0.1, beta=1, gamma=1)  # noqa: E731
    assert_same(trained(build), trained(lambda b, m: SAM(b, m, rho=0.1)))


def test_looksam_with_k_one_is_sam_bit_for_bit():
    assert_same(trained(lambda b, m: LookSAM(b, m, rho=0.1, k=1)), trained(lambda b, m: SAM(b, m, rho=0.1)))


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_m_of_the_batch_size_or_more_changes_nothing(name):
    whole = trained(lambda b, m: METHODS[name](b, m, rho=0.1, seed=1))
    for size in (12, 50):
        assert_same(trained(lambda b, m, size=size: METHODS[name](b, m, rho=0.1, seed=1, m=size)), whole)


def test_asam_is_sam_where_every_weight_is_one_in_size():
    def ones(model):
        for p in model.parameters():
            nn.init.ones_(p)
            p.data[torch.rand_like(p) < 0.5] = -1

    asam = trained(lambda b, m: ASAM(b, m, rho=0.1, eta=0.0), steps=1, set_weights=ones)
    sam = trained(lambda b, m: SAM(b, m, rho=0.1), steps=1, set_weights=ones)
    assert_same(asam, sam)


def test_the_methods_do_differ_from_one_another():
    names = [name for name in EVERY_METHOD if name != "esam-follow"]  # ESAM-SWP until the loss falls
    ends = [trained(lambda b, m, n=n: METHODS[n](b, m, rho=0.3, seed=1))[0][0] for n in names]
    for i, a in enumerate(ends):
        assert not any(torch.equal(a, b) for b in ends[i + 1 :])


def test_the_base_on_all_of_the_batch_is_the_base():
    assert_same(trained(lambda b, m: BasePart(b, m, gamma=1.0)), trained(plain))


def test_the_base_on_a_part_steps_by_the_gradient_of_that_part_alone():
    p = problem()
    optimizer = BasePart(torch.optim.SGD(p.model.parameters(), lr=0.0), p.model, gamma=0.25, seed=0)
    loss = optimizer.step(p.closure, batch_size=12)
    (part,) = p.calls
    assert part.tolist() == sorted(set(part.tolist()))
    assert len(part) == 3
    losses = p.closure(part)
    assert loss == losses.mean()
    for w, g in zip(p.model.parameters(), torch.autograd.grad(losses.mean(), list(p.model.parameters())), strict=True):
        torch.testing.assert_close(w.grad, g, rtol=0, atol=1e-14)
