"""The paper's claims about pairs of equal prediction and pattern against accuracy, and how they are judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from zbkernels.experiments.interpolation_claims import range_of
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, Verdict, mean

# Accuracies (%) that count as the paper's "about 30 %", "around 80 %" and "over 90 %", and what it says of them.
BANDS = (
    ("about 30 %", 25.0, 37.0, "many"),
    ("around 80 %", 75.0, 85.0, "a few"),
    ("over 90 %", 90.0, 100.0, "none"),
)


@dataclass(frozen=True)
class Count:
    """One network after some epochs: its accuracy (%) on the test images, and its pairs among images of each split."""

    hidden: tuple[int, ...]
    training: str
    seed: int
    epoch: int
    accuracy: float
    train: dict[str, Any]
    test: dict[str, Any]

    @property
    def name(self) -> str:
        return "-".join(map(str, self.hidden))


def counts_of(metrics: dict[str, Any]) -> list[Count]:
    """All counts of a run, in the order of the units and epochs."""
    return [
        Count(
            tuple(unit["hidden"]),
            unit["training"],
            unit["seed"],
            counted["epoch"],
            counted["test"]["accuracy"],
            counted["train"],
            counted["test"],
        )
        for unit in metrics["units"]
        for counted in unit["watched"]
    ]


def in_band(counts: list[Count], low: float, high: float) -> list[Count]:
    return [count for count in counts if low <= count.accuracy <= high]


def verdicts(metrics: dict[str, Any]) -> list[Verdict]:
    """One verdict per claim; the first three are about MNIST's accuracies."""
    counts = counts_of(metrics)
    data = metrics["data"]
    why = "" if data["as_in_paper"] else f"the data are {data['title']}"
    return [*_bands(counts, data["train_images"], why), _width(counts), _accuracy(counts)]


def _bands(counts: list[Count], images: int, why: str) -> Iterator[Verdict]:
    many, few, none = (in_band(counts, low, high) for _, low, high, _ in BANDS)
    claims = (
        "At about 30 % many qualifying pairs are found",
        "At around 80 % a few qualifying pairs are still found",
        "At over 90 % there is no qualifying pair",
    )
    for claim, found in zip(claims, (many, few, none), strict=True):
        if why or not found:
            yield Verdict(claim, NOT_TESTABLE, why or "no network of this run has such an accuracy")
            continue
        pairs = [count.train["pairs"] for count in found]
        some = [count for count in found if count.train["pairs"]]
        measured = (
            f"{len(some)} of {len(found)} times that a network of such accuracy was searched, it had pairs among the "
            f"{images:,} training images; {range_of(pairs)} of them"
        )
        if found is none:
            if some:
                best, most = max(some, key=lambda c: c.accuracy), max(some, key=lambda c: c.train["pairs"])
                measured += (
                    f"; most with {most.name} units at {most.accuracy:.2f} %, and {best.train['pairs']:,} still with "
                    f"{best.name} units at {best.accuracy:.2f} %"
                )
            yield Verdict(claim, FAILS if some else HOLDS, measured)
        else:
            yield Verdict(claim, HOLDS if some else FAILS, measured)


def _width(counts: list[Count]) -> Verdict:
    claim = "The more neurons, the fewer pairs: the input space becomes more scattered"
    widths = sorted({count.hidden for count in counts if len(count.hidden) == 1})
    if len(widths) < 2:
        return Verdict(claim, NOT_TESTABLE, "it takes at least two widths")
    moments = sorted({(count.training, count.epoch) for count in counts})
    falls = []
    for training, epoch in moments:
        at = [
            mean(
                [
                    c.train["pairs"]
                    for c in counts
                    if (c.hidden, c.training, c.epoch) == (width, training, epoch)
                ]
            )
            for width in widths
        ]
        falls.append(all(a >= b for a, b in pairwise(at)))
    last = [
        f"{width[0]} units {range_of([c.train['pairs'] for c in counts if c.hidden == width])}"
        for width in widths
    ]
    measured = (
        f"so at {sum(falls)} of {len(falls)} lengths of training (mean over the seeds); over all lengths and seeds: "
        f"{', '.join(last)}"
    )
    return Verdict(claim, HOLDS if all(falls) else FAILS, measured)


def _accuracy(counts: list[Count]) -> Verdict:
    """The trade-off at one width: does a network lose pairs as it becomes more accurate?"""
    claim = (
        "More accuracy costs pairs: a trade-off between accuracy and interpolation robustness, at one width"
    )
    told: list[tuple[float, str]] = []  # how many times as many pairs at the end, and the case in words
    for hidden, training in sorted({(c.hidden, c.training) for c in counts if c.train["pairs"]}):
        chosen = [c for c in counts if (c.hidden, c.training) == (hidden, training)]
        first, last = min(c.epoch for c in chosen), max(c.epoch for c in chosen)
        start, end = ([c for c in chosen if c.epoch == epoch] for epoch in (first, last))
        if first == last or not any(c.train["pairs"] for c in start):
            continue
        before, after = (mean([c.train["pairs"] for c in part]) for part in (start, end))
        case = (
            f"{start[0].name} units, {training}: {before:,.0f} pairs at {mean([c.accuracy for c in start]):.1f} %, "
            f"{after:,.0f} at {mean([c.accuracy for c in end]):.1f} %"
        )
        told.append((after / before, case))
    if not told:
        return Verdict(claim, NOT_TESTABLE, "no network has pairs, or each was counted once")
    rises = sum(times > 1 for times, _ in told)
    examples = dict.fromkeys(case for _, case in (max(told), min(told)))
    measured = f"with training, pairs become more in {rises} of {len(told)} cases ({'; '.join(examples)})"
    return Verdict(claim, FAILS if rises else HOLDS, measured)
