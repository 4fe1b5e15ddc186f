"""Are the pictures written whole, labelled, in the methods' own colours, and the same for the same numbers?"""

import re
import subprocess
import sys

import pytest
import torch

from esam.analysis import Landscape, even_axis, picture
from esam.analysis.plot import contours
from esam.optim import METHODS

AXIS = tuple(even_axis(1.0, 5))
MAGIC = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}


def bowl(curvature=1.0, groups=2):
    x = torch.tensor(AXIS, dtype=torch.float64)
    loss = 0.1 + curvature * (x[:, None] ** 2 + 2 * x[None, :] ** 2)
    return Landscape((AXIS, AXIS), torch.stack([loss * (1 + i) for i in range(groups)]))


def drawn(path):
    return contours(path, {"SAM": bowl(), "ESAM": bowl(0.5)})


def test_a_picture_has_its_labels_and_the_methods_colours_and_is_the_same_when_drawn_again(tmp_path, monkeypatch):
    monkeypatch.setitem(picture.STYLE, "svg.fonttype", "none")  # letters as letters, so that they can be read back
    text, again = (drawn(tmp_path / name / "picture.svg")[0].read_text() for name in ("a", "b"))
    assert text == again
    words = set(re.findall(r">([^<>]+)</text>", text))
    assert {"SAM", "ESAM", "first direction", "second direction", "loss (logarithmic)"} <= words
    assert METHODS["sam"].colour in text and METHODS["esam"].colour in text


@pytest.mark.parametrize("ending", MAGIC)
def test_the_ending_decides_the_format_and_nothing_else_is_left_or_changed(ending, tmp_path):
    import matplotlib

    folder, before = tmp_path / "not" / "there", dict(matplotlib.rcParams)
    (path,) = drawn(folder / f"picture.{ending}")
    assert path.read_bytes().startswith(MAGIC[ending]) and list(folder.iterdir()) == [path]
    assert dict(matplotlib.rcParams) == before


def test_without_an_ending_there_are_two_files_and_another_kind_is_refused(tmp_path):
    assert [path.name for path in drawn(tmp_path / "beta-0.5")] == ["beta-0.5.svg", "beta-0.5.png"]
    with pytest.raises(ValueError, match=r"ends in \.svg, \.pdf, \.png, got 'picture.gif'"):
        drawn(tmp_path / "picture.gif")


def test_panels_share_their_levels_and_a_logarithmic_scale_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(picture.STYLE, "svg.fonttype", "none")
    (path,) = contours(tmp_path / "c.svg", {"SAM": bowl(1, 1), "ESAM": bowl(0.01, 1)})
    # the flatter one lies within the lowest part of the steeper one's scale: 0.1 to 3.1 for both
    ticks = re.findall(r">([\d.]+)</text>", path.read_text())
    assert "3.1" in ticks and "0.13" not in ticks and "loss (logarithmic)" in path.read_text()
    assert "logarithmic" not in contours(tmp_path / "flat.svg", {"SAM": bowl(0.1)})[0].read_text()


def test_losses_that_are_not_finite_are_left_blank_a_flat_plane_is_drawn_and_nothing_at_all_is_refused(tmp_path):
    losses = bowl().losses.clone()
    losses[:, 0, 0] = float("inf")
    contours(tmp_path / "some.png", {"SAM": Landscape((AXIS, AXIS), losses)})
    contours(tmp_path / "flat.png", {"SAM": Landscape((AXIS, AXIS), torch.ones_like(losses))})
    with pytest.raises(ValueError, match="no loss is finite; choose a smaller reach"):
        contours(tmp_path / "n.png", {"SAM": Landscape((AXIS, AXIS), torch.full_like(losses, float("nan")))})
    with pytest.raises(ValueError, match="'SAM' is a line"):
        contours(tmp_path / "c.png", {"SAM": Landscape((AXIS,), torch.ones(1, len(AXIS)))})


@pytest.mark.slow
def test_matplotlib_and_scipy_are_imported_only_when_they_are_used(tmp_path, monkeypatch):
    program = (
        "import sys, esam.analysis, esam.analysis.plot, esam.train.loaded_run;"
        "sys.exit(any(name in sys.modules for name in ('matplotlib', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pictures need matplotlib.*pip install torch-esam\[analysis\]"):
        drawn(tmp_path / "c.png")
