"""The linear map around an input, its region and its radii, against automatic differentiation and brute force."""

from __future__ import annotations

import importlib
import math

import pytest
import torch
import torch.nn.functional as F
from nap_models import ALL, BIASED, fcn, fused, make, pattern_and_prediction, plain_of_fused
from torch import nn

from zbkernels.nap import NotPiecewiseLinear, Units, certified_radius, local_linear_map
from zbkernels.nap.piece import Piece

linear = importlib.import_module("zbkernels.nap.linear")
INF = float("inf")


def dual(a: torch.Tensor, norm: float) -> torch.Tensor:
    """The steepest step of length 1 up a·y."""
    return a / a.norm() if norm == 2 else a.sign()


@pytest.mark.parametrize("name", ALL)
def test_jacobian_is_that_of_automatic_differentiation(name: str) -> None:
    model, x = make(name, 4, torch.float64)
    got = local_linear_map(model, x)
    # The fused layers have their reference under torch.func.
    want = torch.stack([torch.func.jacrev(lambda t: model(t.unsqueeze(0))[0])(each).flatten(1) for each in x])
    torch.testing.assert_close(got.jacobian, want, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(got.apply(x), model(x), rtol=1e-12, atol=1e-13)
    assert torch.equal(got.predictions, model(x).argmax(1))
    assert got.homogeneous == (name not in BIASED) == (got.lost == "")
    assert bool((got.offset == 0).all()) == got.homogeneous
    # Inside the region the map is the network, float32 weights included.
    reach = got.l2.certified.view(-1, *(1,) * (x.dim() - 1))
    y = x + 0.9 * reach * F.normalize(torch.randn(4, x[0].numel(), dtype=x.dtype)).view_as(x)
    torch.testing.assert_close(got.apply(y), model(y), rtol=1e-12, atol=1e-13)
    stacked = torch.stack([x, y], 1)
    torch.testing.assert_close(
        got.apply(stacked), torch.stack([model(x), model(y)], 1), rtol=1e-12, atol=1e-13
    )
    single = local_linear_map(model.float(), x.float())
    torch.testing.assert_close(single.jacobian, got.jacobian, rtol=1e-5, atol=1e-6)


def test_fused_and_plain_layers_have_one_map() -> None:
    torch.manual_seed(0)
    model = fused()
    x = torch.randn(3, 2, 10, 10)
    a, b = local_linear_map(model, x), local_linear_map(plain_of_fused(model), x)
    for norm in ("l2", "linf"):
        for field in ("unit", "decision", "certified"):
            one, other = getattr(getattr(a, norm), field), getattr(getattr(b, norm), field)
            torch.testing.assert_close(one, other, rtol=1e-9, atol=0)
    torch.testing.assert_close(a.jacobian, b.jacobian, rtol=1e-12, atol=1e-14)
    assert len(a.inequalities(1).b) == len(b.inequalities(1).b)


@pytest.mark.parametrize("name", ALL)
def test_inequalities_hold_where_the_pattern_is_kept(name: str) -> None:
    model, x = make(name, 2, torch.float64)
    got = local_linear_map(model, x)
    for i in range(2):
        region = got.inequalities(i)
        scale = (
            torch.logspace(-1, 1.5, 1500, dtype=torch.float64).view(-1, *(1,) * (x.dim() - 1))
            * got.l2.unit[i]
        )
        points = x[i] + scale * torch.randn(1500, *x.shape[1:], dtype=torch.float64) / x[0].numel() ** 0.5
        kept = (pattern_and_prediction(model, points) == pattern_and_prediction(model, x[i : i + 1])).all(1)
        assert 100 < kept.sum() < 1450
        assert torch.equal(region.contains(points), kept)
        if name not in BIASED:
            assert bool((region.b == 0).all()) and region.contains(1e-3 * points[kept]).all()
        assert len(region.names) == len(region.A) and int(region.prediction.sum()) == 3


@pytest.mark.parametrize("norm", [2, INF])
@pytest.mark.parametrize("name", ALL)
def test_unit_radius_is_the_distance_to_the_border(name: str, norm: float) -> None:
    """Nothing changes nearer than that (dense sampling), and at just that distance something does."""
    model, x = make(name, 3, torch.float64)
    got = local_linear_map(model, x)
    radii = got.l2 if norm == 2 else got.linf
    for i in range(3):
        here = pattern_and_prediction(model, x[i : i + 1])
        directions = torch.randn(600, x[0].numel(), dtype=torch.float64)
        directions /= torch.linalg.vector_norm(directions, norm, dim=1, keepdim=True)
        points = x[i] + 0.999 * radii.certified[i] * directions.view(-1, *x.shape[1:])
        assert torch.equal(pattern_and_prediction(model, points), here.expand(600, -1))
        region = got.inequalities(i)
        g = region.A @ x[i].flatten() + region.b
        for which, radius in ((~region.prediction, radii.unit[i]), (region.prediction, radii.decision[i])):
            steps = g[which] / torch.linalg.vector_norm(region.A[which], 1 if norm == INF else 2, dim=1)
            nearest = int(steps.argmin())
            torch.testing.assert_close(steps[nearest], radius, rtol=1e-10, atol=0)
            if radius > radii.unit[i]:
                continue  # beyond the border of the piece
            way = -dual(region.A[which][nearest], norm).view_as(x[0])
            near, past = (
                pattern_and_prediction(model, (x[i] + f * radius * way).unsqueeze(0))
                for f in (0.9999, 1.0001)
            )
            first = bool((radius <= torch.minimum(radii.unit[i], radii.decision[i])).item())
            assert not torch.equal(past, here) and (torch.equal(near, here) or not first)
        assert radii.certified[i] <= torch.minimum(radii.unit[i], radii.decision[i])
        assert radii.certified[i] >= (1 - 1e-6) * torch.minimum(radii.unit[i], radii.decision[i])


@pytest.mark.parametrize("norm", [2, INF])
def test_decision_radius_against_a_search_of_the_whole_region(norm: float) -> None:
    """The nearest decision boundary inside the region, found by a linear or quadratic program for each class."""
    optimize = pytest.importorskip("scipy.optimize")
    f64 = torch.float64
    found_inside = 0
    for seed in range(6):
        model, x = make("fcn", 1, torch.float64, seed=seed)
        got = local_linear_map(model, x)
        radii = got.l2 if norm == 2 else got.linf
        region = got.inequalities()
        A, b = region.A, region.A @ x[0] + region.b
        best = INF
        for row in region.prediction.nonzero().flatten().tolist():
            if norm == INF:  # least t with |d| <= t in the region and on the boundary
                n = A.shape[1]
                ones = torch.ones(n, 1, dtype=f64)
                eye = torch.eye(n, dtype=f64)
                upper = torch.cat([torch.cat([-A, torch.zeros(len(A), 1, dtype=f64)], 1), torch.cat([eye, -ones], 1),
                                   torch.cat([-eye, -ones], 1)])  # fmt: skip
                limits = torch.cat([b, torch.zeros(2 * n, dtype=f64)])
                equal = torch.cat([A[row], torch.zeros(1, dtype=f64)]).unsqueeze(0)
                problem = [t.numpy() for t in (torch.eye(n + 1)[-1], upper, limits, equal, -b[row : row + 1])]
                solved = optimize.linprog(*problem, bounds=[(None, None)] * (n + 1))
                best = min(best, solved.fun if solved.success else INF)
            else:  # the shortest d with G d >= h, by Lawson and Hanson's reduction to non-negative least squares
                G, h = torch.cat([A, -A[row : row + 1]]), torch.cat([-b, b[row : row + 1]])
                E, f = torch.cat([G.T, h.unsqueeze(0)]), torch.eye(G.shape[1] + 1, dtype=f64)[-1]
                u, rest = optimize.nnls(E.numpy(), f.numpy())
                if rest > 1e-9:
                    r = E @ torch.from_numpy(u) - f
                    best = min(best, float((r[:-1] / r[-1]).norm()))
        assert best >= radii.certified[0] * (1 - 1e-6)
        assert best >= radii.decision[0] * (1 - 1e-5)
        if radii.decision[0] <= radii.unit[0]:
            found_inside += 1
            assert best == pytest.approx(float(radii.decision[0]), rel=1e-5)
    assert found_inside  # else nothing was compared


@pytest.mark.parametrize("name", ["fcn", "fused", "pools", "fcn with bias"])
def test_radius_in_float32_holds_in_float32(name: str) -> None:
    model, x = make(name, 3)
    exact = certified_radius(model, x)
    radii = certified_radius(model, x, dtype=torch.float32)
    assert bool((radii.certified < exact.certified).all()) and bool(
        (radii.certified > 0.5 * exact.certified).any()
    )
    for i in range(3):
        region = local_linear_map(model, x[i : i + 1]).inequalities()
        nearest = region.A[
            (region.A @ x[i].double().flatten() + region.b).div(region.A.norm(dim=1)).argsort()[:30]
        ]
        directions = torch.cat([-nearest, torch.randn(300, x[0].numel(), dtype=torch.float64)])
        part = 1 - torch.tensor([1e-6, 1e-4, 1e-2], dtype=torch.float64).repeat(200)[: len(directions), None]
        steps = F.normalize(directions) * radii.certified[i] * part
        points = (x[i].double() + steps.view(-1, *x.shape[1:])).float()
        inside = (points.double() - x[i].double()).flatten(1).norm(dim=1) < radii.certified[i]
        assert inside.sum() > 150
        here = pattern_and_prediction(model, x[i : i + 1])
        assert torch.equal(pattern_and_prediction(model, points[inside]), here.expand(int(inside.sum()), -1))
    with pytest.raises(ValueError, match=r"expected dtype to hold each weight exactly, got torch.float16"):
        certified_radius(model, x, dtype=torch.float16)


def test_certified_radius_scales_with_a_zero_bias_network() -> None:
    model, x = make("pools", 2, torch.float64)
    one, many = certified_radius(model, x, norm=INF), certified_radius(model, 64 * x, norm=INF)
    torch.testing.assert_close(many.unit, 64 * one.unit, rtol=1e-9, atol=0)
    torch.testing.assert_close(many.certified, 64 * one.certified, rtol=1e-9, atol=0)
    assert one.norm == INF and one.unit_name == many.unit_name


def test_a_blank_border_leaves_no_radius_unless_it_is_kept() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 36, 3, bias=False)
    )
    x = torch.zeros(1, 1, 8, 8)
    x[..., 4:, 4:] = torch.rand(4, 4)
    assert certified_radius(model, x).certified.tolist() == [0.0]
    vary = x > 0
    kept = certified_radius(model, x, vary=vary)
    assert kept.certified[0] > 0 and torch.equal(certified_radius(model, x, vary=vary[0]).unit, kept.unit)
    step = F.normalize(torch.randn(200, 16)).view(200, 1, 4, 4) * 0.999 * float(kept.certified)
    points = x.expand(200, -1, -1, -1).clone()
    points[..., 4:, 4:] += step
    want = pattern_and_prediction(model.double(), x.double())
    assert torch.equal(pattern_and_prediction(model, points.double()), want.expand(200, -1))
    with pytest.raises(ValueError, match=r"expected vary to be bool, .*got torch.bool \[1, 2\]"):
        certified_radius(model, x, vary=torch.ones(1, 2, dtype=torch.bool))


