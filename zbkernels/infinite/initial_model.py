"""A model at its initial parameters, as difference networks and linearised ones hold it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy

_WITH_FAST_PATH = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


def checked_model(owner: str, model: Any) -> nn.Module:
    """The model itself, without torch.compile's wrapper.

    Raises:
        TypeError: no ``nn.Module``, or a TorchScript one, whose parameters can't be replaced.
        ValueError: lazy parameters that are not there yet, or none that is trained.
    """
    model = getattr(model, "_orig_mod", model)
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"{owner}: expected a torch.nn.Module, not of TorchScript, got {type(model).__name__}"
        )
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ValueError(f"{owner}: expected a model that has run once, but {name} has no shape yet")
    if not any(trains(parameter) for parameter in model.parameters()):
        raise ValueError(f"{owner}: expected a model with a trainable parameter (requires_grad), got none")
    return model


def trains(parameter: Tensor) -> bool:
    return parameter.requires_grad and parameter.is_floating_point()


def evaluating_copy(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode: a function of its inputs and parameters, and of nothing else."""
    return copy.deepcopy(model).eval()


def initial_copy(model: nn.Module) -> nn.Module:
    """The same with buffers in the parameters' places: saved and moved with the rest, never trained."""
    twin = evaluating_copy(model)
    parameters = set(map(id, twin.parameters()))
    kept: dict[int, Tensor] = {}
    for module in twin.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is None or id(parameter) not in parameters:
                continue
            del module._parameters[name]
            value = kept.setdefault(id(parameter), parameter.detach().clone())
            module.register_buffer(name, value)
    return twin


def trained_names(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Name of each trained parameter -> all names it has in the model: shared ones have several."""
    first: dict[int, str] = {}
    names: dict[str, tuple[str, ...]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if trains(parameter):
            key = first.setdefault(id(parameter), name)
            names[key] = (*names.get(key, ()), name)
    return names


class Parameters(nn.Module):
    """Parameters that are named as a model's, without the model's code."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, value in values.items():
            *path, last = name.split(".")
            at: nn.Module = self
            for part in path:
                if part not in at._modules:
                    at.add_module(part, Parameters({}))
                at = at._modules[part]  # type: ignore[assignment]
            at.register_parameter(last, nn.Parameter(value))


class AroundInitial(nn.Module):
    """What holds ``initial``, a model at θ(0). The models inside stay in evaluation mode, whatever :meth:`train` says:
    dropout does nothing, batch normalisation takes its running statistics and leaves them as they are."""

    def __init__(self, owner: str, model: nn.Module) -> None:
        super().__init__()
        model = checked_model(owner, model)
        self.initial = initial_copy(model)
        self._names = trained_names(model)
        self._fast_path = any(isinstance(module, _WITH_FAST_PATH) for module in model.modules())

    def train(self, mode: bool = True) -> AroundInitial:
        super().train(mode)
        for child in self.children():
            child.eval()
        return self

    def initial_parameters(self) -> dict[str, Tensor]:
        """θ(0) of the trained parameters, by the model's names."""
        return {name: self.initial.get_buffer(name) for name in self._names}

    def outputs_at(self, parameters: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """u(x; θ) for any θ by the model's names, in operations that torch.func can differentiate."""
        everywhere = {alias: parameters[name] for name, aliases in self._names.items() for alias in aliases}
        with sdpa_kernel(SDPBackend.MATH), _no_fast_path() if self._fast_path else contextlib.nullcontext():
            return torch.func.functional_call(self.initial, everywhere, args, kwargs, tie_weights=False)


@contextlib.contextmanager
def _no_fast_path() -> Iterator[None]:
    """Without the kernels that torch's attention layers take in evaluation mode: they have no derivatives."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
