"""What a user installs: is everything in the wheel, does it work from there, and does it say what is missing?"""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SMOKE = """
import sys
import esam, torch
model = torch.nn.Linear(3, 1)
x = torch.randn(8, 3)
before = model.weight.clone()
for optimizer in (
    esam.ESAM(torch.optim.SGD(model.parameters(), lr=0.1), model),
    esam.create_optimizer("sam", model, base="adamw", lr=0.1),
):
    assert torch.isfinite(optimizer.step(lambda x: model(x).squeeze(1).square(), x))
assert not torch.equal(before, model.weight)
print(esam.__version__, esam.__file__)
for name in ("transformers", "accelerate", "lightning", "lightning.pytorch"):
    sys.modules[name] = None
import esam.integrations.accelerate
print("imported")
for name in ("lightning", "huggingface"):
    try:
        __import__(f"esam.integrations.{name}")
    except ImportError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build sdist and wheel as an installer would, from what git would give."""
    folder = tmp_path_factory.mktemp("dist")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """Unpack the wheel, which is all that installing a pure one does, far from the source tree."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(built[1]) as wheel:
        wheel.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def smoke(installed):
    """Return what a small training prints, from that folder."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SMOKE]
    found = subprocess.run(command, cwd=installed.parent, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built[1]) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "esam"]
    tracked = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert inside == set(tracked.split())
    assert {"esam/py.typed", "esam/report/page.html", "esam/integrations/lightning.py"} <= inside


def test_the_sdist_has_source_tests_and_licence_and_is_small(built):
    with tarfile.open(built[0]) as sdist:
        inside = {member.name.split("/", 1)[1] for member in sdist.getmembers()}
    assert {"LICENSE", "README.md", "pyproject.toml", "tests/conftest.py", "esam/optim/step.py"} <= inside
    assert built[0].stat().st_size < 3_000_000


@pytest.mark.slow
def test_the_wheel_trains_from_a_folder_of_its_own(installed, smoke):
    version, place = smoke[0].split()
    assert place.startswith(str(installed))
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text()


@pytest.fixture(scope="module")
def metadata(installed):
    (path,) = installed.glob("*.dist-info/METADATA")
    return path.read_text()


def test_the_wheel_names_its_licence_and_its_command(installed, metadata):
    assert "## Use it" in metadata and not re.search(r"\]\((?!https://)", metadata)  # links that an index can follow
    assert "License-Expression: Apache-2.0" in metadata
    (entries,) = installed.glob("*.dist-info/entry_points.txt")
    assert "esam = esam.cli:main" in entries.read_text()


def test_without_the_trainers_backward_imports_and_the_others_say_what_to_install(smoke):
    assert smoke[1:] == [
        "imported",
        "esam.integrations.lightning needs lightning: pip install torch-esam[lightning]",
        "esam.integrations.huggingface needs transformers: pip install torch-esam[huggingface]",
    ]


def test_every_extra_has_a_job_that_needs_it(metadata, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    from try_release import JOBS

    extras = set(re.findall(r"^Provides-Extra: (.*)$", metadata, re.MULTILINE))
    assert extras - {"test"} == {part for key in JOBS for part in key.split(",") if part}


def test_the_oldest_torch_and_python_that_are_promised_were_tried():
    project = (ROOT / "pyproject.toml").read_text()
    torch, python = (
        re.search(rf'{name}.*>=([\d.]+)"', project)[1] for name in ("dependencies = .*torch", "requires-python")
    )
    cases = json.loads((ROOT / "results" / "release.json").read_text())["cases"]
    assert any(
        case["torch"].startswith(f"{torch}.") and case["python"].startswith(f"{python}.") and case["result"] == "works"
        for case in cases
    )


def test_continuous_integration_runs_what_anyone_runs():
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    assert "run: make test\n" in text
    for version in re.findall(r'"(3\.\d+)"', text):
        assert f"Programming Language :: Python :: {version}" in (ROOT / "pyproject.toml").read_text()
