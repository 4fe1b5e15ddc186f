"""Does what is released work where users have it? The wheel, in clean environments, with each extra by itself.

    python tools/try_release.py [--pythons python3.10 python3.12] [--torch 2.4.0] [--extras train analysis]

Builds sdist and wheel, the wheel from the sdist; for each Python and torch makes an environment with torch alone, and
for each extra one of its own that sees that torch, installs the wheel into it and runs a small job that needs it.
Results go, case by case, to results/release.json: a later call adds to them. It downloads, and takes minutes a case.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from esam.files import write_atomically  # noqa: E402

OPTIMIZERS = """
import esam, torch
import torch.nn.functional as F
torch.set_num_threads(1)
for name, row in esam.METHODS.items():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    x, y = torch.randn(64, 6), torch.randint(0, 3, (64,))
    optimizer = row(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
    for _ in range(3):
        loss = optimizer.step(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), x, y)
    optimizer.load_state_dict(optimizer.state_dict())
    assert torch.isfinite(loss), name
"""
ANALYSIS = """
import torch
from esam.analysis import ModelObjective, even_axis, landscape, random_plane, sharpness, top_eigenvalues
from esam.analysis.plot import contours
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
objective = ModelObjective(model, [(torch.randn(32, 5), torch.randint(0, 2, (32,)))])
theta = objective.parameters
assert sharpness(objective, theta, rho=0.05) > 0 and len(top_eigenvalues(objective, theta, k=2)) == 2
found = landscape([(objective, random_plane(theta, seed=0))], theta, [even_axis(1.0, 3)] * 2)
assert contours("plane.png", {"SGD": found})[0].exists()
"""
LIGHTNING = """
import torch, torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from esam import SAM
from esam.integrations.lightning import SharpnessAware
class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 3)
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return SAM(torch.optim.SGD(self.parameters(), lr=0.1), self)
data = torch.utils.data.TensorDataset(torch.randn(16, 8), torch.randint(0, 3, (16,)))
net = Net()
before = net.net.weight.clone()
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = Trainer(max_epochs=1, callbacks=[SharpnessAware()], accelerator="cpu", **quiet)
trainer.fit(net, torch.utils.data.DataLoader(data, batch_size=8))
assert trainer.global_step == 2 and not torch.equal(before, net.net.weight)
"""
HUGGINGFACE = """
import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
from esam.integrations.huggingface import SharpnessAwareTrainer
import esam.integrations.accelerate
size = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
model = BertForSequenceClassification(BertConfig(vocab_size=20, num_labels=2, **size))
data = [{"input_ids": torch.randint(0, 20, (4,)), "labels": torch.tensor(i % 2)} for i in range(8)]
arguments = TrainingArguments("out", max_steps=2, per_device_train_batch_size=4, report_to=[], save_strategy="no",
                              use_cpu=True, disable_tqdm=True)
assert SharpnessAwareTrainer(model, arguments, train_dataset=data, method="sam").train().global_step == 2
"""
COMPARE = "esam compare demo --methods base sam --seeds 0 --epochs 1 --train-size 200 --out runs"
SWEEP = (
    "esam sweep --data digits --model mlp --epochs 1 --train-size 200 --search lr=0.05,0.1 --sampler grid --out runs"
)
BENCH = "esam bench --model mlp --batch-size 8 --size 8 --rounds 1 --methods base sam"
BASES = """
import torch, esam

