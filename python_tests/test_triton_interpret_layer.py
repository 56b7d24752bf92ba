"""layer_kernel in Triton's interpreter. Run in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

import os

import pytest
import torch
from compare import value_fault

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1, set before triton is imported", allow_module_level=True)
pytest.importorskip("triton")

import zbkernels as zb
from zbkernels.ops import OPS
from zbkernels.triton import layer_kernel

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
OP = OPS["layer_kernel"]
# The interpreter takes long for each of the samples in every dtype: those that differ in what is launched.
SAMPLES = (
    "not normalised",
    "bias",
    "angles of each pair",
    "one unit",
    "transposed",
    "expanded",
    "odd storage offset",
    "no pairs",
    "no angles",
    "no units",
    "no unit is on",
    "not a number, infinities",
)


def check(*args: torch.Tensor | None, normalized: bool = True) -> None:
    """As near to float64's reference as the reference in the inputs' dtype, within a factor, and as many NaNs."""
    given = (*args, *[None] * (4 - len(args)))
    got, same = layer_kernel.forward(*given, normalized), OP.reference(*given, normalized=normalized)
    exact = OP.reference(*(None if t is None else t.double() for t in given), normalized=normalized)
    slack = 16 * torch.finfo(torch.float64).eps if got.dtype == torch.float64 else 0.0
    assert got.dtype == args[0].dtype and got.is_contiguous()
    assert value_fault(got, same, exact, slack=slack) is None


@pytest.mark.parametrize("dtype", OP.dtypes, ids=str)
def test_samples(dtype: torch.dtype) -> None:
    for sample in OP.samples("cpu", dtype):
        if sample.label in SAMPLES:
            check(*sample.args, **sample.kwargs)


@pytest.mark.parametrize("number", range(3))
def test_candidates(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several parts, angles that fill no group, in each tile."""
    monkeypatch.setattr(layer_kernel, "choose", lambda *a: a[-1]()[number])
    g = torch.Generator().manual_seed(0)
    check(*(torch.randn(*shape, generator=g) for shape in ((2, 2500), (2, 2500), (6,), (2500,))))


def test_forced_backend() -> None:
    g = torch.Generator().manual_seed(0)
    u, v, t = (torch.randn(*shape, generator=g) for shape in ((3, 50), (3, 50), (3, 4)))
    with zb.use_backend("triton"):
        u.requires_grad_()
        zb.layer_kernel(u, v, t).sum().backward()
        zb.layer_kernel(u.detach(), v, t)
        assert zb.last_kernel() == "triton: layer_kernel.forward"
    torch.testing.assert_close(u.grad, torch.autograd.grad(OP.reference(u, v, t).sum(), u)[0])
