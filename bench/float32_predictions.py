"""How far predictions of infinite ensembles from float32 inputs are from those in float64, and what they get right.

    python bench/float32_predictions.py --data DIR      writes bench/results/float32-predictions.md (some minutes)
    python bench/float32_predictions.py --data DIR --sizes 200 --test 500 --end-to-end 500     prints a short table

NTK regression on the first n images of MNIST's training set (one-hot targets, gradient flow to the end), for the first
1,000 test images; then the accuracy on all test images beside a computation in numpy that shares no code with it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from zbkernels.benchmarking.machine import cpu_name
from zbkernels.data import Dataset, load
from zbkernels.files import write_text
from zbkernels.infinite import ConvergenceError, FullyConnected, kernel_matrix, predict
from zbkernels.infinite.kernels import ntk
from zbkernels.infinite.lanczos import largest_eigenvalue

TABLE = Path(__file__).resolve().parents[1] / "bench/results/float32-predictions.md"
DEPTHS, SHIFTS = (1, 3), (0.0, 1e-3)  # a shift is a part of the mean diagonal
ONE_DEPTH = 4000  # and more images: one hidden layer only


def rows(images: Tensor, unit: bool) -> Tensor:
    """[N, 784], raw pixels or each image of norm 28."""
    x = images.flatten(1)
    return x / x.norm(dim=1, keepdim=True) * x.shape[1] ** 0.5 if unit else x


def one_hot(labels: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(labels, 10).float()


def plain_float32(x: Tensor, y: Tensor, z: Tensor, depth: int, shift: float) -> Tensor | str:
    """Everything in float32, as one would write it down; or why there is nothing."""
    K = ntk(x, depth=depth)
    K.diagonal().add_(shift)
    L, info = torch.linalg.cholesky_ex(K)
    return "not positive definite" if int(info) else ntk(z, x, depth=depth) @ torch.cholesky_solve(y, L)


def ours(x: Tensor, y: Tensor, z: Tensor, depth: int, shift: float, *, whole: bool) -> Tensor | str:
    """Through ``predict``, with the matrix or without."""
    before, kernel_matrix.DENSE_LIMIT = kernel_matrix.DENSE_LIMIT, len(x) if whole else 0
    try:
        fit = predict.gradient_descent_mse_ensemble(FullyConnected(depth=depth), x, y, shift=shift)
        mean = fit(None, z)
        assert isinstance(mean, Tensor)
        return mean
    except ConvergenceError as error:
        return str(error).partition("got ")[2].partition(" after")[0]
    finally:
        kernel_matrix.DENSE_LIMIT = before


def differs(found: Tensor | str, exact: Tensor) -> str:
    """Relative error, and how many of the predicted classes differ."""
    if isinstance(found, str):
        return found
    error = float((found.double() - exact).norm() / exact.norm())
    return f"{error:.1e}, {int((found.argmax(1) != exact.argmax(1)).sum())}"


def condition_number(K: Tensor, L: Tensor, shift: float) -> float:
    """Of K + shift I = L Lᵀ, from 100 Lanczos steps with it and as many with its inverse."""
    largest = largest_eigenvalue(lambda v: K @ v, K[0], 100) + shift
    return largest * largest_eigenvalue(lambda v: torch.cholesky_solve(v, L), K[0], 100)


def stability(data: Dataset, sizes: Sequence[int], test: int) -> list[str]:
    lines = [
        "| inputs | n | hidden layers | shift / mean diagonal | condition | all in float32 | `predict`, n x n "
        f"| without the matrix | accuracy (%) of {test:,} |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for unit in (True, False):
        z = rows(data.test.images[:test], unit)
        for n in sizes:
            x, y = rows(data.train.images[:n], unit), one_hot(data.train.labels[:n])
            for depth in DEPTHS if n < ONE_DEPTH else DEPTHS[:1]:
                K = ntk(x.double(), depth=depth)
                cross = ntk(z.double(), x.double(), depth=depth)
                for part in SHIFTS:
                    shift = part * float(K.diagonal().mean())
                    L = torch.linalg.cholesky(K + shift * torch.eye(n, dtype=K.dtype))
                    exact = cross @ torch.cholesky_solve(y.double(), L)
                    right = (exact.argmax(1) == data.test.labels[:test]).double().mean()
                    condition = condition_number(K, L, shift)
                    cells = [
                        "norm 28" if unit else "raw",
                        f"{n:,}",
                        str(depth),
                        f"{part:g}",
                        f"{condition:.1e}",
                        differs(plain_float32(x, y, z, depth, shift), exact),
                        differs(ours(x, y, z, depth, shift, whole=True), exact),
                        differs(ours(x, y, z, depth, shift, whole=False), exact),
                        f"{100 * right:.1f}",
                    ]
                    lines.append("| " + " | ".join(cells) + " |")
                    print(lines[-1], flush=True)
    return lines


def numpy_ntk(a: np.ndarray, b: np.ndarray, depth: int) -> np.ndarray:
    """The NTK of ReLU layers, w_std = sqrt(2), no biases, by the arc-cosine formulas (Cho and Saul 2009), float64."""
    squares_a, squares_b = (2 * np.square(v).sum(1) / v.shape[1] for v in (a, b))
    outer = np.sqrt(np.outer(squares_a, squares_b))  # the norms stay the same in every layer
    kernel = 2 * a @ b.T / a.shape[1]
    tangent = kernel.copy()
    for _ in range(depth):
        c = np.clip(kernel / outer, -1, 1)
        angle = np.pi - np.arccos(c)
        kernel = outer * (np.sqrt(1 - c * c) + c * angle) / np.pi
        tangent = kernel + tangent * angle / np.pi
    return tangent


def end_to_end(data: Dataset, sizes: Sequence[int]) -> list[str]:
    lines = [
        "| n | hidden layers | `predict` from float32 inputs | numpy, float64 | classes that differ | error |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    z, labels = rows(data.test.images, True), data.test.labels
    for n in sizes:
        x, y = rows(data.train.images[:n], True), one_hot(data.train.labels[:n])
        for depth in DEPTHS:
            fit = predict.gradient_descent_mse_ensemble(FullyConnected(depth=depth), x, y)
            mean = fit(None, z)
            assert isinstance(mean, Tensor)
            wide, targets = x.double().numpy(), y.double().numpy()
            weights = np.linalg.solve(numpy_ntk(wide, wide, depth), targets)
            parts = [numpy_ntk(part, wide, depth) @ weights for part in np.split(z.double().numpy(), 20)]
            exact = torch.from_numpy(np.concatenate(parts))
            right = [100 * float((f.argmax(1) == labels).double().mean()) for f in (mean, exact)]
            other = int((mean.argmax(1) != exact.argmax(1)).sum())
            error = float((mean.double() - exact).norm() / exact.norm())
            way = "n x n" if n <= kernel_matrix.DENSE_LIMIT else "without the matrix"
            lines.append(
                f"| {n:,} | {depth} | {right[0]:.2f} % ({way}) | {right[1]:.2f} % | {other} | {error:.1e} |"
            )
            print(lines[-1], flush=True)
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="the folder with MNIST; else $ZBKERNELS_DATA")
    parser.add_argument("--sizes", default="200,1000,4000")
    parser.add_argument("--test", type=int, default=1000)
    parser.add_argument("--end-to-end", default="1000,5000")
    options = parser.parse_args(arguments)
    data = load("mnist", options.data)
    sizes, whole = ([int(n) for n in text.split(",")] for text in (options.sizes, options.end_to_end))
    table, accuracy = stability(data, sizes, options.test), end_to_end(data, whole)
    text = "\n".join(
        [
            "# Float32 and float64: predictions of infinite ensembles on MNIST",
            "",
            f"{cpu_name()}, torch {torch.__version__}. ReLU, w_std = sqrt(2), no biases, NTK, gradient flow to the "
            "end; first n training images.",
            "",
            "## Distance from float64",
            "",
            "‖f - f64‖ / ‖f64‖ over the test predictions, and how many of the predicted classes differ. *All in "
            "float32*: kernel, Cholesky and product in float32. `predict` gets the same float32 inputs and solves in "
            "float64 (n x n), or by conjugate gradients in float32 with residuals in float64 to 1e-6 (without the "
            "matrix).",
            "",
            *table,
            "",
            "## Accuracy on all 10,000 test images",
            "",
            "Images of norm 28, no shift. The numpy column shares no code with the package: arc-cosine formulas and "
            "an explicit solve in float64. The error is ‖difference‖ / ‖f‖.",
            "",
            *accuracy,
            "",
            "`python bench/float32_predictions.py` writes this file.",
            "",
        ]
    )
    if arguments is None and len(sys.argv) <= 3:
        write_text(TABLE, text)


if __name__ == "__main__":
    main()
