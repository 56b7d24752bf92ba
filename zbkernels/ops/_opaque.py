"""Ops that run one backend by name: what torch.compile sees of a forced backend.

A kernel that is not registered with the dispatcher is a Python function. Traced, it would have Dynamo walk through
Triton's launcher; as an op it stands in the graph as one node. These have no place in ``OPS``: they are no part of the
contract, C++ does not define them, and gradients are those of the autograd functions around them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from zbkernels.ops._op import OPS, Kernel, define


def opaque_kernels(
    op: str,
    kernels: Sequence[Kernel],
    schema: str,
    fake: Callable[..., Any],
    *,
    run: Callable[[Any], Callable[..., Any]] = lambda run: run,
    can_run_args: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]] = lambda *args, **kwargs: (
        args,
        kwargs,
    ),
) -> dict[str, Callable[..., Any]]:
    """For each kernel outside the dispatcher its ``run``, or the part of it that the argument ``run`` takes, as an op.

    Args:
        op: whose kernels these are; the op defined is ``_<name of schema>_on``.
        schema: what ``run`` takes and returns; the backend's name comes before it.
        fake: shapes of its results, as for ``register``.
        can_run_args: from its arguments to those of ``can_run``.
    """
    name, _, rest = schema.partition("(")
    qualified = f"{name if name.startswith('_') else '_' + name}_on"

    def call(backend: str, *args: Any, **kwargs: Any) -> Any:
        from zbkernels.ops._backend import kernel_named

        positional, by_name = can_run_args(*args, **kwargs)
        return run(kernel_named(OPS[op], backend, *positional, **by_name).run)(*args, **kwargs)

    define(f"{qualified}(str backend, {rest}", call, lambda backend, *args, **kwargs: fake(*args, **kwargs))
    overload = getattr(torch.ops.zb, qualified).default

    def on(backend: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: overload(backend, *args, **kwargs)

    return {kernel.name: on(kernel.name) for kernel in kernels if not kernel.registered}
