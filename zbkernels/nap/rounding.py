"""How far a computed value can be from the exact one, for a whole network at once.

A value that a network of matrix products computes is a sum over paths from the input, and on its path each product picks
up at most K factors (1 + d), |d| <= u, whatever the order of the sums and whether multiply and add are fused (Higham,
*Accuracy and Stability of Numerical Algorithms*, lemmas 3.1 and 3.5). So while the pattern of the units is held fixed,

    |computed - exact| <= gamma(K, u) * M + T,      gamma(K, u) = K u / (1 - K u),

where M is the same network on magnitudes (|weights|, |biases|, |x|, the same units on) and T bounds what is lost below the
range of normal numbers, flushed to 0 or not. :class:`Magnitudes` runs that network and counts K and T on the way. Where
all values are multiples of one power of two and fit into the significand, they are computed exactly; it finds that too.

It holds for sums of products in any order: torch's and this package's direct kernels. Winograd's, FFT's and TF32's roundings
are not covered: use ``zb.set_conv_precision("highest")`` for the values (signatures are always of direct sums).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from zbkernels.nap.unit_calls import function_name


def gamma(k: int, dtype: torch.dtype) -> float:
    """k u / (1 - k u), u half the distance from 1 to the next number of ``dtype``; infinite from k u = 1/2 on."""
    ku = k * torch.finfo(dtype).eps / 2
    return ku / (1 - ku) if ku < 0.5 else float("inf")


@dataclass(frozen=True)
class Rounding:
    """What rounding can do to the values of one tensor.

    Attributes:
        factors: K, the most roundings on a path from the input.
        underflow: T over the smallest normal number of the dtype.
        grid: a power of two that divides every value exactly; 0 where there is none to speak of.
        span: the largest magnitude met so far over the grid it was on.
    """

    factors: int = 0
    underflow: float = 0.0
    grid: float = 0.0
    span: float = 0.0

    def exact_in(self, dtype: torch.dtype) -> bool:
        """Whether every value so far is a number of ``dtype``, so that nothing was rounded."""
        info = torch.finfo(dtype)
        if self.grid == float("inf"):
            return True
        return self.grid >= info.tiny and self.span <= 2 / info.eps and self.grid * self.span < info.max / 2

    def relative(self, dtype: torch.dtype, more: int = 0) -> float:
        """gamma(K + more), a little larger since the magnitudes are themselves computed in float64."""
        return gamma(self.factors + more, dtype) * (1 + 1e-9)

    def bound(
        self, magnitude: torch.Tensor, dtype: torch.dtype, *, more: int = 0, anywhere: bool = False
    ) -> torch.Tensor:
        """The most by which values of these magnitudes can be off when computed in ``dtype``.

        Args:
            more: roundings of the input itself, such as of the sum of a combination.
            anywhere: for inputs of these magnitudes that need not be on the grid.
        """
        if not more and not anywhere and self.exact_in(dtype):
            return torch.zeros_like(magnitude)
        # A magnitude of 0: each path has a factor 0, and the value is exactly 0 in any arithmetic.
        lost = 2 * (self.underflow + more) * torch.finfo(dtype).tiny
        return torch.where(magnitude > 0, self.relative(dtype, more) * magnitude + lost, 0.0)


def grid_of(t: torch.Tensor) -> float:
    """The largest power of two that divides each value of ``t`` (infinite where all are 0)."""
    t = t[t != 0].double().abs()
    if not t.numel():
        return float("inf")
    fraction, exponent = torch.frexp(t)
    digits = torch.ldexp(fraction, torch.tensor(53)).long()
    lowest = (digits & -digits).double()
    return float(torch.ldexp(lowest, exponent - 53).min())


class Magnitudes(TorchFunctionMode):
    """Runs an affine network on magnitudes: each constant it meets is taken by its absolute value, and subtraction adds.

    Enter it before :class:`zbkernels.nap.Units`, whose handler keeps the units fixed; :meth:`track` the input first.

    Raises:
        NotImplementedError: a function of the input whose rounding no rule here bounds; the message names it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known = WeakIdKeyDictionary()

    def track(self, t: torch.Tensor, rounding: Rounding) -> torch.Tensor:
        self._known[t] = rounding
        return t

    def of(self, t: torch.Tensor) -> Rounding:
        """The rounding of a tensor that depends on the input; none for others."""
        return self._known.get(t, Rounding(grid=float("inf")))

    def scaled(self, t: torch.Tensor, source: Rounding, slope: float) -> torch.Tensor:
        """``t``, of which some values are ``slope`` times those of a tensor with this rounding, is tracked."""
        if slope in (0.0, 1.0):
            return self.track(t, source)
        return self._result(t, source, 2, slope, grid_of(torch.tensor(slope)))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = function_name(func)
        data = [t for t in _tensors((args, kwargs)) if t in self._known]
        if not data:
            result = func(*args, **kwargs)
            given = [t for t in _tensors((args, kwargs)) if t.is_floating_point()]
            if given and name not in _MOVES and any(t.is_floating_point() for t in _tensors(result)):
                raise NotImplementedError(
                    f"the model computes a weight by {name}, whose rounding is not known; store the weight itself (for "
                    "parametrizations: torch.nn.utils.parametrize.remove_parametrizations)"
                )
            return result
        if name in ("__setitem__", "copy_") or kwargs.get("out") is not None:
            raise NotImplementedError(
                f"no bound is known for the rounding of what {name} writes into a tensor"
            )
        plain = name.strip("_") if name.endswith("__") else name.rstrip("_")
        rule = _RULES.get(plain)
        if rule is not None:
            result = rule(self, func, *args, **kwargs)
            in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
            return self._write(args[0], result) if in_place or kwargs.get("inplace") else result
        result = func(*args, **kwargs)
        made = [t for t in _tensors(result) if t.is_floating_point()]
        if made and name not in _MOVES:
            raise NotImplementedError(f"no bound is known for the rounding of {name}")
        for t in made:
            if t.dtype != torch.float64:
                raise NotImplementedError(f"the model converts activations to {t.dtype} by itself ({name})")
            self.track(t, self._merge(data))
        return result

    def _write(self, target: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        """``target`` takes the values of ``result``; whatever shares its memory takes at least its rounding."""
        target.copy_(result)
        place = target.untyped_storage().data_ptr()
        for t in [t for t in self._known.keys() if t.untyped_storage().data_ptr() == place]:
            self.track(t, self._merge([t, result]))
        return self.track(target, self._merge([target, result]))

    def _merge(self, data: list[torch.Tensor]) -> Rounding:
        each = [self.of(t) for t in data]
        return Rounding(
            max(r.factors for r in each),
            max(r.underflow for r in each),
            min(r.grid for r in each),
            max(r.span for r in each),
        )

    def _result(
        self,
        t: torch.Tensor,
        source: Rounding,
        terms: int,
        weight: float,
        grid: float,
        shift: float = float("inf"),
    ) -> torch.Tensor:
        """Track ``t``: sums of at most ``terms`` roundings of a tensor with rounding ``source`` times constants.

        Args:
            weight: the largest sum of magnitudes of the constants of one value.
            grid: of the constants; ``shift`` of what is added.
        """
        # inf · inf = inf: a tensor of zeros is on every grid
        on = min(source.grid * grid, shift) if source.grid and grid else 0.0
        largest = float(t.max()) if t.numel() else 0.0
        span = max(source.span, largest / on) if on else float("inf")
        return self.track(
            t, Rounding(source.factors + terms, source.underflow * weight + 2 * terms + 2, on, span)
        )

    # One rule for each family of functions; the parameters are the function's own, in order.

    def _linear(self, func: Any, input: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        self._constants("linear", weight, bias)
        result = func(input, weight.abs(), None if bias is None else bias.abs())
        return self._product(result, input, weight, weight.abs().sum(1), weight.shape[1], bias)

    def _conv(
        self,
        func: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        self._constants("convolution", weight, bias)
        result = func(input, weight.abs(), None if bias is None else bias.abs(), *args, **kwargs)
        return self._product(result, input, weight, weight.abs().flatten(1).sum(1), weight[0].numel(), bias)

    def _matmul(self, func: Any, input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        self._constants("matmul", other)
        if other.dim() > 2:
            raise NotImplementedError("no bound is known for the rounding of matmul by a batch of matrices")
        weights = other.abs().sum(-2 if other.dim() == 2 else 0)
        return self._product(func(input, other.abs()), input, other, weights, input.shape[-1], None)

    def _addmm(
        self, func: Any, bias: torch.Tensor, input: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        self._constants("addmm", weight, bias)
        result = func(bias.abs(), input, weight.abs())
        return self._product(result, input, weight, weight.abs().sum(0), weight.shape[0], bias)

    def _product(
        self,
        t: torch.Tensor,
        x: torch.Tensor,
        weight: torch.Tensor,
        weights: torch.Tensor,
        terms: int,
        bias: Any,
    ) -> torch.Tensor:
        shift = float("inf") if bias is None else grid_of(bias)
        largest = float(weights.max()) if weights.numel() else 0.0
        return self._result(t, self.of(x), terms + (bias is not None), largest, grid_of(weight), shift)

    def _add(self, func: Any, input: Any, other: Any, *, alpha: float = 1) -> torch.Tensor:
        operands = [input, other if alpha == 1 else other * alpha]
        total = _magnitude(operands[0], self) + _magnitude(operands[1], self)
        data = [t for t in (input, other) if isinstance(t, torch.Tensor) and t in self._known]
        shift = min((_grid(t) for t in (input, other) if not any(t is d for d in data)), default=float("inf"))
        source = self._merge(data)
        both = sum(self.of(t).underflow for t in data)
        exact = grid_of(torch.tensor(float(alpha)))
        return self._result(total, replace(source, underflow=both), 1 + (alpha != 1), 1.0, exact, shift)

    def _mul(self, func: Any, input: Any, other: Any) -> torch.Tensor:
        x, c = (input, other) if isinstance(input, torch.Tensor) and input in self._known else (other, input)
        self._constants("mul", c)
        result = x * _magnitude(c, self)
        return self._result(result, self.of(x), 2, _largest(c), _grid(c))

    def _div(self, func: Any, input: torch.Tensor, other: Any) -> torch.Tensor:
        self._constants("div", other)
        divisor = torch.as_tensor(other, dtype=torch.float64, device=input.device)
        return self._mul(torch.mul, input, 1 / divisor) if _powers(divisor) else self.track(
            input / divisor.abs(),
            replace(self.of(input), factors=self.of(input).factors + 2, grid=0.0,
                    underflow=self.of(input).underflow * float((1 / divisor.abs()).max()) + 2),
        )  # fmt: skip

    def _neg(self, func: Any, input: torch.Tensor) -> torch.Tensor:
        return self.track(input.clone(), self.of(input))

    def _sums(self, func: Any, input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        result = func(input, *args, **kwargs)
        if result.dim() == 0 or result.shape[0] != input.shape[0]:
            raise NotImplementedError(f"{function_name(func)} over the examples of a batch mixes them")
        terms = max(1, -(-input.numel() // max(1, result.numel())))
        source = self.of(input)
        if function_name(func) != "sum":
            source = replace(source, grid=0.0)
        return self._result(result, source, terms + 2, float(terms), 1.0)

    def _avg_pool(self, func: Any, input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        result = func(input, *args, **kwargs)
        # Of a window no more is known here than that it is not larger than the map.
        terms = input.shape[-1] * input.shape[-2]
        size = args[0] if args else kwargs.get("kernel_size", kwargs.get("output_size"))
        if function_name(func) == "avg_pool2d":
            kernel = size if isinstance(size, (tuple, list)) else (size, size)
            terms = min(terms, kernel[0] * kernel[-1])
        return self._result(result, replace(self.of(input), grid=0.0), terms + 2, 1.0, 1.0)

    def _batch_norm(
        self, func: Any, input: torch.Tensor, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
        training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    ) -> torch.Tensor:  # fmt: skip
        if training or running_mean is None or running_var is None:
            raise NotImplementedError("batch_norm with the statistics of the batch is not affine")
        scale = (running_var + eps).rsqrt()
        scale = scale if weight is None else scale * weight.abs()
        shift = running_mean.abs() * scale + (0 if bias is None else bias.abs())
        shape = (1, -1, *(1,) * (input.dim() - 2))
        result = input * scale.view(shape) + shift.view(shape)
        return self._result(result, replace(self.of(input), grid=0.0), 10, float(scale.max()), 1.0)

    def _dropout(
        self, func: Any, input: torch.Tensor, p: float = 0.5, training: bool = True, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        if training and p > 0:
            raise NotImplementedError("dropout in training is not affine")
        return self.track(input.clone(), self.of(input))

    def _constants(self, name: str, *tensors: Any) -> None:
        if any(isinstance(t, torch.Tensor) and t in self._known for t in tensors):
            raise NotImplementedError(f"no bound is known for the rounding of {name} by an activation")


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)


def _magnitude(value: Any, mode: Magnitudes) -> Any:
    return value if isinstance(value, torch.Tensor) and value in mode._known else abs(value)


def _grid(value: Any) -> float:
    return grid_of(torch.as_tensor(value, dtype=torch.float64))


def _largest(value: Any) -> float:
    return float(torch.as_tensor(value, dtype=torch.float64).abs().max())


def _powers(t: torch.Tensor) -> bool:
    """Whether each value is a power of two, by which division is exact."""
    return bool((torch.frexp(t.abs()).mantissa == 0.5).all())


Rule = Callable[..., torch.Tensor]
_RULES: dict[str, Rule] = {
    "linear": Magnitudes._linear,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), Magnitudes._conv),
    **dict.fromkeys(("matmul", "mm"), Magnitudes._matmul),
    "addmm": Magnitudes._addmm,
    **dict.fromkeys(("add", "sub", "subtract", "rsub", "radd", "iadd", "isub"), Magnitudes._add),
    **dict.fromkeys(("mul", "multiply", "rmul", "imul"), Magnitudes._mul),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv", "itruediv"), Magnitudes._div),
    **dict.fromkeys(("neg", "negative"), Magnitudes._neg),
    **dict.fromkeys(("sum", "mean"), Magnitudes._sums),
    **dict.fromkeys(("avg_pool2d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d"), Magnitudes._avg_pool),
    "batch_norm": Magnitudes._batch_norm,
    "dropout": Magnitudes._dropout,
    "dropout2d": Magnitudes._dropout,
}

# Values are moved, copied or made, not computed. (A pad's value other than 0 is a bias: ``Piece`` sees it at the input 0.)
_MOVES = frozenset(
    """
    view view_as reshape reshape_as flatten unflatten ravel permute transpose swapaxes swapdims t movedim moveaxis
    contiguous clone detach to type double float squeeze unsqueeze expand expand_as repeat tile cat concat concatenate
    stack hstack vstack split chunk unbind narrow select flip pad constant_pad_nd pixel_shuffle pixel_unshuffle
    channel_shuffle __getitem__ index_select zeros_like ones_like new_zeros new_ones new_empty empty_like identity
    requires_grad_ zeros ones empty full tensor as_tensor
    """.split()
) | {".T", ".mT", ".data", ".grad"}
