"""How far apart the loss curves of the two kinds are, and the paper's claim on each panel of Figure 5."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

from zbkernels.experiments.table1_claims import SAME_LOSS, pooled_spread
from zbkernels.experiments.units import WITH_BIAS, WITHOUT_BIAS
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, WITHIN_SPREAD, Verdict, mean

CURVES = {"train_loss": "training", "test_loss": "test"}


@dataclass(frozen=True)
class Distance:
    """How far apart the curves of the two kinds are; each number is the largest over the epochs.

    Attributes:
        relative: |difference of the kinds' means over the seeds|, as a share of the mean with bias at that epoch.
        epoch: where that is, the first epoch being 1.
        in_deviations: the same difference in standard deviations over the seeds, pooled over both kinds; None with
            fewer than two seeds of each.
        same_seed: between two networks of different kind that started from the same weights, relative as above, the
            mean over the seeds; None where no seed was trained in both.
        same_kind: between two seeds of one kind, relative as above, the mean over all such pairs; the yardstick. None
            where there is no such pair.
    """

    relative: float
    epoch: int
    in_deviations: float | None
    same_seed: float | None
    same_kind: float | None


def distance(panel: dict[str, Any], key: str) -> Distance:
    """The distance of the panel's curves ``key`` ("train_loss" or "test_loss"); both kinds must be there."""
    with_bias, without = (panel["curves"][variant][key] for variant in (WITH_BIAS, WITHOUT_BIAS))
    ones, others = zip(*with_bias, strict=True), zip(*without, strict=True)
    shares, deviations = [], []
    for one, other in zip(ones, others, strict=True):  # at each epoch, one value a seed
        gap = abs(mean(one) - mean(other))
        shares.append(gap / mean(one))
        pooled = pooled_spread(list(one), list(other))
        if pooled:
            deviations.append(gap / pooled)
    seeds = panel["seeds"]
    paired = [
        _farthest(with_bias[seeds[WITH_BIAS].index(seed)], without[seeds[WITHOUT_BIAS].index(seed)])
        for seed in seeds[WITH_BIAS]
        if seed in seeds[WITHOUT_BIAS]
    ]
    alike = [_farthest(one, other) for kind in (with_bias, without) for one, other in combinations(kind, 2)]
    return Distance(
        relative=max(shares),
        epoch=1 + shares.index(max(shares)),
        in_deviations=max(deviations, default=None),
        same_seed=mean(paired) if paired else None,
        same_kind=mean(alike) if alike else None,
    )


def both_kinds(panel: dict[str, Any]) -> bool:
    return all(panel["curves"][variant]["train_loss"] for variant in (WITH_BIAS, WITHOUT_BIAS))


def verdict(panel: dict[str, Any]) -> Verdict:
    """Almost identical: the means nowhere differ by more than 5 %; within the spread: not by more than two seeds do."""
    data = panel["data"]
    claim = f"Figure {panel['panel']}: the loss curves with and without bias are almost identical"
    if data.get("stand_in_for"):
        claim += f" (here on {data['stand_in']}, not on {data['stand_in_for']})"
    elif not data["as_in_paper"]:
        return Verdict(claim, NOT_TESTABLE, f"the data are {data['title']}")
    if not both_kinds(panel):
        return Verdict(claim, NOT_TESTABLE, "networks of one kind were not trained in this run")
    found = {key: distance(panel, key) for key in CURVES}
    judged = []
    for each in found.values():
        within = each.same_kind is not None and each.relative <= each.same_kind
        judged.append(HOLDS if each.relative <= SAME_LOSS else WITHIN_SPREAD if within else FAILS)
    measured = "; ".join(f"{CURVES[key]} {describe(each)}" for key, each in found.items())
    worst = next((v for v in (FAILS, WITHIN_SPREAD) if v in judged), HOLDS)
    return Verdict(claim, worst, f"{measured} (almost identical up to {100 * SAME_LOSS:g} %)")


def describe(found: Distance) -> str:
    parts = [f"at most {100 * found.relative:.1f} % apart (epoch {found.epoch})"]
    if found.same_kind is not None:
        parts.append(f"two seeds of one kind {100 * found.same_kind:.1f} %")
    return ", ".join(parts)


def _farthest(one: list[float], other: list[float]) -> float:
    """The largest relative difference of two curves at an epoch."""
    return max(abs(a - b) / a for a, b in zip(one, other, strict=True))
