"""The papers' tables and figures, one module per experiment, each run by name: ``zb run table1-mnist``."""

from __future__ import annotations

import difflib
import importlib

from zbkernels.experiments.base import Experiment, ExperimentError, Preset

__all__ = ["EXPERIMENTS", "Experiment", "ExperimentError", "Preset", "get"]

# Name -> module, which holds EXPERIMENT and is imported when it is asked for.
EXPERIMENTS: dict[str, str] = {
    "table1-mnist": "zbkernels.experiments.table1_mnist",
    "table1-fashion": "zbkernels.experiments.table1_fashion",
    "table1-cifar100": "zbkernels.experiments.table1_cifar100",
    "table1-imagenet": "zbkernels.experiments.table1_imagenet",
    "table1": "zbkernels.experiments.table1_all",
    "loss-curves": "zbkernels.experiments.loss_curves",
    "augmentation": "zbkernels.experiments.augmentation",
    "interpolation": "zbkernels.experiments.interpolation",
    "nap-tradeoff": "zbkernels.experiments.nap_tradeoff",
    "convex-region": "zbkernels.experiments.convex_region",
    "regions": "zbkernels.experiments.regions",
    "zero-image": "zbkernels.experiments.zero_image",
    "linear-regions-2d": "zbkernels.experiments.linear_regions_2d",
    "directionality": "zbkernels.experiments.directionality",
    "ldnet-error": "zbkernels.experiments.ldnet_error",
    "spectra": "zbkernels.experiments.spectra",
    "dual-activations": "zbkernels.experiments.dual_activations",
    "chernoff": "zbkernels.experiments.chernoff",
    "ntk-bias": "zbkernels.experiments.ntk_bias",
    "odd-functions": "zbkernels.experiments.effectively_linear.odd_functions",
    "linear-dynamics": "zbkernels.experiments.effectively_linear.linear_dynamics",
    "deep-linear": "zbkernels.experiments.effectively_linear.deep_linear",
    "random-kernels": "zbkernels.experiments.exchangeability.random_kernels",
    "trained-kernels": "zbkernels.experiments.exchangeability.trained_kernels",
    "kernel-drift": "zbkernels.experiments.exchangeability.kernel_drift",
    "exchangeability": "zbkernels.experiments.exchangeability.symmetry",
    "ergodic": "zbkernels.experiments.exchangeability.ergodic",
}


def get(name: str) -> Experiment:
    """The experiment called ``name``.

    Raises:
        ExperimentError: there is none; the message suggests close names.
    """
    if name not in EXPERIMENTS:
        close = difflib.get_close_matches(name, EXPERIMENTS, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(EXPERIMENTS)}"
        raise ExperimentError(f"no experiment is called {name!r}; {hint}")
    return importlib.import_module(EXPERIMENTS[name]).EXPERIMENT
