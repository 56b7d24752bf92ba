"""What the ops on the kernels of infinitely wide networks share: their options, and which kernels take which."""

from __future__ import annotations

from typing import Any

import torch

from zbkernels.infinite import activations, kernels
from zbkernels.ops import _backend
from zbkernels.ops._op import Kernel, transforms_active

KINDS = ("nngp", "ntk")
DEFAULTS = {
    "kernel": "nngp",
    "activation": "relu",
    "depth": 1,
    "w_std": 2**0.5,
    "b_std": 0.0,
    "train": "all",
}
NAMES = tuple(DEFAULTS)
OPTIONS_SCHEMA_TYPES = "str kernel, str activation, int depth, float w_std, float b_std, str train"


def by_name(rest: tuple[Any, ...]) -> dict[str, Any]:
    """The options by their names, of those in their order."""
    return dict(zip(NAMES, rest, strict=True))


def in_order(options: dict[str, Any]) -> tuple[Any, ...]:
    """All options in their order, of those that a call named."""
    return tuple({**DEFAULTS, **options}.values())


def check_options(
    op: str,
    x1: Any,
    x2: Any,
    *,
    kernel: Any = "nngp",
    activation: Any = "relu",
    depth: Any = 1,
    w_std: Any = 2**0.5,
    b_std: Any = 0.0,
    train: Any = "all",
) -> None:
    """Raises TypeError or ValueError, in the name of ``op``."""
    kernels.check_inputs(op, x1, x2)
    if kernel not in KINDS:
        raise ValueError(f"{op}: expected kernel to be 'nngp' or 'ntk', got {kernel!r}")
    if not isinstance(activation, str):
        raise TypeError(
            f"{op}: expected activation to be a name (callables: zbkernels.infinite), got {activation!r}"
        )
    activations.named(activation, op)
    kernels.check_network(op, depth, w_std, b_std, train)
    if kernel == "nngp" and train != "all":
        raise ValueError(f"{op}: expected train='all' for kernel='nngp', which trains nothing, got {train!r}")


def same_tensor(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether both are one piece of memory, seen the same way; then the matrix is symmetric."""
    if a is b:
        return True
    if a.shape != b.shape or a.stride() != b.stride() or a.is_neg() != b.is_neg():
        return False
    return a.numel() > 0 and a.data_ptr() == b.data_ptr()


def no_compiled_form(activation: str) -> str | None:
    """None where the compiled kernels know the activation, else why they don't."""
    if activations.named(activation).form is not None:
        return None
    return f"activation {activation!r} has no closed form, and compiled kernels take those that have one"


def seen_through(activation: str, *tensors: torch.Tensor) -> bool:
    """Whether torch.func wants to see into an activation without a closed form.

    Its expectations are autograd functions, which torch.func knows outside of an op alone.
    """
    if torch.compiler.is_compiling() or not transforms_active(*tensors):
        return False
    return activations.named(activation).form is None


def library_kernel(device: str, op: str) -> Kernel:
    """The compiled kernel for ``device``; ``can_run`` takes x1, x2, what ``op`` has besides, and the options."""
    library = _backend.library_kernel(device, op)

    def can_run(x1: Any, x2: Any, *rest: Any, **options: Any) -> str | None:
        reason = library.can_run(x1)
        if reason is not None:
            return reason
        activation = options.get("activation", rest[-5] if len(rest) >= len(NAMES) else "relu")
        return no_compiled_form(activation)

    return Kernel(device, can_run, registered=True)
