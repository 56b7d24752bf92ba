"""Certificates of hulls and cones: what they promise is looked for in vain."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from nap_models import ALL, BIASED, ZERO_BIAS, fcn, make, near, pattern_and_prediction
from torch import nn

import zbkernels as zb
from zbkernels.nap import NotCertified, NotPiecewiseLinear, certify_hull
from zbkernels.nap.rounding import gamma


class PooledMaxima(nn.Module):
    """A ReLU and a 1x2 max pool, whose maxima are the logits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(torch.relu(x), (1, 2)).flatten(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_relu_bits_under_a_max_pool_do_not_fix_the_piece(dtype: torch.dtype) -> None:
    """An erratum of Appendix A of the zero-bias paper: max pooling is scalar associative, and yet the midpoint of two
    inputs with the same ReLU bits and prediction gets another class."""
    x = torch.tensor([[1, 0.1, 0.8, 0.8], [0.1, 1, 0.8, 0.8]], dtype=dtype).view(2, 1, 1, 4)
    model = PooledMaxima()
    bits = pattern_and_prediction(model, x, units="relu")
    assert torch.equal(bits[0], bits[1])
    assert model(x).argmax(1).tolist() == [0, 0] and model(x.mean(0, keepdim=True)).argmax(1).tolist() == [1]
    with pytest.raises(
        NotPiecewiseLinear, match=r"ReLU bits do not fix .* max pool 'forward#2'.*units='winner'"
    ):
        certify_hull(model, x, units="relu")
    with pytest.raises(NotCertified, match=r"inputs 0 and 1 have other patterns: window 0 of 'forward#2'"):
        certify_hull(model, x)
    assert certify_hull(model, x[:1]).prediction == 0


def test_bits_are_enough_without_max_pools() -> None:
    model, x = make("fcn", 1, torch.float64)
    points = near(model, x, 3)
    for units in ("relu", "winner"):
        assert certify_hull(model, points, units=units).contains(points.mean(0, keepdim=True)).all()
    with pytest.raises(NotPiecewiseLinear, match="pooled outputs"):
        certify_hull(model, points, units="output")
    with pytest.raises(ValueError, match="winner, relu, got 'bits'"):
        certify_hull(model, points, units="bits")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ALL)
def test_no_combination_breaks_a_certificate(name: str, dtype: torch.dtype) -> None:
    model, x = make(name, 3, dtype)
    certified = 0
    for i in range(len(x)):
        vertices = near(model, x[i : i + 1], 6, seed=i)
        region = certify_hull(model, vertices)
        assert region.kind == ("hull" if name in BIASED else "cone") and bool(region.lost) == (name in BIASED)
        assert region.margins[dtype].holds
        certified += 1
        want = pattern_and_prediction(model, vertices[:1])
        for within in ("hull", *(("cone",) if name in ZERO_BIAS else ())):
            points = region.sample(1500, within=within, generator=torch.Generator().manual_seed(i)).to(dtype)
            assert torch.equal(pattern_and_prediction(model, points), want.expand(len(points), -1))
            some = points[:: 50 if dtype == torch.float64 else 150]
            assert region.contains(some, within).all() and region.contains(some, within, dtype=dtype).all()
        # Of one vertex and of corners of the simplex too, where rows are the smallest.
        weights = torch.eye(6, dtype=dtype).lerp(torch.full((6, 6), 1 / 6, dtype=dtype), 1e-6)
        corners = (weights @ vertices.flatten(1)).view_as(vertices)
        assert torch.equal(pattern_and_prediction(model, corners), want.expand(6, -1))
    assert certified == len(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["fcn", "fused", "pools", "normalised"])
def test_adversary_inside_the_margin(name: str, dtype: torch.dtype) -> None:
    """Walks from x towards the border as far as the margin of ``dtype`` lets it, many ways, and looks whether the
    computation in ``dtype`` has changed anything there: alone, in a batch, in channels_last."""
    model, x = make(name, 1, dtype)
    region = certify_hull(model, x)
    want = pattern_and_prediction(model, x)
    gen = torch.Generator().manual_seed(3)
    direction = torch.randn(20, *x.shape[1:], generator=gen, dtype=dtype)
    A = region.inequalities()
    steepest = A.A[(A.A @ x.double().flatten() + A.b).argsort()[:20]].to(
        dtype
    )  # straight at the nearest borders
    direction = torch.cat([direction, -steepest.view(-1, *x.shape[1:])])
    low, high = (
        torch.zeros(len(direction), 1, dtype=dtype),
        torch.full((len(direction), 1), 100.0, dtype=dtype),
    )

    def at(step: torch.Tensor) -> torch.Tensor:
        return x + (step * direction.flatten(1)).view_as(direction)

    for _ in range(45):
        middle = (low + high) / 2
        inside = region.contains(at(middle), "region", dtype=dtype).unsqueeze(1)
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    points = at(low)
    assert region.contains(points, "region", dtype=dtype).all()
    beyond = at(low * 1.001)
    assert not region.contains(beyond, "region").all()  # they did get near the border
    assert torch.equal(pattern_and_prediction(model, points), want.expand(len(points), -1))
    for point in points[::5]:
        assert torch.equal(pattern_and_prediction(model, point.unsqueeze(0)), want)
    if x.dim() == 4:
        last = points.contiguous(memory_format=torch.channels_last)
        assert torch.equal(pattern_and_prediction(model, last), want.expand(len(points), -1))


