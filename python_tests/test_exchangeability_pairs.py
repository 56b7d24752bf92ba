"""Pairs of inputs at an angle, random weights, and kernels of layers over angles."""

from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import zbkernels as zb
from zbkernels.exchangeability.layer_kernels import (
    arc_cosine,
    iterated_arc_cosine,
    over_angles,
    whole_network,
)
from zbkernels.exchangeability.pairs import FORMS, procedure1, qr_pairs, zero_coordinates
from zbkernels.exchangeability.weight_distributions import (
    generalised_normal,
    kurtosis,
    scale_of_unit_variance,
    student_t,
)

pytestmark = pytest.mark.usefixtures("one_thread")
EXACT = 1e-12  # float64, some hundred terms


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sparse(count: int, features: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Images of which about half the coordinates are 0."""
    x = torch.rand(count, features, generator=drawn(seed), dtype=torch.float64)
    return (x * (torch.rand(count, features, generator=drawn(seed + 1)) < 0.5)).to(dtype)


def angle(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """By the half-angle formula, which is exact near 0 and pi."""
    a, b = x / x.norm(dim=-1, keepdim=True), y / y.norm(dim=-1, keepdim=True)
    return 2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))


@given(
    features=st.integers(4, 60),
    seed=st.integers(0, 10_000),
    form=st.sampled_from(["mended", "centred"]),
    dense=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_the_mended_procedure_gives_the_angle_the_length_and_the_sum(
    features: int, seed: int, form: str, dense: bool
) -> None:
    images = sparse(5, features, seed)
    images[:, 0] = 0.5  # none is black
    if dense:
        images = images + 0.1
    pairs = procedure1(images, torch.arange(5), form=form, generator=drawn(seed))
    angles = torch.tensor([0.0, 0.3, math.pi / 2, 2.5, math.pi], dtype=torch.float64)
    y = pairs.at(angles)  # [P, A, m]
    assert y.shape == (5, 5, features)
    x = pairs.x[:, None].expand_as(y)
    torch.testing.assert_close(angle(x, y), angles.expand(5, 5), rtol=0, atol=1e-9)
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1), rtol=1e-11, atol=0)
    assert (y.sum(-1).abs() / y.norm(dim=-1)).max() < EXACT * features
    if form == "mended":
        assert pairs.projected.tolist() == (zero_coordinates(images) < features**0.5).tolist()


@given(features=st.integers(4, 40), seed=st.integers(0, 10_000), form=st.sampled_from(["mended", "printed"]))
@settings(max_examples=20, deadline=None)
def test_without_the_lettered_steps_x_stays_as_it_is_and_both_forms_agree(
    features: int, seed: int, form: str
) -> None:
    images = sparse(4, features, seed)
    images[:, 0], images[:, 1] = 0.5, 0.0
    x, p = procedure1(
        images, torch.arange(4), zero_sum=False, form=form, least_zeros=1, generator=drawn(seed)
    )
    torch.testing.assert_close(x, images, rtol=0, atol=0)
    assert (p[:, -2:] == 0).all() and (p[images != 0] == 0).all() and (p >= 0).all()
    torch.testing.assert_close(p.norm(dim=1), x.norm(dim=1), rtol=EXACT, atol=0)


def test_as_printed_the_lettered_steps_spoil_the_angle_by_the_formula() -> None:
    images = sparse(20, 100)
    x, p = pairs = procedure1(images, torch.arange(20), form="printed", generator=drawn())
    assert x.sum(1).abs().max() < 1e-12 > p.sum(1).abs().max()
    r, s_x, s_p = images[:, :-2].norm(dim=1), x[:, -2], p[:, -1]
    torch.testing.assert_close(x.norm(dim=1), (r**2 + s_x**2).sqrt())
    torch.testing.assert_close(p.norm(dim=1), (r**2 + s_p**2).sqrt())
    t = torch.tensor([0.3], dtype=torch.float64)
    got = angle(x, pairs.at(t)[:, 0])
    torch.testing.assert_close(got, torch.atan2(t.sin() * p.norm(dim=1), t.cos() * x.norm(dim=1)))
    assert (got - 0.3).abs().max() > 0.02
    mended = procedure1(images, torch.arange(20), generator=drawn())
    torch.testing.assert_close(angle(mended.x, mended.at(t)[:, 0]), t.expand(20), rtol=0, atol=1e-12)


def test_one_coordinate_is_nearly_all_of_an_input_of_sum_zero_and_not_of_a_centred_one() -> None:
    images = torch.zeros(3, 10_000, dtype=torch.float64)
    images[:, :5000] = torch.rand(3, 5000, generator=drawn(), dtype=torch.float64)
    for form, low, high in (("mended", 0.99, 1.0), ("centred", 0.0, 0.06)):
        for z in procedure1(images, torch.arange(3), form=form, generator=drawn()):
            share = z.abs().amax(1) / z.norm(dim=1)
            assert (share > low).all() and (share < high).all(), form


def test_an_image_without_zeros_is_projected_or_refused() -> None:
    images = torch.rand(2, 1, 4, 4, generator=drawn()) + 0.1
    images[0, 0, 0, 0] = 0
    pairs = procedure1(images, torch.arange(2), least_zeros=1, generator=drawn())
    assert pairs.projected.tolist() == [False, True] and pairs.index.tolist() == [0, 1]
    assert pairs.x.dtype == torch.float32 and (images[1] > 0).all()  # the images are left alone
    assert (pairs.p[0].flatten() != 0).nonzero().flatten().tolist() == [0, 15]
    every = procedure1(images, torch.arange(2), generator=drawn())  # one is less than √16
    assert every.projected.all() and (every.p[:, :-2] != 0).all()
    with pytest.raises(ValueError, match="image 1 has no coordinate of 0"):
        procedure1(images, torch.arange(2), form="printed")
    with pytest.raises(ValueError, match="leave no room"):
        procedure1(torch.ones(1, 3), torch.tensor([0]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_image_that_is_no_number_is_refused(form: str, value: float) -> None:
    images = torch.rand(4, 9) * torch.tensor([1, 0, 1, 0, 1, 1, 1, 1, 1])
    images[2, 4] = value
    with pytest.raises(ValueError, match="expected finite images, image 2 has"):
        procedure1(images, torch.tensor([0, 2]), form=form)


def test_a_number_of_rows_is_a_whole_number() -> None:
    for count in (2.5, True, None):
        with pytest.raises(ValueError, match=re.escape(f"a number of rows, got {count!r}")):
            procedure1(torch.rand(3, 9), count)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", FORMS)
def test_an_image_without_an_angle_is_refused_by_its_number(form: str) -> None:
    images = sparse(4, 12)
    images[:, 1] = 0.3
    images[2] = 0 if form != "centred" else 0.7
    with pytest.raises(ValueError, match="image 2 is"):
        procedure1(images, torch.tensor([0, 2]), form=form)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"form": "typo"}, "form to be one of mended, printed, centred, got 'typo'"),
        ({"form": "centred", "zero_sum": False}, "cannot go with zero_sum=False"),
        ({"which": torch.tensor([4])}, "rows from 0 to 3, got 4 to 4"),
        ({"which": torch.tensor([0.0])}, "int64 rows [P], got torch.float32 [1]"),
        ({"least_zeros": 0}, "least_zeros >= 1, got 0"),
        ({"which": -1}, "number of rows >= 0"),
        ({"images": torch.zeros(4, 12, dtype=torch.uint8)}, "floating-point images [N, ...]"),
        ({"images": torch.zeros(4)}, "floating-point images [N, ...]"),
        ({"images": torch.zeros(4, 2)}, "at least 3 coordinates"),
    ],
)
def test_bad_arguments_are_named(how: dict, message: str) -> None:
    given_ = {"images": sparse(4, 12), "which": 2, **how}
    with pytest.raises(ValueError, match=re.escape(message)):
        procedure1(given_.pop("images"), given_.pop("which"), **given_)


def test_rows_are_drawn_uniformly_and_by_the_generator() -> None:
    images = sparse(4, 30)
    pairs = procedure1(images, 4000, generator=drawn(3))
    assert (pairs.index.bincount(minlength=4) - 1000).abs().max() < 120  # four standard deviations
    again = procedure1(images, 4000, generator=drawn(3))
    assert torch.equal(pairs.p, again.p) and torch.equal(pairs.index, again.index)
    assert procedure1(images, 0).x.shape == (0, 30)


def test_qr_pairs_are_orthonormal_and_span_what_was_drawn() -> None:
    x, p = qr_pairs(50, 7, generator=drawn())
    together = torch.stack([x, p], 2)  # [P, m, 2]
    torch.testing.assert_close(together.mT @ together, torch.eye(2, dtype=torch.float64).expand(7, 2, 2))
    source = torch.rand(7, 50, 2, generator=drawn(), dtype=torch.float64)
    left = source - together @ (together.mT @ source)
    assert left.abs().max() < 1e-12
    assert ((x > 0).all(1) | (x < 0).all(1)).all()  # what was uniform on [0, 1]
    with pytest.raises(ValueError, match="features >= 2"):
        qr_pairs(1)


# Weights


@pytest.mark.parametrize("beta", [0.5, 1, 2, 4, 8, math.inf])
def test_draws_have_the_moments_of_the_density(beta: float) -> None:
    """E|W/alpha|^k = Gamma((k + 1)/beta) / Gamma(1/beta), from the printed density; and that integrates to 1."""
    w = generalised_normal((400_000,), beta, generator=drawn())
    alpha = scale_of_unit_variance(beta)
    assert abs(float(w.mean())) < 0.01
    for k in (1, 2):
        if math.isinf(beta):
            want = alpha**k / (k + 1)
        else:
            want = alpha**k * math.gamma((k + 1) / beta) / math.gamma(1 / beta)
        assert float(w.abs().pow(k).mean()) == pytest.approx(want, rel=0.03)  # 4 sigma at beta = 0.5
    assert float(w.pow(4).mean()) == pytest.approx(kurtosis(beta), rel=0.25)
    if not math.isinf(beta):
        grid = torch.linspace(0, 60 * alpha ** min(beta, 1), 500_001, dtype=torch.float64)
        density = beta / (2 * alpha * math.gamma(1 / beta)) * torch.exp(-((grid / alpha) ** beta))
        for power, want in ((0, 1.0), (2, 1.0)):
            assert 2 * float(torch.trapezoid(grid**power * density, grid)) == pytest.approx(want, rel=1e-2)
        below = float((w.abs() < 0.5).double().mean())
        inside = grid <= 0.5
        assert below == pytest.approx(2 * float(torch.trapezoid(density[inside], grid[inside])), abs=0.005)


def test_student_t_has_its_quantiles() -> None:
    w = student_t((400_000,), 1, generator=drawn())
    for level, want in ((0.5, 0.0), (0.75, 1.0), (0.9, math.tan(0.4 * math.pi))):
        assert float(w.kthvalue(round(level * 400_000)).values) == pytest.approx(want, abs=0.05)
    w = student_t((400_000,), 2.5, generator=drawn())
    assert float(w.kthvalue(360_000).values) == pytest.approx(1.7303, abs=0.03)  # scipy.stats.t.ppf(0.9, 2.5)


def test_densities_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="beta > 0"):
        generalised_normal((2,), 0)
    with pytest.raises(ValueError, match="degrees > 0"):
        student_t((2,), -1)


# Kernels


def test_arc_cosine_and_its_iterates() -> None:
    t = torch.tensor([0.0, math.pi / 2, math.pi], dtype=torch.float64)
    torch.testing.assert_close(arc_cosine(t), torch.tensor([1.0, 1 / math.pi, 0.0], dtype=torch.float64))
    torch.testing.assert_close(iterated_arc_cosine(t, 1), arc_cosine(t))
    torch.testing.assert_close(
        iterated_arc_cosine(t, 3)[1:], arc_cosine(arc_cosine(arc_cosine(t).acos()).acos())[1:]
    )
    with pytest.raises(ValueError, match="depth >= 1"):
        iterated_arc_cosine(t, 0)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("stacked", [False, True])
def test_kernels_over_angles_are_those_of_the_layer_and_the_network(biased: bool, stacked: bool) -> None:
    """Against the layers evaluated at each y, one by one."""
    lead = (3,) if stacked else ()
    g = drawn()
    sizes = (12, 9, 7)
    ws = [torch.randn(*lead, b, a, generator=g, dtype=torch.float64) for a, b in ((12, 9), (9, 7))]
    bs = [torch.randn(*lead, n, generator=g, dtype=torch.float64) for n in sizes[1:]] if biased else None
    pairs = procedure1(sparse(4, 12), torch.arange(4), generator=g)
    angles = torch.tensor([0.0, 0.4, 2.0], dtype=torch.float64)

    def layers(x: torch.Tensor, depth: int) -> torch.Tensor:
        for i in range(depth):
            x = x @ ws[i].mT + (0 if bs is None else bs[i][..., None, :])
            x = x.relu()
        return x

    for depth in (1, 2):
        at_x = layers(pairs.x, depth)
        want = []
        for a in range(3):
            at_y = layers(pairs.at(angles)[:, a], depth)
            want.append((at_x * at_y).sum(-1) / (at_x.norm(dim=-1) * at_y.norm(dim=-1)))
        got = whole_network(ws[:depth], *pairs, angles, bs if bs is None else bs[:depth])
        torch.testing.assert_close(got, torch.stack(want, -1), equal_nan=True)
    b = None if bs is None else bs[0]
    one = over_angles(ws[0], *pairs, angles, b)
    torch.testing.assert_close(
        one, whole_network(ws[:1], *pairs, angles, None if b is None else [b]), equal_nan=True
    )
    plain = over_angles(ws[0], *pairs, angles, b, normalized=False)
    at_x, at_y = layers(pairs.x, 1), layers(pairs.at(angles)[:, 1], 1)
    torch.testing.assert_close(plain[..., 1], (at_x * at_y).mean(-1))


def test_angles_may_be_of_each_pair_and_kernels_have_gradients() -> None:
    pairs = procedure1(sparse(2, 12), torch.arange(2), generator=drawn())
    w = torch.randn(30, 12, generator=drawn(), dtype=torch.float64, requires_grad=True)
    each = torch.tensor([[0.1, 1.0], [0.5, 3.0]], dtype=torch.float64)
    for kernel in (over_angles(w, *pairs, each), whole_network([w], *pairs, each)):
        for row in range(2):
            alone = over_angles(w, pairs.x[row : row + 1], pairs.p[row : row + 1], each[row])
            torch.testing.assert_close(kernel[row], alone[0])
        (grad,) = torch.autograd.grad(kernel.sum(), w)
        assert grad.abs().max() > 0


def test_a_wide_random_network_has_the_iterated_kernel() -> None:
    pair = qr_pairs(200, generator=drawn())
    ws = [torch.randn(n, m, generator=drawn(m), dtype=torch.float64) for m, n in ((200, 1500), (1500, 1500))]
    t = torch.linspace(0, math.pi, 7, dtype=torch.float64)
    torch.testing.assert_close(whole_network(ws, *pair, t)[0], iterated_arc_cosine(t, 2), rtol=0, atol=0.07)


def test_shapes_that_do_not_fit_are_named() -> None:
    x = torch.zeros(2, 5)
    t = torch.zeros(1)
    with pytest.raises(ValueError, match=re.escape("got [3, 4], [2, 5] and [2, 5]")):
        over_angles(torch.zeros(3, 4), x, x, t)
    with pytest.raises(ValueError, match=re.escape("bias of shape [3], got [4]")):
        over_angles(torch.zeros(3, 5), x, x, t, torch.zeros(4))
    with pytest.raises(ValueError, match="got 1 weights, 0 biases"):
        whole_network([torch.zeros(3, 5)], x, x, t, [])
    with pytest.raises(ValueError, match=re.escape("got x [2, 5], p [2, 5] and [[3, 5], [4, 4]]")):
        whole_network([torch.zeros(3, 5), torch.zeros(4, 4)], x, x, t)
    with pytest.raises(ValueError, match=re.escape("[[3, 5]], got [[4]]")):
        whole_network([torch.zeros(3, 5)], x, x, t, [torch.zeros(4)])
    assert over_angles(torch.zeros(0, 3, 5), x, x, t).shape == (0, 2, 1)
    assert whole_network([torch.zeros(3, 5)], x, x, torch.zeros(0)).shape == (2, 0)
    assert zb.layer_kernel(x @ torch.zeros(5, 3), x @ torch.zeros(5, 3), t).isnan().all()
