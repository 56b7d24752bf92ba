"""Problems of ``linear_relu`` and ``linear_relu_nap``."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
import torch.nn.functional as F

import zbkernels as zb
from fuzz import judge
from fuzz.tensors import DTYPES, draw_spec, draw_values, make
from zbkernels.ops.nap_pack import pack_last

Problem = dict[str, Any]


def draw(r: random.Random) -> Problem:
    features = r.choice([r.randint(0, 9), r.randint(1, 80), r.randint(1, 300)])
    units = r.choice([r.randint(0, 9), r.randint(1, 140), r.choice([63, 64, 65, 128])])
    lead = r.choice(
        [[], [r.randint(0, 9)], [r.randint(0, 9)], [r.randint(1, 70)], [r.randint(1, 3), r.randint(0, 4)]]
    )
    exact = r.random() < 0.6
    return {
        "dtype": r.choice(tuple(DTYPES)),
        "x": draw_spec(r, [*lead, features]),
        "weight": draw_spec(r, [units, features]),
        "grad": draw_spec(r, [*lead, units]),
        "slope": r.choices((0.0, 0.5, 1.0, 0.1), (60, 15, 10, 15))[0],
        "exact": exact,
        "special": draw_values(r, not exact),
        "wants": r.choice([["x", "weight"], ["x"], ["weight"]]),
    }


def cost(p: Problem) -> int:
    return math.prod(p["x"]["shape"]) * p["weight"]["shape"][0]


def smaller(p: Problem) -> list[Problem]:
    found = [{**p, n: {"shape": p[n]["shape"]}} for n in ("x", "weight", "grad") if len(p[n]) > 1]
    found += [{**p, "special": [s for s in p["special"] if s != special]} for special in p["special"]]
    x, w = p["x"]["shape"], p["weight"]["shape"]

    def sized(lead: list[int], features: int, units: int) -> Problem:
        shapes = {"x": [*lead, features], "weight": [units, features], "grad": [*lead, units]}
        return {**p, **{name: {**p[name], "shape": shape} for name, shape in shapes.items()}}

    for d in range(len(x) - 1):
        if x[d] > 1:
            found += [sized([*x[:d], n, *x[d + 1 : -1]], x[-1], w[0]) for n in (x[d] // 2, x[d] - 1)]
    found += [sized(x[:-1], n, w[0]) for n in {x[-1] // 2, x[-1] - 1} if 0 < n < x[-1]]
    found += [sized(x[:-1], x[-1], n) for n in {w[0] // 2, w[0] - 1} if 0 < n < w[0]]
    return found


def _act(pre: torch.Tensor, slope: float) -> torch.Tensor:
    return pre.relu() if slope == 0 else pre if slope == 1 else F.leaky_relu(pre, slope)


def check(p: Problem, backend: str, data: int) -> str | None:
    dtype, slope, most = DTYPES[p["dtype"]], p["slope"], 2 if p["exact"] else 0
    x = make(p["x"], dtype, data, whole=most, special=p["special"], taps=p["x"]["shape"][-1])
    w = make(p["weight"], dtype, data + 1, whole=most)
    grad = make(p["grad"], dtype, data + 2, whole=most)
    with torch.no_grad():
        y = zb.linear_relu(x, w, slope)
        judge.noted()
        y_nap, sig = zb.linear_relu_nap(x, w, slope)
    if fault := judge.same("signature", sig, pack_last(y_nap > 0)):
        return fault
    # A product of matrices by NumPy's rules for what is not finite: each element is a sum of its own.
    terms = x.double().unsqueeze(-2) * w.double() if x.numel() * w.shape[0] < 2**21 else None
    pre64 = F.linear(x.double(), w.double()) if terms is None else terms.sum(-1)
    size = F.linear(*(t.double().abs().nan_to_num(0.0, 0.0) for t in (x, w)))
    want64 = _act(pre64, slope)
    rounded = _act(pre64.to(dtype), slope)
    exact = p["exact"] and slope in (0.0, 0.5, 1.0)
    same = _act(F.linear(x, w), slope)
    for what, got in (("y", y), ("y beside its signature", y_nap)):
        fault = (
            judge.same(what, got, rounded) if exact else judge.close(what, got, same, want64, size, unit=None)
        )
        if fault:
            return fault
    leaves = {"x": x, "weight": w}
    leaves = {k: t.detach().requires_grad_() if k in p["wants"] else t for k, t in leaves.items()}
    asked = [leaves[k] for k in p["wants"]]
    for f in (zb.linear_relu, lambda *a: zb.linear_relu_nap(*a)[0]):
        got = torch.autograd.grad(f(leaves["x"], leaves["weight"], slope), asked, grad)
        # The activation's gradient by the signs of the op's own values: rounding puts them on either side of 0.
        passes = (y > 0) | (y.isnan() & (slope == 0))
        factor = passes.double() + (~passes).double() * slope
        dense = torch.where(factor == 0, 0.0, grad.double() * factor)
        own = torch.where(factor == 0, 0, grad * factor.to(dtype))
        for name, g in zip(p["wants"], got, strict=True):
            a, b = (dense, w.double()) if name == "x" else (_rows(dense).t(), _rows(x.double()))
            c, d = (own, w) if name == "x" else (_rows(own).t(), _rows(x))
            right, magnitude = a @ b, a.abs() @ b.abs().nan_to_num(0.0, 0.0)
            unit = torch.finfo(dtype).eps  # the activation's gradient is rounded before the product
            if fault := judge.close(f"grad of {name}", g, c @ d, right, magnitude, loose=True, unit=unit):
                return fault
    return None


def _rows(t: torch.Tensor) -> torch.Tensor:
    return t.reshape(t.shape[:-1].numel(), t.shape[-1])
