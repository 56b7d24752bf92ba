"""What must still be so for a traced graph to be what forward would do: attributes, children, hooks."""

from __future__ import annotations

import copy
import enum
import types
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules import module as hooks_of_all

_SIMPLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_MISSING = object()
STATE = "_zb_fused"  # a fused module's own attribute
# What the layers of a chain do, beyond their class. Their other attributes say nothing of it.
_SETTINGS = (
    *("stride", "padding", "dilation", "groups", "padding_mode", "bias", "negative_slope"),
    *(
        "kernel_size",
        "ceil_mode",
        "count_include_pad",
        "divisor_override",
        "return_indices",
        "start_dim",
        "end_dim",
    ),
)


@dataclass(frozen=True)
class Guard:
    """Of one module below (or at, with an empty path) the one whose forward was traced.

    Attributes:
        path: names of children, from the traced module on.
        kind: its class; None: any.
        attributes: names and what they held.
        children: the names of its children; None: any.
        bare: no hook may be on it, since its call is not made.
        names: globals that forward looked at, by the dictionary that holds them.
    """

    path: tuple[str, ...]
    kind: type | None = None
    attributes: tuple[tuple[str, Any], ...] = ()
    children: tuple[str, ...] | None = None
    bare: bool = False
    names: tuple[tuple[dict[str, Any], str, Any], ...] = ()

    def holds(self, module: nn.Module) -> bool:
        owner: nn.Module | None = module
        for name in self.path:
            owner = owner._modules.get(name) if owner is not None else None
        if owner is None or (self.kind is not None and as_written(type(owner)) is not self.kind):
            return False
        for scope, name, kept in self.names:
            if not same(kept, scope.get(name, _MISSING)):
                return False
        for name, kept in self.attributes:
            if not same(kept, getattr(owner, name, _MISSING)):
                return False
        if self.children is not None and tuple(owner._modules) != self.children:
            return False
        return not (self.bare and hooked(owner))


def of_reads(reads: Iterable[tuple[str, str, Any]]) -> list[Guard]:
    """For attributes that forward looked at: (path of the module, name, what :func:`kept` made of the value)."""
    by_path: dict[str, list[tuple[str, Any]]] = {}
    for path, name, value in reads:
        by_path.setdefault(path, []).append((name, value))
    return [Guard(_names(path), attributes=tuple(found)) for path, found in by_path.items()]


def of_globals(read: Iterable[tuple[dict[str, Any], str]]) -> list[Guard]:
    """For the numbers, flags and names among the globals that forward can see; what else is there is no setting."""
    found = {(id(scope), name): (scope, name, scope[name]) for scope, name in read}
    simple = tuple(each for each in found.values() if isinstance(each[2], _SIMPLE))
    return [Guard((), names=simple)] if simple else []


def of_call(root: nn.Module, path: str) -> Guard:
    """For a module whose own steps stand for its call."""
    return Guard(_names(path), as_written(type(root.get_submodule(path))), bare=True)


def of_children(root: nn.Module, graph: fx.Graph) -> list[Guard]:
    """For the children of each module that forward went through to reach those that it calls."""
    paths = {""}
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            names = str(node.target).split(".")
            paths |= {".".join(names[:length]) for length in range(len(names))}
    return [Guard(_names(path), children=tuple(root.get_submodule(path)._modules)) for path in sorted(paths)]


def of_layer(root: nn.Module, path: str) -> Guard:
    """For a layer whose call an op stands for."""
    layer = root.get_submodule(path)
    names = (*_SETTINGS, "training") if isinstance(layer, nn.modules.dropout._DropoutNd) else _SETTINGS
    attributes = tuple((name, kept(getattr(layer, name))) for name in names if hasattr(layer, name))
    return Guard(_names(path), type(layer), attributes, bare=True)


def _names(path: str) -> tuple[str, ...]:
    return tuple(path.split(".")) if path else ()


def as_written(kind: type) -> type:
    """The class of a module without what fusion made of it."""
    written: type = getattr(kind, "_zb_as_written", kind)
    return written


