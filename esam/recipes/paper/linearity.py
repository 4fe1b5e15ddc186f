"""Linearity of the loss along SWP's perturbation, beta .2 to .9, against SAM's; and the mean of SWP's perturbation.

zeta(eps, B) = |L(theta + eps) - L(theta) - eps^T g|. Paper: ResNet-18 on CIFAR-10. CPU scale: ResNet-8 on CIFAR-10.
"""

from __future__ import annotations

from pathlib import Path

from esam.report.sheets import Sheet
from esam.reproduce.item import Item, Needs, Values
from esam.reproduce.scale import Scale
from esam.reproduce.store import Found

from .common import mean_over, spread, told
from .inside import batches_seen, observed_needs

FORMS = {"divided": "eps divided by beta, as in Algorithm 1", "undivided": "eps not divided by beta"}


def needs(scale: Scale) -> Needs:
    """Return the observed run of the paper's task."""
    return observed_needs(scale, scale.observed[:1])


def analyse(found: Found) -> Values:
    """Return zeta for each beta, over all batches and looks, beside SAM's; and SWP's mean perturbation at each look."""
    row, look = found.needs.observed[0], found.scale.look
    seen = list(batches_seen(found, row, "linearity"))
    epochs = sorted({epoch for epoch, _ in seen})
    betas = [f"{beta:g}" for beta in look.betas]
    zeta = {form: {beta: spread([mean_over(one[form][beta]) for _, one in seen]) for beta in betas} for form in FORMS}
    expectation = [values["expectation"] for run in found.observations(row) for values in run.values()]
    return {
        "task": row.title,
        "betas": list(look.betas),
        "epochs": epochs,
        "sam": spread([one["sam"] for _, one in seen]),
        "zeta": zeta,
        "by epoch": {
            "SAM": [mean_over(one["sam"] for at, one in seen if at == epoch) for epoch in epochs],
            **{
                form: {
                    beta: [mean_over(mean_over(one[form][beta]) for at, one in seen if at == epoch) for epoch in epochs]
                    for beta in betas
                }
                for form in FORMS
            },
        },
        "expectation": expectation,
    }


def sheets(measured: Values) -> list[Sheet]:
    """Return zeta by beta, and the mean perturbation."""
    lines = [
        (f"{beta:g}", *(told(measured["zeta"][form][f"{beta:g}"], 5) for form in FORMS)) for beta in measured["betas"]
    ]
    lines.append(("SAM", *[told(measured["sam"], 5)] * len(FORMS)))
    title = f"zeta(eps, B), {measured['task']}, mean over {measured['sam']['n']} batches ± standard deviation"
    means = [
        (
            str(epoch),
            f"{one['cosine']:.4f}" if one["cosine"] is not None else "–",
            f"{one['norm']:.4f}",
            f"{one['distance']:.4f}",
            f"{one['expected distance']:.4f}",
            str(one["draws"]),
        )
        for epoch, one in zip(measured["epochs"], measured["expectation"], strict=False)
    ]
    head = ("Epoch", "Cosine to SAM's eps", "Norm of the mean / SAM's", "Distance / SAM's norm", "by chance", "draws")
    return [
        Sheet(title, ("beta", *FORMS.values()), tuple(lines)),
        Sheet("The mean of SWP's perturbation (beta .6) against SAM's", head, tuple(means)),
    ]


def draw(measured: Values, path: Path) -> list[Path]:
    """Draw zeta against beta in both forms, SAM's as a level line."""
    from esam.analysis.plot import Curve, curves

    betas = measured["betas"]
    drawn = {
        f"SWP, {FORMS[form]}": Curve(betas, [values[f"{beta:g}"]["mean"] for beta in betas])
        for form, values in measured["zeta"].items()
    }
    drawn["SAM"] = Curve(betas, [measured["sam"]["mean"]] * len(betas), dash="--")
    return curves(path, drawn, x_label="beta", y_label="zeta(eps, B): lower is more linear", title=measured["task"])


ITEM = Item(
    name="linearity",
    number="Figure of A.3",
    title="Linearity of the loss along SWP's perturbation",
    needs=needs,
    analyse=analyse,
    sheets=sheets,
    draw=draw,
    paper={
        "betas": [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
        "statement": "a smaller beta results in better linearity",
    },
    notes=(
        "Algorithm 1 divides SWP's perturbation by beta, which makes it longer for a smaller beta; the paper's text to "
        "this figure says that a smaller beta reduces it. Both forms are measured, on the same masks.",
    ),
)
