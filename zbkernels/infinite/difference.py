"""``DifferenceNet``: a network less what it was before training, and its targets scaled down."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zbkernels.infinite.initial_model import AroundInitial, checked_model, evaluating_copy


class DifferenceNet(AroundInitial):
    """(u(x; θ) - u(x; θ(0))) / ε of any module u: zero for every input until it is trained.

    With ε = 1 this is the difference network of equation 27 of "Linearized Difference Networks as Approximate Kernel
    Methods". With a small one it is the linearised network made by scaling targets down (equations 45 to 48): θ stays
    so near θ(0) that u is its first-order expansion there, up to O(ε). Outputs have the scale of the targets, whatever
    ε is; multiply the loss, any loss, by :attr:`loss_factor`:

        net = DifferenceNet(model, epsilon=1e-3)
        loss = net.loss_factor * 0.5 * (y - net(x)).square().sum()     # = ½‖εy - Δu‖², equation 45

    Then gradient descent with the same learning rate moves outputs as at ε = 1 (equation 47). An optimizer that divides
    by the gradient's size (Adam) does not see the factor: there the learning rate must be multiplied by ε.

    Δu is the difference of two numbers in the model's dtype and θ moves in proportion to ε, so both drown in rounding
    where ε·y is small: Figure 3's lower left corner. So does the zero before training: torch may compute attention and
    recurrent layers otherwise where no parameter asks for a gradient, and the rounding between is divided by ε.
    :class:`LinearizedNet` has none of these problems.

    The model is copied, and both copies stay in evaluation mode: no dropout, batch normalisation by its running
    statistics. Else the two terms would not be of one function, nor zero at the start.

    Attributes:
        model: at θ, which is trained; parameters that did not require a gradient still don't.
        initial: at θ(0), its parameters held as buffers. Both are part of the ``state_dict``.

    Args:
        model: takes any inputs; returns a tensor, or tuples, lists and dicts of tensors.
        epsilon: > 0.

    Raises:
        TypeError: no ``nn.Module``, or of TorchScript.
        ValueError: nothing in it is trained, lazy parameters without a shape, or another epsilon.
    """

    def __init__(self, model: nn.Module, *, epsilon: float = 1.0) -> None:
        if (
            isinstance(epsilon, bool)
            or not isinstance(epsilon, (int, float))
            or not 0 < epsilon < float("inf")
        ):
            raise ValueError(f"DifferenceNet: expected epsilon to be a finite number > 0, got {epsilon!r}")
        super().__init__("DifferenceNet", model)
        self.model = evaluating_copy(checked_model("DifferenceNet", model))
        self.epsilon = float(epsilon)

    @property
    def loss_factor(self) -> float:
        """ε²: what the loss of the outputs is multiplied by (equation 45)."""
        return self.epsilon**2

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        # Nothing of θ(0) asks for a gradient, but inputs may: theirs is of both terms.
        before = self.initial(*args, **kwargs)
        after = self.model(*args, **kwargs)
        return torch.utils._pytree.tree_map(lambda a, b: (a - b) / self.epsilon, after, before)

    def extra_repr(self) -> str:
        return "" if self.epsilon == 1 else f"epsilon={self.epsilon:g}"
