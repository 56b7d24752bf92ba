"""Finds convolution, ReLU and pool, or linear and ReLU, in the graph of a forward: as modules, functions or methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.utils import parametrize

from zbkernels.nn.fusion.guards import hooked
from zbkernels.nn.fusion.passing import is_dropout, passes
from zbkernels.ops.conv_relu_pool2d import conv_relu_pool2d
from zbkernels.ops.linear_relu import linear_relu

CONV, LINEAR = "conv2d", "linear"


class NotFused(Exception):
    """A chain cannot be fused; the message is why."""


@dataclass
class Chain:
    """Nodes of one graph that one op can do.

    Attributes:
        kind: CONV or LINEAR.
        nodes: in the order in which they run; the last one's value is the op's.
        arguments: of the op, besides x and weight.
        module: the convolution or linear layer; None where a function is called.
        moved: a flatten that stood before the ReLU and comes after the op.
        notes: for the report.
    """

    kind: str
    nodes: list[fx.Node]
    arguments: dict[str, Any]
    module: nn.Module | None = None
    moved: fx.Node | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def weight(self) -> fx.Node | None:
        """The weight's node, where a function was given it."""
        head = self.nodes[0]
        if self.module is not None:
            return None
        return head.args[1] if len(head.args) > 1 else head.kwargs["weight"]  # type: ignore[return-value]

    @property
    def weight_shape(self) -> tuple[int, ...] | None:
        """[K, C/groups, R, S] or [out, in], where the module or the graph knows it."""
        if self.module is not None:
            return tuple(self.module.weight.shape)  # type: ignore[arg-type]
        example = None if self.weight is None else self.weight.meta.get("example_value")
        return tuple(example.shape) if isinstance(example, torch.Tensor) else None

    def __str__(self) -> str:
        steps = [self.kind if self.kind == LINEAR else "conv", "relu"]
        if self.arguments.get("negative_slope"):
            steps[1] = f"leaky_relu({self.arguments['negative_slope']:g})"
        if self.arguments.get("pool", "none") != "none":
            steps.append(f"{self.arguments['pool']}_pool")
        return " → ".join(steps)


def op_of(chain: Chain) -> Callable[..., Any]:
    """The op that does the chain, called as ``op(x, weight, **chain.arguments)``."""
    return conv_relu_pool2d if chain.kind == CONV else linear_relu


