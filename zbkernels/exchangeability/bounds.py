"""How far a layer's kernel can be from the arc-cosine kernel: the bounds (10) and (11), as printed and mended.

For an infinite sequence of exchangeable weights, W_i = E_A + g_A(B_i) (de Finetti), with L_x and L_y the sums of the
coordinates of the unit vectors x and y, c = E[W_1 W_2] and v = E[W_1²] - c, the paper bounds the kernel's distance from
equation 9 by three terms:

    |L_y| √c √v  +  |L_x| √c √v  +  c |L_x L_y|           (10), (10) with x for y, (11)

(11) is printed with L_y twice. What is printed shows one side, by relu(a + b) <= relu(a) + relu(b); the other follows
from |relu(a + b) - relu(a)| <= |b|: with u = relu(g·x), w = relu(g·y),

    |relu(g·x + E L_x) relu(g·y + E L_y) - u w| <= |E L_y| u + |E L_x| w + E² |L_x L_y|,

and Cauchy-Schwarz. As g·x has mean 0 given A, E[relu(g·x) | A] is half of E[|g·x| | A], and (10) can be halved.

A finite network is no such sequence: its rows may have c < 0, down to -v/m, where (10) is the root of a negative
number. So :func:`row_mean_bound` takes the mean e_j of row j in the place of E_A. It holds for every network as it
is, with means over units in the place of expectations: by the same inequality, without a limit, a distribution or a
hypothesis. What it bounds is the distance from the kernel of the rows less their means.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zbkernels.exchangeability.layer_kernels import arc_cosine, over_angles


@dataclass(frozen=True)
class Moments:
    """Second moments of a layer's weights, each [] or [R].

    Attributes:
        square: E[W_1²].
        cross: E[W_1 W_2], two weights of one unit.
        mean_square: E[e²], e the mean of a unit's weights: cross + (square - cross)/m, never negative.
    """

    square: Tensor
    cross: Tensor
    mean_square: Tensor

    @property
    def variance(self) -> Tensor:
        """E[W_1²] - E[W_1 W_2], the factor of equation 9."""
        return self.square - self.cross


def moments(weight: Tensor) -> Moments:
    """Estimates from all units of a layer: means over units and over (pairs of different) inputs, unbiased.

    Args:
        weight: [..., out, in], at least 2 inputs; computed in float64.

    Raises:
        ValueError: fewer than 2 dimensions or inputs.
    """
    if weight.dim() < 2 or weight.shape[-1] < 2:
        raise ValueError(
            f"moments: expected weight [..., out, in] with 2 or more inputs, got {list(weight.shape)}"
        )
    w, m = weight.double(), weight.shape[-1]
    square = w.square().mean((-2, -1))
    mean_square = w.mean(-1).square().mean(-1)
    return Moments(square, (m * mean_square - square) / (m - 1), mean_square)


def equation_9(found: Moments, angles: Tensor) -> Tensor:
    """(E[W_1²] - E[W_1 W_2]) / 2 times the normalised arc-cosine kernel: [..., *angles.shape]."""
    values = arc_cosine(angles.double())
    return _beside(found.variance, values) / 2 * values


def bound_10(found: Moments, sums: Tensor, *, halved: bool = False) -> Tensor:
    """|L| √E[W_1 W_2] √(E[W_1²] - E[W_1 W_2]): of the second term with L_y, of the third with L_x.

    Args:
        sums: L, [P, ...], sums of the coordinates of unit vectors.
        halved: the sharper form of this module's text.

    Returns:
        [..., P, ...]; NaN where E[W_1 W_2] is negative, as it can be in a finite network.
    """
    root = (found.cross.sqrt() * found.variance.sqrt()) * (0.5 if halved else 1.0)
    return _beside(root, sums) * sums.double().abs()


def bound_11(found: Moments, sums_x: Tensor, sums_y: Tensor, *, printed: bool = False) -> Tensor:
    """E[W_1 W_2] |L_x L_y|; ``printed``: E[W_1 W_2] L_y², as the paper has it. Shapes as in :func:`bound_10`."""
    product = (sums_y * sums_y if printed else sums_x * sums_y).double().abs()
    return _beside(found.cross, product) * product


def three_terms(found: Moments, sums_x: Tensor, sums_y: Tensor, *, halved: bool = False) -> Tensor:
    """What the distance from equation 9 is bounded by: (10) twice and (11). Shapes as in :func:`bound_10`."""
    of_y, of_x = (bound_10(found, sums, halved=halved) for sums in torch.broadcast_tensors(sums_y, sums_x))
    return of_y + of_x + bound_11(found, sums_x, sums_y)


def sums_over_angles(x: Tensor, p: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
    """L_x [P, 1] and L_y [P, A], the sums of the coordinates of x/|x| and y/|y|, y = cos(t) x + sin(t) p.

    Args:
        x, p: [P, m], equally long and at a right angle.
        angles: [A] or [P, A].
    """
    x, p, t = x.double(), p.double(), angles.double()
    length = x.norm(dim=1, keepdim=True)
    sum_x, sum_p = (z.sum(1, keepdim=True) / length for z in (x, p))
    return sum_x, t.cos() * sum_x + t.sin() * sum_p


@dataclass(frozen=True)
class KernelGap:
    """A layer's kernel of unit vectors beside equation 9 and the bounds; all [P, A] or [R, P, A], float64.

    Attributes:
        kernel: the mean over units of relu(W_j x) relu(W_j y), |x| = |y| = 1.
        gap: its distance from equation 9.
        bound: the three terms, (11) mended; NaN where the estimate of E[W_1 W_2] is negative.
        centred: the kernel of the rows less their means.
        row_mean_gap, row_mean_bound: distance from that, and what it can be at most in this very network.
    """

    kernel: Tensor
    gap: Tensor
    bound: Tensor
    centred: Tensor
    row_mean_gap: Tensor
    row_mean_bound: Tensor


def kernel_gap(weight: Tensor, x: Tensor, p: Tensor, angles: Tensor) -> KernelGap:
    """Measure a bias-free layer's kernel beside its bounds, for the pairs of :mod:`zbkernels.exchangeability.pairs`.

    Args:
        weight: [out, in] or [R, out, in]; computed in float64.
        x, p: [P, in], equally long and at a right angle.
        angles: [A] or [P, A], radians in [0, pi].

    Raises:
        ValueError: shapes that do not fit; x and p not equally long or not at a right angle, to 1e-4.
    """
    w, x, p = weight.double(), x.double(), p.double()
    _check_pairs(x, p)
    length = x.norm(dim=1, keepdim=True)
    x, p = x / length, p / length
    kernel = over_angles(w, x, p, angles.double(), normalized=False)
    centred = over_angles(w - w.mean(-1, keepdim=True), x, p, angles.double(), normalized=False)
    found, (sum_x, sum_y) = moments(w), sums_over_angles(x, p, angles)
    return KernelGap(
        kernel=kernel,
        gap=(kernel - equation_9(found, angles.expand(len(x), angles.shape[-1]))).abs(),
        bound=three_terms(found, sum_x, sum_y),
        centred=centred,
        row_mean_gap=(kernel - centred).abs(),
        row_mean_bound=row_mean_bound(w, x, p, angles),
    )


def row_mean_bound(weight: Tensor, x: Tensor, p: Tensor, angles: Tensor) -> Tensor:
    """|L_y| r s_x + |L_x| r s_y + r² |L_x L_y|: how far a network is at most from the one of its rows less their means.

    r² is the mean over units of e_j² (e_j the mean of row j) and s_x² that of relu(g_j·x)², g_j = W_j - e_j.

    Args:
        weight, x, p, angles: as :func:`kernel_gap`.

    Returns:
        [P, A] or [R, P, A], float64, for the kernel of unit vectors that is divided by the number of units.
    """
    w, x, p, t = weight.double(), x.double(), p.double(), angles.double()
    length = x.norm(dim=1, keepdim=True)
    x, p = x / length, p / length
    e = w.mean(-1, keepdim=True)
    r = e.square().mean((-2, -1)).sqrt()[..., None, None]  # [..., 1, 1]
    u, v = x @ (w - e).mT, p @ (w - e).mT  # [..., P, n]
    s_x = u.relu().square().mean(-1, keepdim=True).sqrt()
    turns = t.unbind(-1)
    s_y = [(a.cos()[..., None] * u + a.sin()[..., None] * v).relu().square().mean(-1).sqrt() for a in turns]
    sum_x, sum_y = sums_over_angles(x, p, t)
    at_y = torch.stack(s_y, -1)
    return sum_y.abs() * r * s_x + sum_x.abs() * r * at_y + r.square() * (sum_x * sum_y).abs()


def _beside(of_layers: Tensor, values: Tensor) -> Tensor:
    """[...] with dimensions of 1 for those of ``values`` after it."""
    return of_layers.reshape((*of_layers.shape, *[1] * values.dim()))


def _check_pairs(x: Tensor, p: Tensor) -> None:
    if x.dim() != 2 or x.shape != p.shape:
        raise ValueError(f"kernel_gap: expected x and p [P, in], got {list(x.shape)} and {list(p.shape)}")
    lengths = x.norm(dim=1), p.norm(dim=1)
    off = max(
        float((lengths[0] / lengths[1] - 1).abs().max()) if len(x) else 0.0,
        float(((x * p).sum(1) / (lengths[0] * lengths[1])).abs().max()) if len(x) else 0.0,
    )
    if not off <= 1e-4:
        raise ValueError(
            "kernel_gap: expected x and p equally long and at a right angle (procedure1 as printed gives neither), "
            f"got a deviation of {off:.2g}"
        )
