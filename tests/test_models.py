"""Are the networks the ones the papers trained, and can every one of them be trained here?"""

import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from esam.train.models import MODELS, build_model, fastest_memory_format
from esam.train.models.parts import block_plan
from esam.train.models.pyramidnet import PyramidBlock, pyramidnet
from esam.train.models.resnet import Residual, padded_shortcut
from esam.train.models.vit import Attention
from esam.train.models.wide_resnet import WideBlock

SMALL = ["resnet8", "resnet14", "resnet20", "wrn10-1", "vit-tiny", "cnn", "mlp"]
# One network for each kind of code: thin, projected and bottleneck ResNet, wide, pyramid, transformer, small.
KINDS = ["resnet8", "resnet18", "resnet50", "wrn10-1", "pyramidnet110", "vit-tiny", "cnn", "mlp"]


def seeded(name, seed=0, **shape):
    torch.manual_seed(seed)
    return build_model(name, **{"classes": 10, **shape})


def random_images(count, channels=3, size=32):
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(1))


def count_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "size", "published"),
    [
        ("resnet18", 10, 32, 11_173_962),  # github.com/kuangliu/pytorch-cifar
        ("resnet18", 100, 32, 11_220_132),
        ("wrn28-10", 10, 32, 36_479_194),  # Zagoruyko & Komodakis: 36.5M
        ("wrn28-10", 100, 32, 36_536_884),
        ("pyramidnet110", 10, 32, 28_485_477),  # github.com/osmr/imgclsmob; Han et al. print 28.3M
        ("resnet50", 1000, 224, 25_557_032),  # torchvision
        ("resnet101", 1000, 224, 44_549_160),  # torchvision
        ("vit-s16", 1000, 224, 22_050_664),  # timm
        ("resnet20", 10, 32, 269_722),  # He et al.: 0.27M
    ],
)
def test_parameter_counts_are_the_published_ones(name, classes, size, published):
    with torch.device("meta"):
        assert count_parameters(build_model(name, classes=classes, size=size)) == published


@pytest.mark.parametrize(
    ("name", "published"),
    # torchvision, torchvision, and github.com/osmr/imgclsmob, which also counts the norms.
    [("resnet50", 4.09e9), ("resnet101", 7.80e9), ("pyramidnet110", 4.73e9)],
)
def test_multiplications_per_image_are_the_published_ones(name, published):
    # Where the image is halved shows here and not in the parameters: the paper's own ResNet-50 has 3.8e9.
    size = MODELS[name].native_size
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        build_model(name, classes=MODELS[name].native_classes, size=size)(torch.empty(1, 3, size, size))
    assert counter.get_total_flops() / 2 == pytest.approx(published, rel=0.005)


@pytest.mark.parametrize(("alpha", "published"), [(48, 1_772_706), (84, 3_904_446)])  # github.com/osmr/imgclsmob
def test_pyramidnet_widens_as_published_when_alpha_leaves_fractions(alpha, published):
    with torch.device("meta"):
        assert count_parameters(pyramidnet(110, alpha, classes=10, channels=3, size=32)) == published


@pytest.mark.parametrize("name", MODELS)
def test_the_registry_states_the_parameters_that_are_built(name):
    model = MODELS[name]
    with torch.device("meta"):
        built = build_model(name, classes=model.native_classes, size=model.native_size)
    assert count_parameters(built) == model.parameters


def test_the_block_plan_halves_the_image_at_every_stage_but_the_first():
    assert list(block_plan(16, [[16, 17], [32], [64]])) == [(16, 16, 1), (16, 17, 1), (17, 32, 2), (32, 64, 2)]


def test_a_residual_block_rectifies_the_sum_and_not_only_the_body():
    assert torch.equal(Residual(nn.Identity(), nn.Identity())(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 4.0]))


def test_a_wide_shortcut_starts_after_the_activation_where_it_projects_and_before_it_elsewhere():
    images = random_images(2, channels=4, size=6)
    projecting, identity = WideBlock(4, 8, 2).eval(), WideBlock(4, 4, 1).eval()
    for block in (projecting, identity):
        nn.init.zeros_(
            block.body[-1].weight
        )  # silences the body; a new BatchNorm in eval mode divides by sqrt(1 + eps)
    expected = projecting.project(F.relu(images / (1 + 1e-5) ** 0.5))
    torch.testing.assert_close(projecting(images), expected)
    assert torch.equal(identity(images), images)


