"""Problems of ``conv_relu_pool2d`` and ``conv_relu_pool2d_nap``: values, codes, signatures, gradients."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
import torch.nn.functional as F
from exact import expected_forward

import zbkernels as zb
from fuzz import judge
from fuzz.tensors import DTYPES, draw_spec, draw_values, make
from zbkernels.ops import OPS
from zbkernels.ops._conv_autograd import REGISTERED, Passes
from zbkernels.ops._conv_reference import backward_reference, residual_gradient
from zbkernels.ops._geometry import Geometry, memory_format
from zbkernels.ops.nap_pack import pack_last
from zbkernels.ops.nap_unpack import unpack_last

Problem = dict[str, Any]
MOST = 3_000_000  # multiplications of a problem


# --- drawing ------------------------------------------------------------------------------------------------------


def draw(r: random.Random) -> Problem:
    while True:
        p = _draw(r)
        if p is not None:
            return p


def _draw(r: random.Random) -> Problem | None:
    kind = r.choices(
        ("any", "winograd", "folded", "first", "depthwise", "grouped", "large window", "few pixels", "tiny"),
        (40, 20, 4, 12, 6, 7, 3, 1, 7),
    )[0]
    groups, per_in, per_out = 1, r.randint(1, 9), r.randint(1, 9)
    kernel = [r.randint(1, 5), r.randint(1, 5)]
    stride, dilation, padding = [1, 1], [1, 1], [r.randint(0, 3), r.randint(0, 3)]
    extra, n = 9, r.choice([0, 1, 1, 2, 3])
    if kind == "any":
        stride, dilation = ([r.choice([1, 1, 2, 3]) for _ in "hw"] for _ in "sd")
        if r.random() < 0.3:
            per_in, per_out = r.randint(1, 40), r.randint(1, 70)
    elif kind == "winograd":
        kernel = [r.choice([2, 3, 3, 3, 4, 5, 5, 6, 7])] * 2
        per_in, per_out, extra = r.randint(3, 28), r.randint(8, 40), 18
    elif kind == "folded":
        kernel, stride = [r.randint(5, 11)] * 2, [2, 2]
        per_in, per_out, extra = r.randint(1, 8), r.randint(8, 33), 14
    elif kind == "first":
        kernel = [r.choice([3, 5, 7, 2])] * 2 if r.random() < 0.8 else kernel
        stride = [r.choice([1, 1, 2])] * 2
        per_in, per_out, extra = r.randint(1, 4), r.randint(1, 70), 24
    elif kind == "depthwise":
        groups, per_in, per_out, extra = r.randint(2, 40), 1, r.choice([1, 1, 2, 3]), 14
        stride = [r.choice([1, 1, 2]), r.choice([1, 1, 2])]
    elif kind == "grouped":
        groups, per_in, per_out = r.randint(2, 6), r.randint(1, 12), r.randint(1, 12)
        stride, dilation = ([r.choice([1, 1, 1, 2]) for _ in "hw"] for _ in "sd")
    elif kind == "few pixels":
        side = r.choice([1, 3])
        kernel, padding, n, extra = [side] * 2, [side // 2] * 2, r.choice([1, 2]), 3
        per_in, per_out = r.randint(120, 200), 2**18 // (120 * side * side) + r.randint(1, 60)
    elif kind == "tiny":
        kernel, extra, per_in, per_out = [r.randint(1, 2)] * 2, 1, r.randint(1, 2), r.randint(1, 2)
    pool = r.choices(("max", "avg", "none"), (60, 20, 20))[0]
    pool_kernel = r.choice([[2, 2], [2, 2], [3, 3], [r.randint(1, 4), r.randint(1, 4)]])
    pool_stride: list[int] | None = r.choice([None, None, [2, 2], [r.randint(1, 4), r.randint(1, 4)]])
    if kind == "large window":
        pool_kernel, pool_stride = r.choice([[16, 16], [12, 12], [17, 15], [9, 30]]), None
        per_in, per_out, n = r.randint(1, 3), r.randint(1, 3), 1
    size = []
    for d in (0, 1):
        window = pool_kernel[d] if pool != "none" else 1
        least = dilation[d] * (kernel[d] - 1) + 1 + stride[d] * (window - 1) - 2 * padding[d]
        size.append(max(1, least) + r.randint(0, extra))
    channels, units = groups * per_in, r.choice(["", "", "relu", "output", "winner"])
    slope = r.choices((0.0, 0.5, 1.0, 0.1), (70, 10, 8, 12))[0]
    if units == "winner" and (pool != "max" or slope):
        units = "output"
    shape = [n, channels, *size]
    fast = kind in ("winograd", "folded", "few pixels")  # kernels that "highest" does without
    exact = r.random() < (0.2 if fast else 0.6)
    options = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "pool": pool,
        "pool_kernel": pool_kernel,
        "pool_stride": pool_stride,
        "pool_padding": [r.choice([0, 0, k // 2, r.randint(0, k // 2)]) for k in pool_kernel],
        "ceil_mode": r.random() < 0.3,
        "count_include_pad": r.random() < 0.6,
        "negative_slope": slope,
    }
    if n == 1 and r.random() < 0.4:
        shape = shape[1:]
    w_shape = [groups * per_out, per_in, *kernel]
    g = _geometry(options)
    map_size = g.map_size(torch.empty(shape, device="meta"), torch.empty(w_shape, device="meta"))
    pooled = g.pooled_size(map_size)
    if min(pooled) < 1:
        return None
    p: Problem = {
        "dtype": r.choices(tuple(DTYPES), (45, 15, 20, 20))[0],
        "x": draw_spec(r, shape),
        "weight": draw_spec(r, w_shape),
        "options": options,
        "units": units,
        "exact": exact,
        "precision": "highest" if exact or r.random() < (0.1 if fast else 0.3) else "high",
        "special": draw_values(r, not exact),
        "wants": r.choice([["x", "weight"], ["x", "weight"], ["x"], ["weight"]]),
        "grad": draw_spec(r, [*shape[:-3], w_shape[0], *pooled]),
    }
    if r.random() < 0.06 and "nan" not in p["special"]:
        p["weight_special"] = draw_values(r, False)
    if r.random() < 0.15:
        p["residual"] = draw_spec(r, [*shape[:-3], w_shape[0], *map_size])
        if r.random() < 0.6:
            p["wants"] = [*p["wants"], "residual"]
    return p if work(p) <= MOST else None


def work(p: Problem) -> int:
    """Multiplications of the forward pass."""
    x, w = p["x"]["shape"], p["weight"]["shape"]
    map_size = _geometry(p["options"]).map_size(torch.empty(x, device="meta"), torch.empty(w, device="meta"))
    return max(x[0] if len(x) == 4 else 1, 1) * math.prod(w) * math.prod(map_size)


def _geometry(options: dict[str, Any]) -> Geometry:
    return Geometry.of("fuzz", **options)


def cost(p: Problem) -> int:
    """Multiplications where a kernel goes over a window's positions one after another."""
    return work(p) * max(math.prod(p["options"]["pool_kernel"]), 4) // 4


