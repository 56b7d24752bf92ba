"""The piecewise-linear units of any torch model, met while it runs.

A function mode sees each call of a torch function, however it is spelt (module, functional, method, in place, fused),
so nothing has to be traced, and a model that branches is seen as it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from zbkernels.nap.affine_calls import has_values, tensors_in, why_not_affine
from zbkernels.nap.unit_calls import Arguments, function_name, output_shape, recognise
from zbkernels.ops import _backend, _choice

KINDS = ("relu", "leaky_relu", "max_pool", "conv_relu_pool", "linear_relu")
_IN_PLACE = frozenset(
    [
        "__setitem__",
        "__iadd__",
        "__isub__",
        "__imul__",
        "__itruediv__",
        "__ifloordiv__",
        "__imod__",
        "__ipow__",
    ]
)
UNSEEN = "a function that can't be seen (TorchScript, a custom autograd function, …)"
ROOT = "forward"  # of a unit that the model itself calls; no submodule can have this name


@dataclass(frozen=True)
class Site:
    """One unit (a whole layer of them) in a model's forward pass.

    Attributes:
        name: path of the innermost module that was running, such as ``features.1`` (``forward`` for the model itself);
            ``#2``, ``#3`` follow for its 2nd, 3rd unit in one forward pass.
        kind: one of :data:`KINDS`.
        shape: of one example's output, without the batch dimension.
    """

    name: str
    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A unit's call, before it is made.

    Attributes:
        kind: as in :class:`Site`.
        input: pre-activation of a ReLU, input of a max pool, x of a fused op; not yet overwritten by an in-place call.
        args: the bound arguments by name, with torch's names and pairs for the pool's sizes: ``input``, ``inplace``
            (relu); ``negative_slope`` too (leaky_relu); ``input``, ``kernel_size``, ``stride``, ``padding``,
            ``dilation``, ``ceil_mode``, ``return_indices``, or ``input``, ``output_size``, ``return_indices``
            (max_pool); those of the op's schema (fused; ``units`` only where the model asks for a signature itself).
        source: the site whose output ``input`` is, unchanged; None where something else made it.
        after: paths of the modules that returned ``input``, unchanged, from the innermost on.
        function: the function as ``units.function_name`` has it, such as ``relu_`` or ``zb::linear_relu_nap``.
    """

    kind: str
    input: torch.Tensor
    args: Arguments
    source: Site | None
    after: tuple[str, ...]
    function: str
    _run: Callable[[], Any]

    def run(self) -> Any:
        """The original call: its output, or the tuple that the function returns."""
        return self._run()


Handler = Callable[[Site, Call], Any]


