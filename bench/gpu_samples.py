"""Runs every op's own ``samples()`` on one backend against the reference in float64; needs torch alone.

The finite inputs are rounded to small integers first. Every sum is then exact in float32, whatever its order,
so that signature bits, winners and gradients have one right answer and are compared exactly, while NaN,
infinities and the odd strides of the samples stay as they are. What half precision, averages and slopes round
is compared within a few roundings of the largest value.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import zbkernels as zb
from zbkernels.ops._op import OPS, Op, Sample

MARK = "GPU-CHECK-RESULT "
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


def as_double(value: Any) -> Any:
    """A tensor on the CPU in float64; anything else as it is."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return value.double() if value.is_floating_point() else value
    return value


def call(op: Op, sample: Sample, args: Sequence[Any], grads: Sequence[Any] | None) -> list[torch.Tensor]:
    """Outputs of the public op and, with ``grads``, the gradients of the differentiable ones."""
    assert op.public is not None
    differentiable = grads is not None
    leaves = [
        a.detach().requires_grad_()
        if differentiable and isinstance(a, torch.Tensor) and a.is_floating_point()
        else a
        for a in args
    ]
    outputs = op.public(*leaves, **sample.kwargs)
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    if not differentiable:
        return outputs
    floating = [out for out in outputs if out.requires_grad]
    if not floating:
        return outputs
    wanted = [a for a in leaves if isinstance(a, torch.Tensor) and a.requires_grad]
    found = torch.autograd.grad(floating, wanted, list(grads or [])[: len(floating)], allow_unused=True)
    return [out.detach() for out in outputs] + [g for g in found if g is not None]


def compare(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> str:
    """ "" where ``got`` is ``want`` (see the module's docstring), else how it differs."""
    got = got.detach().cpu()
    if got.shape != want.shape:
        return f"shape {list(got.shape)}, expected {list(want.shape)}"
    if not want.is_floating_point():
        wrong = int((got != want).sum())
        return f"{wrong} of {want.numel()} values differ" if wrong else ""
    if got.dtype != dtype:
        return f"dtype {got.dtype}, expected {dtype}"
    eps = torch.finfo(dtype).eps
    want = want.to(dtype).double()  # beyond a half's range the right result is inf
    finite = want[want.isfinite()]
    scale = float(finite.abs().amax()) if finite.numel() else 0.0
    near = torch.isclose(got.double(), want, rtol=0.0, atol=16 * eps * scale, equal_nan=True)
    return "" if bool(near.all()) else f"{int((~near).sum())} of {want.numel()} values differ"


def cases(device: str, few: bool) -> Iterator[tuple[Op, torch.dtype, Sample]]:
    """Every op's samples in every dtype, dtypes outermost, so that a run cut off has seen all ops."""
    for dtype in DTYPES[:1] if few else DTYPES:
        for op in OPS.values():
            if op.public is None:
                continue
            for index, sample in enumerate(op.samples(device, dtype)):
                if few and index >= 4:
                    break
                yield op, dtype, sample


def check(op: Op, sample: Sample, dtype: torch.dtype, backend: str) -> str:
    """ "" where the backend's outputs and gradients are the reference's, else what differs.

    Raises:
        NotImplementedError: the backend says that it cannot run this call.
    """
    args = [whole_numbers(a) if isinstance(a, torch.Tensor) else a for a in sample.args]
    reference_args = [as_double(a) for a in args]
    with zb.use_backend("reference"):
        plain = call(op, sample, reference_args, None)
        seed = torch.Generator().manual_seed(1)
        grads = [
            torch.randint(-2, 3, out.shape, generator=seed).double()
            for out in plain
            if out.is_floating_point()
        ]
        differentiable = bool(grads) and dtype in (torch.float32, torch.float64)
        want = call(op, sample, reference_args, grads if differentiable else None)
    device = next(a.device for a in args if isinstance(a, torch.Tensor))
    verdict = zb.explain(op.name, *args, **sample.kwargs).verdicts.get(backend, "no such kernel")
    if verdict not in ("chosen", "can run, but a kernel above comes first"):
        raise NotImplementedError(verdict)
    with zb.use_backend(backend):
        moved = [g.to(device, dtype) for g in grads] if differentiable else None
        got = call(op, sample, args, moved)
    if len(got) != len(want):
        return f"{len(got)} results, expected {len(want)}"
    faults = [fault for g, w in zip(got, want, strict=True) if (fault := compare(g, w, dtype))]
    return "; ".join(faults)


def run(device: str, backend: str, seconds: float, few: bool) -> dict[str, Any]:
    """Check until all is done or the time is over: what passed, failed, was declined, was not reached."""
    end = time.monotonic() + seconds
    passed: dict[str, int] = {}
    declined: dict[str, int] = {}
    failed: list[str] = []
    left = 0
    for op, dtype, sample in cases(device, few):
        if time.monotonic() > end:
            left += 1
            continue
        title = f"{op.name} {str(dtype).removeprefix('torch.')} {sample.label}"
        try:
            fault = check(op, sample, dtype, backend)
            if device.startswith("cuda"):
                torch.cuda.synchronize()
        except NotImplementedError as reason:
            declined[f"{op.name}: {reason}"] = declined.get(f"{op.name}: {reason}", 0) + 1
            continue
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        if fault:
            failed.append(f"{title}: {fault}")
            print(f"FAILED {title}: {fault}", flush=True)
        else:
            passed[op.name] = passed.get(op.name, 0) + 1
    summary = f"{sum(passed.values())} samples passed, {len(failed)} failed"
    if declined:
        summary += f", {sum(declined.values())} declined"
    if left:
        summary += f", {left} not reached in time"
    return {"summary": summary, "passed": passed, "failed": failed, "declined": declined, "not_reached": left}


def load(device: str) -> dict[str, Any]:
    """State of the libraries, and which kernel each op would take on the device and took."""
    from zbkernels import _loader

    libraries = {
        name: {"loaded": state.loaded, "reason": state.reason, "build": state.build}
        for name, state in _loader.libraries().items()
    }
    for name, state in libraries.items():
        print(f"{name}: {'loaded' if state['loaded'] else state['reason']}")
    kernels = {}
    for op in OPS.values():
        if op.public is None:
            continue
        sample = next(iter(op.samples(device, torch.float32)))
        op.public(*sample.args, **sample.kwargs)
        kernels[op.name] = {
            "took": zb.last_kernel(),
            **zb.explain(op.name, *sample.args, **sample.kwargs).verdicts,
        }
        print(f"{op.name}: {kernels[op.name]['took']}")
    names = ", ".join(name for name, state in libraries.items() if state["loaded"])
    return {"summary": f"loaded {names or 'nothing'}", "libraries": libraries, "kernels": kernels}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 where nothing failed and something passed."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--device", default="cuda")
    options.add_argument("--backend", default="cuda", choices=["cuda", "triton", "cpu", "reference"])
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--few", action="store_true", help="four float32 samples an op")
    options.add_argument("--load", action="store_true", help="only say what is loaded")
    chosen = options.parse_args(arguments)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if chosen.load:
        result = load(chosen.device)
        library = "_C_cuda" if chosen.device.startswith("cuda") else "_C_cpu"
        good = result["libraries"][library]["loaded"]
    else:
        result = run(chosen.device, chosen.backend, chosen.seconds, chosen.few)
        good = not result["failed"] and bool(result["passed"])
    print(MARK + json.dumps(result), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
