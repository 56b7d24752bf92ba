"""Remarks 1 and 2: do the tangent kernels of zero-bias and of normal networks converge to one and the same limit?

In closed form and by wide networks, over beta, the factor of the biases in equation 20 (0 in a zero-bias network). Then
what the difference does to training and to predictions, of images as they are and of multiples of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from zbkernels import data as image_sets
from zbkernels.data import Dataset
from zbkernels.experiments import ntk_bias_figure, ntk_bias_report
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.ntk_limits import Regression, distances, dynamics, kernel, witnesses
from zbkernels.experiments.ntk_networks import measure
from zbkernels.experiments.units import crc32, work_unit

DEPTHS = {"depth-1": 1, "depth-3": 3}  # hidden layers
BETAS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # of the distances in closed form
CONTRASTS = (1.0, 0.25, 0.1, 0.05, 0.025, 0.01, 0.001)
WITNESSED = (0.1, 1.0)
TARGET = 0.1  # of the finite networks, for odd digits, and -0.1 for even: near the size of their outputs at the start


@dataclass(frozen=True)
class Plan:
    """What a preset measures.

    Attributes:
        compared: images between which kernels are compared.
        betas: of the regressions, besides 0.
        net_betas: of the finite networks, besides 0.
        widths: of the finite networks, by variant.
        inputs: images at which the kernels of these are looked at; half of them are trained on.
        steps: of their training.
    """

    compared: int
    betas: tuple[float, ...]
    net_betas: tuple[float, ...]
    widths: dict[str, tuple[int, ...]]
    inputs: int
    steps: int


PLANS = {
    "smoke": Plan(60, (0.1, 1.0), (1.0,), {"depth-1": (32, 128, 512), "depth-3": (32, 128, 512)}, 8, 30),
    "quick": Plan(
        200, (0.1, 1.0), (0.1, 1.0), {"depth-1": (64, 256, 1024), "depth-3": (64, 128, 256, 512)}, 20, 100
    ),
    "paper": Plan(
        500,
        (0.1, 0.3, 1.0),
        (0.1, 1.0),
        {"depth-1": (64, 128, 256, 512, 1024, 2048), "depth-3": (64, 128, 256, 512, 1024)},
        20,
        200,
    ),
}


def run(context: RunContext) -> dict[str, Any]:
    """Compare the limits, draw and train the networks, and return the metrics."""
    plan, preset, settings = PLANS[context.settings.preset], context.preset, context.settings
    data = image_sets.load(preset.data, context.data_root).subset(preset.train_images, preset.test_images)
    known = {"data": {"title": data.title, "crc32": crc32(data)}}
    progress = context.progress
    nets = (
        sum(len(plan.widths[v]) for v in settings.variants) * (1 + len(plan.net_betas)) * len(settings.seeds)
    )
    progress.expect(nets + 2 * len(settings.variants))

    def work(name: str, more: dict[str, Any], job: partial[dict[str, Any]]) -> dict[str, Any]:
        progress.describe(name)
        result = work_unit(context, name, {**known, **more}, job)
        progress.batch_done()
        progress.epoch_done(f"{name}: done")
        return result

    found = []
    for variant in settings.variants:
        depth = DEPTHS[variant]
        limits = {"depth": depth, "compared": plan.compared, "betas": list(BETAS)}
        regression = {"depth": depth, "betas": list(plan.betas), "contrasts": list(CONTRASTS)}
        found.append(
            {
                "variant": variant,
                "depth": depth,
                **work(f"{variant}-limits", limits, partial(_limits, data, depth, plan)),
                **work(f"{variant}-regression", regression, partial(_regression, data, depth, plan)),
                "networks": [
                    {
                        "beta": beta,
                        **work(
                            f"{variant}-beta{beta:g}-width{width}-seed{seed}",
                            {**_of_net(plan), "depth": depth, "beta": beta, "width": width, "seed": seed},
                            partial(_network, data, plan, depth, beta, width, seed),
                        ),
                    }
                    for beta in (0.0, *plan.net_betas)
                    for width in plan.widths[variant]
                    for seed in settings.seeds
                ],
            }
        )
    return {
        "experiment": "ntk-bias",
        "preset": settings.preset,
        "data": {
            "title": data.title,
            "note": data.note,
            "train_images": len(data.train),
            "test_images": len(data.test),
            "mean_square": float(data.train.images.double().square().mean()),
        },
        "seeds": list(settings.seeds),
        "compared": plan.compared,
        **_of_net(plan),
        "contrasts": list(CONTRASTS),
        "depths": found,
    }


def _of_net(plan: Plan) -> dict[str, float]:
    return {"inputs": plan.inputs, "steps": plan.steps, "target": TARGET}


def _limits(data: Dataset, depth: int, plan: Plan) -> dict[str, Any]:
    x = data.train.images.flatten(1).double()
    return {
        "distances": distances(x[: plan.compared], depth, BETAS),
        "witnesses": witnesses(x[:2], WITNESSED),
    }


def _regression(data: Dataset, depth: int, plan: Plan) -> dict[str, Any]:
    """Predictions by contrast for each beta, their agreement with those of beta = 0, and the loss curves."""
    rows, spectra = [], {}
    zero = Regression(data, depth, 0.0)
    reference = zero.predict(1.0)
    for beta in (0.0, *plan.betas):
        mine = zero if beta == 0 else Regression(data, depth, beta)
        out = mine.predict(1.0)
        rows.append(
            {
                "beta": beta,
                "agree": 100 * float((out.argmax(1) == reference.argmax(1)).double().mean()),
                "apart": float((out - reference).norm() / reference.norm()),
                "contrast": mine.by_contrast(CONTRASTS),
            }
        )
        spectra[beta] = mine.spectrum()
    return {"regressions": rows, "dynamics": dynamics(spectra)}


def _network(data: Dataset, plan: Plan, depth: int, beta: float, width: int, seed: int) -> dict[str, Any]:
    x = data.train.images[: plan.inputs].flatten(1)
    y = TARGET * (2.0 * (data.train.labels[: plan.inputs // 2] % 2) - 1)
    limits = {"own": kernel(x.double(), None, depth, beta), "zero": kernel(x.double(), None, depth, 0.0)}
    return measure(
        x,
        y,
        limits,
        trained_on=plan.inputs // 2,
        width=width,
        depth=depth,
        beta=beta,
        steps=plan.steps,
        seed=seed,
    )


EXPERIMENT = Experiment(
    name="ntk-bias",
    title="Remarks 1 and 2: the tangent kernels of zero-bias and of normal networks, at infinite and at finite width",
    source="Scalar Invariant Networks with Zero Bias, Section 5.1 and Appendix E, Remarks 1 and 2",
    presets={
        "smoke": Preset("seconds: scikit-learn's digits, small networks", "digits", 0, 1, (0,), 200, 200),
        "quick": Preset("a minute: 500 images of MNIST, two seeds", "mnist", 0, 1, (0, 1), 500, 500),
        "paper": Preset(
            "ten minutes: 2,000 images of MNIST, widths up to 2,048, three seeds",
            "mnist",
            0,
            1,
            (0, 1, 2),
            2_000,
            1_000,
        ),
    },
    variants=tuple(DEPTHS),
    run=run,
    table=ntk_bias_report.table,
    figure=ntk_bias_figure.figure,
)
