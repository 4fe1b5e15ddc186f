"""Augmentations against results worked out by hand, and draws against the distributions they promise."""

import pytest
import torch
import torch.nn.functional as F

from esam.train import augment
from esam.train.augment import AUGMENTATIONS
from esam.train.distributed import Ranks


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(count=16, channels=3, height=32, width=32):
    return torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator(1))


def augmented(name, images, seed=0):
    return AUGMENTATIONS[name](images, generator(seed), Ranks().rows(len(images)))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (4, 9, 17)])
def test_each_picture_of_a_batch_is_moved_over_black_by_its_own_shift_in_either_memory_layout(memory_format, shape):
    images = pictures(5, *shape).contiguous(memory_format=memory_format)
    top, left = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([4, 0, 2, 1, 3])
    padded = F.pad(images, (2, 2, 2, 2))
    _, height, width = shape
    one_by_one = [picture[:, y : y + height, x : x + width] for picture, y, x in zip(padded, top, left, strict=True)]
    assert torch.equal(augment.shifted(images, top, left, pad=2), torch.stack(one_by_one))


def test_only_the_marked_pictures_are_mirrored():
    images = pictures(4)
    mirrored = augment.flipped(images, torch.tensor([True, False, False, True]))
    assert torch.equal(mirrored, torch.stack([images[0].flip(2), images[1], images[2], images[3].flip(2)]))


@pytest.mark.parametrize(("flip", "ramp"), [(False, [0, 0.25, 0.75, 1.25]), (True, [1.25, 0.75, 0.25, 0])])
def test_a_quarter_of_a_ramp_is_enlarged_as_bilinear_interpolation_says(flip, ramp):
    # Output pixel j looks at (j + 1/2) / 2 - 1/2 = -1/4, 1/4, 3/4, 5/4; left of the border the border counts.
    images = torch.arange(4, dtype=torch.uint8).expand(1, 1, 4, 4)
    box = torch.tensor([[0.0, 0.0, 2.0, 2.0]])
    enlarged = augment.resized_crops(images, box, torch.tensor([flip]))
    torch.testing.assert_close(enlarged, torch.tensor(ramp).expand(1, 1, 4, 4), atol=1e-5, rtol=0)


def test_a_box_further_down_and_right_is_found_there():
    images = pictures(1)
    box = torch.tensor([[10.0, 20.0, 8.0, 4.0]])
    enlarged = augment.resized_crops(images, box, torch.tensor([False]))
    by_torch = F.interpolate(images[:, :, 10:18, 20:24].float(), (32, 32), mode="bilinear")
    inside = (slice(None), slice(None), slice(2, 30), slice(4, 28))  # at the box's rim the crop sees its surroundings
    torch.testing.assert_close(enlarged[inside], by_torch[inside], atol=1e-2, rtol=0)


def test_shifts_reach_every_offset_equally_often_and_half_of_the_pictures_are_mirrored():
    top, left = augment.draw_shifts(90_000, 4, generator())
    for offsets in (top, left):
        counts = offsets.bincount()
        assert len(counts) == 9
        assert (counts - 10_000).abs().max() < 5 * 94  # five deviations of Binomial(90000, 1/9)
    assert abs(torch.corrcoef(torch.stack([top, left]).double())[0, 1]) < 0.02
    assert abs(augment.draw_flips(100_000, generator()).double().mean() - 0.5) < 0.008


def test_boxes_of_a_square_picture_keep_to_the_areas_and_aspects_of_inception():
    top, left, height, width = augment.draw_boxes(50_000, 32, 32, generator()).double().T
    area, aspect = height * width / 1024, width / height
    assert area.min() >= 0.08 - 1e-6
    assert area.max() <= 1
    assert aspect.min() >= 3 / 4 - 1e-6
    assert aspect.max() <= 4 / 3 + 1e-6
    assert min(top.min(), left.min()) >= 0
    assert max((top + height).max(), (left + width).max()) <= 32 + 1e-4
    small = area[area < 0.5]  # a box of under half the area fits whatever its aspect, so these are uniform
    assert abs(small.mean() - (0.08 + 0.5) / 2) < 0.005
    assert abs(aspect[area < 0.5].log().mean()) < 0.005


def test_boxes_of_a_ribbon_that_nothing_fits_are_its_centre_at_the_widest_aspect():
    boxes = augment.draw_boxes(1_000, 2, 1_000, generator())
    central = torch.tensor([0, (1_000 - 8 / 3) / 2, 2, 8 / 3])
    torch.testing.assert_close(boxes, central.expand(1_000, 4))


@pytest.mark.parametrize("name", ["shift", "basic"])
def test_every_crop_is_drawn_and_with_basic_its_mirror_image(name):
    picture = pictures(1, 1, 8, 8)
    seen = augmented(name, picture.expand(2_000, 1, 8, 8))
    possible = picture if name == "shift" else torch.cat([picture, picture.flip(3)])
    padded = F.pad(possible, (1, 1, 1, 1))[:, 0]  # an eighth of the side
    crops = {tuple(p[y : y + 8, x : x + 8].reshape(-1).tolist()) for p in padded for y in range(3) for x in range(3)}
    assert len(crops) == 9 * len(possible)
    assert {tuple(one.reshape(-1).int().tolist()) for one in seen} == crops


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (3, 20, 28)])
def test_an_augmentation_follows_its_generator_and_nothing_else(name, shape):
    images = pictures(16, *shape)
    before, state = images.clone(), torch.get_rng_state()
    first = augmented(name, images, 3)
    again = augmented(name, images.contiguous(memory_format=torch.channels_last), 3)
    assert torch.equal(first, again)
    assert first.shape == images.shape
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)
    other = augmented(name, images, 4)
    assert torch.equal(first, other) == (name == "none")
