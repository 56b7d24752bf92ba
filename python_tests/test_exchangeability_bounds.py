"""The bounds (10) and (11): of mixtures known exactly, of finite networks, and the paper's errata."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zbkernels.exchangeability.bounds import (
    Moments,
    bound_10,
    bound_11,
    equation_9,
    kernel_gap,
    moments,
    row_mean_bound,
    sums_over_angles,
    three_terms,
)
from zbkernels.exchangeability.layer_kernels import arc_cosine, over_angles
from zbkernels.exchangeability.pairs import procedure1
from zbkernels.experiments.exchangeability import errata

pytestmark = pytest.mark.usefixtures("one_thread")


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def noncentral_kernel(a: float, b: float, spread: float, angle: float) -> float:
    """E[relu(s z + a) relu(s w + b)], z and w standard normal with correlation cos(angle): over z by quadrature."""
    z = torch.linspace(-9, 9, 20_001, dtype=torch.float64)
    weight = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    mean, deviation = b + spread * math.cos(angle) * z, max(spread * math.sin(angle), 1e-12)
    ratio = mean / deviation
    below = torch.special.ndtr(ratio)
    density = torch.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    inner = mean * below + deviation * density
    return float(torch.trapezoid((spread * z + a).relu() * inner * weight, z))


@given(
    mean=st.floats(-2, 2),
    chance=st.floats(0, 1),
    spread=st.floats(0.05, 2),
    sums=st.tuples(st.floats(-6, 6), st.floats(-6, 6)),
    angle=st.floats(0.01, 3.13),
)
@settings(max_examples=40, deadline=None)
def test_mixtures_keep_the_bounds_on_both_sides_even_halved(
    mean: float, chance: float, spread: float, sums: tuple[float, float], angle: float
) -> None:
    """W_i = E_A + g_i, g normal, E_A = mean with some chance, else -mean / 3: an exchangeable sequence."""
    parts = ((mean, chance), (-mean / 3, 1 - chance))
    kernel = sum(p * noncentral_kernel(e * sums[0], e * sums[1], spread, angle) for e, p in parts)
    cross = sum(p * e * e for e, p in parts)
    found = Moments(scalar(spread**2 + cross), scalar(cross), scalar(cross))
    gap = abs(kernel - float(equation_9(found, scalar(angle))))
    halved = float(three_terms(found, scalar(sums[0]), scalar(sums[1]), halved=True))
    whole = float(three_terms(found, scalar(sums[0]), scalar(sums[1])))
    assert gap <= halved + 1e-7 and halved <= whole + 1e-12


def test_equation_9_is_the_kernel_where_the_mean_is_zero() -> None:
    found = Moments(scalar(0.7), scalar(0.0), scalar(0.0))
    for angle in (0.2, 1.5, 3.0):
        want = noncentral_kernel(0, 0, math.sqrt(0.7), angle)
        assert float(equation_9(found, scalar(angle))) == pytest.approx(want, abs=1e-7)


def test_moments_are_unbiased_by_enumeration() -> None:
    """Against the sums over all pairs of different inputs; and over all rows of an urn without replacement."""
    w = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0))
    found = moments(w)
    for r in range(2):
        pairs = [w[r, :, i].double() * w[r, :, j].double() for i, j in itertools.permutations(range(5), 2)]
        assert float(found.cross[r]) == pytest.approx(float(torch.stack(pairs).mean()), rel=1e-9)
        assert float(found.square[r]) == pytest.approx(float(w[r].double().square().mean()), rel=1e-12)
    torch.testing.assert_close(found.mean_square, found.cross + found.variance / 5)
    urn = torch.tensor(list(itertools.permutations([-2.0, -1.0, 0.0, 3.0])))
    assert float(moments(urn).cross) == pytest.approx(-float(urn.square().mean()) / 3)
    for bad in (torch.zeros(3), torch.zeros(3, 1)):
        with pytest.raises(ValueError, match="2 or more inputs"):
            moments(bad)


@given(
    seed=st.integers(0, 10_000),
    units=st.integers(1, 12),
    shift=st.floats(-3, 3),
    heavy=st.booleans(),
    zero_sum=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_the_bound_by_row_means_holds_in_every_network(
    seed: int, units: int, shift: float, heavy: bool, zero_sum: bool
) -> None:
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(units, 9, generator=g, dtype=torch.float64) + shift
    if heavy:
        w = w**3
    images = torch.rand(3, 9, generator=g, dtype=torch.float64)
    images[:, :3] = 0
    x, p = procedure1(images, torch.arange(3), zero_sum=zero_sum, generator=g)
    found = kernel_gap(w, x, p, torch.linspace(0, math.pi, 5))
    size = found.kernel.abs().max() + found.row_mean_bound.max()
    assert (found.row_mean_gap <= found.row_mean_bound + 1e-12 * size).all()
    if zero_sum:  # then W·x is that of the rows less their means
        assert found.row_mean_gap.max() <= 1e-12 * w.square().mean() * 9


def test_the_gap_is_measured_on_unit_vectors_for_each_layer_of_a_stack() -> None:
    g = torch.Generator().manual_seed(0)
    w = torch.randn(2, 400, 30, generator=g) + torch.tensor([0.0, 0.3])[:, None, None]
    images = torch.rand(3, 30, generator=g)
    images[:, 10:] = 0
    x, p = procedure1(images, torch.arange(3), zero_sum=False, generator=g)
    at = torch.tensor([0.0, 0.5, 2.0])
    found = kernel_gap(w, x, p, at)
    assert found.gap.shape == found.bound.shape == found.row_mean_bound.shape == (2, 3, 3)
    torch.testing.assert_close(found.kernel, kernel_gap(w, 5 * x, 5 * p, at).kernel)
    unit = x.double() / x.double().norm(dim=1, keepdim=True)
    turned = p.double() / p.double().norm(dim=1, keepdim=True)
    want = over_angles(w[1].double(), unit, turned, at.double(), normalized=False)
    torch.testing.assert_close(found.kernel[1], want)
    torch.testing.assert_close(found.gap[1], (want - equation_9(moments(w[1]), at)).abs())
    assert (found.gap[1] <= found.bound[1]).all()  # E[W1 W2] = 0.09 and L = √10: the bound is wide
    assert (found.row_mean_gap <= found.row_mean_bound).all()
    l_x, l_y = sums_over_angles(x, p, at)
    torch.testing.assert_close(l_x[:, 0], unit.sum(1))
    y = at.double().cos()[:, None] * unit[:, None] + at.double().sin()[:, None] * turned[:, None]
    torch.testing.assert_close(l_y, y.sum(-1))
    alone = kernel_gap(w[0], x, p, at)
    torch.testing.assert_close(alone.row_mean_bound, found.row_mean_bound[0])
    torch.testing.assert_close(row_mean_bound(w, x, p, at), found.row_mean_bound)


def test_pairs_that_are_none_are_refused() -> None:
    images = torch.rand(2, 20, generator=torch.Generator().manual_seed(0))
    images[:, 5:] = 0
    x, p = procedure1(images, torch.arange(2), form="printed")
    w = torch.zeros(3, 20)
    with pytest.raises(ValueError, match="equally long and at a right angle"):
        kernel_gap(w, x, p, torch.zeros(1))
    with pytest.raises(ValueError, match=r"got \[2, 20\] and \[1, 20\]"):
        kernel_gap(w, x, p[:1], torch.zeros(1))


def test_the_bounds_have_no_value_where_weights_repel_each_other() -> None:
    found = Moments(scalar(1.0), scalar(-0.1), scalar(0.0))
    assert bound_10(found, scalar(2.0)).isnan()
    assert float(bound_11(found, scalar(2.0), scalar(1.0))) == pytest.approx(-0.2)  # which bounds nothing


# Errata: each witness shows the printed formula off and the mended one right


@pytest.fixture(scope="module")
def witnesses() -> dict[str, dict[str, Any]]:
    return {row["key"]: row["witness"] for row in errata.measure()}


def test_moments_of_section_2(witnesses: dict[str, Any]) -> None:
    found = witnesses["third-moment"]
    tails = [found[f"E[|W|³; |W| ≤ 1e{power}]"] for power in (2, 4, 6)]
    assert found["printed E[W]³"] == 0 and all(b > 8 * a for a, b in itertools.pairwise(tails))
    found = witnesses["covariance"]
    assert (
        found["measured"] == pytest.approx(found["right"], rel=0.06)
        and found["printed"] > 100 * found["right"]
    )
    found = witnesses["dominating"]
    assert found["printed"] < found["dominated at θ = 0"] < found["right"]
    found = witnesses["hypothesis-3"]
    largest = [value for name, value in found.items() if "max" in name]
    excess = [abs(value) for name, value in found.items() if "excess" in name]
    assert largest == sorted(largest) and all(b < a / 100 for a, b in itertools.pairwise(excess))


def test_gradients_of_permuted_networks(witnesses: dict[str, Any]) -> None:
    assert witnesses["swapped"]["right"] < 1e-9 < 1 < witnesses["swapped"]["printed"]


def test_exchangeable_columns_and_the_variance_of_he(witnesses: dict[str, Any]) -> None:
    found = witnesses["theorem-5"]
    assert found["constant inputs"] < 1e-12 < 0.1 < found["other inputs"]
    found = witnesses["fan-in"]
    assert found["right: 2 / inputs"] == pytest.approx(1, abs=0.05)
    assert found["printed: 2 / units"] == pytest.approx(784 / 256, rel=0.05)


def test_bounds_as_printed(witnesses: dict[str, Any]) -> None:
    found = witnesses["twice"]
    assert found["printed"] < found["the term"] <= found["right"]
    found = witnesses["absolute"]
    assert found["printed"] < found["the term"] <= found["with | |"] <= found["(10)"]
    found = witnesses["double-sum"]
    assert (
        found["right, j ≠ i"] == pytest.approx(found["right: E[W²] - E[W₁W₂]"]) != found["printed, j = i too"]
    )
    assert witnesses["square"]["printed: E[W]² - E[W₁W₂]"] < 0
    found = witnesses["one-side"]
    assert found["- (10) - (10) - (11)"] < found["halved"] < found["kernel - equation 9"] < 0


def test_finite_rows_break_what_infinite_sequences_keep(witnesses: dict[str, Any]) -> None:
    found = witnesses["finite"]
    assert found["E[W₁W₂]"] < 0 and found["bound as printed"] is None
    assert found["bound with E[W₁W₂] taken as 0"] < found["distance from equation 9"]
    found = witnesses["row-means"]
    assert found["(E^n)², means taken off"] < 1e-30 < found["(E^n)² as drawn"]
    assert 0.5 < found["(E^n)² as drawn"] / found["2 ln(n) E[W²]/m"] < 1.5
    assert abs(found["kernel - arc-cosine"]) < 0.01
    name = "arc-cosine of the angle of x and y less their means, - arc-cosine"
    assert found["kernel - arc-cosine then"] == pytest.approx(found[name], abs=0.02)
    assert found[name] < -0.2


def test_procedure_1_sees_two_weights_of_each_unit(witnesses: dict[str, Any]) -> None:
    found = witnesses["dominated"]
    assert found["Procedure 1, zero sums"] == pytest.approx(3 / 8, abs=0.02)
    assert found["centred"] == pytest.approx(float(arc_cosine(scalar(math.pi / 2))), abs=0.02)


def test_every_erratum_is_whole() -> None:
    assert len({e.key for e in errata.ERRATA}) == len(errata.ERRATA)
    assert errata.shifted_moments(0.0) == pytest.approx((1 / math.sqrt(2 * math.pi), 0.5))
