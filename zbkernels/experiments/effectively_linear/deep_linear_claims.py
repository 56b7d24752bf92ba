"""What deep ReLU and deep linear networks have in common, claim by claim, each with the rule it is judged by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, WITHIN_SPREAD, Verdict, mean

EXACT = 1e-12  # relative: derivatives that are one formula and differ by rounding
FOLLOWED = 1e-5  # relative: two flows that are the same and were solved to 1e-10 a step
LOW_RANK = 0.9  # of a layer's squared norm in its first singular values
ALIGNED = 0.95  # mean squared cosine
CONSERVED = 1e-3  # of the largest squared norm: what the solver may lose
LEARNED = 0.05  # of the loss at the start: below it both half-spaces are learned
SEPARATE = 0.1  # of a mode, at the time when the one before is half learned
BENT = 0.01  # of f's power that no linear map explains: above it f counts as not linear

Metrics = dict[str, Any]
Found = dict[str, Any]


def verdicts(metrics: Metrics) -> list[Verdict]:
    depths = metrics["depths"]
    return [
        _twins(depths),
        _uneven(depths),
        _rank(depths, "linear", "Deep linear networks from small weights: every layer of rank one"),
        _rank(
            depths,
            "relu",
            "Deep ReLU networks: first and last layer of rank one, layers between of rank two (derived here)",
        ),
        _shrinking(depths),
        _aligned(depths, "linear"),
        _aligned(depths, "relu"),
        _conserved(depths),
        _matrices(depths),
        _root_two(depths),
        _reaches_linear(depths),
        _half_spaces(depths),
        _plateau(depths),
        _stages(depths, "linear"),
        _stages(depths, "relu"),
        _two_layers_stay(depths),
        _more_layers(depths),
        _slight(depths),
        _rank_grows(depths),
        _still_conserved(depths),
        _digits_symmetric(depths),
        _digits_deeper(depths),
        _digits_plain(depths),
        _digits_fixed(depths),
        _digits_speed(depths),
        _digits_rank(depths),
    ]


def layer_word(depth: int) -> str:
    return f"{depth} layers"


def base(metrics: Metrics, found: Found) -> Found:
    """The networks of the preset's width from its largest start."""
    return max((n for n in found["nets"] if n["width"] == metrics["width"]), key=lambda n: n["norm"])


def learned(net: Found) -> list[int]:
    """The seeds, by place, of ReLU networks that learned both half-spaces in the time they had."""
    return [i for i, loss in enumerate(net["relu"]["loss"]) if loss < LEARNED]


def waits(net: Found) -> list[float | None]:
    """(t₂ - t₁)/t₁ of the two half-spaces, one per network; None where one was not learned."""
    pairs = zip(net["relu"]["first_half"], net["relu"]["second_half"], strict=True)
    return [None if one is None or other is None else (other - one) / one for one, other in pairs]


def _all(values: Any) -> Iterator[float]:
    if isinstance(values, list):
        for value in values:
            yield from _all(value)
    elif values is not None:
        yield values


def _told(parts: Iterable[str]) -> str:
    return "; ".join(parts)


def _judge_all(shares: list[bool]) -> str:
    """HOLDS of all; "within the spread of the seeds" of most; else FAILS."""
    if all(shares):
        return HOLDS
    return WITHIN_SPREAD if mean([float(s) for s in shares]) > 0.5 else FAILS


def _twins(depths: list[Found]) -> Verdict:
    off = [
        max(max(found["twins"]["off"]["outputs"]), max(found["twins"]["off"]["weights"])) for found in depths
    ]
    gradient = [found["twins"]["gradient"] for found in depths]
    return Verdict(
        "Under the symmetry a deep ReLU network of mirrored rank-one halves is the linear network of one "
        "half, at half the "
        "speed (derived here; the paper has two layers)",
        HOLDS if max(gradient) < EXACT and max(off) < FOLLOWED else FAILS,
        _told(
            f"{layer_word(found['depth'])}: gradients {one:.0e} apart, outputs and weights along the flow at "
            f"most {two:.0e}"
            for found, one, two in zip(depths, gradient, off, strict=True)
        ),
    )


