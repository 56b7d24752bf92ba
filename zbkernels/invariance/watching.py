"""Every operation that a model runs, as it runs: a dispatch mode sees modules, functions, operators and TorchScript.

The first run of a model is recorded; a later one, on the input times a scalar, is compared with it operation by
operation. Views are no operations here: a tensor is known by its memory, whatever its shape.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from zbkernels.nap.affine_calls import tensors_in

if TYPE_CHECKING:
    from typing_extensions import Self

ROOT = "forward"  # path of what the model itself calls; no submodule can have this name


@dataclass(frozen=True)
class Source:
    """Where a tensor comes from: the output of an operation, the model's input, a parameter by name, or (all three say
    no) something that was not seen."""

    made_by: tuple[int, int] | None  # operation, and which of its outputs
    is_input: bool
    parameter: str | None


@dataclass
class Recorded:
    """One operation of the recorded run.

    Attributes:
        function: such as ``convolution`` of ``aten.convolution.default``; other libraries' keep their name: ``zb::…``.
        path, module: of the innermost module that was running, and its class.
        outputs: what it made or wrote, kept as it was then.
        sources: of each tensor that it was given.
        arguments: what else a reason may need: numbers by name, the ``shape`` of the result, and the name of the
            ``bias`` ("" where it is no parameter), where there is one.
        used: which outputs a later operation, or the caller, took.
        before: what the first output overwrote in part; None where it overwrote nothing, or all.
        numbers: where Python took numbers from, before this operation; they may have decided what it is given.
    """

    index: int
    function: str
    path: str
    module: str
    outputs: list[torch.Tensor]
    sources: list[Source]
    arguments: dict[str, Any]
    used: set[int] = field(default_factory=set)
    before: tuple[int, int] | None = None
    numbers: tuple[Source, ...] = ()


class Watch(TorchDispatchMode):
    """Calls :meth:`before` and :meth:`after` around each operation of a model that runs inside the mode.

    The model must be called itself, not its ``forward``; modules are named by hooks, which are removed at the end.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled in here, and torch's guard against it would load dynamo, which takes seconds

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._stack: list[tuple[str, str]] = []
        self._hooks: list[Any] = []

    def __enter__(self) -> Self:
        for name, module in self.model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # takes no hooks; its operations are seen, under the module that calls it
            self._hooks += [
                module.register_forward_pre_hook(self._entering(name or ROOT, type(module).__name__)),
                module.register_forward_hook(self._leaving, always_call=True),
            ]
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._stack = [], []

    def _entering(self, name: str, kind: str) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            self._stack.append((name, kind))

        return hook

    def _leaving(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()

    @property
    def where(self) -> tuple[str, str]:
        """Path and class of the module that is running."""
        return self._stack[-1] if self._stack else (ROOT, type(self.model).__name__)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written = _written(func, args, kwargs)
        self.before(written)
        result = func(*args, **kwargs)
        made = written or _made(func, result, (args, kwargs))
        if made:
            self.after(func, args, kwargs, made, bool(written))
        elif not isinstance(result, torch.Tensor) and not any(True for _ in tensors_in(result)):
            self.left_torch(list(tensors_in((args, kwargs))))
        return result

    def before(self, written: list[torch.Tensor]) -> None:
        """An operation is about to write into these."""

    def after(self, func: Any, args: Any, kwargs: Any, made: list[torch.Tensor], wrote: bool) -> None:
        """An operation made these tensors, or (``wrote``) wrote into them."""
        raise NotImplementedError

    def left_torch(self, given: list[torch.Tensor]) -> None:
        """The model's Python code took a number out of one of these, such as the condition of an ``if``."""


class Recorder(Watch):
    """Keeps every operation's results, and which operation made what another one used.

    Nothing is copied but what is written over; all the results of a run are held at once.
    """

    def __init__(self, model: nn.Module, inputs: list[torch.Tensor]) -> None:
        super().__init__(model)
        self.operations: list[Recorded] = []
        self._inputs = {_memory(t) for t in inputs}
        self._names = {_memory(t): name for name, t in _constants(model)}
        # memory -> the operation that wrote it last, and which of its outputs lies there
        self._writer: dict[int, tuple[int, int]] = {}
        self._kept: dict[int, list[tuple[int, int]]] = {}  # memory -> results that lie in it, not copied yet
        self._numbers: tuple[Source, ...] = ()
        self._unset: dict[int, torch.Tensor] = {}  # memory that holds nothing yet, kept from being given away

    def source(self, t: torch.Tensor) -> Source:
        place = _memory(t)
        if place in self._writer:
            index, output = self._writer[place]
            self.operations[index].used.add(output)
            return Source((index, output), False, None)
        return Source(None, place in self._inputs, self._names.get(place))

    def before(self, written: list[torch.Tensor]) -> None:
        for t in written:
            for index, output in self._kept.pop(_memory(t), ()):
                kept = self.operations[index].outputs
                kept[output] = kept[output].clone()

    def after(self, func: Any, args: Any, kwargs: Any, made: list[torch.Tensor], wrote: bool) -> None:
        if is_unset(func):
            for t in made:
                self._unset[_memory(t)] = t
                self._writer.pop(_memory(t), None)
            return
        index = len(self.operations)
        path, module = self.where
        sources = [
            self.source(t) for t in tensors_in((args, kwargs)) if not (wrote and _memory(t) in self._unset)
        ]
        arguments = _arguments(func, args, kwargs)
        bias = arguments.pop("bias", None)
        if isinstance(bias, torch.Tensor):
            arguments["bias"] = self._names.get(_memory(bias), "")
        arguments["shape"] = tuple(made[0].shape)
        recorded = Recorded(index, function_of(func), path, module, made, sources, arguments)
        recorded.numbers = self._numbers
        for output, t in enumerate(made):
            place = _memory(t)
            if wrote and t.numel() * t.element_size() < t.untyped_storage().nbytes():
                recorded.before = self._writer.get(place)
            self._unset.pop(place, None)
            self._writer[place] = (index, output)
            self._kept.setdefault(place, []).append((index, output))
        self.operations.append(recorded)

    def left_torch(self, given: list[torch.Tensor]) -> None:
        self._numbers += tuple(map(self.source, given))


def function_of(func: Any) -> str:
    """``convolution`` of ``aten.convolution.default``; operations of other libraries keep its name."""
    return func._schema.name.removeprefix("aten::")


def is_unset(func: Any) -> bool:
    """Whether what it makes holds no values yet."""
    return function_of(func).startswith(("empty", "new_empty"))


def _memory(t: torch.Tensor) -> int:
    try:
        return t.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # sparse tensors have no single memory
        return id(t)


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    given = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given.append(args[place] if place < len(args) else kwargs.get(argument.name))
    return list(tensors_in(given))


def _made(func: Any, result: Any, given: Any) -> list[torch.Tensor]:
    """The tensors that an operation made; [] where it only gave another view of what it was given."""
    before = {_memory(t) for t in tensors_in(given)}
    return [t for t in tensors_in(result) if _memory(t) not in before]


def _arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Numbers and words by name, and the bias."""
    named = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    numbers = {name: value for name, value in named.items() if isinstance(value, int | float | str)}
    added_first = function_of(func) in ("addmm", "addmv", "addbmm", "baddbmm")
    return numbers | {"bias": named.get("self" if added_first else "bias")}


def _constants(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a model holds: parameters, buffers, and plain attributes of its modules."""
    for path, module in model.named_modules():
        for group in (module._parameters, module._buffers, vars(module)):
            for name, value in group.items():
                if isinstance(value, torch.Tensor):
                    yield (f"{path}.{name}" if path else name), value


@contextmanager
def repeatable(seed: int, dtype: torch.dtype | None = None) -> Iterator[None]:
    """Within the block: no gradients, compiled functions run as they are written, the random numbers of ``seed``,
    attention by its parts, and ``dtype`` for what the model makes without saying of what kind."""
    fast = torch.backends.mha.get_fastpath_enabled()
    before = torch.get_default_dtype()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    # Looked up, not imported: what is compiled has loaded it, and loading it takes seconds.
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    with torch.no_grad(), torch.random.fork_rng(devices), eager:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed keeps a stack trace for a CUDA to come
        if devices:
            torch.cuda.manual_seed_all(seed)
        torch.backends.mha.set_fastpath_enabled(False)  # else a whole encoder layer is one operation
        torch.set_default_dtype(dtype or before)
        try:
            yield
        finally:
            torch.set_default_dtype(before)
            torch.backends.mha.set_fastpath_enabled(fast)
