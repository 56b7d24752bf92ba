"""Calls in torch's older ONNX exporter, ``torch.onnx.export(…, dynamo=False)``: it traces, and knows no op of ours.

The public functions then run torch's own operations, as :mod:`zbkernels.ops._decompositions` has them for the newer
exporter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def active() -> bool:
    """Whether the call becomes part of an ONNX graph by being traced."""
    return torch.jit.is_tracing() and torch.onnx.is_in_onnx_export()


@contextmanager
def paused() -> Iterator[None]:
    """Sizes are numbers in here and nothing is recorded: while torch traces they are tensors, which checks of sizes
    would bake into the graph, each with a warning."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]
