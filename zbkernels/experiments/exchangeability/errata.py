"""Formulas of the paper that do not hold as printed: for each a witness, numbers computed both ways.

The derivations are in docs/papers/exchangeability.md. Expectations over Gaussians are closed forms or quadrature where
they can be, so that a witness is not a matter of sampling; those that sample say how far that is off.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from zbkernels.exchangeability.bounds import Moments, bound_11, equation_9, moments, three_terms
from zbkernels.exchangeability.layer_kernels import arc_cosine, over_angles
from zbkernels.exchangeability.pairs import procedure1, qr_pairs
from zbkernels.exchangeability.weight_distributions import generalised_normal, kurtosis

_DRAWS = 12  # layers that a witness takes the mean of


@dataclass(frozen=True)
class Erratum:
    """Where, what is printed, what is right, and a witness: named numbers of ``witness()``."""

    key: str
    place: str
    printed: str
    right: str
    witness: Callable[[], dict[str, float]]


def shifted_moments(mean: float) -> tuple[float, float]:
    """E[relu(z + mean)] and E[relu(z + mean)^2] of a standard normal z."""
    density = math.exp(-(mean**2) / 2) / math.sqrt(2 * math.pi)
    below = (1 + math.erf(mean / math.sqrt(2))) / 2
    return mean * below + density, (1 + mean**2) * below + mean * density


def _dominating() -> dict[str, float]:
    """He weights of 784 inputs: E[Z_x^2 + Z_y^2] by definition, and the integral that it dominates at x = y."""
    variance = 2 / 784
    return {"printed": 0.0, "right": 2 * variance, "dominated at θ = 0": variance / 2}


def _covariance() -> dict[str, float]:
    """E[relu(Z_x) relu(Z_y)] at x = y: with the covariance as printed, with the factor E[W^2], and measured."""
    variance = 2 / 784
    generator = torch.Generator().manual_seed(0)
    pair = qr_pairs(784, generator=generator)
    weight = variance**0.5 * torch.randn(5_000, 784, generator=generator, dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    measured = float(over_angles(weight, pair.x, pair.p, zero, normalized=False))
    return {"printed": 0.5, "right": variance / 2, "measured": measured}


def _third_moment() -> dict[str, float]:
    """Student's t of 2.5 degrees has E[W]^3 = 0. E[|W|^3; |W| <= c] grows as √c."""
    degrees = 2.5
    log_factor = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - math.log(degrees * math.pi) / 2
    w = torch.logspace(-6, 9, 150_001, dtype=torch.float64)
    density = math.exp(log_factor) * (1 + w.square() / degrees) ** (-(degrees + 1) / 2)
    up_to = torch.cumulative_trapezoid(2 * w**4 * density, w.log())  # dw = w d(log w)
    found = {"printed E[W]³": 0.0}
    for power in (2, 4, 6):
        found[f"E[|W|³; |W| ≤ 1e{power}]"] = float(up_to[round((power + 6) * 10_000) - 1])
    return found


def _hypothesis3() -> dict[str, float]:
    """x with one coordinate m^(-1/5): Hypothesis 3 fails, but the law of W·x goes to the normal one.

    The excess kurtosis of W·x is that of W times the sum of the fourth powers of x's coordinates.
    """
    found = {}
    for m in (10**3, 10**6, 10**9):
        largest = m**-0.2
        rest = (1 - largest**2) / (m - 1)  # square of each other coordinate
        fourth = largest**4 + (m - 1) * rest**2
        found[f"m^(1/4) max, m = 1e{round(math.log10(m))}"] = m**0.25 * largest
        found[f"excess kurtosis, m = 1e{round(math.log10(m))}"] = (kurtosis(math.inf) - 3) * fourth
    return found


def _swapped_names() -> dict[str, float]:
    """The gradient of a permuted network against the permuted gradient, permutations that are not their inverses."""
    generator = torch.Generator().manual_seed(0)
    sizes = (4, 3, 5, 2)
    weights = [
        torch.randn(a, b, generator=generator, dtype=torch.float64) for b, a in itertools.pairwise(sizes)
    ]
    inputs = torch.randn(6, sizes[0], generator=generator, dtype=torch.float64)
    targets = torch.randn(6, sizes[-1], generator=generator, dtype=torch.float64)
    one, two = torch.tensor([1, 2, 0]), torch.tensor([1, 2, 3, 4, 0])
    permuted = [weights[0][one], weights[1][two][:, one], weights[2][:, two]]
    at_plain, at_permuted = (_gradient(ws, inputs, targets) for ws in (weights, permuted))
    return {
        "printed": float((at_plain - at_permuted[two][:, one]).abs().max()),
        "right": float((at_permuted - at_plain[two][:, one]).abs().max()),
    }


