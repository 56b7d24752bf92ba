"""Which calls of torch functions are piecewise-linear units, with their arguments in one form.

Functions are known by name, since one unit has many spellings: ``F.relu``, ``Tensor.relu_``, ``clamp(min=0)``, the
``torch.ops.aten.relu.default`` of an exported program.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from zbkernels.ops._geometry import Geometry, pair

Arguments = dict[str, Any]


def function_name(func: Any) -> str:
    """``relu`` of every spelling of torch's own; other libraries' functions keep their library before the name."""
    if isinstance(func, torch._ops.OpOverload):
        name = func._schema.name
    elif isinstance(func, torch._ops.OpOverloadPacket):
        name = func._qualified_op_name
    else:
        name = getattr(func, "__name__", type(func).__name__)
        if name == "__get__":  # a property of a tensor: x.T, x.data, x.shape
            return "." + getattr(getattr(func, "__self__", None), "__name__", "?")
        module = getattr(func, "__module__", None) or "torch"
        return name if module.split(".")[0] in ("torch", "_operator") else f"{module}.{name}"
    return name.removeprefix("aten::")


def recognise(name: str, args: tuple[Any, ...], kwargs: Arguments) -> tuple[str, Arguments] | None:
    """(kind, bound arguments) where the call is a unit of a :data:`KINDS`; None where it is something else."""
    reader = _READERS.get(name)
    if reader is None:
        return None
    kwargs = {"input" if key == "self" else key: value for key, value in kwargs.items()}
    return reader(*args, **kwargs)


def output_shape(kind: str, args: Arguments) -> tuple[int, ...]:
    """Shape of the call's result."""
    if kind in ("relu", "leaky_relu"):
        return tuple(args["input"].shape)
    if kind == "linear_relu":
        return (*args["x"].shape[:-1], args["weight"].shape[0])
    if kind == "conv_relu_pool":
        x, weight = args["x"], args["weight"]
        g = geometry(args)
        return (*x.shape[:-3], weight.shape[0], *g.pooled_size(g.map_size(x, weight)))
    x = args["input"]
    if "output_size" in args:
        return (*x.shape[:-2], *args["output_size"])
    spans = [d * (k - 1) + 1 for k, d in zip(args["kernel_size"], args["dilation"], strict=True)]
    g = Geometry.of(
        "max_pool2d",
        pool_kernel=spans,
        pool_stride=args["stride"],
        pool_padding=args["padding"],
        ceil_mode=args["ceil_mode"],
    )
    return (*x.shape[:-2], *g.pooled_size((x.shape[-2], x.shape[-1])))


def geometry(args: Arguments) -> Geometry:
    """Of a ``conv_relu_pool`` call."""
    rest = {key: value for key, value in args.items() if key not in ("x", "weight", "units")}
    return Geometry.of("conv_relu_pool2d", **rest)


# Each reader's parameters are the function's own, in order; it returns None where the call is no unit.


def _relu(input: torch.Tensor, inplace: bool = False) -> tuple[str, Arguments]:
    return "relu", {"input": input, "inplace": inplace}


def _relu_in_place(input: torch.Tensor) -> tuple[str, Arguments]:
    return _relu(input, True)


def _threshold(
    input: torch.Tensor, threshold: float, value: float, inplace: bool = False
) -> tuple[str, Arguments] | None:
    return _relu(input, inplace) if threshold == 0 and value == 0 else None


def _clamp(
    input: torch.Tensor, min: Any = None, max: Any = None, *, out: Any = None, inplace: bool = False
) -> tuple[str, Arguments] | None:
    plain = isinstance(min, (int, float)) and min == 0 and max is None and out is None
    return _relu(input, inplace) if plain else None


def _leaky_relu(
    input: torch.Tensor, negative_slope: float = 0.01, inplace: bool = False
) -> tuple[str, Arguments] | None:
    if negative_slope == 1:
        return None  # the identity
    return "leaky_relu", {"input": input, "negative_slope": float(negative_slope), "inplace": inplace}


def _max_pool2d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> tuple[str, Arguments]:
    kernel = pair("max_pool2d", "kernel_size", kernel_size, 1)
    no_stride = stride is None or (isinstance(stride, (tuple, list)) and not stride)
    return "max_pool", {
        "input": input,
        "kernel_size": kernel,
        "stride": kernel if no_stride else pair("max_pool2d", "stride", stride, 1),
        "padding": pair("max_pool2d", "padding", padding, 0),
        "dilation": pair("max_pool2d", "dilation", dilation, 1),
        "ceil_mode": ceil_mode,
        "return_indices": return_indices,
    }


def _adaptive_max_pool2d(
    input: torch.Tensor, output_size: Any, return_indices: bool = False
) -> tuple[str, Arguments]:
    two = output_size if isinstance(output_size, (tuple, list)) else (output_size, output_size)
    sizes = tuple(input.shape[i - 2] if two[i] is None else int(two[i]) for i in (0, 1))
    return "max_pool", {"input": input, "output_size": sizes, "return_indices": return_indices}


def _conv_relu_pool(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    residual: Any = None,
    *,
    pool: str = "max",
    pool_kernel: Any = 2,
    pool_stride: Any = None,
    pool_padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    negative_slope: float = 0.0,
    **units: Any,
) -> tuple[str, Arguments] | None:
    if negative_slope == 1 and pool != "max":
        return None  # linear
    if residual is not None:  # zb.conv_relu_pool2d goes by its steps where units are watched
        raise NotImplementedError(
            "Units: expected no residual in a call of torch.ops.zb.conv_relu_pool2d or of a _nap form, whose units are "
            "of a sum: call zb.conv_relu_pool2d"
        )
    args: Arguments = {"x": x, "weight": weight, "stride": stride, "padding": padding, "dilation": dilation}
    args |= {"groups": groups, "pool": pool, "pool_kernel": pool_kernel, "pool_stride": pool_stride}
    args |= {"pool_padding": pool_padding, "ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
    return "conv_relu_pool", args | {"negative_slope": negative_slope} | units


def _linear_relu(
    x: torch.Tensor, weight: torch.Tensor, negative_slope: float = 0.0
) -> tuple[str, Arguments] | None:
    if negative_slope == 1:
        return None  # linear: a network's last layer
    return "linear_relu", {"x": x, "weight": weight, "negative_slope": negative_slope}


def _in_place(reader: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(reader).parameters
    assert "inplace" in parameters
    return lambda *args, **kwargs: reader(*args, **kwargs, inplace=True)


_READERS: dict[str, Callable[..., tuple[str, Arguments] | None]] = {
    "relu": _relu,
    "relu_": _relu_in_place,
    "threshold": _threshold,
    "_threshold": _threshold,
    "threshold_": _in_place(_threshold),
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": _clamp,
    "clamp_": _in_place(_clamp),
    "clip_": _in_place(_clamp),
    "clamp_min_": _in_place(_clamp),
    "leaky_relu": _leaky_relu,
    "leaky_relu_": _in_place(_leaky_relu),
    "max_pool2d": _max_pool2d,
    "max_pool2d_with_indices": _max_pool2d,
    "adaptive_max_pool2d": _adaptive_max_pool2d,
    "adaptive_max_pool2d_with_indices": _adaptive_max_pool2d,
    "zb::conv_relu_pool2d": _conv_relu_pool,
    "zb::conv_relu_pool2d_nap": _conv_relu_pool,
    "zb::linear_relu": _linear_relu,
    "zb::linear_relu_nap": _linear_relu,
}
UNIT_FUNCTIONS = frozenset(_READERS)
