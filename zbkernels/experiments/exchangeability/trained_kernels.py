"""Layers' kernels over training, from blue to red, with learning curves, reconstructions and the bounds (10) and (11).

Figures 3, 5, 6, 7, 9, 11, 12, 14 and 16 of "Exchangeability and Kernel Invariance in Trained MLPs", Section 5 and
Appendices E to G, of the first seed; the claims are judged on all. What is trained, and what is ours where the paper is
silent: :mod:`.sweeps`.
"""

from __future__ import annotations

from typing import Any

from zbkernels.experiments.base import Experiment, RunContext
from zbkernels.experiments.exchangeability import trained_kernels_figure, trained_kernels_report
from zbkernels.experiments.exchangeability.encoding import encoded_images, encoded_kernels
from zbkernels.experiments.exchangeability.measures import KINDS, NON_ZERO, ZERO
from zbkernels.experiments.exchangeability.sweep_units import PLANS, PRESETS, images, trained
from zbkernels.experiments.exchangeability.sweeps import VARIANTS, Sweep
from zbkernels.experiments.exchangeability.training import SHOWN

_BOUNDS_OF = (NON_ZERO, ZERO)  # kept; centred inputs have sums of 0 to rounding, as ZERO


def run(context: RunContext) -> dict[str, Any]:
    """Train the sweeps, or take what ``kernel-drift`` trained, and return the metrics."""
    base, results = trained(context)
    plan = PLANS[context.settings.preset]
    shown = context.settings.seeds[0]
    runs = []
    for unit, result in results:
        for found in result["runs"]:
            run = {
                "sweep": unit.sweep.key,
                "seed": unit.seed,
                "value": found["value"],
                "diverged": found["diverged"],
                "dead": found["looks"][-1]["dead"],
                "looks": [
                    {key: look[key] for key in ("iteration", "test_loss", "drift", "row_means")}
                    for look in found["looks"]
                ],
                "bounds_held": _held(found["looks"]),
            }
            if unit.seed == shown:
                run["curve"] = found["curve"]
                run["kernels"] = {
                    kind: encoded_kernels([look["kernels"][kind] for look in found["looks"]])
                    for kind in KINDS
                }
                run["reconstructions"] = found["reconstructions"]
                if _at_an_end(unit.sweep, found["value"]):
                    run["bounds"] = [_kept(look.get("bounds")) for look in found["looks"]]
            runs.append(run)
    originals = {
        name: encoded_images(images(plan, name, context.data_root).test[:SHOWN].clamp(0, 1))
        for name in base["data"]
    }
    every = results[0][1]["every"] if results else 1
    return {"experiment": "trained-kernels", **base, "every": every, "originals": originals, "runs": runs}


def _at_an_end(sweep: Sweep, value: float) -> bool:
    """Of the least and the greatest value of a sweep the bounds are kept over training."""
    return value in (min(sweep.values), max(sweep.values))


def _kept(bounds: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if bounds is None else {kind: bounds[kind] for kind in _BOUNDS_OF}


def _held(looks: list[dict[str, Any]]) -> dict[str, float | None]:
    """Over all looks and layers: where the bounds held.

    Returns:
        ``exists``, the share of layers in which (10) is the root of a positive number; ``held``, the share of pairs and
        angles at which the bound is at least the gap, where it exists, of inputs with other sums than 0 (for the others
        the bound is 0, and a finite layer is never at its limit); ``row_mean_held``, of the bound by row means and all
        inputs.
    """
    of_kind = {
        kind: [layer for look in looks for layer in look.get("bounds", {}).get(kind, ()) if layer is not None]
        for kind in KINDS
    }
    found = of_kind[NON_ZERO]
    held = [layer["held"] for layer in found if layer["held"] is not None]
    rows = [layer["row_mean_held"] for layers in of_kind.values() for layer in layers]
    return {
        "exists": len(held) / len(found) if found else None,
        "held": sum(held) / len(held) if held else None,
        "row_mean_held": sum(rows) / len(rows) if rows else None,
    }


EXPERIMENT = Experiment(
    name="trained-kernels",
    title="Figures 3, 5, 6, 7, 9, 11, 12, 14, 16: kernels of layers and of the network over training",
    source="Exchangeability and Kernel Invariance in Trained MLPs, Section 5, Figures 3, 5 to 7, 9, 11, 12, 14, 16",
    presets=PRESETS,
    variants=VARIANTS,
    run=run,
    table=trained_kernels_report.table,
    figure=trained_kernels_figure.figure,
    any_precision=True,
    any_engine=True,
)
