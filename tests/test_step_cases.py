"""Models, loss functions and groups that once broke a step, each with what it must give."""

import pytest
import torch
import torch.nn.functional as F
from conftest import EVERY_ROW, assert_same, mlp, normalised, problem, sgd, start
from torch import nn
from torch.utils.checkpoint import checkpoint

from esam import ESAM, METHODS, SAM, LookSAM
from esam.optim import reference

# The first pass -------------------------------------------------------------------------------------------------------


def test_groupnorm_in_channels_last_may_join_the_graph_later():
    """Where the gradient at its input is not asked for, torch's kernel ends the process, and this test run with it."""
    ends = []
    for memory_format in (torch.channels_last, torch.contiguous_format):
        torch.manual_seed(0)
        model = nn.ModuleList([nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Linear(4, 3)]).double()
        optimizer = METHODS["esam-swp"](torch.optim.SGD(model.parameters(), lr=0.1), model, beta=0.4, seed=0)
        x = torch.randn(6, 3, 6, 6).double().to(memory_format=memory_format)
        for step in range(30):

            def loss_of(x, step=step, model=model):
                h = model[0](x)
                return model[2]((model[1](h) if step % 2 else h).relu().mean((2, 3))).square().sum(1)

            optimizer.step(loss_of, x)
        ends.append([p.detach() for p in model.parameters()])
    assert_same(*ends, 1e-9)  # thirty steps of float64


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 5)), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(checkpoint(self.body, x, use_reentrant=True))


@pytest.mark.parametrize("stem", [nn.Identity, lambda: nn.Linear(6, 6)], ids=["inputs", "a layer"])
def test_layers_in_reentrant_checkpoints_are_never_left_unperturbed_in_silence(stem):
    """torch.autograd.grad does not look inside them, and says so only where a weight lies before the checkpoint."""
    p, optimizer = start("sam", lambda dtype: nn.Sequential(stem(), Checkpointed()).to(dtype))
    before = p.weights
    p.x.requires_grad_()
    with pytest.raises(ValueError, match="use_reentrant=False"):
        p.step(optimizer)
    assert_same(p.weights, before)


# Radii and groups -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_looksam_on_a_linear_loss_is_the_base(dtype):
    """The two gradients are parallel: what is left between them is rounding, and there is nothing to reuse."""
    torch.manual_seed(0)
    x = torch.randn(16, 5, dtype=dtype)
    ends = []
    for wrap in (lambda base, model: LookSAM(base, model, k=5), lambda base, model: SAM(base, model, rho=0.0)):
        model = nn.Linear(5, 1).to(dtype)
        nn.init.ones_(model.weight)
        nn.init.zeros_(model.bias)
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        for _ in range(10):
            optimizer.step(lambda x, model=model: model(x).squeeze(1), x)
        ends.append([p.detach() for p in model.parameters()])
    # ten additions to weights of about one
    assert_same(ends[0], ends[1], atol=20 * torch.finfo(dtype).eps)


def test_looksam_reuses_dense_gradients_and_leaves_sparse_ones_as_they_are():
    torch.manual_seed(0)
    words, head = nn.Embedding(10, 4, sparse=True).double(), nn.Linear(4, 3).double()
    model, x, y = nn.Sequential(words, head), torch.randint(0, 10, (12,)), torch.randint(0, 3, (12,))
    optimizer = LookSAM(torch.optim.SGD(model.parameters(), lr=0.0), model, rho=0.3, k=2, alpha=0.7)
    weights = list(model.parameters())

    def losses(keep):
        return F.cross_entropy(model(x[keep]), y[keep], reduction="none")

    g = [a.to_dense() for a in reference.gradient(losses, weights)]
    eps = [0.3 * a / reference.norm(g) for a in g]
    s = [a.to_dense() for a in reference.at_perturbed(losses, weights, eps)]
    optimizer.step(losses)
    assert_same([w.grad.to_dense() for w in weights], s, 1e-13)
    along = sum(float((a * b).sum()) for a, b in zip(s[1:], g[1:], strict=True)) / reference.norm(g[1:]) ** 2
    v = [a - along * b for a, b in zip(s[1:], g[1:], strict=True)]
    factor = 0.7 * reference.norm(g[1:]) / reference.norm(v)
    optimizer.step(losses)
    assert words.weight.grad.is_sparse
    expected = [g[0], *(a + factor * b for a, b in zip(g[1:], v, strict=True))]
    assert_same([w.grad.to_dense() for w in weights], expected, 1e-13)


