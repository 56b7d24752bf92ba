"""The thesis' network (equations 1 to 3), u(x) = s(x Wᵀ) a with W ~ N(0, 1) and a = ±1/√m: only W is trained.

What the infinite one predicts, what the linearised one predicts, and plain gradient descent for the others, many
networks at a time. Gradients of W lie in the span of the training inputs, and W is as normal in any orthonormal basis:
so inputs are given in a basis (of a QR factorisation) whose first coordinates span the training inputs, W has as many
columns as that, and only those first ones are trained. That is exact, and 784 columns become 100.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zbkernels.infinite import activations, ntk


@dataclass(frozen=True)
class Task:
    """Inputs of unit norm and targets, float64.

    Attributes:
        train, test: [n, d] and [n_test, d], in the basis described above.
        trained: the first so many coordinates; train is 0 in the others.
        y: [n], at target scale 1.
    """

    train: Tensor
    test: Tensor
    trained: int
    y: Tensor


def make_task(train: Tensor, test: Tensor, y: Tensor, *, pixels: bool = False) -> Task:
    """From inputs [n, d] and [n_test, d] of any norm but 0; ``pixels``: in the basis they come in."""
    x = torch.cat([train, test]).double()
    x = x / x.norm(dim=1, keepdim=True)
    if pixels:
        return Task(x[: len(train)], x[len(train) :], x.shape[1], y.double())
    basis = torch.linalg.qr(x.mT).Q  # its first columns come from the first rows
    coordinates = x @ basis
    trained = min(len(train), basis.shape[1])
    coordinates[: len(train), trained:] = 0  # rounding
    return Task(coordinates[: len(train)], coordinates[len(train) :], trained, y.double())


@dataclass(frozen=True)
class Learner:
    """A linear one: what training on targets y for a while predicts, by its kernel on (train, train), (test, train).

    Gradient descent of ``steps`` steps from u = 0 leaves (I - lr·H)^steps of every residual (as equation 12 does of
    gradient flow); ``steps`` None is training to the end (equation 21).
    """

    on_train: Tensor  # [n, n], float64
    on_test: Tensor  # [n_test, n]

    def predict(self, y: Tensor, steps: int | None, lr: float) -> Tensor:
        """Predictions [n_test, …] after training on y [n, …]."""
        values, vectors = torch.linalg.eigh(self.on_train)
        done = torch.ones_like(values) if steps is None else -torch.expm1(steps * torch.log1p(-lr * values))
        return self.on_test @ (
            vectors @ ((done / values)[:, None] * (vectors.mT @ y.reshape(len(y), -1)))
        ).reshape(y.shape)

    def descend(self, y: Tensor, steps: int, lr: float, dtype: torch.dtype) -> Tensor:
        """The same, step by step in ``dtype``: parameters Δθ = Φᵀ c move by lr·Φᵀ(y - H c), Φ being the features."""
        H, y = self.on_train.to(dtype), y.to(dtype)
        c = torch.zeros_like(y)
        for _ in range(steps):
            c += lr * (y - H @ c)
        return (self.on_test.to(dtype) @ c).double()


def infinite(task: Task, activation: str) -> Learner:
    """The infinitely wide network's (equation 8)."""
    scale = task.train.shape[1] ** 0.5
    options: dict[str, Any] = {"activation": activation, "depth": 1, "w_std": 1.0, "train": "first"}
    x, z = task.train * scale, task.test * scale
    return Learner(ntk(x, **options), ntk(z, x, **options))


@dataclass(frozen=True)
class Weights:
    """Of one network before training, float32."""

    W: Tensor  # [m, d]
    a: Tensor  # [m]


def draw(width: int, task: Task, seed: int, device: torch.device) -> Weights:
    """The same whatever becomes of the network afterwards."""
    random = torch.Generator().manual_seed(seed)
    W = torch.randn(width, task.train.shape[1], generator=random)
    sign = torch.randint(0, 2, (width,), generator=random) * 2.0 - 1
    return Weights(W.to(device), (sign / width**0.5).to(device))


