"""The tangent kernels of infinitely wide ReLU networks with biases and without: how far apart, and what they predict.

The networks are those of equation 20: weights N(0, 1) over the root of the fan-in, biases N(0, 1) times beta. Trained
to the end from an output of 0, they predict K(z, X) K(X, X)⁻¹ Y; at time t of gradient flow on the mean of the squared
errors over N images, what is left of Y is exp(-K t / N) Y.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zbkernels.data import Dataset
from zbkernels.infinite import ntk

TIMES = 60  # at which the loss is looked at
LEFT = 0.1  # of the loss of the zero-bias network, where the last of them is


def kernel(x: Tensor, z: Tensor | None, depth: int, beta: float) -> Tensor:
    """K_beta(x, z), float64; z None is x."""
    return ntk(x, z, depth=depth, w_std=1.0, b_std=beta)


def centred(k: Tensor) -> Tensor:
    """Without the part that a constant has: of the rows' and the columns' means."""
    return k - k.mean(0, keepdim=True) - k.mean(1, keepdim=True) + k.mean()


def best_multiple(of: Tensor, to: Tensor) -> float:
    """||to - a of|| / ||to|| for the best number a: how far apart the directions of the matrices are."""
    a = (of * to).sum() / of.square().sum()
    return float((to - a * of).norm() / to.norm())


def distances(x: Tensor, depth: int, betas: tuple[float, ...]) -> list[dict[str, float]]:
    """For each beta > 0 how far K_beta is from K_0 on the inputs x [N, d], by Frobenius norms.

    "plain": ||K_beta - K_0|| / ||K_0||; "scaled": of the best multiple of K_0, over ||K_beta||; "centred": the same
    after the constant part has been taken out of both.
    """
    zero = kernel(x, None, depth, 0.0)
    found = []
    for beta in betas:
        k = kernel(x, None, depth, beta)
        found.append(
            {
                "beta": beta,
                "plain": float((k - zero).norm() / zero.norm()),
                "scaled": best_multiple(zero, k),
                "centred": best_multiple(centred(zero), centred(k)),
            }
        )
    return found


def witnesses(x: Tensor, betas: tuple[float, ...]) -> list[dict[str, float]]:
    """Equation 33, a network without hidden layers, at two inputs x [2, d]; and one hidden layer at the zero input."""
    black = torch.zeros_like(x[:1])
    found = []
    for beta in betas:
        linear, plain = (ntk(x, depth=0, w_std=1.0, b_std=b) for b in (beta, 0.0))
        found.append(
            {
                "beta": beta,
                "linear_with": float(linear[0, 1]),
                "linear_without": float(plain[0, 1]),
                "black_with": float(kernel(black, x[:1], 1, beta)),
                "black_without": float(kernel(black, x[:1], 1, 0.0)),
            }
        )
    return found


class Regression:
    """Kernel regression on the classes of a training set, for one depth and one beta."""

    def __init__(self, data: Dataset, depth: int, beta: float) -> None:
        self.depth, self.beta, self.data = depth, beta, data
        self.x = data.train.images.flatten(1).double()
        self.z = data.test.images.flatten(1).double()
        classes = len(data.classes)
        self.y = torch.nn.functional.one_hot(data.train.labels, classes).double() - 1 / classes
        self.k = kernel(self.x, None, depth, beta)
        self.weights = torch.linalg.solve(self.k, self.y)

    def predict(self, scalar: float) -> Tensor:
        """The outputs for the test images times the scalar, [N, classes]."""
        return kernel(scalar * self.z, self.x, self.depth, self.beta) @ self.weights

    def by_contrast(self, scalars: tuple[float, ...]) -> list[dict[str, float]]:
        """Accuracy (%) and predictions that differ from those at scalar 1, for each scalar; and the outputs' size."""
        first = self.predict(1.0)
        rows = []
        for scalar in scalars:
            out = first if scalar == 1 else self.predict(scalar)
            rows.append(
                {
                    "scalar": scalar,
                    "accuracy": 100 * float((out.argmax(1) == self.data.test.labels).double().mean()),
                    "changed": int((out.argmax(1) != first.argmax(1)).sum()),
                    "commonest": 100 * float(out.argmax(1).bincount().max()) / len(out),
                }
            )
        return rows

    def spectrum(self) -> tuple[Tensor, Tensor]:
        """The eigenvalues of K/N, ascending, and the share of ||Y||² in the direction of each."""
        values, vectors = torch.linalg.eigh(self.k / len(self.k))
        parts = (vectors.T @ self.y).square().sum(1)
        return values, parts / parts.sum()


def losses(spectrum: tuple[Tensor, Tensor], times: Tensor) -> Tensor:
    """The mean squared error at each time, as a share of that at time 0."""
    values, parts = spectrum
    return torch.exp(-2 * values * times[:, None]) @ parts


def time_to(spectrum: tuple[Tensor, Tensor], share: float) -> float:
    """The time at which the loss has come down to the share of its start, by bisection."""
    low, high = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    while float(losses(spectrum, high)) > share:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float(losses(spectrum, middle)) > share else (low, middle)
    return float(high)


def dynamics(spectra: dict[float, tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Loss curves of gradient flow for each beta (0 among them), over one time and over each one's own.

    The own time is in units of 1/(largest eigenvalue of K/N): as a learning rate is, which is chosen for each.
    """
    rows: dict[str, Any] = {"betas": sorted(spectra)}
    for name in ("same", "own"):
        unit = {b: (1.0 if name == "same" else 1 / float(s[0][-1])) for b, s in spectra.items()}
        end = time_to(spectra[0.0], LEFT) / unit[0.0]
        times = torch.logspace(-3, 0, TIMES, dtype=torch.float64) * end
        rows[name] = {
            "times": times.tolist(),
            "losses": {f"{b:g}": losses(s, times * unit[b]).tolist() for b, s in spectra.items()},
            "half": {f"{b:g}": time_to(s, 0.5) / unit[b] for b, s in spectra.items()},
            "tenth": {f"{b:g}": time_to(s, LEFT) / unit[b] for b, s in spectra.items()},
        }
    return rows
