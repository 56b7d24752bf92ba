"""A module whose forward runs fused ops where that was found to be the same, and its class's own forward where not.

The module gets a subclass of its class, made here, with a forward of its own: names, parameters, children, hooks and
``isinstance`` stay as they are, and so do copies, pickles and replicas. Each way through forward (training or not,
other attributes) has a graph of its own; a call that fits none runs the class's forward, unfused.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from zbkernels.nn.fusion.borders import trace_across
from zbkernels.nn.fusion.chains import Chain, find, op_of, put_in
from zbkernels.nn.fusion.guards import STATE, Guard, as_written, of_layer
from zbkernels.nn.fusion.tracing import NotTraced, put_on

_MOST_WAYS = 8  # through one forward; a module that has more of them runs unfused where these don't fit
Key = tuple[str, int]  # name of a convolution or linear layer, and which of its calls in forward


@dataclass(frozen=True)
class Way:
    """One way through forward, with what it rests on."""

    inputs: tuple[str, ...]
    guards: tuple[Guard, ...]
    function: Callable[..., Any]

    def fits(self, module: nn.Module, count: int) -> bool:
        if count != len(self.inputs):
            return False
        for guard in self.guards:  # noqa: SIM110  (torch.compile reads this, and takes no generators)
            if not guard.holds(module):
                return False
        return True


class State:
    """What a fused module knows: the chains that are to be fused, and the ways through forward that were traced."""

    def __init__(self, accepted: frozenset[Key]) -> None:
        self.accepted = accepted
        self.ways: list[Way] = []
        self.given_up = False

    def __getstate__(self) -> dict[str, Any]:
        return {"accepted": self.accepted}  # graphs are found again where the module is loaded

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["accepted"])  # type: ignore[misc]

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        """With the ways, which name children by path: a copy that is compiled at once has them."""
        twin = State(self.accepted)
        twin.ways = list(self.ways)
        return twin

    def function(self, module: nn.Module, args: tuple[Any, ...]) -> Callable[..., Any] | None:
        """What to call instead of forward; None: forward."""
        # The older ONNX exporter goes by TorchScript and knows no op of ours.
        if torch.jit.is_tracing() and torch.onnx.is_in_onnx_export():
            return None
        for each in args:
            if not isinstance(each, torch.Tensor):
                return None
        for way in self.ways:
            if way.fits(module, len(args)):
                return way.function
        if self.given_up or torch.compiler.is_compiling() or len(self.ways) >= _MOST_WAYS:
            return None
        return self._another(module, args)

    def _another(self, module: nn.Module, args: tuple[Any, ...]) -> Callable[..., Any] | None:
        try:
            self.ways.append(way_through(module, self.accepted))
        except NotTraced:
            self.given_up = True
            return None
        way = self.ways[-1]
        return way.function if way.fits(module, len(args)) else None


def way_through(
    module: nn.Module, accepted: frozenset[Key], ops: Mapping[Key, Callable[..., Any]] | None = None
) -> Way:
    """Trace the module as it is now and put the accepted chains' ops in, or ``ops`` in their place.

    Raises:
        NotTraced: as :func:`zbkernels.nn.fusion.tracing.trace`.
    """
    traced = trace_across(module)
    guards = list(traced.guards)
    for key, chain in keyed(module, traced.graph).items():
        if key in accepted and isinstance(chain, Chain):
            layers = [of_layer(module, str(node.target)) for node in chain.nodes if node.op == "call_module"]
            if ops is None:
                put_in(traced.graph, chain, op_of(chain), chain.arguments)
            else:
                put_in(traced.graph, chain, ops[key], {})
            guards += layers
    return Way(traced.inputs, tuple(guards), compiled(traced.graph))


def keyed(module: nn.Module, graph: fx.Graph) -> dict[Key, Chain | str]:
    """Each convolution's and linear layer's chain, or the reason why it has none."""
    calls: dict[str, int] = {}
    result: dict[Key, Chain | str] = {}
    for name, chain in find(module, graph):
        calls[name] = calls.get(name, 0) + 1
        result[name, calls[name] - 1] = chain
    return result


def compiled(graph: fx.Graph) -> Callable[..., Any]:
    """``function(module, *inputs)`` that does what the graph says, on the module's children as they are then."""
    graph.lint()
    code = graph.python_code("self")
    names: dict[str, Any] = dict(code.globals)
    exec(compile(code.src, "<fused forward>", "exec"), names)  # source that torch.fx wrote
    function: Callable[..., Any] = names["forward"]
    return function


