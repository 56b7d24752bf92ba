"""The errors of computing a network, layer by layer, along with its values.

While the pattern of the units is held fixed, the errors e of a layer's values follow from its inputs h as float64
computes them, and their errors (``rounding.py`` has gamma, of the number of terms):

    e' = |W| ((1 + 4 gamma) e + gamma |h|) + gamma |b| + underflow.

One gamma of the four is for the errors' part of what is summed, one for float64's own error of h, and two for the
rounding of e itself. What underflows, flushed to 0 or not, loses at most the smallest normal number an operation; an e
of 0 stays one, since each product then has a factor 0. Without a dtype the same rules run the network on magnitudes,
m' = |W| m + |b|, which bounds what values can be anywhere.

e is at most linear in |h|, hence at a combination of inputs it is at most the same combination of their errors: what is
safe from rounding at each of the inputs is so at each combination of them.

This holds for sums of products: torch's and this package's direct kernels. Of Winograd's, the FFT's and TF32's rounding
nothing is said: ``zb.set_conv_precision("highest")`` makes the fused layers' values direct sums (their signatures
always are).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from zbkernels.nap.rounding import Rounding, gamma, grid_of
from zbkernels.nap.unit_calls import function_name
from zbkernels.ops._conv_reference import _conv, _pool
from zbkernels.ops._geometry import Geometry

_CAUTION = 1 + 1e-9  # e is itself computed in float64

Map = Callable[[torch.Tensor], torch.Tensor]


class Errors(TorchFunctionMode):
    """Carries the errors of computing an affine network in ``dtype`` along with its values; without a dtype it runs the
    network on magnitudes.

    Enter it before :class:`zbkernels.nap.Units`, whose handler keeps the units fixed, and :meth:`start` with the input.

    Args:
        grid: look whether values are exact; False where the input stands for all inputs of its magnitudes.

    Raises:
        NotImplementedError: a function of the input whose rounding no rule here bounds; the message names it.
    """

    def __init__(self, dtype: torch.dtype | None, *, grid: bool = True) -> None:
        super().__init__()
        self.dtype, self.grid = dtype, grid
        self._known = WeakIdKeyDictionary()
        self._errors = WeakIdKeyDictionary()

    def start(self, x: torch.Tensor, more: int = 0) -> torch.Tensor:
        """What to run the network on for inputs x, which ``more`` roundings have made."""
        known = replace(Rounding.of_input(x), factors=more, underflow=more)
        if more or not self.grid:
            known = replace(known, grid=0.0, span=float("inf"))
        if self.dtype is None:
            return self.track(x.abs(), None, known)
        return self.track(x.clone(), gamma(more, self.dtype) * x.abs(), known)

    def track(self, t: torch.Tensor, error: torch.Tensor | None, rounding: Rounding) -> torch.Tensor:
        self._known[t] = rounding
        if error is not None:
            self._errors[t] = error
        return t

    def of(self, t: torch.Tensor) -> Rounding:
        """What is known of a tensor that depends on the input."""
        return self._known[t]

    def error(self, t: torch.Tensor) -> torch.Tensor | None:
        """The most by which its values can be off; None on magnitudes."""
        return None if self.dtype is None else self._errors[t]

    def activated(
        self, y: torch.Tensor, error: torch.Tensor | None, source: Rounding, slope: float
    ) -> torch.Tensor:
        """Track ``y``, of which some values are ``slope`` times (or else equal to) those that ``source`` is of."""
        if slope in (0.0, 1.0):
            return self.track(y, error, source)
        if error is not None and self.dtype is not None:
            relative = gamma(2, self.dtype) * _CAUTION
            error = self._underflowing((1 + 4 * relative) * error + relative * y.abs(), 2)
        return self._result(y, error, source, 2, 1.0, _grid(slope), float("inf"), source.largest)

    def write(self, target: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        """``target`` takes the values of ``result``; whatever shares its memory takes what is known of them."""
        error, known = self.error(result), self._merge([target, result])
        target.copy_(result)
        if error is not None:
            self._errors[target].copy_(error)
        place = target.untyped_storage().data_ptr()
        for t in [t for t in self._known if t.untyped_storage().data_ptr() == place]:
            self._known[t] = self._merge([t, target, result])
        self._known[target] = known
        return target

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = function_name(func)
        if not any(t in self._known for t in _tensors((args, kwargs))):
            return self._constant(name, func, args, kwargs)
        if name in _MADE:
            return func(*args, **kwargs)
        if name in ("__setitem__", "copy_") or kwargs.get("out") is not None:
            raise NotImplementedError(
                f"no bound is known for the rounding of what {name} writes into a tensor"
            )
        rule = _RULES.get(name.strip("_") if name.endswith("__") else name.rstrip("_"))
        if rule is not None:
            result = rule(self, func, *args, **kwargs)
            self._check_dtype(name, result)
            in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
            return self.write(args[0], result) if in_place or kwargs.get("inplace") else result
        return self._move(name, func, args, kwargs)

    def _constant(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """A function of what does not depend on the input."""
        result = func(*args, **kwargs)
        given = any(t.is_floating_point() for t in _tensors((args, kwargs)))
        if given and name not in _MOVES | _MADE and any(t.is_floating_point() for t in _tensors(result)):
            raise NotImplementedError(
                f"the model computes a weight by {name}, whose rounding is not known; store the weight itself (for "
                "parametrizations: torch.nn.utils.parametrize.remove_parametrizations)"
            )
        return result

    def _move(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """A function that moves values and computes none."""
        given = list(_tensors((args, kwargs)))
        known = self._merge([t for t in given if t in self._known])
        for t in given:
            if t not in self._known and t.is_floating_point():  # a constant that is joined to activations
                grid, top = min(known.grid, grid_of(t)), max(known.largest, _top(t.abs()))
                known = replace(known, grid=grid, span=top / grid if grid else float("inf"), largest=top)
        magnitudes = _mapped((args, kwargs), lambda t: t if t in self._known else t.abs())
        moved, by_name = (args, kwargs) if self.dtype is not None else magnitudes
        result = func(*moved, **by_name)
        made = [t for t in _tensors(result) if t.is_floating_point()]
        if not made:
            return result
        if name not in _MOVES:
            raise NotImplementedError(f"no bound is known for the rounding of {name}")
        errors: list[torch.Tensor | None] = [None] * len(made)
        if self.dtype is not None:
            moved, by_name = _mapped(
                (args, kwargs), lambda t: self._errors[t] if t in self._known else torch.zeros_like(t)
            )
            errors = list(_tensors(func(*moved, **by_name)))
        for t, error in zip(made, errors, strict=True):
            self._check_dtype(name, t)
            self.track(t, error, known)
        return result

    def _check_dtype(self, name: str, t: torch.Tensor) -> None:
        if t.dtype != torch.float64:
            raise NotImplementedError(f"the model converts activations to {t.dtype} by itself ({name})")

    def _merge(self, data: list[torch.Tensor]) -> Rounding:
        each = [self.of(t) for t in data]
        return Rounding(
            max(r.factors for r in each),
            max(r.underflow for r in each),
            min(r.grid for r in each),
            max(r.span for r in each),
            max(r.largest for r in each),
        )

    def _affine(
        self,
        x: torch.Tensor,
        signed: Map,
        absolute: Map,
        terms: int,
        weight: float,
        grid: float,
        biases: Callable[[float], Any] = lambda factor: 0.0,
        shift: float = float("inf"),
        source: Rounding | None = None,
        error: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The result of a function of x that is linear but for its biases.

        Args:
            signed: the function, biases and all; ``absolute``: its linear part with the magnitudes of its constants.
            terms: the most roundings of one value.
            weight: the largest sum of magnitudes of the constants of one value; ``grid``: of these constants.
            biases: the magnitudes of the biases times a factor; ``shift``: the biases' grid.
            source, error: of x, where they are not those that are tracked.
        """
        source = source or self.of(x)
        if self.dtype is None:
            m = absolute(x) + biases(1.0)
            return self._result(m, None, source, terms, weight, grid, shift, _top(m))
        relative = gamma(terms, self.dtype) * _CAUTION
        if relative == float("inf"):
            raise NotImplementedError(f"no bound is known for sums of {terms} terms in {self.dtype}")
        error = self._errors[x] if error is None else error
        error = absolute((1 + 4 * relative) * error + relative * x.abs()) + biases(relative)
        top = _top(error) / relative * _CAUTION
        error = self._underflowing(error, terms)
        return self._result(signed(x), error, source, terms, weight, grid, shift, top)

    def _underflowing(self, error: torch.Tensor, terms: int) -> torch.Tensor:
        """An error of 0 stays one: each product has a factor 0, or nothing was computed."""
        assert self.dtype is not None
        return torch.where(error > 0, error + (2 * terms + 2) * torch.finfo(self.dtype).tiny, 0.0)

    def _result(
        self,
        t: torch.Tensor,
        error: torch.Tensor | None,
        source: Rounding,
        terms: int,
        weight: float,
        grid: float,
        shift: float,
        top: float,
    ) -> torch.Tensor:
        """Track the result of at most ``terms`` roundings of what ``source`` is of, with sums of magnitudes up to
        ``top``."""
        # inf * inf = inf: a tensor of zeros is on every grid.
        on = min(source.grid * grid, shift) if source.grid and grid else 0.0
        span = max(source.span, top / on) if on else float("inf")
        underflow = source.underflow * weight + 2 * terms + 2
        known = Rounding(source.factors + terms, underflow, on, span, max(source.largest, top))
        if error is not None and self.dtype is not None:
            if self.grid and known.exact_in(self.dtype):
                error = torch.zeros_like(error)
            elif known.largest > torch.finfo(self.dtype).max / 2:  # could overflow
                error = torch.where(error > 0, torch.inf, 0.0)
        return self.track(t, error, known)

    # One rule for each family of functions; the parameters are the function's own, in order.

    def _linear(self, func: Any, input: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        self._constants("linear", weight, bias)
        return self._affine(
            input,
            lambda t: F.linear(t, weight, bias),
            lambda t: F.linear(t, weight.abs()),
            weight.shape[1] + (bias is not None),
            _top(weight.abs().sum(1)),
            grid_of(weight),
            *_bias(bias, 1),
        )

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
        return self._affine(
            input,
            lambda t: func(t, weight, bias, *args, **kwargs),
            lambda t: func(t, weight.abs(), None, *args, **kwargs),
            weight[0].numel() + (bias is not None),
            _top(weight.abs().flatten(1).sum(1)),
            grid_of(weight),
            *_bias(bias, weight.dim() - 1),
        )

    def _matmul(self, func: Any, input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        self._constants("matmul", other)
        if other.dim() > 2:
            raise NotImplementedError("no bound is known for the rounding of matmul by a batch of matrices")
        weight = _top(other.abs().sum(-2 if other.dim() == 2 else 0))
        return self._affine(
            input, lambda t: t @ other, lambda t: t @ other.abs(), input.shape[-1], weight, grid_of(other)
        )

    def _addmm(
        self, func: Any, bias: torch.Tensor, input: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        return self._linear(func, input, weight.T, bias)

    def _sum(self, first: Any, second: Any, factor: float) -> torch.Tensor:
        """first + factor * second."""
        terms = 1 + (abs(factor) != 1)
        parts = [(first, 1.0), (second, abs(factor))]
        data = [(t, f) for t, f in parts if isinstance(t, torch.Tensor) and t in self._known]
        constants = [(c, f) for c, f in parts if not (isinstance(c, torch.Tensor) and c in self._known)]
        magnitude = sum(f * abs(t) for t, f in parts)
        by = min(1.0, _grid(factor))
        shift = min((by * _grid(c) for c, _ in constants), default=float("inf"))
        source = self._merge([t for t, _ in data])
        source = replace(source, underflow=sum(self.of(t).underflow for t, _ in data))
        weight, top = max(1.0, abs(factor)), _top(magnitude)
        if self.dtype is None:
            return self._result(magnitude, None, source, terms, weight, by, shift, top)
        relative = gamma(terms, self.dtype) * _CAUTION
        error = (1 + 4 * relative) * sum(f * self._errors[t] for t, f in data) + relative * magnitude
        result = first + factor * second
        return self._result(
            result, self._underflowing(error.expand_as(result), terms), source, terms, weight, by, shift, top
        )

    def _add(self, func: Any, input: Any, other: Any, *, alpha: float = 1) -> torch.Tensor:
        return self._sum(input, other, float(alpha))

    def _subtract(self, func: Any, input: Any, other: Any, *, alpha: float = 1) -> torch.Tensor:
        return self._sum(input, other, -float(alpha))

    def _subtract_from(self, func: Any, input: Any, other: Any, *, alpha: float = 1) -> torch.Tensor:
        return self._sum(other, input, -float(alpha))

    def _multiply(self, func: Any, input: Any, other: Any) -> torch.Tensor:
        x, c = (input, other) if isinstance(input, torch.Tensor) and input in self._known else (other, input)
        self._constants("mul", c)
        return self._affine(x, lambda t: t * c, lambda t: t * abs(c), 2, _largest(c), _grid(c))

    def _divide(self, func: Any, input: torch.Tensor, other: Any) -> torch.Tensor:
        self._constants("div", other)
        inverse = 1 / torch.as_tensor(other, dtype=torch.float64, device=input.device)
        exact = bool((torch.frexp(inverse.abs()).mantissa == 0.5).all())  # powers of two
        return self._affine(
            input,
            lambda t: t / other,
            lambda t: t * inverse.abs(),
            3,
            _top(inverse.abs()),
            grid_of(inverse) if exact else 0.0,
        )

    def _negate(self, func: Any, input: torch.Tensor) -> torch.Tensor:
        error = self.error(input)
        return self.track(input.clone() if error is None else -input, error, self.of(input))

    def _total(self, func: Any, input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Sums and means."""
        name = function_name(func)
        result = func(input, *args, **kwargs)
        self._check_dtype(name, result)
        if result.dim() == 0 or result.shape[0] != input.shape[0]:
            raise NotImplementedError(f"{name} over the examples of a batch mixes them")
        terms = max(1, -(-input.numel() // max(1, result.numel())))
        same = lambda t: func(t, *args, **kwargs)  # noqa: E731
        return self._affine(input, same, same, terms + 2, float(terms), 1.0 if name == "sum" else 0.0)

    def _average(self, func: Any, input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Average pools."""
        # Of an adaptive window no more is known here than that it is not larger than the map.
        terms = input.shape[-1] * input.shape[-2]
        if function_name(func) == "avg_pool2d":
            size = args[0] if args else kwargs["kernel_size"]
            kernel = size if isinstance(size, (tuple, list)) else (size, size)
            terms = kernel[0] * kernel[-1]
        same = lambda t: func(t, *args, **kwargs)  # noqa: E731
        return self._affine(input, same, same, terms + 2, 1.0, 0.0)

    def _batch_norm(
        self,
        func: Any,
        input: torch.Tensor,
        running_mean: Any,
        running_var: Any,
        weight: Any = None,
        bias: Any = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        if training or running_mean is None or running_var is None:
            raise NotImplementedError("batch_norm with the statistics of the batch is not affine")
        shape = (1, -1, *(1,) * (input.dim() - 2))
        scale = (running_var + eps).rsqrt() * (1 if weight is None else weight.abs())
        shift = (running_mean.abs() * scale + (0 if bias is None else bias.abs())).view(shape)
        return self._affine(
            input,
            lambda t: F.batch_norm(t, running_mean, running_var, weight, bias, False, momentum, eps),
            lambda t: t * scale.view(shape),
            10,
            _top(scale),
            0.0,
            lambda factor: factor * shift,
            0.0,
        )

    def _pad(
        self, func: Any, input: torch.Tensor, pad: Any, mode: str = "constant", value: float | None = None
    ) -> torch.Tensor:
        known, error = self.of(input), self.error(input)
        if value:
            known = replace(known, grid=min(known.grid, _grid(value)), largest=max(known.largest, abs(value)))
        if error is None:
            return self.track(F.pad(input, pad, mode, abs(value) if value else value), None, known)
        outside = abs(value) * gamma(1, self.dtype) if value and self.dtype is not None else value
        return self.track(F.pad(input, pad, mode, value), F.pad(error, pad, mode, outside), known)

    def _dropout(
        self, func: Any, input: torch.Tensor, p: float = 0.5, training: bool = True, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        if training and p > 0:
            raise NotImplementedError("dropout in training is not affine")
        return self.track(input.clone(), self.error(input), self.of(input))

    def _fused_linear(
        self, func: Any, x: torch.Tensor, weight: torch.Tensor, negative_slope: float
    ) -> torch.Tensor:
        """Of slope 1, which is no unit."""
        return self._linear(func, x, weight)

    def _fused_conv(
        self, func: Any, x: torch.Tensor, weight: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Of slope 1 and without a max pool, which is no unit."""
        if len(args) > 4 or "residual" in kwargs:
            raise NotImplementedError(
                "no bound is known for the rounding of torch.ops.zb.conv_relu_pool2d's residual"
            )
        g = Geometry.of("conv_relu_pool2d", *args, **kwargs)
        y = self._conv(lambda x, weight, bias: _conv(x, weight, g), x, weight)
        if g.pool != "avg":
            return y
        same = lambda t: _pool(t, g)  # noqa: E731
        return self._affine(y, same, same, g.window() + 2, 1.0, 0.0)

    def _constants(self, name: str, *tensors: Any) -> None:
        if any(isinstance(t, torch.Tensor) and t in self._known for t in tensors):
            raise NotImplementedError(f"no bound is known for the rounding of {name} by an activation")


def _bias(bias: torch.Tensor | None, dims: int) -> tuple[Callable[[float], Any], float]:
    """(its magnitudes times a factor, of a shape that goes with results, and its grid)."""
    if bias is None:
        return lambda factor: 0.0, float("inf")
    magnitude = bias.abs().view(-1, *(1,) * (dims - 1))
    return lambda factor: factor * magnitude, grid_of(bias)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)


def _mapped(value: Any, change: Map) -> Any:
    """``value`` with each of its floating-point tensors changed."""
    if isinstance(value, torch.Tensor):
        return change(value) if value.is_floating_point() else value
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(each, change) for each in value)
    return {k: _mapped(v, change) for k, v in value.items()} if isinstance(value, dict) else value


def _top(t: Any) -> float:
    return float(t.max()) if t.numel() else 0.0


def _grid(value: Any) -> float:
    return grid_of(torch.as_tensor(value, dtype=torch.float64))


def _largest(value: Any) -> float:
    return _top(torch.as_tensor(value, dtype=torch.float64).abs())


_RULES: dict[str, Callable[..., torch.Tensor]] = {
    "linear": Errors._linear,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), Errors._conv),
    **dict.fromkeys(("matmul", "mm"), Errors._matmul),
    "addmm": Errors._addmm,
    **dict.fromkeys(("add", "radd", "iadd"), Errors._add),
    **dict.fromkeys(("sub", "subtract", "isub"), Errors._subtract),
    "rsub": Errors._subtract_from,
    **dict.fromkeys(("mul", "multiply", "rmul", "imul"), Errors._multiply),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv", "itruediv"), Errors._divide),
    **dict.fromkeys(("neg", "negative"), Errors._negate),
    **dict.fromkeys(("sum", "mean"), Errors._total),
    **dict.fromkeys(("avg_pool2d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d"), Errors._average),
    "batch_norm": Errors._batch_norm,
    **dict.fromkeys(("dropout", "dropout2d"), Errors._dropout),
    **dict.fromkeys(("pad", "constant_pad_nd"), Errors._pad),
    "zb::linear_relu": Errors._fused_linear,
    "zb::conv_relu_pool2d": Errors._fused_conv,
}

# Values are moved or copied, not computed.
_MOVES = frozenset(
    {
        *("view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "ravel"),
        *("squeeze", "unsqueeze"),
        *("permute", "transpose", "swapaxes", "swapdims", "t", "movedim", "moveaxis", ".T", ".mT", "flip"),
        *("contiguous", "clone", "detach", "to", "type", "double", "float", "identity", "requires_grad_"),
        *("expand", "expand_as", "repeat", "tile"),
        *("cat", "concat", "concatenate", "stack", "hstack", "vstack"),
        *("split", "chunk", "unbind", "narrow", "select", "__getitem__", "index_select", ".data"),
        *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle"),
    }
)

# Of an activation no more than its shape.
_MADE = frozenset(
    {
        *("zeros_like", "ones_like", "full_like", "empty_like"),
        *("new_zeros", "new_ones", "new_full", "new_empty"),
    }
)
