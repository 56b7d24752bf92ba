"""SGD, Adam, RMSProp and Nadam as update rules over stacked tensors, in Keras' and in torch's forms, by name.

With t the number of the step from 1, g the gradient, and every operation on each entry alone:

========  =======================================================  ===================================
rule      "keras" (Keras 2, the framework of the paper's time)     "torch"
========  =======================================================  ===================================
sgd       w - a g                                                  the same
adam      w - a √(1 - β₂ᵗ)/(1 - β₁ᵗ) · m / (√v + ε)                w - a/(1 - β₁ᵗ) · m / (√(v/(1 - β₂ᵗ)) + ε)
rmsprop   w - a g / (√v + ε), rho = 0.9                            the same, rho = 0.99
nadam     w - a m̄ / (√(v/(1 - β₂ᵗ)) + ε)                           the same
========  =======================================================  ===================================

m and v are the moving averages of g and g² (decays β₁, β₂; for RMSProp rho), and Nadam's
m̄ = (1 - μ_t) g/(1 - Π_t) + μ_{t+1} m/(1 - Π_t μ_{t+1}), μ_t = β₁ (1 - 0.96^{0.004 t}/2), Π_t = μ₁ … μ_t.

So the two differ in Adam alone: an ε in Keras stands for ε/√(1 - β₂ᵗ) in torch, 32 ε at the first step and ε after
some thousand. Where √v is far above ε neither matters; far below it, Keras' first step is 1/32 of torch's.

**Tiny ε** (the paper's 1e-32) is a number of float32 and bfloat16; in float16 it is 0, as for the frameworks. A weight
whose gradient was always exactly 0, such as one from a pixel that is always black, has 0/(0 + ε) = 0 and stays. But g²
underflows before g does: in float32 v is 0 for |g| below some 1e-21 (Adam, β₂ = 0.999) or 1e-22 (RMSProp, rho = 0.9),
and what stands above the bar is then divided by ε alone: g = 1e-23 with ε = 1e-32 moves a weight by 3e7 step sizes
(Adam in Keras' form) or more. Both forms do that; neither framework guards against it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

RULES = ("sgd", "adam", "rmsprop", "nadam")
FORMS = ("keras", "torch")
_RHO = {"keras": 0.9, "torch": 0.99}

PerRun = float | Tensor  # one number, or one for each run: [R]


@dataclass
class State:
    """What a rule keeps: first and second moments, a tensor for each parameter, and what depends on the step alone."""

    step: int = 0
    first: list[Tensor] = field(default_factory=list)
    second: list[Tensor] = field(default_factory=list)
    schedule: float = 1.0  # Nadam's Π_t

    def tensors(self) -> dict[str, Tensor]:
        """By name, for a checkpoint: those of :meth:`load`."""
        named = {f"first.{i}": tensor for i, tensor in enumerate(self.first)}
        return named | {f"second.{i}": tensor for i, tensor in enumerate(self.second)}

    def load(self, tensors: dict[str, Tensor], step: int, schedule: float) -> None:
        """Take what :meth:`tensors` gave of a state of the same shapes."""
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])
        self.step, self.schedule = step, schedule


@dataclass(frozen=True)
class Rule:
    """One update rule with its hyper-parameters; :func:`optimizer` makes it.

    Attributes:
        lr: step size a; a tensor [R] where each of R stacked runs has its own. Negative: ascent.
        eps: ε, likewise.
        betas, rho, schedule_decay: of the moving averages, one number for all runs.
    """

    name: str
    form: str
    lr: PerRun
    eps: PerRun
    betas: tuple[float, float]
    rho: float
    schedule_decay: float

    def init(self, parameters: Sequence[Tensor]) -> State:
        """The state before the first step: zeros."""
        state = State()
        if self.name in ("adam", "nadam"):
            state.first = [torch.zeros_like(p) for p in parameters]
        if self.name != "sgd":
            state.second = [torch.zeros_like(p) for p in parameters]
        return state

    @torch.no_grad()
    def step(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor], state: State) -> None:
        """One step, in place on parameters and state.

        Args:
            parameters: [...] each; [R, ...] where a hyper-parameter is a tensor [R].
            gradients: of the same shapes; left as they are.

        Raises:
            ValueError: other shapes; nothing is changed.
        """
        if len(parameters) != len(gradients):
            raise ValueError(
                f"{self.name}: expected {len(parameters)} gradients, one a parameter, got {len(gradients)}"
            )
        for w, g in zip(parameters, gradients, strict=True):
            if w.shape != g.shape:
                raise ValueError(
                    f"{self.name}: expected a gradient of shape {list(w.shape)}, got {list(g.shape)}"
                )
        rates = [(_per_run(self.name, self.lr, w), _per_run(self.name, self.eps, w)) for w in parameters]
        state.step += 1
        t, (beta1, beta2) = state.step, self.betas
        this = self._momentum(t)
        following = self._momentum(t + 1)
        state.schedule *= this
        for i, (w, g) in enumerate(zip(parameters, gradients, strict=True)):
            lr, eps = rates[i]
            if self.name == "sgd":
                _subtract(w, g, lr)
                continue
            v = state.second[i]
            decay = self.rho if self.name == "rmsprop" else beta2
            v.mul_(decay).addcmul_(g, g, value=1 - decay)
            if self.name == "rmsprop":
                _subtract(w, g / v.sqrt().add_(eps), lr)
                continue
            m = state.first[i].mul_(beta1).add_(g, alpha=1 - beta1)
            unbias1, unbias2 = 1 - beta1**t, 1 - beta2**t
            if self.name == "adam" and self.form == "keras":
                _subtract(w, m / v.sqrt().add_(eps), lr * (math.sqrt(unbias2) / unbias1))
            elif self.name == "adam":
                _subtract(w, m / v.sqrt().div_(math.sqrt(unbias2)).add_(eps), lr / unbias1)
            else:
                ahead = m * (following / (1 - state.schedule * following))
                ahead.add_(g, alpha=(1 - this) / (1 - state.schedule))
                _subtract(w, ahead.div_(v.div(unbias2).sqrt_().add_(eps)), lr)

    def _momentum(self, t: int) -> float:
        """Nadam's μ_t."""
        return self.betas[0] * (1 - 0.5 * 0.96 ** (t * self.schedule_decay))