def put_in(graph: fx.Graph, chain: Chain, op: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Put ``op(x, weight, **arguments)`` where the chain begins, in place of the chain."""
    head, last = chain.nodes[0], chain.nodes[-1]
    with graph.inserting_before(head):
        weight = chain.weight or graph.get_attr(f"{head.target}.weight")
        x = head.args[0] if head.args else head.kwargs["input"]
        value = graph.call_function(op, (x, weight), arguments)
        if chain.moved is not None:
            value = graph.node_copy(chain.moved, lambda node: value)
    last.replace_all_uses_with(value)
    for node in reversed(chain.nodes):
        graph.erase_node(node)


def find(root: nn.Module, graph: fx.Graph) -> Iterator[tuple[str, Chain | str]]:
    """(name of the convolution or linear layer, its chain or why it has none), in the order of the graph."""
    for node in graph.nodes:
        kind = _head(root, node)
        if kind is None:
            continue
        try:
            yield _name(node), _chain(root, node, kind)
        except NotFused as why:
            yield _name(node), str(why)


def _name(node: fx.Node) -> str:
    """A layer's path; a function's name behind the path of the module whose forward calls it."""
    if node.op == "call_module":
        return str(node.target)
    inside = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return ".".join([*inside[-1:], getattr(node.target, "__name__", str(node.target))])


def _chain(root: nn.Module, node: fx.Node, kind: str) -> Chain:
    module = root.get_submodule(str(node.target)) if node.op == "call_module" else None
    arguments = _conv_arguments(node, module) if kind == CONV else _linear_arguments(node, module)
    chain = Chain(kind, [node], arguments, module)
    follower = _next(root, chain)
    if follower is None:
        raise NotFused("no ReLU follows" if len(node.users) < 2 else "its output is used in several places")
    pool = _pool_arguments(root, follower) if kind == CONV else None
    if pool is not None and pool["pool"] == "max":  # commutes with a ReLU: both keep the order of values
        chain.nodes.append(follower)
        chain.arguments |= pool
        follower = _next(root, chain)
    elif _is_flatten(root, follower) and len(follower.all_input_nodes) == 1:
        chain.moved = follower
        chain.nodes.append(follower)
        follower = _next(root, chain)
    slope = None if follower is None else slope_of(root, follower)
    if follower is None or slope is None:
        raise NotFused(f"no ReLU follows{_instead(root, follower)}")
    if kind == LINEAR and slope and not _in_place(root, follower):
        # linear_relu keeps its result for its gradient, torch's leaky ReLU keeps what it was given.
        raise NotFused("its leaky ReLU is not in place, so that what comes after may write into the result")
    chain.nodes.append(follower)
    chain.arguments["negative_slope"] = slope
    if kind == CONV and pool is None:
        chain.arguments["pool"] = "none"
        relu = len(chain.nodes)
        after = _next(root, chain) if chain.moved is None else None
        pool = None if after is None else _pool_arguments(root, after)
        if after is not None and pool is not None:
            chain.nodes.append(after)
            chain.arguments |= pool
        else:
            del chain.nodes[relu:]
            if any(_pool_arguments(root, user) is not None for user in follower.users):
                chain.notes.append("without its pool: the un-pooled map is used elsewhere")
    if any(passes(root, each) and is_dropout(root, each) for each in chain.nodes):
        chain.notes.append("in eval() alone: a dropout stands within")
    return chain


def _next(root: nn.Module, chain: Chain) -> fx.Node | None:
    """The only user of the chain's value that does something; those before it that do nothing join the chain."""
    follower = _only_user(chain.nodes[-1])
    while follower is not None and passes(root, follower):
        chain.nodes.append(follower)
        follower = _only_user(follower)
    return follower


def _instead(root: nn.Module, follower: fx.Node | None) -> str:
    """What stands where a ReLU would have to, if it is a layer."""
    if follower is None or follower.op != "call_module":
        return ""
    return f", but {follower.target} ({type(root.get_submodule(str(follower.target))).__name__})"


def _only_user(node: fx.Node) -> fx.Node | None:
    """The node that uses this one's value, where just one does, once, as its first argument."""
    if len(node.users) != 1:
        return None
    user = next(iter(node.users))
    used = [value for value in user.all_input_nodes if value is node]
    return user if len(used) == 1 and user.op != "output" and user.args[:1] == (node,) else None


def _head(root: nn.Module, node: fx.Node) -> str | None:
    if node.op == "call_function":
        if node.target in (F.conv2d, torch.conv2d):
            return CONV
        return LINEAR if node.target in (F.linear, torch._C._nn.linear) else None
    if node.op != "call_module":
        return None
    module = root.get_submodule(str(node.target))
    for layer, kind in ((nn.Conv2d, CONV), (nn.Linear, LINEAR)):
        if isinstance(module, layer):
            # A subclass that computes its weight is a block with a function in it, which its own graph shows.
            methods = ("forward", "_conv_forward") if kind == CONV else ("forward",)
            plain = all(getattr(type(module), name) is getattr(layer, name) for name in methods)
            return kind if plain else None
    return None


def _conv_arguments(node: fx.Node, module: nn.Module | None) -> dict[str, Any]:
    if module is None:
        given = _bound(_conv2d, node)
        if given["bias"] is not None:
            raise NotFused("it has a bias")
        settings = {key: given[key] for key in ("stride", "padding", "dilation", "groups")}
        if _holds_nodes(settings):
            raise NotFused("its stride, padding, dilation or groups are values of the graph")
        return settings
    assert isinstance(module, nn.Conv2d)
    _check_module(module)
    if module.padding_mode != "zeros":
        raise NotFused(f"its padding_mode is {module.padding_mode!r}")
    return {
        "stride": module.stride,
        "padding": module.padding,
        "dilation": module.dilation,
        "groups": module.groups,
    }


def _linear_arguments(node: fx.Node, module: nn.Module | None) -> dict[str, Any]:
    if module is None:
        if _bound(_linear, node)["bias"] is not None:
            raise NotFused("it has a bias")
        return {}
    _check_module(module)
    return {}


def _check_module(module: nn.Module) -> None:
    if "forward" in module.__dict__ or "_conv_forward" in module.__dict__:
        raise NotFused(f"{type(module).__name__} has a forward of its own")
    if isinstance(module, nn.modules.lazy.LazyModuleMixin):
        raise NotFused("it is lazy and has no weight yet; run the model once before")
    if module._parameters.get("bias") is not None or parametrize.is_parametrized(module, "bias"):
        raise NotFused("it has a bias")
    if hooked(module):
        raise NotFused("a hook is on it")


def slope_of(root: nn.Module, node: fx.Node) -> float | None:
    """The negative slope of a node that is a ReLU or leaky ReLU of its first argument; None: it is something else."""
    slope: Any = None
    if node.op == "call_module":
        module = root.get_submodule(str(node.target))
        if type(module) is nn.ReLU:
            slope = 0.0
        elif type(module) is nn.LeakyReLU:
            slope = module.negative_slope
        if slope is not None and hooked(module):
            raise NotFused(f"a hook is on its ReLU {node.target}")
    elif node.op == "call_method":
        slope = 0.0 if node.target in ("relu", "relu_") else None
    elif node.target in (F.relu, torch.relu, torch.relu_, F.relu_):
        slope = 0.0
    elif node.target in (F.leaky_relu, F.leaky_relu_):
        slope = _bound(_leaky, node)["negative_slope"]
    return slope if isinstance(slope, (int, float)) and 0 <= slope <= 1 else None


def is_pool(root: nn.Module, node: fx.Node) -> bool:
    """Whether the node is a max or average pool that the op can do."""
    return _pool_arguments(root, node) is not None


def _in_place(root: nn.Module, node: fx.Node) -> bool:
    """Of a leaky ReLU."""
    if node.op == "call_module":
        return bool(root.get_submodule(str(node.target)).inplace)
    return node.target is F.leaky_relu_ or bool(_bound(_leaky, node)["inplace"])


def _pool_arguments(root: nn.Module, node: fx.Node) -> dict[str, Any] | None:
    """What the op is told of a max or average pool; None: the node is none that the op can do."""
    if node.op == "call_module":
        module = root.get_submodule(str(node.target))
        if type(module) not in (nn.MaxPool2d, nn.AvgPool2d) or hooked(module):
            return None
        given = {key: value for key, value in vars(module).items() if key[0] != "_"}
        name = "max" if type(module) is nn.MaxPool2d else "avg"
    elif node.target in (F.max_pool2d, torch.max_pool2d):
        name, given = "max", _bound(_max_pool, node)
    elif node.target in (F.avg_pool2d, torch._C._nn.avg_pool2d):
        name, given = "avg", _bound(_avg_pool, node)
    else:
        return None
    if given.get("return_indices") or given.get("dilation", 1) not in (1, (1, 1), [1, 1]):
        return None
    if given.get("divisor_override") is not None:
        return None
    found = {"pool": name, "pool_kernel": given["kernel_size"], "pool_stride": given["stride"]}
    found |= {"pool_padding": given["padding"], "ceil_mode": given["ceil_mode"]}
    if name == "avg":
        found["count_include_pad"] = given["count_include_pad"]
    fixed = all(isinstance(value, (int, bool, str, tuple, list, type(None))) for value in found.values())
    return found if fixed and not _holds_nodes(found) else None


def _holds_nodes(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_nodes, value.values()))
    if isinstance(value, (tuple, list)):
        return any(map(_holds_nodes, value))
    return isinstance(value, fx.Node)


def _is_flatten(root: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        module = root.get_submodule(str(node.target))
        return type(module) is nn.Flatten and not hooked(module)
    return (node.op == "call_function" and node.target is torch.flatten) or (
        node.op == "call_method" and node.target == "flatten"
    )


def _bound(signature: Callable[..., Any], node: fx.Node) -> dict[str, Any]:
    """A function's arguments by name."""
    try:
        bound = inspect.signature(signature).bind(*node.args, **node.kwargs)
    except TypeError as error:
        raise NotFused(f"its arguments are not understood ({error})") from error
    bound.apply_defaults()
    return dict(bound.arguments)


# What torch's functions take, some of which are builtins without a signature.
def _conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Any = 1,
) -> None: ...


def _linear(input: Any, weight: Any, bias: Any = None) -> None: ...


def _leaky(input: Any, negative_slope: Any = 0.01, inplace: Any = False) -> None: ...


def _max_pool(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: Any = False,
    return_indices: Any = False,
) -> None: ...


def _avg_pool(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: Any = False,
    count_include_pad: Any = True,
    divisor_override: Any = None,
) -> None: ...
