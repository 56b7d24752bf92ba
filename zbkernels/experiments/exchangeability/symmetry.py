"""Observation 4 and Theorem 5: permuted networks train to permuted networks, and ensembles pass tests of symmetry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zbkernels import data as image_sets
from zbkernels.exchangeability.optimizers import RULES, optimizer
from zbkernels.exchangeability.stacked_mlp import StackedMLP
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.exchangeability import symmetry_figure, symmetry_report
from zbkernels.experiments.exchangeability.ensembles import STEP_SIZES, shrunk
from zbkernels.experiments.exchangeability.symmetry_measures import (
    all_tests,
    compare_permuted,
    planted_rule,
    power,
    symmetric_data,
    train_ensemble,
)
from zbkernels.experiments.units import crc32, work_unit

ONE_HOT_RATE = 5e-3
TINY = 1e-32  # the smallest ε of the paper
START = "start"


@dataclass(frozen=True)
class Plan:
    """How much is done.

    Attributes:
        side: of the images, in pixels.
        width: of the hidden layers; there are three, so two inner layers of weights.
        networks: of an ensemble, for each seed.
        steps: of training an ensemble.
        compared: steps at which permuted networks are compared with their originals.
        runs: networks that are permuted.
        permutations: of each test.
        strengths: of rules that treat one unit differently: its steps are 1 + strength times as long.
        power: (networks, trials) of the power curves.
        symmetric: (ensembles, networks of each) that train on one-hot inputs.
        sizes: of what is planted for the power; 0 first.
        pace: what the paper's step sizes are multiplied by.
    """

    side: int
    width: int
    networks: int
    steps: int
    compared: tuple[int, ...]
    runs: int
    permutations: int
    strengths: tuple[float, ...]
    power: tuple[tuple[int, int], ...]
    symmetric: tuple[int, int]
    sizes: tuple[float, ...] = (0.0, 0.02, 0.05, 0.1, 0.2)
    pace: float = 1.0

    @property
    def layers(self) -> tuple[int, ...]:
        return (self.side**2, *[self.width] * 3, self.side**2)

    def rate(self, name: str) -> float:
        return self.pace * STEP_SIZES[name]


PLANS = {
    "smoke": Plan(4, 8, 96, 200, (0, 1, 10, 60), 2, 399, (9.0,), ((48, 12),), (12, 16), (0.0, 0.1, 0.6), 5.0),
    "quick": Plan(7, 16, 64, 300, (0, 1, 10, 100, 300), 4, 499, (0.5, 4.0), ((16, 40), (64, 20)), (40, 48)),
    "paper": Plan(
        7,
        32,
        128,
        500,
        (0, 1, 3, 10, 30, 100, 200, 300, 500, 700, 1000),
        8,
        499,
        (0.5, 1.0, 4.0),
        ((16, 60), (128, 40)),
        (200, 48),
    ),
}


def run(context: RunContext) -> dict[str, Any]:
    """Train and test everything, and return the metrics."""
    plan, preset, settings = PLANS[context.settings.preset], context.preset, context.settings
    data = image_sets.load(preset.data, context.data_root).subset(preset.train_images, 1)
    x = shrunk(data.train, plan.side)
    base = {
        "data": {"title": data.title, "crc32": crc32(data), "side": plan.side},
        "layers": list(plan.layers),
        "batch": preset.batch_size,
        "seeds": list(settings.seeds),
    }
    work = _Work(context, plan, x, base)
    pairs = [(name, form) for name in settings.variants for form in _forms(name)]
    context.progress.expect(len(pairs) + len(settings.variants) + 6)
    permuted = [work.permuted(name, form) for name, form in pairs]
    permuted.append(work.permuted("adam", "keras", bias=True))
    permuted.append(work.permuted("adam", "keras", eps=TINY))
    return {
        "experiment": "exchangeability",
        "preset": settings.preset,
        "data": {"title": data.title, "note": data.note},
        "seeds": list(settings.seeds),
        "batch": preset.batch_size,
        "layers": list(plan.layers),
        "networks": plan.networks * len(settings.seeds),
        "steps": plan.steps,
        "permutations": plan.permutations,
        "rates": {name: plan.rate(name) for name in settings.variants},
        "permuted": permuted,
        "ensembles": [work.ensemble(START), *map(work.ensemble, settings.variants)],
        "symmetric": work.symmetric(),
        "planted": work.planted(),
        "power": work.power(),
    }


def _forms(name: str) -> tuple[str, ...]:
    return ("keras",) if name == "sgd" else ("keras", "torch")  # SGD's two are one


class _Work:
    """The units of a run."""

    def __init__(self, context: RunContext, plan: Plan, x: Tensor, base: dict[str, Any]) -> None:
        self.context, self.plan, self.x, self.base = context, plan, x, base
        self.batch = context.preset.batch_size
        self.networks = [
            seed * plan.networks + i for seed in context.settings.seeds for i in range(plan.networks)
        ]

    def _unit(self, name: str, settings: dict[str, Any], work: Any) -> dict[str, Any]:
        self.context.progress.describe(name)
        found = work_unit(self.context, name.replace(" ", "-"), {**self.base, **settings}, work)
        self.context.progress.batch_done()
        self.context.progress.epoch_done(f"{name}: done")
        return found

    def permuted(self, name: str, form: str, *, bias: bool = False, eps: float = 1e-7) -> dict[str, Any]:
        plan, lr = self.plan, self.plan.rate(name)
        label = f"{name}, {form}" if name != "sgd" else name
        label += ", biases" if bias else ""
        label += f", ε = {eps:g}" if eps != 1e-7 else ""

        def work() -> dict[str, Any]:
            rule = optimizer(name, form=form, lr=lr, eps=eps)
            plain = form == "keras" and not bias and eps == 1e-7
            found = {}
            for dtype in (torch.float64, torch.float32):
                found[str(dtype).removeprefix("torch.")] = compare_permuted(
                    rule,
                    plan.layers,
                    self.x,
                    plan.compared,
                    runs=plan.runs,
                    batch=self.batch,
                    seed=self.context.settings.seeds[0],
                    dtype=dtype,
                    bias=bias,
                    controls=plain and dtype == torch.float64,
                )
            return found

        kind = "-biases" if bias else "-tiny" if eps != 1e-7 else ""
        settings = {"lr": lr, "eps": eps, "compared": list(plan.compared), "runs": plan.runs}
        return {"rule": label, **self._unit(f"permuted-{name}-{form}{kind}", settings, work)}

    def ensemble(self, name: str) -> dict[str, Any]:
        """Of a rule, or START: before any training."""
        plan = self.plan
        rule_name = "adam" if name == START else name
        lr, steps = plan.rate(rule_name), 0 if name == START else plan.steps

        def work() -> dict[str, Any]:
            network, losses = self._trained(rule_name, lr, steps)
            labels = self.x.var(0)
            generator = torch.Generator().manual_seed(1)
            found = all_tests(network, labels, permutations=plan.permutations, generator=generator)
            return {**losses, **found}

        settings = {"lr": lr, "steps": steps, "permutations": plan.permutations}
        return {"name": name, **self._unit(f"ensemble {name}", settings, work)}

    def _trained(self, name: str, lr: float, steps: int) -> tuple[StackedMLP, dict[str, Any]]:
        rule, layers = optimizer(name, lr=lr), self.plan.layers
        return train_ensemble(rule, layers, self.x, seeds=self.networks, steps=steps, batch=self.batch)

    def symmetric(self) -> dict[str, Any]:
        ensembles, networks = self.plan.symmetric

        def work() -> dict[str, Any]:
            return symmetric_data(
                ONE_HOT_RATE,
                ensembles=ensembles,
                networks=networks,
                first_seed=self.networks[0],
                generator=torch.Generator().manual_seed(4),
            )

        settings = {"lr": ONE_HOT_RATE, "symmetric": list(self.plan.symmetric)}
        return self._unit("symmetric data", settings, work)

    def planted(self) -> dict[str, Any]:
        plan, lr = self.plan, self.plan.rate("adam")

        def work() -> dict[str, Any]:
            rows = planted_rule(
                "adam",
                lr,
                plan.layers,
                self.x,
                plan.strengths,
                seeds=self.networks,
                steps=plan.steps,
                batch=self.batch,
                permutations=plan.permutations,
                generator=torch.Generator().manual_seed(2),
            )
            return {"rule": "adam", "rows": rows}

        settings = {"lr": lr, "steps": plan.steps, "strengths": list(plan.strengths)}
        return self._unit("planted rule", {**settings, "permutations": plan.permutations}, work)

    def power(self) -> dict[str, Any]:
        plan, lr = self.plan, self.plan.rate("adam")

        def work() -> dict[str, Any]:
            network, _ = self._trained("adam", lr, plan.steps)
            rows = power(network.weights[1], plan.sizes, plan.power, torch.Generator().manual_seed(3))
            return {"rule": "adam", "rows": rows}

        settings = {"lr": lr, "steps": plan.steps, "sizes": list(plan.sizes)}
        return self._unit("power", {**settings, "power": [list(case) for case in plan.power]}, work)


EXPERIMENT = Experiment(
    name="exchangeability",
    title="Observation 4 and Theorem 5: permuted networks train alike; rows and columns of trained weights, tested",
    source="Exchangeability and Kernel Invariance in Trained MLPs, Section 3",
    presets={
        "smoke": Preset(
            "seconds: 96 autoencoders of scikit-learn's digits, 4×4 pixels", "digits", 0, 32, (0,), 500
        ),
        "quick": Preset("two minutes: 64 autoencoders of MNIST, 7×7 pixels", "mnist", 0, 64, (0,), 2_000),
        "paper": Preset(
            "ten minutes: 128 autoencoders of MNIST, 7×7 pixels, four optimisers",
            "mnist",
            0,
            64,
            (0,),
            10_000,
        ),
    },
    variants=RULES,
    run=run,
    table=symmetry_report.table,
    figure=symmetry_figure.figure,
)
