"""Contestants and reference of a layer's kernel over angles, and of one training iteration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

import zbkernels as zb
from zbkernels.benchmarking import contestants as engines
from zbkernels.benchmarking.check import Wrong, relative_error
from zbkernels.benchmarking.contestants import Contestant
from zbkernels.benchmarking.trained_kernel_cases import AngleCase, IterationCase

# Adam moves all weights of a unit one way. At this rate none of them leaves its place but those near 0, and every
# sample of every contestant is the same step.
LEARNING_RATE = 1e-12

Layer = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class AngleProblem:
    """Inputs, reference and contestants of one :class:`AngleCase`."""

    documented_error: ClassVar[dict[str, float]] = {}

    def __init__(self, case: AngleCase, device: str, threads: int) -> None:
        self.case, self.device, self.threads = case, device, threads
        seed = torch.Generator(device).manual_seed(0)
        dtype = getattr(torch, case.dtype)

        def draw(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
            return (scale * torch.randn(rows, columns, generator=seed, device=device)).to(dtype)

        self.angles = torch.linspace(0, math.pi, case.angles, device=device)
        rows = case.d or case.n
        self.inputs = [draw(case.pairs, rows), draw(case.pairs, rows)]
        if case.mode == "kernel":
            self.inputs.append(draw(case.n, case.d, (2 / case.d) ** 0.5))
        exact: Callable[..., torch.Tensor] = self._forms()[-1][1]
        self.expected = exact(*(t.double() for t in self.inputs), self.angles)

    def error(self, outputs: Sequence[torch.Tensor]) -> float:
        """The relative error of all values."""
        (out,) = outputs
        return relative_error(out, self.expected)

    def contestants(self) -> list[Contestant]:
        """Ours first, then the competitors; those that share the two products are marked so."""
        found = [Contestant("ours", lambda: self._call(self._ours), ours=True)]
        if self.device.startswith("cuda"):
            found += [self.backend(name) for name in ("cuda", "triton")]
        for which, form in self._forms():
            found.append(self._contestant(f"eager{which}", form))
            found.append(self._contestant(f"compile{which}", form, compile_it=True))
        return found

    def _forms(self) -> list[tuple[str, Callable[..., torch.Tensor]]]:
        """In plain torch, the best last."""
        if self.case.mode == "sums":
            return [("", with_sums_of_torch)]
        return [("", with_a_product_each), (", shared", with_products_shared)]

    def _contestant(self, name: str, form: Callable, *, compile_it: bool = False) -> Contestant:
        return Contestant(
            name, lambda: self._call(engines.compiled(form, self.device) if compile_it else form)
        )

    def _call(self, function: Callable[..., torch.Tensor]) -> Callable[[], Any]:
        function = engines.per_call(function, self.device)

        def call() -> Any:
            with torch.inference_mode():
                return function(*self.inputs, self.angles)

        return call

    def _ours(self, *tensors: torch.Tensor) -> torch.Tensor:
        if self.case.mode == "sums":
            u, v, angles = tensors
            return zb.layer_kernel(u, v, angles)
        x, p, weight, angles = tensors
        return zb.layer_kernel(x @ weight.T, p @ weight.T, angles)

    def backend(self, backend: str) -> Contestant:
        """Ours on one backend by name."""

        def on_backend(*tensors: torch.Tensor) -> Any:
            with zb.use_backend(backend):
                return self._ours(*tensors)

        return Contestant(f"ours ({backend})", lambda: self._call(on_backend), ours=True)


def with_a_product_each(
    x: torch.Tensor, p: torch.Tensor, weight: torch.Tensor, angles: torch.Tensor
) -> torch.Tensor:
    """As it is written down: every angle's y is formed and goes through the layer."""
    on_x = F.relu(x @ weight.T)
    return torch.stack(
        [
            F.cosine_similarity(on_x, F.relu((t.cos() * x + t.sin() * p).to(x.dtype) @ weight.T))
            for t in angles
        ],
        1,
    )


def with_products_shared(
    x: torch.Tensor, p: torch.Tensor, weight: torch.Tensor, angles: torch.Tensor
) -> torch.Tensor:
    """With two products for all angles."""
    return with_sums_of_torch(x @ weight.T, p @ weight.T, angles)


