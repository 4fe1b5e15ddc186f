"""Are the pictures written whole, labelled, in the methods' own colours, and the same for the same numbers?"""

import re
import subprocess
import sys

import pytest
import torch

from esam.analysis import Landscape, even_axis, picture
from esam.analysis.plot import Bar, Curve, Dot, bars, contours, curve_panels, curves, dots, lines, surfaces
from esam.optim import METHODS

AXIS = tuple(even_axis(1.0, 5))
MAGIC = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}


def bowl(curvature=1.0, groups=2):
    x = torch.tensor(AXIS, dtype=torch.float64)
    loss = 0.1 + curvature * (x[:, None] ** 2 + 2 * x[None, :] ** 2)
    return Landscape((AXIS, AXIS), torch.stack([loss * (1 + i) for i in range(groups)]))


def valley(curvature=1.0):
    return Landscape((AXIS,), curvature * torch.tensor(AXIS, dtype=torch.float64).square()[None])


LABELS = {"x_label": "speed", "y_label": "accuracy"}
KINDS = {
    "curve_panels": lambda p: curve_panels(
        p,
        {
            "accuracy": {"SAM": Curve([1, 2], [1, 2], [0.1, 0.2])},
            "loss": {"SAM": Curve([1, 2], [2, 3]), "ESAM": Curve([1], [2])},
        },
        x_label="speed",
        log=("x", "y2"),
    ),
    "curves": lambda p: curves(p, {"SAM": Curve([0, 1], [1, 2], [0.1, 0.2]), "ESAM": Curve([0, 1], [2, 3])}, **LABELS),
    "lines": lambda p: lines(p, {"SAM": valley(), "ESAM": valley(2)}),
    "contours": lambda p: contours(p, {"SAM": bowl(), "ESAM": bowl(0.5)}),
    "surfaces": lambda p: surfaces(p, {"SAM": bowl(), "ESAM": bowl(0.5)}),
    "bars": lambda p: bars(
        p, {"speed": {"SAM": Bar(1), "ESAM": Bar(2)}, "accuracy": {"SAM": Bar(1, 0.1), "ESAM": Bar(2)}}
    ),
    "dots": lambda p: dots(p, {"SWP": [Dot(1, 2, "0.5"), Dot(2, 1)]}, {"SAM": Dot(1, 1), "ESAM": Dot(2, 2)}, **LABELS),
}


@pytest.fixture(autouse=True)
def words_in_svg(monkeypatch):
    """Letters as letters, not as outlines, so that they can be read back."""
    monkeypatch.setitem(picture.STYLE, "svg.fonttype", "none")


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_has_its_labels_and_the_methods_colours_and_is_the_same_when_drawn_again(kind, tmp_path):
    text, again = (KINDS[kind](tmp_path / name / "picture.svg")[0].read_text() for name in ("a", "b"))
    assert text == again
    labels = {
        "contours": {"first direction", "second direction", "loss (logarithmic)"},
        "surfaces": {"first direction", "second direction", "loss"},
        "lines": {"distance along the direction", "loss"},
    }
    words = set(re.findall(r">([^<>]+)</text>", text))
    assert {"SAM", "ESAM", *labels.get(kind, {"speed", "accuracy"})} <= words
    assert METHODS["sam"].colour in text and METHODS["esam"].colour in text


@pytest.mark.parametrize("ending", MAGIC)
def test_the_ending_decides_the_format_and_nothing_else_is_left(ending, tmp_path):
    folder = tmp_path / "not" / "there"
    (path,) = KINDS["dots"](folder / f"picture.{ending}")
    assert path.read_bytes().startswith(MAGIC[ending])
    assert list(folder.iterdir()) == [path]


def test_without_an_ending_there_is_a_vector_and_a_pixel_picture(tmp_path):
    found = KINDS["curves"](tmp_path / "beta-0.5")
    assert [path.name for path in found] == ["beta-0.5.svg", "beta-0.5.png"]


def test_a_picture_of_an_unknown_kind_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"ends in \.svg, \.pdf, \.png, got 'picture.gif'"):
        KINDS["curves"](tmp_path / "picture.gif")


def test_panels_of_a_contour_share_their_levels(tmp_path):
    (path,) = contours(tmp_path / "c.svg", {"SAM": bowl(1, 1), "ESAM": bowl(0.01, 1)})
    # the flatter one lies within the lowest part of the steeper one's scale: 0.1 to 3.1 for both
    ticks = re.findall(r">([\d.]+)</text>", path.read_text())
    assert "3.1" in ticks and "0.13" not in ticks


def test_steep_losses_are_drawn_on_a_logarithmic_scale_that_says_so(tmp_path):
    steep, flat = (contours(tmp_path / f"{c}.svg", {"SAM": bowl(c)})[0].read_text() for c in (100.0, 0.1))
    assert "loss (logarithmic)" in steep and "logarithmic" not in flat


def test_losses_that_are_not_finite_are_left_blank_and_none_at_all_is_refused(tmp_path):
    losses = bowl().losses.clone()
    losses[:, 0, 0] = float("inf")
    contours(tmp_path / "c.png", {"SAM": Landscape((AXIS, AXIS), losses)})
    surfaces(tmp_path / "s.png", {"SAM": Landscape((AXIS, AXIS), losses)})
    with pytest.raises(ValueError, match="no loss is finite; choose a smaller reach"):
        contours(tmp_path / "n.png", {"SAM": Landscape((AXIS, AXIS), torch.full_like(losses, float("nan")))})


def test_a_flat_landscape_can_be_drawn(tmp_path):
    flat = Landscape((AXIS, AXIS), torch.ones(1, 5, 5, dtype=torch.float64))
    contours(tmp_path / "c.png", {"SAM": flat})
    surfaces(tmp_path / "s.png", {"SAM": flat})


def test_a_line_is_no_plane(tmp_path):
    with pytest.raises(ValueError, match="'SAM' is a line: draw it with lines"):
        contours(tmp_path / "c.png", {"SAM": valley()})
    with pytest.raises(ValueError, match="'SAM' is a plane: draw it with contours or surfaces"):
        lines(tmp_path / "c.png", {"SAM": bowl()})


def test_bars_that_lie_close_together_say_that_their_axis_is_cut(tmp_path):
    (path,) = bars(
        tmp_path / "b.svg", {"near": {"SAM": Bar(96), "ESAM": Bar(97)}, "far": {"SAM": Bar(1), "ESAM": Bar(2)}}
    )
    text = path.read_text()
    assert "near (axis cut)" in text and "far (axis cut)" not in text


def test_a_colour_can_be_given(tmp_path):
    (path,) = curves(tmp_path / "c.svg", {"mine": Curve([0, 1], [0, 1])}, **LABELS, colours={"mine": "#123456"})
    assert "#123456" in path.read_text()


def test_drawing_leaves_matplotlibs_settings_alone(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    KINDS["curves"](tmp_path / "c.png")
    assert dict(matplotlib.rcParams) == before


def test_matplotlib_and_curvlinops_are_imported_only_when_they_are_used():
    program = (
        "import sys, esam.analysis, esam.analysis.plot, esam.train.trained;"
        "sys.exit(any(name in sys.modules for name in ('matplotlib', 'curvlinops', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_without_matplotlib_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pictures need matplotlib.*pip install torch-esam\[analysis\]"):
        KINDS["curves"](tmp_path / "c.png")