def _uneven(depths: list[Found]) -> Verdict:
    off = [max(found["twins"]["off"]["uneven"]) for found in depths]
    return Verdict(
        "The halves must be equal: with one half 1.1 times as large outputs leave the linear network's (ours)",
        HOLDS if min(off) > 0.01 else FAILS,
        _told(
            f"{layer_word(f['depth'])}: by up to {100 * o:.0f} %" for f, o in zip(depths, off, strict=True)
        ),
    )


def _rank(depths: list[Found], kind: str, claim: str) -> Verdict:
    good, said = [], []
    for found in depths:
        least = []
        for net in found["nets"]:
            rows = range(len(net["relu"]["loss"])) if kind == "linear" else learned(net)
            for i in rows:
                one, two = net[kind]["rank1"][i], net[kind]["rank2"][i]
                inner = two if kind == "relu" else one
                least.append(min([one[0], *inner[1:-1], one[-1]]))
        if least:
            good += [share >= LOW_RANK for share in least]
            said.append(f"{layer_word(found['depth'])}: at least {min(least):.3f} in {len(least)} networks")
    return Verdict(
        claim,
        _judge_all(good) if good else NOT_TESTABLE,
        "part of ‖W‖² in these singular values: " + _told(said)
        if said
        else "no network learned both half-spaces",
    )


def _shrinking(depths: list[Found]) -> Verdict:
    claim = "The smaller the start, the nearer to these ranks (ours: what is left over is the start, ∝ norm²)"
    said, good = [], []
    for found in depths:
        widths = {n["width"] for n in found["nets"]}
        nets = max(([n for n in found["nets"] if n["width"] == w] for w in widths), key=len)
        points = [
            (net["norm"], mean([1 - net["linear"]["rank1"][i][0] for i in range(len(net["linear"]["loss"]))]))
            for net in sorted(nets, key=lambda n: n["norm"])
        ]
        if len(points) < 2:
            continue
        (x0, y0), (x1, y1) = points[0], points[-1]
        power = math.log(y1 / y0) / math.log(x1 / x0)
        good.append(abs(power - 2) < 0.3)
        said.append(
            f"{layer_word(found['depth'])}: {y1:.2g} at ‖W(0)‖ = {x1:g}, {y0:.2g} at {x0:.3g} (power {power:.2f})"
        )
    if not said:
        return Verdict(claim, NOT_TESTABLE, "one size of the start in this run")
    return Verdict(
        claim, _judge_all(good), "outside the first singular value, first layer, linear: " + _told(said)
    )


def _aligned(depths: list[Found], kind: str) -> Verdict:
    good, said = [], []
    for found in depths:
        values = [
            min(net[kind]["alignment"][i])
            for net in found["nets"]
            for i in (range(len(net["linear"]["loss"])) if kind == "linear" else learned(net))
        ]
        if values:
            good += [value >= ALIGNED for value in values]
            said.append(f"{layer_word(found['depth'])}: {min(values):.4f} or more")
    named = "Deep linear" if kind == "linear" else "Deep ReLU"
    return Verdict(
        f"{named} networks: singular vectors of neighbouring layers align",
        _judge_all(good) if good else NOT_TESTABLE,
        "mean squared cosine: " + _told(said) if said else "no network learned both half-spaces",
    )


def _conserved(depths: list[Found]) -> Verdict:
    worst = {
        name: max(
            _all(
                [
                    net[kind][f"{name}_drift"]
                    for f in depths
                    for net in f["nets"]
                    for kind in ("linear", "relu")
                ]
            )
        )
        for name in ("layers", "units")
    }
    return Verdict(
        "Balanced norms: ‖W_(l+1)‖² - ‖W_l‖², and the same for each hidden unit, stay as they were, in both",
        HOLDS if max(worst.values()) < CONSERVED else FAILS,
        f"largest change, of the largest ‖W‖²: {worst['layers']:.1e} (layers), {worst['units']:.1e} (units): "
        f"the solver's error",
    )