class Units(TorchFunctionMode):
    """Calls ``handler(site, call)`` for each unit of a model that runs inside: ``with Units(model, handler):
    model(x)``. What the handler returns is what the model goes on with.

    Seen are ``nn.ReLU``, ``F.relu``, ``torch.relu``, ``Tensor.relu``, ``threshold`` at 0, ``clamp(min=0)``, their
    in-place forms, leaky ReLU, ``F.max_pool2d`` and ``F.adaptive_max_pool2d``, ``torch.ops.zb.conv_relu_pool2d``,
    ``linear_relu`` and their ``_nap`` forms (hence the layers of :mod:`zbkernels.nn`), and the ``torch.ops.aten`` ops
    of an exported program. A slope of 1 without a max pool is linear and no unit; neither is what does not depend on
    the input. Within the handler nothing is intercepted. Call the model itself, not its ``forward``, and under
    ``torch.no_grad()`` unless the handler needs gradients.

    Attributes:
        sites: of the last forward pass, in the order of the calls.
        unsupported: other non-linear (or unknown) functions of the input met so far, by name. Empty: with the pattern
            of its units held fixed, the model is affine in its input, as far as it was run.
        only_pooled: names of the sites of the last forward pass whose output went to max pools and nowhere else.

    Raises:
        TypeError: the model runs where Python can't see it (TorchScript, torch.compile, DataParallel).
        RuntimeError: on entering, where ``zb.use_backend`` forces kernels that are called past the dispatcher.
    """

    def __init__(self, model: nn.Module, handler: Handler) -> None:
        super().__init__()
        check_visible(model)
        self.model = model
        self.handler = handler
        self.sites: list[Site] = []
        self.unsupported: list[str] = []
        self._stack: list[str] = []  # paths of the modules that are running
        self._met: dict[str, int] = {}  # units of each path in this forward pass
        self._constants = WeakIdKeyDictionary()  # tensors that do not depend on the model's input
        self._seen = WeakIdKeyDictionary()  # tensors that came in, or that a function seen here made
        self._dirty: set[int] = set()  # storages of constants into which something else was written
        self._made_by = WeakIdKeyDictionary()  # output -> site
        self._returned = WeakIdKeyDictionary()  # output -> paths of the modules that returned it
        self._pooled: set[str] = set()
        self._used: set[str] = set()
        self._hooks: list[Any] = []

    @property
    def only_pooled(self) -> frozenset[str]:
        return frozenset(self._pooled - self._used)

    def __enter__(self) -> Units:
        wanted = _backend._wanted
        if wanted in ("triton", _backend.EMULATED):
            raise RuntimeError(
                f"Units: use_backend({wanted!r}) calls its kernels past the dispatcher, where the units of fused "
                "layers can't be seen; expected 'auto', 'cpu', 'cuda' or 'reference'"
            )
        for name, module in self.model.named_modules():
            first = self._begin if module is self.model else None
            self._hooks += [
                module.register_forward_pre_hook(self._entering(name or ROOT, first), with_kwargs=True),
                module.register_forward_hook(self._leaving, always_call=True),
            ]
        self._watch = _choice.watched.set(True)
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        _choice.watched.reset(self._watch)
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._stack = []

    def _entering(self, name: str, first: Callable[[], None] | None) -> Callable[[Any, Any, Any], None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            if first is not None and not self._stack:
                first()
                self._came((args, kwargs))
            self._stack.append(name)

        return hook

    def _leaving(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._stack:
            path = self._stack.pop()
            if isinstance(output, torch.Tensor) and path != ROOT:
                self._returned[output] = (*self._returned.get(output, ()), path)
        if not self._stack:
            self._note_use(tensors_in(output))

    def _begin(self) -> None:
        """A forward pass starts."""
        self.sites = []
        self._met = {}
        self._pooled, self._used = set(), set()
        self._dirty = set()
        self._made_by = WeakIdKeyDictionary()
        self._returned = WeakIdKeyDictionary()
        self._constants = WeakIdKeyDictionary()
        self._seen = WeakIdKeyDictionary()
        for module in self.model.modules():
            for tensor in tensors_in(vars(module)):  # with _parameters and _buffers
                self._constants[tensor] = True

    def _came(self, value: Any) -> None:
        for tensor in tensors_in(value):
            self._seen[tensor] = True

    def _look_up(self, given: list[torch.Tensor]) -> None:
        """Report what something made that can't be seen, such as a function of TorchScript."""
        if all(t in self._seen or t in self._constants for t in given):
            return
        if UNSEEN not in self.unsupported:
            self.unsupported.append(UNSEEN)
        self._came(given)

    def _depends(self, value: Any) -> bool:
        """Whether a tensor, or one in a list or dict, may depend on the input: all do that are not known not to."""
        return any(
            t not in self._constants or (self._dirty and t.untyped_storage().data_ptr() in self._dirty)
            for t in tensors_in(value)
        )

    def _note_use(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            site = self._made_by.get(tensor)
            if site is not None:
                self._used.add(site.name)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._stack:
            return func(*args, **kwargs)
        given = list(tensors_in((args, kwargs)))
        self._look_up(given)
        result = self._called(func, given, args, kwargs)
        self._came(result)
        return result

    def _called(self, func: Any, given: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        if not any(map(self._depends, given)):
            result = func(*args, **kwargs)
            for tensor in tensors_in(result):
                self._constants[tensor] = True
            return result
        name = function_name(func)
        unit = recognise(name, args, kwargs)
        if unit is not None:
            return self._unit(name, *unit, lambda: func(*args, **kwargs))
        result = func(*args, **kwargs)
        made = list(tensors_in(result))
        if made:
            self._note_use(t for t in given if not any(t is m for m in made))
        self._written(name, args, kwargs, made)
        reason = why_not_affine(name, args, kwargs, self._depends, any(map(has_values, made)))
        if reason is not None and reason not in self.unsupported:
            self.unsupported.append(reason)
        return result

    def _written(self, name: str, args: Any, kwargs: Any, made: list[torch.Tensor]) -> None:
        """What is written from the input on is no constant any more, nor is any other view of its memory."""
        for tensor in made:
            self._constants.pop(tensor, None)
        into = [*tensors_in(kwargs.get("out"))]
        if name in _IN_PLACE or (name.endswith("_") and not name.endswith("__")) or kwargs.get("inplace"):
            into += tensors_in(args[:1])
        for tensor in into:
            self._constants.pop(tensor, None)
            self._overwritten(tensor)

    def _overwritten(self, tensor: torch.Tensor) -> None:
        memory = tensor.untyped_storage().data_ptr()
        self._dirty.add(memory)
        for made in [t for t in self._made_by if t.untyped_storage().data_ptr() == memory]:
            del self._made_by[made]  # its values are the unit's no longer
        for returned in [t for t in self._returned if t.untyped_storage().data_ptr() == memory]:
            del self._returned[returned]

    def _unit(self, name: str, kind: str, args: Arguments, run: Callable[[], Any]) -> Any:
        path = self._stack[-1]
        self._met[path] = self._met.get(path, 0) + 1
        label = path if self._met[path] == 1 else f"{path}#{self._met[path]}"
        site = Site(label, kind, output_shape(kind, args)[1:])
        x = args["x"] if "x" in args else args["input"]
        source = self._made_by.get(x)
        if source is not None:
            (self._pooled if kind == "max_pool" else self._used).add(source.name)
        self.sites.append(site)
        result = self.handler(site, Call(kind, x, args, source, self._returned.get(x, ()), name, run))
        if args.get("inplace"):
            self._overwritten(x)
        first = result[0] if isinstance(result, tuple) else result
        if isinstance(first, torch.Tensor):
            self._made_by[first] = site
            self._constants.pop(first, None)
        return result


def check_visible(model: nn.Module) -> None:
    """Refuse a model whose units can't be met in Python.

    Raises:
        TypeError: not an ``nn.Module``, or TorchScript, ``torch.compile`` or ``DataParallel`` runs (part of) it.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"Units: expected model to be an nn.Module, got {type(model).__name__}")
    for name, module in model.named_modules():
        where = f"module {name!r}" if name else "the model"
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError(
                f"Units: {where} is TorchScript, whose units can't be seen; give the model before scripting"
            )
        if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
            raise TypeError(
                f"Units: {where} is compiled, which hides units; give the model before torch.compile"
            )
        if isinstance(module, nn.DataParallel):
            raise TypeError(
                f"Units: {where} is a DataParallel, which runs copies in threads; give its .module"
            )


def find_units(model: nn.Module, example: Any) -> list[Site]:
    """The units that ``model(example)`` meets, in order, in evaluation mode and without gradients.

    Args:
        example: a batch (one example will do), or a tuple of the model's arguments.

    Raises:
        TypeError: as :class:`Units`.
    """
    units = Units(model, lambda site, call: call.run())
    with evaluating(model), torch.no_grad(), units:
        model(*example) if isinstance(example, tuple) else model(example)
    return units.sites


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within the block; each module's own mode comes back after it."""
    before = [(module, module.training) for module in model.modules()]
    with suppress(NotImplementedError):  # an exported program, whose mode is fixed
        model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