_classes: weakref.WeakKeyDictionary[type, type] = weakref.WeakKeyDictionary()
_kinds: weakref.WeakKeyDictionary[type, weakref.ref[type]] = weakref.WeakKeyDictionary()  # the other way


def fused_class(kind: type[nn.Module]) -> type[nn.Module]:
    """The subclass of a module's class that a fused module has; one for each class."""
    if kind not in _classes:

        @functools.wraps(kind.forward)
        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # What was made of the class, as by slicing a Sequential, has no state.
            state = None if kwargs else getattr(self, STATE, None)
            function = None if state is None else state.function(self, args)
            return kind.forward(self, *args, **kwargs) if function is None else function(self, *args)

        def reduce(self: nn.Module, protocol: Any) -> Any:
            reduced = kind.__reduce_ex__(self, protocol)
            if isinstance(reduced, str):  # a global's name: the module is made by importing it
                return reduced
            make, arguments, *rest = reduced
            named = tuple(kind if each is type(self) else each for each in arguments)
            return (_made, (kind, make, named), *rest)

        def as_written(self: nn.Module) -> Any:
            """For torch.jit.script, which reads sources: the same module without its fused forward."""
            twin = object.__new__(kind)
            twin.__dict__.update({name: value for name, value in self.__dict__.items() if name != STATE})
            twin.__dict__["_modules"] = dict(self._modules)  # the compiler puts children of its own there
            prepare = getattr(twin, "__prepare_scriptable__", None)
            return twin if prepare is None else prepare()

        members = {
            "forward": forward,
            "__reduce_ex__": reduce,
            "__prepare_scriptable__": as_written,
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__doc__": kind.__doc__,
            "_zb_as_written": kind,
        }
        _classes[kind] = type(kind.__name__, (kind,), members)
        _kinds[_classes[kind]] = weakref.ref(kind)
    return _classes[kind]


def _with_forward(kind: type, *, fused: bool) -> type:
    """A module's class with the fused forward, or without. What torch put on top (:func:`put_on`) stays on top, where
    it looks for names of its own."""
    known = _kinds.get(kind)
    if known is not None:
        base = known()
        assert base is not None  # the fused class keeps it
        kind = base
    elif put_on(kind):
        bases = tuple(
            _with_forward(each, fused=fused) if issubclass(each, nn.Module) else each
            for each in kind.__bases__
        )
        body = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
        return kind if bases == kind.__bases__ else type(kind)(kind.__name__, bases, body)
    return fused_class(kind) if fused else kind


def _made(kind: type[nn.Module], make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """An empty module of the fused class, as pickle and copy make it."""
    return make(*(fused_class(kind) if each is kind else each for each in arguments))


def is_fused(module: nn.Module) -> bool:
    """Also of what was made of a fused module's class, as by slicing a Sequential, and runs as written."""
    return as_written(type(module)) is not type(module)


def install(
    module: nn.Module, accepted: frozenset[Key], ops: Mapping[Key, Callable[..., Any]] | None = None
) -> None:
    """Have the module run fused; both its modes are traced now, so that torch.compile finds them."""
    state = State(accepted)
    for _ in each_mode(module):
        with suppress(NotTraced):
            way = way_through(module, accepted, ops)
            if not any(other.fits(module, len(way.inputs)) for other in state.ways):
                state.ways.append(way)
    module.__class__ = _with_forward(type(module), fused=True)
    module.__dict__[STATE] = state


def each_mode(module: nn.Module) -> Iterator[None]:
    """Once with the module as it is, once with it and its children in the other mode; then it is as it was."""
    yield
    before = [(each, each.training) for each in module.modules()]
    other = not module.training
    try:
        for each, _ in before:
            each.__dict__["training"] = other
        yield
    finally:
        for each, mode in before:
            each.__dict__["training"] = mode


def remove(module: nn.Module) -> None:
    module.__class__ = _with_forward(type(module), fused=False)
    module.__dict__.pop(STATE, None)
