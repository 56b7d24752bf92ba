"""``fuse`` and ``unfuse``: whole models, module by module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from zbkernels.nn.fusion import gains, rewritten
from zbkernels.nn.fusion.borders import may_hold_chains, trace_across
from zbkernels.nn.fusion.chains import Chain
from zbkernels.nn.fusion.gains import Choice
from zbkernels.nn.fusion.report import Fused, FusionReport, NotFused
from zbkernels.nn.fusion.rewritten import Key
from zbkernels.nn.fusion.tracing import NotTraced

_WHEN = ("measured", "rule", "always")


def fuse(model: nn.Module, x: Any = None, *, when: str | None = None) -> FusionReport:
    """Run convolution → ReLU → pool, convolution → ReLU and linear → ReLU of any model as one op, where that is faster.

    The chains may be modules, functions or methods, in any module's forward: in ``nn.Sequential``, behind a flatten,
    with in-place or leaky ReLUs, with a max pool before its ReLU, by a module that is used in several places. The model
    is changed where it is: names, parameters, buffers, children, hooks, ``state_dict`` and ``isinstance`` stay as they
    are, and :func:`unfuse` undoes it. What one op cannot do stays: a convolution with a bias, one with a hook on it,
    or whose un-pooled map is used elsewhere (then without its pool). Results stay the same but for rounding.

    Each forward is traced by ``torch.fx`` in both modes, and guarded: a call that would go another way (another mode,
    an attribute that was changed, an optional argument, a hook that was added) runs the forward as it was written. A
    forward that cannot be traced stays; its children are still looked at.

    Args:
        model: any module; its mode says what is measured, forward (``eval()``) or a training step (``train()``).
        x: an input, or a tuple of them. The model is run on it once, without a trace in its buffers or in torch's
            random numbers, and each chain is measured on the tensors that it meets there.
        when: "measured" (needs x; the default with x), "rule" (by what the benchmarks show; the default without), or
            "always".

    Returns:
        The report: what was fused, with the gain measured, and what was not and why.

    Raises:
        TypeError: ``model`` is no module, TorchScript, or compiled; ``x`` is a dict.
        ValueError: another ``when``, or "measured" without ``x``; the model cannot be run on ``x``.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"fuse: expected model to be an nn.Module, got {type(model).__name__}")
    when = when or ("rule" if x is None else "measured")
    if when not in _WHEN or (when == "measured" and x is None):
        known = (
            f"one of {', '.join(_WHEN)}" if when not in _WHEN else "'rule' or 'always' where x is not given"
        )
        raise ValueError(f"fuse: expected when to be {known}, got {when!r}")
    if isinstance(x, dict):
        raise TypeError(
            "fuse: expected x to be an input or a tuple of inputs, got dict: fused forwards take no keywords"
        )
    for path, module in model.named_modules():
        where = path or "the model"
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError(f"fuse: expected modules in Python, got TorchScript in {where!r}")
        if (
            type(module).__name__ == "OptimizedModule"
        ):  # of torch._dynamo, which is not imported for a look at it
            raise TypeError(f"fuse: {where!r} is compiled; fuse the model before torch.compile")
    unfuse(model)
    found, left = _candidates(model)
    if when == "measured":
        choices = _measure(model, x, found)
    else:
        take = gains.by_rule if when == "rule" else gains.always
        choices = {place: take(chain) for place, chain in found.items()}
    fused = []
    accepted: dict[str, set[Key]] = {}
    for (path, key), chain in found.items():
        choice = choices.get(
            (path, key), Choice(False, "; ".join(["x did not come through here", *chain.notes]))
        )
        name = _name(path, key)
        if choice.take:
            accepted.setdefault(path, set()).add(key)
            why = "; ".join([choice.why, *chain.notes])
            fused.append(Fused(name, str(chain), why, choice.gain))
        else:
            left.append(NotFused(name, f"{chain}: {choice.why}"))
    for path, keys in accepted.items():
        rewritten.install(model.get_submodule(path), frozenset(keys))
    return FusionReport(tuple(fused), tuple(left))


