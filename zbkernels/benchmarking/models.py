"""Contestants and reference of a whole network: logits, or one training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from zbkernels.benchmarking import contestants as engines
from zbkernels.benchmarking.cases import CLASSES, ModelCase
from zbkernels.benchmarking.check import Wrong, relative_error
from zbkernels.benchmarking.contestants import Contestant
from zbkernels.benchmarking.onnx_nodes import nodes_of
from zbkernels.models import ARCHITECTURES, Architecture, Linear, build, layer_kernels

# So small that the steps of a measurement change no weight by more than some roundings: every sample of every
# contestant is then the same step. At an ordinary rate the loss falls meanwhile, by more where more calls fit in a
# sample.
LEARNING_RATE = 1e-9

Step = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class ModelProblem:
    """Images, reference and contestants of one :class:`ModelCase`. All begin with the same weights."""

    # Of the logits and the loss: what one convolution is allowed (see ConvProblem) has to do for all of them.
    documented_error: ClassVar[dict[str, float]] = {"float32": 1e-5}

    def __init__(self, case: ModelCase, device: str, threads: int) -> None:
        self.case, self.device, self.threads = case, device, threads
        self.dtype = getattr(torch, case.dtype)
        ((images, self.labels),) = batches(1, case.n, case.image, device)
        self.images = images.to(self.dtype)
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
            self._reference()

    # ---- reference, in float64 -------------------------------------------------------------------------

    def _reference(self) -> None:
        """float64 logits; for a training step the loss and gradients, and how far a gradient may be from these.

        A gradient jumps where rounding changes the sign of a unit or the winner of a pool, and among a million units
        some are always that close. So gradients are held to what the results of the forward pass are held to, by
        what it does to them: how far (in the worst layer) the float64 gradients themselves move when each weight
        moves by the documented error.
        """
        model = self._model(fused=False).double()
        images = self.images.double()
        if self.case.mode != "train":
            with torch.inference_mode():
                self.expected = [model(images)]
            return
        self.expected = list(_loss_and_gradients(model, images, self.labels))
        seed = torch.Generator(self.device).manual_seed(1)
        moved = self.documented_error[self.case.dtype]
        with torch.no_grad():
            for weight in model.parameters():
                noise = torch.randn(weight.shape, generator=seed, device=weight.device, dtype=weight.dtype)
                weight.mul_(1 + moved * noise)
        elsewhere = _loss_and_gradients(model, images, self.labels)[2:]
        self.gradient_tolerance = max(map(relative_error, elsewhere, self.expected[2:]))

    def error(self, outputs: Sequence[torch.Tensor]) -> float:
        """The larger of ``||out - reference|| / ||reference||`` of logits and, in a training step, of the loss.

        Raises:
            Wrong: a wrong number of outputs, a wrong shape, NaN, or a weight's gradient further from the reference
                than rounding explains.
        """
        if len(outputs) != len(self.expected):
            raise Wrong(f"{len(outputs)} outputs, expected {len(self.expected)}")
        errors = list(map(relative_error, outputs, self.expected))
        if self.case.mode != "train":
            return errors[0]
        worst = max(errors[2:])
        if worst > self.gradient_tolerance:
            number = errors[2:].index(worst) + 1
            allowed = self.gradient_tolerance
            raise Wrong(f"gradient of weight {number}: error {worst:.2g}, allowed {allowed:.2g}")
        return max(errors[:2])

    # ---- contestants -----------------------------------------------------------------------------------

    def contestants(self) -> list[Contestant]:
        """Ours first, then the competitors. A network of linear layers alone has no channels_last form."""
        layouts = (False,) if self._all_linear() else (False, True)
        found = [self._torch("ours", cl=cl, ours=True) for cl in layouts]
        found += [self._torch("eager", cl=cl) for cl in layouts]
        found += [self._torch("compile", cl=cl, compile_it=True) for cl in layouts]
        if self.device == "cpu" and self.case.mode == "forward":
            found += [
                Contestant("onnxruntime", self._onnx_runtime, outputs=engines.onnx_outputs),
                Contestant("openvino", self._openvino, outputs=engines.openvino_outputs),
            ]
        return found

    def _all_linear(self) -> bool:
        row = ARCHITECTURES[self.case.model]
        return isinstance(row, Architecture) and all(isinstance(block, Linear) for block in row.blocks)

    def _model(self, *, fused: bool) -> nn.Sequential:
        return new_model(self.case.model, fused=fused).to(device=self.device, dtype=self.dtype)

    def _torch(self, form: str, *, cl: bool, ours: bool = False, compile_it: bool = False) -> Contestant:
        def make() -> Callable[[], Any]:
            layout = torch.channels_last if cl else torch.contiguous_format
            model = self._model(fused=ours).to(memory_format=layout)  # type: ignore[call-overload]
            images = self.images.contiguous(memory_format=layout)
            function = with_loss(model) if self.case.mode == "train" else logits_of(model)
            if compile_it:
                function = engines.compiled(function, self.device)
            function = engines.per_call(function, self.device)
            if self.case.mode == "train":
                return TrainingStep(model, training_step(function, model), images, self.labels)
            return Inference(model, function, images)

        return Contestant(f"{form} CL" if cl else form, make, ours=ours)

    def _onnx_runtime(self) -> Callable[[], Any]:
        engines.numpy_dtype(self.case.dtype)
        return engines.onnx_runtime(self._onnx_model, {"x": self.images}, self.threads)

    def _openvino(self) -> Callable[[], Any]:
        engines.numpy_dtype(self.case.dtype)
        return engines.openvino_of_onnx(self._onnx_model, {"x": self.images}, self.threads)

    def _onnx_model(self) -> bytes:
        nodes, constants = nodes_of(self._model(fused=False), "x")
        return engines.onnx_model(nodes, {"x": self.images}, constants)


def new_model(name: str, *, fused: bool) -> nn.Sequential:
    """The row's network for its own images, initialised. Layers that begin at 0 (Fixup's last ones) are drawn here:
    with them no gradient would pass, and no mistake would show."""
    row = ARCHITECTURES[name]
    model = build(row, row.image, CLASSES, fused=fused)
    seed = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1 and not weight.any():
                weight.copy_(0.1 * torch.randn(weight.shape, generator=seed) / weight[0].numel() ** 0.5)
    return model


class Inference:
    """``() -> logits`` [n, classes]."""

    def __init__(self, model: nn.Module, function: Callable, images: torch.Tensor) -> None:
        self.model, self.function, self.images = model, function, images

    @torch.inference_mode()
    def __call__(self) -> torch.Tensor:
        return self.function(self.images)

    def kernels(self) -> list[str]:
        """Those of the fused layers, each once."""
        return _distinct(layer_kernels(self.model, self))


class TrainingStep:
    """One step with all that belongs to it: ``() -> (loss, logits, gradient of each weight)``."""

    def __init__(self, model: nn.Module, step: Step, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.model, self.step, self.images, self.labels = model, step, images, labels
        self.weights = list(model.parameters())

    def __call__(self) -> tuple[torch.Tensor | None, ...]:
        return (*self.step(self.images, self.labels), *(weight.grad for weight in self.weights))

    def kernels(self) -> list[str]:
        """Those of the fused layers forward and backward, each once."""
        return _distinct(layer_kernels(self.model, self))


def training_step(
    function: Step,
    model: nn.Module,
    *,
    learning_rate: float = LEARNING_RATE,
    autocast: torch.dtype | None = None,
) -> Step:
    """``step(images, labels) -> (loss, logits)``, both of before the update: forward, cross-entropy, backward, SGD.

    Args:
        function: :func:`with_loss` of the model, or a compiled form of it.
        autocast: the forward pass runs under torch's autocast to this dtype.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    device = next(model.parameters()).device.type

    def step(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        with torch.autocast(device, autocast, enabled=autocast is not None):
            loss, logits = function(images, labels)
        loss.backward()
        optimizer.step()
        return loss.detach(), logits.detach()

    return step


def logits_of(model: nn.Module) -> Callable:
    """The model as a plain function of the images."""

    def function(images: torch.Tensor) -> torch.Tensor:
        return model(images)

    return function


def with_loss(model: nn.Module) -> Step:
    """``(images, labels) -> (cross-entropy, logits)``: all of a forward pass, for a compiler to see as one."""

    def function(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = model(images)
        return F.cross_entropy(logits, labels), logits

    return function


def batches(
    count: int, batch: int, image: tuple[int, int, int], device: str
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(images [batch, *image] float32, labels [batch]) made on the spot: a fixed pattern for each class, in noise."""
    seed = torch.Generator().manual_seed(0)
    patterns = torch.randn(CLASSES, *image, generator=seed)
    made = []
    for _ in range(count):
        labels = torch.randint(0, CLASSES, (batch,), generator=seed)
        images = patterns[labels] + torch.randn(batch, *image, generator=seed)
        made.append((images.to(device), labels.to(device)))
    return made


def _loss_and_gradients(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    with torch.enable_grad():
        loss, logits = with_loss(model)(images, labels)
        return (loss.detach(), logits.detach(), *torch.autograd.grad(loss, list(model.parameters())))


def _distinct(kernels: dict[str, list[str]]) -> list[str]:
    return list(dict.fromkeys(name for ran in kernels.values() for name in ran))
