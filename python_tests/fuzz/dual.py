"""Problems of ``dual_gram``, ``dual_matvec``, ``dual_solve`` and ``layer_kernel``."""

from __future__ import annotations

import math
import random
from typing import Any

import torch

import zbkernels as zb
from fuzz import judge
from fuzz.tensors import DTYPES, Spec, draw_spec, make
from zbkernels.ops import OPS

Problem = dict[str, Any]
NAMES = ("dual_gram", "dual_matvec", "dual_solve", "layer_kernel")
CLOSED = (
    "relu",
    "leaky_relu:0.1",
    "leaky_relu",
    "abs",
    "identity",
    "erf",
    "erf:2",
    "gelu",
    "sin",
    "cos",
    "sin+cos",
)
ERFS = ("sigmoid_erf", "tanh_erf")
ROWS = ("", "", "", "zero", "equal", "opposite", "nan", "inf", "scaled")


def draw(r: random.Random) -> Problem:
    op = r.choice(NAMES)
    if op == "layer_kernel":
        pairs, units, angles = (
            r.randint(0, 9),
            r.choice([r.randint(0, 5), r.randint(1, 200)]),
            r.randint(0, 20),
        )
        p: Problem = {
            "op": op,
            "dtype": r.choice(tuple(DTYPES)),
            "u": draw_spec(r, [pairs, units]),
            "v": draw_spec(r, [pairs, units]),
            "angles": draw_spec(r, [pairs, angles] if r.random() < 0.4 else [angles]),
            "angles_dtype": r.choice(tuple(DTYPES)),
            "normalized": r.random() < 0.6,
            "turns": r.choice([1, 1, 50]),
            "row": r.choice(["", "", "", "nan", "inf", "off"]),
        }
        if r.random() < 0.5:
            p["bias"] = draw_spec(r, [units])
        return p
    n, d = r.choice([r.randint(0, 9), r.randint(1, 70)]), r.choice([1, r.randint(2, 9), r.randint(2, 100)])
    options: dict[str, Any] = {"kernel": r.choice(["nngp", "ntk"]), "activation": r.choice(CLOSED + ERFS)}
    options |= {"depth": r.choice([0, 1, 1, 2, 3]), "b_std": r.choice([0.0, 0.0, 0.3])}
    options["w_std"] = r.choice([2**0.5, 1.0, 1.3])
    if options["kernel"] == "ntk" and r.random() < 0.2:
        options["train"] = "first"
    p = {
        "op": op,
        "dtype": r.choice(["f32", "f64"]),
        "options": options,
        "x": draw_spec(r, [n, d]),
        "row": r.choice(ROWS),
    }
    if op == "dual_solve":
        p["x"] = draw_spec(r, [min(n, 30), d])
        p["y"] = draw_spec(r, [min(n, 30), r.randint(0, 4)])
        options["shift"] = r.choice([0.1, 1.0])
        p["row"] = r.choice(["", "", "equal", "zero"])
        return p
    m = n if r.random() < 0.3 else r.choice([r.randint(0, 9), r.randint(1, 70)])
    p["itself"] = r.random() < 0.2
    p["x2"] = draw_spec(r, [m, d])
    if op == "dual_matvec":
        p["v"] = draw_spec(r, [n if p["itself"] else m, r.randint(0, 9)])
    return p


def cost(p: Problem) -> int:
    if p["op"] == "layer_kernel":
        return math.prod(p["u"]["shape"]) * p["angles"]["shape"][-1]
    n, d = p["x"]["shape"]
    other = n if p["op"] == "dual_solve" or p["itself"] else p["x2"]["shape"][0]
    return n * other * (d + 20 * p["options"]["depth"])


