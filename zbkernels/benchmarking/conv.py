"""Contestants and reference of a ``conv -> ReLU -> pool`` problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

import zbkernels as zb
from zbkernels.benchmarking import contestants as engines
from zbkernels.benchmarking.cases import ConvCase
from zbkernels.benchmarking.check import Wrong, relative_error
from zbkernels.benchmarking.contestants import Contestant
from zbkernels.benchmarking.nap import torch_pack, torch_unpack
from zbkernels.ops._backend import note_kernel


class ConvProblem:
    """Inputs, reference and contestants of one :class:`ConvCase`.

    x is normal noise and the weight has He scale, so that about half of the units are on, as in a network.
    """

    # Winograd (conv precision "high") is allowed 1e-5 of the result's norm; see set_conv_precision.
    documented_error: ClassVar[dict[str, float]] = {"float32": 1e-5}

    def __init__(self, case: ConvCase, device: str, threads: int) -> None:
        self.case, self.device, self.threads = case, device, threads
        seed = torch.Generator(device).manual_seed(0)  # there: a card draws a large batch at once
        fan_in = case.c // case.groups * case.kernel**2
        dtype = getattr(torch, case.dtype)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=seed, device=device)

        self.x = draw(case.n, case.c, case.h, case.w).to(dtype)
        weight = draw(case.k, case.c // case.groups, case.kernel, case.kernel)
        self.weight = (weight * (2 / fan_in) ** 0.5).to(dtype)
        self.grad = draw(case.n, case.k, *case.out_size).to(dtype)
        self.residual = draw(case.n, case.k, *case.map_size).to(dtype) if case.residual else None
        # Autotuning serves the contestants; for one float64 convolution it would cost more than it saves.
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
            self._reference()

    # ---- reference, in float64 -------------------------------------------------------------------------

    def _reference(self) -> None:
        """float64 results, and which pooling decisions are too close for rounding to leave alone.

        A gradient is compared only where the decision (which position wins, positive or not) is clear: where
        two candidates differ by less than rounding, float64 and any float32 result may rightly disagree, and
        the incoming gradient of that window is set to 0 for everyone.
        """
        case = self.case
        x, weight = self.x.double(), self.weight.double()
        pre = F.conv2d(x, weight, None, case.stride, case.padding, 1, case.groups)  # [n, k, h1, w1]
        pre = pre if self.residual is None else pre + self.residual.double()
        self.margin = 16 * torch.finfo(self.x.dtype).eps * float(pre.abs().amax()) if pre.numel() else 0.0
        if case.mode == "nap":
            self.pre = pre
        if case.mode != "train":
            self.expected = [self._pool(F.relu(pre))]
            return
        self.grad = self.grad * ~self._unclear(pre)
        with torch.enable_grad():
            pre.requires_grad_()
            y = self._pool(F.relu(pre))
            (grad_pre,) = torch.autograd.grad(y, pre, self.grad.double())
        geometry = ([case.stride] * 2, [case.padding] * 2, [1, 1], False, [0, 0], case.groups)
        grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
            grad_pre, x, weight, None, *geometry, [case.needs_x, True, False]
        )
        self.expected = [y.detach(), grad_weight] + ([grad_x] if case.needs_x else [])
        self.expected += [grad_pre] if case.residual else []

    def _pool(self, value: torch.Tensor) -> torch.Tensor:
        case = self.case
        if case.pool == "none":
            return value
        if case.pool == "max":
            return F.max_pool2d(value, case.pool_kernel, case.pool_stride, case.pool_padding)
        return F.avg_pool2d(value, case.pool_kernel, case.pool_stride, case.pool_padding)

    def _unclear(self, pre: torch.Tensor) -> torch.Tensor:
        """bool [n, k, p, q]: windows of a max pool (or values) whose winner or whose sign rounding could change."""
        case = self.case
        if case.pool == "none":
            return pre.abs() < self.margin
        size, step = case.pool_kernel, case.pool_stride
        padded = F.pad(pre, [case.pool_padding] * 4, value=float("-inf"))
        windows = padded.unfold(2, size, step).unfold(3, size, step)  # [n, k, p, q, size, size]
        top = windows.flatten(-2).topk(2, dim=-1).values
        first, second = top.unbind(-1)
        return (first > -self.margin) & ((first < self.margin) | (first - second < self.margin))

    def error(self, outputs: Sequence[torch.Tensor]) -> float:
        """Largest ``||out - reference|| / ||reference||`` over the outputs; for ``nap`` the bits as well.

        Raises:
            Wrong: a wrong number of outputs, a wrong shape, NaN, or a sign bit that rounding cannot explain.
        """
        outputs = list(outputs)
        if self.case.mode == "nap":
            signature = outputs.pop()
            expected = torch_pack(self.pre > 0)
            differ = torch_unpack(signature ^ expected, self.pre[0].numel()).view_as(self.pre)
            if bool((differ & (self.pre.abs() > self.margin)).any()):
                raise Wrong("sign bits differ where the value is clear of rounding")
        if len(outputs) != len(self.expected):
            raise Wrong(f"{len(outputs)} outputs, expected {len(self.expected)}")
        return max(relative_error(out, want) for out, want in zip(outputs, self.expected, strict=True))

    # ---- contestants -----------------------------------------------------------------------------------

    def contestants(self) -> list[Contestant]:
        """Ours first, then the competitors, in the order of the table's columns."""
        case = self.case
        ours = [
            self._torch("ours", ours_block, ours=True),
            self._torch("ours CL", ours_block, ours=True, cl=True),
        ]
        if self.device.startswith("cuda"):
            ours += [self.backend(name) for name in ("cuda", "triton")]
        theirs = [
            self._torch("eager", torch_block),
            self._torch("eager CL", torch_block, cl=True),
            self._torch("compile", torch_block, compile_it=True),
            self._torch("compile CL", torch_block, compile_it=True, cl=True),
        ]
        if self.device == "cpu" and case.mode == "forward":
            theirs += [
                Contestant("onnxruntime", self._onnx_runtime, outputs=engines.onnx_outputs),
                Contestant("openvino", self._openvino, outputs=engines.openvino_outputs),
            ]
        if case.mode == "nap":
            ours.append(self._torch("ours, two ops", ours_two_ops, ours=True))
        if case.residual:
            ours.append(self._torch("ours, three steps", ours_three_steps, ours=True))
        return ours + theirs

    def _torch(
        self, name: str, block: Callable, *, ours: bool = False, cl: bool = False, compile_it: bool = False
    ) -> Contestant:
        def build() -> Callable[[], Any]:
            layout = torch.channels_last if cl else torch.contiguous_format
            tensors = [self.x, self.weight, *([] if self.residual is None else [self.residual])]
            x, weight, *residual = (t.contiguous(memory_format=layout) for t in tensors)
            grad = self.grad.contiguous(memory_format=layout)
            case = self.case

            def forward(x: torch.Tensor, weight: torch.Tensor, *residual: torch.Tensor) -> Any:
                return block(case, x, weight, *residual)

            function = engines.compiled(forward, self.device) if compile_it else forward
            function = engines.per_call(function, self.device)
            if case.mode == "train":
                return TrainingStep(function, x, weight, grad, case.needs_x, *residual)

            def call() -> Any:
                with torch.inference_mode():
                    return function(x, weight, *residual)

            return call

        return Contestant(name, build, ours=ours)

    def backend(self, backend: str, *, cl: bool = True) -> Contestant:
        """Ours on one backend by name."""

        def block(case: ConvCase, x: torch.Tensor, weight: torch.Tensor, *residual: torch.Tensor) -> Any:
            with zb.use_backend(backend):
                return ours_block(case, x, weight, *residual)

        return self._torch(f"ours ({backend})", block, ours=True, cl=cl)

    def _onnx_runtime(self) -> Callable[[], Any]:
        engines.numpy_dtype(self.case.dtype)
        case = self.case
        conv = {
            "kernel_shape": [case.kernel] * 2,
            "strides": [case.stride] * 2,
            "pads": [case.padding] * 4,
            "group": case.groups,
        }
        nodes: list[tuple] = [("Conv", ["x", "weight"], "map", conv)]
        if self.residual is not None:
            nodes.append(("Add", ["map", "residual"], "sum", {}))
        nodes.append(("Relu", [nodes[-1][2]], "act", {}))
        if case.pool != "none":
            pool: dict[str, Any] = {
                "kernel_shape": [case.pool_kernel] * 2,
                "strides": [case.pool_stride] * 2,
                "pads": [case.pool_padding] * 4,
            }
            operator = "MaxPool" if case.pool == "max" else "AveragePool"
            if case.pool == "avg":
                pool["count_include_pad"] = 1
            nodes.append((operator, ["act"], "y", pool))
        model = lambda: engines.onnx_model(nodes, self._inputs(), {"weight": self.weight})  # noqa: E731
        return engines.onnx_runtime(model, self._inputs(), self.threads)

    def _inputs(self) -> dict[str, torch.Tensor]:
        """Of other engines' models, which take the weight as a constant."""
        return {"x": self.x} if self.residual is None else {"x": self.x, "residual": self.residual}

    def _openvino(self) -> Callable[[], Any]:
        engines.numpy_dtype(self.case.dtype)
        case = self.case

        def build(ops: Any, parameters: Any) -> Any:
            weight = self.weight.numpy()
            same = ([case.stride] * 2, [case.padding] * 2, [case.padding] * 2, [1, 1])
            if case.groups == 1:
                value = ops.convolution(parameters[0], ops.constant(weight), *same)
            else:
                grouped = weight.reshape(case.groups, case.k // case.groups, *weight.shape[1:])
                value = ops.group_convolution(parameters[0], ops.constant(grouped), *same)
            if self.residual is not None:
                value = ops.add(value, parameters[1])
            value = ops.relu(value)
            sizes = ([case.pool_padding] * 2, [case.pool_padding] * 2, [case.pool_kernel] * 2)
            if case.pool == "max":
                value = ops.max_pool(value, [case.pool_stride] * 2, [1, 1], *sizes).output(0)
            elif case.pool == "avg":
                value = ops.avg_pool(value, [case.pool_stride] * 2, *sizes, False)
            return value

        return engines.openvino_call(build, self._inputs(), self.threads)


def torch_block(
    case: ConvCase, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None
) -> Any:
    """The block as torch's users write it; for ``nap`` with the signs packed by plain torch operations."""
    value = F.conv2d(x, weight, None, case.stride, case.padding, 1, case.groups)
    value = F.relu(value) if residual is None else value.add_(residual).relu_()
    signature = torch_pack(value) if case.mode == "nap" else None
    if case.pool == "max":
        value = F.max_pool2d(value, case.pool_kernel, case.pool_stride, case.pool_padding)
    elif case.pool == "avg":
        value = F.avg_pool2d(value, case.pool_kernel, case.pool_stride, case.pool_padding)
    return value if signature is None else (value, signature)


def ours_block(
    case: ConvCase, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None
) -> Any:
    """The fused op, or its pattern form."""
    op = zb.conv_relu_pool2d_nap if case.mode == "nap" else zb.conv_relu_pool2d
    return op(
        x,
        weight,
        case.stride,
        case.padding,
        1,
        case.groups,
        pool=case.pool,
        pool_kernel=case.pool_kernel,
        pool_stride=case.pool_stride,
        pool_padding=case.pool_padding,
        residual=residual,
    )


def ours_three_steps(case: ConvCase, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> Any:
    """What the residual argument saves: the op as a convolution alone, torch's sum and ReLU."""
    geometry = (case.stride, case.padding, 1, case.groups)
    value = zb.conv_relu_pool2d(x, weight, *geometry, pool="none", negative_slope=1.0)
    return value.add_(residual).relu_()


def ours_two_ops(case: ConvCase, x: torch.Tensor, weight: torch.Tensor) -> Any:
    """What the pattern form saves against this package's own separate ops: conv, pack, torch's pool."""
    value = zb.conv_relu_pool2d(x, weight, case.stride, case.padding, 1, case.groups, pool="none")
    return F.max_pool2d(value, case.pool_kernel, case.pool_stride, case.pool_padding), zb.nap_pack(value)


class TrainingStep:
    """Forward and backward of one block: ``() -> (y, grad_weight[, grad_x][, grad_residual])``."""

    def __init__(
        self,
        function: Callable,
        x: torch.Tensor,
        weight: torch.Tensor,
        grad: torch.Tensor,
        needs_x: bool,
        *residual: torch.Tensor,
    ) -> None:
        self.function, self.grad = function, grad
        self.weight = weight.detach().requires_grad_()
        more = [t.detach().requires_grad_() for t in residual]
        self.inputs = (x.detach().requires_grad_(needs_x), self.weight, *more)
        self.wanted = (self.weight, *([self.inputs[0]] if needs_x else []), *more)

    def __call__(self) -> tuple[torch.Tensor, ...]:
        y = self.function(*self.inputs)
        return (y.detach(), *torch.autograd.grad(y, self.wanted, self.grad))

    def kernels(self) -> list[str]:
        """What ran forward and what ran backward, in a step that is not timed.

        Kernels are remembered by thread, and a card's backward runs in a thread of autograd's own: hooks look
        there, before the block's backward (to forget an older one's kernel) and after it.
        """
        y = self.function(*self.inputs)
        ran = [zb.last_kernel()]
        y.register_hook(lambda _: note_kernel("torch"))
        hook = self.weight.register_hook(lambda _: ran.append(zb.last_kernel()))
        try:
            torch.autograd.grad(y, self.wanted, self.grad)
        finally:
            hook.remove()
        return ran
