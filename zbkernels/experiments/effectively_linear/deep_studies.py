"""The pieces of work of ``deep-linear``: each makes networks, follows their flow and returns what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from zbkernels.data import Dataset
from zbkernels.experiments.effectively_linear import deep_measures as measures
from zbkernels.experiments.effectively_linear.deep_data import (
    even_target,
    lopsided,
    mirrored,
    odd_target,
    two_digits,
)
from zbkernels.experiments.effectively_linear.deep_flow import Trajectory, solve
from zbkernels.experiments.effectively_linear.deep_nets import Problem, Weights, draw

SLOPES = {"linear": 1.0, "relu": 0.0}
POINTS = 81  # at which the part that is not linear is measured
# ReLU's gradient jumps where a sample crosses a unit's border, so its flow gains nothing from a high order.
ACCURACY: dict[str, dict[str, Any]] = {
    "linear": {"method": "DOP853", "rtol": 1e-7, "atol": 1e-10},
    "relu": {"method": "RK45", "rtol": 1e-4, "atol": 1e-6},
    # Where no network fits the targets, samples go on pulling units over their borders to the end.
    "unfitted": {"method": "RK45", "rtol": 1e-3, "atol": 1e-5},
}


def ranks(kind: str, depth: int) -> list[int]:
    """Of the layers of a network that has learned one direction: 1, but 2 for ReLU between two hidden layers."""
    return [1, *[2 if kind == "relu" else 1] * (depth - 2), 1]


def numbers(values: Tensor) -> list[Any]:
    """Nested lists of numbers of six digits; what is infinite or none is null."""
    if values.dim():
        return [numbers(value) for value in values]
    return float(f"{float(values):.6g}") if math.isfinite(values) else None  # type: ignore[return-value]


def layers(kind: str, start: Weights, end: Weights) -> dict[str, Any]:
    """Rank, alignment and balance of trained networks, lists over the networks."""
    return {
        "rank1": numbers(measures.shares(end, 1)),
        "rank2": numbers(measures.shares(end, 2)),
        "alignment": numbers(measures.alignment(end, ranks(kind, len(end)))),
        "norms": numbers(measures.norms(end)),
        **{f"{name}_drift": numbers(value) for name, value in measures.drifts(start, end).items()},
    }


def twins(depth: int, width: int, end: float, seeds: Sequence[int]) -> dict[str, Any]:
    """A ReLU network of mirrored halves beside the linear network of its upper half, at half the time.

    Both start of rank one and balanced, W_l = s a_l a_(l-1)ᵀ with positive a of ``width`` units, r in a's place at the
    inputs; covariance and target (odd, not linear) are general. ``uneven``: the lower half starts 1.1 times as large.
    """
    features = 6
    x = mirrored(150, features, spread=0.3)
    p = torch.full((len(x),), 1 / len(x), dtype=torch.float64)
    y = x[:, :1] - 0.5 * x[:, 1:2] + 0.3 * x[:, 2:3] ** 3
    upper, start = _rank_one(depth, width, features, seeds, 0.4)
    settings: dict[str, Any] = {
        "own_clock": False,
        "points": 41,
        "method": "DOP853",
        "rtol": 1e-10,
        "atol": 1e-13,
    }
    linear = solve(Problem(x, y, p, 1.0), upper, end / 2, **settings)
    relu = solve(Problem(x, y, p, 0.0), start, end, **settings)
    loose = {**settings, **ACCURACY["relu"]}
    uneven = solve(Problem(x, y, p, 0.0), _uneven(start, width, 1.1), end, **loose)
    off = {"outputs": [], "weights": [], "uneven": []}  # type: dict[str, list[float]]
    loss = []
    for k in range(len(relu.times)):
        f = Problem(x, y, p, 1.0).outputs(linear.at(k))
        mine, other = (Problem(x, y, p, 0.0).outputs(run.at(k)) for run in (relu, uneven))
        off["outputs"].append(float((mine - f).norm() / f.norm()))
        off["weights"].append(
            max(
                float((w[:, : v.shape[1], : v.shape[2]] - v).norm() / v.norm())
                for w, v in zip(relu.at(k), linear.at(k), strict=True)
            )
        )
        off["uneven"].append(float((other - f).norm() / f.norm()))
        loss.append(float(Problem(x, y, p, 0.0).loss(relu.at(k)).mean()))
    pulls = (Problem(x, y, p, 0.0).descent(start), Problem(x, y, p, 1.0).descent(upper))
    half = max(
        float((2 * w[:, : v.shape[1], : v.shape[2]] - v).norm() / v.norm())
        for w, v in zip(*pulls, strict=True)
    )
    return {"times": numbers(relu.times[:, 0]), "off": off, "loss": loss, "gradient": half}


def _rank_one(
    depth: int, width: int, features: int, seeds: Sequence[int], size: float
) -> tuple[Weights, Weights]:
    """(the linear network's weights, those of the ReLU network of two such halves)"""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def unit(length: int, positive: bool) -> Tensor:
        draws = torch.stack([torch.randn(length, generator=g, dtype=torch.float64) for g in generators])
        return torch.nn.functional.normalize(draws.abs() if positive else draws, dim=1)  # [R, length]

    a = [unit(features, False), *(unit(width, True) for _ in range(depth - 1))]
    upper = [size * out[:, :, None] * into[:, None] for into, out in pairwise(a)]
    upper.append(size * a[-1][:, None])
    none = torch.zeros_like
    both = [torch.cat([upper[0], -upper[0]], 1)]
    both += [torch.cat([torch.cat([w, none(w)], 2), torch.cat([none(w), w], 2)], 1) for w in upper[1:-1]]
    both.append(torch.cat([upper[-1], -upper[-1]], 2))
    return upper, both


def _uneven(weights: Weights, width: int, factor: float) -> Weights:
    """The lower half of every layer times ``factor``."""
    changed = [w.clone() for w in weights]
    for w in changed[:-1]:
        w[:, width:] *= factor
    changed[-1][..., width:] *= factor
    return changed


def small_start(
    depth: int, width: int, norm: float, end: float, seeds: Sequence[int], watched: bool
) -> dict[str, Any]:
    """Linear and ReLU networks from small Gaussian weights, on whitened mirrored inputs and the target x_1.

    Args:
        watched: keep what is drawn over time: losses of three seeds, and the layers of the first ReLU network.
    """
    features = 8
    x = mirrored(200, features)
    p = torch.full((len(x),), 1 / len(x), dtype=torch.float64)
    start = draw([features, *[width] * (depth - 1), 1], norm, seeds)
    found: dict[str, Any] = {}
    for kind, slope in SLOPES.items():
        problem = Problem(x, x[:, :1], p, slope)

        def watch(weights: Weights, problem: Problem = problem) -> Tensor:
            f = problem.outputs(weights)
            whole = torch.stack([problem.loss_of(f), measures.odd_share(f)], 1)
            values = [_first_values(w[:1], 3).expand(len(f), -1) for w in weights] if watched else []
            return torch.cat([whole, measures.halves(problem, f), *values], 1)

        until = end if kind == "relu" else end / 3
        run = solve(problem, start, until, points=2, watch=watch, **ACCURACY[kind])
        times, loss, odd = run.watched_times, run.watched[..., 0], run.watched[..., 1]
        learned = run.watched[..., 2:4]
        first, second = torch.stack(
            [measures.crossing(times, learned[..., side], 0.5) for side in (0, 1)]
        ).sort(0)[0]
        tenth, most = (measures.crossing(times, 1 - loss / loss[0], level) for level in (0.1, 0.9))
        under_way = (loss < 0.9 * loss[0]) & (loss > 0.1 * loss[0])
        f_end = problem.outputs(run.at(-1))
        found[kind] = {
            **layers(kind, start, run.at(-1)),
            "loss": numbers(loss[-1] / loss[0]),
            "linear_share": numbers(measures.linear_share(problem, f_end, measures.linear_span(problem))),
            "odd_share": numbers(odd[-1]),
            "least_odd": numbers(torch.where(under_way, odd, 1.0).amin(0)),
            "first_half": numbers(first),
            "second_half": numbers(second),
            "tenth": numbers(tenth),
            "nine_tenths": numbers(most),
            "evaluations": run.evaluations,
        }
        if watched:
            drawn = [
                measures.thinned(times[:, i], loss[:, i : i + 1] / loss[0, i]) for i in range(len(seeds[:3]))
            ]
            found[kind]["curves"] = {
                "times": [numbers(t) for t, _ in drawn],
                "loss": [numbers(v[:, 0]) for _, v in drawn],
            }
            if kind == "relu":
                when, values = measures.thinned(times[:, 0], run.watched[:, 0, 4:])
                found[kind]["watched"] = {
                    "times": numbers(when),
                    "values": numbers(values.unflatten(1, (depth, 3)).transpose(0, 1)),
                }
    return found


def _first_values(weights: Tensor, count: int) -> Tensor:
    """[K, count], 0 where a matrix has fewer."""
    values = torch.linalg.svdvals(weights)[:, :count]
    return torch.nn.functional.pad(values, (0, count - values.shape[1]))


def stages(
    depth: int, width: int, norm: float, end: float, seeds: Sequence[int], modes: Sequence[float]
) -> dict[str, Any]:
    """Targets of several outputs, y_i = modes_i x_i: when each mode is learned, and how much of the next by then."""
    features = 8
    x = mirrored(200, features)
    p = torch.full((len(x),), 1 / len(x), dtype=torch.float64)
    strength = torch.tensor(modes, dtype=torch.float64)
    start = draw([features, *[width] * (depth - 1), len(modes)], norm, seeds)
    found: dict[str, Any] = {}
    for kind, slope in SLOPES.items():
        problem = Problem(x, x[:, : len(modes)] * strength, p, slope)

        def watch(weights: Weights, problem: Problem = problem) -> Tensor:
            f = problem.outputs(weights)
            return torch.cat([(f * x[:, : len(modes)]).mean(1) / strength, problem.loss_of(f)[:, None]], 1)

        run = solve(problem, start, end, points=2, watch=watch, **ACCURACY[kind])
        learned, loss = run.watched[..., :-1], run.watched[..., -1]  # [S, R, modes], [S, R]
        times = torch.stack(
            [measures.crossing(run.watched_times, learned[..., mode], 0.5) for mode in range(len(modes))], 1
        )  # [R, modes]
        ahead = torch.stack(
            [
                _at(run.watched_times, learned[..., mode + 1], times[:, mode])
                for mode in range(len(modes) - 1)
            ],
            1,
        )
        f_end = problem.outputs(run.at(-1))
        when, curves = measures.thinned(run.watched_times[:, 0], learned[:, 0])
        found[kind] = {
            "times": numbers(times),
            "next": numbers(ahead),
            "loss": numbers(loss[-1] / loss[0]),
            "rank": numbers(measures.shares(run.at(-1), len(modes))),
            "linear_share": numbers(measures.linear_share(problem, f_end, measures.linear_span(problem))),
            "curves": {
                "times": numbers(when),
                "learned": numbers(curves.T),
            },
        }
    return found


def _at(times: Tensor, values: Tensor, when: Tensor) -> Tensor:
    """values [K, R] at ``when`` [R]; NaN where that is infinite."""
    k = (times < when).sum(0).clamp(1, len(times) - 1)
    (t0, t1), (v0, v1) = ((q.gather(0, k[None] - 1)[0], q.gather(0, k[None])[0]) for q in (times, values))
    return torch.where(when.isinf(), torch.nan, v0 + (v1 - v0) * (when - t0) / (t1 - t0))


def asymmetry(
    depth: int,
    width: int,
    norm: float,
    end: float,
    seeds: Sequence[int],
    kind: str,
    amounts: Sequence[float],
) -> dict[str, Any]:
    """ReLU networks as the symmetry is broken: ``kind`` "target" gives x_1 an even part, "inputs" prefers x to -x.

    With an odd target and both x and -x weighted alike, the best that two layers can do is linear; with "inputs" the
    target is odd and not linear, so that there is something to gain from weights that differ.

    Linear networks see neither, as :mod:`deep_data` says, and are those of :func:`small_start`.
    """
    features, count = 8, 200
    x = mirrored(count, features)
    every = [(amount, seed) for amount in amounts for seed in seeds]
    y = torch.stack([even_target(x, amount) if kind == "target" else odd_target(x) for amount, _ in every])
    p = torch.stack([lopsided(count, amount if kind == "inputs" else 0.0) for amount, _ in every])
    problem = Problem(x, y, p, SLOPES["relu"])
    start = draw([features, *[width] * (depth - 1), 1], norm, [seed for _, seed in every])
    accuracy = ACCURACY["relu" if kind == "target" else "unfitted"]
    run = solve(problem, start, end, points=2, watch=problem.loss, **accuracy)
    return {"amounts": list(amounts), "nets": _beside_linear(problem, run, start, [a for a, _ in every])}


def _beside_linear(
    problem: Problem,
    run: Trajectory,
    start: Weights,
    amounts: Sequence[float],
    drawn: Sequence[float] = (),
) -> list[dict[str, Any]]:
    """How linear the networks are at the end, one row per network; of the first of each amount ``drawn``, over time."""
    span, loss = measures.linear_span(problem), run.watched  # [S, R]
    floor = measures.best_linear_loss(problem, span).expand(len(amounts))
    still = 0.5 * (problem.p * problem.y.square().sum(-1)).sum(-1).expand(len(amounts))  # the loss of f = 0
    half = measures.crossing(run.watched_times, 1 - loss / still, 0.5)
    end = run.at(-1)
    bent = 1 - measures.linear_share(problem, problem.outputs(end), span)
    made = layers("linear" if problem.slope == 1 else "relu", start, end)
    rows: list[dict[str, Any]] = [
        {
            "amount": amount,
            "bent": max(float(bent[i]), 0.0),
            "loss": float(loss[-1, i] / still[i]),
            "best_linear": max(float(floor[i]), 0.0),
            "half_time": numbers(half[i]),
            **{name: value[i] for name, value in made.items()},
        }
        for i, amount in enumerate(amounts)
    ]
    chosen = [amounts.index(amount) for amount in drawn if amount in amounts]
    if chosen:
        outputs = (problem.outputs(run.at(k)) for k in range(len(run.times)))
        course = torch.stack([1 - measures.linear_share(problem, f, span) for f in outputs])  # [K, R]
    for i in chosen:
        when, losses = measures.thinned(run.watched_times[:, i], loss[:, i : i + 1] / still[i])
        rows[i]["curve"] = {
            "times": numbers(when),
            "loss": numbers(losses[:, 0]),
            "bent_times": numbers(run.times[:, i]),
            "bent": numbers(course[:, i]),
        }
    return rows


def digits(
    data: Dataset,
    pair: tuple[int, int],
    count: int,
    depth: int,
    width: int,
    norm: float,
    end: float,
    seeds: Sequence[int],
    amounts: Sequence[float],
) -> dict[str, Any]:
    """One digit against another, ±1: with each image's negative at -y (amount 0), with less of it, and without (1)."""
    images, labels, x_test, y_test = two_digits(data, pair, count)
    x, y = torch.cat([images, -images]), torch.cat([labels, -labels])
    best = torch.linalg.lstsq(images, labels, driver="gelsd").solution
    found: dict[str, Any] = {"amounts": list(amounts), "best_accuracy": _accuracy(x_test @ best, y_test)}
    for kind, slope in SLOPES.items():
        # A linear network is the same at every amount.
        every = [(amount, seed) for amount in (amounts if kind == "relu" else amounts[:1]) for seed in seeds]
        p = torch.stack([lopsided(len(images), amount) for amount, _ in every])
        start = draw([x.shape[1], *[width] * (depth - 1), 1], norm, [seed for _, seed in every])
        problem = Problem(x, y, p, slope)
        run = solve(problem, start, end, points=POINTS, watch=problem.loss, **ACCURACY["unfitted"])
        rows = _beside_linear(problem, run, start, [amount for amount, _ in every], (0.0, 1.0))
        f = Problem(x_test, y_test, p, slope).outputs(run.at(-1))
        odd = measures.odd_share(problem.outputs(run.at(-1)))
        fixed = measures.fixed_units(problem, run.at(-1), len(images))
        for i, row in enumerate(rows):
            row.update(accuracy=_accuracy(f[i], y_test), odd=float(odd[i]), fixed=float(fixed[i]))
        found[kind] = rows
    return found


def _accuracy(f: Tensor, y: Tensor) -> float:
    return 100 * float((f.sign() == y).double().mean())
