"""Fixup for any residual network: Appendix B of "Scalar Invariant Networks with Zero Bias", on a ``torch.fx`` graph.

1. the last layer of each residual branch and the classification layer start at 0;
2. all other layers start as He et al. have it, N(0, 2 / fan_in), those within residual branches times
   L^(-1/(2m - 2)), for L residual blocks and m layers in the branch;
3. a scalar multiplier, 1 at first, before each convolution, linear and element-wise activation layer of each branch.

Fixup's scalar biases are left out (the paper's footnote 2). Found as a residual block is each sum of two terms of which
one passes fewer layers than the other: none (the identity) or one (a projection).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from zbkernels.nn.conv_relu_pool import ConvReLUPool2d
from zbkernels.nn.linear_relu import LinearReLU
from zbkernels.nn.obstacles import ACTIVATIONS, Change

_WEIGHTED = (_ConvNd, nn.Linear, ConvReLUPool2d, LinearReLU)
_ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.RReLU, *ACTIVATIONS)
_FUNCTIONS = {
    torch.relu, torch.relu_, F.relu, F.relu_, F.leaky_relu, F.leaky_relu_, F.prelu, F.rrelu, F.gelu, F.silu, F.mish,
    F.relu6, F.elu, F.hardtanh, F.hardswish, torch.tanh, torch.sigmoid,
}  # fmt: skip
_METHODS = {"relu", "relu_", "tanh", "sigmoid"}
_ADDS = {operator.add, operator.iadd, torch.add, "add", "add_"}


def branch_scale(blocks: int, layers: int) -> float:
    """L^(-1/(2m-2)), of all layers of a branch but its last, for ``blocks`` = L and ``layers`` = m (1 where m is)."""
    return float(blocks ** (-1 / (2 * layers - 2))) if layers > 1 else 1.0


class ScalarMultiplier(nn.Module):
    """``x · weight`` with one trained number, 1 at first. It is of shape [1], since FSDP takes no scalars."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_load_state_dict_pre_hook(_in_one_dimension)

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def _in_one_dimension(module: nn.Module, state: dict[str, torch.Tensor], prefix: str, *_: object) -> None:
    """Checkpoints of earlier versions have it without dimensions."""
    weight = state.get(f"{prefix}weight")
    if weight is not None and weight.dim() == 0:
        state[f"{prefix}weight"] = weight.reshape(1)


@dataclass
class _Branch:
    """A residual branch: the sum that it ends in, its nodes in order, and those that have weights."""

    sum: fx.Node
    nodes: list[fx.Node]
    layers: list[fx.Node]


@dataclass
class _Traced:
    """A module, where it stands in the model, and its graph."""

    path: str
    module: nn.Module
    graph: fx.Graph
    branches: list[_Branch] = field(default_factory=list)

    def named(self, target: str) -> str:
        return f"{self.path}.{target}" if self.path else target

    def layer(self, node: fx.Node) -> nn.Module | None:
        return self.module.get_submodule(str(node.target)) if node.op == "call_module" else None


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = isinstance(m, (*_WEIGHTED, *_ELEMENTWISE)) or type(m).__module__.startswith("zbkernels.nn.")
        return known or super().is_leaf_module(m, module_qualified_name)


def fixup(model: nn.Module) -> tuple[nn.Module, list[Change], list[Change]]:
    """Apply the recipe to a model without biases and batch norms; (result, what was changed, what could not be).

    The result shares the model's layers. Where the model cannot be traced, its parts are, one by one.
    """
    changed: list[Change] = []
    left: list[Change] = []
    traced = list(_trace(model, "", left))
    for each in traced:
        each.branches = list(_branches(each, left))
    blocks = sum(len(each.branches) for each in traced)
    if not blocks:
        left.append(Change("forward", type(model).__name__, "no residual branch was found"))
    with torch.no_grad():
        _initialise(model, traced, blocks, changed, left)
    for each in traced:
        left += _what_is_fixed(each)
        _insert_multipliers(each, changed)
        for node in each.graph.nodes:
            node.type = None  # an annotation, which torch cannot pickle where it is text
        graph_module = fx.GraphModule(each.module, each.graph, type(each.module).__name__)
        graph_module.train(each.module.training)
        if not each.path:
            return graph_module, changed, left
        for path, module in list(model.named_modules(remove_duplicate=False)):
            if module is each.module:  # in every place where it stands
                parent, _, name = path.rpartition(".")
                setattr(model.get_submodule(parent), name, graph_module)
    return model, changed, left


