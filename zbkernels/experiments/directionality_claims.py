"""What the paper says with Figure 1, each claim with the rule by which it is judged; then what we add to it."""

from __future__ import annotations

from typing import Any

from zbkernels.experiments.angles import median, nearer_share, obtuse_share
from zbkernels.experiments.neighbours import CENTRED, DIRECTION, DISTANCE, NEAR_TIE
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, WITHIN_SPREAD, Verdict, judge, spread

TOLERANCE = 0.5  # percentage points that direction may be behind distance
LOST = 5.0  # percentage points that count as losing accuracy
RIGHT_ANGLES = 0.1  # resultant of directions that point every way

_SAME_DIRECTION = (
    "An image is a direction and its copies of other contrast lie along it: it keeps its class (Figure 1c)"
)
_ENOUGH = "Images have directionality (Section 1): direction tells the class as well as position does"
_CONES = "Image classes can be thought of as cones (Figure 1b): angles within a class are smaller than between classes"
_ROUND = "One round cone about its mean direction is enough for a class (Figure 1b as drawn; our reading)"
_DISTANCE = "By distance the class is lost with the contrast: in the end all images get one class (ours)"
_CONE = "Images with pixels from 0 lie in one cone about the origin; subtracting the mean undoes it (ours)"
_CENTRED = "After the mean is subtracted direction depends on contrast too (ours)"

Found = dict[str, Any]


def verdicts(metrics: dict[str, Any]) -> list[Verdict]:
    """One verdict per claim, over all image sets: the worst."""
    sets = metrics["sets"]
    return [
        _same_direction(sets),
        _with_rules(_ENOUGH, sets, (DIRECTION, DISTANCE), _enough),
        _cones(sets),
        _with_rules(_ROUND, sets, (DIRECTION,), _round),
        _with_rules(_DISTANCE, sets, (DISTANCE,), _distance),
        _cone(sets),
        _with_rules(_CENTRED, sets, (CENTRED,), _centred),
    ]


def accuracy(found: Found, rule: str) -> float:
    """Accuracy (%) by a rule at scalar 1."""
    return found["accuracies"][rule][0]["accuracy"]


def subset_accuracies(found: Found, rule: str) -> list[float]:
    return [part["accuracies"][rule][0]["accuracy"] for part in found["subsets"]]


def _with_rules(claim: str, sets: list[Found], rules: tuple[str, ...], judged: Any) -> Verdict:
    if any(rule not in found["accuracies"] for found in sets for rule in rules):
        return Verdict(claim, NOT_TESTABLE, "one of the rules was not tried in this run")
    return judged(sets)


def _worst(judged: list[str]) -> str:
    return next((verdict for verdict in (FAILS, WITHIN_SPREAD) if verdict in judged), HOLDS)


def _same_direction(sets: list[Found]) -> Verdict:
    checks = [found["recheck"] for found in sets]
    tried = sum(check["images"] * check["scalars"] for check in checks)
    changed = sum(check["changed"] for check in checks)
    gap = max((check["gap"] for check in checks if check["gap"] is not None), default=None)
    ties = "" if gap is None else f", its cosine and that of the nearest at scalar 1 within {gap:.1g}"
    return Verdict(
        _SAME_DIRECTION,
        HOLDS if gap is None or gap <= NEAR_TIE else FAILS,
        f"of {tried:,} multiplied images (scalars down to 0.0001, float32) {f'{changed:,}' if changed else 'none'} had "
        f"another nearest direction{ties}",
    )


def _enough(sets: list[Found]) -> Verdict:
    judged, said = [], []
    for found in sets:
        direction, distance = accuracy(found, DIRECTION), accuracy(found, DISTANCE)
        differences = [
            one - other
            for one, other in zip(
                subset_accuracies(found, DIRECTION), subset_accuracies(found, DISTANCE), strict=True
            )
        ]
        judged.append(judge(min(0.0, direction - distance), TOLERANCE, spread(differences)))
        said.append(f"{found['name']} {direction:.2f} against {distance:.2f} %")
    return Verdict(
        _ENOUGH, _worst(judged), f"nearest neighbour by direction against distance: {'; '.join(said)}"
    )


