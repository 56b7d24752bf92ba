"""``LinearizedNet``: the first-order expansion of any network about its initial parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zbkernels.infinite.initial_model import AroundInitial, Parameters

MODES = ("forward", "reverse")


class LinearizedNet(AroundInitial):
    """∂u(x; θ)/∂θ at θ(0), times Δθ, of any module u: the linearised difference network.

    Equation 44 of "Linearized Difference Networks as Approximate Kernel Methods", computed by equation 49: the
    derivative of u(x; θ(0) + δ·Δθ) by δ, in forward mode (``torch.func.jvp``), at the cost of some three forward passes
    and no Jacobian. It is linear in Δθ, which starts at 0, so on a convex loss training is a convex problem; any
    optimizer and any loss will do:

        net = LinearizedNet(model)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        torch.nn.functional.cross_entropy(net(x), labels).backward()

    A few of torch's operations have no forward mode (``weight_norm``, ``autograd.Function`` without ``jvp``): an error
    names them. ``mode="reverse"`` gets the same numbers from two backward passes.

    The model is copied and stays in evaluation mode: no dropout, batch normalisation by its running statistics. The
    fused layers of :mod:`zbkernels.nn` run on their references here. Kernels of attention have no forward mode, so
    ``scaled_dot_product_attention`` takes its plain form. ``torch.compile(net, fullgraph=True)`` works.

    Attributes:
        delta: Δθ, parameters that are named as the model's; only those that required a gradient. Shared ones are one.
        initial: the model at θ(0), its parameters held as buffers. Both are part of the ``state_dict``.

    Args:
        model: takes any inputs; returns a tensor, or tuples, lists and dicts of floating tensors.
        difference: False adds u(x; θ(0)): the linearised network of equation 43.
        mode: "forward" or "reverse", of differentiation.

    Raises:
        TypeError: no ``nn.Module``, or of TorchScript.
        ValueError: nothing in it is trained, lazy parameters without a shape, or another mode.
    """

    def __init__(self, model: nn.Module, *, difference: bool = True, mode: str = "forward") -> None:
        if mode not in MODES:
            raise ValueError(f"LinearizedNet: expected mode to be 'forward' or 'reverse', got {mode!r}")
        super().__init__("LinearizedNet", model)
        self.mode = mode
        self.difference = difference
        self.delta = Parameters({n: torch.zeros_like(v) for n, v in self.initial_parameters().items()})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs, tangents = self.expand(dict(self.delta.named_parameters()), *args, **kwargs)
        if self.difference:
            return tangents
        return torch.utils._pytree.tree_map(torch.add, outputs, tangents)

    def expand(self, delta: dict[str, Tensor], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """(u(x; θ(0)), its derivative in the direction ``delta``), for any Δθ by the model's names."""

        def outputs(parameters: dict[str, Tensor]) -> Any:
            return self.outputs_at(parameters, *args, **kwargs)

        if self.mode == "forward":
            found: tuple[Any, Any] = torch.func.jvp(outputs, (self.initial_parameters(),), (delta,))  # type: ignore[assignment]
            return found
        u, pull_back = torch.func.vjp(outputs, self.initial_parameters())[:2]
        # v -> Jᵀv is linear: its own pull-back takes Δθ to JΔθ, wherever it is taken.
        zeros = torch.utils._pytree.tree_map(torch.zeros_like, u)
        return u, torch.func.vjp(pull_back, zeros)[1]((delta,))[0]

    def extra_repr(self) -> str:
        said = [] if self.difference else ["difference=False"]
        return ", ".join(said if self.mode == "forward" else [*said, f"mode={self.mode!r}"])
