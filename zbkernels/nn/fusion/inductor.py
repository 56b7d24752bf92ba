"""The same chains in graphs that torch.compile made, found by a pass of its own before gradients are taken."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass

from zbkernels.nn.fusion import gains
from zbkernels.nn.fusion.chains import CONV, Chain, NotFused, find, put_in
from zbkernels.ops._geometry import Geometry, pair

_FILES = ("inductor.py", "chains.py", "passing.py", "gains.py")


class FusePass(CustomGraphPass):
    """Inductor's ``pre_grad_custom_pass``: one op for each chain, and then whatever pass was there before."""

    def __init__(self, before: Any, take: Callable[[Chain], gains.Choice]) -> None:
        self.before, self.take = before, take
        self.fused = 0  # chains, in all graphs

    def __call__(self, graph: fx.Graph) -> None:
        for each in self.before if isinstance(self.before, (list, tuple)) else [self.before]:
            if each is not None:
                each(graph)
        root = graph.owning_module
        for _, chain in list(find(nn.Module() if root is None else root, graph)):
            if isinstance(chain, Chain) and self.take(chain).take:
                with suppress(NotFused):
                    put_in(graph, chain, *op_and_arguments(chain))
                    self.fused += 1

    def uuid(self) -> Any:
        """Of this code and the pass before it, so that inductor's cache knows whose graphs it holds."""
        before = getattr(self.before, "uuid", None)
        if self.before is not None and before is None:
            return None
        text = b"".join((Path(__file__).parent / name).read_bytes() for name in _FILES)
        return hashlib.sha256(text).hexdigest(), self.take.__name__, before and before()


def op_and_arguments(chain: Chain) -> tuple[Any, dict[str, Any]]:
    """The op itself, and its arguments in the form that its schema has.

    Raises:
        NotFused: padding in words that no numbers stand for on both sides.
    """
    if chain.kind != CONV:
        return torch.ops.zb.linear_relu.default, chain.arguments
    a = dict(chain.arguments)
    if a["padding"] == "valid":
        a["padding"] = 0
    elif isinstance(a["padding"], str):
        shape = chain.weight_shape
        if shape is None or any(size % 2 == 0 for size in shape[2:]):
            raise NotFused(f"padding={a['padding']!r} of an even kernel")
        dilation = pair("conv_relu_pool2d", "dilation", a["dilation"], 1)
        a["padding"] = tuple(step * (size // 2) for step, size in zip(dilation, shape[2:], strict=True))
    return torch.ops.zb.conv_relu_pool2d.default, Geometry.of("conv_relu_pool2d", **a)._asdict()


def enable_inductor_pass(enabled: bool = True, *, when: str = "rule") -> None:
    """As :func:`zbkernels.enable_inductor_pass` says."""
    if not isinstance(enabled, bool):
        raise TypeError(
            f"enable_inductor_pass: expected True or False, got {type(enabled).__name__}: it is for every "
            "graph that is compiled from then on, of any model"
        )
    rules = {"rule": gains.by_rule, "always": gains.always}
    if when not in rules:
        raise ValueError(f"enable_inductor_pass: expected when to be one of {', '.join(rules)}, got {when!r}")
    there = config.pre_grad_custom_pass
    if isinstance(there, FusePass):
        there = there.before
    config.pre_grad_custom_pass = FusePass(there, rules[when]) if enabled else there
