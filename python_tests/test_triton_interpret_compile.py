"""torch.compile with the Triton backend forced, on Triton's interpreter: Dynamo sees ops and never the launcher."""

from __future__ import annotations

import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1, set before triton is imported", allow_module_level=True)
pytest.importorskip("triton")

import zbkernels as zb


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, within the interpreter
def test_a_training_step_compiles_without_a_break() -> None:
    gen = torch.Generator().manual_seed(0)
    x, w, v = (torch.randn(*shape, generator=gen) for shape in ((2, 3, 6, 6), (4, 3, 3, 3), (5, 36)))
    w.requires_grad_()
    v.requires_grad_()

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = zb.linear_relu(zb.conv_relu_pool2d(x, w, padding=1).flatten(1), v)
        return y.detach(), *torch.autograd.grad(y.square().sum(), (w, v))

    def forward(x: torch.Tensor) -> torch.Tensor:
        return zb.linear_relu(zb.conv_relu_pool2d(x, w, padding=1).flatten(1), v)

    with zb.use_backend("triton"):
        want = step(x)
        torch._dynamo.reset()
        y = torch.compile(forward, fullgraph=True, backend="aot_eager")(x)
        assert zb.last_kernel() == "triton: linear_relu.forward"
        got = y.detach(), *torch.autograd.grad(y.square().sum(), (w, v))
        assert zb.last_kernel() == "triton: conv_relu_pool.backward"
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_signature_ops_compile_without_a_break() -> None:
    def search(x: torch.Tensor, db: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sig = zb.nap_pack(x)
        return *zb.nap_topk(sig, db, 2), zb.nap_hamming(sig, db), zb.nap_frequency(db, 70)

    gen = torch.Generator().manual_seed(0)
    x, db = torch.randn(3, 70, generator=gen), zb.nap_pack(torch.randn(5, 70, generator=gen))
    with zb.use_backend("triton"):
        want = search(x, db)
        torch._dynamo.reset()
        for a, b in zip(torch.compile(search, fullgraph=True, backend="aot_eager")(x, db), want, strict=True):
            assert torch.equal(a, b)
        assert zb.last_kernel() == "triton: nap_frequency.forward"
