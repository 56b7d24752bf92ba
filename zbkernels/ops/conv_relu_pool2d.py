"""``conv_relu_pool2d``: bias-free convolution, activation and pooling in one pass, never keeping the un-pooled map.

What it means is in ``_conv_reference.py``, its gradients in ``_conv_autograd.py``, its arguments in
``_geometry.py``, the calls that tests make in ``_conv_samples.py``. Here are the schemas, what the dispatcher
needs, and the public function.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from zbkernels import _loader
from zbkernels.ops import _backend, _choice, _onnx_tracing, _small_calls, _tf32
from zbkernels.ops._conv_autograd import (
    REGISTERED,
    ConvReLUPoolFunction,
    Passes,
    differentiable_backward,
    run_passes,
)
from zbkernels.ops._conv_reference import (
    Tensors2,
    Tensors3,
    backward_reference,
    by_steps,
    forward_reference,
    in_any_format,
    used_dilation,
    value_reference,
)
from zbkernels.ops._conv_samples import backward_samples, forward_samples, samples
from zbkernels.ops._geometry import Geometry, IntOrPair, check, check_residual, memory_format, pair
from zbkernels.ops._op import (
    Op,
    autocast_operands,
    below_autograd,
    needs_grad,
    register,
    transforms_active,
    vmap_by_loop,
)
from zbkernels.ops._opaque import opaque_kernels
from zbkernels.ops._shape_class import conv_class, layout_class
from zbkernels.ops.nap_pack import words_for

# By position the residual comes last: torch has no batching rule for a tensor that is given by name alone.
SCHEMA = (
    "conv_relu_pool2d(Tensor x, Tensor weight, int[2] stride=1, int[2] padding=0, int[2] dilation=1, "
    'int groups=1, Tensor? residual=None, *, str pool="max", int[2] pool_kernel=2, int[]? pool_stride=None, '
    "int[2] pool_padding=0, bool ceil_mode=False, bool count_include_pad=True, float negative_slope=0.0) -> Tensor"
)
FORWARD_SCHEMA = (
    "_conv_relu_pool2d_forward(Tensor x, Tensor weight, int[2] stride, int[2] padding, int[2] dilation, "
    "int groups, Tensor? residual=None, *, str pool, int[2] pool_kernel, int[2] pool_stride, int[2] pool_padding, "
    "bool ceil_mode, bool count_include_pad, float negative_slope, bool need_code, str units) "
    "-> (Tensor, Tensor, Tensor)"
)
BACKWARD_SCHEMA = (
    "_conv_relu_pool2d_backward(Tensor grad, Tensor x, Tensor weight, Tensor code, int[2] stride, "
    "int[2] padding, int[2] dilation, int groups, *, str pool, int[2] pool_kernel, int[2] pool_stride, "
    "int[2] pool_padding, bool ceil_mode, bool count_include_pad, float negative_slope, bool need_x, "
    "bool need_weight) -> (Tensor, Tensor)"
)


Residual = torch.Tensor | None


class Checked(NamedTuple):
    geometry: Geometry
    residual: Residual


def checked(
    op: str,
    x: Any,
    weight: Any,
    stride: IntOrPair = 1,
    padding: IntOrPair = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    residual: Any = None,
    *,
    units: str = "",
    **pool: Any,
) -> Checked:
    """What follows x and weight in the ops' schemas, in one form and checked."""
    g = Geometry.of(op, stride, padding, dilation, groups, **pool)
    check(op, x, weight, g, units)
    if residual is not None:
        check_residual(op, x, weight, residual, g)
    return Checked(g, residual)


