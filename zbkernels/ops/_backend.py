"""Which kernel runs: ``use_backend``, ``explain``, ``last_kernel`` and the switch for convolution precision.

Nothing is forced as a rule; then a card's measured results decide (``_choice.py``), and where there are none the
dispatcher.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import threading
import time
from typing import Any

import torch

from zbkernels import _loader, cards
from zbkernels.ops import _choice, _tf32
from zbkernels.ops._op import COMPILED, OPS, Kernel, Op, below_autograd, transforms_active

BACKENDS = ("auto", "reference", "cpu", "cuda", "triton")
EMULATED = "cuda-emulated"  # for tests: the CUDA kernels on CPU tensors

_wanted = "auto"
_last = threading.local()


class use_backend:
    """Run every following op on one backend; ``"auto"`` goes back to the package's own choice.

    ``zb.use_backend("triton")`` holds for the process until the next call; ``with zb.use_backend("triton"):``
    holds for the block. A call that the backend can't run raises with the reason, so a forced backend never
    falls back in silence. (Tests also have ``"cuda-emulated"``: the CUDA kernels, compiled for the host.)

    Raises:
        ValueError: the name is none of ``auto``, ``reference``, ``cpu``, ``cuda``, ``triton``.
    """

    def __init__(self, name: str) -> None:
        global _wanted
        if name not in (*BACKENDS, EMULATED):
            raise ValueError(f"use_backend: expected one of {', '.join(BACKENDS)}, got {name!r}")
        self._before = _wanted
        _wanted = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        global _wanted
        _wanted = self._before


def choose_kernel(op: Op, x: torch.Tensor, weight: torch.Tensor | None, *rest: Any) -> Kernel | None:
    """The kernel that a public function is to run, or None where ``torch.ops.zb`` dispatches to the right one.

    That is the one ``use_backend`` asks for, else the one measured to be the fastest on this card. ``rest`` can be
    hashed; with x and weight it says everything about the call, and ``op.spread`` makes the kernels' arguments of it.
    What looks at the op itself (torch.compile, a transform, a mode) sees the op, hence the dispatcher's kernel; and
    "highest" precision keeps to it, since one order of sums for every batch is what that promises.

    Raises:
        RuntimeError: the asked backend can't run this call.
    """
    if _wanted != "auto":
        if _wanted in op.opaque and (torch.compiler.is_dynamo_compiling() or _choice.traced(x, weight)):
            return Kernel(_wanted, _can_run, op.opaque[_wanted])  # asked when it runs
        args, kwargs = op.spread(x, weight, *rest)
        return forced_kernel(op, *args, **kwargs)
    if torch.compiler.is_dynamo_compiling():
        return None
    table = _choice.table_of(x.device)
    if table is None or _precision == "highest" or _choice.looked_at(x, weight):
        return None
    return table.kernel(op, x, weight, rest)


def chooses_freely() -> bool:
    """Whether no backend is asked for."""
    return _wanted == "auto"


def forced_kernel(op: Op, *args: Any, **kwargs: Any) -> Kernel | None:
    """The kernel that ``use_backend`` asks for, or None where ``torch.ops.zb`` dispatches to the right one.

    Raises:
        RuntimeError: the asked backend can't run this call.
    """
    if _wanted == "auto":
        return None
    kernel = kernel_named(op, _wanted, *args, **kwargs)
    return None if kernel.registered else kernel


def kernel_named(op: Op, name: str, *args: Any, **kwargs: Any) -> Kernel:
    """The kernel of a backend.

    Raises:
        RuntimeError: it can't run this call.
    """
    kernel = next((k for k in op.kernels if k.name == name), None)
    if kernel is None:
        raise RuntimeError(f"{op.name}: backend {name!r} has no kernel for this op")
    reason = kernel.can_run(*args, **kwargs)
    if reason is None and not kernel.registered and _hides_from_transforms(kernel, args):
        reason = "torch.func transforms and forward-mode AD see through the op only with backend 'auto'"
    if reason is not None:
        raise RuntimeError(f"{op.name}: backend {name!r} can't run this call: {reason}")
    return kernel


def _can_run(*args: Any, **kwargs: Any) -> str | None:
    return None


def _hides_from_transforms(kernel: Kernel, args: tuple[Any, ...]) -> bool:
    """Whether a transform is active that would raise in this kernel, or get a silent zero (forward-mode AD)."""
    if torch._C._are_functorch_transforms_active():
        return True
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    return kernel.name != "reference" and transforms_active(*tensors)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """For each kernel of an op: ``"chosen"``, or the reason why it isn't; ``why`` is that of the chosen one.

    ``kernel`` is what :func:`last_kernel` will say after the call (of the forward pass, where there are two), such as
    ``"cpu: winograd avx512"``; ``""`` where the backend has several and decides when it runs.
    """

    op: str
    verdicts: dict[str, str]
    why: str = ""
    kernel: str = ""

    @property
    def chosen(self) -> str:
        return next((name for name, verdict in self.verdicts.items() if verdict == "chosen"), "none")

    def __str__(self) -> str:
        width = max(map(len, self.verdicts))
        lines = []
        for name, verdict in self.verdicts.items():
            notes = [self.why, self.kernel.partition(": ")[2]] if verdict == "chosen" else []
            lines.append(f"  {name:<{width}}  {': '.join([verdict, *filter(None, notes)])}")
        return "\n".join([f"{self.op}:", *lines])

    __repr__ = __str__


def explain(op: str | Any, *args: Any, **kwargs: Any) -> Explanation:
    """Say which kernel would run ``op(*args, **kwargs)`` now, and for each other one why not.

    ``op`` is an op's name or its public function. Nothing is run. On a card it says whether the choice was measured.

    Raises:
        ValueError: there is no op of that name.
        TypeError, ValueError: what the op itself raises for bad arguments.
    """
    name = op if isinstance(op, str) else getattr(op, "__name__", str(op))
    if name not in OPS or OPS[name].public is None:
        public = ", ".join(n for n, o in OPS.items() if o.public is not None)
        raise ValueError(f"explain: expected one of {public}, got {name!r}")
    record = OPS[name]
    assert record.public is not None
    try:
        inspect.signature(record.public).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"explain: {name}: {error}") from None
    if record.normalise is not None:
        args, kwargs = record.normalise(*args, **kwargs)
    shown = [k for k in record.kernels if not k.hidden or k.name == _wanted]
    verdicts = {kernel.name: kernel.can_run(*args, **kwargs) or "" for kernel in shown}
    for other, reason in verdicts.items():
        if not reason and _wanted not in ("auto", other):
            verdicts[other] = f"use_backend({_wanted!r}) is in force"
    candidates = [kernel for kernel in shown if not verdicts[kernel.name]]
    if not candidates:
        return Explanation(name, verdicts)
    decision = _decide(record, candidates, args, kwargs)
    chosen = decision.kernel.name
    for kernel in candidates:
        if kernel.name == chosen:
            verdicts[chosen] = "chosen"
        elif kernel.name in decision.ms:
            slower = decision.ms[kernel.name] / decision.ms[chosen]
            verdicts[kernel.name] = f"can run; measured, its time is {slower:.2f} of the chosen one's"
        elif decision.ms:
            verdicts[kernel.name] = "can run, but was not measured beside them"
        else:
            verdicts[kernel.name] = "can run, but a kernel above comes first"
    ran = record.cpu_kernel(*args, **kwargs) if chosen == "cpu" and record.cpu_kernel else ""
    return Explanation(name, verdicts, decision.why, f"cpu: {ran}" if ran else "")


def _decide(
    op: Op, candidates: list[Kernel], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _choice.Decision:
    """What :func:`choose_kernel` decides, with the reason."""
    first = _choice.Decision(candidates[0], {}, "")
    if _wanted != "auto":
        return first
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    table = _choice.table_of(tensors[0].device)
    if table is None:
        card = cards.card_of(tensors[0].device)
        return first._replace(why=f"no measurement for {card.name}, default order") if card else first
    if _precision == "highest":
        return first._replace(why="default order, as set_conv_precision('highest') wants it")
    if _choice.looked_at(tensors[0], tensors[1] if len(tensors) > 1 else None):
        return first._replace(why="default order, since a mode, transform or tensor subclass sees the op")
    return table.decide(op, candidates, args, kwargs)


def note_kernel(name: str) -> None:
    """Remember, for :func:`last_kernel`, that a Python-side kernel ran in this thread."""
    _last.value = (time.monotonic_ns(), name)


def last_kernel() -> str:
    """The kernel that ran in this thread's last op, e.g. ``"cpu: direct avx512"``; ``""`` before any.

    Each pass counts as a call of its own: after ``loss.backward()`` on a CPU it is the backward's kernel.
    """
    stamps = [getattr(_last, "value", (0, ""))]
    stamps += _loader.last_kernels()
    return max(stamps)[1]


def last_refusals() -> list[str]:
    """Why this thread's last op ran on no faster kernel of its backend, e.g. ``["tensor core: float64"]``.

    Within the CUDA library several kernels share an op; each that was asked before the one that ran
    (:func:`last_kernel`) gives its reason. Empty where the first could run, and on backends with one kernel.
    """
    return _loader.last_refusals(last_kernel().split(":")[0])


def set_conv_precision(precision: str) -> None:
    """Choose how float32 convolutions may be summed, for the whole process.

    ``"high"`` (the default) allows algorithms with fewer operations (Winograd) on the CPU, for a layer's result and
    for the gradient of its input, with an error of at most 1e-5 of the result's norm. That holds where the result
    is not what is left of a cancellation (a filter of mean zero on an image of large mean) and not subnormal; there
    the error is of that size against the norm of the convolution of the absolute values, as any float32 sum's is.
    ``"highest"`` sums directly, in one order, the same for every memory format, batch and number of threads, as
    exactly as torch's own (`bench/results/accuracy.md`). Ops that return signatures always do.

    Raises:
        ValueError: any other word.
    """
    if precision not in ("high", "highest"):
        raise ValueError(f"set_conv_precision: expected 'high' or 'highest', got {precision!r}")
    global _precision
    _precision = precision
    _loader.set_highest_precision(precision == "highest")


def get_conv_precision() -> str:
    """``"high"`` or ``"highest"``: what :func:`set_conv_precision` set."""
    return _precision


_precision = "high"


def library_kernel(device: str, op: str | None = None) -> Kernel:
    """The compiled kernels for ``device`` ("cpu" or "cuda"), which stand at that dispatcher key.

    ``op`` is named where not every library has a kernel for it.
    """
    library = f"_C_{device}"

    def can_run(x: Any, *args: Any, **kwargs: Any) -> str | None:
        if x.device.type != device:
            return f"the tensors are on {x.device}"
        state = _loader.libraries()[library]
        if not state.loaded:
            return f"{library} is not loaded: {state.reason}"
        return None if op is None or (op, device) in COMPILED else f"{library} has no kernel for {op}"

    return Kernel(device, can_run, registered=True)


def emulated_kernels(run: Any) -> tuple[Kernel, ...]:
    """The CUDA kernels compiled for the host, where a source tree holds them; users never see this backend."""
    if not _loader.emulated_path().exists():
        return ()

    def can_run(x: Any, *args: Any, **kwargs: Any) -> str | None:
        if x.device.type != "cpu":
            return f"the tensors are on {x.device}"
        state = _loader.load_emulated()
        return None if state.loaded else f"_C_emulated is not loaded: {state.reason}"

    return (Kernel(EMULATED, can_run, run, hidden=True),)


def emulated_function(name: str) -> Any:
    """The op ``name`` of the emulated library."""

    def call(*args: Any, **kwargs: Any) -> Any:
        _tf32.follow()
        with below_autograd():
            return getattr(torch.ops.zb_emulated, name)(*args, **kwargs)

    return call


def triton_kernel(module: str, run: Any) -> Kernel:
    """The kernels of ``zbkernels.triton.<module>``, imported only when they are asked for."""

    def can_run(x: Any, *args: Any, **kwargs: Any) -> str | None:
        if x.device.type != "cuda" and not os.environ.get("TRITON_INTERPRET"):
            return f"the tensors are on {x.device} (Triton runs there only with TRITON_INTERPRET=1)"
        try:
            kernels = importlib.import_module(f"zbkernels.triton.{module}")
        except ImportError as error:
            return f"Triton can't be imported: {error}"
        return kernels.can_run(x, *args, **kwargs)

    return Kernel("triton", can_run, run)


def triton_function(module: str, name: str) -> Any:
    """``zbkernels.triton.<module>.<name>``, imported at its first call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        note_kernel(f"triton: {module}.{name}")
        # The dispatcher would have negated what torch only marks as negative; a launch reads memory as it is.
        as_stored = [a.resolve_neg() if isinstance(a, torch.Tensor) and a.is_neg() else a for a in args]
        return getattr(importlib.import_module(f"zbkernels.triton.{module}"), name)(*as_stored, **kwargs)

    return call


def or_reference(kernel: Kernel, reference: Any) -> Any:
    """A function that runs ``kernel`` where it can run, else the reference: for a dispatcher key without a kernel."""

    def call(*args: Any, **kwargs: Any) -> Any:
        chosen = kernel.run if kernel.can_run(*args, **kwargs) is None else reference
        return chosen(*args, **kwargs)

    return call


def reference_kernel(run: Any) -> Kernel:
    return Kernel("reference", lambda *args, **kwargs: None, run)