def _matrices(depths: list[Found]) -> Verdict:
    linear = max(_all([net["linear"]["matrices_drift"] for f in depths for net in f["nets"]]))
    deep = [
        net["relu"]["matrices_drift"][i]
        for f in depths
        if f["depth"] > 2
        for net in f["nets"]
        for i in learned(net)
    ]
    claim = (
        "W_(l+1)ᵀ W_(l+1) - W_l W_lᵀ is conserved in linear networks alone: a deep ReLU network cannot "
        "keep it (derived here)"
    )
    if not deep:
        return Verdict(
            claim,
            NOT_TESTABLE,
            "no ReLU network of three or more layers learned both half-spaces in this run",
        )
    return Verdict(
        claim,
        HOLDS if linear < CONSERVED and min(deep) > 0.1 else FAILS,
        f"change, of the largest ‖W‖²: linear at most {linear:.1e}; ReLU of three and more layers "
        f"{min(deep):.2f} to {max(deep):.2f}",
    )


def _root_two(depths: list[Found]) -> Verdict:
    said, off = [], []
    for found in depths:
        ratios = []
        for net in found["nets"]:
            norms = net["relu"]["norms"], net["linear"]["norms"]
            ratios += [norms[0][i][0] / norms[1][i][0] for i in learned(net)]
        if ratios:
            off += [abs(ratio / math.sqrt(2) - 1) for ratio in ratios]
            said.append(f"{layer_word(found['depth'])} {min(ratios):.3f} to {max(ratios):.3f}")
    claim = (
        "A ReLU network needs √2 times the norm ‖W_l‖ of the linear one in each layer: two halves, each "
        "with one (derived here)"
    )
    if not said:
        return Verdict(claim, NOT_TESTABLE, "no network learned both half-spaces")
    return Verdict(claim, _judge_all([o < 0.05 for o in off]), "ratio: " + _told(said))


def _reaches_linear(depths: list[Found]) -> Verdict:
    said, good = [], []
    for found in depths:
        count = sum(len(net["relu"]["loss"]) for net in found["nets"])
        done = [(net, i) for net in found["nets"] for i in learned(net)]
        shares = [net["relu"]["linear_share"][i] for net, i in done]
        good += [True] * len(done) + [False] * (count - len(done))
        least = f", f at least {100 * min(shares):.2f} % linear" if shares else ""
        said.append(f"{layer_word(found['depth'])}: {len(done)} of {count}{least}")
    return Verdict(
        "On symmetric data with a linear target deep ReLU networks end at the linear map",
        _judge_all(good),
        "networks within 5 % of the loss at the start in the time given: " + _told(said),
    )


def _half_spaces(depths: list[Found]) -> Verdict:
    claim = "On the way they are nearly linear, too (odd part above 0.9 of f's power all along)"
    said, good = [], []
    for found in depths:
        least = list(_all([net["relu"]["least_odd"] for net in found["nets"]]))
        good.append((found["depth"], min(least) > 0.9))
        said.append(f"{layer_word(found['depth'])} {mean(least):.2f} (least {min(least):.2f})")
    deep = [ok for depth, ok in good if depth > 2]
    if not deep:
        return Verdict(claim, NOT_TESTABLE, "needs three layers; odd part of f: " + _told(said))
    return Verdict(
        claim,
        HOLDS if all(deep) else FAILS,
        f"odd part of f's power, least while the loss is between 0.9 and 0.1 of its start: {_told(said)}; "
        "½ is one half-space learned and the other not",
    )