def _trace(module: nn.Module, path: str, left: list[Change]) -> Iterator[_Traced]:
    """The module's graph; where it has none, its children's."""
    if not any(True for _ in module.children()) and path:
        return  # a layer
    try:
        yield _Traced(path, module, _Tracer().trace(module))
        return
    except Exception as error:  # whatever its Python code does with a stand-in for a tensor
        if not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            what = f"cannot be traced ({reason}): residual sums of its own are not found"
            left.append(Change(path or "forward", type(module).__name__, what))
    for name, child in module.named_children():
        if not type(child).__module__.startswith("torch.nn.") or isinstance(
            child, (nn.Sequential, nn.ModuleList, nn.ModuleDict)
        ):
            yield from _trace(child, f"{path}.{name}" if path else name, left)


def _branches(traced: _Traced, left: list[Change]) -> Iterator[_Branch]:
    before: dict[fx.Node, set[fx.Node]] = {}  # each node's ancestors, itself among them
    place: dict[fx.Node, int] = {}
    for index, node in enumerate(traced.graph.nodes):
        place[node] = index
        before[node] = {node}.union(*(before[n] for n in node.all_input_nodes))
    inputs = {node for node in traced.graph.nodes if node.op == "placeholder"}
    taken: set[fx.Node] = set()
    found: list[_Branch] = []
    for node in traced.graph.nodes:
        terms = [a for a in node.args[:2] if isinstance(a, fx.Node) and before[a] & inputs]
        if node.target not in _ADDS or len(terms) != 2:
            continue
        common = [n for n in before[terms[0]] & before[terms[1]] if before[n] & inputs]
        if not common:
            continue
        fork = max(common, key=place.__getitem__)
        sides = [sorted(before[t] - before[fork], key=place.__getitem__) for t in terms]
        layers = [[n for n in side if isinstance(traced.layer(n), _WEIGHTED)] for side in sides]
        short, long = sorted((0, 1), key=lambda i: len(layers[i]))
        if not layers[long]:
            continue  # such as x + relu(x)
        if len(layers[short]) > 1 or len(layers[short]) == len(layers[long]):
            counts = f"{len(layers[short])} and {len(layers[long])} layers"
            what = f"adds two branches of {counts}, of which none is a shortcut"
            left.append(Change(traced.named(str(node.name)), "sum", what))
            continue
        found.append(_Branch(node, sides[long], layers[long]))
    # A layer belongs to the innermost branch around it.
    for branch in sorted(found, key=lambda b: len(b.nodes)):
        branch.layers = [n for n in branch.layers if n not in taken]
        branch.nodes = [n for n in branch.nodes if n not in taken]
        taken.update(branch.nodes)
        if branch.layers:
            yield branch


