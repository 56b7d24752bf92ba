"""What Section 3 says of symmetries, each claim with the rule by which it is judged; and what it takes to see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zbkernels.exchangeability.symmetry_tests import SIDES, holm
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, Verdict

START = "start"
LEVEL = 0.05  # of a whole family of tests, by Holm's adjustment
FIRST_STEP = 4.0  # units of rounding
AMPLIFIED = 100.0  # times what one unit of rounding in each weight grows to
UNITS = 100  # of rounding: as good as none
DISTANT = 1e-4  # relative: far beyond rounding
POWERFUL = 0.9

Found = dict[str, Any]
Test = tuple[str, int, str, float]  # (ensemble, layer, side, p)


def verdicts(metrics: Found) -> list[Verdict]:
    return [
        *_permuting(metrics),
        *_theorem(metrics),
        _at_the_start(metrics),
        _symmetric(metrics),
        _weaker_than_iid(metrics),
        _linked(metrics),
        _one_network(metrics),
        _level(metrics),
        _power(metrics),
        _planted_rule(metrics),
    ]


def trained_of(metrics: Found) -> list[Found]:
    return [found for found in metrics["ensembles"] if found["name"] != START]


def ensemble_of(metrics: Found, name: str) -> Found:
    return next(found for found in metrics["ensembles"] if found["name"] == name)


def tests_of(found: Found) -> Iterator[Test]:
    """Of every layer's rows and columns."""
    for layer in found["layers"]:
        for side in SIDES:
            yield found["name"], layer["layer"], side, layer[side]["p"]


def is_of_pixels(metrics: Found, layer: int, side: str) -> bool:
    """Whether these are the columns of the first layer or the rows of the last."""
    return (layer, side) in ((1, "columns"), (len(metrics["layers"]) - 1, "rows"))


def _permuting(metrics: Found) -> Iterator[Verdict]:
    grown, first, ends, lasts, lost = [], [], [], [], False
    for found in metrics["permuted"]:
        steps = {}
        for precision in ("float64", "float32"):
            eps, rows = found[precision]["eps"], found[precision]["rows"][1:]
            first.append(rows[0]["permuted"] / eps)
            within = [row["step"] for row in rows if row["permuted"] <= UNITS * eps]
            steps[precision] = f"{max(within, default=0):,}"
        rows = found["float64"]["rows"][1:]
        lost = lost or rows[-1]["permuted"] > DISTANT
        grown += [row["permuted"] / max(row["rounded"], found["float64"]["eps"]) for row in rows]
        ends.append(f"{found['rule']} {rows[-1]['permuted']:.0e}")
        lasts.append(f"{found['rule']} {steps['float64']} ({steps['float32']})")
    rows = metrics["permuted"][0]["float64"]["rows"]
    yield Verdict(
        "Observation 4 with (7): units permuted before training give the trained network, permuted, to rounding",
        HOLDS if max(first) <= FIRST_STEP and max(grown) <= AMPLIFIED else FAILS,
        f"‖difference‖/‖weights‖ after {rows[1]['step']} step at most {max(first):.2g} units of rounding, in float64 "
        f"as in float32; in float64 at every later step at most {max(grown):.2g} times as far apart as a network and "
        f"itself with one rounding added to each weight before training. After {rows[-1]['step']:,} steps: "
        f"{'; '.join(ends)}",
    )
    yield Verdict(
        "And it stays there however long they train (ours: on a computer, whose sums depend on their order)",
        FAILS if lost else HOLDS,
        f"training amplifies rounding, of permuted sums as of anything else; last compared step, of "
        f"{rows[-1]['step']:,}, with at most {UNITS} units of rounding in float64 (float32): {'; '.join(lasts)}. The "
        "laws stay equal, the networks do not",
    )
    controls = [
        (found["rule"], name, row[name])
        for found in metrics["permuted"]
        for name in ("inputs", "uneven")
        for row in found["float64"]["rows"][1:]
        if name in row
    ]
    named = {
        "inputs": "columns of the first layer permuted too",
        "uneven": "a step size that depends on the unit",
    }
    least = {name: min(value for _, kind, value in controls if kind == name) for name in named}
    yield Verdict(
        "What the theorem leaves out does not commute: input columns, and rules that treat units differently (ours)",
        HOLDS if min(least.values()) > DISTANT else FAILS,
        f"distance from the first step on, at least: {'; '.join(f'{named[n]} {v:.2g}' for n, v in least.items())}",
    )