def _cones(sets: list[Found]) -> Verdict:
    said, holds = [], True
    for found in sets:
        raw, angles = found["angles"]["raw"], found["angles"]
        share = nearer_share(raw["same"], raw["different"])
        holds = holds and share > 0.5 and angles["nearest_own"][1] < angles["nearest_other"][1]
        said.append(
            f"{found['name']} medians {median(raw['same']):.0f}° and {median(raw['different']):.0f}°, smaller "
            f"within a class in {100 * share:.0f} % of comparisons, nearest of its class "
            f"{angles['nearest_own'][1]:.0f}° and of another {angles['nearest_other'][1]:.0f}°"
        )
    return Verdict(_CONES, HOLDS if holds else FAILS, "; ".join(said))


def _round(sets: list[Found]) -> Verdict:
    gaps = [accuracy(found, DIRECTION) - found["angles"]["by_class_mean"] for found in sets]
    said = [
        f"{found['name']} {found['angles']['by_class_mean']:.2f} against {accuracy(found, DIRECTION):.2f} %"
        for found in sets
    ]
    return Verdict(
        _ROUND,
        HOLDS if max(gaps) <= TOLERANCE else FAILS,
        f"nearest mean direction of a class against nearest image's direction: {'; '.join(said)}",
    )


def _distance(sets: list[Found]) -> Verdict:
    rows = [(found["name"], found["accuracies"][DISTANCE]) for found in sets]
    holds = all(
        row[-1]["commonest_share"] == 100 and row[0]["accuracy"] - row[-1]["accuracy"] > LOST
        for _, row in rows
    )
    said = [
        f"{name} {row[0]['accuracy']:.1f} % at {row[0]['scalar']:g}, {row[len(row) // 2]['accuracy']:.1f} at "
        f"{row[len(row) // 2]['scalar']:g}, {row[-1]['accuracy']:.1f} at {row[-1]['scalar']:g} "
        f"({row[-1]['commonest_share']:.0f} % in one class)"
        for name, row in rows
    ]
    return Verdict(_DISTANCE, HOLDS if holds else FAILS, "; ".join(said))


def _cone(sets: list[Found]) -> Verdict:
    said, holds = [], True
    for found in sets:
        raw, centred = found["angles"]["raw"], found["angles"]["centred"]
        before, after = (obtuse_share(kind["same"], kind["different"]) for kind in (raw, centred))
        *_, farthest = found["angles"]["to_mean"]
        holds = holds and before == 0 and farthest < 90 and centred["resultant"] <= RIGHT_ANGLES and after > 0
        said.append(
            f"{found['name']}: farthest from the mean image {farthest:.0f}°, pairs beyond 90.5° {before:.0f} % and "
            f"then {after:.0f} %, mean of the unit vectors {raw['resultant']:.2f} long "
            f"and then {centred['resultant']:.2f}"
        )
    return Verdict(_CONE, HOLDS if holds else FAILS, "; ".join(said))


def _centred(sets: list[Found]) -> Verdict:
    rows = [(found["name"], found["accuracies"][CENTRED]) for found in sets]
    holds = all(row[0]["accuracy"] - row[-1]["accuracy"] > LOST for _, row in rows)
    said = [
        f"{name} {row[0]['accuracy']:.1f} % at {row[0]['scalar']:g}, {row[len(row) // 2]['accuracy']:.1f} at "
        f"{row[len(row) // 2]['scalar']:g}, {row[-1]['accuracy']:.1f} at {row[-1]['scalar']:g}"
        for name, row in rows
    ]
    return Verdict(_CENTRED, HOLDS if holds else FAILS, "; ".join(said))