def optimizer(
    name: str,
    *,
    form: str = "keras",
    lr: PerRun,
    eps: PerRun = 1e-7,
    betas: tuple[float, float] = (0.9, 0.999),
    rho: float | None = None,
    schedule_decay: float = 0.004,
) -> Rule:
    """The update rule ``name``: "sgd", "adam", "rmsprop" or "nadam", in the form "keras" or "torch".

    Args:
        lr: step size; a tensor [R] gives each of R stacked runs its own. Negative: gradient ascent.
        eps: likewise. SGD has none. The default is Keras'; torch's is 1e-8.
        betas: of Adam and Nadam.
        rho: of RMSProp; None: the form's own default, 0.9 or 0.99.
        schedule_decay: of Nadam (torch's ``momentum_decay``).

    Raises:
        ValueError: there is no such rule or form; a step size is no number, eps negative or no number, or a decay not
            in [0, 1).
    """
    if name not in RULES:
        raise ValueError(f"optimizer: expected one of {', '.join(RULES)}, got {name!r}")
    if form not in FORMS:
        raise ValueError(f"optimizer: expected the form {' or '.join(FORMS)}, got {form!r}")
    if not bool(torch.as_tensor(lr).isfinite().all()):
        raise ValueError(f"optimizer: expected a finite lr, got {lr}")
    if not bool((torch.as_tensor(eps) >= 0).all()):
        raise ValueError(f"optimizer: expected eps >= 0, got {eps}")
    rho = _RHO[form] if rho is None else rho
    if not all(0 <= decay < 1 for decay in (*betas, rho)):
        raise ValueError(f"optimizer: expected betas and rho in [0, 1), got {betas} and {rho}")
    return Rule(name, form, lr, eps, betas, rho, schedule_decay)


def _per_run(name: str, value: PerRun, w: Tensor) -> PerRun:
    """A hyper-parameter in a shape that broadcasts over a stacked parameter."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    if value.dim() != 1 or w.dim() == 0 or value.shape[0] != w.shape[0]:
        raise ValueError(
            f"{name}: expected hyper-parameters [R] and parameters [R, ...], "
            f"got {list(value.shape)} and {list(w.shape)}"
        )
    return value.to(w).reshape(-1, *[1] * (w.dim() - 1))


def _subtract(w: Tensor, update: Tensor, lr: PerRun) -> None:
    """w -= lr update."""
    if isinstance(lr, Tensor):
        w.sub_(update * lr)
    else:
        w.sub_(update, alpha=lr)