@pytest.mark.parametrize("name", ["sam", "looksam", "esam"])
def test_complex_weights_train_as_their_pairs_of_real_numbers(name):
    ends = []
    for paired in (False, True):
        torch.manual_seed(0)
        pairs, x = torch.randn(4, 2, dtype=torch.float64), torch.randn(12, 6, dtype=torch.float64)
        model = nn.ParameterList([pairs if paired else torch.view_as_complex(pairs), torch.randn(6).double()])
        optimizer = METHODS[name](torch.optim.SGD(model.parameters(), lr=0.1), model, seed=3, rho=0.3)

        def loss_of(x, model=model, paired=paired):
            weight = torch.view_as_complex(model[0]) if paired else model[0]
            return (torch.fft.irfft(weight * torch.fft.rfft(x), n=6).tanh() @ model[1]).square()

        for _ in range(6):
            optimizer.step(loss_of, x)
        ends.append([model[0] if paired else torch.view_as_real(model[0]), model[1]])
    assert_same(*ends, 1e-13)


@pytest.mark.parametrize("name", ["sam", "looksam", "esam"])
def test_maximising_is_minimising_the_negative_bit_for_bit(name):
    ends = []
    for sign in (1, -1):
        p = problem()
        optimizer = METHODS[name](sgd(p, maximize=sign == 1), p.model, seed=3, rho=0.3)
        for _ in range(4):
            p.step(optimizer, lambda x, y, p=p, sign=sign: sign * p.loss_of(x, y))
        ends.append(p.weights)
    assert_same(*ends)


def test_a_checkpoint_of_the_base_leaves_the_groups_own_radii_as_the_user_set_them():
    p = problem()
    groups = [{"params": list(p.model[0].parameters())}, {"params": list(p.model[2:].parameters())}]
    plain = torch.optim.SGD([dict(g) for g in groups], lr=0.1).state_dict()
    optimizer = SAM(torch.optim.SGD([{**groups[0], "sam_rho": 0.3}, {**groups[1], "perturb": False}], lr=0.1), p.model)
    optimizer.load_state_dict(plain)
    assert [(g.get("sam_rho"), g.get("perturb")) for g in optimizer.param_groups] == [(0.3, None), (None, False)]


def test_another_default_device_changes_no_bit():
    for name in [*EVERY_ROW, "groups"]:
        name, settings = ("esam", {"m": 5}) if name == "groups" else (name, {})
        (p, optimizer), (q, twin) = start(name, **settings), start(name, **settings)
        with torch.device("meta"):
            for _ in range(3):
                p.step(optimizer)
            state = optimizer.state_dict()
        for _ in range(3):
            q.step(twin)
        assert_same(p.weights, q.weights)
        torch.testing.assert_close(state, twin.state_dict(), rtol=0, atol=0)


def test_a_suffix_follows_the_depth_of_the_model_whatever_the_order_of_the_groups():
    """Decay for matrices, none for biases: as every transformer is trained."""
    drawn = []
    for apart in (False, True):
        p = problem()
        weights = list(p.model.parameters())
        groups = [{"params": [w for w in weights if w.dim() == d], "weight_decay": 0.1 * (d - 1)} for d in (2, 1)]
        base = torch.optim.SGD(groups if apart else weights, lr=0.0)
        optimizer = METHODS["esam-swp"](base, p.model, mask="suffix", beta=0.5, seed=1)
        drawn.append([[bool(e.any()) for e in p.visited(optimizer)[1]] for _ in range(40)])
    assert drawn[0] == drawn[1]
    for mask in drawn[1]:
        assert mask == sorted(mask)  # a run to the output, in the order of the model
    assert 2 < sum(mask[0] for mask in drawn[1][1:]) < 19  # .27 of 39 steps, give or take three deviations


# Selection ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("build", "first"), [(normalised, [0, 1]), (mlp, [0])])
def test_a_lone_sample_takes_a_neighbour_along_where_batchnorm_needs_one(build, first):
    p = problem(build, batch=8)
    scores = torch.tensor([9.0, 0, 0, 0, 8, 7, 6, 0])
    optimizer = ESAM(sgd(p), p.model, ranking=lambda batch: scores)
    of_all, kept = torch.arange(8), []

    def part(samples):
        return lambda keep: (kept.append(keep), p.closure(samples[keep]))[1]

    optimizer.step([part(of_all[:4]), part(of_all[4:])])
    assert [keep.tolist() for keep in kept[2:]] == [first, [0, 1, 2]]


def test_hooks_on_the_state_dict_run():
    _, optimizer = start("sam")
    ran = []
    optimizer.register_state_dict_pre_hook(lambda _: ran.append("save pre"))
    optimizer.register_state_dict_post_hook(lambda _, state: ran.append("save post"))
    optimizer.register_load_state_dict_pre_hook(lambda _, state: ran.append("load pre"))
    optimizer.register_load_state_dict_post_hook(lambda _: ran.append("load post"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert ran == ["save pre", "save post", "load pre", "load post"]
