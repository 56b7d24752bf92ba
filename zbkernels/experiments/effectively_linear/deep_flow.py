"""Gradient flow of many deep networks at once, by scipy's Dormand-Prince solver, each network on a clock of its own.

From small weights, networks of three and more layers stand still for a time that grows with a power of 1/norm, each
seed for another time; then they learn within a few units of time. Multiplying the flow by a positive number g(W)
changes how fast a trajectory is passed through and not the trajectory, so each network's flow is solved as

    dW/dτ = g(W) · (-∂loss/∂W),    dt/dτ = g(W),    1/g = ‖∂loss/∂W‖/‖W‖ + Σ_l Π_(k≠l) ‖W_k‖²,

with its own time t as one more unknown. The first term is the rate at which weights grow on a plateau, the second
bounds the stiffest rate at the end of training (Gauss-Newton, where E[x xᵀ] has eigenvalues up to 1), so one step of τ
suits networks that are at very different places.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zbkernels.experiments.effectively_linear.deep_nets import Problem, Weights

MOMENTS = 8  # in each step of the solver, at which a network is watched


@dataclass(frozen=True)
class Trajectory:
    """Weights of R networks at K points of the solver's clock.

    Attributes:
        times: [K, R], each network's own t.
        weights: one per layer, [K, R, out, in].
        evaluations: of the gradient.
        watched_times: [S, R], ``MOMENTS`` to each step of the solver; empty where nothing was watched.
        watched: what ``watch`` gave there, [S, R, ...].
    """

    times: Tensor
    weights: list[Tensor]
    evaluations: int
    watched_times: Tensor
    watched: Tensor

    def at(self, k: int) -> Weights:
        return [w[k] for w in self.weights]


def solve(
    problem: Problem,
    start: Weights,
    end: float,
    *,
    points: int = 200,
    own_clock: bool = True,
    rtol: float = 1e-7,
    atol: float = 1e-10,
    method: str = "DOP853",
    watch: Callable[[Weights], Tensor] | None = None,
) -> Trajectory:
    """Follow the flow from ``start`` for ``end`` units of τ (``own_clock``) or of t, kept at ``points`` of them.

    On a network's own clock a plateau and what follows it can lie between two of the points, which are then too coarse
    to tell when something happened. ``watch`` sees the weights ``MOMENTS`` times in each step of the solver.

    Args:
        watch: of the weights, numbers [R, ...] of each network that are kept at all those times.
        rtol, atol, method: as ``scipy.integrate.solve_ivp`` has them; the error is judged over all networks.

    Raises:
        RuntimeError: the solver gave up; the message has its reason.
    """
    from scipy.integrate import DOP853, RK45

    shapes = [w.shape for w in start]
    sizes = [w[0].numel() for w in start]
    nets = len(start[0])

    def unpack(state: np.ndarray) -> Weights:
        flat = torch.from_numpy(state).view(nets, -1)
        return [part.reshape(shape) for part, shape in zip(flat[:, 1:].split(sizes, 1), shapes, strict=True)]

    def rate(_: float, state: np.ndarray) -> np.ndarray:
        weights = unpack(state)
        descent = problem.descent(weights)
        g = clock(weights, descent) if own_clock else torch.ones(nets, dtype=torch.float64)
        return torch.cat([g[:, None], *(g[:, None] * d.flatten(1) for d in descent)], 1).flatten().numpy()

    flat = torch.cat([torch.zeros(nets, 1, dtype=torch.float64), *(w.flatten(1) for w in start)], 1)
    solver = {"DOP853": DOP853, "RK45": RK45}[method](
        rate, 0.0, flat.flatten().numpy(), end, rtol=rtol, atol=atol
    )
    wanted = (end * np.linspace(0.0, 1.0, points)).tolist()
    kept, seen = [solver.y], []
    if watch is not None:
        seen.append((torch.zeros(nets, dtype=torch.float64), watch(start)))
    while solver.status == "running":
        message = solver.step()
        if solver.status == "failed":
            raise RuntimeError(f"solve: the flow was not followed to the end: {message}")
        within = solver.dense_output()
        kept += [within(tau) for tau in wanted[len(kept) : bisect_right(wanted, solver.t)]]
        if watch is not None:
            for part in range(1, MOMENTS + 1):
                state = within(solver.t_old + part / MOMENTS * (solver.t - solver.t_old))
                seen.append((torch.from_numpy(state.reshape(nets, -1)[:, 0].copy()), watch(unpack(state))))
    states = torch.from_numpy(np.stack(kept)).view(points, nets, -1)
    weights = [
        part.reshape(points, *shape)
        for part, shape in zip(states[..., 1:].split(sizes, 2), shapes, strict=True)
    ]
    times, values = (torch.stack([pair[k] for pair in seen]) if seen else torch.empty(0) for k in (0, 1))
    return Trajectory(states[..., 0], weights, solver.nfev, times, values)


def clock(weights: Weights, descent: Weights) -> Tensor:
    """g(W) of each network, [R]; see the module."""
    squares = torch.stack([w.square().sum((1, 2)) for w in weights])  # [L, R]
    force = torch.stack([d.square().sum((1, 2)) for d in descent]).sum(0)
    stiff = sum(
        squares[[k for k in range(len(weights)) if k != layer]].prod(0) for layer in range(len(weights))
    )
    return 1 / ((force / squares.sum(0)).sqrt() + stiff)
