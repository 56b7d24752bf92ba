"""What every op module does with its parts: define, register, remember.

An op module holds the contract (schema, check, reference, fake, samples, public function) and hands it to
:func:`register` here. Compiled libraries add kernels for their own dispatcher key before that; everything in
this file works without them, on the pure-torch reference.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

_AUTOCAST_DEVICES = ("cpu", "cuda")
FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

# A Library takes its registrations back when it dies, so it is kept for the life of the process, with torch: where
# the package was dropped from sys.modules and is imported again, what the first one registered must go before.
_previous = vars(torch.ops.zb).get("_python_library")
if _previous is not None:
    _previous._destroy()
_library = torch.library.Library("zb", "FRAGMENT")
vars(torch.ops.zb)["_python_library"] = _library


@dataclasses.dataclass(frozen=True)
class Sample:
    """One call of an op that its tests must make: ``op(*args, **kwargs)``.

    ``smooth`` is False where the call sits on a kink (a tie, a zero, a NaN), so that finite differences say
    nothing about its gradient.
    """

    label: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    smooth: bool = True


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One way to run an op. ``can_run`` takes the op's arguments and returns None, or the reason why not.

    ``registered`` kernels are what ``torch.ops.zb`` dispatches to; the others are called through ``run``,
    whose meaning is the op module's own (a function, or a forward and a backward). ``hidden`` ones run only where
    they are forced: not even asking whether they can is free.
    """

    name: str
    can_run: Callable[..., str | None]
    run: Any = None
    registered: bool = False
    hidden: bool = False


def _as_they_are(x: Any, weight: Any, *rest: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return ((x, *rest) if weight is None else (x, weight, *rest)), {}


def checked(check: Callable[..., None]) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
    """``normalise`` of an op whose kernels take a public call's arguments as they are, ``check`` permitting."""
    signature = inspect.signature(check)

    def arguments(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        bound = signature.bind(*args, **kwargs)
        check(*bound.args)
        return bound.args, {}

    return arguments


@dataclasses.dataclass(frozen=True)
class Op:
    """An op as the tests, ``zb.explain``, ``zb doctor`` and the choice of a backend see it.

    The kernels' ``can_run`` and ``shape_class`` (see ``_shape_class.py``; None where nothing is measured) take the
    same arguments. ``normalise`` makes them of a public call, ``spread`` of what ``choose_kernel`` is called with.
    ``dtypes`` are those that ``samples`` can be of. ``opaque``: by backend, ``run`` of a kernel as torch.compile may
    see it (see ``_opaque.py``). ``cpu_kernel``: which of the CPU library's kernels a call would take, from the
    arguments of ``can_run``; None where there is but one. ``composite``: made of other ops, and in no library.
    """

    name: str
    schema: str
    reference: Callable[..., Any]
    samples: Callable[..., Iterable[Sample]]
    public: Callable[..., Any] | None = None
    kernels: tuple[Kernel, ...] = ()
    dtypes: tuple[torch.dtype, ...] = FLOATING
    normalise: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]] | None = None
    spread: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]] = _as_they_are
    shape_class: Callable[..., str] | None = None
    opaque: dict[str, Any] = dataclasses.field(default_factory=dict)
    cpu_kernel: Callable[..., str] | None = None
    composite: bool = False

    @property
    def overload(self) -> Any:
        return getattr(torch.ops.zb, self.name).default


OPS: dict[str, Op] = {}
COMPILED: set[tuple[str, str]] = set()  # (op, "cpu" or "cuda") where a library brought a kernel


def below_autograd() -> Any:
    """Context in which an op goes straight to its device kernel, past autograd."""
    return torch._C._AutoDispatchBelowAutograd()


def graph_below_autograd() -> Any:
    """Context in which an op's kernel can build a graph of its own and differentiate it: it runs past autograd."""
    hidden = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor"):
        hidden = hidden.remove(getattr(torch._C.DispatchKey, key))
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), hidden)


def transforms_active(*tensors: torch.Tensor | None) -> bool:
    """Whether a torch.func transform or forward-mode AD wants to see inside the op. None stands for no tensor.

    The reference is then taken: it is made of torch ops that every transform knows. A custom op would raise
    there, or (forward mode) give a silent zero tangent.
    """
    if torch._C._are_functorch_transforms_active():
        return True
    if torch.autograd.forward_ad._current_level < 0:
        return False
    return any(
        t is not None and torch.autograd.forward_ad.unpack_dual(t).tangent is not None for t in tensors
    )


