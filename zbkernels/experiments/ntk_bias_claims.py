"""Remarks 1 and 2 and what follows from them, taken apart: each with the rule by which it is judged."""

from __future__ import annotations

import math
from typing import Any

from zbkernels.experiments.loss_gap import SAME_LOSS
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, WITHIN_SPREAD, Verdict, mean

FALLING = -0.3  # exponent of the width, from which on a distance counts as going to 0; the theory has -1/2
SAME = 1e-6  # relative: kernels that count as the same; both are closed forms in float64
SAME_ACCURACY = 2.0  # percentage points
LOST = 5.0  # percentage points that count as losing accuracy

Metrics = dict[str, Any]
Found = dict[str, Any]  # of one depth


def verdicts(metrics: Metrics) -> list[Verdict]:
    depths = metrics["depths"]
    return [
        _converges(depths),
        _same_limit(depths),
        _order(depths),
        _multiple(depths),
        _bias_part(depths),
        _constant(depths),
        _same_constant(depths),
        _dynamics(
            depths, "same", "Biases have no impact on the training dynamics: loss curves at one learning rate"
        ),
        _dynamics(depths, "own", "The same, each at the learning rate that its kernel allows"),
        _generalisation(depths),
        _invariant(depths),
        _contrast(depths),
    ]


def betas_of(found: Found) -> list[float]:
    return sorted({net["beta"] for net in found["networks"]})


def by_width(found: Found, beta: float, key: str) -> list[tuple[int, float]]:
    """(width, mean over the seeds) of a measure of the networks, by width."""
    nets = [net for net in found["networks"] if net["beta"] == beta]
    widths = sorted({net["width"] for net in nets})
    return [(width, mean([net[key] for net in nets if net["width"] == width])) for width in widths]


def exponent(found: Found, beta: float, key: str) -> tuple[float, float]:
    """The power of the width that fits a measure of the networks best, and its standard error.

    By least squares of the logarithms over all networks, each seed's for itself.
    """
    nets = [net for net in found["networks"] if net["beta"] == beta]
    x, y = [math.log(net["width"]) for net in nets], [math.log(net[key]) for net in nets]
    a, b = mean(x), mean(y)
    width = sum((u - a) ** 2 for u in x)
    slope = sum((u - a) * (v - b) for u, v in zip(x, y, strict=True)) / width
    left = sum((v - b - slope * (u - a)) ** 2 for u, v in zip(x, y, strict=True))
    return slope, math.sqrt(left / (max(len(x) - 2, 1) * width))


def hidden(found: Found) -> str:
    return f"{found['depth']} hidden layer{'s' if found['depth'] != 1 else ''}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _falls(depths: list[Found], key: str) -> tuple[str, str]:
    """A verdict on a measure that should go to 0 as the width grows, for every beta; and the numbers."""
    said, judged = [], []
    for found in depths:
        parts = []
        for beta in betas_of(found):
            points = by_width(found, beta, key)
            slope, error = exponent(found, beta, key)
            judged.append(
                HOLDS if slope <= FALLING else WITHIN_SPREAD if slope - 2 * error <= FALLING else FAILS
            )
            parts.append(
                f"β = {beta:g} {points[0][1]:.2g} to {points[-1][1]:.2g} (exponent {slope:.2f} ± {error:.2f})"
            )
        widths = by_width(found, betas_of(found)[0], key)
        said.append(f"{hidden(found)}, width {widths[0][0]:,} to {widths[-1][0]:,}: {', '.join(parts)}")
    worst = next((verdict for verdict in (FAILS, WITHIN_SPREAD) if verdict in judged), HOLDS)
    return worst, "; ".join(said)


def _converges(depths: list[Found]) -> Verdict:
    verdict, said = _falls(depths, "to_own")
    return Verdict(
        "Remark 1, first half: as the width grows, each network's NTK converges to a deterministic limit",
        verdict,
        f"distance from the closed form of its own β, relative: {said}",
    )


def _same_limit(depths: list[Found]) -> Verdict:
    said, gaps = [], []
    for found in depths:
        rows = found["distances"]
        gaps += [row["plain"] for row in rows]
        said.append(
            f"{hidden(found)} " + ", ".join(f"β = {row['beta']:g} {_short(row['plain'])}" for row in rows)
        )
    row = depths[0]["witnesses"][-1]
    return Verdict(
        "Remark 1, second half: and to the same limit with biases and without",
        HOLDS if max(gaps) <= SAME else FAILS,
        f"‖K_β - K_0‖/‖K_0‖ of the limits: {'; '.join(said)}. By equation 33 itself, of two images, "
        f"without a hidden layer, at any width: {row['linear_with']:.4f} with β = {row['beta']:g}, "
        f"{row['linear_without']:.4f} without",
    )


def _order(depths: list[Found]) -> Verdict:
    """Exponents of beta between the two smallest."""
    powers = []
    for found in depths:
        one, other = found["distances"][:2]
        powers.append(math.log(other["plain"] / one["plain"]) / math.log(other["beta"] / one["beta"]))
    return Verdict(
        "The limits differ by terms in β² (ours)",
        HOLDS if all(abs(power - 2) <= 0.1 for power in powers) else FAILS,
        "exponent of β between the two smallest: "
        + ", ".join(f"{hidden(found)} {power:.3f}" for found, power in zip(depths, powers, strict=True)),
    )


