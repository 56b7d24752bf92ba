"""R ReLU networks of equal shape that train side by side: weights [R, out, in], and the gradients of all at once.

A sweep over a hyper-parameter trains the same network many times. Stacked, each layer of all R runs is one batched
product: R times fewer kernel launches on a GPU, where small networks need it. The runs do not see each other; one that
diverges leaves the others alone. A stack of one run without biases takes :func:`zbkernels.linear_relu`.
:data:`STACK_UP_TO` says up to which width to stack.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

import zbkernels as zb

# On a CPU both forms take the same time, within 8 % at widths 196 to 1024 (least of 18, one core, 4 layers, batch 256):
# 4.9 and 4.8 ms a run and iteration at 256. So stacks are a matter of launches, and of the memory that they hold: three
# to five times the weights of all runs.
STACK_UP_TO = 1024


class StackedMLP:
    """R networks ReLU(W⁽ᴸ⁾ … ReLU(W⁽¹⁾x + b⁽¹⁾) … + b⁽ᴸ⁾): ReLU after every layer, the last included.

    Attributes:
        weights: a tensor [R, out, in] for each layer.
        biases: a tensor [R, out] for each layer; None: the networks have none.
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor] | None = None) -> None:
        """Raises ValueError: shapes that do not fit each other."""
        self.weights = list(weights)
        self.biases = None if biases is None else list(biases)
        shapes = [list(w.shape) for w in self.weights]
        fits = bool(shapes) and all(len(shape) == 3 and shape[0] == shapes[0][0] for shape in shapes)
        if not fits or any(before[1] != after[2] for before, after in itertools.pairwise(shapes)):
            raise ValueError(
                f"StackedMLP: expected weights [R, out, in], out the next one's in, got {shapes}"
            )
        if self.biases is not None and [list(b.shape) for b in self.biases] != [s[:2] for s in shapes]:
            raise ValueError(
                f"StackedMLP: expected biases [R, out] of weights {shapes}, "
                f"got {[list(b.shape) for b in self.biases]}"
            )

    @classmethod
    def he_normal(
        cls,
        sizes: Sequence[int],
        seeds: Sequence[int],
        *,
        bias: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> StackedMLP:
        """Networks of normal weights with variance 2/in (He et al., 2015) and biases 0.

        Args:
            sizes: of the input and of each layer.
            seeds: one a run; equal seeds start from equal weights, on any device, and whatever else is in the stack.
        """
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        weights = []
        for inputs, out in itertools.pairwise(sizes):
            drawn = [torch.randn(out, inputs, generator=g) * (2 / inputs) ** 0.5 for g in generators]
            weights.append(torch.stack(drawn).to(device, dtype))
        biases = [w.new_zeros(w.shape[:2]) for w in weights] if bias else None
        return cls(weights, biases)

    @property
    def runs(self) -> int:
        return self.weights[0].shape[0]

    def parameters(self) -> list[Tensor]:
        """Weights, then biases: the tensors themselves."""
        return [*self.weights, *(self.biases or [])]

    def select(self, runs: Sequence[int]) -> StackedMLP:
        """Those runs alone, as copies."""
        index = torch.tensor(runs, device=self.weights[0].device)
        biases = None if self.biases is None else [b[index] for b in self.biases]
        return StackedMLP([w[index] for w in self.weights], biases)

    def layers(self, x: Tensor) -> list[Tensor]:
        """What each layer puts out.

        Args:
            x: [B, in], the same for all runs, or [R, B, in].

        Returns:
            One tensor [R, B, out] a layer.

        Raises:
            ValueError: another shape.
        """
        inputs = self.weights[0].shape[2]
        if x.dim() not in (2, 3) or x.shape[-1] != inputs or (x.dim() == 3 and x.shape[0] != self.runs):
            raise ValueError(
                f"StackedMLP: expected x [B, {inputs}] or [{self.runs}, B, {inputs}], got {list(x.shape)}"
            )
        h = x if x.dim() == 3 else x.expand(self.runs, *x.shape)
        if self.runs == 1 and self.biases is None:
            return self._layers_of_one(h[0])
        outputs = []
        for i, w in enumerate(self.weights):
            bias = None if self.biases is None else self.biases[i][:, None]
            h = torch.bmm(h, w.mT) if bias is None else torch.baddbmm(bias, h, w.mT)
            h = torch.relu_(h) if not torch.is_grad_enabled() else torch.relu(h)
            outputs.append(h)
        return outputs

    def _layers_of_one(self, h: Tensor) -> list[Tensor]:
        outputs = []
        for w in self.weights:
            h = zb.linear_relu(h, w[0])
            outputs.append(h[None])
        return outputs

    def __call__(self, x: Tensor) -> Tensor:
        """The networks' outputs, [R, B, out]."""
        return self.layers(x)[-1]

    @torch.no_grad()
    def gradients(self, x: Tensor, target: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Mean squared error of each run over batch and outputs, and its gradient in each parameter.

        Args:
            x, target: [B, in] and [B, out], the same for all runs, or [R, B, ...].

        Returns:
            Losses [R], and gradients in the order of :meth:`parameters`. Where a unit's output is 0 its gradient is 0;
            at a NaN it is NaN, as in torch.

        Raises:
            ValueError: other shapes.
        """
        h = [x if x.dim() == 3 else x.expand(self.runs, *x.shape), *self.layers(x)]  # [R, B, out] each
        if list(target.shape) not in (list(h[-1].shape), list(h[-1].shape[1:])):
            raise ValueError(
                f"StackedMLP: expected target {list(h[-1].shape[1:])} or {list(h[-1].shape)}, "
                f"got {list(target.shape)}"
            )
        error = h[-1] - target
        loss = error.square().mean((1, 2))
        delta = error.mul_(2 / (error.shape[1] * error.shape[2]))
        on_weights: list[Tensor] = []
        on_biases: list[Tensor] = []
        for w, before, after in zip(reversed(self.weights), reversed(h[:-1]), reversed(h[1:]), strict=True):
            delta = torch.ops.aten.threshold_backward(delta, after, 0)
            on_weights.append(torch.bmm(delta.mT, before))
            if self.biases is not None:
                on_biases.append(delta.sum(1))
            if w is not self.weights[0]:
                delta = torch.bmm(delta, w)
        return loss, [*reversed(on_weights), *reversed(on_biases)]
