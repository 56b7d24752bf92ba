"""The paper's claims about hulls and cones, each with the rule by which it is judged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zbkernels.experiments.combinations import KINDS
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, Verdict

_CONVEX = "Theorem 3, zero-bias: every point of the hull of n inputs of one prediction and pattern has their prediction"
_CONIC = (
    "Zero-bias: so has every conic combination, whatever its scale (Section 3: regions are unbounded cones)"
)
_BIASED = "Such guarantees hardly exist on normal neural networks (Section 3)"
_SCALED = "With bias, cones become polytopes: a set's scaled combinations leave its pattern (Figure 2)"
_RARE = "In networks with accuracies of over 90 % no inputs share pattern and prediction (Section 3)"
_SHAPES = (
    "Zero-bias regions are unbounded cones from the origin, biased ones typical convex polytopes (Figure 2)"
)
_SCALAR = "It holds for CNNs too, if all transformations are scalar associative, as max pooling (Appendix A)"
_WINNERS = "Under max pooling it holds where inputs share each window's winner (our mend of Appendix A)"
_MISSING = "networks of one kind were not trained in this run"


def verdicts(metrics: dict[str, Any]) -> list[Verdict]:
    """One verdict per claim."""
    return [
        _kept(metrics, _CONVEX, ("convex",)),
        _kept(metrics, _CONIC, tuple(kind for kind in KINDS if kind != "convex")),
        _biased(metrics),
        _scaled(metrics),
        _rare(metrics),
        _shapes(metrics),
        _scalar_associative(metrics),
        _winners(metrics),
    ]


def tried(
    metrics: dict[str, Any], *, variant: str, pools: bool = False, units: str = "relu"
) -> Iterator[dict[str, Any]]:
    """The sets (one entry for each network and number of vertices) of the networks of one kind."""
    for network in metrics["networks"]:
        if network["variant"] == variant and network["pools"] == pools:
            for each in network["tried"]:
                if each["units"] == units:
                    yield from each["sets"]


def total(entries: list[dict[str, Any]], kinds: tuple[str, ...], what: str, dtype: str) -> int:
    return sum(entry[kind][dtype][what] for entry in entries for kind in kinds)


def _kept(metrics: dict[str, Any], claim: str, kinds: tuple[str, ...]) -> Verdict:
    entries = list(tried(metrics, variant="without-bias"))
    if not entries:
        return Verdict(claim, NOT_TESTABLE, _MISSING)
    return _judge_kept(claim, entries, kinds)


def _judge_kept(claim: str, entries: list[dict[str, Any]], kinds: tuple[str, ...]) -> Verdict:
    """Holds if no point leaves pattern or class in float64, nor in float32 where a certificate covers that."""
    sets = sum(entry["sets"] for entry in entries)
    safe = sum(entry["certified_float32"] for entry in entries)
    certified = sum(entry["certified"] for entry in entries)
    found = {
        dtype: max(total(entries, kinds, what, dtype) for what in ("left", "class"))
        for dtype in ("float32", "float64")
    }
    points = total(entries, kinds, "points", "float32")
    sizes = sorted({entry["vertices"] for entry in entries})
    said = ", ".join(f"{count or 'none'} in {dtype}" for dtype, count in found.items())
    measured = (
        f"{sets:,} sets of {sizes[0]} to {sizes[-1]} inputs, {points:,} points each in float32 and "
        f"float64; left pattern or "
        f"class: {said}; {certified:,} sets certified in exact terms, {safe:,} of them for any float32 "
        f"evaluation"
    )
    unexpected = sum(total(entries, kinds, "unexpected", dtype) for dtype in found)
    if found["float32"]:
        measured += f"; {unexpected or 'none'} against a certificate"
    holds = found["float64"] == 0 and unexpected == 0
    return Verdict(claim, HOLDS if holds else FAILS, measured)


def _biased(metrics: dict[str, Any]) -> Verdict:
    """The claim fails where the hulls of biased networks' sets keep pattern and prediction as well."""
    entries = list(tried(metrics, variant="with-bias"))
    if not entries:
        return Verdict(_BIASED, NOT_TESTABLE, _MISSING)
    sets = sum(entry["sets"] for entry in entries)
    broken = total(entries, ("convex",), "broken", "float64")
    certified = sum(entry["certified"] for entry in entries)
    points = total(entries, ("convex",), "points", "float64")
    return Verdict(
        _BIASED,
        HOLDS if broken else FAILS,
        f"{broken or 'none'} of {sets:,} hulls broke ({points:,} points), {certified:,} are certified: "
        f"a pattern's region is "
        "convex and the network affine there, with biases too; what is lost is the cone",
    )