def with_sums_of_torch(u: torch.Tensor, v: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """From the pre-activations."""
    on_x = F.relu(u)
    length = on_x.square().sum(1).sqrt()
    values = []
    for t in angles:
        on_y = F.relu((t.cos() * u + t.sin() * v).to(u.dtype))
        values.append((on_x * on_y).sum(1) / (length * on_y.square().sum(1).sqrt()))
    return torch.stack(values, 1)


class IterationProblem:
    """Inputs, reference and contestants of one :class:`IterationCase`.

    All contestants train the same weights with one optimizer, whose steps are too small to change the result.
    """

    documented_error: ClassVar[dict[str, float]] = {}

    def __init__(self, case: IterationCase, device: str, threads: int) -> None:
        self.case, self.device, self.threads = case, device, threads
        seed = torch.Generator(device).manual_seed(0)
        dtype = getattr(torch, case.dtype)
        self.x = torch.rand(case.n, case.width, generator=seed, device=device).to(dtype)
        self.weights = [
            ((2 / case.width) ** 0.5 * torch.randn(case.width, case.width, generator=seed, device=device))
            .to(dtype)
            .requires_grad_()
            for _ in range(case.layers)
        ]
        self.optimizer = torch.optim.Adam(self.weights, lr=LEARNING_RATE, fused=True)
        exact = [weight.detach().double() for weight in self.weights]
        self.expected = self._exact(exact)
        # A gradient jumps where rounding changes the sign of a unit, and some units are always that close to 0. So it
        # is allowed what the float64 gradients themselves move by when each weight moves by some roundings.
        moved = 16 * torch.finfo(dtype).eps
        for weight in exact:
            noise = torch.randn(weight.shape, generator=seed, device=device, dtype=weight.dtype)
            weight.mul_(1 + moved * noise)
        self.gradient_tolerance = max(map(relative_error, self._exact(exact)[2:], self.expected[2:]))

    def _exact(self, weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Loss, output and gradients in float64."""
        leaves = [weight.detach().requires_grad_() for weight in weights]
        loss, y = autoencoder(plain_layer)(self.x.double(), *leaves)
        return [loss.detach(), y.detach(), *torch.autograd.grad(loss, leaves)]

    def error(self, outputs: Sequence[torch.Tensor]) -> float:
        """The larger of the relative errors of loss and output.

        Raises:
            Wrong: a wrong number of outputs, or a weight's gradient further from the reference than rounding explains.
        """
        if len(outputs) != len(self.expected):
            raise Wrong(f"{len(outputs)} outputs, expected {len(self.expected)}")
        errors = list(map(relative_error, outputs, self.expected))
        worst = max(errors[2:])
        if worst > self.gradient_tolerance:
            allowed = self.gradient_tolerance
            raise Wrong(
                f"gradient of weight {errors[2:].index(worst) + 1}: error {worst:.2g}, allowed {allowed:.2g}"
            )
        return max(errors[:2])

    def contestants(self) -> list[Contestant]:
        """Ours first, then the competitors."""
        found = [Contestant("ours", lambda: self._step(zb.linear_relu), ours=True)]
        if self.device.startswith("cuda"):
            found += [self.backend(name) for name in ("cuda", "triton")]
        found.append(Contestant("eager", lambda: self._step(plain_layer)))
        found.append(Contestant("compile", lambda: self._step(plain_layer, compile_it=True)))
        return found

    def _step(self, layer: Layer, *, compile_it: bool = False) -> Callable[[], Any]:
        function = autoencoder(layer)
        if compile_it:
            function = engines.compiled(function, self.device)
        function = engines.per_call(function, self.device)

        def step() -> Iterable[torch.Tensor | None]:
            self.optimizer.zero_grad()
            loss, y = function(self.x, *self.weights)
            loss.backward()
            self.optimizer.step()
            return (loss.detach(), y.detach(), *(weight.grad for weight in self.weights))

        return step

    def backend(self, backend: str) -> Contestant:
        """Ours on one backend by name."""

        def on_backend(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            with zb.use_backend(backend):
                return zb.linear_relu(x, weight)

        return Contestant(f"ours ({backend})", lambda: self._step(on_backend), ours=True)


def autoencoder(layer: Layer) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """``(x, *weights) -> (mean squared error, output)``."""

    def function(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x
        for weight in weights:
            y = layer(y, weight)
        return F.mse_loss(y, x), y

    return function


def plain_layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The layer as torch's users write it."""
    return F.relu(F.linear(x, weight))
