"""``layer_kernel``: what its values mean, its gradients, strange numbers, and the C++ kernels on the CPU."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from compare import value_fault
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import zbkernels as zb
from zbkernels import _loader
from zbkernels.ops import OPS
from zbkernels.ops._op import COMPILED

pytestmark = pytest.mark.usefixtures("one_thread")
reference = OPS["layer_kernel"].reference
compiled = pytest.mark.skipif(("layer_kernel", "cpu") not in COMPILED, reason="the CPU library has no kernel")
BLOCK, RUN = (
    1024,
    1 << 14,
)  # units that csrc/layer_kernel/cpu takes at a time (AVX-512, float32), and a task does


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def fault(u: Tensor, v: Tensor, angles: Tensor, bias: Tensor | None = None, **options: bool) -> str | None:
    """What is wrong with the kernel's values, beside the reference's own error in this dtype."""
    got, same = (f(u, v, angles, bias, **options) for f in (zb.layer_kernel, reference))
    exact = reference(*(None if t is None else t.double() for t in (u, v, angles, bias)), **options)
    slack = 16 * torch.finfo(torch.float64).eps if u.dtype == torch.float64 else 0.0
    return value_fault(got, same, exact, slack=slack)


# --- what the values mean -------------------------------------------------------------------------------------------


def test_many_random_units_give_the_arc_cosine_kernel() -> None:
    """(sin t + (pi - t) cos t) / pi, within five standard deviations: over 4000 layers of 4000 units one was at most
    0.79 / sqrt(n), and 1.10 / sqrt(n) of the sums that are not normalised."""
    n, t = 400_000, torch.linspace(0, math.pi, 13)
    want = (t.sin() + (math.pi - t) * t.cos()) / math.pi
    got = zb.layer_kernel(draw(2, n), draw(2, n, seed=1), t)
    assert (got - want).abs().max() < 5 * 0.79 / n**0.5
    plain = zb.layer_kernel(draw(2, n), draw(2, n, seed=1), t, normalized=False)
    assert (plain - want / 2).abs().max() < 5 * 1.1 / n**0.5  # E relu(u)^2 is 1/2


def test_it_is_the_cosine_of_the_layers_own_activations() -> None:
    """On a layer of weights W and biases b, at y = cos(t) x + sin(t) p."""
    x, p, W, b = draw(4, 30), draw(4, 30, seed=1), draw(50, 30, seed=2), draw(50, seed=3)
    angles = draw(4, 6, seed=4)
    value = zb.layer_kernel(x @ W.T, p @ W.T, angles, b)
    for i in range(6):
        t = angles[:, i : i + 1]
        on_x, on_y = (torch.relu(z @ W.T + b) for z in (x, t.cos() * x + t.sin() * p))
        torch.testing.assert_close(value[:, i], torch.cosine_similarity(on_x, on_y))


def test_at_angle_zero_it_is_one_and_bounded_by_one() -> None:
    t = torch.linspace(-7, 7, 57)
    k = zb.layer_kernel(draw(9, 333), draw(9, 333, seed=1), torch.cat([torch.zeros(1), t]))
    eps = torch.finfo(k.dtype).eps
    assert (k[:, 0] - 1).abs().max() <= 4 * eps and k.min() >= 0 and k.max() <= 1 + 4 * eps


def test_no_bias_no_scale() -> None:
    """Positive homogeneity: powers of two in front of u and v change nothing, not a bit."""
    u, v, t = draw(3, 100), draw(3, 100, seed=1), torch.linspace(0, 3, 8)
    assert torch.equal(zb.layer_kernel(8 * u, 8 * v, t), zb.layer_kernel(u, v, t))


def test_zero_over_zero_is_nan() -> None:
    """Where no unit is on at x, or at y, the cosine has no value; the sums that are not normalised are 0."""
    dead, t = -torch.ones(1, 5), torch.tensor([0.0, 1.0, 2.5, math.pi])
    assert zb.layer_kernel(dead, torch.zeros(1, 5), t).isnan().all()
    on_x_alone = zb.layer_kernel(-dead, torch.zeros(1, 5), t)
    assert on_x_alone.isnan().tolist() == [[False, False, True, True]]
    assert zb.layer_kernel(dead, torch.zeros(1, 5), t, normalized=False).abs().max() == 0
    for normalized in (False, True):
        none = zb.layer_kernel(torch.zeros(2, 0), torch.zeros(2, 0), t, normalized=normalized)
        assert none.shape == (2, 4) and none.isnan().all()
    assert zb.layer_kernel(dead, torch.zeros(1, 5), t, 2 * torch.ones(5)).isfinite().all()


# --- gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("own_angles", [True, False])
def test_gradients_are_those_of_plain_torch(normalized: bool, own_angles: bool) -> None:
    """Of all four inputs, in float64 and float32, and only those that are wanted."""
    angles = draw(5, 7, seed=2) if own_angles else draw(7, seed=2)
    inputs = draw(5, 60), draw(5, 60, seed=1), angles, draw(60, seed=3)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-5)):
        ours, theirs = ([t.to(dtype).requires_grad_() for t in inputs] for _ in range(2))
        zb.layer_kernel(*ours, normalized=normalized).square().sum().backward()
        reference(*theirs, normalized=normalized).square().sum().backward()
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=tolerance, atol=tolerance)
    u, v = draw(5, 60).requires_grad_(), draw(5, 60, seed=1)
    zb.layer_kernel(u, v, angles).sum().backward()
    assert u.grad is not None and v.grad is None


def test_the_angles_gradient_is_the_slope() -> None:
    """d/dt of the arc-cosine kernel is -(pi - t) sin(t) / pi."""
    n, t = 400_000, torch.linspace(0.2, 3, 8).requires_grad_()
    zb.layer_kernel(draw(1, n), draw(1, n, seed=1), t).sum().backward()
    want = -(math.pi - t.detach()) * t.detach().sin() / math.pi
    assert (t.grad - want).abs().max() < 0.01


def test_transforms_see_through() -> None:
    """vmap over layers is one call for more pairs; grad under vmap and forward mode go through the reference."""
    u, v, t = (
        draw(6, 4, 20, dtype=torch.float64),
        draw(6, 4, 20, seed=1, dtype=torch.float64),
        draw(5).double(),
    )
    want = torch.stack([zb.layer_kernel(a, b, t) for a, b in zip(u, v, strict=True)])
    torch.testing.assert_close(torch.vmap(lambda a, b: zb.layer_kernel(a, b, t))(u, v), want)

    def total(a: Tensor, b: Tensor) -> Tensor:
        return zb.layer_kernel(a, b, t).sum()

    slopes = torch.vmap(torch.func.grad(total))(u, v)
    torch.testing.assert_close(slopes[2], torch.func.grad(total)(u[2], v[2]))
    _, tangent = torch.func.jvp(lambda a: total(a, v[0]), (u[0],), (v[0],))
    torch.testing.assert_close(tangent, (torch.func.grad(total)(u[0], v[0]) * v[0]).sum())


def test_compiled_without_a_break() -> None:
    u, v, t = draw(4, 20).requires_grad_(), draw(4, 20, seed=1), torch.linspace(0, 3, 5)

    def value(u: Tensor) -> Tensor:
        return zb.layer_kernel(u * 2, v, t).square()

    compiled_value = torch.compile(value, fullgraph=True, backend="aot_eager")(u)
    torch.testing.assert_close(compiled_value, value(u))
    got, want = (torch.autograd.grad(y.sum(), u)[0] for y in (compiled_value, value(u)))
    torch.testing.assert_close(got, want)


def test_normalized_is_a_bool() -> None:
    with pytest.raises(TypeError, match="layer_kernel: expected normalized to be a bool, got 1"):
        zb.layer_kernel(draw(2, 3), draw(2, 3), draw(4), normalized=1)


# --- the C++ kernels ------------------------------------------------------------------------------------------------


@compiled
@settings(max_examples=40, deadline=None)
@given(
    pairs=st.integers(1, 6),
    units=st.sampled_from([1, 15, 16, 17, 255, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5]),
    angles=st.integers(1, 9),
    own_angles=st.booleans(),
    biased=st.booleans(),
    normalized=st.booleans(),
    dtype=st.sampled_from(OPS["layer_kernel"].dtypes),
    seed=st.integers(0, 999),
)
def test_any_problem(
    pairs: int,
    units: int,
    angles: int,
    own_angles: bool,
    biased: bool,
    normalized: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    u, v = draw(pairs, units, seed=seed).to(dtype), draw(pairs, units, seed=seed + 1).to(dtype)
    turns = 4 * draw(*((pairs, angles) if own_angles else (angles,)), seed=seed + 2).to(dtype)
    bias = draw(units, seed=seed + 3).to(dtype) if biased else None
    if units == 1:  # with one unit 0/0 hangs on a rounding; one that is always on is tested
        u, v, bias = u.abs() + 4, v / 8, None if bias is None else bias.abs()
        turns = turns.clamp(-1, 1)
    assert fault(u, v, turns, bias, normalized=normalized) is None
    assert zb.last_kernel().startswith("reference")  # what fault() ran last
    zb.layer_kernel(u, v, turns, bias)
    assert zb.last_kernel().startswith("cpu: layer_kernel")


@compiled
@pytest.mark.parametrize("biased", [False, True])
def test_a_million_units_are_summed_as_well_as_torch_sums_them(biased: bool) -> None:
    n = 10**6
    u, v, t = draw(1, n), draw(1, n, seed=1), torch.linspace(0, 3, 5)
    bias = draw(n, seed=2) if biased else None
    got = zb.layer_kernel(u, v, t, bias).double()
    exact = reference(u.double(), v.double(), t.double(), None if bias is None else bias.double())
    own = (reference(u, v, t, bias).double() - exact).abs().max()
    assert (got - exact).abs().max() <= max(own, torch.finfo(torch.float32).eps)


@compiled
def test_runs_of_units_add_up_the_same_for_any_thread_count() -> None:
    u, v, t = draw(2, 3 * RUN + 77), draw(2, 3 * RUN + 77, seed=1), draw(5)
    alone = zb.layer_kernel(u, v, t)
    torch.set_num_threads(4)
    assert torch.equal(zb.layer_kernel(u, v, t), alone)
    assert fault(u, v, t) is None
    pairs = zb.layer_kernel(u.expand(2, -1)[:1].expand(40, -1), v[:1].expand(40, -1), t)
    assert torch.equal(pairs, alone[:1].expand(40, -1))


@compiled
def test_every_side_that_an_angle_may_lie_on() -> None:
    """Without biases the larger of cos and sin, with its sign, is taken out of the sums: eight octants and their
    borders."""
    t = torch.arange(-16, 17) * (math.pi / 8)
    for dtype in (torch.float32, torch.float64):
        u, v = draw(3, 700, dtype=dtype), draw(3, 700, seed=1, dtype=dtype)
        for normalized in (False, True):
            assert fault(u, v, t.to(dtype), normalized=normalized) is None
            with_zeros = zb.layer_kernel(u, v, t, torch.zeros(700, dtype=dtype), normalized=normalized)
            without = zb.layer_kernel(u, v, t, normalized=normalized)
            torch.testing.assert_close(without, with_zeros)


@compiled
def test_not_a_number_stays_in_its_pair() -> None:
    u, v, t = draw(4, 50), draw(4, 50, seed=1), torch.linspace(0.1, 3, 9)
    clean = zb.layer_kernel(u, v, t)
    for number, places in ((math.nan, (u, v)), (math.inf, (u,))):
        for place in places:
            kept = place[2, 7].clone()
            place[2, 7] = number
            got = zb.layer_kernel(u, v, t)
            place[2, 7] = kept
            assert got[2].isnan().all() and torch.equal(got[[0, 1, 3]], clean[[0, 1, 3]])
    t[4] = math.nan
    got = zb.layer_kernel(u, v, t)
    assert got[:, 4].isnan().all() and torch.equal(got[:, :4], clean[:, :4])


VARIANT = """
import sys
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
import test_layer_kernel as t
for dtype in t.OPS["layer_kernel"].dtypes:
    for units in (1, 7, 300, t.BLOCK + 3):
        u, v, turns = t.draw(3, units).to(dtype).abs(), t.draw(3, units, seed=1).to(dtype), t.draw(6, seed=2) / 4
        for bias in (None, t.draw(units, seed=3).to(dtype).abs()):
            found = t.fault(u, v, turns.to(dtype), bias)
            assert found is None, (dtype, units, found)
t.test_every_side_that_an_angle_may_lie_on()
t.test_not_a_number_stays_in_its_pair()
t.test_zero_over_zero_is_nan()
t.zb.layer_kernel(u, v, turns)
print(t.zb.last_kernel())
"""


@compiled
@pytest.mark.parametrize("capability", ["avx2", "portable"])
def test_other_instruction_sets(capability: str) -> None:
    if _loader.cpu_capability() in ("portable", capability):
        pytest.skip("this processor has no other than this one")
    env = {**os.environ, "ZBKERNELS_CPU_CAPABILITY": capability}
    code = VARIANT.format(tests=str(Path(__file__).parent))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == f"cpu: layer_kernel {capability}"
