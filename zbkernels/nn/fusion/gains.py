"""Whether a chain is faster as one op: measured on the tensors that meet it, or by a rule drawn from the benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zbkernels.nn.fusion.chains import CONV, Chain, op_of
from zbkernels.ops._choice import LEAST_GAIN

WARM_UP, LEAST_ROUNDS = 2, 3
ROUNDS, SECONDS = 7, 0.5  # of a measurement: at most so long, and where it is not steady
MOST_ROUNDS, MOST_SECONDS = 28, 2.0
STEADY = 1.1  # the second shortest time, as a multiple of the shortest


@dataclass(frozen=True)
class Choice:
    """Whether to fuse, what that rests on, and the gain where it was measured."""

    take: bool
    why: str
    gain: float | None = None


def by_rule(chain: Chain) -> Choice:
    """What bench/results show of most shapes. Only a measurement knows the shape at hand."""
    if chain.kind != CONV:
        return Choice(False, "linear_relu runs at torch's speed; give x to have it measured")
    if chain.arguments["pool"] != "none":
        return Choice(True, "the un-pooled map is not written")
    shape = chain.weight_shape
    settings = [chain.arguments[name] for name in ("stride", "dilation", "groups")]
    if (
        shape is not None
        and shape[1] >= 16
        and shape[2:] == (3, 3)
        and all(each in (1, (1, 1), [1, 1]) for each in settings)
    ):
        return Choice(True, "3x3 with stride 1: fewer multiplications")
    return Choice(False, "without a pool it may be slower than torch; give x to have it measured")


def always(chain: Chain) -> Choice:
    return Choice(True, "asked for")


def measured(chain: Chain, x: Tensor, weight: Tensor, *, training: bool) -> Choice:
    """Plain and fused in turn, on these tensors; with ``training`` forward and backward."""
    x = x.detach().requires_grad_(training and x.requires_grad)
    weight = weight.detach().requires_grad_(training)

    def timed(function: Callable[[Tensor, Tensor], Tensor]) -> float:
        begin = _now(x)
        with torch.set_grad_enabled(training):
            y = function(x, weight)
        if training:
            torch.autograd.grad(y, [each for each in (x, weight) if each.requires_grad], torch.ones_like(y))
        return _now(x) - begin

    def steps(x: Tensor, weight: Tensor) -> Tensor:
        return plain(chain, x, weight)

    def op(x: Tensor, weight: Tensor) -> Tensor:
        y: Tensor = op_of(chain)(x, weight, **chain.arguments)
        return y

    for _ in range(WARM_UP):
        timed(steps), timed(op)
    begin = time.perf_counter()
    theirs: list[float] = []
    ours: list[float] = []
    while not _enough(theirs, ours, time.perf_counter() - begin):
        theirs.append(timed(steps))
        ours.append(timed(op))
    # What else runs on the machine only ever adds to a time, so the shortest is the nearest to the truth.
    gain = min(theirs) / min(ours)
    what = f"{'a training step' if training else 'forward'} of {list(x.shape)}"
    if not (_steady(theirs) and _steady(ours)):
        ruled = by_rule(chain)
        why = f"{what} could not be measured, other work disturbs it ({gain:.2f} times as fast in {len(ours)} tries)"
        return Choice(ruled.take, f"{why}; by the rule: {ruled.why.split(';')[0]}")
    why = f"{what} measured: {gain:.2f} times as fast, {1e3 * min(ours):.3g} ms"
    return Choice(gain >= LEAST_GAIN, why, gain)


def _enough(theirs: list[float], ours: list[float], seconds: float) -> bool:
    rounds = len(ours)
    if rounds < LEAST_ROUNDS:
        return False
    if _steady(theirs) and _steady(ours):
        return rounds >= ROUNDS or seconds >= SECONDS
    return rounds >= MOST_ROUNDS or seconds >= MOST_SECONDS


def _steady(times: list[float]) -> bool:
    """Whether the shortest time came twice, so that it is no chance."""
    shortest, next_one = sorted(times)[:2]
    return next_one <= STEADY * shortest


def _now(x: Tensor) -> float:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return time.perf_counter()


def plain(chain: Chain, x: Tensor, weight: Tensor) -> Tensor:
    """The chain in torch's own operations, the activation in place as most write it."""
    a: dict[str, Any] = chain.arguments
    if chain.kind == CONV:
        y = F.conv2d(x, weight, None, a["stride"], a["padding"], a["dilation"], a["groups"])
    else:
        y = F.linear(x, weight)
    slope = a["negative_slope"]
    y = torch.relu_(y) if slope == 0 else F.leaky_relu_(y, slope)
    if a.get("pool", "none") == "none":
        return y
    pool = {"kernel_size": a["pool_kernel"], "stride": a["pool_stride"] or None, "padding": a["pool_padding"]}
    pool["ceil_mode"] = a["ceil_mode"]
    if a["pool"] == "max":
        return F.max_pool2d(y, **pool)
    return F.avg_pool2d(y, count_include_pad=a["count_include_pad"], **pool)