def test_option_a_keeps_every_second_pixel_and_appends_zeros():
    images = torch.arange(9.0).reshape(1, 1, 3, 3)
    expected = torch.tensor([[[0.0, 2.0], [6.0, 8.0]], [[0.0, 0.0], [0.0, 0.0]]])
    assert torch.equal(padded_shortcut(1, 2, 2)(images)[0], expected)


def test_the_pyramid_shortcut_averages_the_pixels_that_are_there_and_appends_zeros():
    images = torch.arange(9.0).reshape(1, 1, 3, 3)
    # Rows 0 1 2 / 3 4 5 / 6 7 8: the last window of a row or column holds two pixels, the corner one.
    expected = torch.tensor([[[2.0, 3.5], [6.5, 8.0]], [[0.0, 0.0], [0.0, 0.0]]])
    assert torch.equal(PyramidBlock(1, 2, 2).shortcut(images)[0], expected)


def test_attention_is_the_textbook_softmax_of_each_head():
    torch.manual_seed(0)
    attention, tokens = Attention(width=6, heads=2).double(), torch.randn(2, 5, 6, dtype=torch.float64)
    queries, keys, values = attention.queries_keys_values(tokens).chunk(3, dim=-1)
    read = torch.empty_like(tokens)
    for head in (slice(0, 3), slice(3, 6)):
        weights = (queries[..., head] @ keys[..., head].mT / 3**0.5).softmax(dim=-1)
        read[..., head] = weights @ values[..., head]
    torch.testing.assert_close(attention(tokens), attention.mix(read))


@pytest.mark.parametrize("name", MODELS)
def test_every_network_gives_one_score_per_class_at_its_native_size(name):
    size = MODELS[name].native_size
    with torch.device("meta"):
        model = build_model(name, classes=7, channels=2, size=size)
        assert model(torch.empty(5, 2, size, size)).shape == (5, 7)


@pytest.mark.parametrize(
    ("name", "smallest"),
    [("resnet8", 5), ("wrn10-1", 5), ("pyramidnet110", 5), ("resnet18", 9), ("resnet50", 33), ("cnn", 4), ("mlp", 1)],
)
def test_a_batch_of_one_trains_at_the_smallest_size_and_one_pixel_less_is_refused(name, smallest):
    # A batch of one is what the end of an epoch or a strict selection can leave; BatchNorm fails on it at 1x1.
    # Odd sizes also show that body and shortcut shrink alike.
    images = random_images(1, size=smallest)
    assert seeded(name, size=smallest).train()(images).isfinite().all()
    with pytest.raises(ValueError, match=rf"size must be .*at least {smallest}.* got {smallest - 1}"):
        build_model(name, classes=10, size=smallest - 1)


def test_images_that_patches_do_not_cover_are_refused_with_the_next_size_that_they_do():
    with pytest.raises(ValueError, match=r"multiple of the patch of 16 pixels, got 33; .* to 48"):
        build_model("vit-s16", classes=10, size=33)


@pytest.mark.parametrize(("what", "value"), [("classes", 1), ("channels", 0), ("size", -32), ("size", 32.0)])
def test_impossible_shapes_are_refused_with_the_value_and_the_range(what, value):
    with pytest.raises(ValueError, match=rf"{what} must be an integer of at least \d, got {value}"):
        build_model("mlp", **{"classes": 10, what: value})