def hooked(module: nn.Module) -> bool:
    """Whether calling the module does more than its class's forward."""
    return bool(
        "forward" in module.__dict__  # libraries that offload or quantise wrap it there
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or hooks_of_all._global_forward_hooks
        or hooks_of_all._global_forward_pre_hooks
        or hooks_of_all._global_backward_hooks
        or hooks_of_all._global_backward_pre_hooks
    )


def kept(value: Any, depth: int = 0) -> Any:
    """What a later value is to be compared with."""
    if isinstance(value, _SIMPLE):
        return value
    if isinstance(value, (list, tuple, dict, set, frozenset)) and _plain(value):
        return copy.copy(value)
    if isinstance(value, torch.Tensor):
        return SameTensor(value)
    if depth < _DEPTH and type(value) in (list, tuple, dict):
        return Contents(value, depth)
    if depth < _DEPTH and _has_settings(value):
        names = _names_of_settings(value)
        return Settings(value, tuple((name, kept(getattr(value, name), depth + 1)) for name in names))
    return Identity(value)


_DEPTH = 3  # of settings within settings


def size(what: Any) -> int:
    """How many comparisons a later look at what :func:`kept` made takes."""
    if isinstance(what, Contents):
        return 1 + sum(map(size, what.things))
    if isinstance(what, Settings):
        return 1 + sum(size(each) for _, each in what.attributes)
    return 1


def _has_settings(value: Any) -> bool:
    """Of an object of a class written in Python, as configurations are; no module, class, function or constant."""
    is_written = bool(type(value).__flags__ & _WRITTEN) or isinstance(getattr(value, "__dict__", None), dict)
    return is_written and not isinstance(value, _NO_SETTINGS)


_WRITTEN = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_NO_SETTINGS = (
    *(type, types.FunctionType, types.MethodType, types.ModuleType),
    *(nn.Module, torch.Tensor, enum.Enum),
)


def _names_of_settings(value: Any) -> list[str]:
    """Of its values: its own, those in slots, and those that only its class has yet; no methods or properties."""
    names = dict.fromkeys(getattr(value, "__dict__", ()))
    for kind in type(value).__mro__[:-1]:
        for name, each in vars(kind).items():
            is_slot = isinstance(each, types.MemberDescriptorType)
            if name[:2] != "__" and (is_slot or not hasattr(each, "__get__")) and hasattr(value, name):
                names[name] = None
    return list(names)


def _plain(value: Any) -> bool:
    items = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
    return all(isinstance(item, _SIMPLE) or (isinstance(item, tuple) and _plain(item)) for item in items)


class Identity:
    """Compared by being the same object: a function, a module that is no child, …"""

    def __init__(self, value: Any) -> None:
        self.value = value


class Contents:
    """The same number of the same things, of a list, tuple or dict with objects in it."""

    def __init__(self, value: Any, depth: int) -> None:
        self.kind, self.keys = type(value), tuple(value) if isinstance(value, dict) else None
        things = value.values() if isinstance(value, dict) else value
        self.things = tuple(kept(each, depth + 1) for each in things)


class Settings(Identity):
    """The same object with the same values in it."""

    def __init__(self, value: Any, attributes: tuple[tuple[str, Any], ...]) -> None:
        super().__init__(value)
        self.attributes = attributes


class SameTensor:
    """The same for a tensor, which is not kept: it may be one of many that are put there, each with a graph behind
    it."""

    def __init__(self, value: torch.Tensor) -> None:
        self.reference = weakref.ref(value)


def same(before: Any, value: Any) -> bool:
    """Whether an attribute is what it was."""
    if isinstance(before, Contents):
        if type(value) is not before.kind or len(value) != len(before.things):
            return False
        if before.keys is not None and tuple(value) != before.keys:
            return False
        now = value if before.keys is None else list(value.values())
        for thing, each in zip(before.things, now):  # noqa: B905, SIM110  (of one length, and as below)
            if not same(thing, each):
                return False
        return True
    if isinstance(before, Settings):
        if before.value is not value:
            return False
        for name, each in before.attributes:  # noqa: SIM110  (torch.compile takes no generators)
            if not same(each, getattr(value, name, _MISSING)):
                return False
        return True
    if isinstance(before, Identity):
        return before.value is value
    if isinstance(before, SameTensor):
        return before.reference() is value
    return type(before) is type(value) and (before is value or bool(before == value))
