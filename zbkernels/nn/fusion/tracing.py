"""The graph of one module's own forward, with its children as single steps; or the reason why there is none.

A graph is what forward did once. What it did may depend on attributes of the module, on optional arguments and on
chance: so attributes that were read are kept, to be compared before each call (:mod:`guards`), optional arguments are
left at their defaults, and a forward that writes attributes or draws random numbers while it decides is not taken.
Nor is one with a ``with`` statement, its decorators' included: a graph knows no autocast and no no_grad.
"""

from __future__ import annotations

import copy
import dis
import functools
import inspect
import random
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from zbkernels.nn.fusion.guards import STATE, Guard, kept, of_call, of_children, of_globals, of_reads, size


class NotTraced(Exception):
    """There is no graph of a module; the message is why."""


@dataclass(frozen=True)
class Traced:
    """What a module's forward does in its present mode.

    Attributes:
        inputs: names of the arguments without a default, which must be tensors.
        guards: what forward looked at, which must still be so when the graph is used.
        inlined: paths of the children whose own steps are in the graph, in place of their call.
    """

    graph: fx.Graph
    inputs: tuple[str, ...]
    guards: tuple[Guard, ...]
    inlined: frozenset[str] = frozenset()


class _Proxy(fx.Proxy):
    """Answers for a tensor, or not at all: what an input may have or lack beyond that would be settled by the trace."""

    def __getattr__(self, name: str) -> Any:
        unsettled = name in _UNSETTLED or not hasattr(torch.Tensor, name)
        if unsettled and self.node.op == "placeholder" and name[:2] != "__":
            raise fx.proxy.TraceError(f"it asks for the attribute {name} of an input")
        return super().__getattr__(name)


_UNSETTLED = ("grad_fn", "grad", "_base", "names")  # that of a tensor, but None or not from call to call


class _Tracer(fx.Tracer):
    """Only of its own thread: torch.fx catches the calls of modules in all of them."""

    def __init__(self, inlined: frozenset[str]) -> None:
        super().__init__()
        self.inlined = inlined
        self.thread = threading.get_ident()

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self.thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name not in self.inlined

    def to_bool(self, obj: fx.Proxy) -> bool:
        """An assert stays one in the graph; else a forward that asks for values has no graph."""
        asking = inspect.currentframe()
        while asking is not None and asking.f_code.co_name in ("to_bool", "__bool__"):
            asking = asking.f_back
        if asking is None or not _asserts(asking.f_code, asking.f_lasti):
            return super().to_bool(obj)
        self.create_proxy("call_function", torch._assert, (obj, _ASSERT), {})
        return True


_ASSERT = "an assert in the forward of a fused module does not hold; zb.unfuse(model) brings its message back"


def _asserts(code: types.CodeType, at: int) -> bool:
    """Whether the condition that the instruction asks for leads to an AssertionError at once where it is false."""
    instructions = [each for each in dis.get_instructions(code) if each.opname != "NOT_TAKEN"]
    (now,) = [index for index, each in enumerate(instructions) if each.offset == at]
    if instructions[now].opname == "TO_BOOL":  # Python 3.13: the jump is the next one
        now += 1
    jump = instructions[now]
    if "JUMP" not in jump.opname:
        return False
    if jump.opname.endswith("IF_TRUE"):
        target = instructions[now + 1]
    else:
        target = next(each for each in instructions if each.offset == jump.argval)
    raises = target.opname == "LOAD_ASSERTION_ERROR" or target.argval is AssertionError
    return raises and jump.opname.endswith(("IF_TRUE", "IF_FALSE"))