def linearized(weights: Weights, task: Task, activation: str) -> Learner:
    """The linearised difference network's (equation 44): H of the drawn weights (equations 34, 35), in float64."""
    act = activations.named(activation)
    W, device = weights.W.double(), weights.W.device
    train, test = task.train.to(device), task.test.to(device)
    slopes = [act.derivative(x @ W.mT) * weights.a.double() for x in (train, test)]
    kernels = [
        (slope @ slopes[0].mT) * (x @ train.mT) for slope, x in zip(slopes, (train, test), strict=True)
    ]
    return Learner(*(kernel.cpu() for kernel in kernels))


def _relu(z: Tensor, slope: Tensor | None) -> Tensor:
    """s(z) in z's place, and s'(z) into ``slope``."""
    torch.relu_(z)
    if slope is not None:
        torch.sign(z, out=slope)
    return z


def _erf_2(z: Tensor, slope: Tensor | None) -> Tensor:
    z.mul_(2)
    if slope is not None:
        torch.mul(z, z, out=slope)
        slope.neg_().exp_().mul_(4 / torch.pi**0.5)
    return z.erf_()


_IN_PLACE: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {"relu": _relu, "erf:2": _erf_2}


@dataclass
class Trained:
    """What became of B networks.

    Attributes:
        test: predictions [B, n_test], float64 numbers that were computed in float32, as training is.
        exact: of the same weights, computed in float64.
        train: predictions [B, n] on the training inputs.
        start: predictions before training, [n_test] and [n].
    """

    test: Tensor
    exact: Tensor
    train: Tensor
    start: tuple[Tensor, Tensor]


def train(
    weights: Weights,
    task: Task,
    activation: str,
    targets: Tensor,
    steps: int,
    lr: float,
    *,
    difference: bool,
    on_steps: Callable[[int], None] = lambda steps: None,
) -> Trained:
    """Full-batch gradient descent on ½‖y - u‖² in float32, of one network for each row of ``targets``.

    Args:
        targets: [B, n], float64.
        difference: train Δu = u - u(0) (equation 29), and predict with it.
        on_steps: called now and then with the number of steps since the last call.
    """
    device, dtype = weights.W.device, weights.W.dtype
    B, m, k = len(targets), len(weights.a), task.trained
    act = _IN_PLACE[activation]
    X = task.train[:, :k].to(device, dtype)
    Xt = X.mT.contiguous()
    W = weights.W[:, :k].repeat(B, 1)  # [B·m, k]
    y = targets.to(device, dtype)
    a_row, a_column = weights.a.expand(B, 1, m), weights.a[None, :, None]
    z, slope = W.new_empty(B * m, len(X)), W.new_empty(B * m, len(X))

    def predict() -> Tensor:
        """[B, n]; leaves s'(z) in ``slope``."""
        torch.mm(W, Xt, out=z)
        return torch.bmm(a_row, act(z, slope).view(B, m, -1))[:, 0]

    start_train = predict()
    target = y + start_train if difference else y
    reported = 0
    for step in range(1, steps + 1):
        residual = target - predict()
        by_net = slope.view(B, m, -1)
        by_net.mul_(residual[:, None, :]).mul_(a_column)
        W.addmm_(slope, X, alpha=lr)
        if step - reported >= REPORT_EVERY or step == steps:
            on_steps(step - reported)
            reported = step
    end_train = predict()

    outputs: dict[torch.dtype, tuple[Tensor, Tensor]] = {}
    for precision in (dtype, torch.float64):
        test, a = task.test.to(device, precision), weights.a.to(precision)
        fixed = test[:, k:] @ weights.W[:, k:].to(precision).mT  # [n_test, m]

        def at(part: Tensor, test: Tensor = test, a: Tensor = a, fixed: Tensor = fixed) -> Tensor:
            return act(test[:, :k] @ part.to(test.dtype).mT + fixed, None) @ a

        before = at(weights.W[:, :k])
        after = torch.stack([at(part) for part in W.view(B, m, k)])
        outputs[precision] = (before, after - before if difference else after)
    return Trained(
        outputs[dtype][1].double().cpu(),
        outputs[torch.float64][1].cpu(),
        (end_train - start_train if difference else end_train).double().cpu(),
        (outputs[torch.float64][0].cpu(), start_train[0].double().cpu()),
    )


REPORT_EVERY = 1_000  # steps
