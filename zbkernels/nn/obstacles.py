"""What stands in the way of scalar invariance and cannot be taken out, as far as modules tell without being run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin

_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.RMSNorm, _InstanceNorm)
ACTIVATIONS = (
    nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.ELU, nn.CELU, nn.SELU, nn.LogSigmoid, nn.Hardswish,
    nn.Hardsigmoid, nn.Hardtanh, nn.Hardshrink, nn.Softshrink, nn.Softsign, nn.Tanhshrink, nn.GLU,
)  # fmt: skip
_SOFTMAXES = (nn.Softmax, nn.Softmin, nn.LogSoftmax, nn.Softmax2d)
_SUSPECT = ("bias", "beta", "shift", "offset", "pos", "token")  # in the name of a parameter that may be added


@dataclass(frozen=True)
class Change:
    """A module by its path (``forward``: the model itself) and class, and what was done with it, or why nothing was."""

    path: str
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.path} ({self.kind}): {self.what}"


def obstacles(model: nn.Module, *, suspects: bool) -> Iterator[Change]:
    """The modules in the way, with reasons; with ``suspects`` also those whose parameters only look as if they were."""
    for path, module in model.named_modules():
        reason = why_lazy(module) or _why_left(module)
        if reason:
            yield Change(path or "forward", type(module).__name__, reason)
        names = list(_suspect(module)) if suspects else []
        if names:
            what = f"its {', '.join(names)} may be added to activations; give x to have it checked"
            yield Change(path or "forward", type(module).__name__, what)


def _suspect(module: nn.Module) -> Iterator[str]:
    """Parameters of an unknown module that look as if they were added to something."""
    if type(module).__module__.startswith(("torch.nn.", "zbkernels.nn.")):
        return
    for name, value in module._parameters.items():
        known = isinstance(module, (_ConvNd, nn.Linear, _BatchNorm, nn.Bilinear)) and name == "bias"
        if not known and value is not None and any(word in name.lower() for word in _SUSPECT):
            yield f"'{name}'"


def _why_left(module: nn.Module) -> str:
    if isinstance(module, _BatchNorm):
        return why_not_batch_norm(module)
    if isinstance(module, _NORMS):
        return "divides by its input's own spread and adds an eps to it"
    if isinstance(module, ACTIVATIONS):
        return "not homogeneous; ReLU and leaky ReLU are"
    if isinstance(module, nn.Threshold) and (module.threshold, module.value) != (0, 0):
        return "cuts off at a value that does not scale with the input"
    if isinstance(module, _SOFTMAXES):
        return "keeps predictions as a network's last step, breaks homogeneity anywhere else"
    if isinstance(module, nn.MultiheadAttention):
        return "the softmax of a product of two activations"
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return "a recurrent layer: its gates are not homogeneous, and its biases stay"
    return ""


def why_not_batch_norm(norm: _BatchNorm) -> str:
    if norm.running_var is None:
        return "has no running statistics: it divides by the batch's own spread and adds an eps to it"
    return ""


def why_lazy(module: nn.Module) -> str:
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        return "lazy: run the model once, then remove its biases"
    return ""