@pytest.mark.parametrize("name", ["fcn", "fused"])
def test_margin_is_refused_near_a_border(name: str) -> None:
    """Vertices so near to the border that float32 could change a unit: certified exactly, and not in float32."""
    model, x = make(name, 1, torch.float64)
    model = model.float().double()  # weights that are numbers of float32
    vertices = near(model, x.float().double(), 2, reach=1 - 1e-9)
    region = certify_hull(model, vertices)
    assert region.margins[torch.float64].holds and not region.margins[torch.float32].holds
    assert region.margins[torch.float32].scales == (1, 1) and "holds in: float64" in repr(region)
    assert region.margins[torch.float32].relative < 1 < region.margins[torch.float64].relative
    assert region.contains(vertices, "region").all()
    assert not region.contains(vertices, "region", dtype=torch.float32).any()


def test_margin_of_a_network_done_by_hand() -> None:
    model = nn.Linear(2, 2, bias=False).requires_grad_(False)
    model.weight.copy_(torch.tensor([[1.0, 2.0], [1.0, -1.0]]))
    region = certify_hull(model, torch.tensor([[1.0, 1.0]]))
    margin = region.margins[torch.float32]
    # f = (3, 0). Of the input 4 roundings, of each output 2: to first order e = (4 u + 2 u) (3 + 2).
    assert margin.relative == pytest.approx(3 / (30 * 2**-24), rel=1e-6) and margin.holds
    assert 0 < margin.scales[0] < 1e-30 and 1e37 < margin.scales[1] < 1e38
    assert gamma(4, torch.float32) == pytest.approx(4 * 2**-24) and gamma(2**24, torch.float32) == math.inf
    half = certify_hull(
        nn.Linear(2, 2, bias=False, dtype=torch.float64).requires_grad_(False), torch.randn(1, 2)
    )
    assert list(half.margins) == [torch.float64]  # its weights are no numbers of float32
    with pytest.raises(ValueError, match="hold each weight exactly"):
        half.contains(torch.randn(1, 2), dtype=torch.float32)


# Small whole numbers: float64 is exact there, every tie can occur, and nothing may be left undecided.

whole = st.integers(-2, 2)


@st.composite
def whole_problems(draw: st.DrawFn) -> tuple[nn.Module, torch.Tensor]:
    def tensor(*shape: int) -> torch.Tensor:
        count = math.prod(shape)
        return torch.tensor(draw(st.lists(whole, min_size=count, max_size=count)), dtype=torch.float32).view(
            shape
        )

    pooled = draw(st.booleans())
    if pooled:
        layers = [nn.Conv2d(1, 2, (1, 2), bias=False), nn.ReLU(), nn.MaxPool2d((1, 2), (1, 1)), nn.Flatten()]
        shape: tuple[int, ...] = (1, 1, 4)
    else:
        layers = [nn.Linear(3, 4, bias=False), nn.ReLU()]
        shape = (3,)
    model = nn.Sequential(*layers, nn.Linear(4, 3, bias=False)).requires_grad_(False)
    for weight in model.parameters():
        weight.copy_(tensor(*weight.shape))
    return model, tensor(2, *shape)


@settings(max_examples=120, deadline=None)
@given(whole_problems(), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=8, max_size=8))
def test_ties_are_decided_exactly(
    problem: tuple[nn.Module, torch.Tensor], weights: list[tuple[int, int]]
) -> None:
    """Same pattern and prediction in exact arithmetic <=> certified; and then every conic combination keeps both."""
    model, x = problem
    exact = pattern_and_prediction(model, x)  # whole numbers: sums are exact
    try:
        region = certify_hull(model, x)
    except NotCertified as error:
        assert "too near" not in str(error)
        assert not torch.equal(exact[0], exact[1])
        return
    assert torch.equal(exact[0], exact[1])
    w = torch.tensor([pair for pair in weights if pair != (0, 0)], dtype=torch.float32).view(-1, 2)
    points = (w @ x.flatten(1)).view(-1, *x.shape[1:])
    if len(points):
        assert torch.equal(pattern_and_prediction(model, points), exact[:1].expand(len(points), -1))
        assert region.contains(points).all()


