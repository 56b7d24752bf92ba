"""Finite fully connected networks in the NTK parametrisation (equation 20): their tangent kernels, and training."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

Parameters = dict[str, Tensor]


def draw(features: int, width: int, depth: int, beta: float, generator: torch.Generator) -> Parameters:
    """Weights "w0", … of shape [fan out, fan in] and, where beta > 0, biases "b0", …, all N(0, 1), float32."""
    sizes = [features, *[width] * depth, 1]
    drawn: Parameters = {}
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        drawn[f"w{layer}"] = torch.randn(fan_out, fan_in, generator=generator)
        if beta > 0:
            drawn[f"b{layer}"] = torch.randn(fan_out, generator=generator)
    return drawn


def forward(parameters: Parameters, x: Tensor, beta: float) -> Tensor:
    """The output of each input, [N, features] -> [N]; ReLU between the layers."""
    layers = sum(name.startswith("w") for name in parameters)
    for layer in range(layers):
        weight = parameters[f"w{layer}"]
        z = x @ weight.T / weight.shape[1] ** 0.5
        if beta > 0:
            z = z + beta * parameters[f"b{layer}"]
        x = torch.relu(z) if layer < layers - 1 else z
    return x[:, 0]


def empirical_ntk(parameters: Parameters, x: Tensor, beta: float) -> dict[str, Tensor]:
    """The part of each parameter in the tangent kernel (equation 25) of the inputs, [N, N] float64; their sum is it."""

    def output(parameters: Parameters, one: Tensor) -> Tensor:
        return forward(parameters, one[None], beta)[0]

    slopes = torch.func.vmap(torch.func.grad(output), in_dims=(None, 0))(parameters, x)
    return {name: (g.flatten(1) @ g.flatten(1).T).double() for name, g in slopes.items()}


def train(
    parameters: Parameters, x: Tensor, y: Tensor, beta: float, rate: float, steps: int
) -> tuple[Parameters, list[float]]:
    """Gradient descent on ½ ||y - f(x)||², all inputs at once.

    Returns:
        The trained parameters, and the loss before each step and after the last.
    """

    def loss(parameters: Parameters) -> Tensor:
        return (y - forward(parameters, x, beta)).square().sum() / 2

    step = torch.func.grad_and_value(loss)
    losses = []
    for _ in range(steps):
        gradient, value = step(parameters)
        losses.append(float(value))
        parameters = {name: value - rate * gradient[name] for name, value in parameters.items()}
    return parameters, [*losses, float(loss(parameters))]


def relative(gap: Tensor, size: Tensor) -> float:
    """||gap|| / ||size|| by Frobenius."""
    return float(gap.norm() / size.norm())


def measure(
    x: Tensor,
    y: Tensor,
    limits: dict[str, Tensor],
    *,
    trained_on: int,
    width: int,
    depth: int,
    beta: float,
    steps: int,
    seed: int,
) -> dict[str, Any]:
    """Draw a network, train it, and set its kernel before and after beside the closed forms.

    Args:
        x: [N, features] float32; the first ``trained_on`` are trained on, with the targets y [trained_on].
        limits: "own" and "zero", the kernels [N, N] of infinite width with this beta and without biases.
    """
    generator = torch.Generator().manual_seed(seed)
    parameters = draw(x.shape[1], width, depth, beta, generator)
    # The largest eigenvalue of the limit makes the step as long as can be: the same share of what is stable for all.
    rate = 1 / float(torch.linalg.eigvalsh(limits["own"][:trained_on, :trained_on])[-1])
    parts = empirical_ntk(parameters, x, beta)
    before = torch.stack(list(parts.values())).sum(0)
    trained, losses = train(parameters, x[:trained_on], y, beta, rate, steps)
    after = torch.stack(list(empirical_ntk(trained, x, beta).values())).sum(0)
    last = parts.get(f"b{depth}")
    return {
        "width": width,
        "seed": seed,
        "to_own": relative(before - limits["own"], limits["own"]),
        "to_zero": relative(before - limits["zero"], limits["zero"]),
        "moved": relative(after - before, before),
        "after_to_own": relative(after - limits["own"], limits["own"]),
        "after_to_zero": relative(after - limits["zero"], limits["zero"]),
        "losses": [losses[0], losses[-1]],
        "readout_bias": None if last is None else float(last.mean()),
    }
