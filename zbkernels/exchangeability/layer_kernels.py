"""Kernels of finite ReLU layers and networks over the angle between two inputs, and what they are in the limit.

A layer's kernel of x and y is the mean over its units of relu(W_j x) relu(W_j y); normalised, the cosine between its
outputs (equation 1 of "Exchangeability and Kernel Invariance in Trained MLPs"). With y = cos(t) x + sin(t) p (see
:mod:`zbkernels.exchangeability.pairs`) the layer is multiplied with x and p once, for all angles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

import zbkernels as zb


def arc_cosine(angles: Tensor) -> Tensor:
    """(sin t + (pi - t) cos t) / pi, the normalised arc-cosine kernel of degree 1 (equation 4, Cho & Saul 2009).

    Args:
        angles: floating point, in [0, pi].
    """
    return (angles.sin() + (math.pi - angles) * angles.cos()) / math.pi


def iterated_arc_cosine(angles: Tensor, depth: int) -> Tensor:
    """The normalised kernel of ``depth`` wide ReLU layers with independent weights, one after the other.

    Raises:
        ValueError: a depth below 1.
    """
    if depth < 1:
        raise ValueError(f"iterated_arc_cosine: expected depth >= 1, got {depth}")
    for _ in range(depth - 1):
        angles = arc_cosine(angles).clamp(-1, 1).acos()
    return arc_cosine(angles)


def over_angles(
    weight: Tensor,
    x: Tensor,
    p: Tensor,
    angles: Tensor,
    bias: Tensor | None = None,
    *,
    normalized: bool = True,
) -> Tensor:
    """A layer's kernel of x and cos(t) x + sin(t) p, for each pair and angle.

    Args:
        weight: [out, in], or [R, out, in] for R layers of one shape.
        x, p: [P, in], of the weight's dtype.
        angles: [A] or [P, A], in radians.
        bias: [out] or [R, out].
        normalized: divide by the lengths of the layer's two outputs; else by the number of units.

    Returns:
        [P, A] or [R, P, A]. NaN where an output's length is 0 and the kernel normalised.

    Raises:
        TypeError, ValueError: as :func:`zbkernels.layer_kernel`; shapes that do not fit.
    """
    if weight.dim() not in (2, 3) or x.dim() != 2 or x.shape != p.shape or x.shape[1] != weight.shape[-1]:
        raise ValueError(
            "over_angles: expected weight [out, in] or [R, out, in] and x, p [P, in], got "
            f"{list(weight.shape)}, {list(x.shape)} and {list(p.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:-1]:
        raise ValueError(
            f"over_angles: expected bias of shape {list(weight.shape[:-1])}, got {list(bias.shape)}"
        )
    if weight.dim() == 3:
        each = [
            over_angles(weight[r], x, p, angles, None if bias is None else bias[r], normalized=normalized)
            for r in range(len(weight))
        ]
        shape = (0, len(x), angles.shape[-1])
        return torch.stack(each) if each else weight.new_empty(shape)
    return zb.layer_kernel(x @ weight.mT, p @ weight.mT, angles, bias, normalized=normalized)


def whole_network(
    weights: Sequence[Tensor],
    x: Tensor,
    p: Tensor,
    angles: Tensor,
    biases: Sequence[Tensor] | None = None,
) -> Tensor:
    """The normalised kernel of a network of ReLU layers (its last one, too) at x and cos(t) x + sin(t) p.

    Args:
        weights: of the layers in order, [out, in] or, for R networks of one shape, [R, out, in].
        x, p: [P, in]. The first layer is multiplied with them alone, the others with each angle's activations.
        angles: [A] or [P, A], in radians.
        biases: [out] or [R, out] for each layer.

    Returns:
        [P, A] or [R, P, A], the cosine between the network's outputs; NaN where one of them is 0.

    Raises:
        ValueError: no layer, as many biases as there are not layers, or shapes that do not fit.
    """
    if not weights or (biases is not None and len(biases) != len(weights)):
        count = "none" if biases is None else str(len(biases))
        raise ValueError(
            f"whole_network: expected one or more weights and as many biases or none, "
            f"got {len(weights)} weights, {count} biases"
        )
    _check_chain(weights, x, p, biases)
    u, v = x @ weights[0].mT, p @ weights[0].mT  # [..., P, n]
    at_x = _after_first(u, weights, biases)
    columns = []
    for t in angles.to(u).unbind(-1):  # of one angle at a time: activations of all would not fit
        turn = t[..., None]
        at_y = _after_first(turn.cos() * u + turn.sin() * v, weights, biases)
        columns.append((at_x * at_y).sum(-1) / (at_x.norm(dim=-1) * at_y.norm(dim=-1)))
    return torch.stack(columns, -1) if columns else u.new_empty((*u.shape[:-1], 0))


def _check_chain(weights: Sequence[Tensor], x: Tensor, p: Tensor, biases: Sequence[Tensor] | None) -> None:
    shapes = [list(w.shape) for w in weights]
    fits = x.dim() == 2 and x.shape == p.shape and all(len(shape) in (2, 3) for shape in shapes)
    if fits:
        fits = all(len(shape) == len(shapes[0]) and shape[:-2] == shapes[0][:-2] for shape in shapes)
        outs = [x.shape[1], *(shape[-2] for shape in shapes)]
        fits = fits and all(shape[-1] == before for before, shape in zip(outs, shapes, strict=False))
    if not fits:
        raise ValueError(
            "whole_network: expected x, p [P, in] and weights [out, in] or [R, out, in], in the out of the layer "
            f"before, got x {list(x.shape)}, p {list(p.shape)} and {shapes}"
        )
    if biases is not None and [list(b.shape) for b in biases] != [shape[:-1] for shape in shapes]:
        raise ValueError(
            f"whole_network: expected biases [out] or [R, out] of weights {shapes}, "
            f"got {[list(b.shape) for b in biases]}"
        )


def _after_first(u: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None) -> Tensor:
    """The network's outputs, the first layer's products u being at hand."""
    for layer in range(len(weights)):
        if layer:
            u = u @ weights[layer].mT
        if biases is not None:
            u = u + biases[layer][..., None, :]
        u = u.relu()
    return u