def _initialise(
    model: nn.Module, traced: list[_Traced], blocks: int, changed: list[Change], left: list[Change]
) -> None:
    zero: dict[int, str] = {}  # module -> why it starts at 0
    scale: dict[int, float] = {}
    calls: dict[int, int] = {}  # weight -> how often the graphs use it
    for each in traced:
        for node in each.graph.nodes:
            layer = each.layer(node)
            if isinstance(layer, _WEIGHTED):
                calls[id(layer.weight)] = calls.get(id(layer.weight), 0) + 1
        for branch in each.branches:
            m = len(branch.layers)
            for node in branch.layers:
                scale[id(each.layer(node))] = branch_scale(blocks, m)
            zero[id(each.layer(branch.layers[-1]))] = "the last layer of its residual branch"
    whole = next((each for each in traced if not each.path), None)
    classifier = None if whole is None else _classifier(whole)
    if whole is not None and classifier is not None:
        zero.setdefault(id(whole.layer(classifier)), "the classification layer")
    else:
        what = "its classification layer is not known, and not set to 0"
        left.append(Change("forward", type(model).__name__, what))
    done: set[int] = set()
    for path, layer in model.named_modules():
        if not isinstance(layer, _WEIGHTED) or id(layer.weight) in done:
            continue
        if parametrize.is_parametrized(layer, "weight") or type(layer.weight) is not nn.Parameter:
            what = "its weight is parametrized, and was not drawn anew"
            left.append(Change(path, type(layer).__name__, what))
            continue
        done.add(id(layer.weight))
        reason, factor = zero.get(id(layer)), scale.get(id(layer), 1.0)
        if reason and calls.get(id(layer.weight), 0) > 1:
            what = f"{reason}, but its weight is used elsewhere too: not set to 0"
            left.append(Change(path, type(layer).__name__, what))
            reason = None
        if reason:
            layer.weight.zero_()
        else:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            layer.weight.mul_(factor)
        what = f"weight 0: {reason}" if reason else "weight drawn anew, N(0, 2 / fan_in)"
        what += f" times {factor:.4g} = {blocks}^(-1/(2m - 2))" if factor != 1 and not reason else ""
        changed.append(Change(path, type(layer).__name__, what))


def _classifier(traced: _Traced) -> fx.Node | None:
    """The last layer, where no residual sum follows it."""
    sums = {branch.sum for branch in traced.branches}
    for node in reversed(traced.graph.nodes):
        if node in sums:
            return None
        if isinstance(traced.layer(node), _WEIGHTED):
            return node
    return None


def _insert_multipliers(traced: _Traced, changed: list[Change]) -> None:
    for branch in traced.branches:
        for node in branch.nodes:
            layer = traced.layer(node)
            elementwise = node.target in _FUNCTIONS or node.target in _METHODS
            if not (elementwise or isinstance(layer, (*_WEIGHTED, *_ELEMENTWISE))):
                continue
            x = node.args[0]
            assert isinstance(x, fx.Node)
            name = _add_multiplier(traced, node)
            with traced.graph.inserting_before(node):
                scaled = traced.graph.call_module(name, (x,))
            node.args = (scaled, *node.args[1:])
            kind = (
                getattr(node.target, "__name__", str(node.target)) if layer is None else type(layer).__name__
            )
            what = f"put before {kind}"
            if isinstance(layer, (ConvReLUPool2d, LinearReLU)):
                what += ", which holds its activation: one stands for both"
            changed.append(Change(traced.named(name), "ScalarMultiplier", what))


def _add_multiplier(traced: _Traced, node: fx.Node) -> str:
    """Its name, beside the layer that it precedes: ``layer1.0.conv1_multiplier``."""
    if node.op == "call_module":
        target = str(node.target)
    else:
        owners = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
        function = getattr(node.target, "__name__", str(node.target)).strip("_")
        target = f"{owners[-1]}.{function}" if owners and owners[-1] else function
    path, _, name = target.rpartition(".")
    owner = traced.module.get_submodule(path)
    name, count = f"{name}_multiplier", 1
    while hasattr(owner, name if count == 1 else f"{name}{count}"):
        count += 1
    name = name if count == 1 else f"{name}{count}"
    like = next(traced.module.parameters())
    owner.add_module(name, ScalarMultiplier().to(like.device, like.dtype))
    return f"{path}.{name}" if path else name


def _what_is_fixed(traced: _Traced) -> Iterator[Change]:
    """What the module does in Python that its graph does not."""
    called = {str(node.target) for node in traced.graph.nodes if node.op == "call_module"}
    for path, module in traced.module.named_modules():
        inside = any(path == name or path.startswith(f"{name}.") for name in called)
        if not inside and (module._forward_hooks or module._forward_pre_hooks):
            yield Change(traced.named(path) or "forward", type(module).__name__, "its hooks no longer run")
    for node in traced.graph.nodes:
        if node.target is F.dropout:
            training = node.kwargs.get("training", node.args[2] if len(node.args) > 2 else True)
            what = f"a call of F.dropout, from now on with training={training} whatever the mode"
            yield Change(traced.named(node.name), "function", what)
