"""Faults of torch's own convolution_backward (2.13) that must not come through: found by the fuzzer.

The right values are made without it.
"""

from __future__ import annotations

import pytest
import torch
from exact import same, whole

import zbkernels as zb


def gradients(
    backend: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    grad: torch.Tensor,
    stride: tuple[int, int],
    groups: int = 1,
) -> tuple[torch.Tensor, ...]:
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    with zb.use_backend(backend):
        y = zb.conv_relu_pool2d(x, weight, stride, groups=groups, pool="none", negative_slope=1.0)
    return torch.autograd.grad(y, (x, weight), grad)


@pytest.mark.parametrize("backend", ("cpu", "reference"))
@pytest.mark.parametrize("weight_strides", ((2, 1, 1, 1), (2, 1, 2, 2)), ids=str)
@pytest.mark.parametrize("layout", (torch.contiguous_format, torch.channels_last), ids=str)
def test_gradients_of_a_1x1_filter_with_two_strides(
    backend: str, weight_strides: tuple[int, ...], layout: torch.memory_format
) -> None:
    """In channels_last torch writes past the gradient of the weight, and the process dies a little later."""
    x = whole(2, 2, 6, 9).contiguous(memory_format=layout)
    weight = torch.empty_strided((4, 2, 1, 1), weight_strides).copy_(whole(4, 2, 1, 1, seed=1))
    grad = whole(2, 4, 6, 3, seed=2).contiguous(memory_format=layout)
    grad_x = torch.zeros(2, 2, 6, 9)
    grad_x[..., ::3] = torch.einsum("nkhw,kc->nchw", grad, weight[..., 0, 0])
    grad_weight = torch.einsum("nkhw,nchw->kc", grad, x[..., ::3])[..., None, None]
    kept = []
    for i in range(60):
        kept.append(torch.empty(3 + i % 17))  # so that what is written past an end meets something
        got = gradients(backend, x, weight, grad, (1, 3))
        same(got[0], grad_x)
        same(got[1], grad_weight)
        kept.extend(got)


@pytest.mark.parametrize("backend", ("cpu", "reference"))
@pytest.mark.parametrize("order", ((1, 2, 0), (0, 1, 2), (2, 0, 1)), ids=str)
def test_gradients_of_groups_and_one_image_of_any_strides(backend: str, order: tuple[int, ...]) -> None:
    """torch takes the strides of a single image for another format's, and the gradient is of other pixels."""
    x = whole(4, 6, 4).permute(order).contiguous().permute([order.index(d) for d in range(3)])
    weight = whole(2, 2, 4, 2, seed=1).contiguous(memory_format=torch.channels_last)
    grad = whole(2, 3, 3, seed=2)
    got = gradients(backend, x, weight, grad, (1, 1), groups=2)
    windows = x.contiguous().unfold(1, 4, 1).unfold(2, 2, 1)  # [C, P, Q, R, S]
    grad_weight = torch.stack(
        [torch.einsum("pq,cpqrs->crs", grad[k], windows[2 * k : 2 * k + 2]) for k in (0, 1)]
    )
    same(got[1], grad_weight)
    grad_x = torch.zeros(4, 6, 4)
    for k in (0, 1):
        for i in range(4):
            for j in range(2):
                grad_x[2 * k : 2 * k + 2, i : i + 3, j : j + 3] += grad[k] * weight[k, :, i, j, None, None]
    same(got[0], grad_x)