@settings(max_examples=60, deadline=None)
@given(whole_problems(), st.lists(whole, min_size=4, max_size=4))
def test_region_is_exactly_the_inputs_of_the_pattern(
    problem: tuple[nn.Module, torch.Tensor], other: list[int]
) -> None:
    model, x = problem
    region = certify_hull(model, x[:1])
    points = torch.tensor(other, dtype=torch.float32)[: x[0].numel()].view(1, *x.shape[1:])
    points = torch.cat([points, x, 3 * x, torch.zeros_like(points)])
    want = (pattern_and_prediction(model, points) == pattern_and_prediction(model, x[:1])).all(1)
    assert torch.equal(region.contains(points, "region"), want)
    assert torch.equal(region.inequalities().contains(points), want)


def test_first_of_tied_logits_and_of_tied_winners() -> None:
    class Logits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 1.0 * x

    tied = certify_hull(Logits(), torch.tensor([[1.0, 1.0, 0.0]]))
    assert tied.prediction == 0
    inside = tied.contains(
        torch.tensor([[2.0, 2.0, 1.0], [2.0, 2.0, 2.0], [2.0, 2.0, 2.5], [1.0, 2.0, 0.0]]), "region"
    )
    assert inside.tolist() == [True, True, False, False]
    second = certify_hull(Logits(), torch.tensor([[1.0, 2.0, 0.0]]))
    assert second.contains(torch.tensor([[2.0, 2.0, 0.0], [1.9, 2.0, 2.0]]), "region").tolist() == [
        False,
        True,
    ]
    # the apex of the cone: no unit is on there and the first class wins, which is this region's pattern only for
    # class 0
    assert tied.contains(torch.zeros(1, 3)).all() and not second.contains(torch.zeros(1, 3)).any()


def test_a_cancellation_that_float64_cannot_decide_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 1, bias=False), nn.ReLU(), nn.Linear(1, 2, bias=False)).double()
    model[0].weight.data.copy_(torch.tensor([[0.1, 0.2, -0.3]], dtype=torch.float64))
    with pytest.raises(
        NotCertified, match=r"input 0 is too near to a boundary .*unit 0 of '1'.*float64 can be off by"
    ):
        certify_hull(model, torch.ones(1, 3, dtype=torch.float64))
    assert Fraction(0.1) + Fraction(0.2) != Fraction(0.3)