def unfuse(model: nn.Module) -> int:
    """Give every module of a model the forward of its class again; returns how many had another."""
    modules = [module for module in model.modules() if rewritten.is_fused(module)]
    for module in modules:
        rewritten.remove(module)
    return len(modules)


Place = tuple[str, Key]  # path of the module in whose forward the chain is, and the chain's key there


def _candidates(model: nn.Module) -> tuple[dict[Place, Chain], list[NotFused]]:
    found: dict[Place, Chain] = {}
    left: list[tuple[str, NotFused]] = []  # with the path of the module whose forward it is
    inlined: set[nn.Module] = set()
    calls: dict[nn.Module, set[nn.Module]] = {}
    for path, module in model.named_modules():
        if not may_hold_chains(module):
            continue
        why_not = ""
        for _ in rewritten.each_mode(module):
            try:
                traced = trace_across(module)
            except NotTraced as why:
                why_not = str(why)
                continue
            inlined |= {module.get_submodule(child) for child in traced.inlined}
            calls.setdefault(module, set()).update(
                module.get_submodule(str(node.target))
                for node in traced.graph.nodes
                if node.op == "call_module"
            )
            for key, chain in rewritten.keyed(module, traced.graph).items():
                if isinstance(chain, Chain):
                    found.setdefault((path, key), chain)
                elif (path, key) not in found and all(each.path != _name(path, key) for _, each in left):
                    left.append((path, NotFused(_name(path, key), chain)))
        if why_not and not any(place[0] == path for place in found):
            left.append((path, NotFused(path or "forward", why_not)))
    theirs = _never_called(inlined, calls)
    ours = {path for path, module in model.named_modules() if module not in theirs}
    found = {place: chain for place, chain in found.items() if place[0] in ours}
    names = {_name(*place) for place in found}
    return found, [each for path, each in left if path in ours and each.path not in names]


def _never_called(inlined: set[nn.Module], calls: dict[nn.Module, set[nn.Module]]) -> set[nn.Module]:
    """Of the modules whose steps others have gone into those that nobody calls as a whole as well."""
    theirs: set[nn.Module] = set()
    while True:  # grows: what only those call that are not called themselves is not called either
        called = {module for caller, modules in calls.items() if caller not in theirs for module in modules}
        if inlined - called == theirs:
            return theirs
        theirs = inlined - called


def _name(path: str, key: Key) -> str:
    layer, call = key
    name = f"{path}.{layer}" if path else layer
    return f"{name} (call {call + 1})" if call else name


def _measure(model: nn.Module, x: Any, found: dict[Place, Chain]) -> dict[Place, Choice]:
    """Run the model once, and measure each chain when its tensors are there."""
    choices: dict[Place, Choice] = {}

    def watching(place: Place, chain: Chain) -> Callable[..., torch.Tensor]:
        def watched(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            if place not in choices:
                try:
                    choices[place] = gains.measured(chain, x, weight, training=model.training)
                except (RuntimeError, ValueError, TypeError) as error:
                    choices[place] = Choice(False, f"the op refuses it: {str(error).splitlines()[0]}")
            return gains.plain(chain, x, weight)

        return watched

    by_module: dict[str, dict[Key, Chain]] = {}
    for (path, key), chain in found.items():
        by_module.setdefault(path, {})[key] = chain
    try:
        for path, chains in by_module.items():
            ops = {key: watching((path, key), chain) for key, chain in chains.items()}
            rewritten.install(model.get_submodule(path), frozenset(chains), ops)
        with _without_a_trace(model), torch.set_grad_enabled(model.training):
            try:
                model(*x) if isinstance(x, (tuple, list)) else model(x)
            except Exception as error:  # whatever someone's forward raises
                said = next(iter(str(error).strip().splitlines()), "")
                raise ValueError(
                    f"fuse: the model cannot be run on x ({type(error).__name__}: {said})"
                ) from error
    finally:
        unfuse(model)
    return choices


@contextmanager
def _without_a_trace(model: nn.Module) -> Iterator[None]:
    buffers = [(each, each.clone()) for each in model.buffers()]
    devices = {each.device.index or 0 for each in model.parameters() if each.is_cuda}
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        with torch.no_grad():
            for each, before in buffers:
                each.copy_(before)
