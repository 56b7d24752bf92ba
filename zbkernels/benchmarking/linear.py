"""Contestants and reference of ``relu(x @ weight.T)``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

import zbkernels as zb
from zbkernels.benchmarking import contestants as engines
from zbkernels.benchmarking.cases import LinearCase
from zbkernels.benchmarking.check import Wrong, relative_error
from zbkernels.benchmarking.contestants import Contestant
from zbkernels.benchmarking.conv import TrainingStep
from zbkernels.benchmarking.nap import torch_pack, torch_unpack


class LinearProblem:
    """Inputs, reference and contestants of one :class:`LinearCase`."""

    documented_error: ClassVar[dict[str, float]] = {}

    def __init__(self, case: LinearCase, device: str, threads: int) -> None:
        self.case, self.device, self.threads = case, device, threads
        seed = torch.Generator(device).manual_seed(0)
        dtype = getattr(torch, case.dtype)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=seed, device=device)

        self.x = draw(case.n, case.fan_in).to(dtype)
        self.weight = (draw(case.fan_out, case.fan_in) * (2 / case.fan_in) ** 0.5).to(dtype)
        pre = self.x.double() @ self.weight.double().T  # [n, fan_out]
        self.margin = 16 * torch.finfo(dtype).eps * float(pre.abs().amax())
        self.pre = pre
        # A unit so close to 0 that rounding decides its sign passes no gradient, for anyone.
        self.grad = draw(case.n, case.fan_out).to(dtype) * (pre.abs() > self.margin)
        self.expected = [F.relu(pre)]
        if case.mode == "train":
            grad_pre = self.grad.double() * (pre > 0)
            self.expected.append(grad_pre.T @ self.x.double())
            if case.needs_x:
                self.expected.append(grad_pre @ self.weight.double())

    def error(self, outputs: Sequence[torch.Tensor]) -> float:
        """As :meth:`ConvProblem.error`."""
        outputs = list(outputs)
        if self.case.mode == "nap":
            signature = outputs.pop()
            differ = torch_unpack(signature ^ torch_pack(self.pre), self.case.fan_out)
            if bool((differ & (self.pre.abs() > self.margin)).any()):
                raise Wrong("sign bits differ where the value is clear of rounding")
        if len(outputs) != len(self.expected):
            raise Wrong(f"{len(outputs)} outputs, expected {len(self.expected)}")
        return max(relative_error(out, want) for out, want in zip(outputs, self.expected, strict=True))

    def contestants(self) -> list[Contestant]:
        """Ours first, then the competitors."""
        plain = torch_linear_nap if self.case.mode == "nap" else torch_linear
        found = [Contestant("ours", lambda: self._call(self._ours), ours=True)]
        if self.device.startswith("cuda"):
            found += [self.backend(name) for name in ("cuda", "triton")]
        found.append(Contestant("eager", lambda: self._call(plain)))
        found.append(Contestant("compile", lambda: self._call(engines.compiled(plain, self.device))))
        if self.device == "cpu" and self.case.mode == "forward":
            found += [
                Contestant("onnxruntime", self._onnx_runtime, outputs=engines.onnx_outputs),
                Contestant("openvino", self._openvino, outputs=engines.openvino_outputs),
            ]
        return found

    def _call(self, function: Callable) -> Callable[[], Any]:
        function = engines.per_call(function, self.device)
        if self.case.mode == "train":
            return TrainingStep(function, self.x, self.weight, self.grad, self.case.needs_x)

        def call() -> Any:
            with torch.inference_mode():
                return function(self.x, self.weight)

        return call

    @property
    def _ours(self) -> Callable:
        return zb.linear_relu_nap if self.case.mode == "nap" else zb.linear_relu

    def backend(self, backend: str) -> Contestant:
        """Ours on one backend by name."""

        def on_backend(x: torch.Tensor, weight: torch.Tensor) -> Any:
            with zb.use_backend(backend):
                return self._ours(x, weight)

        return Contestant(f"ours ({backend})", lambda: self._call(on_backend), ours=True)

    def _onnx_runtime(self) -> Callable[[], Any]:
        engines.numpy_dtype(self.case.dtype)
        nodes: list[tuple] = [("MatMul", ["x", "weight"], "map", {}), ("Relu", ["map"], "y", {})]
        model = lambda: engines.onnx_model(nodes, {"x": self.x}, {"weight": self.weight.T})  # noqa: E731
        return engines.onnx_runtime(model, {"x": self.x}, self.threads)

    def _openvino(self) -> Callable[[], Any]:
        engines.numpy_dtype(self.case.dtype)

        def build(ops: Any, parameters: Any) -> Any:
            return ops.relu(ops.matmul(parameters[0], ops.constant(self.weight.numpy()), False, True))

        return engines.openvino_call(build, {"x": self.x}, self.threads)


def torch_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The layer as torch's users write it."""
    return F.relu(F.linear(x, weight))


def torch_linear_nap(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The layer with its signs packed by plain torch operations."""
    y = F.relu(F.linear(x, weight))
    return y, torch_pack(y)
