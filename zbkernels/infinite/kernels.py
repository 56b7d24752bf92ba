"""NNGP and NTK of infinitely wide fully connected networks, in plain torch: what the fused ops must equal.

The network has ``depth`` hidden layers, each of a linear map and the activation s, and a linear read-out:

    z_1 = w_std/sqrt(d) W_1 x + b_std b_1,   z_(l+1) = w_std/sqrt(n) W_(l+1) s(z_l) + b_std b_(l+1),   f = z_(depth+1)

with all W and b independent N(0, 1) and the widths n going to infinity. Then with K the covariance of z_l over the
initial weights, T the tangent kernel of z_l, and D, D' the dual activation and its derivative kernel at K:

    K_1 = b_std² + w_std² x·y/d,      K_(l+1) = b_std² + w_std² D(K_l)
    T_1 = K_1,                        T_(l+1) = K_(l+1) + w_std² D'(K_l) T_l

``nngp`` is K_(depth+1) and ``ntk`` is T_(depth+1). The zero-bias network is b_std = 0. (Jacot, Gabriel and Hongler
2018; equations 8 and 26 of the thesis are the case of one hidden layer.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from zbkernels.infinite import activations
from zbkernels.infinite.activations import Activation
from zbkernels.infinite.dual_forms import sine_squared
from zbkernels.infinite.dual_series import Scalar
from zbkernels.infinite.gram import EqualRows, inner_products

DTYPES = (torch.float32, torch.float64)
TRAIN = ("all", "first")
PARAMETRIZATIONS = ("ntk", "standard")


def check_inputs(op: str, x1: Any, x2: Any) -> None:
    """Raises as :func:`nngp` says, in the name of ``op``."""
    for name, x in (("x1", x1), ("x2", x2)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{op}: expected {name} to be a tensor, got {type(x).__name__}")
        if x.dtype not in DTYPES:
            raise TypeError(f"{op}: expected {name} of dtype float32 or float64, got {x.dtype}")
        if x.layout != torch.strided:
            raise TypeError(f"{op}: expected {name} to be a dense (strided) tensor, got {x.layout}")
        if x.dim() != 2 or x.shape[1] == 0:
            raise ValueError(
                f"{op}: expected {name} of shape [inputs, features], features > 0, got {list(x.shape)}"
            )
    if x1.dtype != x2.dtype:
        raise TypeError(f"{op}: expected x1 and x2 of one dtype, got {x1.dtype} and {x2.dtype}")
    if x1.device != x2.device:
        raise ValueError(f"{op}: expected x1 and x2 on one device, got {x1.device} and {x2.device}")
    if x1.shape[1] != x2.shape[1]:
        raise ValueError(
            f"{op}: expected x1 and x2 of as many features, got {list(x1.shape)} and {list(x2.shape)}"
        )


def check_network(op: str, depth: Any, w_std: Any, b_std: Any, train: Any = "all") -> None:
    """Raises as :func:`ntk` says, in the name of ``op``."""
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 0:
        raise ValueError(f"{op}: expected depth to be an int >= 0 (hidden layers), got {depth!r}")
    for name, value in (("w_std", w_std), ("b_std", b_std)):
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < float("inf"):
            raise ValueError(f"{op}: expected {name} to be a finite number >= 0, got {value!r}")
    if train not in TRAIN:
        raise ValueError(f"{op}: expected train to be 'all' or 'first', got {train!r}")


def plain(number: Any) -> Any:
    """A number of numpy's, as parameter grids are made of, as Python's; anything else as it is."""
    return number.item() if isinstance(number, np.generic) else number


def check_parametrization(parametrization: Any, width: Any) -> None:
    """Raises as :func:`ntk` says."""
    if parametrization not in PARAMETRIZATIONS:
        raise ValueError(f"ntk: expected parametrization to be 'ntk' or 'standard', got {parametrization!r}")
    if not isinstance(width, (int, float)) or isinstance(width, bool) or not 0 < width < float("inf"):
        raise ValueError(f"ntk: expected width to be a finite number > 0, got {width!r}")


def nngp(
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    activation: str | Scalar | Activation = "relu",
    depth: int = 1,
    w_std: float = 2**0.5,
    b_std: float = 0.0,
) -> Tensor:
    """The covariance of an infinitely wide network's outputs over its initial weights (NNGP kernel).

    With ``x2=None`` (or x1 itself) the result is symmetric bit for bit. Equal inputs have equal rows, bit for bit, and
    the angle between them is exactly 0. Gradients are finite everywhere (see :mod:`zbkernels.infinite.dual`).

    Args:
        x1: [N, d], float32 or float64.
        x2: [M, d], of x1's dtype and device; None is x1.
        activation: a name (see :mod:`zbkernels.infinite.activations`), a callable or an :class:`Activation`.
        depth: hidden layers; 0 is the linear model.
        w_std, b_std: scales of the weights and biases in every layer, the read-out too; the default keeps the norm
            in ReLU networks. 0 for b_std is a network without biases.

    Returns:
        [N, M], of x1's dtype. Angles are found from inner products, with an error of about eps/angle, at most
        sqrt(eps). For nearly equal or antipodal inputs in float32 that was up to 5e-7 of sqrt(K(x,x) K(y,y)) in the
        NNGP, and 4e-4 in the NTK; use float64 where such pairs matter. Exactly equal ones are exact.
        Inputs whose squared norm overflows (norms above 1e19 in float32, 1e154 in float64) give NaN.

    Raises:
        TypeError: not dense tensors of one of these dtypes, or of two.
        ValueError: shapes, devices or arguments that do not fit; ToleranceError from an activation without a closed
            form.
    """
    depth, w_std, b_std = plain(depth), plain(w_std), plain(b_std)
    x2 = _check("nngp", x1, x2, depth, w_std, b_std)
    return _run(x1, x2, activations.named(activation, "nngp"), depth, w_std, b_std, tangent=False)


def ntk(
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    activation: str | Scalar | Activation = "relu",
    depth: int = 1,
    w_std: float = 2**0.5,
    b_std: float = 0.0,
    train: str = "all",
    parametrization: str = "ntk",
    width: float = 1.0,
) -> Tensor:
    """The neural tangent kernel: the sum over the trained parameters of the products of f's derivatives.

    Args:
        x1, x2, activation, depth, w_std, b_std: as in :func:`nngp`.
        train: ``"all"`` weights and biases, or the ``"first"`` layer's alone. The thesis' H∞ for inputs x (equation
            8: first-layer weights N(0, 1), read-out ±1/sqrt(m)) is
            ``ntk(x * d**0.5, w_std=1.0, train="first")``.
        parametrization: ``"ntk"`` as above, or ``"standard"``: W ~ N(0, w_std²/fan-in), b ~ N(0, b_std²), nothing
            before them in the forward pass. Outputs are the same and so is the NNGP, but a gradient step moves
            weights and biases differently:
            T_1 = x·y + 1, T_(l+1) = width · D(K_l) + 1 + w_std² D'(K_l) T_l; no 1 where b_std is 0.
        width: of the hidden layers, for "standard" only (where the kernel grows with it).

    Returns:
        [N, M], of x1's dtype; symmetric and exact for equal inputs as :func:`nngp` is.

    Raises:
        TypeError, ValueError: as :func:`nngp`; and for another word in ``train`` or ``parametrization``, or a width
            that is not positive.
    """
    depth, w_std, b_std, width = plain(depth), plain(w_std), plain(b_std), plain(width)
    x2 = _check("ntk", x1, x2, depth, w_std, b_std, train)
    check_parametrization(parametrization, width)
    standard = float(width) if parametrization == "standard" else None
    act = activations.named(activation, "ntk")
    return _run(x1, x2, act, depth, w_std, b_std, tangent=True, first_only=train == "first", width=standard)


def tile(
    kind: str,
    x1: Tensor,
    x2: Tensor,
    equal: EqualRows | None,
    *,
    activation: str,
    depth: int,
    w_std: float,
    b_std: float,
    train: str,
) -> Tensor:
    """A part of the matrix of :func:`nngp` or :func:`ntk` (``kind``), for rows of x1 and x2 of which it is known
    which are ``equal`` (None: find out). What is an argument there has been checked."""
    act = activations.named(activation, kind)
    return _run(
        x1, x2, act, depth, w_std, b_std, tangent=kind == "ntk", first_only=train == "first", equal=equal
    )


def _check(
    op: str, x1: Any, x2: Any, depth: Any, w_std: Any, b_std: Any, train: Any = "all"
) -> Tensor | None:
    check_inputs(op, x1, x1 if x2 is None else x2)
    check_network(op, depth, w_std, b_std, train)
    return None if x2 is x1 else x2


def _run(
    x1: Tensor,
    x2: Tensor | None,
    act: Activation,
    depth: int,
    w_std: float,
    b_std: float,
    *,
    tangent: bool,
    first_only: bool = False,
    width: float | None = None,
    equal: EqualRows | None = None,
) -> Tensor:
    """The recursion above; ``width`` is None for the ntk parametrisation."""
    w2, b2, d = w_std**2, b_std**2, x1.shape[1]
    trained_bias = 1.0 if b_std > 0 else 0.0  # the part of a bias in the standard parametrisation
    equal, squares, products = inner_products(x1, x2, equal)
    q, q12 = b2 + w2 / d * squares, b2 + w2 / d * products
    t = q12 if width is None else trained_bias + products
    for _ in range(depth):
        q11, q22 = equal.split(q)
        sin2 = sine_squared(q11, q12, q22)
        dual = act.dual(q11, q12, q22, sin2)
        if tangent:
            t = w2 * act.dual_derivative(q11, q12, q22, sin2) * t
        q = equal.variances(b2 + w2 * act.dual(q, q, q, torch.zeros_like(q)))
        q12 = equal.covariances(b2 + w2 * dual, equal.split(q)[0])
        if tangent and not first_only:
            t = t + (q12 if width is None else trained_bias + width * dual)
    return equal.kernel(t if tangent else q12)