def _passes(claim: str, tests: list[Test], note: str = "") -> Verdict:
    """No test rejects at the level of the family."""
    adjusted = holm([p for *_, p in tests])
    name, layer, side, p = min(tests, key=lambda test: test[3])
    return Verdict(
        claim,
        HOLDS if min(adjusted) > LEVEL else FAILS,
        f"{len(tests)} tests, smallest p {p:.3g} ({_named(name, layer, side)}), adjusted for their number "
        f"{min(adjusted):.2g}{note}",
    )


def _fails(claim: str, tests: list[Test], note: str = "") -> Verdict:
    """Every test rejects at the level of the family."""
    adjusted = holm([p for *_, p in tests])
    name, layer, side, p = max(tests, key=lambda test: test[3])
    return Verdict(
        claim,
        HOLDS if max(adjusted) <= LEVEL else FAILS,
        f"{len(tests)} tests, largest p {p:.3g} ({_named(name, layer, side)}), adjusted {max(adjusted):.2g}{note}",
    )


def _named(name: str, layer: int, side: str) -> str:
    return f"{name}, layer {layer}, {side}"


def _theorem(metrics: Found) -> Iterator[Verdict]:
    tests = [test for found in trained_of(metrics) for test in tests_of(found)]
    last = len(metrics["layers"]) - 1
    yield _passes(
        "Theorem 5: trained inner layers are row and column exchangeable",
        [test for test in tests if 1 < test[1] < last],
    )
    for layer, fine, broken, what in (
        (1, "rows", "columns", "first"),
        (last, "columns", "rows", "last"),
    ):
        yield _passes(
            f"Theorem 5: the trained {what} layer is exchangeable in its {fine}",
            [test for test in tests if test[1:3] == (layer, fine)],
        )
        sizes = [
            f"{found['name']} {100 * found['layers'][layer - 1][broken]['unevenness']:.1f} %"
            for found in trained_of(metrics)
        ]
        yield _fails(
            f"Theorem 5: and is not in its {broken}",
            [test for test in tests if test[1:3] == (layer, broken)],
            f"; mean squares differ by {', '.join(sizes)} (standard deviation)",
        )


def _at_the_start(metrics: Found) -> Verdict:
    return _passes(
        "Before training rows and columns of all layers are exchangeable, so Theorem 5's last sentence needs t > 0 "
        "(ours)",
        list(tests_of(ensemble_of(metrics, START))),
    )


def _symmetric(metrics: Found) -> Verdict:
    found = metrics["symmetric"]
    count, losses = len(found["rows"]), found["losses"]
    error = (LEVEL * (1 - LEVEL) / count) ** 0.5
    shares = {side: sum(p <= LEVEL for p in found[side]) / count for side in ("columns", "rows")}
    return Verdict(
        "And it needs data that tell the coordinates apart: trained on all one-hot inputs at a time, columns of the "
        "first layer and rows of the last stay exchangeable (ours)",
        HOLDS if all(abs(share - LEVEL) <= 3 * error for share in shares.values()) else FAILS,
        f"of {count} ensembles of {found['networks']} networks {'-'.join(map(str, found['layers']))}, loss "
        f"{losses[0]:.3g} to {losses[1]:.3g}, tests at 5 % reject {100 * shares['columns']:.1f} % and "
        f"{100 * shares['rows']:.1f} % (chance: 5 ± {100 * error:.1f} %)",
    )


def _weaker_than_iid(metrics: Found) -> Verdict:
    claim = "Figure 1: that is weaker than IID, which trained inner layers are not (ours: permuting single entries)"
    start = [layer["entries"] for layer in ensemble_of(metrics, START)["layers"] if layer["entries"]]
    after = {
        found["name"]: [layer["entries"] for layer in found["layers"] if layer["entries"]]
        for found in trained_of(metrics)
    }
    said = "; ".join(f"{name} {', '.join(f'{p:.2g}' for p in values)}" for name, values in after.items())
    said = f"p before training {', '.join(f'{p:.2g}' for p in start)}; after: {said}"
    if min(holm(start)) <= LEVEL:
        return Verdict(claim, FAILS, said)
    found = [p <= LEVEL for p in holm([p for values in after.values() for p in values])]
    if not all(found):
        part = "none" if not any(found) else f"{sum(found)} of {len(found)}"
        return Verdict(claim, NOT_TESTABLE, f"seen in {part} at this size of ensemble: {said}")
    return Verdict(claim, HOLDS, said)