def _gradient(weights: list[Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
    """Of the squared error by the second layer's weights."""
    second = weights[1].clone().requires_grad_()
    out = ((inputs @ weights[0].mT).relu() @ second.mT).relu() @ weights[2].mT
    return torch.autograd.grad((out - targets).square().sum(), second)[0]


def _never_column_exchangeable() -> dict[str, float]:
    """How far the columns' updates of a first layer are apart, after 20 steps: all zero where inputs are constant.

    Independent columns that are all moved by one and the same vector are exchangeable, as before the first step.
    """
    generator = torch.Generator().manual_seed(0)
    start = [
        torch.randn(a, b, generator=generator, dtype=torch.float64) / b**0.5 for b, a in ((6, 9), (9, 3))
    ]
    targets = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    found = {}
    for name, inputs in (
        ("constant inputs", torch.rand(8, 1, generator=generator, dtype=torch.float64).expand(8, 6)),
        ("other inputs", torch.rand(8, 6, generator=generator, dtype=torch.float64)),
    ):
        layers = [w.clone().requires_grad_() for w in start]
        for _ in range(20):
            out = (inputs @ layers[0].mT).relu() @ layers[1].mT
            grads = torch.autograd.grad((out - targets).square().mean(), layers)
            layers = [(w - 0.1 * g).detach().requires_grad_() for w, g in zip(layers, grads, strict=True)]
        update = (layers[0] - start[0]).detach()
        found[name] = float((update - update.mean(1, keepdim=True)).abs().max() / update.abs().max())
    return found


def _fan_in() -> dict[str, float]:
    """A layer of 784 inputs and 256 units: the mean square of its outputs over that of its inputs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(784, generator=generator, dtype=torch.float64)
    w = torch.randn(100, 256, 784, generator=generator, dtype=torch.float64)
    gain = float((w @ x).relu().square().mean() / x.square().mean())
    return {"printed: 2 / units": gain * 2 / 256, "right: 2 / inputs": gain * 2 / 784}


def _square_of_mean() -> dict[str, float]:
    """Weights 0.5 A + 0.5 √3 N, A = ±1 for all of a unit: E[W^2] = 1, E[W_1 W_2] = 0.25, E[W] = 0."""
    return {"printed: E[W]² - E[W₁W₂]": 0 - 0.25, "right: E[W²] - E[W₁W₂]": 1 - 0.25}


def _lost_absolute() -> dict[str, float]:
    """The same weights, L_y = 3: the second term, and Appendix B's third line, where E_A stands without | |."""
    mean, spread, sum_y = 0.5, math.sqrt(0.75), 3.0
    half_normal = spread / math.sqrt(2 * math.pi)  # E[relu(g·x)]
    return {
        "the term": 0.5 * mean * sum_y * half_normal,
        "printed": 0.0,
        "with | |": mean * sum_y * half_normal,
        "(10)": sum_y * mean * spread,
    }


def _double_sum() -> dict[str, float]:
    """E[(g·x)^2] of 10 independent g of variance 0.75 and a unit x, as the sums of Appendix B have it."""
    x = torch.full((10,), 10**-0.5, dtype=torch.float64)
    covariance = 0.75 * torch.eye(10, dtype=torch.float64)
    squares = float((covariance.diagonal() * x * x).sum())
    every = float(x @ covariance @ x)
    return {"printed, j = i too": squares + every, "right, j ≠ i": every, "right: E[W²] - E[W₁W₂]": 0.75}


def _sums_twice() -> dict[str, float]:
    """E_A = 0.5 for every unit, L_x = 5, L_y = 1: the fourth term is E_A^2 L_x L_y and reaches the mended bound."""
    found = _known(1.0, 0.25)
    l_x, l_y = (torch.tensor(v, dtype=torch.float64) for v in (5.0, 1.0))
    return {
        "the term": 0.25 * 5 * 1,
        "printed": float(bound_11(found, l_x, l_y, printed=True)),
        "right": float(bound_11(found, l_x, l_y)),
    }


def _one_side() -> dict[str, float]:
    """E_A = -1, g normal, x = y, L_x = L_y = 2: the kernel is below equation 9, where nothing printed bounds it."""
    _, kernel = shifted_moments(-2.0)
    found = _known(2.0, 1.0)
    zero, l_x = torch.zeros((), dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)
    want = float(equation_9(found, zero))
    return {
        "kernel - equation 9": kernel - want,
        "- (10) - (10) - (11)": -float(three_terms(found, l_x, l_x)),
        "halved": -float(three_terms(found, l_x, l_x, halved=True)),
    }


def _finite_rows() -> dict[str, float]:
    """Rows that are permutations of m = 10 numbers of sum 0, x = y = (1, …, 1)/√10: exchangeable, E[W_1 W_2] < 0."""
    numbers = torch.arange(10, dtype=torch.float64) - 4.5
    generator = torch.Generator().manual_seed(0)
    weight = torch.stack([numbers[torch.randperm(10, generator=generator)] for _ in range(64)])
    found = moments(weight)
    want = float(equation_9(found, torch.zeros((), dtype=torch.float64)))
    kernel = float((weight.sum(1) / 10**0.5).relu().square().mean())
    clamped = Moments(found.square, found.cross.clamp(min=0), found.mean_square)
    sums = torch.tensor(10**0.5, dtype=torch.float64)
    return {
        "E[W₁W₂]": float(found.cross),
        "distance from equation 9": abs(kernel - want),
        "bound as printed": float(three_terms(found, sums, sums)),
        "bound with E[W₁W₂] taken as 0": float(three_terms(clamped, sums, sums)),
    }


def _row_means() -> dict[str, float]:
    """Independent normal weights, 1,000 by 1,000, of variance 2/1,000; x and y of positive coordinates.

    (E^n)^2 as drawn, and after each row's mean is taken off; how far the normalised kernel at θ = 1 is from the
    arc-cosine kernel of θ then. x and p are uniform on [0, 1] on either half of the coordinates.
    """
    generator = torch.Generator().manual_seed(0)
    m = 1000
    images = torch.zeros(1, m, dtype=torch.float64)
    images[:, : m // 2] = torch.rand(m // 2, generator=generator, dtype=torch.float64)
    x, p = procedure1(images, torch.zeros(1, dtype=torch.int64), zero_sum=False, generator=generator)
    at = torch.ones(1, dtype=torch.float64)
    kernels, measures = [], []
    for _ in range(_DRAWS):
        weight = (2 / m) ** 0.5 * torch.randn(m, m, generator=generator, dtype=torch.float64)
        for w in (weight, weight - weight.mean(1, keepdim=True)):
            kernels.append(float(over_angles(w, x, p, at)))
            measures.append(float(w.mean(1).square().max()))
    wide = [sum(kernels[part::2]) / _DRAWS - float(arc_cosine(at)) for part in (0, 1)]
    y = at.cos() * x + at.sin() * p
    less = [z - z.mean() for z in (x, y)]
    angle = ((less[0] * less[1]).sum() / (less[0].norm() * less[1].norm())).acos()
    return {
        "(E^n)² as drawn": sum(measures[::2]) / _DRAWS,
        "2 ln(n) E[W²]/m": 2 * math.log(m) * 2 / m / m,
        "kernel - arc-cosine": wide[0],
        "(E^n)², means taken off": sum(measures[1::2]) / _DRAWS,
        "kernel - arc-cosine then": wide[1],
        "arc-cosine of the angle of x and y less their means, - arc-cosine": float(
            arc_cosine(angle) - arc_cosine(at)
        ),
    }


def _dominated_input() -> dict[str, float]:
    """Uniform weights and inputs of which two coordinates are nearly all: the normalised kernel at θ = pi/2.

    (W_1, W_2) alone gives E[relu(W_1)]^2 / E[relu(W_1)^2] = 3/8 for uniform weights; the arc-cosine kernel is 1/pi.
    """
    generator = torch.Generator().manual_seed(0)
    images = torch.zeros(1, 3072, dtype=torch.float64)
    images[:, :1500] = torch.rand(1500, generator=generator, dtype=torch.float64)
    at = torch.full((1,), math.pi / 2, dtype=torch.float64)
    row = torch.zeros(1, dtype=torch.int64)
    found = {"the two coordinates alone": 3 / 8, "arc-cosine": 1 / math.pi}
    for name, form in (("Procedure 1, zero sums", "mended"), ("centred", "centred")):
        x, p = procedure1(images, row, form=form, generator=generator)
        weight = generalised_normal((4_000, 3072), math.inf, generator=generator, dtype=torch.float32)
        found[name] = float(over_angles(weight, x.float(), p.float(), at.float()))
    return found


def _known(square: float, cross: float) -> Moments:
    """Of an infinite sequence, whose mean has the square E[W_1 W_2]."""
    s, c = (torch.tensor(v, dtype=torch.float64) for v in (square, cross))
    return Moments(s, c, c)


ERRATA = (
    Erratum(
        "third-moment",
        "§2.4",
        "E[W]³ < ∞",
        "E|W|³ < ∞, as in Proposition 6; E[W²] < ∞ is enough",
        _third_moment,
    ),
    Erratum(
        "hypothesis-3",
        "Hypothesis 3",
        "m^(1/4) max → 0 is assumed",
        "max → 0 is enough (Lindeberg)",
        _hypothesis3,
    ),
    Erratum("covariance", "§2.4, Σ", "variances of 1", "times E[W²], as in (4)", _covariance),
    Erratum("dominating", "§2.4", "the dominating integral is 2E[W]", "2E[W²]", _dominating),
    Erratum(
        "theorem-5",
        "Theorem 5",
        "the first layer is not column exchangeable, at any t",
        "it need not be: at t = 0 it is, and while all inputs are constant images",
        _never_column_exchangeable,
    ),
    Erratum(
        "fan-in",
        "§5.1",
        "variance 2/n_l, where n^(l) is the number of units of layer l",
        "He et al. mean its inputs; here all layers are equally wide",
        _fan_in,
    ),
    Erratum(
        "swapped",
        "§3, after (6)",
        "∂E/∂w_ji at U_π is ∂E/∂w_π₂(j)π₁(i) at U",
        "U and U_π the other way round",
        _swapped_names,
    ),
    Erratum(
        "one-side",
        "§4.1",
        "relu(a + b) ≤ relu(a) + relu(b) bounds the difference",
        "it bounds one side; see the derivation; (10) can be halved",
        _one_side,
    ),
    Erratum("twice", "(11)", "E[W₁W₂] |L_y L_y|", "E[W₁W₂] |L_x L_y|, as in Appendix C", _sums_twice),
    Erratum("absolute", "Appendix B, line 3", "∫ f(A, B₁)", "its absolute value", _lost_absolute),
    Erratum("double-sum", "Appendix B", "a double sum over all j", "j ≠ i, as in Appendix A", _double_sum),
    Erratum("square", "Appendix B, end", "√(E[W]² - E[W₁W₂])", "√(E[W²] - E[W₁W₂])", _square_of_mean),
    Erratum(
        "finite",
        "(8) to (11)",
        "for the rows of a network",
        "for infinite sequences: in a network E[W₁W₂] can be negative",
        _finite_rows,
    ),
    Erratum(
        "row-means",
        "§5.2",
        "small (E^n)² means the kernel (9)",
        "small against E[W²]/m; smaller than that of independent weights moves it",
        _row_means,
    ),
    Erratum(
        "dominated",
        "Procedure 1, zero sums",
        "inputs to verify Proposition 6",
        "Hypothesis 3 fails: one coordinate holds the sum",
        _dominated_input,
    ),
)


def measure() -> list[dict[str, object]]:
    """Every erratum as a row for the metrics."""
    return [
        {
            "key": e.key,
            "place": e.place,
            "printed": e.printed,
            "right": e.right,
            "witness": _finite(e.witness()),
        }
        for e in ERRATA
    ]


def _finite(witness: dict[str, float]) -> dict[str, float | None]:
    """JSON has no NaN: None says that a formula has no value."""
    return {name: None if math.isnan(value) else value for name, value in witness.items()}