def smaller(p: Problem) -> list[Problem]:
    specs = [name for name in ("x", "x2", "v", "y", "u", "angles", "bias") if isinstance(p.get(name), dict)]
    found = [{**p, name: {"shape": p[name]["shape"]}} for name in specs if len(p[name]) > 1]
    if p["row"]:
        found.append({**p, "row": ""})

    def sized(sizes: dict[tuple[str, int], int]) -> Problem:
        q = dict(p)
        for (name, d), size in sizes.items():
            if name in q:
                shape = list(q[name]["shape"])
                shape[d] = size
                q[name] = {**q[name], "shape": shape}
        return q

    if p["op"] == "layer_kernel":
        pairs, units = p["u"]["shape"]
        for k in {units // 2, units - 1} - {0, units, -1}:
            found.append(sized({("u", 1): k, ("v", 1): k, ("bias", 0): k}))
        if len(p["angles"]["shape"]) == 1 and pairs > 1:
            found.append(sized({("u", 0): pairs - 1, ("v", 0): pairs - 1}))
        return found
    d = p["x"]["shape"][1]
    for k in {d // 2, d - 1} - {0, d, -1}:
        found.append(sized({("x", 1): k, ("x2", 1): k}))
    if not p.get("itself"):
        n = p["x"]["shape"][0]
        for k in {n // 2, n - 1} - {0, n, -1}:
            found.append(sized({("x", 0): k, ("y", 0): k}))
    if p["options"]["depth"] > 1:
        found.append({**p, "options": {**p["options"], "depth": p["options"]["depth"] - 1}})
    return found


def _rows(spec: Spec, dtype: torch.dtype, data: int, row: str) -> torch.Tensor:
    """Inputs, one row of which is of the drawn kind."""
    x = make(spec, dtype, data)
    if row and x.shape[0] > 1 and x.shape[1] and not spec.get("expand") and not spec.get("negated"):
        if row == "zero":
            x[0] = 0
        elif row == "equal":
            x[1] = x[0]
        elif row == "opposite":
            x[1] = -x[0]
        elif row == "scaled":
            x[0] *= 1e4
        else:
            x[0, 0] = float(row)
    return x


def check(p: Problem, backend: str, data: int) -> str | None:
    op, dtype = p["op"], DTYPES[p["dtype"]]
    if op == "layer_kernel":
        return _layer_kernel(p, dtype, data)
    x = _rows(p["x"], dtype, data, p["row"])
    if op == "dual_solve":
        return _solve(p, x, dtype, data)
    x2 = (
        x if p["itself"] else _rows(p["x2"], dtype, data + 1, p["row"] if p["row"] in ("zero", "nan") else "")
    )
    args = [x, x2]
    if op == "dual_matvec":
        args.append(make(p["v"], dtype, data + 2))
    return _against_reference(op, args, p["options"], _unit(p, dtype, x), p["row"])


def _unit(p: Problem, dtype: torch.dtype, x: torch.Tensor) -> float:
    """Of the largest value: an angle of 0 or 180 degrees between inputs is found to the root of eps."""
    eps = torch.finfo(dtype).eps
    aligned = (
        x.shape[-1] <= 2
        or p["row"] in ("equal", "opposite", "scaled")
        or "expand" in p["x"]
        or p.get("itself")
    )
    return eps**0.5 if aligned else 16 * eps * (1 + p["options"]["depth"])


def _against_reference(
    op: str, args: list[torch.Tensor], options: dict[str, Any], unit: float, row: str
) -> str | None:
    public, reference = OPS[op].public, OPS[op].reference
    assert public is not None
    wide = [a.double() for a in args]
    if args[0] is args[1]:
        wide[1] = wide[0]
    got = public(*args, **options)
    judge.noted()
    own, right = (reference(*a, **options) for a in (args, wide))
    size = right.abs()
    if op == "dual_matvec":
        size = OPS["dual_gram"].reference(*wide[:2], **options).abs() @ wide[2].abs()
    if op == "dual_gram" and args[0] is args[1] and (fault := judge.same("symmetry", got, got.mT)):
        return fault
    if fault := judge.close(op, got, own, right, size, unit=unit):
        return fault
    if row or unit > 1e-3 or not all(a.numel() for a in args) or args[0] is args[1]:
        return None  # at kinks, where rows are parallel or not finite, finite and exact gradients differ
    if torch.finfo(args[0].dtype).eps ** 0.5 <= unit:
        return None
    g = torch.Generator().manual_seed(5)
    grad = torch.randn(got.shape, generator=g, dtype=got.dtype).to(got.device)
    results = []
    for f, given in ((public, args), (reference, args), (reference, wide)):
        leaves = [a.detach().requires_grad_() for a in given]
        y = f(*leaves, **options)
        results.append(torch.autograd.grad(y, leaves, grad.to(y.dtype)))
    for number, (a, b, c) in enumerate(zip(*results, strict=True)):
        if fault := judge.close(f"grad of input {number}", a, b, c, c.abs(), loose=True, unit=4 * unit):
            return fault
    return None


def _solve(p: Problem, x: torch.Tensor, dtype: torch.dtype, data: int) -> str | None:
    y, options = make(p["y"], dtype, data + 1), dict(p["options"])
    shift = options["shift"]
    if not x.shape[0]:
        got = zb.dual_solve(x, y, **options)
        return None if got.shape == y.shape else f"shape {list(got.shape)}"
    got = zb.dual_solve(x, y, **options)
    judge.noted()
    options.pop("shift")
    K = OPS["dual_gram"].reference(x.double(), x.double(), **options)
    K = K + shift * torch.eye(len(K), dtype=K.dtype, device=K.device)
    residual = (K @ got.double() - y.double()).norm(dim=0)
    eps = torch.finfo(dtype).eps
    allowed = 1e-6 * y.double().norm(dim=0) + 4 * eps * K.norm() * got.double().norm(dim=0)
    if not bool((residual <= allowed).all()):
        return f"dual_solve: residual {residual.max():.3g}, allowed {allowed.min():.3g}"
    return None


def _layer_kernel(p: Problem, dtype: torch.dtype, data: int) -> str | None:
    u, v = make(p["u"], dtype, data), make(p["v"], dtype, data + 1)
    angles = make(p["angles"], DTYPES[p["angles_dtype"]], data + 2) * p["turns"]
    bias = make(p["bias"], dtype, data + 3) if "bias" in p else None
    if u.numel() and not set(p["u"]) & {"expand", "negated"}:
        if p["row"] == "off":
            u[0] = -u[0].abs()
        elif p["row"]:
            u[0, 0] = float(p["row"])
    wide = [None if t is None else t.double() for t in (u, v, angles, bias)]
    normalized = p["normalized"]
    got = zb.layer_kernel(u, v, angles, bias, normalized=normalized)
    judge.noted()
    reference = OPS["layer_kernel"].reference
    own, right = (reference(*a, normalized=normalized) for a in ((u, v, angles, bias), wide))
    size = torch.ones_like(right)  # of a cosine
    if not normalized and u.shape[1]:
        magnitudes = [None if t is None else t.abs() for t in wide]
        on_x = magnitudes[0] if bias is None else magnitudes[0] + magnitudes[3]
        on_y = magnitudes[0] + magnitudes[1] + (0 if bias is None else magnitudes[3])
        size = (on_x * on_y).mean(1, keepdim=True).expand(right.shape)
    unit = 16 * min(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    if normalized and u.shape[1] < 8:
        return (
            None if got.shape == right.shape else f"shape {list(got.shape)}"
        )  # a unit near 0 decides on 0/0
    return judge.close("layer_kernel", got, own, right, size, unit=unit)
