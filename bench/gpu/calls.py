"""One small call of each public op, forward and in training: what the checks of streams and graphs run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

import zbkernels as zb

Tensors = tuple[torch.Tensor, ...]


@dataclasses.dataclass(frozen=True)
class Call:
    """``run(*inputs)`` calls an op; the first of ``inputs`` is what a check replaces by other values.

    ``waits``: the size of the result depends on the data, so the host waits for it and no graph can hold the call.
    """

    name: str
    inputs: Tensors
    run: Callable[..., Tensors]
    waits: bool = False

    def other(self) -> torch.Tensor:
        """Other values for the first input."""
        return self.inputs[0].flip(0).roll(1, -1).contiguous()


def calls(device: str) -> list[Call]:
    """All of them, with their inputs on the device; the sizes leave rests in every tile."""
    seed = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=seed).to(device)

    image, filters = draw(9, 5, 31, 30), draw(35, 5, 3, 3)
    rows, weight = draw(67, 300), draw(70, 300)
    words = torch.randint(-(2**62), 2**62, (67, 16), generator=seed).to(device)
    images, linear = (image, filters), (rows, weight)
    return [
        Call("conv_relu_pool2d", images, lambda x, w: (zb.conv_relu_pool2d(x, w, padding=1),)),
        Call("conv_relu_pool2d training", images, _training(zb.conv_relu_pool2d)),
        Call("conv_relu_pool2d_nap", images, lambda x, w: zb.conv_relu_pool2d_nap(x, w)),
        Call("linear_relu", linear, lambda x, w: (zb.linear_relu(x, w),)),
        Call("linear_relu training", linear, _training(zb.linear_relu)),
        Call("linear_relu_nap", linear, lambda x, w: zb.linear_relu_nap(x, w)),
        Call("nap_pack", (rows,), lambda x: (zb.nap_pack(x),)),
        Call("nap_unpack", (words,), lambda sig: (zb.nap_unpack(sig, 1000),)),
        Call("nap_hash", (words,), lambda sig: (zb.nap_hash(sig),)),
        Call("nap_hamming", (words, words[:9]), lambda a, b: (zb.nap_hamming(a, b),)),
        Call("nap_topk", (words[:9], words), lambda q, db: zb.nap_topk(q, db, 5)),
        Call("nap_group", ((words & 1)[:, :4].contiguous(),), zb.nap_group, waits=True),
        Call("nap_frequency", (words,), lambda sig: (zb.nap_frequency(sig, 1000),)),
        Call("dual_gram", linear, lambda x, y: (zb.dual_gram(x, y, kernel="ntk", depth=2),)),
        Call("dual_matvec", (rows, weight, draw(70, 3)), lambda x, y, v: (zb.dual_matvec(x, y, v, depth=2),)),
        Call("layer_kernel", (rows, draw(67, 300), draw(9)), lambda u, v, t: (zb.layer_kernel(u, v, t),)),
    ]


def _training(op: Callable[..., torch.Tensor]) -> Callable[..., Tensors]:
    """Forward and backward: (y, gradient of x, gradient of the weight)."""

    def run(x: torch.Tensor, weight: torch.Tensor) -> Tensors:
        x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
        y = op(x, weight)
        return (y.detach(), *torch.autograd.grad(y, (x, weight), torch.ones_like(y)))

    return run
