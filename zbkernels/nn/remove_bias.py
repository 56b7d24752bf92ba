"""``remove_bias``: a scalar-invariant network out of any network, with a report of what was changed and what not."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from zbkernels.nn.channel_scale import ChannelScale

if TYPE_CHECKING:
    from zbkernels.invariance import InvarianceReport

HOW = ("drop", "fixup")
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.RMSNorm, _InstanceNorm)
_ACTIVATIONS = (
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


@dataclass(frozen=True)
class RemovalReport:
    """What :func:`remove_bias` did.

    Attributes:
        how: "drop" or "fixup".
        changed: what was taken out or put in, module by module.
        left: what is still in the way of scalar invariance, or may be.
        check: of the result, where ``x`` was given.
    """

    how: str
    changed: tuple[Change, ...]
    left: tuple[Change, ...]
    check: InvarianceReport | None = None

    @property
    def invariant(self) -> bool:
        """Whether the result is scalar invariant: by the check where there is one, else where nothing was left."""
        if self.check is None:
            return not self.left
        return self.check.invariant and self.check.latent is None

    def __str__(self) -> str:
        lines = [f"remove_bias(how={self.how!r}): {len(self.changed)} changed, {len(self.left)} left"]
        lines += [f"  changed {each}" for each in self.changed] + [f"  left    {each}" for each in self.left]
        if self.check is not None:
            lines.append(f"  check   {self.check.verdict}")
        return "\n".join(lines)


def remove_bias(
    model: nn.Module, how: str = "drop", *, x: Any = None, inplace: bool = False
) -> tuple[nn.Module, RemovalReport]:
    """Turn a network into a scalar-invariant one, as far as its layers allow.

    ``"drop"`` keeps the weights: convolutions, linear layers and attention lose their biases, and each batch norm
    becomes a :class:`zbkernels.nn.ChannelScale`, ``x · weight / sqrt(running_var + eps)``: its scale in evaluation,
    without running mean and shift. The keys that remain in the ``state_dict`` keep names and values. The result
    predicts otherwise than the model did; it is a start for training on, not a replacement.

    ``"fixup"`` is for training from scratch: biases are dropped, batch norms become identities, **all weights are drawn
    anew** (from torch's global generator), and the recipe of the paper's Appendix B is applied. Residual branches are
    found by ``torch.fx``; the result is a ``torch.fx.GraphModule`` with the layers' names, in which Python control flow
    and ``self.training`` are fixed as they are at this call.

    What isn't homogeneous by nature (GELU, layer norm, attention, an added position embedding, …) is left as it is and
    reported. Calls of functions show only when the result runs: give ``x`` to have it checked.

    Args:
        how: "drop" or "fixup".
        x: an input, as of :func:`zbkernels.check_scalar_invariance`; the report then holds its check, and names what
            still breaks.
        inplace: change ``model`` itself; only with "drop".

    Returns:
        (network, report); the network is a copy, on the same device and in the same mode, unless ``inplace``.

    Raises:
        TypeError: ``model`` is no module, or TorchScript.
        ValueError: another ``how``, or ``inplace`` with "fixup".

    Source: Section 2.4 and Appendix B of "Scalar Invariant Networks with Zero Bias".
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"remove_bias: expected model to be an nn.Module, got {type(model).__name__}")
    if how not in HOW:
        raise ValueError(f"remove_bias: expected how to be one of {', '.join(HOW)}, got {how!r}")
    for name, module in model.named_modules():
        if type(module).__module__.startswith("torch.jit"):
            raise TypeError(
                f"remove_bias: expected modules in Python, got TorchScript in {name or 'forward'!r}; give the model "
                "before scripting"
            )
    if inplace and how == "fixup":
        raise ValueError("remove_bias: expected inplace=False with how='fixup', whose result is a new module")
    result = model if inplace else copy.deepcopy(model)
    left = list(_left(result))
    if how == "fixup":
        from zbkernels.nn.fixup import fixup

        result, changed = drop(result, keep_scale=False)
        result, more, untraced = fixup(result)
        changed, left = changed + more, left + untraced
    else:
        result, changed = drop(result, keep_scale=True)
    report = RemovalReport(how, tuple(changed), tuple(left))
    return result, report if x is None else _checked(report, result, x)


