"""Are the networks the ones the papers trained, and can every one of them be trained here?"""

import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from esam.train import Task
from esam.train.models import MODELS, build_model, fastest_memory_format
from esam.train.models.convolutional import Residual, WideBlock, basic_body, padded_shortcut
from esam.train.models.vit import Attention, VisionTransformer
from experiments.paper import nets
from experiments.paper.nets import PyramidBlock, bottleneck_resnet, pyramidnet

BUILD = {name: row.build for name, row in MODELS.items()}
BUILD["pyramidnet8"] = partial(pyramidnet, 8, 48)
BUILD["bottleneck"] = partial(bottleneck_resnet, (1, 1, 1, 1))
BUILD["vit"] = partial(VisionTransformer, patch=4, width=24, depth=2, heads=3)
# A small network of each kind of code; the bottleneck's shortcuts are resnet18's too.
each_kind = pytest.mark.parametrize("kind", ["resnet8", "bottleneck", "wrn10-1", "pyramidnet8", "vit", "cnn", "mlp"])

PUBLISHED = {
    "resnet18": 11_173_962,  # github.com/kuangliu/pytorch-cifar
    "wrn28-10": 36_479_194,  # Zagoruyko & Komodakis: 36.5M
    "resnet20": 269_722,  # He et al.: 0.27M
}
# The paper's nets: side of the images, classes, parameters, and multiplications of one image.
# Those of ResNet: torchvision. PyramidNet: github.com/osmr/imgclsmob, which also counts the norms (Han et al. print
# 28.3M). ViT: timm. Where the image is halved shows in the multiplications alone: the paper's own ResNet-50 has 3.8e9.
PAPER = {
    "pyramidnet110": (32, 10, 28_485_477, 4.73e9),
    "pyramidnet8": (32, 10, 114_906, None),
    "resnet50": (224, 1000, 25_557_032, 4.09e9),
    "resnet101": (224, 1000, 44_549_160, None),
    "vit_s16": (224, 1000, 22_050_664, None),
}


def seeded(kind, seed=0, size=None):
    torch.manual_seed(seed)
    return BUILD[kind](classes=10, channels=3, size=size or small_size(kind))


def small_size(kind):
    return 36 if kind == "bottleneck" else 12


def random_images(count, size, channels=3):
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def in_float64(kind, count):
    """A network and so many images for it."""
    return seeded(kind).double(), random_images(count, small_size(kind))


def agree(scores, expected):
    """Compare what two kernels, layouts or batch shapes give for one network.

    In float64 only: thousands of roundings of 1e-16 each stay far below 1e-7 of the scores, on any processor. In
    float32 they do not: an untrained network multiplies its scores, and the errors with them, from block to block.
    """
    assert scores.dtype == torch.float64
    torch.testing.assert_close(scores, expected, rtol=1e-7, atol=1e-7)


def count_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_network_has_the_parameters_that_are_published(name):
    with torch.device("meta"):
        assert count_parameters(build_model(name, classes=10)) == PUBLISHED[name]


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_network_has_the_parameters_and_multiplications_that_are_published(name):
    size, classes, parameters, multiplications = PAPER[name]
    images = torch.empty(1, 3, size, size, device="meta")
    task = Task(*[(images, torch.zeros(1, dtype=torch.long))] * 2, classes=tuple(map(str, range(classes))))
    counter = FlopCounterMode(display=False)
    with torch.device("meta"), counter if multiplications else nullcontext():
        model = getattr(nets, name)(task)
        assert model(images).shape == (1, classes)
    assert count_parameters(model) == parameters
    if multiplications:
        assert counter.get_total_flops() / 2 == pytest.approx(multiplications, rel=0.005)


def test_pyramidnet_widens_as_published_when_alpha_leaves_fractions():
    with torch.device("meta"):
        published = 1_772_706  # github.com/osmr/imgclsmob
        assert count_parameters(pyramidnet(110, 48, classes=10, channels=3, size=32)) == published


def test_a_residual_block_rectifies_the_sum_and_not_only_the_body():
    assert torch.equal(Residual(nn.Identity(), nn.Identity())(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 4.0]))


def test_a_wide_shortcut_starts_after_the_activation_where_it_projects_and_before_it_elsewhere():
    images = random_images(2, size=6, channels=4)
    projecting, identity = WideBlock(4, 8, 2).double().eval(), WideBlock(4, 4, 1).double().eval()
    for block in (projecting, identity):
        nn.init.zeros_(block.body[-1].weight)  # silences the body
    # a new BatchNorm in eval mode divides by sqrt(1 + eps)
    agree(projecting(images), projecting.project(F.relu(images / (1 + 1e-5) ** 0.5)))
    assert torch.equal(identity(images), images)


def test_shortcuts_halve_as_their_papers_say_and_append_zeros():
    images = torch.arange(9.0).reshape(1, 1, 3, 3)
    # Rows 0 1 2 / 3 4 5 / 6 7 8. Option A keeps every second pixel; the pyramid averages the pixels that are there: the
    # last window of a row or column holds two, the corner one.
    for shortcut, kept in (
        (padded_shortcut(1, 2, 2), [[0.0, 2.0], [6.0, 8.0]]),
        (PyramidBlock(1, 2, 2).shortcut, [[2.0, 3.5], [6.5, 8.0]]),
    ):
        assert shortcut(images)[0].tolist() == [kept, [[0.0, 0.0], [0.0, 0.0]]]