def reference(x: torch.Tensor, weight: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    g, residual = checked("conv_relu_pool2d", x, weight, *args, **kwargs)
    _backend.note_kernel("reference")
    return value_reference(x, weight, g, residual)


def _forward_op(
    x: torch.Tensor, weight: torch.Tensor, *args: Any, need_code: bool, units: str, **kwargs: Any
) -> Tensors3:
    g, residual = checked("_conv_relu_pool2d_forward", x, weight, *args, units=units, **kwargs)
    return forward_reference(x, weight, g, need_code, units, residual)


def _backward_op(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    code: torch.Tensor,
    *args: Any,
    need_x: bool,
    need_weight: bool,
    **kwargs: Any,
) -> Tensors2:
    g = Geometry.of("_conv_relu_pool2d_backward", *args, **kwargs)
    check("_conv_relu_pool2d_backward", x, weight, g)
    return backward_reference(grad, x, weight, code, g, need_x, need_weight)


def empty_results(
    x: torch.Tensor, weight: torch.Tensor, g: Geometry, need_code: bool, units: str
) -> Tensors3:
    """Uninitialised (y, code, sig) of the right shapes, dtypes and strides."""
    batch, k = x.shape[:-3], weight.shape[0]
    h1, w1 = g.map_size(x, weight)
    shape = (*batch, k, *g.pooled_size((h1, w1)))
    y = x.new_empty(shape).contiguous(memory_format=memory_format(x))
    code = x.new_empty(0, dtype=torch.uint8)
    if need_code and g.pool == "max":
        code = y.new_empty(shape, dtype=g.code_dtype()).contiguous(memory_format=memory_format(x))
    elif need_code:
        code = x.new_empty((*batch, k, words_for(h1 * w1)), dtype=torch.int64)
    sig = x.new_empty(0, dtype=torch.int64)
    if units:
        sig = x.new_empty((*batch, words_for(g.unit_count(units, k, (h1, w1)))), dtype=torch.int64)
    return y, code, sig


def fake(x: torch.Tensor, weight: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    g, _ = checked("conv_relu_pool2d", x, weight, *args, **kwargs)
    return empty_results(x, weight, g, False, "")[0]


def _forward_fake(
    x: torch.Tensor, weight: torch.Tensor, *args: Any, need_code: bool, units: str, **kwargs: Any
) -> Tensors3:
    g, _ = checked("_conv_relu_pool2d_forward", x, weight, *args, units=units, **kwargs)
    return empty_results(x, weight, g, need_code, units)


def _backward_fake(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    code: torch.Tensor,
    *args: Any,
    need_x: bool,
    need_weight: bool,
    **kwargs: Any,
) -> Tensors2:
    def like(t: torch.Tensor, needed: bool) -> torch.Tensor:
        if not needed:
            return x.new_empty(0)
        return t.new_empty(t.shape).contiguous(memory_format=memory_format(t))

    return like(x, need_x), like(weight, need_weight)


def residual_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Residual:
    """The residual among what follows x and weight."""
    return args[4] if len(args) > 4 else kwargs.get("residual")


def autograd(x: torch.Tensor, weight: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    tensors = (x, weight, residual_of(args, kwargs))
    if transforms_active(*tensors):
        return reference(x, weight, *args, **kwargs)
    if needs_grad(*tensors):
        g, residual = checked("conv_relu_pool2d", x, weight, *args, **kwargs)
        return ConvReLUPoolFunction.apply(REGISTERED, x, weight, g, False, "", residual)[0]
    if x.is_cuda:
        _tf32.follow()
    with below_autograd():
        return torch.ops.zb.conv_relu_pool2d(x, weight, *args, **kwargs)


def _forward_autograd(
    x: torch.Tensor, weight: torch.Tensor, *args: Any, need_code: bool, units: str, **kwargs: Any
) -> Tensors3:
    tensors = (x, weight, residual_of(args, kwargs))
    if transforms_active(*tensors):
        return _forward_op(x, weight, *args, need_code=need_code, units=units, **kwargs)
    if needs_grad(*tensors):
        g, residual = checked("_conv_relu_pool2d_forward", x, weight, *args, units=units, **kwargs)
        return ConvReLUPoolFunction.apply(REGISTERED, x, weight, g, need_code, units, residual)
    return REGISTERED.forward(x, weight, *args, need_code=need_code, units=units, **kwargs)


def _backward_autograd(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    code: torch.Tensor,
    *args: Any,
    need_x: bool,
    need_weight: bool,
    **kwargs: Any,
) -> Tensors2:
    if transforms_active(grad, x, weight):
        return _backward_op(grad, x, weight, code, *args, need_x=need_x, need_weight=need_weight, **kwargs)
    g = Geometry.of("_conv_relu_pool2d_backward", *args, **kwargs)
    return differentiable_backward(REGISTERED, grad, x, weight, code, g, need_x, need_weight)


def vmap(
    info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, weight: torch.Tensor, *args: Any, **kw: Any
) -> Any:
    return fold_batch("conv_relu_pool2d", info, in_dims, x, weight, *args, **kw)


def fold_batch(
    name: str,
    info: Any,
    in_dims: tuple[Any, ...],
    x: torch.Tensor,
    weight: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Batched inputs become a larger N; batched weights are looped over."""
    if in_dims[1] is not None or in_dims[0] is None:
        return vmap_by_loop(name)(info, in_dims, x, weight, *args, **kwargs)
    x = x.movedim(in_dims[0], 0)  # [B, N, C, H, W] or [B, C, H, W]
    batched = x.dim() == 5
    if len(args) > 4 and args[4] is not None:
        residual, dim = args[4], in_dims[6]
        many = residual.expand(x.shape[0], *residual.shape) if dim is None else residual.movedim(dim, 0)
        args = (*args[:4], many.flatten(0, 1) if batched else many)
    out = getattr(torch.ops.zb, name)(x.flatten(0, 1) if batched else x, weight, *args, **kwargs)
    if isinstance(out, torch.Tensor):
        return out.unflatten(0, x.shape[:2]) if batched else out, 0
    return tuple(t.unflatten(0, x.shape[:2]) if batched else t for t in out), (0,) * len(out)


def resolve_padding(
    op: str, x: Any, weight: Any, stride: IntOrPair, padding: IntOrPair | str, dilation: IntOrPair
) -> tuple[Any, IntOrPair]:
    """(x, padding in numbers) for ``"same"`` and ``"valid"``, as ``F.conv2d`` has them."""
    if not isinstance(padding, str):
        return x, padding
    if padding == "valid":
        return x, 0
    if padding != "same":
        raise ValueError(f"{op}: expected padding to be an int, two ints, 'same' or 'valid', got {padding!r}")
    if pair(op, "stride", stride, 1) != (1, 1):
        raise ValueError(f"{op}: padding='same' needs stride 1, got {stride!r}")
    steps = pair(op, "dilation", dilation, 1)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 4:
        return x, 0  # the check that follows says what is wrong
    total = [steps[d] * (weight.shape[d + 2] - 1) for d in (0, 1)]
    if any(t % 2 for t in total):  # an even kernel: the odd row or column goes to the far side
        x = F.pad(x, (0, total[1] % 2, 0, total[0] % 2))
    return x, (total[0] // 2, total[1] // 2)


def normalise(
    op: str,
    x: Any,
    weight: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
    units: str,
    **pool: Any,
) -> tuple[torch.Tensor, torch.Tensor, Geometry]:
    """Autocast, "same" padding, forms and checks: what every public call goes through first.

    A call that differs from an earlier one in nothing but the tensors' values is not checked again, which takes a third
    of the time that a small call spends in Python.
    """
    x, weight = autocast_operands(x, weight)
    key = (
        None
        if torch.compiler.is_dynamo_compiling()
        else _key_of(op, x, weight, stride, padding, dilation, groups, units, pool)
    )
    if key is not None and (known := _checked_before.get(key)) is not None:
        return x, weight, known
    x, padding = resolve_padding(op, x, weight, stride, padding, dilation)
    g = Geometry.of(op, stride, padding, dilation, groups, **pool)
    check(op, x, weight, g, units)
    if key is not None:
        if len(_checked_before) >= 4096:
            _checked_before.clear()
        _checked_before[key] = g
    return x, weight, g


_checked_before: dict[tuple[Any, ...], Geometry] = {}
_PLAIN = frozenset({int, float, bool, str, type(None)})


def _key_of(
    op: str,
    x: Any,
    weight: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
    units: str,
    pool: dict[str, Any],
) -> tuple[Any, ...] | None:
    """All that the checks look at; None where it can't be a key (symbols, lists) or where x is about to be padded."""
    if not isinstance(x, torch.Tensor) or not isinstance(weight, torch.Tensor) or type(padding) is str:
        return None
    values = (stride, padding, dilation, groups, *pool.values())
    kinds = tuple(map(type, values))  # since True == 1
    for value, kind in zip(values, kinds, strict=True):
        if kind not in _PLAIN and not (kind is tuple and all(type(each) is int for each in value)):
            return None
    key = (
        op,
        units,
        values,
        kinds,
        *pool,
        x.shape,
        weight.shape,
        x.dtype,
        weight.dtype,
        x.device,
        weight.device,
    )
    try:
        hash(key)  # a shape of symbols has none
    except TypeError:
        return None
    return (*key, x.layout, weight.layout)


def conv_relu_pool2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: IntOrPair = 1,
    padding: IntOrPair | str = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    *,
    pool: str = "max",
    pool_kernel: IntOrPair = 2,
    pool_stride: IntOrPair | None = None,
    pool_padding: IntOrPair = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    negative_slope: float = 0.0,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """``pool(act(conv2d(x, weight, None, …) + residual))`` in one pass (equation 1 of the zero-bias paper, one layer
    of it).

    The arguments mean what they mean in ``F.conv2d``, ``F.max_pool2d`` and ``F.avg_pool2d``. The un-pooled map
    is never kept: training saves one byte (a position) for each pooled output.

    Args:
        x: [N, C, H, W] or [C, H, W], float32, float64, float16 or bfloat16, any strides.
        weight: [K, C/groups, R, S], of x's dtype and device.
        padding: an int, two ints, ``"same"`` or ``"valid"``.
        pool: ``"max"``, ``"avg"`` or ``"none"``.
        negative_slope: of the activation, in [0, 1]; 0 is ReLU.
        residual: what is added before the activation, as where a residual block ends: of the un-pooled map's shape
            [N, K, H1, W1] (or [K, H1, W1]), of x's dtype and device, any strides; nothing is broadcast. Where it wants
            a gradient and there is no pool, training keeps y too, as torch's ReLU does.

    Returns:
        [N, K, P, Q] (or [K, P, Q]) of x's dtype, channels_last where x is. NaN passes through ReLU and pool.

    Raises:
        TypeError: not tensors of one of these dtypes.
        ValueError: shapes, devices or arguments that don't fit; the message says what was got.

    Example:
        >>> import torch, zbkernels as zb
        >>> x, w = torch.randn(8, 3, 32, 32), torch.randn(16, 3, 3, 3)
        >>> zb.conv_relu_pool2d(x, w, padding="same").shape
        torch.Size([8, 16, 16, 16])
    """
    key = None
    if not torch.compiler.is_dynamo_compiling() and _backend.chooses_freely():
        values = (stride, padding, dilation, groups, pool, pool_kernel, pool_stride, pool_padding, ceil_mode)
        key = _small_calls.key_of(x, weight, (*values, count_include_pad, negative_slope))
        if residual is not None:
            key = _small_calls.with_residual(key, residual)
        if key is not None and (y := _small_calls.run(key, x, weight, residual)) is not None:
            return y
    pool_arguments = {
        "pool": pool,
        "pool_kernel": pool_kernel,
        "pool_stride": pool_stride,
        "pool_padding": pool_padding,
        "ceil_mode": ceil_mode,
        "count_include_pad": count_include_pad,
        "negative_slope": negative_slope,
    }
    if not torch.compiler.is_dynamo_compiling() and _onnx_tracing.active():
        return _for_onnx(x, weight, residual, stride, padding, dilation, groups, **pool_arguments)
    x, weight, g = normalise(
        "conv_relu_pool2d", x, weight, stride, padding, dilation, groups, "", **pool_arguments
    )
    if residual is not None:
        residual = normalise_residual("conv_relu_pool2d", x, weight, residual, g)
        if not torch.compiler.is_dynamo_compiling() and _choice.watched.get():
            return by_steps(x, weight, g, residual)
    if x.is_cuda and not torch.compiler.is_compiling():
        _tf32.follow()
    kernel = _backend.choose_kernel(OP, x, weight, g, "", *kind_of(residual))
    if kernel is not None:
        return run_passes(kernel.run, x, weight, g, "", residual)[0]
    if key is not None:
        return _small_calls.keep(key, partial(call_op, x, weight, g, residual), residual is not None)
    if needs_grad(x, weight, residual) and _choice.unseen(x, weight, residual):
        return run_passes(REGISTERED, x, weight, g, "", residual)[0]
    return call_op(x, weight, g, residual)


def _for_onnx(
    x: Any,
    weight: Any,
    residual: Any,
    stride: IntOrPair,
    padding: IntOrPair | str,
    dilation: IntOrPair,
    groups: int,
    **pool: Any,
) -> torch.Tensor:
    """The call in torch's own operations, checked as every call; see ``_onnx_tracing.py``."""
    with _onnx_tracing.paused():
        padded, cast, g = normalise(
            "conv_relu_pool2d", x, weight, stride, padding, dilation, groups, "", **pool
        )
        if residual is not None:
            normalise_residual("conv_relu_pool2d", padded, cast, residual, g)
        g = g._replace(dilation=used_dilation(weight, g))
        rows, columns = (padded.shape[d] - x.shape[d] for d in (-2, -1))
    x, weight = autocast_operands(x, weight)
    if rows or columns:
        x = F.pad(x, (0, columns, 0, rows))
    if residual is not None:
        residual = autocast_operands(residual)[0]
    if x.dim() == 4:
        return in_any_format(x, weight, g, residual)
    one = in_any_format(x[None], weight, g, None if residual is None else residual[None])
    return one.squeeze(0)  # the exporter's pools take no single image


def call_op(x: torch.Tensor, weight: torch.Tensor, g: Geometry, residual: Residual) -> torch.Tensor:
    added = () if residual is None else (residual,)
    y: torch.Tensor = torch.ops.zb.conv_relu_pool2d(x, weight, *g.conv_args(), *added, **g.pool_kwargs())
    return y


def normalise_residual(
    op: str, x: torch.Tensor, weight: torch.Tensor, residual: Any, g: Geometry
) -> torch.Tensor:
    """The residual of a public call, of which :func:`normalise` has taken the rest: by autocast, and checked."""
    residual = autocast_operands(residual)[0]
    check_residual(op, x, weight, residual, g)
    return residual


def kind_of(residual: Residual) -> tuple[bool, ...]:
    """What the choice of a kernel has to know of a residual, can be hashed: () for none, else whether it wants a
    gradient."""
    return () if residual is None else (needs_grad(residual),)


def spread(
    x: torch.Tensor, weight: torch.Tensor, g: Geometry, units: str, residual_wants_grad: bool | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the kernels' ``can_run``; the last one here is :func:`kind_of`'s."""
    kwargs = {
        **g.pool_kwargs(),
        "need_code": needs_grad(x, weight) or bool(residual_wants_grad),
        "units": units,
    }
    if residual_wants_grad is not None:
        kwargs["with_residual"] = True
    return (x, weight, *g.conv_args()), kwargs


def kernel_arguments(op: str, units: str) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
    """For ``zb.explain``: the arguments of a public call as the kernels' ``can_run`` takes them."""

    def arguments(
        x: Any,
        weight: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: Any = 1,
        *,
        units: str = units,
        residual: Any = None,
        **pool: Any,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        x, weight, g = normalise(op, x, weight, stride, padding, dilation, groups, units, **pool)
        if residual is not None:
            residual = normalise_residual(op, x, weight, residual, g)
        return spread(x, weight, g, units, *kind_of(residual))

    return arguments


def shape_class(
    x: torch.Tensor,
    weight: torch.Tensor,
    *conv: Any,
    need_code: bool,
    units: str,
    with_residual: bool = False,
    **pool: Any,
) -> str:
    """The class of a call; with signatures one for every batch, memory format and training: a pattern depends on
    none of these."""
    g = Geometry(*conv, **pool)
    added = " residual" if with_residual else ""
    if units:
        return f"{conv_class(x, weight, g, batch=False)}{added} {units}"
    return conv_class(x, weight, g) + added + layout_class(x) + (" train" if need_code else "")


def cpu_kernel(
    x: torch.Tensor,
    weight: torch.Tensor,
    *conv: Any,
    need_code: bool,
    units: str,
    with_residual: bool = False,
    **pool: Any,
) -> str:
    """Which kernel of the CPU library the forward pass takes."""
    g = Geometry(*conv, **pool)
    pairs = (x.shape[-2:], weight.shape[2:], g.stride, g.padding, g.dilation, g.map_size(x, weight))
    sizes = [x.shape[-3], weight.shape[0], g.groups, *(size for pair in pairs for size in pair)]
    sizes += [x.shape[0] if x.dim() == 4 else 1, *weight.stride()]
    return _loader.conv_kernel(str(x.dtype).removeprefix("torch."), sizes, bool(units))


triton_forward = _backend.triton_function("conv_relu_pool", "forward")
triton_backward = _backend.triton_function("conv_relu_pool", "backward")

KERNELS = (
    _backend.library_kernel("cpu"),
    _backend.library_kernel("cuda"),
    _backend.triton_kernel("conv_relu_pool", Passes(triton_forward, triton_backward)),
    *_backend.emulated_kernels(
        Passes(
            _backend.emulated_function("_conv_relu_pool2d_forward"),
            _backend.emulated_function("_conv_relu_pool2d_backward"),
        )
    ),
    _backend.reference_kernel(Passes(_forward_op, _backward_op)),
)


def _forward_can_run(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    residual: Residual = None,
    **kwargs: Any,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    added = {} if residual is None else {"with_residual": True}
    return (x, weight, stride, padding, dilation, groups), {**kwargs, **added}


def _backward_can_run(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    code: torch.Tensor,
    *conv: Any,
    need_x: bool,
    need_weight: bool,
    **pool: Any,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (x, weight, *conv), {**pool, "need_code": True, "units": ""}


_forward_on = opaque_kernels(
    "conv_relu_pool2d",
    KERNELS,
    FORWARD_SCHEMA,
    _forward_fake,
    run=lambda passes: passes.forward,
    can_run_args=_forward_can_run,
)
_backward_on = opaque_kernels(
    "conv_relu_pool2d",
    KERNELS,
    BACKWARD_SCHEMA,
    _backward_fake,
    run=lambda passes: passes.backward,
    can_run_args=_backward_can_run,
)
OPAQUE = {name: Passes(forward, _backward_on[name]) for name, forward in _forward_on.items()}


def _cuda_fallback(x: torch.Tensor, weight: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    g, residual = checked("conv_relu_pool2d", x, weight, *args, **kwargs)
    return triton_forward(x, weight, *g.conv_args(), residual, **g.pool_kwargs(), need_code=False, units="")[
        0
    ]


OP = Op(
    "conv_relu_pool2d",
    SCHEMA,
    reference,
    samples,
    public=conv_relu_pool2d,
    kernels=KERNELS,
    normalise=kernel_arguments("conv_relu_pool2d", ""),
    spread=spread,
    shape_class=shape_class,
    opaque=OPAQUE,
    cpu_kernel=cpu_kernel,
)
register(OP, fake=fake, vmap=vmap, autograd=autograd, autocast=True, cuda_fallback=_cuda_fallback)

FORWARD_OP = Op("_conv_relu_pool2d_forward", FORWARD_SCHEMA, _forward_op, forward_samples)
register(
    FORWARD_OP,
    fake=_forward_fake,
    vmap=vmap_by_loop(FORWARD_OP.name),
    autograd=_forward_autograd,
    cuda_fallback=triton_forward,
)

BACKWARD_OP = Op("_conv_relu_pool2d_backward", BACKWARD_SCHEMA, _backward_op, backward_samples)
register(
    BACKWARD_OP,
    fake=_backward_fake,
    vmap=vmap_by_loop(BACKWARD_OP.name),
    autograd=_backward_autograd,
    cuda_fallback=triton_backward,
)