def drop(model: nn.Module, *, keep_scale: bool) -> tuple[nn.Module, list[Change]]:
    """Take biases and batch norms out of ``model``, in place; (it, or what stands for it where it is a batch norm
    itself, what was changed)."""
    changed: list[Change] = []
    for path, module in model.named_modules():
        taken = _drop_biases(module)
        if taken:
            changed.append(Change(path or "forward", type(module).__name__, f"without {', '.join(taken)}"))
    new: dict[int, nn.Module] = {}  # a batch norm that stands in several places stays one layer
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(module, _BatchNorm) or _why_not_batch_norm(module):
            continue
        if id(module) not in new:
            new[id(module)] = _without_shift(module) if keep_scale else _with_hooks_of(module, nn.Identity())
            what = "only its scale: x · weight / sqrt(running_var + eps)" if keep_scale else "taken out"
            changed.append(Change(path or "forward", type(module).__name__, what))
        if not path:
            return new[id(module)], changed
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, new[id(module)])
    return model, changed


def _drop_biases(module: nn.Module) -> list[str]:
    """The names of the parameters that were taken out of one module."""
    if _why_lazy(module):
        return []
    names: tuple[str, ...] = ()
    if isinstance(module, (_ConvNd, nn.Linear, nn.Bilinear)):
        names = ("bias",)
    elif isinstance(module, nn.MultiheadAttention):
        names = ("in_proj_bias", "bias_k", "bias_v")
    taken = [name for name in names if getattr(module, name, None) is not None]
    for name in taken:
        if parametrize.is_parametrized(module, name):
            parametrize.remove_parametrizations(module, name)
        setattr(module, name, None)
    return taken


def _without_shift(norm: _BatchNorm) -> nn.Module:
    assert norm.running_var is not None
    scale = ChannelScale(norm.weight, norm.running_var, norm.eps)
    return _with_hooks_of(norm, scale.train(norm.training))


def _with_hooks_of(old: nn.Module, new: nn.Module) -> nn.Module:
    new.train(old.training)
    for hooks in (
        "_forward_hooks",
        "_forward_pre_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_pre_hooks_with_kwargs",
    ):
        getattr(new, hooks).update(getattr(old, hooks))
    return new


def _left(model: nn.Module) -> Iterator[Change]:
    """What stands in the way and is not taken out, as far as classes and parameters tell."""
    for path, module in model.named_modules():
        reason = _why_lazy(module) or _why_left(module)
        if reason:
            yield Change(path or "forward", type(module).__name__, reason)
        if not type(module).__module__.startswith(("torch.nn.", "zbkernels.nn.")):
            for name in module._parameters:
                known = isinstance(module, (_ConvNd, nn.Linear, _BatchNorm, nn.Bilinear)) and name == "bias"
                if (
                    not known
                    and module._parameters[name] is not None
                    and any(s in name.lower() for s in _SUSPECT)
                ):
                    what = f"its parameter '{name}' may be added to activations; what it does with it is not known"
                    yield Change(path or "forward", type(module).__name__, what)


def _why_left(module: nn.Module) -> str:
    if isinstance(module, _BatchNorm):
        return _why_not_batch_norm(module)
    if isinstance(module, _NORMS):
        return "divides by its input's own spread and adds an eps to it"
    if isinstance(module, _ACTIVATIONS):
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


def _why_not_batch_norm(norm: _BatchNorm) -> str:
    if norm.running_var is None:
        return "has no running statistics: it divides by the batch's own spread and adds an eps to it"
    return ""


def _why_lazy(module: nn.Module) -> str:
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        return "lazy: run the model once, then remove its biases"
    return ""


def _checked(report: RemovalReport, result: nn.Module, x: Any) -> RemovalReport:
    from zbkernels.invariance import check_scalar_invariance

    check = check_scalar_invariance(result, x)
    known = {each.path for each in report.left}
    found = [] if check.invariant else list(check.breaks)
    found += [check.latent] if check.latent is not None else []
    more = {op.path: Change(op.path, op.module, f"{op.function}: {op.reason}") for op in reversed(found)}
    added = [each for path, each in reversed(more.items()) if path not in known]
    return replace(report, left=(*report.left, *added), check=check)