model = torch.nn.Linear(4, 2)
optimizer = esam.create_optimizer("sam", model, base="lion", lr=1e-3)
optimizer.step(lambda x, y: torch.nn.functional.cross_entropy(model(x), y), torch.randn(8, 4), torch.arange(8) % 2)
"""
JOBS: dict[str, list[str]] = {
    "": ["python optimizers.py"],
    "train": [COMPARE, "esam report runs", "esam methods", BENCH],
    "train,cluster": [f"{COMPARE} --cluster ray"],
    "train,sweep": [SWEEP],
    "analysis": ["python analysis.py"],
    "lightning": ["python trainer_lightning.py"],
    "huggingface": ["python trainer_huggingface.py"],
    "bases": ["python bases.py"],
    "docs": ["python -m mkdocs --version"],
}
"""By extra: what must run. An extra that works on a trained run is tried with the trainer."""
SCRIPTS = {
    "optimizers.py": OPTIMIZERS,
    "analysis.py": ANALYSIS,
    "bases.py": BASES,
    "trainer_lightning.py": LIGHTNING,
    "trainer_huggingface.py": HUGGINGFACE,
}


def run(*command: str | Path, **settings: object) -> str:
    """Run a command; its output in the error if it fails."""
    found = subprocess.run([str(part) for part in command], capture_output=True, text=True, **settings)  # type: ignore[call-overload]
    if found.returncode:
        raise RuntimeError((found.stderr or found.stdout).strip()[-600:])
    return str(found.stdout)


def built(folder: Path) -> Path:
    """Return the wheel, built from the sdist as an installer without a wheel would."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as sdist:
        sdist.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=source)
    return next(folder.glob("*.whl"))


def environment_with_torch(python: str, torch: str | None, folder: Path) -> Path:
    """Return the folder of packages of an environment that has torch, of this version or the newest, and no more."""
    if not (folder / "ready").exists():
        run(python, "-m", "venv", folder)
        run(folder / "bin" / "pip", "install", "--quiet", "torch" if torch is None else f"torch=={torch}")
        (folder / "ready").touch()
    return next((folder / "lib").glob("python*")) / "site-packages"


def tried(python: str, packages: Path, wheel: Path, extra: str) -> dict[str, object]:
    """Install the wheel with an extra beside torch, run what needs it, and return what came of it."""
    began, result = time.monotonic(), "works"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run(python, "-m", "venv", folder / "env")
        site_packages = next((folder / "env" / "lib").glob("python*")) / "site-packages"
        (site_packages / "torch.pth").write_text(f"{packages}\n")
        for name, code in SCRIPTS.items():
            (folder / name).write_text(code)
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        env |= {"PATH": f"{folder / 'env' / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        env |= {"HF_HUB_OFFLINE": "1", "ESAM_CACHE": str(folder / "cache")}
        versions = "import sys, torch; print(sys.version.split()[0], torch.__version__.split('+')[0])"
        python_version, torch_version = run("python", "-c", versions, env=env, cwd=folder).split()
        try:  # torch by its version, so that no part of an extra brings another
            wanted = f"{wheel}[{extra}]" if extra else str(wheel)
            run("pip", "install", "--quiet", wanted, f"torch=={torch_version}", env=env, cwd=folder)
            for job in JOBS[extra]:
                run("sh", "-c", job, env=env, cwd=folder)
        except RuntimeError as error:
            result = str(error).replace(scratch, "").replace(str(packages), "")
    case = {"python": python_version, "torch": torch_version, "extra": extra or "none", "result": result}
    return {**case, "minutes": round((time.monotonic() - began) / 60, 1)}


def main(pythons: list[str], torch: str | None, extras: list[str], environments: Path, out: Path) -> int:
    """Try every case, note each at once, and tell how many failed."""
    cases = json.loads(out.read_text())["cases"] if out.exists() else []
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        wheel = built(Path(place))
        for python in pythons:
            packages = environment_with_torch(python, torch, environments / f"{Path(python).name}-{torch or 'newest'}")
            for extra in extras:
                case = tried(python, packages, wheel, extra)
                failed += case["result"] != "works"
                same = ("python", "torch", "extra")
                cases = [old for old in cases if any(old[key] != case[key] for key in same)] + [case]
                cases.sort(key=lambda one: [str(one[key]) for key in same])
                write_atomically(out, (json.dumps({"wheel": wheel.name, "cases": cases}, indent=1) + "\n").encode())
                print(case, flush=True)
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pythons", nargs="+", default=[sys.executable])
    parser.add_argument("--torch", help="a version; the newest that pip finds, if not given")
    parser.add_argument("--extras", nargs="*", default=list(JOBS), help='"" is the optimizers alone')
    parser.add_argument("--environments", type=Path, default=Path(tempfile.gettempdir()) / "esam-release")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "release.json")
    given = parser.parse_args()
    sys.exit(main(given.pythons, given.torch, given.extras, given.environments.resolve(), given.out))
