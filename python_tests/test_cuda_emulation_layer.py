"""layer_kernel, emulated: parts of the units, more angles than lanes, every dtype, strange numbers."""

from __future__ import annotations

import os

import pytest
import torch
from compare import value_fault
from emulation import MISSING

import zbkernels as zb
from zbkernels import _loader
from zbkernels.ops import OPS

if not _loader.emulated_path().exists():
    pytest.skip(MISSING, allow_module_level=True)
state = _loader.load_emulated()
assert state.loaded, state.reason
ops = torch.ops.zb_emulated
OP = OPS["layer_kernel"]
SANITIZER = os.environ.get("ZBKERNELS_SANITIZER", "")
PART = 1024  # units of a block, in float32


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check(*args: torch.Tensor | None, **options: bool) -> torch.Tensor:
    """As near to float64's reference as the reference in the inputs' dtype, within a factor, and as many NaNs."""
    got, same = ops.layer_kernel(*args, **options), OP.reference(*args, **options)
    exact = OP.reference(*(None if t is None else t.double() for t in args), **options)
    slack = 16 * torch.finfo(torch.float64).eps if got.dtype == torch.float64 else 0.0
    assert got.dtype == args[0].dtype and got.is_contiguous()
    assert value_fault(got, same, exact, slack=slack) is None
    return got


@pytest.mark.parametrize("dtype", OP.dtypes, ids=str)
def test_samples(dtype: torch.dtype) -> None:
    for sample in list(OP.samples("cpu", dtype))[:: 4 if SANITIZER == "tsan" else 1]:
        got = check(*sample.args, **sample.kwargs)
        ops.layer_kernel(*sample.args, **sample.kwargs)
        assert got.numel() == 0 or zb.last_kernel() == "cuda-emulated: layer_kernel sums", sample.label


@pytest.mark.parametrize("units", (PART - 1, PART, PART + 1, 3 * PART + 5))
@pytest.mark.parametrize("angles", (1, 15, 16, 17, 40))
def test_parts_and_groups_of_angles(units: int, angles: int) -> None:
    """Whole and cut parts, several items a block, whole and cut groups of 16 angles."""
    u, v, t = draw(3, units), draw(3, units, seed=1), draw(angles, seed=2)
    check(u, v, t)
    check(u[:1], v[:1], t.expand(1, -1), draw(units, seed=3), normalized=False)


def test_forced_backend_and_gradients() -> None:
    inputs = [draw(3, 50), draw(3, 50, seed=1), draw(6, seed=2), draw(50, seed=3)]
    grads = []
    for backend in ("cuda-emulated", "reference"):
        leaves = [t.clone().requires_grad_() for t in inputs]
        with zb.use_backend(backend):
            zb.layer_kernel(*leaves).square().sum().backward()
        grads.append([t.grad for t in leaves])
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