def _plateau(depths: list[Found]) -> Verdict:
    """Does the wait for the second half-space vanish with the start? It must at two layers and cannot at three."""
    claim = (
        "From three layers on the half-spaces are learned one after the other, however small the start; with "
        "two layers the wait "
        "vanishes against the whole as the start shrinks (derived here)"
    )
    said, good = [], []
    for found in depths:
        pairs = _paired_waits(found)
        if not pairs:
            continue
        large, small = (mean(column) for column in zip(*pairs, strict=True))
        good.append(small < large if found["depth"] == 2 else abs(small / large - 1) < 0.1)
        said.append(
            f"{layer_word(found['depth'])}: {100 * large:.1f} % at the larger start, {100 * small:.1f} % at the "
            f"smaller ({len(pairs)} networks)"
        )
    if not said:
        return Verdict(
            claim, NOT_TESTABLE, "one size of the start in this run, or no second half-space learned"
        )
    return Verdict(
        claim, _judge_all(good), "wait for the second, of the time of the first, same weights: " + _told(said)
    )


def _paired_waits(found: Found) -> list[tuple[float, float]]:
    """The waits of the same network, of one width and seed, from the largest and from the smallest start."""
    pairs = []
    for width in {net["width"] for net in found["nets"]}:
        nets = sorted((net for net in found["nets"] if net["width"] == width), key=lambda net: -net["norm"])
        if len(nets) > 1:
            known = zip(waits(nets[0]), waits(nets[-1]), strict=True)
            pairs += [(one, other) for one, other in known if one is not None and other is not None]
    return pairs


def _stages(depths: list[Found], kind: str) -> Verdict:
    said, good = [], []
    for found in depths:
        rows = found["stages"][kind]
        for times, ahead in zip(rows["times"], rows["next"], strict=True):
            for mode, value in enumerate(ahead):
                # a mode that is never learned has not been learned early
                if times[mode] is not None:
                    good.append(value is not None and abs(value) < SEPARATE)
        counts = [sum(t is not None for t in times) for times in rows["times"]]
        first = [t[1] / t[0] for t in rows["times"] if t[0] is not None and t[1] is not None]
        most = max((abs(v) for v in _all(rows["next"])), default=math.nan)
        if max(counts) == 0:
            said.append(f"{layer_word(found['depth'])}: none was learned in the time given")
            continue
        if max(counts) == 1:
            said.append(
                f"{layer_word(found['depth'])}: the first mode alone was learned in the time given, with at most "
                f"{100 * most:.1f} % of the next at half of it: one stage, and no second to follow it"
            )
            continue
        ratio = f", second after {min(first):.1f} to {max(first):.1f} times the first's time" if first else ""
        said.append(
            f"{layer_word(found['depth'])}: {min(counts)} to {max(counts)} of {len(rows['times'][0])} modes "
            f"learned{ratio}, "
            f"at most {100 * most:.1f} % of the next at half of one"
        )
    named = "Deep linear" if kind == "linear" else "Deep ReLU"
    return Verdict(
        f"{named} networks learn the modes of a target in stages, the strongest first",
        _judge_all(good) if good else NOT_TESTABLE,
        _told(said),
    )


def broken_rows(found: Found, kind: str) -> list[tuple[float, list[Found]]]:
    """(amount, its networks), by amount."""
    (part,) = [p for p in found["broken"] if p["kind"] == kind]
    return [(amount, [n for n in part["nets"] if n["amount"] == amount]) for amount in part["amounts"]]


def _beyond(depths: list[Found], least: int, most: int) -> tuple[list[float], str]:
    """The lowest loss of each depth on an odd target that is not linear, of the best linear map's; and the numbers."""
    lowest, said = [], []
    for found in depths:
        if least <= found["depth"] <= most:
            nets = broken_rows(found, "inputs")[0][1]
            ratios = [net["loss"] / net["best_linear"] for net in nets]
            lowest.append(min(ratios))
            said.append(f"{layer_word(found['depth'])} {min(ratios):.4f} to {max(ratios):.4f}")
    return lowest, "loss at the end, of the best linear map's: " + _told(said)


def _two_layers_stay(depths: list[Found]) -> Verdict:
    lowest, said = _beyond(depths, 2, 2)
    return Verdict(
        "With the symmetry two layers learn the linear part of an odd target that is not linear, and nothing else",
        _judge_all([low > 1 - 1e-4 for low in lowest]) if lowest else NOT_TESTABLE,
        said,
    )


