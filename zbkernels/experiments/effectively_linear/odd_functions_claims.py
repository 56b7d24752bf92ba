"""What is said of odd functions, taken apart: each statement with the rule by which it is judged."""

from __future__ import annotations

from typing import Any

from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, Verdict

EXACT = 1e-9  # of the target's mean square: errors that count as the same after training
REACHED = 1e-12  # the same, where training has come to its end
BELOW = (
    1e-3  # of the mean square: how far below the best linear map two layers are to come without the symmetry
)
ROUNDING = 1e-13  # the same, of closed forms, and of how far below a lower bound rounding alone may bring
CLEARLY = 0.02  # of the target's mean square: how far below the best linear map counts as below it
HOMOGENEOUS = 1e-12  # of the largest output, at scales that round

Metrics = dict[str, Any]
Found = dict[str, Any]  # one network's numbers, and what belongs to its target

TWO_LAYER = ("two-layer", "two-layer-leaky")
DEEPER = ("three-layer", "four-layer")
BIASED = ("two-layer-biased",)


def verdicts(metrics: Metrics) -> list[Verdict]:
    return [
        _decomposition(metrics),
        _trained(metrics),
        _never_below(metrics),
        _reached(metrics),
        _symmetry(metrics),
        _below(
            metrics,
            DEEPER,
            "Deeper bias-free networks are more expressive: they go below the best linear map",
        ),
        _odd_part(metrics),
        _homogeneous(metrics),
        _below(metrics, BIASED, "So do two-layer networks with biases (ours)"),
        _inhomogeneous(metrics),
    ]


def networks(metrics: Metrics, kinds: tuple[str, ...]) -> list[Found]:
    """The networks of these kinds, each with its target's numbers beside its own."""
    return [
        {**fit, **fit["networks"][kind], "kind": kind}
        for fit in metrics["fits"]
        for kind in kinds
        if kind in fit["networks"]
    ]


def _missing(claim: str) -> Verdict:
    return Verdict(claim, NOT_TESTABLE, "no such network was fitted in this run")


def _decomposition(metrics: Metrics) -> Verdict:
    rows = metrics["decomposition"]
    worst = max(rows, key=lambda row: max(row["apart"], row["odd"]))
    most = max(worst["apart"], worst["odd"])
    return Verdict(
        "f(x) = c W2 W1 x + s Σ w2 abs(w1·x), c, s = (1 ± slope)/2: a linear odd and an even part; random networks",
        HOLDS if most <= 1 else FAILS,
        f"{metrics['random_networks']:,} networks for each of {len(rows)} slopes and dtypes: f and its odd part are at "
        f"most {most:.3f} of the bound on rounding away (slope {worst['alpha']:g}, {worst['dtype']})",
    )


def _trained(metrics: Metrics) -> Verdict:
    claim = "The same of trained networks"
    nets = networks(metrics, TWO_LAYER)
    if not nets:
        return _missing(claim)
    most = max(max(net["apart"], net["odd_apart"]) for net in nets)
    return Verdict(
        claim,
        HOLDS if most <= 1 else FAILS,
        f"{len(nets)} networks: at most {most:.3f} of the bound on rounding away",
    )


def _never_below(metrics: Metrics) -> Verdict:
    claim = (
        "Two-layer bias-free networks express no odd function but linear ones: none is nearer to an odd target than "
        "the best linear map"
    )
    nets = networks(metrics, TWO_LAYER)
    if not nets:
        return _missing(claim)
    least = min(nets, key=lambda net: net["error"] - net["linear"])
    gap = least["error"] - least["linear"]
    return Verdict(
        claim,
        HOLDS if gap >= -ROUNDING else FAILS,
        f"{len(nets)} networks on {len({net['target'] for net in nets})} targets: error less the best linear map's is "
        f"at least {gap:.1e} of the target's mean square, of which that map leaves "
        f"{min(net['linear'] for net in nets):.2f} to {max(net['linear'] for net in nets):.2f}",
    )


