"""Draws ``docs/sharpness.svg``, what SAM minimises: ``python docs/picture.py``."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

SHARP, FLAT, SHIFT, RHO = -1.2, 0.8, 0.15, 0.3


def loss_of(w: np.ndarray) -> np.ndarray:
    """Return a loss with a broad minimum and, beside it, a lower one that is narrow."""
    return 0.3 + 0.13 * (w - FLAT) ** 2 - 0.7 * np.exp(-((w - SHARP) ** 2) / (2 * 0.11**2))


def main() -> None:
    """Draw the loss, its highest value within rho, the loss on new data, and where each minimum lies."""
    w = np.linspace(-2.3, 2.6, 400)
    worst = np.max([loss_of(w + eps) for eps in np.linspace(-RHO, RHO, 201)], axis=0)
    plt.rcParams.update({"font.size": 11, "svg.fonttype": "path", "svg.hashsalt": "esam"})
    figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
    axes.plot(w, loss_of(w), color="#222222", lw=2, label="loss on the training data: SGD minimises this")
    axes.plot(w, worst, color="#c2410c", lw=2, label="its highest value within ρ: SAM minimises this")
    axes.plot(w, loss_of(w - SHIFT), color="#999999", lw=1.5, ls="--", label="loss on new data: slightly different")
    for name, curve, colour in (("SGD", loss_of(w), "#222222"), ("SAM", worst, "#c2410c")):
        end = w[curve.argmin()]
        here, new = loss_of(end), loss_of(end - SHIFT)
        axes.plot([end], [here], "o", ms=8, color=colour)
        if name == "SGD":  # at the other minimum it would be shorter than its head
            axes.annotate("", (end, new), (end, here), arrowprops={"arrowstyle": "->", "color": colour, "lw": 2})
        words = f"{name}: {here:.2f}, on new data {new:.2f}"
        axes.text(end, here - 0.22, words, color=colour, ha="center", weight="bold")
    axes.set(xlabel="a weight", ylabel="loss", ylim=(-0.2, 1.6), xticks=[], yticks=[0, 0.5, 1])
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
    figure.savefig(Path(__file__).parent / "sharpness.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
