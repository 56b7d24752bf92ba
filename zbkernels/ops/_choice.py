"""Which backend was measured to be the fastest on a card, by op, dtype and shape class.

The tables lie in ``zbkernels/choices``, one for each card, as ``bench/gpu_check.sh`` writes them: a head (``format card
capability``, and where it comes from) and rows (``op dtype shape_class ms``, the milliseconds of each backend). What no
table knows runs in the default order, that of an op's kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zbkernels import cards
from zbkernels.cards import Card
from zbkernels.ops._op import Kernel, Op
from zbkernels.tables import ignored, measured_ms, read_table

FORMAT = 1
SHIPPED = Path(__file__).resolve().parent.parent / "choices"
LEAST_GAIN = 1.03  # the default order stays where nothing is faster by more than what runs differ by
_MOST_KEPT = 4096  # shapes whose choice is remembered; a process that asks for more starts over

# Set while a function mode watches a model's units (zbkernels/nap/units.py) and must see every op. Function modes are
# not looked for, as those for dispatch are: torch.set_default_device is one, and needs no op of ours.
watched: ContextVar[bool] = ContextVar("watched", default=False)

Key = tuple[str, str, str]  # op, dtype ("float16"), shape class


class Decision(NamedTuple):
    """``kernel`` is the one to run, ``ms`` the times it rests on: {} where nothing was measured."""

    kernel: Kernel
    ms: Mapping[str, float]
    why: str


class Choices:
    """The measured results of one card."""

    def __init__(self, card: Card, rows: Mapping[Key, Mapping[str, float]]) -> None:
        self.card, self.rows = card, rows
        self._kept: dict[tuple[Any, ...], Kernel | None] = {}

    def kernel(
        self, op: Op, x: torch.Tensor, weight: torch.Tensor | None, rest: tuple[Any, ...]
    ) -> Kernel | None:
        """The kernel to run instead of the one that comes first, or None. Found once for each shape."""
        if weight is None:
            shape: tuple[Any, ...] = (op.name, x.shape, x.stride(), x.dtype, rest)
        else:
            grad = _grad_enabled() and (x.requires_grad or weight.requires_grad)
            shape = (op.name, x.shape, x.stride(), x.dtype, weight.shape, grad, rest)
        try:
            return self._kept[shape]
        except KeyError:
            pass
        args, kwargs = op.spread(x, weight, *rest)
        candidates = runnable(op, args, kwargs)
        decision = self.decide(op, candidates, args, kwargs)
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        chosen = None if decision.kernel is candidates[0] else decision.kernel
        self._kept[shape] = chosen
        return chosen

    def decide(
        self, op: Op, candidates: list[Kernel], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Decision:
        """The fastest of the kernels that can run this call; the first of them where that wasn't measured."""
        default = candidates[0]
        if op.shape_class is None:
            return Decision(default, {}, "default order")
        name = op.shape_class(*args, **kwargs)
        ms = self.rows.get((op.name, str(args[0].dtype).removeprefix("torch."), name), {})
        if default.name not in ms:
            return Decision(default, {}, f"no measurement for {name!r} on {self.card.name}, default order")
        fastest = min((k for k in candidates if k.name in ms), key=lambda kernel: ms[kernel.name])
        gain = ms[default.name] / ms[fastest.name]
        if gain >= LEAST_GAIN:
            why = f"measured {gain:.2f}x faster than {default.name} on {self.card.name} for {name!r}"
            return Decision(fastest, ms, why)
        return Decision(default, ms, f"measured on {self.card.name} for {name!r}: none is clearly faster")


def runnable(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Kernel]:
    """The kernels that can run a call, in the default order; the reference always can."""
    return [k for k in op.kernels if not k.hidden and k.can_run(*args, **kwargs) is None]


# The table of each device, None where there is none.
_tables: dict[torch.device, Choices | None] = {}


def table_of(device: torch.device) -> Choices | None:
    """What was measured on the card of a device; None for a CPU, and for a card that the package has no table of."""
    try:
        return _tables[device]
    except KeyError:
        pass
    card = cards.card_of(device)
    if card is None and device.type == "cuda":
        return None  # a fake tensor's; a real one may come later
    _tables[device] = None if card is None else load(SHIPPED / f"{card.slug}.json", card)
    return _tables[device]


def load(path: Path, card: Card) -> Choices | None:
    """A card's table; None where the file is missing or no good (then with one warning)."""
    head = {"format": FORMAT, "card": card.name, "capability": card.capability}
    try:
        rows = dict(_measured(row) for row in read_table(path, head))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        ignored(path, f"a row of it is no result ({type(error).__name__}: {error})")
        return None
    return Choices(card, rows) if rows else None


def _measured(row: Mapping[str, Any]) -> tuple[Key, dict[str, float]]:
    ms = {str(name): measured_ms(value) for name, value in row["ms"].items()}
    return (str(row["op"]), str(row["dtype"]), str(row["shape_class"])), ms


def looked_at(x: torch.Tensor, weight: torch.Tensor | None) -> bool:
    """Whether something must see the op itself: a mode (tracing and torch.export are some), a transform, a subclass,
    or what watches a model's units.

    A kernel outside the dispatcher would pass all of these by.
    """
    return _seen(x, weight) or _transformed() or watched.get()


def traced(x: torch.Tensor, weight: torch.Tensor | None) -> bool:
    """As :func:`looked_at`, but False under a transform, for which a forced backend has an error of its own, and
    while units are watched, which sees a forced reference from within."""
    return _seen(x, weight) and not _transformed()


def unseen(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None) -> bool:
    """Whether a checked call may go straight to what stands at its op's Autograd key, in Python as the call is.

    The way there through the dispatcher takes longer than a small kernel runs. Not while anything looks on.
    """
    return not (
        torch.compiler.is_dynamo_compiling()
        or looked_at(x, weight)
        or (residual is not None and type(residual) not in _PLAIN)
        or _function_modes()
        or _profiled()
    )


def _seen(x: torch.Tensor, weight: torch.Tensor | None) -> bool:
    return (
        type(x) not in _PLAIN
        or (weight is not None and type(weight) not in _PLAIN)
        or _modes() > 0
        or _tracing() is not None
    )


def _transformed() -> bool:
    return _transforms() or _forward_ad._current_level >= 0


_PLAIN = (torch.Tensor, torch.nn.Parameter)
# Looked up once: these are asked at each call on a card that has a table.
_modes, _transforms = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active
_grad_enabled = torch.is_grad_enabled
_function_modes = torch._C._is_torch_function_mode_enabled
_profiled = torch._C._autograd._profiler_enabled
_tracing, _forward_ad = torch._C._get_tracing_state, torch.autograd.forward_ad
