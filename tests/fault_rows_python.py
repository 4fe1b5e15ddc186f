"""Configuration files, missing packages, Python, and faults in the middle of the work."""

import torch
from fault_catalogue import Fault
from fault_makers import (
    X,
    Y,
    built,
    compared,
    during,
    fitted,
    full_disk,
    in_ascii,
    interrupted,
    lacking,
    per_sample,
    reader_gone,
    stepped,
)
from torch import nn

ROWS: dict[str, tuple[Fault, ...]] = {
    "Configuration files": (
        *(
            Fault(f"{command} T --out OUT --config {name}", says, code)
            for command, name, says, code in (
                ("train", "nowhere.toml", "esam train --print-config makes one", 1),
                ("train", "torn.toml", "is no TOML", 1),
                ("train", "bytes.toml", "is no TOML", 1),
                ("train", "key.toml", "Did you mean 'epochs'", 1),
                ("train", "inner.toml", "has a key 'settings' that is no option", 1),
                ("train", "other.toml", "Did you mean 'method'", 1),
                ("compare", "seed.toml", "Did you mean 'seeds'", 1),
            )
        ),
        Fault("train --config range.toml --out OUT", "--epochs must be 0 or more"),
        Fault("train --config type.toml --out OUT", "many", 2),
        Fault("train --config", "wants a file"),
    ),
    "Packages that are missing": (
        lacking(
            "plotly",
            "compare T --out OUT --methods base",
            "the report needs plotly; run: pip install torch-esam[train]",
        ),
        lacking("safetensors", "train T --out OUT", "run: pip install torch-esam[train]"),
        lacking("sklearn", "train --out OUT --size 9", "run: pip install torch-esam[train]"),
        lacking("datasets", "train T --out OUT --data rotten", "run: pip install torch-esam[train]"),
        lacking("tensorboard", "train T --out OUT --tensorboard", "run: pip install torch-esam[tensorboard]"),
        lacking("wandb", "train T --out OUT --track wandb", "run: pip install torch-esam[wandb]"),
        lacking("mlflow", "train T --out OUT --track mlflow", "run: pip install torch-esam[mlflow]"),
        lacking("matplotlib", "analyze run --line 3 --pictures OUT", "run: pip install torch-esam[analysis]"),
        lacking("curvlinops", "analyze run", "run: pip install torch-esam[analysis]"),
        lacking("matplotlib", "frontier --out OUT", "run: pip install torch-esam[analysis]"),
        lacking("onnx", "export run m.onnx", "run: pip install torch-esam[onnx]"),
    ),
    "Optimizers in Python": (
        Fault("`SAM(..., rho=-1)`", "rho must be", "ValueError", do=built("sam", rho=-1.0)),
        Fault("`ESAM(..., gamma=0)`", "gamma must be in (0, 1]", "ValueError", do=built("esam", gamma=0.0)),
        Fault("`ESAM(..., beta=0)`", "beta must be", "ValueError", do=built("esam", beta=0.0)),
        Fault("`SAM(..., m=0)`", "m must be", "ValueError", do=built("sam", m=0)),
        Fault("`LookSAM(..., k=0)`", "k must be", "ValueError", do=built("looksam", k=0)),
        Fault("`ESAM(..., ranking='best')`", "ranking must be", "ValueError", do=built("esam", ranking="best")),
        Fault(
            "`SAM` around LBFGS",
            "LBFGS",
            "ValueError",
            do=built("sam", lambda model: torch.optim.LBFGS(model.parameters())),
        ),
        Fault(
            "`ESAM` with a mean loss",
            "return one loss per sample",
            "ValueError",
            do=stepped(lambda model, keep: per_sample(model, keep).mean()),
        ),
        Fault("a closure that returns nothing", "closure", "ValueError", do=stepped(lambda model, keep: None)),
        Fault(
            "a loss without a graph",
            "graph",
            "ValueError",
            do=stepped(lambda model, keep: per_sample(model, keep).detach()),
        ),
        Fault(
            "a closure that ignores `keep`",
            "keep",
            "ValueError",
            do=stepped(lambda model, keep: per_sample(model, slice(None))),
        ),
        Fault("`step()` before `gradient()`", "gradient", "ValueError", do=stepped(None)),
    ),
    "Comparisons and loops in Python": (
        Fault("`esam.compare(..., batchsize=4)`", "Did you mean 'batch_size'", "ValueError", do=compared(batchsize=4)),
        Fault(
            "`esam.compare(..., methods=['esma'])`", "Did you mean 'esam'", "ValueError", do=compared(methods=["esma"])
        ),
        Fault(
            "`esam.compare(..., optimizer='adam')`",
            "optimizer must be one of sgd, adamw",
            "ValueError",
            do=compared(optimizer="adam"),
        ),
        Fault("`esam.compare(..., lr=nan)`", "lr must be a finite number", "ValueError", do=compared(lr=float("nan"))),
        Fault(
            "`esam.compare(model, ...)`", "write lambda: ...", "ValueError", do=compared(build_model=nn.Linear(2, 2))
        ),
        Fault(
            "`esam.compare(lambda: 3, ...)`",
            "must return a torch.nn.Module",
            "ValueError",
            do=compared(build_model=lambda: 3),
        ),
        Fault(
            "`esam.compare(..., optimizer=lambda p: 3)`",
            "must return a torch optimizer",
            "ValueError",
            do=compared(optimizer=lambda p: 3),
        ),
        Fault("`esam.compare` with fewer targets", "give one for each", "ValueError", do=compared(train=(X, Y[:3]))),
        Fault(
            "`esam.compare(..., settings={'sam': {'rhoo': 1}})`",
            "Did you mean 'rho'",
            "ValueError",
            do=compared(methods=["sam"], settings={"sam": {"rhoo": 1}}),
        ),
        Fault(
            "`esam.compare(..., metric=)` with one number",
            "one number per sample",
            "ValueError",
            do=compared(metric=lambda o, t: o.mean()),
            leaves=True,
        ),
        Fault("`fit(..., epochs=-1)`", "epochs must be >= 0", "ValueError", do=fitted(epochs=-1)),
        Fault("`fit(..., evaluate_every=0)`", "1 epoch or more", "ValueError", do=fitted(evaluate_every=0)),
        Fault("`fit(..., precision='half')`", "precision must be one of", "ValueError", do=fitted(precision="half")),
        Fault("`fit(..., budget=nan)`", "budget None or > 0 seconds", "ValueError", do=fitted(budget=float("nan"))),
        Fault(
            "`fit` with ReduceLROnPlateau",
            "in on_epoch",
            "ValueError",
            do=fitted(schedule=torch.optim.lr_scheduler.ReduceLROnPlateau),
        ),
        Fault(
            "`fit` with an iterator that is used up",
            "starts anew each epoch",
            "ValueError",
            do=fitted(train=iter([(X, Y)]), epochs=2),
        ),
    ),
    "While it runs": (
        Fault(
            "the loss ceases to be finite",
            "diverged: the loss was not finite in epoch 1; lower --lr",
            typed="train T --method base --epochs 2 --lr 1e30 --out OUT",
            leaves=True,
        ),
        Fault(
            "the disk is full",
            "the disk is full; the old file is kept. Free some space and resume",
            do=during("train T --out OUT", "esam.files.os.fsync", full_disk),
            leaves=True,
        ),
        Fault(
            "Ctrl-C",
            "interrupted; the same command resumes",
            130,
            do=during("train T --out OUT", "esam.cli.progress.Lines.epoch", interrupted),
            leaves=True,
        ),
        Fault(
            "the reader of a pipe has gone, as with `head`",
            "",
            141,
            do=during("methods", "builtins.print", reader_gone),
            never="Broken pipe",
        ),
        Fault(
            "a channel that knows ASCII alone",
            "out/page +/- 1.html",
            0,
            do=in_ascii,
            leaves=True,
        ),
    ),
}
