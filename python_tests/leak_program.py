"""Calls each op a thousand times, and prints what memory is left in use a call: ``test_leaks.py`` reads it."""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

import zbkernels as zb
from zbkernels.nap import NapIndex
from zbkernels.ops import OPS

CALLS, WARM_UP = 1000, 60


class Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"]
    ]
    _fields_ += [(name, ctypes.c_size_t) for name in ["uordblks", "fordblks", "keepcost"]]


class Held:
    """Bytes that the C library has handed out, blocks that Python has, and live tensors."""

    def __init__(self) -> None:
        gc.collect()
        info = ctypes.CDLL(None).mallinfo2
        info.restype = Mallinfo2
        found = info()
        self.bytes = found.uordblks + found.hblkhd
        self.blocks = sys.getallocatedblocks()
        self.tensors = sum(isinstance(o, torch.Tensor) for o in gc.get_objects())
        with open("/proc/self/statm") as file:
            self.resident = int(file.read().split()[1]) * 4096


def small(name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    sample = next(iter(OPS[name].samples("cpu", OPS[name].dtypes[0])))
    return sample.args, sample.kwargs


def calls() -> Iterator[tuple[str, Callable[[], Any]]]:
    for name, op in OPS.items():
        args, kwargs = small(name)
        yield f"torch.ops.zb.{name}", lambda op=op, a=args, k=kwargs: op.overload(*a, **k)
        if op.public is not None:
            yield name, lambda op=op, a=args, k=kwargs: op.public(*a, **k)
            if not name.startswith("nap_") and "solve" not in name:
                yield f"{name}, gradients", lambda op=op, a=args, k=kwargs: trained(op.public, a, k)
    x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    for units in ("relu", "output", "winner"):
        yield f"units={units}", lambda units=units: zb.conv_relu_pool2d_nap(x, w, units=units)
    for pool in ("avg", "none"):
        yield f"pool={pool}", lambda pool=pool: torch.ops.zb.conv_relu_pool2d(x, w, pool=pool)
    rows = torch.arange(600).view(200, 3)
    yield "NapIndex", lambda: NapIndex(3).insert(rows)
    saved = NapIndex(3)
    saved.insert(rows)
    data = saved._index.to_bytes()
    yield "NapIndex of bytes", lambda: NapIndex._of_bytes(data).find(rows)


def trained(public: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    leaves = [a.detach().requires_grad_() if a.is_floating_point() else a for a in args]
    y = public(*leaves, **kwargs)
    (y if isinstance(y, torch.Tensor) else y[0]).sum().backward()


def leaking(held: list[Any]) -> None:
    """48 bytes a call, as a text that nobody frees."""
    held.append(ctypes.CDLL(None).malloc(48))


def main() -> None:
    torch.set_num_threads(1)
    found, held = {}, []
    for name, call in (*calls(), ("a leak of 48 bytes", lambda: leaking(held))):
        for _ in range(WARM_UP):
            call()
        before = Held()
        for _ in range(CALLS):
            call()
        after = Held()
        found[name] = {k: (v - getattr(before, k)) / CALLS for k, v in vars(after).items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
