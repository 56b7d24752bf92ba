"""Steps of a graph that give back what they are given: identities, and dropouts that are asleep."""

from __future__ import annotations

import torch.nn.functional as F
from torch import fx, nn

from zbkernels.nn.fusion.guards import hooked

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_FUNCTIONS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)


def passes(root: nn.Module, node: fx.Node) -> bool:
    """Whether the node's value is its first argument: a batch norm taken out leaves nn.Identity in its place."""
    if node.op == "call_module":
        module = root.get_submodule(str(node.target))
        asleep = type(module) is nn.Identity or (type(module) in DROPOUTS and not module.training)
        return asleep and not hooked(module)
    if node.op != "call_function" or node.target not in _FUNCTIONS:
        return False
    return node.args[2:3] == (False,) or node.kwargs.get("training", True) is False


def is_dropout(root: nn.Module, node: fx.Node) -> bool:
    """Of a node that passes: whether it does so in ``eval()`` alone."""
    return node.op != "call_module" or type(root.get_submodule(str(node.target))) in DROPOUTS