def _more_layers(depths: list[Found]) -> Verdict:
    lowest, said = _beyond(depths, 3, 99)
    return Verdict(
        "More layers, which can do more, do better than the linear map by a tenth in the time given (ours)",
        _judge_all([low < 0.9 for low in lowest]) if lowest else NOT_TESTABLE,
        said,
    )


def _slight(depths: list[Found]) -> Verdict:
    claim = "Even a slight asymmetry makes the networks non-linear in the end (a review: in later phases)"
    said, good = [], []
    for found in depths:
        for kind in ("target", "inputs"):
            rows = broken_rows(found, kind)
            zero = mean([net["bent"] for net in rows[0][1]])
            parts = []
            for amount, nets in rows[1:]:
                bent = mean([net["bent"] for net in nets])
                parts.append(f"{100 * bent:.3g} % at {amount:g}")
                if kind == "target":
                    good.append(bent > zero and bent > amount**2 / 10)
            said.append(f"{layer_word(found['depth'])}, {kind}: {100 * zero:.2g} % at 0, {', '.join(parts)}")
    return Verdict(
        claim, _judge_all(good), "part of f at the end that no linear map explains: " + _told(said)
    )


def _rank_grows(depths: list[Found]) -> Verdict:
    said, good = [], []
    for found in depths:
        for kind in ("target", "inputs"):
            rows = broken_rows(found, kind)
            ends = [mean([net["rank1"][0] for net in nets]) for _, nets in (rows[0], rows[-1])]
            aligned = [mean([min(net["alignment"]) for net in nets]) for _, nets in (rows[0], rows[-1])]
            if kind == "target":
                good.append(ends[1] < ends[0] - 0.05)
            said.append(
                f"{layer_word(found['depth'])}, {kind}: {ends[0]:.3f} to {ends[1]:.3f} (alignment "
                f"{aligned[0]:.2f} to {aligned[1]:.2f})"
            )
    return Verdict(
        "As the target's even part grows the first layer loses its rank one (ours)",
        _judge_all(good),
        "part of ‖W_1‖² in the first singular value, from no asymmetry to the most: " + _told(said),
    )


def _still_conserved(depths: list[Found]) -> Verdict:
    worst = {
        kind: max(
            max(net["layers_drift"], net["units_drift"])
            for found in depths
            for _, nets in broken_rows(found, kind)
            for net in nets
        )
        for kind in ("target", "inputs")
    }
    return Verdict(
        "Balance does not need the symmetry: norms of layers and units stay balanced at every amount",
        HOLDS if worst["target"] < CONSERVED else FAILS,
        f"largest change, of the largest ‖W‖²: target {worst['target']:.1e}; inputs, where the solver takes "
        f"larger steps and "
        f"which is not judged, {worst['inputs']:.1e}",
    )


def digit_rows(part: Found, kind: str, amount: float) -> list[Found]:
    """The networks of one amount; linear ones are the same at every amount and were made once."""
    return [row for row in part[kind] if kind == "linear" or row["amount"] == amount]


def _digit_text(depths: list[Found], amount: float, more: str = "") -> str:
    said = []
    for found, part in _digit_parts(depths):
        rows = digit_rows(part, "relu", amount)
        text = f"{_digit_name(found, part)} {100 * mean([row['bent'] for row in rows]):.2g} %"
        said.append(text + (f" (odd part {mean([row['odd'] for row in rows]):.2f})" if more == "odd" else ""))
    return "part of f on the images that no linear map explains: " + _told(said)


def _digit_parts(depths: list[Found], *, least: int = 2, most: int = 99) -> list[tuple[Found, Found]]:
    return [(found, part) for found in depths if least <= found["depth"] <= most for part in found["digits"]]


def _digit_name(found: Found, part: Found) -> str:
    return f"{layer_word(found['depth'])}, {part['pair'][0]} / {part['pair'][1]}:"