def test_attention_is_the_textbook_softmax_of_each_head():
    torch.manual_seed(0)
    attention, tokens = Attention(width=6, heads=2).double(), torch.randn(2, 5, 6, dtype=torch.float64)
    queries, keys, values = attention.queries_keys_values(tokens).chunk(3, dim=-1)
    read = torch.empty_like(tokens)
    for head in (slice(0, 3), slice(3, 6)):
        weights = (queries[..., head] @ keys[..., head].mT / 3**0.5).softmax(dim=-1)
        read[..., head] = weights @ values[..., head]
    agree(attention(tokens), attention.mix(read))


@each_kind
def test_every_network_gives_one_score_per_class_whatever_the_channels(kind):
    with torch.device("meta"):
        size = small_size(kind)
        assert BUILD[kind](classes=7, channels=2, size=size)(torch.empty(5, 2, size, size)).shape == (5, 7)


@pytest.mark.parametrize(
    ("kind", "smallest"),
    [("resnet8", 5), ("wrn10-1", 5), ("pyramidnet8", 5), ("resnet18", 9), ("bottleneck", 33), ("cnn", 4)],
)
def test_a_batch_of_one_trains_at_the_smallest_size_and_one_pixel_less_is_refused(kind, smallest):
    # A batch of one is what the end of an epoch or a strict selection can leave; BatchNorm fails on it at 1x1.
    # Odd sizes also show that body and shortcut shrink alike.
    assert seeded(kind, size=smallest).train()(random_images(1, smallest).float()).isfinite().all()
    with pytest.raises(ValueError, match=rf"size must be .*at least {smallest}.* got {smallest - 1}"):
        seeded(kind, size=smallest - 1)


def test_images_that_patches_do_not_cover_are_refused_with_the_next_size_that_they_do():
    with pytest.raises(ValueError, match=r"multiple of the patch of 4 pixels, got 33; .* to 36"):
        build_model("vit-tiny", classes=10, size=33)


@each_kind
def test_gradients_reach_every_parameter_and_no_random_number_is_drawn(kind):
    model, images = in_float64(kind, 3)
    before = torch.get_rng_state()
    F.cross_entropy(model(images), torch.tensor([0, 1, 2])).backward()
    # Dropout would draw: the two passes of SAM would then see two different networks.
    assert torch.equal(torch.get_rng_state(), before)
    assert [path for path, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_convolutions_start_with_the_variance_of_he_et_al():
    # 256 outputs of 3x3: 2 / (9 * 256). Of 295k draws the sample variance has a standard error of 0.26 %.
    weight = seeded("resnet18").get_parameter("blocks.4.body.0.weight")
    assert weight.shape == (256, 128, 3, 3)
    assert weight.var().item() == pytest.approx(2 / (9 * 256), rel=0.01)


@each_kind
def test_channels_last_gives_the_same_scores_and_is_kept_up_to_the_head(kind):
    expected_layout = torch.contiguous_format if kind == "mlp" else torch.channels_last
    assert fastest_memory_format(seeded(kind)) is expected_layout
    # A layer that fell back to the contiguous layout would silently lose what fastest_memory_format promises.
    model, images = in_float64(kind, 2)
    expected = model.eval()(images)
    model = model.to(memory_format=torch.channels_last)
    strays = []

    def note_layout(module, _, output):
        if output.dim() == 4 and min(output.shape[1:]) > 1:
            strays.extend([module] * (not output.is_contiguous(memory_format=torch.channels_last)))

    for module in model.modules():
        module.register_forward_hook(note_layout)
    agree(model(images.contiguous(memory_format=torch.channels_last)), expected)
    assert strays == []


def test_torch_compile_takes_every_kind_of_block_in_one_graph():
    torch.manual_seed(0)
    blocks = [WideBlock(3, 8, 2), WideBlock(8, 8, 1), PyramidBlock(8, 10, 2)]
    residual = Residual(basic_body(10, 12, 1), padded_shortcut(10, 12, 1))
    transformer = VisionTransformer(patch=1, width=6, depth=1, heads=2, classes=4, channels=12, size=3)
    model, images = nn.Sequential(*blocks, residual, transformer).double().eval(), random_images(2, 12)
    whole = torch.compile(model, backend="eager", fullgraph=True)  # the tracing only: code generation takes minutes
    agree(whole(images), model(images))


@pytest.mark.parametrize(("wrong", "right"), [("resnet-18", "resnet18"), ("WRN28-10", "wrn28-10"), ("xyz", None)])
def test_an_unknown_name_is_answered_with_the_nearest_and_with_all(wrong, right):
    with pytest.raises(ValueError, match=f"Did you mean {right!r}" if right else "There are: ") as error:
        build_model(wrong, classes=10)
    assert all(name in str(error.value) for name in MODELS) and ("Did you mean" in str(error.value)) == bool(right)


def test_timm_is_told_the_classes_and_channels_and_its_absence_how_to_install_it(monkeypatch):
    timm = SimpleNamespace(
        __spec__="found",
        is_model=lambda name: name == "convnext_tiny",
        list_models=lambda: ["convnext_tiny"],
        create_model=lambda name, *, num_classes, in_chans: (name, num_classes, in_chans),
    )
    monkeypatch.setitem(sys.modules, "timm", timm)
    assert build_model("timm/convnext_tiny", classes=7, channels=1) == ("convnext_tiny", 7, 1)
    with pytest.raises(ValueError, match="no model 'timm/convnext_tyni'. Did you mean 'convnext_tiny'"):
        build_model("timm/convnext_tyni", classes=7)
    monkeypatch.setitem(sys.modules, "timm", None)  # makes the import fail, installed or not
    with pytest.raises(ImportError, match=r"timm/convnext_tiny needs timm; run: pip install timm"):
        build_model("timm/convnext_tiny", classes=7)
