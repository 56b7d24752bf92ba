"""Finite fully connected networks as the infinite ones are limits of: their empirical NNGP and NTK."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor


def empirical_kernels(
    x: Tensor,
    s: Callable[[Tensor], Tensor],
    *,
    depth: int,
    width: int,
    w_std: float,
    b_std: float,
    standard: bool,
    first_only: bool,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """(NNGP, NTK) of one drawn network, each [N, N]; the NNGP as the covariance given the last hidden layer."""
    sizes = [x.shape[1], *[width] * depth, 1]
    parameters: list[Tensor] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        weight = torch.randn(fan_out, fan_in, generator=generator, dtype=x.dtype)
        bias = torch.randn(fan_out, generator=generator, dtype=x.dtype)
        if standard:
            weight, bias = weight * w_std / fan_in**0.5, bias * b_std
        parameters += [weight, bias]
    parameters = [p.requires_grad_() for p in parameters]

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        z = x
        for layer in range(depth + 1):
            weight, bias = parameters[2 * layer : 2 * layer + 2]
            before = s(z) if layer else z
            if standard:
                z = before @ weight.t() + (bias if b_std else 0)
            else:
                z = w_std / before.shape[1] ** 0.5 * before @ weight.t() + b_std * bias
        return z[:, 0], before

    out, last = forward(x)
    trained = parameters[:2] if first_only else parameters
    trained = trained if b_std else trained[::2]
    rows = [torch.cat([g.flatten() for g in torch.autograd.grad(y, trained, retain_graph=True)]) for y in out]
    jacobian = torch.stack(rows)
    nngp = b_std**2 + w_std**2 * last.detach() @ last.detach().t() / last.shape[1]
    return nngp, jacobian @ jacobian.t()