def trace(module: nn.Module, inlined: frozenset[str] = frozenset()) -> Traced:
    """The graph of ``module.forward`` as its class defines it.

    Args:
        inlined: paths of descendants that are to be gone into; others are single steps.

    Raises:
        NotTraced: it depends on values, on isinstance, on chance, writes attributes, has a ``with`` statement or takes
            any number of arguments.
    """
    if "forward" in module.__dict__:
        raise NotTraced("it has a forward of its own, which its class does not know")
    inputs, defaults = _arguments(module)
    globals_read = _look_at_source(module)
    for path in inlined:
        globals_read += _look_at_source(module.get_submodule(path))
    record = _Record(module)
    with _no_chance(), record.kept():
        try:
            graph = _Tracer(inlined).trace(module, concrete_args=defaults)
        except Exception as error:  # whatever someone's forward raises when it is given proxies
            raise NotTraced(f"its forward cannot be traced: {_one_line(error)}") from error
    if record.changed:
        raise NotTraced(f"its forward changes the attribute {record.changed[0]}")
    guards = of_reads((path, name, value) for (path, name), value in record.reads.items())
    guards += [of_call(module, path) for path in sorted(inlined)]
    return Traced(graph, inputs, (*guards, *of_globals(globals_read), *of_children(module, graph)), inlined)


