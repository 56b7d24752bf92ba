"""What the experiment ``exchangeability`` measures: permuted training, tests of ensembles, and their power."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from zbkernels.exchangeability.optimizers import Rule, optimizer
from zbkernels.exchangeability.permuting import permute_hidden, random_hidden_orders, relative_distance
from zbkernels.exchangeability.stacked_mlp import StackedMLP
from zbkernels.exchangeability.symmetry_tests import (
    SIDES,
    entries,
    exchangeability,
    labelled,
    linked,
    random_orders,
    unevenness_of_energy,
)
from zbkernels.experiments.exchangeability.ensembles import trained

PERMUTED, ROUNDED, INPUTS, UNEVEN = "permuted", "rounded", "inputs", "uneven"
SCALE, SHIFT, PAIR = "scale", "shift", "pair"
LEVEL = 0.05
# Level times (permutations + 1) is whole, so that a test at the level rejects with just that probability.
POWER_PERMUTATIONS = 39
ONE_HOT, ONE_HOT_STEPS = (9, 8, 8, 9), 80  # layers of the networks on one-hot inputs

Found = dict[str, Any]


def compare_permuted(
    rule: Rule,
    sizes: Sequence[int],
    x: Tensor,
    steps: Sequence[int],
    *,
    runs: int,
    batch: int,
    seed: int,
    dtype: torch.dtype,
    bias: bool = False,
    controls: bool = False,
) -> Found:
    """Distances over training from the networks' own course, their units permuted likewise: the largest of the runs.

    ``permuted``: hidden units permuted before training. ``rounded``: not permuted, but each weight changed by one
    unit of rounding before training, which shows what training makes of rounding. With ``controls``, what the theorem
    leaves out: ``inputs``, the first layer's columns are permuted too while the images are not, and ``uneven``, hidden
    units permuted under a rule that does not commute with it, since unit j's steps are 1 + j/n times as long.
    """
    generator = torch.Generator().manual_seed(seed)

    def start() -> StackedMLP:
        return StackedMLP.he_normal(sizes, range(seed * runs, (seed + 1) * runs), dtype=dtype, bias=bias)

    orders = random_hidden_orders(start(), generator)
    pixels = random_orders(runs, sizes[0], generator)
    own, others = start(), {PERMUTED: permute_hidden(start(), orders), ROUNDED: start()}
    for p in others[ROUNDED].parameters():
        signs = torch.randint(0, 2, p.shape, generator=generator).to(dtype) * 2 - 1
        p.mul_(1 + torch.finfo(dtype).eps * signs)
    plain: list[Tensor | float] = [1.0] * len(own.parameters())
    factors = dict.fromkeys(others, plain)
    if controls:
        others[INPUTS] = permute_hidden(start(), orders)
        others[INPUTS].weights[0] = (
            others[INPUTS].weights[0].gather(2, pixels[:, None].expand_as(own.weights[0]))
        )
        factors[INPUTS] = plain
        uneven_own, others[UNEVEN] = start(), permute_hidden(start(), orders)
        by_unit: list[Tensor | float] = [
            1 + torch.arange(w.shape[1], dtype=dtype)[:, None] / w.shape[1] for w in own.weights[:-1]
        ]
        factors[UNEVEN] = [*by_unit, *plain[len(by_unit) :]]
    references = dict.fromkeys(others, own)
    courses = {
        name: trained(other, rule, x, steps, batch=batch, seed=seed, factors=factors[name])
        for name, other in others.items()
    }
    courses["own"] = trained(own, rule, x, steps, batch=batch, seed=seed)
    if controls:
        references[UNEVEN] = uneven_own
        courses["uneven own"] = trained(
            uneven_own, rule, x, steps, batch=batch, seed=seed, factors=factors[UNEVEN]
        )
    rows = []
    for stop in steps:
        losses = {name: next(course)[1] for name, course in courses.items()}
        row: Found = {"step": stop, "loss": float(losses["own"].mean())}
        for name, other in others.items():
            reference = references[name]
            if name != ROUNDED:
                reference = permute_hidden(reference, orders)
            if name == INPUTS:
                first = reference.weights[0]
                reference.weights[0] = first.gather(2, pixels[:, None].expand_as(first))
            row[name] = float(f"{float(relative_distance(other, reference).max()):.4g}")
        rows.append(row)
    return {"eps": torch.finfo(dtype).eps, "rows": rows}


def all_tests(
    network: StackedMLP, pixel_labels: Tensor, *, permutations: int, generator: torch.Generator
) -> Found:
    """All tests of an ensemble: rows and columns of each layer, entries of inner ones, neighbours, labels."""
    last = len(network.weights) - 1
    layers = []
    for layer, w in enumerate(network.weights):
        sides: Found = {}
        for side in SIDES:
            found = exchangeability(w, side, permutations=permutations, generator=generator)
            names_pixels = (layer, side) in ((0, "columns"), (last, "rows"))
            size = w.shape[1] if side == "rows" else w.shape[2]
            # Units have no labels but their numbers.
            labels = pixel_labels if names_pixels else torch.arange(size)
            single = labelled(w, side, labels, permutations=permutations, generator=generator)
            sides[side] = {
                "p": found.p,
                "parts": found.parts,
                "unevenness": unevenness_of_energy(w, side),
                "single": float((single <= LEVEL).double().mean()),
            }
        found_entries = None
        if 0 < layer < last:
            found_entries = entries(w, permutations=max(1, permutations // 2), generator=generator).p
        joined = None
        if layer:
            joined = linked(network.weights[layer - 1], w, permutations=permutations, generator=generator).p
        layers.append({"layer": layer + 1, **sides, "entries": found_entries, "linked": joined})
    return {"layers": layers}


def train_ensemble(
    rule: Rule,
    sizes: Sequence[int],
    x: Tensor,
    *,
    seeds: Sequence[int],
    steps: int,
    batch: int,
    factors: Sequence[Tensor | float] | None = None,
) -> tuple[StackedMLP, Found]:
    """The trained networks, float32, and their losses at the start and the end."""
    network = StackedMLP.he_normal(sizes, seeds)
    losses = [
        float(loss.mean())
        for _, loss in trained(network, rule, x, (0, steps), batch=batch, seed=0, factors=factors)
    ]
    return network, {"losses": losses}


def symmetric_data(
    rate: float, *, ensembles: int, networks: int, first_seed: int, generator: torch.Generator
) -> Found:
    """p-values of many small ensembles that Adam trained on all one-hot inputs at once: data that single out nothing.

    Of the first layer's columns and of the last one's rows, which are exchangeable there: uniform p-values.
    """
    found: dict[str, list[float]] = {"columns": [], "rows": []}
    losses = []
    for ensemble in range(ensembles):
        start = first_seed + ensemble * networks
        network, trained_with = train_ensemble(
            optimizer("adam", lr=rate),
            ONE_HOT,
            torch.eye(ONE_HOT[0]),
            seeds=range(start, start + networks),
            steps=ONE_HOT_STEPS,
            batch=0,
        )
        losses.append(trained_with["losses"])
        for side, w in (("columns", network.weights[0]), ("rows", network.weights[-1])):
            p = exchangeability(w, side, permutations=POWER_PERMUTATIONS, generator=generator).p
            found[side].append(p)
    means = [sum(values) / ensembles for values in zip(*losses, strict=True)]
    return {**found, "networks": networks, "layers": list(ONE_HOT), "steps": ONE_HOT_STEPS, "losses": means}


def planted_rule(
    name: str,
    lr: float,
    sizes: Sequence[int],
    x: Tensor,
    strengths: Sequence[float],
    *,
    seeds: Sequence[int],
    steps: int,
    batch: int,
    permutations: int,
    generator: torch.Generator,
) -> list[Found]:
    """Rows of the second layer's weights after training under rules that treat its first unit differently.

    Its steps are 1 + strength times as long as the others'.
    """
    rows = []
    for strength in strengths:
        factor = torch.ones(sizes[2], 1)
        factor[0] += strength
        factors: list[Tensor | float] = [1.0, factor, *[1.0] * (len(sizes) - 3)]
        rule = optimizer(name, lr=lr)
        network, _ = train_ensemble(rule, sizes, x, seeds=seeds, steps=steps, batch=batch, factors=factors)
        found = exchangeability(network.weights[1], "rows", permutations=permutations, generator=generator)
        rows.append({"strength": strength, "p": found.p, "parts": found.parts})
    return rows


def plant(weights: Tensor, kind: str, size: float) -> Tensor:
    """Break the exchangeability of columns, alike in every matrix of the ensemble.

    Args:
        weights: [R, out, in]; left as they are.
        kind: "scale", the first column is 1 + size times as large; "shift", size standard deviations of the matrix
            are added to it; "pair", it is mixed with the second so that their correlation is ``size``, and each
            column alone stays as it would be were the entries independent.
    """
    planted = weights.clone()
    first = weights[:, :, 0]
    if kind == SCALE:
        planted[:, :, 0] = first * (1 + size)
    elif kind == SHIFT:
        planted[:, :, 0] = first + size * weights.flatten(1).std(1)[:, None]
    elif kind == PAIR:
        planted[:, :, 0] = size * weights[:, :, 1] + (1 - size**2) ** 0.5 * first
    else:
        raise ValueError(f"plant: expected scale, shift or pair, got {kind!r}")
    return planted


def power(
    weights: Tensor, sizes: Sequence[float], cases: Sequence[tuple[int, int]], generator: torch.Generator
) -> list[Found]:
    """How often the test of columns rejects at the level, by the kind and size of what was planted.

    Each trial permutes rows and columns of every trained matrix anew, independently: an ensemble that is row and
    column exchangeable for certain, with entries as training made them. What is planted is the only violation.

    Args:
        weights: [R, out, in], a trained inner layer.
        sizes: of what is planted; 0 measures the level.
        cases: (networks, trials).
    """
    rows = []
    for networks, trials in cases:
        for kind in (SCALE, SHIFT, PAIR):
            for size in sizes:
                if size == 0 and kind != SCALE:
                    continue  # nothing is planted: the same whatever the kind
                rejected = 0
                for _ in range(trials):
                    chosen = torch.randperm(len(weights), generator=generator)[:networks]
                    w = planted_ensemble(weights[chosen], kind, size, generator)
                    found = exchangeability(
                        w, "columns", permutations=POWER_PERMUTATIONS, generator=generator
                    )
                    rejected += found.p <= LEVEL
                rows.append(
                    {"networks": networks, "kind": kind, "size": size, "rejected": rejected, "trials": trials}
                )
    return rows


def planted_ensemble(weights: Tensor, kind: str, size: float, generator: torch.Generator) -> Tensor:
    """Exchangeable but for what is planted: each matrix with its rows and columns in random order first."""
    count, rows, columns = weights.shape
    mixed = weights.gather(1, random_orders(count, rows, generator)[:, :, None].expand_as(weights))
    mixed = mixed.gather(2, random_orders(count, columns, generator)[:, None].expand_as(weights))
    return plant(mixed, kind, size)
