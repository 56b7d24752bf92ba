"""The calls that are tuned: the rows of the bench suite, or shapes in words, on the Triton backend."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zbkernels.benchmarking.cases import ITEM_SIZE, Case, ConvCase, select
from zbkernels.benchmarking.shapes import cases_of

OPS = (
    "conv_relu_pool2d",
    "conv_relu_pool2d_nap",
    "linear_relu",
    "linear_relu_nap",
    "nap_pack",
    "nap_unpack",
    "nap_hash",
    "nap_hamming",
    "nap_topk",
    "nap_group",
    "nap_frequency",
)
DTYPES = ("float32", "float16", "bfloat16")  # of a shape in words, where no dtype is asked for


@dataclass(frozen=True)
class Prepared:
    """A call with its inputs made. ``error`` of a result raises ``Wrong`` or says how far off it is."""

    call: Callable[[], Any]
    error: Callable[[Any], float]
    documented: float = 0.0  # the error that the op's contract allows


@dataclass(frozen=True)
class Workload:
    """One call of a public op; making its inputs and its reference is left until it is its turn."""

    op: str
    name: str
    prepare: Callable[[], Prepared]


def workloads(
    ops: Sequence[str] = (), shapes: Sequence[str] = (), dtypes: Sequence[str] = (), device: str = "cuda"
) -> list[Workload]:
    """The calls to tune: convolutions in both memory formats, products of float32 on a card with TF32 as well.

    Args:
        ops: public ops; empty for all.
        shapes: "suite" for every row of the bench suite, names of its rows, or shapes in words as the bench prints
            them; empty for "suite".
        dtypes: empty for those of the suite's rows, or for :data:`DTYPES` of a shape in words.

    Raises:
        ValueError: an unknown op, shape or dtype, or nothing is left to tune.
    """
    for what, given, known in (("op", ops, OPS), ("dtype", dtypes, tuple(ITEM_SIZE))):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(f"unknown {what} {', '.join(unknown)}; there are {', '.join(known)}")
    cases: dict[Case, None] = {}
    for text in shapes or ("suite",):
        cases |= dict.fromkeys(_cases(text, dtypes, device))
    chosen = [case for case in cases if case.op in (ops or OPS)]
    if not chosen:
        asked = [f"shape {', '.join(shapes)}"] if shapes else []
        asked += [f"dtype {', '.join(dtypes)}"] if dtypes else []
        raise ValueError(f"no call of {', '.join(ops) or 'any op'} has {' and '.join(asked)}")
    return [workload for case in chosen for workload in _of(case, device)]


def _cases(text: str, dtypes: Sequence[str], device: str) -> list[Case]:
    if " -> " in text or " of " in text or text.replace("x", "").isdigit():
        return [case for dtype in dtypes or DTYPES for case in cases_of(text, dtype)]
    known = select(device=device)
    if text != "suite":
        names = [name.strip() for name in text.split(",")]
        unknown = [name for name in names if name not in {case.name for case in known}]
        if unknown:
            raise ValueError(
                f"unknown shape {', '.join(unknown)}: expected suite, a row of `zb bench`, or a shape such as "
                "'128x64x32x32 -> 128, 3x3 pad 1, max 2'"
            )
        known = [case for case in known if case.name in names]
    return [case for case in known if not dtypes or case.dtype in dtypes]


def _of(case: Case, device: str) -> Iterator[Workload]:
    name = f"{case.suite} {case.mode} {case.name} {case.dtype}"
    # channels_last first: the form that the competitors are fastest in
    layouts: dict[str, dict[str, bool]] = {"": {}}
    if isinstance(case, ConvCase):
        layouts = {" channels_last": {"cl": True}, " contiguous": {"cl": False}}
    # Ops with signatures never use TF32, and the CPU has none.
    follows = case.dtype == "float32" and case.flops and case.mode != "nap" and device.startswith("cuda")
    for tf32 in (False, True) if follows else (False,):
        for layout, options in layouts.items():
            prepare = functools.partial(_prepare, case, device, tf32=tf32, **options)
            yield Workload(case.op, name + layout + (" tf32" if tf32 else ""), prepare)


def _prepare(case: Case, device: str, *, tf32: bool, **layout: bool) -> Prepared:
    from zbkernels.benchmarking.runner import problem_of

    problem = problem_of(case, device, 0)
    contestant = problem.backend("triton", **layout)
    call = contestant.build()
    return Prepared(
        _with_tf32(call) if tf32 else call,
        lambda result: problem.error(contestant.outputs(result)),
        problem.documented_error.get(case.dtype, 0.0),
    )


def _with_tf32(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call with torch's switches on; the bench, and what surrounds a tuner, has them off."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul

    def allowed() -> Any:
        before = cudnn.allow_tf32, matmul.allow_tf32
        cudnn.allow_tf32 = matmul.allow_tf32 = True
        try:
            return call()
        finally:
            cudnn.allow_tf32, matmul.allow_tf32 = before

    return allowed
