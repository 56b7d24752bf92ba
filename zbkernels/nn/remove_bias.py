"""``remove_bias``: a scalar-invariant network out of any network, with a report of what was changed and what not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from zbkernels.nn.channel_scale import ChannelScale
from zbkernels.nn.obstacles import Change, obstacles, why_lazy, why_not_batch_norm

if TYPE_CHECKING:
    from zbkernels.invariance import InvarianceReport

HOW = ("drop", "fixup")
_OLD_NORMS = {"WeightNorm": "weight_norm", "SpectralNorm": "spectral_norm"}  # hooks of torch.nn.utils


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
    def invariant(self) -> bool | None:
        """Whether the result is scalar invariant, by the check; None where there is none: what functions and operators
        do, such as adding a parameter, shows only in a run."""
        if self.check is None:
            return None
        return self.check.invariant and self.check.latent is None

    def __str__(self) -> str:
        lines = [f"remove_bias(how={self.how!r}): {len(self.changed)} changed, {len(self.left)} left"]
        lines += [f"  changed {each}" for each in self.changed] + [f"  left    {each}" for each in self.left]
        verdict = "none: give x to have the result measured" if self.check is None else self.check.verdict
        lines.append(f"  check   {verdict}")
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
    reported. Calls of functions show only when the result runs: give ``x`` to have it checked. Without it
    ``report.invariant`` is None: not known.

    Args:
        how: "drop" or "fixup".
        x: an input, as of :func:`zbkernels.check_scalar_invariance`; the report then holds its check, and names what
            still breaks.
        inplace: change ``model`` itself; only with "drop".

    Returns:
        (network, report); the network is a copy, on the same device and in the same mode, unless ``inplace``.

    Raises:
        TypeError: ``model`` is no module, or TorchScript.
        ValueError: another ``how``, ``inplace`` with "fixup", a model that cannot be copied, or "fixup" of layers under
            the old ``torch.nn.utils.weight_norm`` or ``spectral_norm``, which compute their weight before each call.

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
    if how == "fixup":
        _refuse_old_norms(model)
    result = model if inplace else _copied(model)
    left = list(obstacles(result, suspects=x is None))
    known = {each.path for each in left}
    if how == "fixup":
        from zbkernels.nn.fixup import fixup

        result, changed = drop(result, keep_scale=False)
        result, more, untraced = fixup(result)
        changed, left = changed + more, left + untraced
    else:
        result, changed = drop(result, keep_scale=True)
    report = RemovalReport(how, tuple(changed), tuple(left))
    return result, report if x is None else _checked(report, result, x, known)


def _refuse_old_norms(model: nn.Module) -> None:
    for path, module in model.named_modules():
        for hook in module._forward_pre_hooks.values():
            kind = _OLD_NORMS.get(type(hook).__name__)
            if kind is not None and type(hook).__module__.startswith("torch.nn.utils."):
                raise ValueError(
                    f"remove_bias: expected weights that can be drawn anew, got torch.nn.utils.{kind} on "
                    f"{path or 'forward'!r} ({type(module).__name__}): call torch.nn.utils.remove_{kind} on it, or use "
                    f"torch.nn.utils.parametrizations.{kind}"
                )


def _copied(model: nn.Module) -> nn.Module:
    from zbkernels.invariance.copies import deep_copy

    try:
        return deep_copy(model)
    except (RuntimeError, TypeError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"remove_bias: expected a model that copy.deepcopy can copy, got {type(model).__name__} ({said}); "
            "inplace=True needs no copy"
        ) from error


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
        if not isinstance(module, _BatchNorm) or why_not_batch_norm(module):
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
    if why_lazy(module):
        return []
    names: tuple[str, ...] = ()
    if isinstance(module, (_ConvNd, nn.Linear, nn.Bilinear)):
        names = ("bias",)
    elif isinstance(module, nn.MultiheadAttention):
        names = ("in_proj_bias", "bias_k", "bias_v")
    taken = [name for name in names if getattr(module, name, None) is not None]
    for name in taken:
        if parametrize.is_parametrized(module, name):
            _give_own_class(module)
            parametrize.remove_parametrizations(module, name)
        setattr(module, name, None)
    return taken


def _give_own_class(module: nn.Module) -> None:
    """A copy of a parametrized module shares its class, from which torch takes the parametrized name out."""
    cls = type(module)
    body = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    module.__class__ = type(cls.__name__, cls.__bases__, body)


def _without_shift(norm: _BatchNorm) -> nn.Module:
    assert norm.running_var is not None
    scale = ChannelScale(norm.weight, norm.running_var, norm.eps)
    return _with_hooks_of(norm, scale.train(norm.training))


def _with_hooks_of(old: nn.Module, new: nn.Module) -> nn.Module:
    new.train(old.training)
    for kind in ("", "_with_kwargs", "_always_called"):
        getattr(new, f"_forward_hooks{kind}").update(getattr(old, f"_forward_hooks{kind}"))
    for kind in ("", "_with_kwargs"):
        getattr(new, f"_forward_pre_hooks{kind}").update(getattr(old, f"_forward_pre_hooks{kind}"))
    return new


def _checked(report: RemovalReport, result: nn.Module, x: Any, known: set[str]) -> RemovalReport:
    from zbkernels.invariance import check_scalar_invariance

    check = check_scalar_invariance(result, x)
    found = [] if check.invariant else list(check.breaks)
    found += [check.latent] if check.latent is not None else []
    more = {op.path: Change(op.path, op.module, f"{op.function}: {op.reason}") for op in reversed(found)}
    added = [each for path, each in reversed(more.items()) if path not in known]
    return replace(report, left=(*report.left, *added), check=check)
