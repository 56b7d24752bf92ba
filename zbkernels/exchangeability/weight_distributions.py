"""Random weights of mean 0: the generalised normal density of Section 2.4, and Student's t with heavy tails.

``prod_i beta / (2 alpha Gamma(1/beta)) exp(-|w_i/alpha|^beta)``: Laplace's at beta = 1, normal at 2, towards the
uniform density on [-alpha, alpha] as beta grows. Normalised kernels do not depend on alpha; it is taken such that the
variance is 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def scale_of_unit_variance(beta: float) -> float:
    """The alpha at which the generalised normal density has variance 1: sqrt(Gamma(1/beta) / Gamma(3/beta)).

    Raises:
        ValueError: beta is not above 0.
    """
    if not beta > 0:
        raise ValueError(f"scale_of_unit_variance: expected beta > 0, got {beta}")
    if math.isinf(beta):
        return math.sqrt(3)
    return math.exp((math.lgamma(1 / beta) - math.lgamma(3 / beta)) / 2)


def kurtosis(beta: float) -> float:
    """E[w^4] / E[w^2]^2 of the generalised normal density: Gamma(5/beta) Gamma(1/beta) / Gamma(3/beta)^2."""
    if math.isinf(beta):
        return 9 / 5
    return math.exp(math.lgamma(5 / beta) + math.lgamma(1 / beta) - 2 * math.lgamma(3 / beta))


def generalised_normal(
    shape: tuple[int, ...],
    beta: float,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Independent draws of variance 1 from the density of Section 2.4; ``beta=math.inf`` is the uniform one.

    |w/alpha|^beta has the law of Gamma(1/beta, 1), which is that of G U^beta with G of Gamma(1 + 1/beta, 1) and U
    uniform on [0, 1]: so |w| = alpha G^(1/beta) U, and nothing underflows at large beta.

    Raises:
        ValueError: beta is not above 0.
    """
    alpha = scale_of_unit_variance(beta)
    uniform = torch.rand(shape, generator=generator, dtype=dtype)
    if math.isinf(beta):
        return alpha * (2 * uniform - 1)
    sign = torch.randint(2, shape, generator=generator).to(dtype) * 2 - 1
    gamma = _gamma(1 + 1 / beta, shape, generator, dtype)
    return alpha * sign * gamma ** (1 / beta) * uniform


def student_t(
    shape: tuple[int, ...],
    degrees: float,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Independent draws of Student's t, not scaled: moments of order ``degrees`` and above are infinite.

    At 3 and below the third absolute moment, which Proposition 6 asks for, is infinite; at 2 and below the variance
    is; at 1 (Cauchy's density) there is no mean.

    Raises:
        ValueError: degrees of freedom not above 0.
    """
    if not degrees > 0:
        raise ValueError(f"student_t: expected degrees > 0, got {degrees}")
    normal = torch.randn(shape, generator=generator, dtype=dtype)
    # Chi-squared(degrees) is 2 Gamma(degrees / 2)
    return normal / (2 * _gamma(degrees / 2, shape, generator, dtype) / degrees).sqrt()


def _gamma(
    shape_parameter: float, shape: tuple[int, ...], generator: torch.Generator | None, dtype: torch.dtype
) -> Tensor:
    """Gamma(a, 1). torch draws it with a generator through the operator alone."""
    return torch._standard_gamma(torch.full(shape, shape_parameter, dtype=dtype), generator=generator)