def _arguments(module: nn.Module) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The names of the arguments that must be given, and the values of those that need not."""
    try:
        parameters = inspect.signature(types.MethodType(type(module).forward, module)).parameters.values()
    except (TypeError, ValueError) as error:
        raise NotTraced(f"its forward has no signature: {_one_line(error)}") from error
    inputs, defaults = [], {}
    for each in parameters:
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            raise NotTraced(f"its forward takes any number of arguments (*{each.name})")
        if each.default is each.empty:
            inputs.append(each.name)
        elif isinstance(each.default, (tuple, list, dict)):
            raise NotTraced(f"its forward has a {type(each.default).__name__} as a default ({each.name})")
        else:
            defaults[each.name] = each.default
    return tuple(inputs), defaults


# What a proxy answers otherwise than a tensor does, so that forward takes another branch than it would; and what a
# trace would settle once although it may change from call to call, or would drop.
_ASKED = {
    "isinstance": "asks for the type of a value",
    "issubclass": "asks for the type of a value",
    "type": "asks for the type of a value",
    "is_tensor": "asks for the type of a value",
    "__class__": "asks for the type of a value",
    "hasattr": "asks for an attribute of a value",
    "grad_fn": "asks for what autograd knows of a value",
    "is_grad_enabled": "asks whether gradients are recorded",
    "is_autocast_enabled": "asks for autocast",
    "is_compiling": "asks whether it is compiled",
    "checkpoint": "recomputes parts of itself in the backward",
    "print": "prints",
    "no_grad": "switches gradients off",
    "set_grad_enabled": "switches gradients",
    "inference_mode": "switches gradients off",
    "autocast": "switches autocast",
    "enter_context": "enters a context",
    "__enter__": "enters a context",
}
_GLOBALS_ONLY = ("type", "print")  # x.type(…) is a conversion
_ATTRIBUTES_ONLY = ("__class__",)  # super() reads a cell of this name
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_CONTEXTS = ("SETUP_WITH", "BEFORE_WITH", "LOAD_SPECIAL")  # of Python 3.10, 3.11 to 3.13, 3.14
Scope = dict[str, Any]  # the globals of a function


def put_on(kind: type) -> bool:
    """Whether torch made a module's class on the spot, on top of the one that was written: parametrizations do, and
    ``fully_shard``."""
    bases = [each for each in kind.__bases__ if issubclass(each, nn.Module)]
    by_torch = kind.__module__.startswith(("torch.nn.utils.parametrize", "torch.distributed."))
    return by_torch and "forward" not in vars(kind) and len(bases) == 1 and bases[0] is not nn.Module


def written(kind: type) -> type:
    """The class under those."""
    while put_on(kind):
        kind = next(each for each in kind.__bases__ if issubclass(each, nn.Module))
    return kind


def _look_at_source(module: nn.Module) -> list[tuple[Scope, str]]:
    """Refuse what a trace would get wrong without noticing; returns the globals that may be read."""
    read: list[tuple[Scope, str]] = []
    kind = written(type(module))
    if kind.__module__.startswith("torch.nn."):
        return read
    for name, code, scope in _codes(kind, vars(module)):
        for each in dis.get_instructions(code):
            word = each.argval if isinstance(each.argval, str) else ""
            is_global = each.opname in ("LOAD_GLOBAL", "LOAD_NAME")
            is_other = (word in _GLOBALS_ONLY and not is_global) or (
                word in _ATTRIBUTES_ONLY and each.opname not in _ATTRIBUTES
            )
            if word in _ASKED and not is_other:
                raise NotTraced(f"its {name} {_ASKED[word]} ({word})")
            if each.opname.startswith("MATCH_"):
                raise NotTraced(f"its {name} asks for the type of a value (match)")
            if each.opname in _CONTEXTS:
                raise NotTraced(
                    f"its {name} has a with statement (a decorator's counts too), of which a graph knows nothing"
                )
            if each.opname == "STORE_GLOBAL":
                raise NotTraced(f"its {name} changes the global {word}")
            if is_global and word in scope:
                _refuse_generator(word, scope[word])
                read.append((scope, word))
    return read


def _codes(kind: type[nn.Module], own: dict[str, Any]) -> Iterator[tuple[str, types.CodeType, Scope]]:
    """The code of forward and of its decorators, of what it may call by name (methods of its class and of those below,
    functions that the module has as attributes, those beside it and in modules and classes that it names), and of what
    is nested in them, each with its globals."""
    seen: set[Any] = set()
    found: list[tuple[str, Any, Scope]] = [("forward", getattr(kind, "forward", None), {})]
    while found:
        name, it, scope = found.pop()
        it = _function_of(it)
        if isinstance(it, types.FunctionType):
            scope = it.__globals__
            inner = [getattr(it, "__wrapped__", None), *map(_held, it.__closure__ or ())]
            found += [(name, each, scope) for each in inner if _function_of(each) is not None]
            it = it.__code__
        if not isinstance(it, types.CodeType) or it in seen:
            continue
        seen.add(it)
        yield name, it, scope
        found += [(name, const, scope) for const in it.co_consts if isinstance(const, types.CodeType)]
        for other in it.co_names:
            methods = [vars(base).get(other) for base in kind.__mro__ if base not in (nn.Module, object)]
            beside = [own.get(other), *_named(other, it.co_names, scope)]
            named = [*methods, *(each for each in beside if _is_theirs(_function_of(each)))]
            found += [(other, each, scope) for each in named if _function_of(each) is not None]


def _named(name: str, names: tuple[str, ...], scope: Scope) -> list[Any]:
    """What the name may stand for: a global, or an attribute of a module or class that the same code names."""
    holders = [scope[each] for each in names if isinstance(scope.get(each), (types.ModuleType, type))]
    for holder in holders:  # grows by the modules within packages
        inside = [vars(holder).get(each) for each in names] if _is_theirs(holder) else []
        holders += [each for each in inside if isinstance(each, types.ModuleType) and each not in holders]
    return [scope.get(name), *(inspect.getattr_static(each, name, None) for each in holders)]


def _is_theirs(it: Any) -> bool:
    """Not of torch or of Python itself, whose functions stand as one step in a graph or do as they say."""
    name: str = getattr(it, "__module__", None) or getattr(it, "__name__", None) or ""
    return name.split(".")[0] not in _NOT_THEIRS


_NOT_THEIRS = frozenset({"torch", "numpy", "builtins", *sys.stdlib_module_names})


def _function_of(it: Any) -> types.FunctionType | types.CodeType | None:
    """The Python code behind something that can be called or read; None: it has none of its own."""
    if isinstance(it, (types.FunctionType, types.CodeType)):
        return it
    if isinstance(it, (staticmethod, classmethod, types.MethodType)):
        return _function_of(it.__func__)
    if isinstance(it, property):
        return _function_of(it.fget)
    if isinstance(it, (functools.partial, functools.cached_property)):
        return _function_of(it.func)
    if isinstance(it, (type, nn.Module, types.ModuleType)) or it is None:
        return None
    call = vars(type(it)).get("__call__")  # an object that can be called
    return call if isinstance(call, types.FunctionType) else None


def _held(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet bound
        return None


_LOCK = threading.Lock()
_MISSING = object()


class _Record:
    """Which plain attributes of a module and its children are read, with their values, and which are changed."""

    def __init__(self, module: nn.Module) -> None:
        self.paths = {id(each): path for path, each in module.named_modules()}
        self.reads: dict[tuple[str, str], Any] = {}  # (path, attribute) -> what it held
        self.changed: list[str] = []
        self._contents: dict[int, tuple[str, Any, Any]] = {}  # of lists, dicts and sets that were read
        self._written: dict[tuple[int, str], tuple[nn.Module, Any]] = {}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Watch within the block, and put everything back that was changed there: a proxy must not stay in a model."""
        put, thread = nn.Module.__setattr__, threading.get_ident()

        def get_and_note(module: nn.Module, name: str) -> Any:
            value = object.__getattribute__(module, name)
            if name in _OF_EVERY_MODULE or id(module) not in self.paths or threading.get_ident() != thread:
                return value
            if name in module.__dict__ or _is_setting(type(module), name):
                self._note(self.paths[id(module)], name, value)
            return value

        def put_and_note(module: nn.Module, name: str, value: Any) -> None:
            if id(module) in self.paths and threading.get_ident() == thread:
                self._written.setdefault((id(module), name), (module, module.__dict__.get(name, _MISSING)))
            put(module, name, value)

        with _LOCK:
            nn.Module.__getattribute__ = get_and_note  # type: ignore[method-assign, assignment]
            nn.Module.__setattr__ = put_and_note  # type: ignore[method-assign, assignment]
            try:
                yield
            finally:
                del nn.Module.__getattribute__
                nn.Module.__setattr__ = put  # type: ignore[method-assign]
                self._put_back()

    def _note(self, path: str, name: str, value: Any) -> None:
        _refuse_generator(name, value)
        if (path, name) not in self.reads:
            self.reads[path, name] = kept(value)
            if size(self.reads[path, name]) > _MOST_COMPARED:
                raise NotTraced(f"it holds too much in {name} to be compared in each call")
        if isinstance(value, (list, dict, set)):
            self._contents.setdefault(id(value), (name, value, copy.copy(value)))

    def _put_back(self) -> None:
        for (_, name), (module, before) in self._written.items():
            self.changed.append(name)
            if before is _MISSING:
                module.__dict__.pop(name, None)
            else:
                module.__dict__[name] = before
        for name, value, before in self._contents.values():
            if [*map(id, _items(value))] != [*map(id, _items(before))]:
                self.changed.append(name)
                value.clear()
                value.extend(before) if isinstance(value, list) else value.update(before)


