"""Predictions of infinitely wide networks: training by gradient flow at any time, and Gaussian process inference.

The names are those of neural-tangents. Notation: x the training inputs, z test inputs, K the NNGP and T the kernel that
trains ("ntk": K's tangent kernel; "nngp": K itself, where the read-out layer alone trains), A = T(x, x) + shift I and

    B = A^-1 (I - exp(-t A)),     B = A^-1 at t = infinity.

An infinitely wide network starts as a draw f of the Gaussian process of covariance K, and ends at

    f_z + T(z, x) B (y - f_x)                                          (equation 16 of the thesis, at t = infinity)

so over its initial weights its predictions are Gaussian (Lee et al. 2019, equations 14 and 15) with

    mean        T(z, x) B y
    covariance  K(z, z) - T(z, x) B K(x, z) - K(z, x) B T(x, z) + T(z, x) B K(x, x) B T(x, z)

The mean is the thesis' limit of an infinite ensemble of infinitely wide networks (equations 17 to 21). That limit has
no variance: the mean of m networks has 1/m of the covariance above, and the difference network (33), which starts at
f = 0, has none with a single one. For "nngp" the covariance is the posterior of a Gaussian process whose targets have
noise of variance shift, K(z, z) - K(z, x) A^-1 K(x, z) at t = infinity, and
K(z, z) - K(z, x) A^-1 (I - exp(-2 t A)) K(x, z) before: that of networks each trained on targets with noise of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from zbkernels.infinite import kernels
from zbkernels.infinite.fully_connected import FullyConnected, check_kind
from zbkernels.infinite.kernel_flow import KernelFlow
from zbkernels.infinite.kernel_matrix import KernelMatrix
from zbkernels.infinite.lanczos import largest_eigenvalue

Covariance: TypeAlias = bool | Literal["diagonal"]
_NUMBERS = 2**23  # of a block of K(x, z), for the diagonal: 64 MiB in float64


class Gaussian(NamedTuple):
    """``mean`` [M, p], and ``covariance`` of each output: [M, M], or its diagonal [M] where that was asked for."""

    mean: Tensor
    covariance: Tensor


class Ensemble:
    """What :func:`gradient_descent_mse_ensemble` and :func:`gp_inference` return; keeps factors of a small matrix."""

    def __init__(
        self, name: str, network: FullyConnected, x: Tensor, y: Tensor, rate: float, shift: float, tol: float
    ) -> None:
        self.name, self.network, self.x, self.y = name, network, x, y
        self.rate, self.shift, self.tol = rate, shift, tol
        self._flows: dict[str, KernelFlow] = {}
        self._weights: dict[tuple[str, float], Tensor] = {}

    def __call__(
        self,
        t: float | Sequence[float | None] | Tensor | np.ndarray | None = None,
        x_test: Tensor | None = None,
        get: str = "ntk",
        compute_cov: Covariance = False,
    ) -> Tensor | Gaussian:
        """Predictions at time ``t``.

        Args:
            t: training steps (fractions too), of the learning rate given before; None is infinity. Several (a list, an
                array, a tensor) give results with one more dimension in front.
            x_test: [M, d], of the training inputs' dtype and device; None is the training inputs.
            get: "ntk", all that the network trains, or "nngp", the read-out alone (see the module).
            compute_cov: True for the covariance [M, M] of each output, "diagonal" for its diagonal [M], in which
                what is below 0 by rounding is 0, from blocks of K(x, z). The whole keeps K(x, z), [N, M].

        Returns:
            The mean, [M, p] or [M] as the targets are; a :class:`Gaussian` of it and the covariance where that is asked
            for. Of the inputs' dtype, computed in float64 where the matrix is small.

        Raises:
            TypeError, ValueError: inputs or arguments that don't fit.
            ConvergenceError: the matrix is singular, or the tolerance was not reached.
        """
        check_kind(self.name, get)
        if not isinstance(compute_cov, bool) and not (
            isinstance(compute_cov, str) and compute_cov == "diagonal"
        ):
            raise ValueError(
                f"{self.name}: expected compute_cov to be True, False or 'diagonal', got {compute_cov!r}"
            )
        z = self.x if x_test is None else x_test
        kernels.check_inputs(self.name, z, self.x)
        if isinstance(t, (Tensor, np.ndarray, np.generic)):
            t = t.tolist()
        if isinstance(t, Sequence) and not isinstance(t, str):
            if len(t) == 0:
                raise ValueError(f"{self.name}: expected at least one time, got none")
            several = [self(one, x_test, get, compute_cov) for one in t]
            if not compute_cov:
                return torch.stack(several)  # type: ignore[arg-type]
            return Gaussian(*(torch.stack(part) for part in zip(*several, strict=True)))
        time = self._time(t)
        with torch.no_grad():
            mean = self._mean(z, time, get)
            if not compute_cov:
                return mean
            return Gaussian(mean, self._covariance(z, time, get, whole=compute_cov is True))

    def _time(self, t: Any) -> float:
        """In units of ½‖y - f‖²."""
        if t is None:
            return math.inf
        if not isinstance(t, (int, float)) or isinstance(t, bool) or not t >= 0:
            raise ValueError(f"{self.name}: expected t to be a number >= 0 or None (infinity), got {t!r}")
        return t * self.rate

    def _flow(self, get: str) -> KernelFlow:
        if get not in self._flows:
            matrix = KernelMatrix(self.x, self.shift, self.network, get)
            self._flows[get] = KernelFlow(self.name, matrix, self.tol)
        return self._flows[get]

    def _mean(self, z: Tensor, time: float, get: str) -> Tensor:
        if (get, time) not in self._weights:
            targets = self.y.double().reshape(len(self.x), -1)
            self._weights[get, time] = self._flow(get).weights(targets, time)
        weights = self._weights[get, time]
        mean = self._product(z, self.x, weights, get, exact=self._flow(get).is_dense)
        return mean.to(self.x.dtype).reshape(len(z), *self.y.shape[1:])

    def _product(self, a: Tensor, b: Tensor, v: Tensor, get: str, *, exact: bool) -> Tensor:
        dtype = torch.float64 if exact else self.x.dtype
        return self.network.matvec(a.to(dtype), b.to(dtype), v.to(dtype), get)

    def _covariance(self, z: Tensor, time: float, get: str, *, whole: bool) -> Tensor:
        flow, x, z = (
            self._flow(get),
            self.x.double(),
            z.double(),
        )  # near training inputs all but all of it cancels
        prior = self.network(z, z, "nngp") if whole else self.network.diagonal(z, "nngp")
        if get == "nngp":
            time = 2 * time
        step = max(1, len(z) if whole else _NUMBERS // len(x))
        found = []
        for i in range(0, len(z), step):
            some = z[i : i + step]
            of_k = self.network(x, some, "nngp")  # [N, m]
            if get == "nngp":
                left, right = of_k, flow.weights(of_k, time)
            else:
                of_t = self.network(x, some, "ntk")
                right = flow.weights(of_t, time)
                left = 2 * of_k - self._product(x, x, right, "nngp", exact=True)
            if whole:
                less = left.mT @ right
                found.append(prior - 0.5 * (less + less.mT))
            else:
                found.append((prior[i : i + step] - (left * right).sum(0)).clamp_min(0))
        return torch.cat([prior[:0], *found]).to(self.x.dtype)


def gradient_descent_mse_ensemble(
    kernel_fn: FullyConnected,
    x_train: Tensor,
    y_train: Tensor,
    *,
    learning_rate: float = 1.0,
    reduction: str = "mean",
    shift: float = 0.0,
    tol: float = 1e-6,
) -> Ensemble:
    """Infinitely many infinitely wide networks trained by gradient flow on squared error; see the module.

    Up to 4096 training inputs exactly, by Cholesky or eigenvectors in float64. Beyond, without the matrix: t infinite
    by preconditioned conjugate gradients, finite t by the Lanczos method in float64.

    Args:
        kernel_fn: the network.
        x_train: [N, d], float32 or float64.
        y_train: [N, p] or [N], finite, of x_train's dtype and device.
        learning_rate: of a step; t steps are gradient flow over the time learning_rate * t.
        reduction: of the loss that the rate belongs to: "mean" is sum((y - f)²)/(2 · number of targets), as in
            neural-tangents, "sum" is the thesis' sum((y - f)²)/2 (equation 4), N · p times as fast for the same rate.
        shift: added to the diagonal of T(x, x), in its own units. (neural-tangents' relative ``diag_reg`` is this over
            the mean of the diagonal.)
        tol: without the matrix, of the error on the training inputs relative to the targets, in each column.

    Returns:
        ``predict_fn(t=None, x_test=None, get="ntk", compute_cov=False)``: :meth:`Ensemble.__call__`.

    Raises:
        TypeError, ValueError: arguments that don't fit.
    """
    name = "gradient_descent_mse_ensemble"
    learning_rate, shift, tol = (kernels.plain(number) for number in (learning_rate, shift, tol))
    _check(name, kernel_fn, x_train, y_train, shift, tol)
    if reduction not in ("mean", "sum"):
        raise ValueError(f"{name}: expected reduction to be 'mean' or 'sum', got {reduction!r}")
    if not isinstance(learning_rate, (int, float)) or not 0 < learning_rate < math.inf:
        raise ValueError(f"{name}: expected learning_rate to be a finite number > 0, got {learning_rate!r}")
    rate = learning_rate / (max(y_train.numel(), 1) if reduction == "mean" else 1)
    return Ensemble(name, kernel_fn, x_train.detach(), y_train.detach(), rate, shift, tol)


def gp_inference(
    kernel_fn: FullyConnected, x_train: Tensor, y_train: Tensor, *, shift: float = 0.0, tol: float = 1e-6
) -> Ensemble:
    """The posterior of the network as a Gaussian process (get="nngp"), with noise of variance ``shift`` on the targets.

    Arguments as in :func:`gradient_descent_mse_ensemble`; what is returned is the same, to be called with t=None.
    """
    shift, tol = kernels.plain(shift), kernels.plain(tol)
    _check("gp_inference", kernel_fn, x_train, y_train, shift, tol)
    return Ensemble("gp_inference", kernel_fn, x_train.detach(), y_train.detach(), 1.0, shift, tol)


def max_learning_rate(
    kernel_fn: FullyConnected, x_train: Tensor, *, outputs: int = 1, reduction: str = "mean", get: str = "ntk"
) -> float:
    """The rate below which gradient descent in steps converges: 2 / λ_max of T(x, x), times N · outputs for "mean".

    λ_max comes from 40 steps of the Lanczos method without the matrix; it is never above the true one.

    Raises:
        ValueError, TypeError: as :func:`gradient_descent_mse_ensemble`.
    """
    name = "max_learning_rate"
    _check_inputs(name, kernel_fn, x_train)
    if reduction not in ("mean", "sum"):
        raise ValueError(f"{name}: expected reduction to be 'mean' or 'sum', got {reduction!r}")
    outputs = kernels.plain(outputs)
    if not isinstance(outputs, int) or isinstance(outputs, bool) or outputs < 1:
        raise ValueError(f"{name}: expected outputs to be an int >= 1, got {outputs!r}")
    check_kind(name, get)
    with torch.no_grad():
        matrix = KernelMatrix(x_train.detach(), 0.0, kernel_fn, get)
        largest = largest_eigenvalue(matrix.product, matrix.diagonal())
    if largest <= 0:
        return math.inf
    return 2.0 * (len(x_train) * outputs if reduction == "mean" else 1) / largest


def _check_inputs(name: str, kernel_fn: Any, x: Any) -> None:
    if not isinstance(kernel_fn, FullyConnected):
        raise TypeError(
            f"{name}: expected kernel_fn to be a zbkernels.infinite.FullyConnected, got {type(kernel_fn).__name__}"
        )
    kernels.check_inputs(name, x, x)


def _check(name: str, kernel_fn: Any, x: Any, y: Any, shift: Any, tol: Any) -> None:
    _check_inputs(name, kernel_fn, x)
    if not isinstance(y, Tensor) or y.dtype != x.dtype or y.device != x.device:
        got = f"{y.dtype} on {y.device}" if isinstance(y, Tensor) else type(y).__name__
        raise TypeError(f"{name}: expected y_train to be a tensor of {x.dtype} on {x.device}, got {got}")
    if y.dim() not in (1, 2) or len(y) != len(x):
        raise ValueError(
            f"{name}: expected y_train of shape [{len(x)}, p] or [{len(x)}], got {list(y.shape)}"
        )
    if len(x) == 0:
        raise ValueError(f"{name}: expected at least one training input, got none")
    for what, values in (("x_train", x), ("y_train", y)):
        if not bool(values.isfinite().all()):
            raise ValueError(f"{name}: expected {what} to be finite, got NaN or infinity in it")
    for what, value, least in (("shift", shift, "at least 0"), ("tol", tol, "more than 0")):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value < math.inf or (what == "tol" and value == 0):
            raise ValueError(f"{name}: expected {what} to be a finite number, {least}, got {value!r}")
