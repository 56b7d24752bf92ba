"""The spectrum of H∞^(-1/2) H H∞^(-1/2) for drawn first layers: H is the finite-width kernel of the thesis.

With G = X Xᵀ, H∞ = f(G) and S = s'(X Wᵀ) for m drawn rows of W, equations 34 and 35 are H = G * (S diag(m a²) Sᵀ) / m,
entry by entry. Eigenvalues are those of L⁻¹ H L⁻ᵀ, L being H∞'s Cholesky factor: the same, as the two matrices are
similar. Units are drawn in float32 and everything else is float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zbkernels.data import Split
from zbkernels.infinite import dual
from zbkernels.infinite.activations import named

SIGNS, NORMAL = "signs", "normal"  # read-out weights: ±1/sqrt(m) as in the thesis, or N(0, 1/m)
_UNITS = 4096  # drawn at a time


@dataclass(frozen=True)
class Inputs:
    """Training and test inputs of norm 1, [n, d] and [t, d] float64, and a target for each training input."""

    train: Tensor
    test: Tensor
    targets: Tensor

    @property
    def size(self) -> int:
        return len(self.train)


def zeros_and_ones(split: Split, count: int) -> Inputs:
    """As in section 8: the first count/2 zeros and ones, and the next as many to test on; targets 0 and 1."""
    zeros, ones = ((split.labels == digit).nonzero()[:count, 0] for digit in (0, 1))
    half = count // 2
    train, test = (torch.cat([zeros[part], ones[part]]) for part in (slice(half), slice(half, count)))
    return _inputs(split, train, test, split.labels[train])


def first_images(split: Split, count: int) -> Inputs:
    """The first images of all classes, and the next as many to test on; the target is 1 for an odd class."""
    order = torch.arange(2 * count)
    return _inputs(split, order[:count], order[count:], split.labels[:count] % 2)


def _inputs(split: Split, train: Tensor, test: Tensor, targets: Tensor) -> Inputs:
    images = split.images.flatten(1).double()
    images = images / images.norm(dim=1, keepdim=True)
    return Inputs(images[train], images[test], targets.double())


class Spectrum:
    """What does not depend on the drawn weights, for one set of inputs and one activation."""

    def __init__(self, inputs: Inputs, activation: str) -> None:
        self.inputs, self.activation = inputs, named(activation)
        both = torch.cat([inputs.train, inputs.test])
        # Weights enter through X Wᵀ alone: their part in the space of the inputs is drawn, which is Gaussian too.
        self.coordinates = torch.linalg.qr(both.T).R.T.float()
        n = inputs.size
        self.products = (both @ inputs.train.T).clamp(-1, 1)  # [n + t, n]
        self.products[:n].fill_diagonal_(1)
        self.limit = dual.f(self.activation, self.products)
        self.factor = torch.linalg.cholesky(self.limit[:n])
        self.smallest = float(torch.linalg.eigvalsh(self.limit[:n])[0])  # lambda_min(H∞)
        self.norm2 = float(torch.linalg.eigvalsh(self.products[:n])[-1])  # ||X||²
        grid = torch.linspace(-8, 8, 16_001, dtype=torch.float64)
        self.slope = float(self.activation.derivative(grid).abs().max())  # B
        self.predicted = self._predict(self.limit)

    @property
    def kappa(self) -> float:
        """Equation 40."""
        return self.slope**2 * self.norm2 / self.smallest

    def facts(self) -> dict[str, Any]:
        return {
            "inputs": self.inputs.size,
            "features": self.inputs.train.shape[1],
            "smallest": self.smallest,
            "norm2": self.norm2,
            "slope": self.slope,
            "kappa": self.kappa,
        }

    def trial(
        self, widths: tuple[int, ...], readout: str, generator: torch.Generator
    ) -> list[dict[str, float]]:
        """Draw one first layer that grows, and look at it at each width.

        Returns:
            For each width the smallest and largest eigenvalue of the whitened H ("low", "high"), its mean
            eigenvalue ("middle"), lambda_min(H) ("smallest"), and how far the predictions of the trained linearised
            difference network are from those of H∞, ||u - u_IEIN|| / ||y|| over the test inputs ("error").
        """
        n, total, drawn, found = self.inputs.size, torch.zeros_like(self.limit), 0, []
        for width in widths:
            while drawn < width:
                count = min(_UNITS, width - drawn)
                slopes = self.slopes(count, generator)
                mine = slopes[:n]
                if readout == NORMAL:
                    mine = mine * torch.randn(count, generator=generator).square()
                total += (slopes @ mine.T).double()
                drawn += count
            kernel = self.products * total / width
            eigenvalues = torch.linalg.eigvalsh(self.whitened(kernel[:n]))
            error = (self._predict(kernel) - self.predicted).norm() / self.inputs.targets.norm()
            found.append(
                {
                    "low": float(eigenvalues[0]),
                    "high": float(eigenvalues[-1]),
                    "middle": float(eigenvalues.mean()),
                    "smallest": float(torch.linalg.eigvalsh(kernel[:n])[0]),
                    "error": float(error),
                }
            )
        return found

    def single_units(self, count: int, generator: torch.Generator) -> dict[str, float]:
        """The largest m ||H_k|| and m ||H∞^(-1/2) H_k H∞^(-1/2)|| among drawn units k (left of 36 and 37)."""
        n, plain, white = self.inputs.size, 0.0, 0.0
        for slope in self.slopes(count, generator)[:n].double().T:
            one = slope[:, None] * self.products[:n] * slope
            plain = max(plain, float(torch.linalg.eigvalsh(one)[-1]))
            white = max(white, float(torch.linalg.eigvalsh(self.whitened(one))[-1]))
        return {"units": count, "plain": plain, "whitened": white}

    def slopes(self, count: int, generator: torch.Generator) -> Tensor:
        """s' at the inputs of ``count`` drawn units, [n + t, count] float32."""
        weights = torch.randn(self.coordinates.shape[1], count, generator=generator)
        return self.activation.derivative(self.coordinates @ weights)

    def whitened(self, kernel: Tensor) -> Tensor:
        half = torch.linalg.solve_triangular(self.factor, kernel, upper=False)
        white = torch.linalg.solve_triangular(self.factor, half.T, upper=False)
        return (white + white.T) / 2

    def _predict(self, kernel: Tensor) -> Tensor:
        """H_z H⁻¹ y (equation 33); where few units leave H without a full rank, by least squares."""
        n = self.inputs.size
        targets = self.inputs.targets[:, None]
        factor, failed = torch.linalg.cholesky_ex(kernel[:n])
        if failed:
            weights = torch.linalg.lstsq(kernel[:n], targets, driver="gelsd").solution
        else:
            weights = torch.cholesky_solve(targets, factor)
        return (kernel[n:] @ weights)[:, 0]
