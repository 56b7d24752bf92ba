"""Problems of the ops on activation patterns, against NumPy and Python's own integers."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import torch

import zbkernels as zb
from fuzz import judge
from fuzz.tensors import DTYPES, draw_spec, draw_values, make, words
from zbkernels.ops.nap_hash import GOLDEN, MIX

Problem = dict[str, Any]
OPS = ("nap_pack", "nap_unpack", "nap_hash", "nap_hamming", "nap_topk", "nap_group", "nap_frequency")
_ALL = 2**64 - 1


def draw(r: random.Random) -> Problem:
    op = r.choice(OPS)
    rows = r.choice([r.randint(0, 9), r.randint(1, 70), r.randint(1, 600)])
    width = r.choice([r.randint(0, 4), r.randint(1, 9), r.choice([7, 8, 15, 16, 17, 31, 32, 33])])
    p: Problem = {"op": op, "values": r.choice(["any", "few", "near"])}
    if op == "nap_pack":
        shape = r.choice(
            [[rows % 40, r.randint(0, 300)], [rows % 5, r.randint(1, 7), r.randint(1, 9), r.randint(1, 20)]]
        )
        p |= {"dtype": r.choice((*DTYPES, "bool")), "x": draw_spec(r, shape), "special": draw_values(r)}
        return p
    if op in ("nap_hamming", "nap_topk"):
        rows = min(rows, 40)
        other = r.choice([r.randint(0, 9), r.randint(1, 200), r.randint(1, 1500)])
        p["b"] = draw_spec(r, [other, width], True)
        if op == "nap_topk":
            p["k"] = r.choice([0, min(1, other), min(5, other), r.randint(0, other), other])
    if op in ("nap_unpack", "nap_hash"):
        rows = min(rows, 90)
    p["sig"] = draw_spec(r, [rows, width], True)
    if op == "nap_unpack":
        p["F"] = max(0, 64 * width - r.randint(0, 63)) if width else 0
    if op == "nap_frequency":
        p["F"] = r.randint(0, 64 * width)
    return p


def cost(p: Problem) -> int:
    return math.prod(p["x" if "x" in p else "sig"]["shape"]) * (p["b"]["shape"][0] if "b" in p else 1)


def smaller(p: Problem) -> list[Problem]:
    found = []
    for name in ("x", "sig", "b"):
        if name in p:
            if len(p[name]) > 1:
                found.append({**p, name: {"shape": p[name]["shape"]}})
            n = p[name]["shape"][0]
            for less in {n // 2, n - 1}:
                if 0 < less < n and less >= p.get("k", 0) * (name == "b"):
                    found.append({**p, name: {**p[name], "shape": [less, *p[name]["shape"][1:]]}})
    if p.get("k", 0) > 1:
        found.append({**p, "k": p["k"] // 2})
    return found


def bits_of(sig: torch.Tensor) -> Any:
    """uint8 [N, 64 W] by NumPy, the lowest bit of a word first."""
    octets = np.ascontiguousarray(sig.cpu().numpy()).view(np.uint8).reshape(sig.shape[0], 8 * sig.shape[1])
    return np.unpackbits(octets, axis=1, bitorder="little")


def hashed(row: list[int]) -> list[int]:
    """The hash in Python's integers."""

    def mix(x: int) -> int:
        x = ((x ^ (x >> 30)) * MIX[0]) & _ALL
        x = ((x ^ (x >> 27)) * MIX[1]) & _ALL
        return x ^ (x >> 31)

    s = [mix((w + (i + 1) * GOLDEN) & _ALL) for i, w in enumerate(row)]
    a = sum(s) + len(row)
    b = mix((sum((v & (2**32 - 1)) * (v >> 32) for v in s) + GOLDEN + a) & _ALL)
    return [v - 2**64 if v >= 2**63 else v for v in (mix((a + b) & _ALL), b)]


def check(p: Problem, backend: str, data: int) -> str | None:
    fault = _check(p, data)
    judge.noted()
    return fault


def _check(p: Problem, data: int) -> str | None:
    op = p["op"]
    if op == "nap_pack":
        dtype = DTYPES.get(p["dtype"], torch.float32)
        x = make(p["x"], dtype, data, special=p["special"])
        x = x > 0 if p["dtype"] == "bool" else x
        on = (x.double() > 0).flatten(1).cpu().numpy()
        got = zb.nap_pack(x)
        if got.dtype != torch.int64 or list(got.shape) != [on.shape[0], (on.shape[1] + 63) // 64]:
            return f"{got.dtype} {list(got.shape)}"
        bits = bits_of(got)
        right = np.array_equal(bits[:, : on.shape[1]], on) and not bits[:, on.shape[1] :].any()
        return None if right else "bits differ from the signs"
    sig = words(p["sig"], data, p["values"])
    if op == "nap_unpack":
        want = torch.from_numpy(bits_of(sig)[:, : p["F"]].astype(bool))
        return judge.same(op, zb.nap_unpack(sig, p["F"]).cpu(), want)
    if op == "nap_frequency":
        want = torch.from_numpy(bits_of(sig).sum(0, dtype=np.int64)[: p["F"]])
        return judge.same(op, zb.nap_frequency(sig, p["F"]).cpu(), want)
    if op == "nap_hash":
        rows = [[w & _ALL for w in row] for row in sig.tolist()]
        want = torch.tensor([hashed(row) for row in rows], dtype=torch.int64).view(len(rows), 2)
        return judge.same(op, zb.nap_hash(sig).cpu(), want)
    if op == "nap_group":
        return _group(sig)
    b = words(p["b"], data + (1 if data % 3 else 0), p["values"])
    mine, other = bits_of(sig).astype(np.float32), bits_of(b).astype(np.float32)
    table = mine.sum(1)[:, None] + other.sum(1)[None] - 2 * (mine @ other.T)
    distances = torch.from_numpy(table.astype(np.int32))
    if op == "nap_hamming":
        return judge.same(op, zb.nap_hamming(sig, b).cpu(), distances)
    near, ids = (t.cpu() for t in zb.nap_topk(sig, b, p["k"]))
    order = torch.from_numpy(np.argsort(table, axis=1, kind="stable")[:, : p["k"]].astype(np.int64))
    return judge.same("rows", ids, order) or judge.same("distances", near, distances.gather(1, order))


def _group(sig: torch.Tensor) -> str | None:
    number: dict[tuple[int, ...], int] = {}
    ids, first, counts = [], [], []
    for i, row in enumerate(map(tuple, sig.tolist())):
        if row not in number:
            number[row] = len(number)
            first.append(i)
            counts.append(0)
        ids.append(number[row])
        counts[number[row]] += 1
    wanted = (torch.tensor(t, dtype=torch.int64) for t in (ids, first, counts))
    found = zip(("ids", "first", "counts"), [t.cpu() for t in zb.nap_group(sig)], wanted, strict=True)
    return next((fault for fault in (judge.same(*each) for each in found) if fault), None)
