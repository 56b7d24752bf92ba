"""The paper's claims about the zero image, and what they leave open, each with the rule by which it is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from zbkernels.experiments.units import WITH_BIAS, WITHOUT_BIAS
from zbkernels.experiments.zero_image_trainings import TRAININGS
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, Verdict, mean

EVEN = 1.1  # times 1/C: up to here the likeliest class is not preferred
TRAINED = 80.0  # accuracy (%) that a network needs for statements about trained ones
MOVED = 0.05  # total variation distance from which two distributions over the classes differ
LEARNT = 0.5  # of the prior's distance from uniform: nearer than this, a distribution counts as the prior

Unit = dict[str, Any]

_UNIFORM = "A scalar invariant network is uniform over the classes on the zero image (equation 11, Figure 4)"
_ARGMAX = "So N(0), the argmax of equation 11, is equally likely to be any class"
_BIASED = "Networks with biases prefer certain classes on the zero image"
_IMBALANCE = "Imbalanced training cannot alter the uniform belief of networks without biases"
_AUGMENTED = (
    "What networks with biases prefer is not easily mended by augmented data or another training objective"
)
_KNOWN = "ResNets, EfficientNet and ViT prefer certain classes on the zero image (Figure 4)"
_ORDER = "Of these three EfficientNet is the least biased, ViT heavily (Figure 4)"
_NEAR = "Without biases, s·x has the class of x for every s > 0: only softmax tends to uniform as s goes to 0 (ours)"
_NEAR_IMBALANCE = (
    "So next to the zero image imbalanced training leaves networks without biases as they were (ours)"
)
_ONE_CLASS = "With biases, all images get the zero image's class as s goes to 0 (ours)"
_PRIOR = "Trained on a long tail, biases alone give the classes' frequencies (ours)"
_PRIOR_DARK = "They can where dark images are in the long tail (ours)"


def verdicts(metrics: dict[str, Any]) -> list[Verdict]:
    """One verdict per claim: the paper's first, then ours."""
    units = [unit for network in metrics["networks"] for unit in network["units"]]
    zero = [unit for unit in units if unit["variant"] == WITHOUT_BIAS]
    biased = [unit for unit in units if unit["variant"] == WITH_BIAS]
    imbalanced = [unit for unit in zero if TRAININGS[unit["training"]].imbalanced]
    judged: list[tuple[str, Any, Callable[[], Verdict]]] = [
        (_UNIFORM, zero, lambda: _uniform(_UNIFORM, zero)),
        (_ARGMAX, zero, lambda: _argmax(zero)),
        (_BIASED, biased, lambda: _biased(metrics)),
        (_IMBALANCE, imbalanced, lambda: _uniform(_IMBALANCE, imbalanced)),
        (_AUGMENTED, biased, lambda: _augmented(metrics)),
        (_KNOWN, True, lambda: _known(metrics["references"])),
        (_ORDER, True, lambda: _order(metrics["references"])),
        (_NEAR, zero, lambda: _near(zero)),
        (_NEAR_IMBALANCE, zero, lambda: _near_imbalance(metrics)),
        (_ONE_CLASS, biased, lambda: _one_class(biased)),
        (_PRIOR, biased, lambda: _prior(_PRIOR, metrics, "long tail", every=True)),
        (_PRIOR_DARK, biased, lambda: _prior(_PRIOR_DARK, metrics, "long tail, contrasts", every=False)),
    ]
    missing = "networks of this kind were not trained in this run"
    return [judge() if there else Verdict(claim, NOT_TESTABLE, missing) for claim, there, judge in judged]


def of(units: Sequence[Unit], training: str, variant: str | None = None) -> list[Unit]:
    """The units trained in one way, of one kind or of both."""
    return [u for u in units if u["training"] == training and variant in (None, u["variant"])]


