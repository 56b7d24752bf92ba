"""What a network's fused layers ran."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from zbkernels.nn import ConvReLUPool2d, LinearReLU
from zbkernels.ops._backend import last_kernel, note_kernel


def layer_kernels(model: nn.Module, call: Callable[[], object]) -> dict[str, list[str]]:
    """The kernels of each fused layer of ``model`` in ``call()``, which must run the model itself: layer name ->
    the forward's kernel, then the backward's where ``call`` goes back.

    Kernels are remembered by thread, and a card's backward runs in a thread of autograd's own: hooks look there,
    before a layer's backward (to forget an older one's kernel) and after it. They are on the op's own node: a weight
    may be computed (parametrized, pruned) or not be trained.
    """
    ran: dict[str, list[str]] = {}
    hooks = []
    for name, layer in model.named_modules():
        if not isinstance(layer, ConvReLUPool2d | LinearReLU):
            continue

        def forward_done(_: nn.Module, __: object, y: torch.Tensor, name: str = name) -> None:
            ran[name] = [last_kernel()]
            if y.grad_fn is not None:
                y.grad_fn.register_prehook(lambda _: note_kernel("torch"))
                y.grad_fn.register_hook(lambda *_: ran[name].append(last_kernel()))

        hooks.append(layer.register_forward_hook(forward_done))
    try:
        call()
    finally:
        for hook in hooks:
            hook.remove()
    return ran