def _reached(metrics: Metrics) -> Verdict:
    claim = (
        "The best of them reaches exactly that error: trained, and in closed form (two units for an output)"
    )
    nets = networks(metrics, TWO_LAYER)
    if not nets:
        return _missing(claim)
    worst = max(nets, key=lambda net: net["error"] - net["linear"])
    gap = worst["error"] - worst["linear"]
    pair = max(abs(fit["pair"] - fit["linear"]) for fit in metrics["fits"])
    away = max(net["odd_from_linear"] for net in nets)
    whole = sum(net["error"] - net["linear"] <= REACHED for net in nets)
    return Verdict(
        claim,
        HOLDS if gap <= EXACT and pair <= ROUNDING else FAILS,
        f"trained {whole} of {len(nets)} within {REACHED:g}, all at most {gap:.1e} above it ({worst['target']}, "
        f"{worst['dimension']} dimensions), closed form within {pair:.1e}; mean squares after training: "
        f"odd part less that map at most {away:.1e}, even part at most "
        f"{max(net['even'] for net in nets):.1e}",
    )


def _symmetry(metrics: Metrics) -> Verdict:
    claim = "This takes symmetric inputs: on x without -x the same networks do go below (ours)"
    nets = [net for net in networks(metrics, TWO_LAYER) if "half" in net]
    if not nets:
        return _missing(claim)
    least = min(net["linear_half"] - net["half"] for net in nets)
    return Verdict(
        claim,
        HOLDS if least > BELOW else FAILS,
        f"fitted to the half of the points without their negatives: {least:.3f} to "
        f"{max(net['linear_half'] - net['half'] for net in nets):.3f} of the mean square below its best linear map",
    )


def _below(metrics: Metrics, kinds: tuple[str, ...], claim: str) -> Verdict:
    nets = networks(metrics, kinds)
    if not nets:
        return _missing(claim)
    gaps = [net["linear"] - net["error"] for net in nets]
    lowest = min(nets, key=lambda net: net["linear"] - net["error"])
    fresh = sum(net["fresh"] < net["linear_fresh"] for net in nets)
    exactly = [net for net in nets if net["error"] <= 1e-6]
    said = f"; {len(exactly)} of them fit within 1e-6" if exactly else ""
    return Verdict(
        claim,
        HOLDS if min(gaps) > CLEARLY else FAILS,
        f"{sum(gap > CLEARLY for gap in gaps)} of {len(nets)} networks, by at least {min(gaps):.3f} of the mean square "
        f"({lowest['kind']}, {lowest['target']}, {lowest['dimension']} dimensions){said}; on fresh points {fresh} of "
        f"{len(nets)} are below it",
    )


def _odd_part(metrics: Metrics) -> Verdict:
    claim = "The odd part of the deeper ones is not linear"
    nets = networks(metrics, DEEPER)
    if not nets:
        return _missing(claim)
    shares = [net["odd_is_linear_to"] for net in nets]
    return Verdict(
        claim,
        HOLDS if min(shares) > CLEARLY else FAILS,
        f"the best linear map misses {min(shares):.3f} to {max(shares):.3f} of its mean square",
    )


def _homogeneous(metrics: Metrics) -> Verdict:
    claim = "And they are still positively homogeneous"
    nets = networks(metrics, DEEPER)
    if not nets:
        return _missing(claim)
    exact, most = (max(net[key] for net in nets) for key in ("inhomogeneous_exact", "inhomogeneous"))
    return Verdict(
        claim,
        HOLDS if exact == 0 and most <= HOMOGENEOUS else FAILS,
        f"f(s x) - s f(x): {'0, bit by bit,' if exact == 0 else f'{exact:.1e}'} at s = 1/4 and 4, "
        f"at most {most:.1e} of the largest output at 0.1 and 3",
    )


def _inhomogeneous(metrics: Metrics) -> Verdict:
    claim = "Those with biases are not homogeneous (ours)"
    nets = networks(metrics, BIASED)
    if not nets:
        return _missing(claim)
    least = min(net["inhomogeneous"] for net in nets)
    return Verdict(
        claim,
        HOLDS if least > HOMOGENEOUS else FAILS,
        f"f(s x) - s f(x) is at least {least:.2g} of the largest output",
    )
