"""An infinitely wide fully connected network as its two kernels: matrices, products without them, and diagonals."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from zbkernels.infinite import activations, gram, kernels
from zbkernels.infinite.activations import Activation
from zbkernels.infinite.dual_series import Scalar

KINDS = ("nngp", "ntk")
_BLOCK = 1024  # rows of a matrix that is formed piece by piece


@dataclasses.dataclass(frozen=True)
class FullyConnected:
    """The network of :func:`zbkernels.infinite.nngp` and :func:`zbkernels.infinite.ntk`, with the same arguments.

    Called with inputs it gives a kernel matrix. Kernels of a named activation in the ntk parametrisation are fused
    (:func:`zbkernels.dual_gram`, :func:`zbkernels.dual_matvec`); of others, blocks of 1024 rows are formed in turn.

    Raises:
        ValueError, TypeError: an argument that those functions refuse.
    """

    activation: str | Scalar | Activation = "relu"
    depth: int = 1
    w_std: float = 2**0.5
    b_std: float = 0.0
    train: str = "all"
    parametrization: str = "ntk"
    width: float = 1.0

    def __post_init__(self) -> None:
        for name in ("depth", "w_std", "b_std", "width"):
            object.__setattr__(self, name, kernels.plain(getattr(self, name)))
        activations.named(self.activation, "FullyConnected")
        kernels.check_network("FullyConnected", self.depth, self.w_std, self.b_std, self.train)
        if self.parametrization not in kernels.PARAMETRIZATIONS:
            raise ValueError(
                f"FullyConnected: expected parametrization to be 'ntk' or 'standard', got {self.parametrization!r}"
            )
        number = isinstance(self.width, (int, float)) and not isinstance(self.width, bool)
        if not number or not 0 < self.width < float("inf"):
            raise ValueError(f"FullyConnected: expected width to be a finite number > 0, got {self.width!r}")

    def __call__(self, x1: Tensor, x2: Tensor | None = None, get: str = "ntk") -> Tensor:
        """The matrix "nngp" or "ntk" of x1 [N, d] and x2 [M, d] (None: x1), [N, M]; symmetric where they are one.

        Raises:
            TypeError, ValueError: as :func:`zbkernels.infinite.ntk`.
        """
        check_kind("FullyConnected", get)
        if self.is_fused(get):
            from zbkernels.ops.dual_gram import dual_gram

            return dual_gram(x1, x1 if x2 is None else x2, **self.options(get))
        options: dict[str, Any] = {"depth": self.depth, "w_std": self.w_std, "b_std": self.b_std}
        if get == "nngp":
            return kernels.nngp(x1, x2, activation=self.activation, **options)
        wide: dict[str, Any] = {"parametrization": self.parametrization, "width": self.width}
        return kernels.ntk(x1, x2, activation=self.activation, train=self.train, **options, **wide)

    def matvec(self, x1: Tensor, x2: Tensor, v: Tensor, get: str = "ntk") -> Tensor:
        """That matrix times v [M, p], [N, p], without the matrix.

        Raises:
            TypeError, ValueError: as :func:`zbkernels.dual_matvec`.
        """
        check_kind("FullyConnected", get)
        from zbkernels.ops.dual_matvec import check, dual_matvec

        if self.is_fused(get):
            return dual_matvec(x1, x2, v, **self.options(get))
        check(x1, x2, v)
        with torch.autocast(x1.device.type, enabled=False):
            rows = (x1[i : i + _BLOCK] for i in range(0, len(x1), _BLOCK))
            products = (gram.products(self(some, x2, get), v.mT) for some in rows)
            return torch.cat([v.new_zeros(0, v.shape[1]), *products])

    def diagonal(self, x: Tensor, get: str = "ntk") -> Tensor:
        """[N]: the kernel of each input x [N, d] with itself, the angle being 0 in every layer.

        Raises:
            TypeError, ValueError: as :func:`zbkernels.infinite.ntk`.
        """
        check_kind("FullyConnected", get)
        kernels.check_inputs("FullyConnected", x, x)
        act = activations.named(self.activation, "FullyConnected")
        w2, b2, standard = self.w_std**2, self.b_std**2, self.parametrization == "standard"
        squares = x.square().sum(1)
        q = b2 + w2 / x.shape[1] * squares
        zero = torch.zeros_like(q)
        trained_bias = 1.0 if self.b_std > 0 else 0.0
        t = trained_bias + squares if standard else q
        for _ in range(self.depth):
            slope, dual = act.dual_derivative(q, q, q, zero), act.dual(q, q, q, zero)
            q = b2 + w2 * dual
            t = w2 * slope * t
            if self.train == "all":
                t = t + (trained_bias + self.width * dual if standard else q)
        return q if get == "nngp" else t

    def is_fused(self, get: str) -> bool:
        """Whether the ops know this kernel."""
        return isinstance(self.activation, str) and (get == "nngp" or self.parametrization == "ntk")

    def options(self, get: str) -> dict[str, Any]:
        """The arguments of the ops; only where :meth:`is_fused`."""
        return {
            "kernel": get,
            "activation": self.activation,
            "depth": self.depth,
            "w_std": self.w_std,
            "b_std": self.b_std,
            "train": "all" if get == "nngp" else self.train,
        }


def check_kind(name: str, get: Any) -> None:
    """Raises ValueError in the name of ``name``."""
    if get not in KINDS:
        raise ValueError(f"{name}: expected 'nngp' or 'ntk', got {get!r}")
