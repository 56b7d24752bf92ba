"""``zb demo``: what dropping the bias brings, on scikit-learn's digits, in a minute or so.

Two small networks that differ in their bias only; their accuracy as the contrast of the test images falls; their
answer to a black image; the activation patterns of the zero-bias one; and the time of the fused op.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import zbkernels
from zbkernels import data as image_sets
from zbkernels.demo_figure import draw
from zbkernels.experiments.contrast import SCALARS, sweep, zero_image_probabilities
from zbkernels.experiments.progress import Progress, duration
from zbkernels.files import replacing
from zbkernels.models import Architecture, Conv, Linear, build
from zbkernels.nn import ConvReLUPool2d, LinearReLU
from zbkernels.train import TrainConfig, train

ARCHITECTURE = Architecture("demo", (Conv(16), Linear(64)))
TRAINING = TrainConfig(epochs=30, batch_size=32, lr=0.002, optimizer="adam")
NETWORKS = {"with bias": True, "without bias": False}
SPEED_SHAPES = ("mnist1", "cifar1")


def main(out: Path, seed: int, console: Console) -> None:
    """Run the demo, print its tables on ``console`` and draw ``out/figure.png``."""
    started = time.perf_counter()
    data = image_sets.load_digits()
    console.print(
        f"[bold]zbkernels {zbkernels.__version__}[/]: {data.title}, {len(data.train):,} training images, "
        f"{len(data.test)} test images, network {ARCHITECTURE}",
        highlight=False,
    )
    out.mkdir(parents=True, exist_ok=True)  # a folder that cannot be made is better known before the training
    models = {label: _train(label, bias, data, seed, console) for label, bias in NETWORKS.items()}
    sweeps = {label: sweep(model, data.test) for label, model in models.items()}
    zero = {label: zero_image_probabilities(model, data.image_shape) for label, model in models.items()}
    _show_sweep(sweeps, console)
    _show_zero_image(zero, console)
    _show_patterns(models["without bias"], data, console)
    _show_speed(console)
    figure = out / "figure.png"
    with replacing(figure) as temporary:
        draw(sweeps, zero, data.title, temporary)
    console.print(
        f"\nFigure: {figure}    ({duration(time.perf_counter() - started)} in all)", highlight=False
    )


def _train(label: str, bias: bool, data: image_sets.Dataset, seed: int, console: Console) -> nn.Sequential:
    model = build(ARCHITECTURE, data.image_shape, len(data.classes), bias=bias, seed=seed)
    config = TrainConfig(
        TRAINING.epochs, TRAINING.batch_size, TRAINING.lr, TRAINING.optimizer, seed, TRAINING.memory_format
    )
    with Progress(console) as progress:
        progress.expect(config.epochs * -(-len(data.train) // config.batch_size))
        progress.describe(f"training {label}")
        history = train(model, data, config, on_batch=progress.batch_done)
    seconds = sum(epoch.seconds for epoch in history)
    form = "plain torch layers" if bias else "fused layers"
    console.print(
        f"  {label}, {form}: trained {config.epochs} epochs in {duration(seconds)}", highlight=False
    )
    return model


def _show_sweep(sweeps: dict[str, list[dict[str, Any]]], console: Console) -> None:
    table = Table(title="Test accuracy (%) when the images are multiplied by a scalar", title_justify="left")
    for column in ("scalar", *sweeps, "predictions changed without bias"):
        table.add_column(column, justify="right")
    for number, scalar in enumerate(SCALARS):
        accuracies = (f"{rows[number]['accuracy']:.1f}" for rows in sweeps.values())
        table.add_row(f"{scalar:g}", *accuracies, str(sweeps["without bias"][number]["changed"]))
    console.print()
    console.print(table)


def _show_zero_image(zero: dict[str, list[float]], console: Console) -> None:
    for label, probabilities in zero.items():
        highest = max(probabilities)
        if highest - min(probabilities) < 1e-9:
            said = f"every class has probability {highest:.3f}"
        else:
            likeliest = probabilities.index(highest)
            said = (
                f"class {likeliest} has probability {highest:.3f}, the least likely {min(probabilities):.3f}"
            )
        console.print(f"A black image, {label}: {said}", highlight=False)


def _show_patterns(model: nn.Sequential, data: image_sets.Dataset, console: Console) -> None:
    """Activation patterns (NAPs, Definition 1 of the paper) of all 1,797 images, packed 64 units to a word."""
    images = torch.cat([data.train.images, data.test.images])
    labels = torch.cat([data.train.labels, data.test.labels])
    conv, linear = model.get_submodule("conv1"), model.get_submodule("fc2")
    assert isinstance(conv, ConvReLUPool2d)
    assert isinstance(linear, LinearReLU)
    with torch.inference_mode():
        pooled, conv_bits = conv.forward_nap(images, units="winner")  # [N, words]
        _, linear_bits = linear.forward_nap(pooled.flatten(1))
    both = torch.cat([conv_bits, linear_bits], dim=1)

    table = Table(title="Activation patterns of the network without bias", title_justify="left")
    for column in ("part of the network", "distinct patterns", "images in the largest group"):
        table.add_column(column, justify="left" if column.startswith("part") else "right")
    parts = {
        "convolution (which unit of each pool window won)": conv_bits,
        f"hidden layer ({linear.out_features} units)": linear_bits,
        "both": both,
    }
    for label, bits in parts.items():
        _, counts = bits.unique(dim=0, return_counts=True)
        table.add_row(label, f"{len(counts):,}", str(int(counts.max())))
    console.print()
    console.print(table)

    _, group, counts = linear_bits.unique(dim=0, return_inverse=True, return_counts=True)
    console.print(f"Largest groups of the hidden layer, of {len(labels):,} images:", highlight=False)
    for index in counts.argsort(descending=True, stable=True)[:5].tolist():
        makeup = Counter(labels[group == index].tolist()).most_common(4)
        said = ", ".join(f"{count} of digit {digit}" for digit, count in makeup)
        console.print(f"  {int(counts[index]):4d} images share one pattern: {said}", highlight=False)


def _show_speed(console: Console) -> None:
    """The fused op against its competitors, each checked against a float64 reference before it is timed."""
    from zbkernels.benchmarking import Settings, run, select

    cases = select(["conv"], shapes=SPEED_SHAPES, modes=["forward"], dtypes=["float32"])
    console.print()
    with console.status("checking and timing conv_relu_pool2d and its competitors"):
        report = run(cases, Settings.of(quick=True))
    rows = report["rows"]
    table = Table(
        title="conv_relu_pool2d, forward, float32: median milliseconds, in turns", title_justify="left"
    )
    table.add_column("")
    for row in rows:
        table.add_column(f"{row['name']}\n{row['shape']}", justify="right")
    for name in dict.fromkeys(name for row in rows for name in row["times"]):
        times = [row["times"].get(name) for row in rows]
        label = "zbkernels" + name.removeprefix("ours") if name.startswith("ours") else name
        style = "bold" if name == "ours" else None
        table.add_row(label, *("-" if t is None else f"{t['median_ms']:.2f}" for t in times), style=style)
    table.add_section()
    gains = [f"{row['ratio']:.2f}x {row['best_competitor']}" if row["ratio"] else "-" for row in rows]
    table.add_row("speed against the best other", *gains)
    table.add_row("kernel", *(row["kernel"] for row in rows), style="dim")
    console.print(table)
    absent = {name: reason for row in rows for name, reason in row["absent"].items()}
    for name, reason in absent.items():
        console.print(f"  {name} took no part: {reason}", style="dim", highlight=False)
    if "not installed" in absent.values():
        console.print("  pip install 'zbkernels[bench]' brings what is missing", style="dim", markup=False)
    console.print("  On a busy machine trust the ratios only; `zb bench` measures with care.", style="dim")
    for failed in report["failed"]:
        console.print(f"  {failed['row']}: {failed['error']}", style="red", highlight=False, markup=False)