def _bent(part: Found, amount: float) -> float:
    return mean([row["bent"] for row in digit_rows(part, "relu", amount)])


def _digits_symmetric(depths: list[Found]) -> Verdict:
    good = [_bent(part, 0.0) < BENT for _, part in _digit_parts(depths, most=2)]
    return Verdict(
        "Digit against digit, each image with its negative: two layers stay linear to 1 %",
        _judge_all(good) if good else NOT_TESTABLE,
        _digit_text(depths, 0.0),
    )


def _digits_deeper(depths: list[Found]) -> Verdict:
    good = [_bent(part, 0.0) < BENT for _, part in _digit_parts(depths, least=3)]
    return Verdict(
        "And so do more layers, stopped at the same point of the clock (ours)",
        _judge_all(good) if good else NOT_TESTABLE,
        _digit_text(depths, 0.0),
    )


def _digits_plain(depths: list[Found]) -> Verdict:
    good = []
    for _, part in _digit_parts(depths):
        odd = mean([row["odd"] for row in digit_rows(part, "relu", 1.0)])
        good.append(_bent(part, 1.0) < BENT and odd < 0.9)
    return Verdict(
        "Digit against digit, as the images are: f is linear on them to 1 %, too, but not odd (ours)",
        _judge_all(good),
        _digit_text(depths, 1.0, "odd"),
    )


def _digits_fixed(depths: list[Found]) -> Verdict:
    """Where no unit changes its sign over the inputs, a ReLU network is a linear one there."""
    said, good = [], []
    for found, part in _digit_parts(depths):
        mirror, plain = (mean([row["fixed"] for row in digit_rows(part, "relu", a)]) for a in (0.0, 1.0))
        good.append(plain > 0.9)
        said.append(f"{_digit_name(found, part)} {plain:.2f} (trained with negatives {mirror:.2f})")
    return Verdict(
        "The reason is that pixels are not negative: nine tenths of the first layer are on for all images or "
        "for none (our guess)",
        _judge_all(good),
        "part of ‖W_1‖² in units on at 99 % of the images or more, or 1 % or less: " + _told(said),
    )


def _digits_speed(depths: list[Found]) -> Verdict:
    """A unit that is on for every image sees all of them, not half, and so learns at the linear network's speed."""
    said, good = [], []
    for found, part in _digit_parts(depths):
        linear = [row["half_time"] for row in digit_rows(part, "linear", 0.0)]
        ratios = []
        for amount in (0.0, 1.0):
            times = [row["half_time"] for row in digit_rows(part, "relu", amount)]
            if None in times or None in linear:
                ratios.append(math.nan)
            else:
                ratios.append(mean(times) / mean(linear))
        said.append(
            f"{_digit_name(found, part)} {ratios[0]:.2f} and {ratios[1]:.2f}".replace("nan", "not reached")
        )
        if found["depth"] == 2:
            good.append(abs(ratios[0] - 2) < 0.4 and ratios[1] < 1.6)
    return Verdict(
        "With negatives two layers need about twice the time of the linear network, on the images alone less (ours)",
        _judge_all(good) if good else NOT_TESTABLE,
        "time to half the loss, of the linear network's, with and without negatives: " + _told(said),
    )


def _digits_rank(depths: list[Found]) -> Verdict:
    said, good = [], []
    for found, part in _digit_parts(depths):
        linear = mean([row["rank1"][0] for row in digit_rows(part, "linear", 0.0)])
        relu = [mean([row["rank1"][0] for row in digit_rows(part, "relu", amount)]) for amount in (0.0, 1.0)]
        good += [value >= LOW_RANK for value in (linear, *relu)]
        said.append(f"{_digit_name(found, part)} linear {linear:.3f}, ReLU {relu[0]:.3f} and {relu[1]:.3f}")
    return Verdict(
        "On digits, too, the first layer is of rank one, with the negatives and without",
        _judge_all(good),
        "part of ‖W_1‖² in the first singular value: " + _told(said),
    )