def needs_grad(*tensors: torch.Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def is_defined(name: str) -> bool:
    try:
        getattr(torch.ops.zb, name)
    except AttributeError:
        return False
    return True


def define(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """An op that Python alone knows, the same on every device."""
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"zb::{name}", fake, lib=_library)


def register(
    op: Op,
    *,
    fake: Callable[..., Any],
    vmap: Callable[..., Any],
    autograd: Callable[..., Any] | None = None,
    autocast: bool = False,
    cuda_fallback: Callable[..., Any] | None = None,
) -> None:
    """Give the dispatcher everything about ``op`` that Python knows.

    ``autograd`` takes the op's arguments and is called above the device kernels; None where no output has a
    gradient. ``cuda_fallback`` stands at the CUDA key where no compiled kernel does.
    """
    if not is_defined(op.name):
        _library.define(op.schema)
    qualified = f"zb::{op.name}"
    _library.impl(op.name, op.reference, "CompositeExplicitAutograd")
    torch.library.register_fake(qualified, fake, lib=_library)
    torch.library.register_vmap(qualified, vmap, lib=_library)
    if autograd is not None:
        _library.impl(op.name, autograd, "Autograd")
    if autocast:
        for device in _AUTOCAST_DEVICES:
            _library.impl(op.name, _autocast_rule(op.overload, device), f"Autocast{device.upper()}")
    for device in ("cpu", "cuda"):
        if torch._C._dispatch_has_kernel_for_dispatch_key(qualified, device.upper()):
            COMPILED.add((op.name, device))
    if cuda_fallback is not None and (op.name, "cuda") not in COMPILED:
        _library.impl(op.name, cuda_fallback, "CUDA")
    OPS[op.name] = op


def check_operands(op: str, x: Any, weight: Any) -> None:
    """What every op asks of its input and weight, whatever their shapes.

    Raises:
        TypeError: x or weight is no dense tensor of a floating dtype, or their dtypes differ.
        ValueError: they are on different devices.
    """
    for name, t in (("x", x), ("weight", weight)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{op}: expected {name} to be a tensor, got {type(t).__name__}")
        if t.dtype not in FLOATING:
            raise TypeError(
                f"{op}: expected {name} of dtype float32, float64, float16 or bfloat16, got {t.dtype}"
            )
        if t.layout != torch.strided:
            raise TypeError(f"{op}: expected {name} to be a dense (strided) tensor, got {t.layout}")
    if x.dtype != weight.dtype:
        raise TypeError(f"{op}: expected x and weight of one dtype, got {x.dtype} and {weight.dtype}")
    if x.device != weight.device:
        raise ValueError(f"{op}: expected x and weight on one device, got {x.device} and {weight.device}")


def cast_for_autocast(device: str, args: Iterable[Any]) -> Iterator[Any]:
    """Floating tensors of ``args`` in autocast's dtype; float64 stays, as in torch's own rules."""
    dtype = torch.get_autocast_dtype(device)
    for a in args:
        eligible = isinstance(a, torch.Tensor) and a.is_floating_point() and a.dtype != torch.float64
        yield a.to(dtype) if eligible and a.device.type == device else a


def autocast_operands(x: Any, *others: Any) -> tuple[Any, ...]:
    """x, weight and the like as autocast would hand them to the op; unchanged outside autocast."""
    if isinstance(x, torch.Tensor):
        kind = x.device.type
        if kind in _AUTOCAST_DEVICES and torch.is_autocast_enabled(kind):
            return tuple(cast_for_autocast(kind, (x, *others)))
    return (x, *others)


def _autocast_rule(overload: Any, device: str) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device.upper()}"))

    def rule(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return overload(*cast_for_autocast(device, args), **kwargs)

    return rule


def vmap_by_loop(name: str) -> Callable[..., Any]:
    """The batching rule that is right for any op: one call for each element, results stacked."""

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
        overload = OPS[name].overload
        batched = [isinstance(a, torch.Tensor) and d is not None for a, d in zip(args, in_dims, strict=True)]
        if info.batch_size == 0:  # one element of zeros tells the shapes and dtypes of the results
            args = tuple(
                a.new_zeros([1 if i == d else size for i, size in enumerate(a.shape)]) if looped else a
                for a, d, looped in zip(args, in_dims, batched, strict=True)
            )
        results = []
        for i in range(max(info.batch_size, 1)):
            picked = [
                a.select(d, i) if looped else a for a, d, looped in zip(args, in_dims, batched, strict=True)
            ]
            results.append(overload(*picked, **kwargs))

        def stack(column: Sequence[torch.Tensor]) -> torch.Tensor:
            return torch.stack(list(column))[: info.batch_size]

        if isinstance(results[0], torch.Tensor):
            return stack(results), 0
        stacked = tuple(stack(column) for column in zip(*results, strict=True))
        return stacked, (0,) * len(stacked)

    return rule
