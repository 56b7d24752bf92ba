"""Runs every op's own ``samples()`` on one backend against the reference in float64; needs torch alone.

The finite inputs are rounded to small integers first. Every sum is then exact in float32, whatever its order,
so that signature bits, winners and gradients have one right answer and are compared exactly, while NaN,
infinities and the odd strides of the samples stay as they are. What half precision, averages and slopes round
is compared within a few roundings of the largest value.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

import zbkernels as zb
from gpu import touch
from gpu.rows import Skip, Task, options, run_tasks
from zbkernels.ops._op import OPS, Op, Sample

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def whole_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its finite values rounded to integers in [-4, 4]; strides and offset are kept."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return tensor
    base = torch.empty_strided(
        (tensor.untyped_storage().nbytes() // tensor.element_size(),),
        (1,),
        dtype=tensor.dtype,
        device=tensor.device,
    )
    base.set_(tensor.untyped_storage(), 0, (base.numel(),), (1,))
    values = torch.where(base.isfinite(), (base * 2).round().clamp(-4, 4), base)
    return values.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def rounded(value: Any) -> Any:
    """A tensor in whole numbers; anything else as it is."""
    return whole_numbers(value) if isinstance(value, torch.Tensor) else value


def as_double(value: Any) -> Any:
    """A tensor on the CPU in float64; anything else as it is."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return value.double() if value.is_floating_point() else value
    return value


def call(op: Op, given: Sequence[Any], grads: Sequence[Any] | None) -> list[torch.Tensor]:
    """Outputs of the public op and, with ``grads``, the gradients of the differentiable ones. ``given``: the arguments,
    those by name in a dict at the end."""
    assert op.public is not None
    differentiable = grads is not None
    leaves = [
        a.detach().requires_grad_()
        if differentiable and isinstance(a, torch.Tensor) and a.is_floating_point()
        else a
        for a in (*given[:-1], *given[-1].values())
    ]
    places = len(given) - 1
    outputs = op.public(*leaves[:places], **dict(zip(given[-1], leaves[places:], strict=True)))
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    if not differentiable:
        return outputs
    floating = [out for out in outputs if out.requires_grad]
    if not floating:
        return outputs
    wanted = [a for a in leaves if isinstance(a, torch.Tensor) and a.requires_grad]
    found = torch.autograd.grad(floating, wanted, list(grads or [])[: len(floating)], allow_unused=True)
    return [out.detach() for out in outputs] + [g for g in found if g is not None]


def tolerance(op: Op, dtype: torch.dtype) -> float:
    """Of the largest value: a few roundings; the root of one where angles between inputs, or a linear system, are such
    that rounding of the products is worth that much."""
    eps = torch.finfo(dtype).eps
    return eps**0.5 if op.name.startswith("dual_") else 16 * eps


def compare(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype, allowed: float) -> str:
    """ "" where ``got`` is ``want`` but for ``allowed`` of the largest value (see the module's docstring), else how it
    differs."""
    got = got.detach().cpu()
    if got.shape != want.shape:
        return f"shape {list(got.shape)}, expected {list(want.shape)}"
    if not want.is_floating_point():
        wrong = int((got != want).sum())
        return f"{wrong} of {want.numel()} values differ" if wrong else ""
    if got.dtype != dtype:
        return f"dtype {got.dtype}, expected {dtype}"
    want = want.to(dtype).double()  # beyond a half's range the right result is inf
    finite = want[want.isfinite()]
    scale = float(finite.abs().amax()) if finite.numel() else 0.0
    near = torch.isclose(got.double(), want, rtol=0.0, atol=allowed * scale, equal_nan=True)
    return "" if bool(near.all()) else f"{int((~near).sum())} of {want.numel()} values differ"


def check(op: Op, sample: Sample, dtype: torch.dtype, backend: str) -> str:
    """ "" where the backend's outputs and gradients are the reference's, else what differs.

    Raises:
        NotImplementedError: the backend says that it cannot run this call.
    """
    given = [*map(rounded, sample.args), {name: rounded(value) for name, value in sample.kwargs.items()}]
    reference = [*map(as_double, given[:-1]), {name: as_double(value) for name, value in given[-1].items()}]
    with zb.use_backend("reference"):
        plain = call(op, reference, None)
        seed = torch.Generator().manual_seed(1)
        grads = [
            torch.randint(-2, 3, out.shape, generator=seed).double()
            for out in plain
            if out.is_floating_point()
        ]
        differentiable = bool(grads) and dtype in (torch.float32, torch.float64)
        want = call(op, reference, grads if differentiable else None)
    device = next(a.device for a in given if isinstance(a, torch.Tensor))
    verdict = zb.explain(op.name, *given[:-1], **given[-1]).verdicts.get(backend, "no such kernel")
    if verdict not in ("chosen", "can run, but a kernel above comes first"):
        raise NotImplementedError(verdict)
    with zb.use_backend(backend):
        moved = [g.to(device, dtype) for g in grads] if differentiable else None
        got = call(op, given, moved)
    if len(got) != len(want):
        return f"{len(got)} results, expected {len(want)}"
    faults = []
    for number, (ours, right) in enumerate(zip(got, want, strict=True)):
        if number >= len(plain) and ours.shape == right.shape:
            # A zero gradient that meets an infinity is NaN in a dense sum and left out of a sparse one.
            defined = right.isfinite()
            ours, right = ours.cpu()[defined], right[defined]
        faults.append(compare(ours, right, dtype, tolerance(op, dtype)))
    return "; ".join(filter(None, faults))


