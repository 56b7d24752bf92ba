"""How far apart the loss curves of two kinds of networks are, and the rule by which Figure 5 is judged.

The difference of the kinds' means is set against the standard error of that difference: both are about means over the
seeds. (Two single networks of one kind lie farther apart than two means do, so they are no yardstick for these.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zbkernels.report import FAILS, HOLDS, WITHIN_SPREAD, mean, spread

CURVES = {"train_loss": "training", "test_loss": "test"}
SAME_LOSS = 0.05  # relative gap within which two loss curves count as "almost identical"
ERRORS = 2.0  # standard errors of the difference within which the seeds explain a larger gap
RULE = (
    f"almost identical: at every epoch the means over the seeds are within {100 * SAME_LOSS:g} % of each other; within "
    f"the spread: where they are not, within {ERRORS:g} standard errors of their difference"
)


@dataclass(frozen=True)
class LossGap:
    """
    Attributes:
        relative: largest |difference of the kinds' means over the seeds| at an epoch, as a share of the first's.
        epoch: where that is, the first epoch being 1.
        in_errors: largest such difference in its standard errors, sqrt(s1²/n1 + s2²/n2); None with fewer than two
            networks of a kind.
        above: the same, of those epochs alone at which the means differ by more than SAME_LOSS; None: there is none, or
            no standard error.
        verdict: on "the curves are almost identical"; see RULE.
    """

    relative: float
    epoch: int
    in_errors: float | None
    above: float | None
    verdict: str


def loss_gap(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> LossGap:
    """The gap of two kinds' curves, each a list of one network's losses by epoch; of each kind at least one."""
    shares: list[float] = []
    errors: list[float] = []
    for ours, theirs in zip(zip(*one, strict=True), zip(*other, strict=True), strict=True):  # by epoch
        gap = abs(mean(ours) - mean(theirs))
        shares.append(gap / mean(ours))
        error = _error(ours, theirs)
        if error is not None:
            errors.append(gap / error if error else math.inf if gap else 0.0)
    large = [error for share, error in zip(shares, errors, strict=False) if share > SAME_LOSS]
    relative, above = max(shares), max(large, default=None)
    explained = above is not None and above <= ERRORS
    return LossGap(
        relative=relative,
        epoch=1 + shares.index(relative),
        in_errors=max(errors, default=None),
        above=above,
        verdict=HOLDS if relative <= SAME_LOSS else WITHIN_SPREAD if explained else FAILS,
    )


def worst(gaps: Iterable[LossGap]) -> str:
    """The verdict on several curves."""
    found = [gap.verdict for gap in gaps]
    return next((verdict for verdict in (FAILS, WITHIN_SPREAD) if verdict in found), HOLDS)


def describe(gap: LossGap) -> str:
    text = f"at most {100 * gap.relative:.1f} % apart (epoch {gap.epoch})"
    return (
        text if gap.above is None else f"{text}, {gap.above:.1f} standard errors where not almost identical"
    )


def _error(one: Sequence[float], other: Sequence[float]) -> float | None:
    a, b = spread(one), spread(other)
    return None if a is None or b is None else math.sqrt(a * a / len(one) + b * b / len(other))