def smaller(p: Problem) -> list[Problem]:
    """Problems with one thing less; those that cannot be are refused by the op, and so dropped."""
    o, found = p["options"], []

    def add(**changes: Any) -> None:
        found.append({**p, **changes})

    for name in ("x", "weight", "grad", "residual"):
        if name in p and len(p[name]) > 1:
            add(**{name: {"shape": p[name]["shape"]}})
    for name in ("residual", "weight_special"):
        if name in p:
            q = {k: v for k, v in p.items() if k != name}
            found.append({**q, "wants": [w for w in q["wants"] if w != "residual"] or ["x"]})
    for special in p["special"]:
        add(special=[s for s in p["special"] if s != special])
    plain = {
        "stride": [1, 1],
        "dilation": [1, 1],
        "padding": [0, 0],
        "pool_padding": [0, 0],
        "ceil_mode": False,
    }
    for name, value in {**plain, "negative_slope": 0.0, "pool_stride": None}.items():
        if o[name] != value:
            found.append(_resized({**p, "options": {**o, name: value}}))
    if p["units"]:
        add(units="")
    x, w = p["x"]["shape"], p["weight"]["shape"]
    batch = len(x) - 3
    if batch and x[0] > 1:
        found.append(_resized({**p, "x": {**p["x"], "shape": [x[0] - 1, *x[1:]]}}))
    if w[0] > o["groups"]:
        k = max(o["groups"], w[0] // 2 // o["groups"] * o["groups"])
        found.append(_resized({**p, "weight": {**p["weight"], "shape": [k, *w[1:]]}}))
        found.append(_resized({**p, "weight": {**p["weight"], "shape": [w[0] - o["groups"], *w[1:]]}}))
    for c in {w[1] // 2, w[1] - 1} - {0, w[1]}:
        xs = [*x[:batch], c * o["groups"], *x[batch + 1 :]]
        found.append(
            _resized(
                {**p, "x": {**p["x"], "shape": xs}, "weight": {**p["weight"], "shape": [w[0], c, *w[2:]]}}
            )
        )
    for d in (1, 2):
        for size in {x[-d] // 2, x[-d] - 1} - {0, x[-d]}:
            xs = [*x]
            xs[-d] = size
            found.append(_resized({**p, "x": {**p["x"], "shape": xs}}))
    return [q for q in found if q is not None]


def _resized(p: Problem) -> Problem | None:
    """The problem with the sizes that follow from others made right."""
    x, w = p["x"]["shape"], p["weight"]["shape"]
    g = _geometry(p["options"])
    for d in (0, 1):
        if g.dilation[d] * (w[2 + d] - 1) + 1 > x[-2 + d] + 2 * g.padding[d]:
            return None
    map_size = g.map_size(torch.empty(x, device="meta"), torch.empty(w, device="meta"))
    pooled = g.pooled_size(map_size)
    if min(pooled) < 1 or min(map_size) < 1:
        return None
    p = {**p, "grad": {**p["grad"], "shape": [*x[:-3], w[0], *pooled]}}
    if "residual" in p:
        p["residual"] = {**p["residual"], "shape": [*x[:-3], w[0], *map_size]}
    return p


# --- checking -----------------------------------------------------------------------------------------------------


def passes_of(backend: str) -> Passes:
    run = next(k for k in OPS["conv_relu_pool2d"].kernels if k.name == backend).run
    return REGISTERED if run is None else run


def check(p: Problem, backend: str, data: int) -> str | None:
    """What is wrong, or None. Raises RuntimeError where the backend cannot run the call."""
    zb.set_conv_precision(p["precision"])
    dtype, o, exact = DTYPES[p["dtype"]], p["options"], p["exact"]
    taps = p["weight"]["shape"][1] * p["weight"]["shape"][2] * p["weight"]["shape"][3]
    most = 2 if exact else 0
    x = make(p["x"], dtype, data, whole=most, special=p["special"], taps=taps)
    w = make(p["weight"], dtype, data + 1, whole=most, special=p.get("weight_special"))
    grad = make(p["grad"], dtype, data + 2, whole=most)
    residual = make(p["residual"], dtype, data + 3, whole=most) if "residual" in p else None
    g = _geometry(o)
    known = ["zeros", "negative", "-0", "blank", "nan", "inf", "-inf"]
    whole = exact and all(s in known for s in p["special"])
    args = {"residual": residual} if residual is not None else {}
    with torch.no_grad():
        y = zb.conv_relu_pool2d(x, w, **o, **args)
        forward_kernel = judge.noted()
        fast = p["precision"] == "high" and ("winograd" in forward_kernel or "few" in forward_kernel)
        sig = y_nap = None
        if p["units"]:
            y_nap, sig = zb.conv_relu_pool2d_nap(x, w, **o, units=p["units"], **args)
            judge.noted()
        y_code, code, code_sig = passes_of(backend).forward(
            x, w, *g.conv_args(), residual, **g.pool_kwargs(), need_code=True, units=p["units"]
        )
    rounds = g.pool == "avg" or o["negative_slope"] not in (0.0, 0.5, 1.0)
    if whole and not rounds:
        fault = _exact_forward(x, w, g, residual, p["units"], y, y_nap, sig, y_code, code, code_sig)
    else:
        fault = _real_forward(x, w, g, residual, p["units"], fast, y, y_nap, sig, y_code, code, code_sig)
    if (
        fault is None
        and y.stride() != torch.empty_like(y).contiguous(memory_format=memory_format(x)).stride()
    ):
        fault = f"y: strides {y.stride()} of shape {list(y.shape)}"
    return fault or _gradients(p, backend, x, w, g, residual, grad, whole and not rounds)


def _exact_forward(
    x: Any,
    w: Any,
    g: Geometry,
    residual: Any,
    units: str,
    y: Any,
    y_nap: Any,
    sig: Any,
    y_code: Any,
    code: Any,
    bits: Any,
) -> str | None:
    want_y, want_code, want_sig = expected_forward(x, w, g, True, units, residual)
    found = [("y", y, want_y), ("y beside its code", y_code, want_y), ("code", code, want_code)]
    if units:
        found += [
            ("y beside its signature", y_nap, want_y),
            ("signature", sig, want_sig),
            ("signature beside the code", bits, want_sig),
        ]
    return next((f for f in (judge.same(*each) for each in found) if f), None)


def _act(pre: torch.Tensor, slope: float) -> torch.Tensor:
    if slope == 0:
        return pre.relu()
    return pre if slope == 1 else F.leaky_relu(pre, slope)


def _pool(act: torch.Tensor, g: Geometry) -> torch.Tensor:
    if g.pool == "max":
        return F.max_pool2d(act, g.pool_kernel, g.pool_stride, g.pool_padding, ceil_mode=g.ceil_mode)
    if g.pool == "avg":
        return F.avg_pool2d(
            act, g.pool_kernel, g.pool_stride, g.pool_padding, g.ceil_mode, g.count_include_pad
        )
    return act


def _pre(x: torch.Tensor, w: torch.Tensor, g: Geometry, residual: torch.Tensor | None) -> torch.Tensor:
    """Of plain copies: torch's convolutions have faults of their own with strides of dimensions of size 1."""
    pre = F.conv2d(x.contiguous(), w.contiguous(), None, g.stride, g.padding, g.dilation, g.groups)
    return pre if residual is None else pre + residual


def _wide(t: torch.Tensor | None) -> Any:
    return None if t is None else t.double()


def _abs(t: torch.Tensor | None) -> Any:
    return None if t is None else t.double().abs().nan_to_num(0.0, 0.0)


def _real_forward(
    x: Any,
    w: Any,
    g: Geometry,
    residual: Any,
    units: str,
    fast: bool,
    y: Any,
    y_nap: Any,
    sig: Any,
    y_code: Any,
    code: Any,
    bits: Any,
) -> str | None:
    pre, pre64 = _pre(x, w, g, residual), _pre(_wide(x), _wide(w), g, _wide(residual))
    size = _pre(_abs(x), _abs(w), g, _abs(residual))
    slope = g.negative_slope
    want, want64, size_y = _pool(_act(pre, slope), g), _pool(_act(pre64, slope), g), _pool(size, g)
    # With a residual or an average a rounded sum is added to others, which may cancel.
    unit = torch.finfo(x.dtype).eps if residual is not None or g.pool == "avg" else None
    results = [("y", y, fast), ("y beside its code", y_code, fast)]
    if units:
        results += [("y beside its signature", y_nap, False)]
    for what, got, fast_here in results:
        if fault := judge.close(what, got, want, want64, size_y, fast_here, unit=unit):
            return fault
    clear = pre.isfinite() & pre64.isfinite() & (size < torch.finfo(x.dtype).max / 2)
    for what, found, y_here, fast_here in (("code", code, y_code, fast), ("signature", sig, y_nap, False)):
        if found is None:
            continue
        near = judge.allowance(pre, pre64, size, fast_here, unit)
        where = "code" if what == "code" else units
        if fault := _pattern(what, found, where, y_here, pre64, clear, near, g):
            return fault
    if units:
        batched = x.dim() == 4
        if units == "output" and (not batched or x.shape[0]):
            rows = (y_code if batched else y_code[None]).flatten(1)
            if not torch.equal(pack_last(rows > 0), bits if batched else bits[None]):
                return "signature beside the code: not the signs of the values returned"
    return None


def _pattern(
    what: str,
    found: torch.Tensor,
    where: str,
    y: torch.Tensor,
    pre: torch.Tensor,
    clear: torch.Tensor,
    near: float,
    g: Geometry,
) -> str | None:
    """Bits, winners or codes against the pre-activations in float64, but where these are ``near`` a change."""
    if y.numel() == 0:
        return None
    if where == "output":
        on = (y.flatten(1) if y.dim() == 4 else y.flatten()) > 0
        return None if torch.equal(pack_last(on), found) else f"{what}: not the signs of the values returned"
    if where == "relu" or (where == "code" and g.pool != "max"):
        count = pre.shape[-1] * pre.shape[-2]
        if where == "relu":
            on = unpack_last(found, pre.shape[-3] * count).view(pre.shape)
        else:
            on = unpack_last(found, count).view(pre.shape)
        wrong = clear & (pre.abs() > near) & (on != (pre > 0))
        return f"{what}: {int(wrong.sum())} of {wrong.numel()} bits are wrong" if wrong.any() else None
    if where == "winner":
        width = g.window().bit_length()
        flat = unpack_last(found, y[0].numel() * width if y.dim() == 4 else y.numel() * width)
        digits = flat.view(*y.shape, width).long()
        number = (digits << torch.arange(width, device=y.device)).sum(-1)
        position, dead = number - 1, number == 0
    else:
        number = found.long()
        dead = number == 0
        position = (number - 1) // 2 if g.negative_slope else number - 1
    if (position >= g.window()).any():
        return f"{what}: a position of {int(position.max())} in a window of {g.window()}"
    if where == "code" and g.negative_slope:
        low = (number - 1) % 2 == 1
        if (low != ~(y > 0)).any() or dead.any():
            return f"{what}: its lowest bit is not the sign of the value returned"
    elif (dead != ~((y > 0) | (y.isnan() & (where == "code")))).any():
        return f"{what}: 0 where the value returned is above 0, or the reverse"
    # What stands at the winner's place must be the largest of its window, or near it.
    p, q = y.shape[-2:]
    row = (
        torch.arange(p, device=y.device)[:, None] * g.pool_stride[0]
        - g.pool_padding[0]
        + position // g.pool_kernel[1]
    )
    column = (
        torch.arange(q, device=y.device) * g.pool_stride[1] - g.pool_padding[1] + position % g.pool_kernel[1]
    )
    h, v = pre.shape[-2:]
    outside = ~dead & ((row < 0) | (row >= h) | (column < 0) | (column >= v))
    if outside.any():
        return f"{what}: a winner outside the map"
    at = (row.clamp(0, h - 1) * v + column.clamp(0, v - 1)).flatten(-2)
    values = pre.flatten(-2).gather(-1, at).view(y.shape)
    largest = _pool(pre.nan_to_num(0.0, 0.0, 0.0), g)
    sure = _pool((~clear).double(), g) == 0  # all of the window is clear
    wrong = sure & ~dead & (values < largest - 2 * near)
    return f"{what}: {int(wrong.sum())} winners are not the largest of their windows" if wrong.any() else None


def _gradients(
    p: Problem, backend: str, x: Any, w: Any, g: Geometry, residual: Any, grad: Any, exact: bool
) -> str | None:
    o, wants = p["options"], p["wants"]
    inputs = {"x": x, "weight": w, **({"residual": residual} if residual is not None else {})}
    leaves = {k: (t.detach().requires_grad_() if k in wants else t) for k, t in inputs.items()}
    asked = [leaves[k] for k in wants]
    args = {"residual": leaves["residual"]} if residual is not None else {}
    y = zb.conv_relu_pool2d(leaves["x"], leaves["weight"], **o, **args)
    kernel = judge.noted()
    got = dict(zip(wants, torch.autograd.grad(y, asked, grad), strict=True))
    back_kernel = judge.noted()
    passes = passes_of(backend)
    with torch.no_grad():
        _, code, _ = passes.forward(
            x, w, *g.conv_args(), residual, **g.pool_kwargs(), need_code=True, units=""
        )
        need_x, need_w = "x" in wants, "weight" in wants
        by_hand = (
            passes.backward(
                grad, x, w, code, *g.conv_args(), **g.pool_kwargs(), need_x=need_x, need_weight=need_w
            )
            if need_x or need_w
            else ()
        )
    bit_for_bit = (
        "residual" not in wants or g.pool != "none"
    )  # else the incoming gradient is masked beforehand
    for name, t in zip(("x", "weight"), by_hand, strict=False):
        if (
            name in wants
            and bit_for_bit
            and (fault := judge.same(f"grad of {name}, beside the op's own", got[name], t))
        ):
            return fault
    finite = all(bool(t.isfinite().all()) for t in inputs.values())
    if exact and finite and p["dtype"] in ("f32", "f64"):
        wide = {k: t.detach().double().contiguous().requires_grad_(k in wants) for k, t in inputs.items()}
        steps = _pool(_act(_pre(wide["x"], wide["weight"], g, wide.get("residual")), g.negative_slope), g)
        want = torch.autograd.grad(steps, [wide[k] for k in wants], grad.double())
        for name, right in zip(wants, want, strict=True):
            if fault := judge.same(f"grad of {name}", got[name], right.to(x.dtype)):
                return fault
        return None
    with torch.no_grad():
        fast = p["precision"] == "high" and ("winograd" in back_kernel or "winograd" in kernel)
        wide = [t.double() for t in (grad, x, w)]
        needs = (need_x, need_w)
        if need_x or need_w:
            own = backward_reference(grad, x, w, code, g, *needs)
            right = backward_reference(*wide, code, g, *needs)
            size = backward_reference(*(_abs(t) for t in (grad, x, w)), code, g, *needs)
            for name, number in (("x", 0), ("weight", 1)):
                if name in wants:
                    fault = judge.close(
                        f"grad of {name}", got[name], own[number], right[number], size[number], fast, loose=True,
                        unit=torch.finfo(x.dtype).eps,  # the un-pooled gradient may be rounded on the way
                    )  # fmt: skip
                    if fault:
                        return fault
        if "residual" in wants and finite:
            own, right, size = (
                residual_gradient(t, x, w, code, g) for t in (grad, grad.double(), grad.double().abs())
            )
            return judge.close("grad of residual", got["residual"], own, right, size, loose=True)
    return None