def test_contains_tells_hull_from_cone_from_region() -> None:
    model, x = make("fcn", 1, torch.float64)
    vertices = near(model, x, 4)
    region = certify_hull(model, vertices)
    inside = region.sample(5, within="hull")
    assert region.contains(inside, "hull").all()
    scaled = 3 * inside
    assert not region.contains(scaled, "hull").any() and region.contains(scaled, "cone").all()
    off = inside + 1e-6 * torch.randn(5, 6, dtype=torch.float64)  # 4 vertices span no ball in 6 dimensions
    assert not region.contains(off, "cone").any() and region.contains(off, "region").all()
    assert region.contains(off, "cone", tolerance=1e-3).all()
    outside = -inside
    assert (
        not region.contains(outside, "region").any()
        and not region.contains(outside, "cone", tolerance=9.0).any()
    )
    assert region.contains(x[:0]).tolist() == []
    for wrong, message in (
        (lambda: region.contains(inside[:, :5]), r"shape \[N, 6\]"),
        (lambda: region.contains(inside, "ball"), "'hull', 'cone' or 'region', got 'ball'"),
        (lambda: region.contains(inside * math.nan), "finite"),
        (lambda: region.sample(1, within="region"), "kind that is certified"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()


def test_what_a_bias_costs() -> None:
    model, x = make("fcn with bias", 1)
    vertices = near(model, x, 4)
    with pytest.raises(
        ValueError, match=r"kind='cone' needs a network without biases, but a bias reaches '1': .*hull"
    ):
        certify_hull(model, vertices, kind="cone")
    region = certify_hull(model, vertices)
    assert region.kind == "hull" and "polytopes" in region.lost and "scaling" in region.lost
    with pytest.raises(ValueError, match="no cone is certified"):
        region.contains(vertices, "cone")
    with pytest.raises(ValueError, match="kind that is certified"):
        region.sample(1, within="cone")
    scales = torch.logspace(-3, 3, 13).view(-1, 1)
    scaled = pattern_and_prediction(model, scales * x)
    assert not torch.equal(
        scaled, scaled[:1].expand_as(scaled)
    )  # what is lost: here scaling does change the pattern
    zero_bias = fcn(True).requires_grad_(False)
    for layer in (0, 2, 4):
        zero_bias[layer].bias.zero_()
    assert certify_hull(zero_bias, torch.randn(1, 6)).kind == "cone"  # biases that are all 0 cost nothing
    assert certify_hull(zero_bias, torch.randn(1, 6), kind="hull").kind == "hull"


def test_batch_normalisation_in_evaluation_is_a_bias() -> None:
    model, x = make("normalised", 1)
    region = certify_hull(model, x)
    assert region.kind == "hull" and "a bias reaches" in region.lost
    with pytest.raises(
        NotPiecewiseLinear, match=r"layer '1' calls batch_norm in training; call model.eval\(\)"
    ):
        certify_hull(model.train(), x)


class Affine(nn.Module):
    """Everything between units whose rounding has a rule: each must keep |g| <= M, and biases must be seen."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = shift
        self.scale = nn.Parameter(torch.tensor([-0.5]))
        self.matrix = nn.Parameter(torch.randn(5, 4))
        self.linear = zb.nn.ConvReLUPool2d(1, 2, 2, pool="avg", negative_slope=1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.pad(x.view(-1, 1, 2, 3), (1, 0, 1, 2), value=self.shift)
        y = torch.relu(self.linear(y) * self.scale).div(-3)
        y = torch.cat([y, 2 - (2 - y).neg().neg() if self.shift else -y], 1)[:, :3].flatten(1)
        y = torch.sub(y, y.sum(1, keepdim=True), alpha=0.25).split(5, 1)[0] @ self.matrix
        return torch.relu(y / 4 - self.shift)


@pytest.mark.parametrize("shift", [0.0, -0.75])
def test_affine_layers(shift: float) -> None:
    torch.manual_seed(0)
    model = Affine(shift).requires_grad_(False)
    x = torch.randn(1, 6)
    region = certify_hull(model, x)
    assert bool(region.lost) == (shift != 0)
    vertices = near(model, x, 5)
    region = certify_hull(model, vertices)
    points = region.sample(500, generator=torch.Generator().manual_seed(0)).float()
    want = pattern_and_prediction(model, x)
    assert torch.equal(pattern_and_prediction(model, points), want.expand(500, -1))
    points = torch.randn(1, 200, 6, dtype=torch.float64)
    for g, (m, _) in zip(region._piece.values(points)[0], region._piece.magnitudes(points), strict=True):
        assert bool((g.abs() <= m * (1 + 1e-12)).all()) and bool((m > 0).any())


class Squares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inside(x) * x


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0, keepdim=True)


class Narrow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x.mean(1, keepdim=True, dtype=torch.float32)


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight * self.weight)

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (nn.Softmax(1), "layer '1' calls softmax; give the model without it"),
        (nn.GELU(), "layer '1' calls gelu"),
        (nn.Sigmoid(), "layer '1' calls sigmoid"),
        (nn.Dropout(), "layer '1' calls dropout in training; call model.eval"),
        (nn.BatchNorm1d(4), "layer '1' calls batch_norm in training"),
        (Squares(), "layer '1' calls mul of two activations"),
        (nn.Sequential(nn.Linear(4, 4), nn.Tanh()), "layer '1.1' calls tanh"),
        (Centred(), "depends on the others of its batch|mixes them"),
        (Narrow(), r"layer '1': the model converts activations to torch.float32 by itself \(mean\)"),
        (Scaled(), "layer '1': the model computes a weight by mul"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_other_networks_are_refused_by_the_layers_name(last: nn.Module, message: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), last)
    with pytest.raises(NotPiecewiseLinear, match=message):
        certify_hull(model, torch.randn(3, 4))


def test_bad_inputs_are_refused() -> None:
    model, x = make("fcn", 2)
    for inputs, message in (
        (x[:0], r"at least one input, floating point \[N, ...\], got torch.float32 \[0, 6\]"),
        (x.int(), "floating point"),
        (x[0, 0], "floating point"),
        ([1.0], "got list"),
        (x * math.inf, "finite"),
    ):
        with pytest.raises(ValueError, match=message):
            certify_hull(model, inputs)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'cone' or 'hull', got 'ball'"):
        certify_hull(model, x, kind="ball")
    with pytest.raises(ValueError, match=r"expected a model that returns logits \[1, C\]"):
        certify_hull(nn.Unflatten(1, (2, 3)), x)
    with pytest.raises(NotCertified, match="inputs 0 and 1 have other"):
        certify_hull(model, torch.cat([x[:1], -x[:1]]))
    model[0].weight[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"NaN or infinite values in '0.weight'"):
        certify_hull(model, x)


def test_a_region_is_of_the_weights_it_was_certified_for() -> None:
    model, x = make("fcn", 1, torch.float64)
    region = certify_hull(model, x)
    near_border = near(model, x, 4, reach=0.999)
    assert region.contains(near_border, "region").all()
    model[0].weight.mul_(-1)
    assert region.contains(near_border, "region").all()
    assert torch.equal(region.inequalities().contains(near_border), torch.ones(4, dtype=torch.bool))