def preference(distribution: dict[str, Any]) -> float:
    """Probability of the likeliest class, times the number of classes: 1 where all are equal."""
    return max(distribution["probabilities"]) * len(distribution["probabilities"])


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Total variation distance of two distributions, 0 to 1."""
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / 2


def _uniform(claim: str, units: list[Unit]) -> Verdict:
    seen = [unit["zero"] for unit in units] + [watched["zero"] for u in units for watched in u["watched"]]
    largest = max(zero["largest_logit"] for zero in seen)
    measured = (
        f"largest logit {largest:g} in {len(units)} networks, before and after training; "
        f"entropy at least {min(zero['entropy'] for zero in seen):.6f} log C"
    )
    return Verdict(claim, HOLDS if largest == 0 else FAILS, measured)


def _argmax(units: list[Unit]) -> Verdict:
    predicted = {unit["zero"]["predicted"] for unit in units}
    classes = ", ".join(map(str, sorted(predicted)))
    measured = (
        f"class {classes} in all {len(units)} networks: of equal logits argmax takes the first; the uniform "
        "distribution is softmax's, and a class would have to be drawn from it"
    )
    return Verdict(_ARGMAX, FAILS if len(predicted) == 1 else HOLDS, measured)


def _biased(metrics: dict[str, Any]) -> Verdict:
    said, preferred = [], []
    for network in metrics["networks"]:
        units = of(network["units"], "balanced", WITH_BIAS)
        accuracy = mean([unit["accuracy"] for unit in units])
        if accuracy < TRAINED:
            return Verdict(
                _BIASED, NOT_TESTABLE, f"{network['name']}: {accuracy:.1f} % accuracy, hardly trained"
            )
        found = [preference(unit["zero"]) for unit in units]
        before = [preference(unit["watched"][0]["zero"]) for unit in units]
        preferred += found
        said.append(f"{network['name']}: {_range(found)} (untrained {_range(before)})")
    verdict = HOLDS if min(preferred) > EVEN else FAILS
    return Verdict(_BIASED, verdict, f"likeliest class, times 1/C: {'; '.join(said)}")


def _augmented(metrics: dict[str, Any]) -> Verdict:
    """Fails where one way of augmenting leaves no preference at any seed, in a network that has one without it."""
    ways = [
        training.name for training in TRAININGS.values() if training.augmented and not training.imbalanced
    ]
    said, mended = [], False
    for network in metrics["networks"]:
        plain = [preference(unit["zero"]) for unit in of(network["units"], "balanced", WITH_BIAS)]
        found = {way: of(network["units"], way, WITH_BIAS) for way in ways}
        if not all(found.values()) or max(plain) <= EVEN:
            continue
        values = {way: [preference(unit["zero"]) for unit in units] for way, units in found.items()}
        mended |= any(max(value) <= EVEN for value in values.values())
        listed = ", ".join(f"{way} {_range(value)}" for way, value in values.items())
        said.append(f"{network['name']}: {_range(plain)}, with {listed}")
    if not said:
        return Verdict(
            _AUGMENTED, NOT_TESTABLE, "no network with biases prefers a class and was trained in these ways"
        )
    measured = f"likeliest class, times 1/C: {'; '.join(said)} (no preference up to {EVEN:g})"
    return Verdict(_AUGMENTED, FAILS if mended else HOLDS, measured)


_NO_WEIGHTS = "no trained weights were given (--checkpoint)"


def _given(references: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [reference for reference in references if reference["trained"] and "inputs" in reference]


def _known(references: list[dict[str, Any]]) -> Verdict:
    given = _given(references)
    if not given:
        return Verdict(_KNOWN, NOT_TESTABLE, _NO_WEIGHTS)
    preferences = [preference(each) for reference in given for each in reference["inputs"]]
    verdict = HOLDS if min(preferences) > EVEN else FAILS
    return Verdict(
        _KNOWN, verdict, f"likeliest class, times 1/C: {_range(preferences)} in {len(given)} checkpoints"
    )


def _order(references: list[dict[str, Any]]) -> Verdict:
    """On the zero tensor and on the black picture alike; of several checkpoints of a family the mean counts."""
    given = _given(references)
    entropies: dict[str, tuple[float, float]] = {}
    for family in ("ResNet", "EfficientNet", "ViT"):
        members = [reference["inputs"] for reference in given if reference["family"] == family]
        if not members:
            return Verdict(
                _ORDER, NOT_TESTABLE, f"no checkpoint of {family} was given" if given else _NO_WEIGHTS
            )
        black, zero = (mean([inputs[at]["entropy"] for inputs in members]) for at in (0, -1))
        entropies[family] = black, zero
    holds = all(
        entropies["EfficientNet"][at] == max(values[at] for values in entropies.values())
        and entropies["ViT"][at] == min(values[at] for values in entropies.values())
        for at in (0, 1)
    )
    said = ", ".join(f"{family} {black:.3f} / {zero:.3f}" for family, (black, zero) in entropies.items())
    return Verdict(
        _ORDER, HOLDS if holds else FAILS, f"entropy over log C, black picture / zero tensor: {said}"
    )


def _near(units: list[Unit]) -> Verdict:
    changed = sum(row["changed"] for unit in units for row in unit["near"])
    entropy = min(unit["near"][-1]["entropy"] for unit in units)
    smallest = units[0]["near"][-1]["scalar"]
    measured = (
        f"{changed} predictions changed down to s = {smallest:.0e}; entropy there {entropy:.6f} log C or more"
    )
    return Verdict(_NEAR, HOLDS if not changed and entropy > 1 - 1e-6 else FAILS, measured)


def _near_imbalance(metrics: dict[str, Any]) -> Verdict:
    said, moved = [], []
    for network in metrics["networks"]:
        plain = of(network["units"], "balanced", WITHOUT_BIAS)
        tail = of(network["units"], "long tail", WITHOUT_BIAS)
        if not tail:
            continue
        seeds = {unit["seed"]: unit["near"][-1]["shares"] for unit in plain}
        moved += [distance(unit["near"][-1]["shares"], seeds[unit["seed"]]) for unit in tail]
        rarest = [[100 * unit["near"][-1]["shares"][0] for unit in group] for group in (plain, tail)]
        said.append(f"{network['name']}: {mean(rarest[0]):.1f} and {mean(rarest[1]):.1f} %")
    if not said:
        return Verdict(_NEAR_IMBALANCE, NOT_TESTABLE, "no network was trained on a long tail")
    measured = (
        f"predictions of test images at the smallest s move by {_range(moved)} (total variation); of the rarest class, "
        f"balanced and long tail: {'; '.join(said)}"
    )
    return Verdict(_NEAR_IMBALANCE, HOLDS if max(moved) <= MOVED else FAILS, measured)


def _one_class(units: list[Unit]) -> Verdict:
    shares = [unit["near"][-1]["shares"][unit["zero"]["predicted"]] for unit in units]
    smallest = units[0]["near"][-1]["scalar"]
    measured = (
        f"{100 * min(shares):.1f} % of the images or more at s = {smallest:.0e}, in {len(units)} networks"
    )
    return Verdict(_ONE_CLASS, HOLDS if min(shares) == 1 else FAILS, measured)


def _prior(claim: str, metrics: dict[str, Any], way: str, *, every: bool) -> Verdict:
    """Holds where each network, or one of them, has learnt the frequencies at each seed."""
    said, learnt = [], []
    for network in metrics["networks"]:
        units = of(network["units"], way, WITH_BIAS)
        if not units:
            continue
        prior = units[0]["prior"]
        far = distance([1 / len(prior)] * len(prior), prior)
        ratios = [distance(unit["zero"]["probabilities"], prior) / far for unit in units]
        learnt.append(max(ratios) <= LEARNT)
        said.append(f"{network['name']}: {_range(ratios)}")
    if not said:
        return Verdict(claim, NOT_TESTABLE, "no network was trained in this way")
    measured = (
        f"distance from the frequencies, that of the uniform distribution being 1: {'; '.join(said)} "
        f"(learnt up to {LEARNT:g})"
    )
    return Verdict(claim, HOLDS if (all if every else any)(learnt) else FAILS, measured)


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"