def _scaled(metrics: dict[str, Any]) -> Verdict:
    entries = list(tried(metrics, variant="with-bias"))
    if not entries:
        return Verdict(_SCALED, NOT_TESTABLE, _MISSING)
    sets = sum(entry["sets"] for entry in entries)
    broken = total(entries, ("conic",), "broken", "float64")
    other = total(entries, ("conic",), "broken_class", "float64")
    low, high = (10.0**power for power in metrics["kinds"]["conic"])
    return Verdict(
        _SCALED,
        HOLDS if broken > sets / 2 else FAILS,
        f"scaled by {low:g} to {high:g}, {broken:,} of {sets:,} sets left their pattern and {other:,} "
        f"their class",
    )


def _rare(metrics: dict[str, Any]) -> Verdict:
    """Judged by the groups of two or more among the training images."""
    accurate = [n for n in metrics["networks"] if n["accuracy"] > 90 and not n["pools"]]
    if not accurate:
        return Verdict(_RARE, NOT_TESTABLE, "no network of this run is that accurate")
    groups = {size: [n["tried"][0]["at_least"][size] for n in accurate] for size in ("2", "20")}
    accuracies = [n["accuracy"] for n in accurate]
    return Verdict(
        _RARE,
        FAILS if max(groups["2"]) else HOLDS,
        f"{len(accurate)} networks of {min(accuracies):.1f} to {max(accuracies):.1f} %: {min(groups['2']):,} to "
        f"{max(groups['2']):,} groups of two or more of {metrics['data']['train_images']:,} images, "
        f"{min(groups['20']):,} to {max(groups['20']):,} of twenty or more",
    )


def _shapes(metrics: dict[str, Any]) -> Verdict:
    shapes = {network["variant"]: network for network in metrics["drawn"]}
    if len(shapes) < 2:
        return Verdict(_SHAPES, NOT_TESTABLE, _MISSING)
    zero, biased = shapes["without-bias"], shapes["with-bias"]
    cones = zero["bounded"] == 0 and zero["reach_origin"] == zero["regions"]
    return Verdict(
        _SHAPES,
        HOLDS if cones and biased["bounded"] else FAILS,
        f"the networks drawn: without bias {zero['regions']} regions, {zero['reach_origin']} of them "
        f"reach the origin, "
        f"{zero['bounded'] or 'none'} bounded; with bias {biased['regions']}, {biased['bounded']} bounded",
    )


def _scalar_associative(metrics: dict[str, Any]) -> Verdict:
    """One counterexample is enough."""
    example = metrics["counterexample"]
    refuted = example["same_bits"] and len(set(example["classes"])) > 1
    measured = "a 1×2 max pool of [1, .1, .8, .8] and [.1, 1, .8, .8]: one pattern of bits and class "
    middle = example["classes"][len(example["classes"]) // 2]
    measured += f"{example['classes'][0]}, the midpoint has class {middle}"
    searched = [network["searched"] for network in metrics["networks"] if "searched" in network]
    if searched:
        pairs, broken = (sum(each[key] for each in searched) for key in ("tried", "broken"))
        trained = f"trained on {metrics['data']['title']}"
        measured += (
            f"; {trained}, the class changes between {broken or 'none'} of {pairs:,} pairs with the same bits"
        )
    return Verdict(_SCALAR, FAILS if refuted else HOLDS, measured)


def _winners(metrics: dict[str, Any]) -> Verdict:
    entries = list(tried(metrics, variant="without-bias", pools=True, units="winner"))
    if not entries:
        return Verdict(_WINNERS, NOT_TESTABLE, _MISSING)
    return _judge_kept(_WINNERS, entries, tuple(KINDS))
