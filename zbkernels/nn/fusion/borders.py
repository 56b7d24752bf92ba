"""Graphs that go into children where a chain begins in one module and ends in another.

A block of convolution and ReLU, with its pool in the model around it; a convolution whose ReLU stands in a wrapper:
such children are traced through, and only they, so that every other child stays one step and keeps its own forward.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx, nn

from zbkernels.nn.fusion.chains import Chain, NotFused, find, is_pool, slope_of
from zbkernels.nn.fusion.guards import as_written, hooked
from zbkernels.nn.fusion.passing import passes
from zbkernels.nn.fusion.tracing import NotTraced, Traced, trace, written

_DEPTH = 6  # containers in containers in …


def may_hold_chains(module: nn.Module) -> bool:
    """Not torch's own layers, whose forward is one step, but its containers."""
    kind = written(as_written(type(module)))
    own = kind.__module__.startswith("torch.nn.")
    return kind is nn.Sequential or (not own and hasattr(kind, "forward"))


def trace_across(module: nn.Module) -> Traced:
    """:func:`zbkernels.nn.fusion.tracing.trace`, through those children that hold a part of a chain.

    Raises:
        NotTraced: as ``trace`` does for the module itself. A child that can't be traced stays one step.
    """
    traced = trace(module)
    tried: set[str] = set()
    for _ in range(_DEPTH):
        more = {path for path in _at_borders(module, traced.graph) if path not in tried}
        tried |= more
        more = {path for path in more if _can_be_inlined(module, path)}
        if not more:
            break
        try:
            traced = trace(module, traced.inlined | more)
        except NotTraced:  # of the two together, though of neither alone
            break
    needed = _needed(module, traced)
    return traced if needed == traced.inlined else trace(module, needed)


def _at_borders(root: nn.Module, graph: fx.Graph) -> Iterator[str]:
    """Children that may hold a part of a chain the rest of which is outside."""
    for node in graph.nodes:
        if not _is_container(root, node):
            continue
        follower = _only_user(root, node)
        is_small = _has_no_weights(root, node)  # a wrapper around an activation or a pool
        if is_small or (follower is not None and _may_end_a_chain(root, follower)):
            yield str(node.target)


def _is_container(root: nn.Module, node: fx.Node) -> bool:
    return node.op == "call_module" and may_hold_chains(root.get_submodule(str(node.target)))


def _has_no_weights(root: nn.Module, node: fx.Node) -> bool:
    return next(root.get_submodule(str(node.target)).parameters(), None) is None


def _only_user(root: nn.Module, node: fx.Node) -> fx.Node | None:
    while len(node.users) == 1:
        (node,) = node.users
        if not passes(root, node):
            return node
    return None


def _may_end_a_chain(root: nn.Module, node: fx.Node) -> bool:
    if _is_container(root, node):
        return _has_no_weights(root, node)
    try:
        return is_pool(root, node) or slope_of(root, node) is not None
    except NotFused:
        return False


def _can_be_inlined(root: nn.Module, path: str) -> bool:
    child = root.get_submodule(path)
    if (
        hooked(child)
        or type(child).__call__ is not nn.Module.__call__
        or isinstance(child, torch.jit.ScriptModule)
    ):
        return False
    try:
        trace(child)
    except NotTraced:
        return False
    return True


def _needed(root: nn.Module, traced: Traced) -> frozenset[str]:
    """Of the inlined children those whose border a chain crosses."""
    if not traced.inlined:
        return traced.inlined
    needed: set[str] = set()
    for _, chain in find(root, traced.graph):
        if isinstance(chain, Chain):
            around = [_inlined_around(node, traced) for node in chain.nodes]
            needed |= frozenset.union(*around) - frozenset.intersection(*around)
    # One that is inside another is reached only where that is gone into.
    unneeded = traced.inlined - needed
    return frozenset(path for path in needed if not any(path.startswith(f"{outer}.") for outer in unneeded))


def _inlined_around(node: fx.Node, traced: Traced) -> frozenset[str]:
    stack = node.meta.get("nn_module_stack") or {}
    return frozenset(path for path, _ in stack.values()) & traced.inlined