def dtypes_of(op: Op) -> tuple[torch.dtype, ...]:
    """Those of DTYPES that its samples can be of; one of them where the dtype is not asked for (signatures)."""
    return tuple(dtype for dtype in DTYPES if dtype in op.dtypes) or DTYPES[:1]


def tasks(device: str, backend: str, few: bool = False, seconds: float = 600.0) -> list[Task]:
    """A row for each dtype and op, dtypes outermost, so that a run cut off has seen all ops."""
    end = time.monotonic() + seconds
    ready = [Task("ready", functools.partial(touch.ready, device))] if few else []
    rows = [
        (dtype, op)
        for dtype in (DTYPES[:2] if few else DTYPES)
        for op in OPS.values()
        if op.public is not None and dtype in dtypes_of(op)
    ]

    def row(number: int) -> tuple[str, dict[str, Any]]:
        dtype, op = rows[number]
        now = time.monotonic()
        share = (end - now) / (len(rows) - number)  # what quick rows leave goes to those after them
        return all_samples(op, dtype, device, backend, few, now + share)

    return ready + [
        Task(f"{op.name} {str(dtype).removeprefix('torch.')}", functools.partial(row, number), 60.0)
        for number, (dtype, op) in enumerate(rows)
    ]


def all_samples(
    op: Op, dtype: torch.dtype, device: str, backend: str, few: bool, until: float = math.inf
) -> tuple[str, dict[str, Any]]:
    """Check every sample of an op in one dtype (of ``few``, the first four), or those that begin in time.

    Raises:
        AssertionError: one differs; every one that does is named.
        Skip: the backend declined all of them.
    """
    passed = late = 0
    declined: list[str] = []
    failed: list[str] = []
    kernels: set[str] = set()
    for sample in itertools.islice(op.samples(device, dtype), 4 if few else None):
        if time.monotonic() > until and (passed or failed):
            late += 1
            continue
        try:
            fault = check(op, sample, dtype, backend)
            if device.startswith("cuda"):
                torch.cuda.synchronize()
        except NotImplementedError as reason:
            declined.append(f"{sample.label}: {reason}")
            continue
        except torch.AcceleratorError:  # the card is lost to this process
            raise
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        kernels.add(zb.last_kernel())  # of the forward pass, where a card's backward has a thread of its own
        passed += not fault
        failed += [f"{sample.label}: {fault}"] if fault else []
    assert not failed, f"{len(failed)} samples differ: " + "; ".join(failed)
    if not passed:
        raise Skip(declined[0] if declined else "no samples")
    note = f"{passed} samples" + (f", {len(declined)} declined" if declined else "")
    note += f", {late} not reached in time" if late else ""
    return note, {"kernels": sorted(kernels - {"reference"}), "declined": declined}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = options(__doc__.splitlines()[0])
    made.add_argument("--backend", default="cuda", choices=["cuda", "triton", "cpu", "reference"])
    made.add_argument("--few", action="store_true", help="four float32 and float16 samples an op")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    chosen = parser().parse_args(arguments)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    zb.set_conv_precision("highest")  # direct sums: exact on whole numbers
    return run_tasks(tasks(chosen.device, chosen.backend, chosen.few, chosen.seconds), chosen)


def rehearse() -> str:
    """A few samples of every op and dtype on a CPU, by its kernels where they are built."""
    before = zb.get_conv_precision()
    zb.set_conv_precision("highest")
    try:
        for op in OPS.values():
            for dtype in dtypes_of(op) if op.public is not None else ():
                first = next(iter(op.samples("cpu", dtype)))
                backend = zb.explain(op.name, *first.args, **first.kwargs).chosen
                all_samples(op, dtype, "cpu", backend, True)
    finally:
        zb.set_conv_precision(before)
    return f"four samples of each op and dtype; {len(tasks('cpu', 'cuda'))} rows"


if __name__ == "__main__":
    sys.exit(main())