def _linked(metrics: Found) -> Verdict:
    start = [layer["linked"] for layer in ensemble_of(metrics, START)["layers"] if layer["linked"]]
    places = [
        (found["name"], layer["linked"])
        for found in trained_of(metrics)
        for layer in found["layers"]
        if layer["linked"]
    ]
    seen = {name for (name, _), p in zip(places, holm([p for _, p in places]), strict=True) if p <= LEVEL}
    count = sum(p <= LEVEL for p in holm([p for _, p in places]))
    everywhere = seen == {name for name, _ in places}
    return Verdict(
        "Observation 4 permutes units on both sides at once: a layer's rows alone change the joint law (ours)",
        HOLDS if min(holm(start)) > LEVEL and everywhere else FAILS,
        f"smallest p before training {min(start):.2g} of {len(start)}; after, {count} of {len(places)} neighbouring "
        f"layers are found joined, at least one for {len(seen)} of the optimisers",
    )


def _one_network(metrics: Found) -> Verdict:
    first: list[tuple[float, str]] = []
    last: list[float] = []
    units: list[float] = []
    for found in trained_of(metrics):
        for layer in found["layers"]:
            for side in SIDES:
                share = layer[side]["single"]
                if not is_of_pixels(metrics, layer["layer"], side):
                    units.append(share)
                elif layer["layer"] == 1:
                    first.append((share, found["name"]))
                else:
                    last.append(share)
    error = (LEVEL * (1 - LEVEL) / metrics["networks"]) ** 0.5
    within = all(abs(share - LEVEL) <= 4 * error for share in units)
    return Verdict(
        "One network can tell something where coordinates have labels, and nothing where they have none (ours)",
        HOLDS if within and max(first)[0] > LEVEL + 4 * error else FAILS,
        "networks rejected at 5 % one by one: first columns by the pixels' variances in the data "
        f"{100 * min(first)[0]:.0f} % ({min(first)[1]}) to {100 * max(first)[0]:.0f} % ({max(first)[1]}), last rows "
        f"{100 * min(last):.0f} to {100 * max(last):.0f} %; units by their numbers {100 * min(units):.1f} to "
        f"{100 * max(units):.1f} % (chance: 5 ± {100 * error:.1f} %)",
    )


def _level(metrics: Found) -> Verdict:
    rows = [row for row in metrics["power"]["rows"] if row["size"] == 0]
    rejected, trials = sum(row["rejected"] for row in rows), sum(row["trials"] for row in rows)
    error = (LEVEL * (1 - LEVEL) / trials) ** 0.5
    return Verdict(
        "The test's level is what it says (ours)",
        HOLDS if abs(rejected / trials - LEVEL) <= 3 * error else FAILS,
        f"nothing planted, level 5 %: {100 * rejected / trials:.1f} % of {trials} rejected "
        f"(chance: ± {100 * error:.1f} %)",
    )


def curve(metrics: Found, networks: int, kind: str) -> list[tuple[float, float]]:
    """(size, share rejected) of what was planted."""
    return [
        (row["size"], row["rejected"] / row["trials"])
        for row in metrics["power"]["rows"]
        if row["networks"] == networks and (row["kind"] == kind or row["size"] == 0)
    ]


def detected(points: list[tuple[float, float]]) -> float | None:
    """The smallest size from which on at least POWERFUL of the trials reject."""
    found = None
    for size, share in reversed(points):
        if share < POWERFUL or size == 0:
            break
        found = size
    return found


def _power(metrics: Found) -> Verdict:
    rows = metrics["power"]["rows"]
    said, enough = [], True
    largest = max(row["networks"] for row in rows)
    for networks in sorted({row["networks"] for row in rows}):
        parts = []
        for kind, what in (("scale", "scaled"), ("shift", "shifted"), ("pair", "correlated")):
            size = detected(curve(metrics, networks, kind))
            parts.append(f"{what} {'not' if size is None else f'{100 * size:g} %'}")
            enough = enough and (networks < largest or size is not None)
        said.append(f"{networks} networks: {', '.join(parts)}")
    return Verdict(
        "And it has power: one column out of all is found (ours)",
        HOLDS if enough else FAILS,
        f"smallest planted size that {100 * POWERFUL:.0f} % of the trials find: {'; '.join(said)}",
    )


def _planted_rule(metrics: Found) -> Verdict:
    planted = metrics["planted"]
    rows = planted["rows"]
    adjusted = holm([row["p"] for row in rows])
    said = [f"{1 + row['strength']:g} times: p = {row['p']:.2g}" for row in rows]
    claim = "A rule that gives one unit longer steps is no index commuting one, and the trained rows show it (ours)"
    if not rows:
        return Verdict(claim, NOT_TESTABLE, "no such rule was trained")
    return Verdict(
        claim,
        HOLDS if adjusted[-1] <= LEVEL else FAILS,
        f"{planted['rule']}, rows of layer 2, first unit's steps {'; '.join(said)}",
    )
