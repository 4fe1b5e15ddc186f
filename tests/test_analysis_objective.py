"""Is the loss the same each time it is asked, is it the model's own, and is the model left alone?"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from esam.analysis import (
    ModelObjective,
    adaptive_sharpness,
    ascent_sharpness,
    gradient_cosines,
    hessian_trace,
    landscape,
    linearity,
    m_sharpness,
    random_plane,
    select,
    sharpness,
    spectral_density,
    top_eigenvalues,
)
from esam.analysis.objective import moved, repeats, value_and_gradient


class Counting(nn.Module):
    """Writes into a buffer in every forward pass, in eval mode too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x


def network():
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5), Counting(), nn.Linear(8, 3)
    model = nn.Sequential(*layers).double()
    model(torch.randn(32, 6).double())  # running statistics that are not the initial ones
    return model


def batches(*sizes):
    torch.manual_seed(1)
    return [(torch.randn(n, 6).double(), torch.randint(0, 3, (n,))) for n in sizes]


def test_loss_and_gradient_are_those_of_all_samples_in_eval_mode_whatever_the_batches():
    model, data = network(), batches(5, 3)
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    objective = ModelObjective(model, data)
    loss, gradient = value_and_gradient(objective, dict(model.named_parameters()))
    own = copy.deepcopy(model).eval()
    whole = F.cross_entropy(own(x), y)
    whole.backward()
    assert [loss.item(), objective(objective.parameters).item()] == pytest.approx([whole.item()] * 2, rel=1e-13)
    assert loss.item() != pytest.approx(F.cross_entropy(model(x), y).item(), rel=1e-3)  # dropout, batch statistics
    for name, p in own.named_parameters():
        assert torch.allclose(gradient[name], p.grad, rtol=1e-11, atol=1e-15), name


def test_losses_groups_parts_and_subsets_are_those_of_the_samples():
    model, data = network(), batches(5, 3)
    objective = ModelObjective(model, data)
    theta = objective.parameters
    losses = objective.losses(theta)
    assert objective(theta).item() == pytest.approx(losses.mean().item(), rel=1e-13)
    by_part = [part(theta).item() for part in objective.parts()]
    assert by_part == pytest.approx([losses[:5].mean().item(), losses[5:].mean().item()], rel=1e-13)
    by_group = [group(theta).item() for group in objective.groups(3)]
    assert by_group == pytest.approx([losses[i : i + 3].mean().item() for i in (0, 3, 6)], rel=1e-13)
    rows = torch.tensor([7, 0, 4])
    assert objective.only(rows)(theta).item() == pytest.approx(losses[rows].mean().item(), rel=1e-13)


ANALYSES = {
    "sharpness": lambda o, p: sharpness(o, p, rho=0.1),
    "ascent": lambda o, p: ascent_sharpness(o, p, rho=0.1, steps=3),
    "adaptive": lambda o, p: adaptive_sharpness(o, p, rho=0.1),
    "landscape": lambda o, p: landscape([(o, random_plane(p, seed=0))], p, [[-1, 0, 1], [0, 1, 2, 3]]),
    "eigenvalues": lambda o, p: top_eigenvalues(o, p),
    "trace": lambda o, p: hessian_trace(o, p, vectors=2),
    "density": lambda o, p: spectral_density(o, p, lanczos=5, draws=1),
    "linearity": lambda o, p: linearity(o, p, {name: w.detach() for name, w in p.items()}),
}
OF_SAMPLES = {
    "m": lambda o, p: m_sharpness(o, p, rho=0.1, m=2),
    "cosines": lambda o, p: gradient_cosines(o, p, select(o, p)),
}
"""They ask an objective for its samples."""


def test_every_analysis_leaves_parameters_buffers_modes_gradients_and_random_stream_bit_for_bit():
    model = network()
    model.train()
    model[1].eval()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    model[0].weight.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    pointers = [t.data_ptr() for t in model.state_dict().values()]
    modes = [m.training for m in model.modules()]
    data = batches(5, 3)
    random = torch.get_rng_state()
    for analysis in (ANALYSES | OF_SAMPLES).values():
        analysis(ModelObjective(model, data), dict(model.named_parameters()))
    assert torch.equal(torch.get_rng_state(), random)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [t.data_ptr() for t in after.values()] == pointers
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters())
    assert [p.requires_grad for p in model.parameters()] == [False, True, True, True, True, True]


def test_modes_come_back_when_the_loss_raises():
    model = network()
    objective = ModelObjective(model, batches(4), lambda outputs, targets: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        objective(objective.parameters)
    assert model.training and all(m.training for m in model.modules())


@pytest.mark.parametrize("analysis", ANALYSES)
def test_an_objective_that_answers_differently_twice_is_refused_with_the_reason(analysis):
    model, ((x, y),) = network(), batches(64)

    def with_dropout(parameters):
        return F.cross_entropy(torch.func.functional_call(model.train(), dict(parameters), (x,)), y)

    with pytest.raises(ValueError, match=r"answered .* and then .*random.*model.eval\(\)"):
        ANALYSES[analysis](with_dropout, dict(model.named_parameters()))


def test_dropout_that_ignores_eval_mode_is_refused_too():
    class Always(nn.Module):
        def forward(self, x):
            return F.dropout(x, 0.5, training=True)

    objective = ModelObjective(nn.Sequential(nn.Linear(6, 6), Always(), nn.Linear(6, 3)).double(), batches(64))
    with pytest.raises(ValueError, match="something in it is random"):
        select(objective, objective.parameters)


def test_an_objective_that_is_nan_twice_repeats():
    assert repeats(lambda p: p["w"].sum() * float("nan"), {"w": torch.ones(1)}) != 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: ModelObjective(m, []), "there are no batches"),
        (lambda m: ModelObjective(m, batches(4), F.cross_entropy)({}), r'shape \(\) for 4 samples.*reduction="none"'),
        (lambda m: ModelObjective(m, batches(4)).groups(0), "1 sample or more, got 0"),
        (lambda m: moved({"a": torch.ones(1)}, {"b": torch.ones(1)}), "names 'b', which is no parameter"),
        (lambda m: ModelObjective(m, [({"x": 1}, torch.zeros(2))]).groups(1), "the inputs are no tensors"),
    ],
)
def test_what_cannot_work_is_refused_with_a_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        make(network())


def test_a_data_loader_is_read_once_and_leaves_the_random_stream_alone():
    x, y = batches(8)[0]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=3, shuffle=True)
    model = nn.Linear(6, 3).double()
    state = torch.get_rng_state()
    objective = ModelObjective(model, loader)
    assert objective(objective.parameters) == objective(objective.parameters)
    assert torch.equal(torch.get_rng_state(), state)
