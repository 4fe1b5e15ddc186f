"""How is a claim judged by what was measured? By these rules, not by opinion.

A claim *holds*, is *contradicted*, is *inconclusive* (measured, but it cannot be told: with the reason), or was *not
run*. A claim about several tasks is contradicted when one task contradicts it, holds when all agree, and else is
inconclusive. Two means are told apart when they differ by more than two standard errors of their difference; one seed
has no standard error, and is inconclusive.

Accuracy: both methods must fit their training images, that is reach a training accuracy of 95 % or more, with training
losses that differ by .05 or less: what has not learnt its images yet says nothing of generalisation. Tasks outside this
guard are named with both training accuracies and left out. Over the tasks inside it, the mean difference of the test
accuracies must be above zero. The best value of a parameter must lie in the paper's interval, on every task; the
smallest that keeps SAM's accuracy must not be below it there, and the next smaller one must be.

Flatness: the same guard, since one that has not fitted its images is flat for that alone; the figure of the method's
minimum must be below that of SGD's.

Speed and cost: steps timed in turn in one run; the whole interval of the ratio is on the right side of the paper's
figure, or on the wrong one. The device is named. The paper's figures are a GPU's: a CPU can agree with them, but not
contradict them, and is then inconclusive. The same goes for the form of g(N, beta), which must explain .95 or more of
the variance in both cases, with a second term above zero; where it explains less it is contradicted if the measurements
are further off than twice their errors.

Inside a batch: what is claimed of every batch or epoch must hold in at least 95 % of them, an epoch counting by the
means over its batches. Cosines are compared within a batch, and the mean difference must be above zero. SWP's mean
perturbation may be half as far again from SAM's as chance explains. zeta must rise with beta, by a rank correlation of
.8 or more, and be below SAM's at the smallest beta.
"""

from __future__ import annotations

from .accuracy import at_least, best_share, flatter, smallest_that_keeps
from .batches import every_batch, every_epoch, more_linear, nearer, rises_most, unbiased
from .finding import CONTRADICTED, HOLDS, INCONCLUSIVE, NOT_RUN, Finding, Judge
from .speed import costs, faster, form_of_savings

__all__ = [
    "CONTRADICTED", "HOLDS", "INCONCLUSIVE", "NOT_RUN", "Finding", "Judge", "at_least", "best_share", "costs",
    "every_batch", "every_epoch", "faster", "flatter", "form_of_savings", "more_linear", "nearer", "rises_most",
    "smallest_that_keeps", "unbiased",
]  # fmt: skip