_MOST_COMPARED = 1000  # a third of a millisecond
# Of the attributes that every module has, only its mode is a setting.
_OF_EVERY_MODULE = frozenset({*vars(nn.Module()), "__dict__", "__class__", STATE} - {"training"})


def _is_setting(kind: type, name: str) -> bool:
    """Whether a class's attribute is a value, which an instance may have another of: no method, no property."""
    value = inspect.getattr_static(kind, name, None)
    return name[:2] != "__" and not hasattr(value, "__get__") and name not in vars(nn.Module)


def _refuse_generator(name: str, value: Any) -> None:
    if isinstance(value, (random.Random, torch.Generator, np.random.Generator, np.random.RandomState)):
        raise NotTraced(f"it draws from the generator of random numbers {name}")


def _items(value: Any) -> list[Any]:
    return [*value, *value.values()] if isinstance(value, dict) else list(value)


@contextmanager
def _no_chance() -> Iterator[None]:
    before, cuda = (random.getstate(), torch.get_rng_state(), np.random.get_state()), _cuda_states()
    try:
        yield
    finally:
        drawn = random.getstate() != before[0] or not torch.equal(torch.get_rng_state(), before[1])
        drawn = drawn or not _equal(np.random.get_state(), before[2])
        drawn = drawn or any(not torch.equal(*pair) for pair in zip(_cuda_states(), cuda, strict=False))
        random.setstate(before[0])
        torch.set_rng_state(before[1])
        np.random.set_state(before[2])
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
    if drawn:
        raise NotTraced("its forward draws random numbers before it decides what to do")


def _equal(one: Any, two: Any) -> bool:
    """Of numpy's state, a tuple with an array in it."""
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def _cuda_states() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def _one_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:120]}" if text else type(error).__name__