@pytest.mark.parametrize("name", SMALL)
def test_gradients_reach_every_parameter(name):
    model = seeded(name)
    F.cross_entropy(model(random_images(3)), torch.tensor([0, 1, 2])).backward()
    assert [path for path, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("name", KINDS)
def test_other_samples_of_the_batch_do_not_change_a_score(name):
    # In eval mode: in train mode BatchNorm mixes the samples by design.
    model = seeded(name, size=40).eval()
    images = random_images(4, size=40)
    torch.testing.assert_close(model(images)[1:2], model(images[1:2]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["vit-tiny", "cnn", "mlp"])
def test_networks_without_batch_statistics_keep_samples_apart_while_training(name):
    model = seeded(name, size=8).train()
    images = random_images(4, size=8)
    torch.testing.assert_close(model(images)[1:2], model(images[1:2]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_no_network_draws_random_numbers_while_training(name):
    # Dropout would: the two passes of SAM would then see two different networks.
    model = seeded(name, size=40).train()
    before = torch.get_rng_state()
    model(random_images(1, size=40))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", SMALL)
def test_the_seed_decides_the_weights(name):
    first, again, other = (nn.utils.parameters_to_vector(seeded(name, seed).parameters()) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_convolutions_start_with_the_variance_of_he_et_al():
    # 256 outputs of 3x3: 2 / (9 * 256). Of 295k draws the sample variance has a standard error of 0.26 %.
    weight = seeded("resnet18").get_parameter("blocks.4.body.0.weight")
    assert weight.shape == (256, 128, 3, 3)
    assert weight.var().item() == pytest.approx(2 / (9 * 256), rel=0.01)


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "wrn10-1", "vit-tiny", "cnn"])
def test_channels_last_gives_the_same_scores(name):
    model, images = seeded(name, size=16).eval(), random_images(3, size=16)
    expected = model(images)
    model = model.to(memory_format=torch.channels_last)
    scores = model(images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "resnet50", "wrn10-1", "pyramidnet110", "cnn"])
def test_images_stay_channels_last_up_to_the_head(name):
    # A layer that fell back to the contiguous layout would silently lose what fastest_memory_format promises.
    model = seeded(name, size=40).to(memory_format=torch.channels_last)
    strays = []

    def note_layout(module, _, output):
        if output.dim() == 4 and min(output.shape[1:]) > 1:
            strays.extend([module] * (not output.is_contiguous(memory_format=torch.channels_last)))

    for module in model.modules():
        module.register_forward_hook(note_layout)
    model(random_images(2, size=40).contiguous(memory_format=torch.channels_last))
    assert strays == []


@pytest.mark.parametrize(
    ("name", "layout"),
    [("resnet8", torch.channels_last), ("cnn", torch.channels_last), ("mlp", torch.contiguous_format)],
)
def test_convolutional_networks_prefer_channels_last(name, layout):
    assert fastest_memory_format(seeded(name)) is layout


@pytest.mark.parametrize("name", ["resnet8", "wrn10-1", "vit-tiny", "cnn", "mlp"])
def test_torch_compile_takes_the_network_in_one_graph(name):
    model = seeded(name, size=8).eval()
    images = random_images(3, size=8)
    whole = torch.compile(model, backend="eager", fullgraph=True)  # the tracing only: code generation takes minutes
    torch.testing.assert_close(whole(images), model(images))


@pytest.mark.parametrize(
    ("wrong", "right"), [("resnet-18", "resnet18"), ("WRN28-10", "wrn28-10"), ("vit_tiny", "vit-tiny")]
)
def test_an_unknown_name_is_answered_with_the_nearest_and_with_all(wrong, right):
    with pytest.raises(ValueError) as error:
        build_model(wrong, classes=10)
    message = str(error.value)
    assert message.startswith(f"there is no model {wrong!r}; did you mean {right}")
    assert all(name in message for name in MODELS)


def test_a_name_like_no_other_gets_no_far_fetched_suggestion():
    with pytest.raises(ValueError, match=r"there is no model 'xyz'\. Choose one of resnet18, "):
        build_model("xyz", classes=10)


def test_without_timm_its_models_say_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)  # makes the import fail, installed or not
    with pytest.raises(ValueError, match=r"timm/convnext_tiny needs the timm package .*: pip install timm"):
        build_model("timm/convnext_tiny", classes=10)


def test_timm_is_told_the_classes_and_channels(monkeypatch):
    timm = SimpleNamespace(
        is_model=lambda name: name == "convnext_tiny",
        list_models=lambda: ["convnext_tiny"],
        create_model=lambda name, *, num_classes, in_chans: (name, num_classes, in_chans),
    )
    monkeypatch.setitem(sys.modules, "timm", timm)
    assert build_model("timm/convnext_tiny", classes=7, channels=1) == ("convnext_tiny", 7, 1)
    with pytest.raises(ValueError, match="no model 'convnext_tyni'; did you mean convnext_tiny"):
        build_model("timm/convnext_tyni", classes=7)