def test_pieces_of_any_size_give_one_result(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = make("pools", 2, torch.float64)
    whole = local_linear_map(model, x)
    monkeypatch.setattr(linear, "_BUDGET", 1)
    small = local_linear_map(model, x)
    torch.testing.assert_close(small.jacobian, whole.jacobian, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(small.l2.certified, whole.l2.certified, rtol=1e-12, atol=0)
    torch.testing.assert_close(small.inequalities(1).A, whole.inequalities(1).A, rtol=1e-12, atol=1e-14)


def test_no_boundary_is_infinitely_far() -> None:
    one_class = nn.Linear(3, 1, bias=False).requires_grad_(False)
    radii = certified_radius(one_class, torch.randn(2, 3))
    assert radii.unit.tolist() == radii.decision.tolist() == radii.certified.tolist() == [INF, INF]
    assert radii.unit_name == ("", "") and radii.decision_class.tolist() == [-1, -1]
    linear_model = nn.Linear(3, 2, bias=False).requires_grad_(False)
    x = torch.randn(1, 3)
    radii = certified_radius(linear_model, x)
    w = (linear_model.weight[0] - linear_model.weight[1]).double()
    assert radii.unit[0] == INF
    assert float(radii.decision[0]) == pytest.approx(
        abs(float(w @ x[0].double())) / float(w.norm()), rel=1e-6
    )


class InPlace(nn.Module):
    """In-place units whose inputs are read again, an in-place sum, adaptive pools, one layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1, bias=False)
        self.head = nn.Linear(2 * 4, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        F.relu_(y)
        z = self.conv(y)
        z += y
        torch.relu_(z)
        z = F.adaptive_max_pool2d(z, (4, 4)).mul_(2).sub_(F.adaptive_avg_pool2d(y, 4))
        return self.head(F.max_pool2d(z, 2, stride=1, dilation=2).flatten(1))


def test_in_place_calls_and_adaptive_pools() -> None:
    torch.manual_seed(0)
    model = InPlace().double().requires_grad_(False)
    x = torch.randn(2, 2, 7, 7, dtype=torch.float64)
    got = local_linear_map(model, x)
    torch.testing.assert_close(got.apply(x), model(x), rtol=1e-12, atol=1e-13)
    y = x + 0.99 * got.linf.certified.view(-1, 1, 1, 1) * (2 * torch.rand_like(x) - 1)
    torch.testing.assert_close(got.apply(y), model(y), rtol=1e-12, atol=1e-13)
    assert torch.equal(pattern_and_prediction(model, y), pattern_and_prediction(model, x))


@pytest.mark.parametrize("name", ALL)
def test_magnitudes_bound_every_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all margins rest on: |g| <= M, and |float32's - float64's| <= e, at any input at all."""
    model, x = make(name, 3)
    piece = Piece(model, x, "winner", "test")
    points = torch.randn(3, 50, *x.shape[1:]) * torch.logspace(-3, 3, 50).view(1, 50, *(1,) * (x.dim() - 1))
    g, _ = piece.values(points.double())
    magnitudes = piece.magnitudes(points.double())
    assert all(
        bool((rows.abs() <= m * (1 + 1e-12)).all()) for rows, (m, _) in zip(g, magnitudes, strict=True)
    )
    errors = piece.errors(points.double(), torch.float32)
    weights = {k: v.float() if v.is_floating_point() else v for k, v in piece._weights.items()}

    def call(units: Units, x: torch.Tensor, mode: object = None) -> torch.Tensor:
        with units:
            return torch.func.functional_call(model, weights, (x,))

    monkeypatch.setattr(piece, "_call", call)
    largest = 0.0
    for rows, low, (bound, _) in zip(g, piece.values(points)[0], errors, strict=True):
        assert low.dtype == torch.float32
        assert bool(((rows - low.double()).abs() <= bound).all())
        largest = max(largest, float(((rows - low.double()).abs() / bound.clamp(min=1e-300)).max()))
    assert largest > 0.01  # not a bound that is out of sight


def test_refusals_name_function_and_layer() -> None:
    x = torch.randn(2, 6)
    with pytest.raises(NotPiecewiseLinear, match=r"local_linear_map: .*layer '1' calls silu"):
        local_linear_map(nn.Sequential(nn.Linear(6, 3), nn.SiLU()), x)
    with pytest.raises(
        NotPiecewiseLinear, match=r"certified_radius: .*layer '1' calls hardtanh|layer '1' calls"
    ):
        certified_radius(nn.Sequential(nn.Linear(6, 3), nn.Hardtanh()), x)
    with pytest.raises(ValueError, match="certified_radius: expected norm 2 or inf, got 1"):
        certified_radius(fcn(), x, norm=1)
    with pytest.raises(ValueError, match="local_linear_map: expected finite inputs"):
        local_linear_map(fcn(), x * math.nan)
    pools = nn.Sequential(nn.Conv2d(1, 1, 1), nn.MaxPool2d(2), nn.Flatten())
    with pytest.raises(NotPiecewiseLinear, match="local_linear_map: ReLU bits do not fix"):
        local_linear_map(pools, torch.randn(1, 1, 4, 4), units="relu")
