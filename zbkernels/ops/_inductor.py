"""Inductor calls the ops as they are, though torch's table has a decomposition of them for the ONNX exporter.

It would by itself, too, but for the environment variable ``CI``, which many build servers set: with it inductor takes
an op that has a decomposition and no lowering for an oversight of torch's own developers, and fails. So each gets its
lowering, a call of the op, as soon as inductor is imported; importing it for that would take seconds.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

import torch

_LOWERING = "torch._inductor.lowering"


def keep_whole(ops: Sequence[torch._ops.OpOverload]) -> None:
    """Have inductor call ``ops``, from its import on."""
    if _LOWERING in sys.modules:
        _lower(sys.modules[_LOWERING], ops)
    else:
        sys.meta_path.insert(0, _OnImport(ops))


def _lower(lowering: ModuleType, ops: Sequence[torch._ops.OpOverload]) -> None:
    # None of these names is public. Where a torch has them no more, inductor decides by itself, as it did before.
    with contextlib.suppress(Exception):
        for op in ops:
            if op not in lowering.lowerings:
                tag = lowering.get_layout_constraint_tag(op, with_default=True)
                lowering.make_fallback(op, lowering.tag_to_layout_constraint(tag), warn=False)


class _OnImport(MetaPathFinder):
    """Finds nothing itself: it waits for inductor's lowerings, and is gone after them."""

    def __init__(self, ops: Sequence[torch._ops.OpOverload]) -> None:
        self.ops = ops

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name != _LOWERING:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_lower(module: ModuleType) -> None:
                load(module)
                with contextlib.suppress(ValueError):  # a second thread's import, or a reload
                    sys.meta_path.remove(self)
                _lower(module, self.ops)

            spec.loader.exec_module = load_and_lower  # type: ignore[method-assign]
        return spec
