"""How far apart the loss curves of the two kinds are, and the paper's claim on each panel of Figure 5."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

from zbkernels.experiments.loss_gap import CURVES, SAME_LOSS, LossGap, describe, loss_gap, worst
from zbkernels.experiments.units import WITH_BIAS, WITHOUT_BIAS
from zbkernels.report import NOT_TESTABLE, Verdict, mean


@dataclass(frozen=True)
class Distance:
    """How far apart the curves of the two kinds are; each number is the largest over the epochs.

    Attributes:
        gap: of the kinds' means over the seeds; what is judged.
        same_seed: between two networks of different kind that started from the same weights, relative as the gap, the
            mean over the seeds; None where no seed was trained in both.
        same_kind: between two seeds of one kind, relative as above, the mean over all such pairs: how far single
            networks lie apart. None where there is no such pair.
    """

    gap: LossGap
    same_seed: float | None
    same_kind: float | None


def distance(panel: dict[str, Any], key: str) -> Distance:
    """The distance of the panel's curves ``key`` ("train_loss" or "test_loss"); both kinds must be there."""
    with_bias, without = (panel["curves"][variant][key] for variant in (WITH_BIAS, WITHOUT_BIAS))
    seeds = panel["seeds"]
    paired = [
        _farthest(with_bias[seeds[WITH_BIAS].index(seed)], without[seeds[WITHOUT_BIAS].index(seed)])
        for seed in seeds[WITH_BIAS]
        if seed in seeds[WITHOUT_BIAS]
    ]
    alike = [_farthest(one, other) for kind in (with_bias, without) for one, other in combinations(kind, 2)]
    return Distance(
        gap=loss_gap(with_bias, without),
        same_seed=mean(paired) if paired else None,
        same_kind=mean(alike) if alike else None,
    )


def both_kinds(panel: dict[str, Any]) -> bool:
    return all(panel["curves"][variant]["train_loss"] for variant in (WITH_BIAS, WITHOUT_BIAS))


def verdict(panel: dict[str, Any]) -> Verdict:
    """As Table 1's reports judge it (see :mod:`loss_gap`): the same runs give the same verdict."""
    data = panel["data"]
    claim = f"Figure {panel['panel']}: the loss curves with and without bias are almost identical"
    if data.get("stand_in_for"):
        claim += f" (here on {data['stand_in']}, not on {data['stand_in_for']})"
    elif not data["as_in_paper"]:
        return Verdict(claim, NOT_TESTABLE, f"the data are {data['title']}")
    if not both_kinds(panel):
        return Verdict(claim, NOT_TESTABLE, "networks of one kind were not trained in this run")
    gaps = {what: distance(panel, key).gap for key, what in CURVES.items()}
    measured = "; ".join(f"{what} {describe(gap)}" for what, gap in gaps.items())
    return Verdict(claim, worst(gaps.values()), f"{measured} (almost identical up to {100 * SAME_LOSS:g} %)")


def _farthest(one: list[float], other: list[float]) -> float:
    """The largest relative difference of two curves at an epoch."""
    return max(abs(a - b) / a for a, b in zip(one, other, strict=True))
