"""``nngp`` and ``ntk`` as users call them: the op ``dual_gram`` where it can be, else plain torch (``kernels.py``).

The op has fused kernels; it takes activations by name and the ntk parametrisation.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from zbkernels.infinite import kernels
from zbkernels.infinite.activations import Activation
from zbkernels.infinite.dual_series import Scalar


def nngp(
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    activation: str | Scalar | Activation = "relu",
    depth: int = 1,
    w_std: float = 2**0.5,
    b_std: float = 0.0,
) -> Tensor:
    options = _options(activation, depth, w_std, b_std)
    if not isinstance(activation, str):
        return kernels.nngp(x1, x2, **options)
    return _dual_gram("nngp", x1, x1 if x2 is None else x2, train="all", **options)


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
    options = _options(activation, depth, w_std, b_std)
    if not isinstance(activation, str) or parametrization != "ntk":
        return kernels.ntk(x1, x2, train=train, parametrization=parametrization, width=width, **options)
    kernels.check_parametrization(parametrization, kernels.plain(width))
    return _dual_gram("ntk", x1, x1 if x2 is None else x2, train=train, **options)


nngp.__doc__, ntk.__doc__ = kernels.nngp.__doc__, kernels.ntk.__doc__


def _options(activation: Any, depth: Any, w_std: Any, b_std: Any) -> dict[str, Any]:
    numbers = {"depth": depth, "w_std": w_std, "b_std": b_std}
    return {"activation": activation, **{name: kernels.plain(number) for name, number in numbers.items()}}


def _dual_gram(kind: str, x1: Tensor, x2: Tensor, **options: Any) -> Tensor:
    from zbkernels.ops._dual_options import check_options
    from zbkernels.ops.dual_gram import dual_gram  # which needs this package

    check_options(kind, x1, x2, kernel=kind, **options)  # in the name of the function that was called
    return dual_gram(x1, x2, kernel=kind, **options)