def _multiple(depths: list[Found]) -> Verdict:
    said = []
    for found in depths:
        rows = found["distances"]
        parts = [
            f"β = {row['beta']:g} {100 * row['scaled']:.2g} % ({100 * row['centred']:.2g} %)" for row in rows
        ]
        said.append(f"{hidden(found)} {', '.join(parts)}")
    least = min(row["scaled"] for found in depths for row in found["distances"])
    return Verdict(
        "Nor are they multiples of each other, which a learning rate would make up for (ours)",
        HOLDS if least > SAME else FAILS,
        f"K_β from the best multiple of K_0, and in brackets after the constant part is taken out of both: "
        f"{'; '.join(said)}",
    )


def _bias_part(depths: list[Found]) -> Verdict:
    claim = "(38, 39): the read-out's bias has the part β²/n in the NTK, n being the width"
    parts = [
        net["readout_bias"] / net["beta"] ** 2
        for found in depths
        for net in found["networks"]
        if net["readout_bias"] is not None
    ]
    if not parts:
        return Verdict(claim, NOT_TESTABLE, "networks with biases were not drawn in this run")
    off = max(abs(part - 1) for part in parts)
    return Verdict(
        claim,
        FAILS if off <= 1e-5 else HOLDS,
        f"it is β² in each of {len(parts)} networks of any width, to {max(off, 1e-16):.0e}: ∂f/∂b = β by (36), and 1/n "
        "belongs to the sum over the units alone, as in (40)",
    )


def _constant(depths: list[Found]) -> Verdict:
    verdict, said = _falls(depths, "moved")
    return Verdict(
        "Remark 2, first half: in the limit each NTK stays constant during training",
        verdict,
        f"‖after - before‖/‖before‖: {said}",
    )


def _same_constant(depths: list[Found]) -> Verdict:
    said, farther = [], True
    for found in depths:
        parts = []
        for beta in betas_of(found):
            if beta == 0:
                continue
            own, zero = (by_width(found, beta, f"after_to_{of}")[-1] for of in ("own", "zero"))
            farther = farther and zero[1] > own[1]
            parts.append(
                f"β = {beta:g} {own[1]:.2g} from its own limit, {_short(zero[1])} from that without biases"
            )
        said.append(f"{hidden(found)} {', '.join(parts)}")
    return Verdict(
        "Remark 2, second half: and at the same constant with biases and without",
        FAILS if farther else HOLDS,
        f"trained, at the largest width: {'; '.join(said)}",
    )


def curve_gap(curves: Found, beta: float) -> float:
    """The largest distance of two loss curves at a time, as a share of that without biases."""
    zero = curves["losses"]["0"]
    return max(abs(a - b) / b for a, b in zip(curves["losses"][f"{beta:g}"], zero, strict=True))


def _dynamics(depths: list[Found], unit: str, claim: str) -> Verdict:
    said, gaps = [], []
    for found in depths:
        curves, parts = found["dynamics"][unit], []
        for beta in found["dynamics"]["betas"][1:]:
            gaps.append(curve_gap(curves, beta))
            half, tenth = (curves[key][f"{beta:g}"] / curves[key]["0"] for key in ("half", "tenth"))
            parts.append(f"β = {beta:g} {100 * gaps[-1]:.0f} % ({half:.2f} and {tenth:.2f} times as long)")
        said.append(f"{hidden(found)} {', '.join(parts)}")
    return Verdict(
        claim,
        HOLDS if max(gaps) <= SAME_LOSS else FAILS,
        "training loss of the limits, at most apart (to a half and to a tenth of the loss): "
        f"{'; '.join(said)} (no impact: up to {100 * SAME_LOSS:g} %)",
    )


def _generalisation(depths: list[Found]) -> Verdict:
    said, gaps = [], []
    for found in depths:
        rows, parts = found["regressions"], []
        zero = rows[0]["contrast"][0]["accuracy"]
        for row in rows[1:]:
            gaps.append(row["contrast"][0]["accuracy"] - zero)
            parts.append(
                f"β = {row['beta']:g} {row['contrast'][0]['accuracy']:.2f} % ({row['agree']:.1f} % agree)"
            )
        said.append(f"{hidden(found)} without {zero:.2f} %, {', '.join(parts)}")
    return Verdict(
        "Both kinds generalise alike (Section 5.1), here the limits on images as they are",
        HOLDS if max(map(abs, gaps)) <= SAME_ACCURACY else FAILS,
        f"kernel regression, test accuracy: {'; '.join(said)} (alike: within {SAME_ACCURACY:g})",
    )


def _invariant(depths: list[Found]) -> Verdict:
    changed = [row["changed"] for found in depths for row in found["regressions"][0]["contrast"]]
    return Verdict(
        "Without biases the limit's predictions are the same at every scalar (Lemma 1, in the limit)",
        HOLDS if max(changed) == 0 else FAILS,
        f"predictions changed at scalars down to {depths[0]['regressions'][0]['contrast'][-1]['scalar']:g}: "
        f"{max(changed) or 'none'}",
    )


def _contrast(depths: list[Found]) -> Verdict:
    said, falls = [], []
    for found in depths:
        for row in found["regressions"][1:]:
            first, *_, last = row["contrast"]
            quarter = row["contrast"][1]
            falls.append(first["accuracy"] - last["accuracy"])
            said.append(
                f"{hidden(found)}, β = {row['beta']:g}: {first['accuracy']:.1f} %, {quarter['accuracy']:.1f} at "
                f"{quarter['scalar']:g}, {last['accuracy']:.1f} at {last['scalar']:g}"
            )
    return Verdict(
        "With biases they are not: accuracy is lost with the contrast, so the limits cannot be the same (ours)",
        HOLDS if min(falls) > LOST else FAILS,
        "; ".join(said),
    )
