"""Draws the figures of docs/nap.md from scikit-learn's digits alone: ``python docs/nap_figures.py``.

The network is the one of the page: trained here, as there, and kept as ``digits.safetensors`` in the folder given by
``--out`` (default: out/nap), where the page's commands find it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.colors import ListedColormap
from safetensors.torch import save_file
from torch import nn

import zbkernels as zb
from zbkernels.data import load_digits
from zbkernels.files import replacing
from zbkernels.models import ARCHITECTURES, build
from zbkernels.nap import certify_hull, local_linear_map, patterns, record
from zbkernels.nap.neighbours import neighbours
from zbkernels.train import TrainConfig, train

HERE = Path(__file__).resolve().parent


def trained() -> nn.Sequential:
    """The page's network: 64 pixels, 32 hidden units, 10 classes, no biases."""
    model = build(ARCHITECTURES["fcn-mnist"], (1, 8, 8), 10)
    train(model, load_digits(), TrainConfig(epochs=30, batch_size=32, lr=0.002, optimizer="adam"))
    return model


def frequencies(model: nn.Module, path: Path) -> None:
    """How often each hidden unit is on, class by class."""
    digits = load_digits().train
    signatures = patterns(model, digits.images)
    rows = []
    for label in range(10):
        mine = signatures[digits.labels == label]
        rows.append(zb.nap_frequency(mine, 32) / len(mine))
    often = torch.stack(rows)  # [classes, units]
    order = often.argmax(0) * 10 - often.amax(0)  # units by the class that they are on for most
    figure, axis = plt.subplots(figsize=(7.5, 2.6), layout="constrained")
    image = axis.imshow(often[:, order.argsort()], cmap="viridis", vmin=0, vmax=1, aspect="auto")
    axis.set(xlabel="hidden unit (sorted)", ylabel="class", yticks=range(10), xticks=[])
    figure.colorbar(image, label="share of inputs for which it is on")
    save(figure, path)


def rarity(model: nn.Module, path: Path) -> None:
    """Distance to the nearest recorded pattern, of test digits and of what is no digit."""
    digits = load_digits()
    recording = record(model, [digits.train.images], progress=False)
    generator = torch.Generator().manual_seed(0)
    test = digits.test.images
    shuffled = test.flatten(1)[:, torch.randperm(64, generator=generator)].view_as(test)
    sets = {
        "test digits": test,
        "the same, upside down": test.flip(2),
        "the same, pixels shuffled": shuffled,
        "noise": torch.rand(test.shape, generator=generator),
    }
    figure, axis = plt.subplots(figsize=(7.5, 2.8), layout="constrained")
    bins = torch.arange(0, 14) - 0.5
    for index, (name, images) in enumerate(sets.items()):
        nearest = neighbours(recording, model, images, k=1).distances[:, 0]
        share = torch.histc(nearest.float(), 13, -0.5, 12.5) / len(nearest)
        axis.bar(
            (bins[:-1] + 0.5) + (index - 1.5) * 0.2,
            share,
            0.2,
            label=f"{name} (mean {nearest.float().mean():.1f})",
        )
    axis.set(
        xlabel="bits to the nearest of 1,437 recorded patterns, of 32",
        ylabel="share of inputs",
        xticks=range(13),
    )
    axis.legend(frameon=False)
    save(figure, path)


def plane(model: nn.Module, path: Path) -> None:
    """The pieces of the network in the plane through three images of one pattern and one prediction."""
    digits = load_digits().train
    signatures = patterns(model, digits.images)
    predictions = model(digits.images).argmax(1)
    ids, _, _ = zb.nap_group(torch.stack([signatures[:, 0], predictions], 1))
    rows = (ids == ids.bincount().argmax()).nonzero().flatten()
    flat = digits.images.flatten(1).double()
    apart = torch.cdist(flat[rows], flat[rows])
    first, second = divmod(int(apart.argmax()), len(rows))
    third = int((apart[first] + apart[second]).argmax())
    corners = flat[rows[[first, second, third]]]
    region = certify_hull(model, corners.view(3, 1, 8, 8))
    radii = local_linear_map(model, corners.view(3, 1, 8, 8)).l2.certified

    # Orthonormal axes, so that a ball of the images is a circle of the plane.
    a, b = corners[1] - corners[0], corners[2] - corners[0]
    a = a / a.norm()
    b = b - (b @ a) * a
    axes = torch.stack([a, b / b.norm()])
    placed = (corners - corners[0]) @ axes.T
    low, high = placed.amin(0) - 4, placed.amax(0) + 4
    steps = [torch.linspace(float(low[i]), float(high[i]), 480, dtype=torch.float64) for i in (0, 1)]
    u, v = torch.meshgrid(*steps, indexing="xy")
    points = (corners[0] + torch.stack([u, v], -1).flatten(0, 1) @ axes).float().view(-1, 1, 8, 8)
    with torch.no_grad():
        classes = model(points).argmax(1).view(u.shape)
    pieces, _, _ = zb.nap_group(patterns(model, points))
    pieces = pieces.view(u.shape)
    borders = torch.zeros(u.shape, dtype=torch.bool)
    borders[1:] |= pieces[1:] != pieces[:-1]
    borders[:, 1:] |= pieces[:, 1:] != pieces[:, :-1]

    figure, axis = plt.subplots(figsize=(6.4, 5.2), layout="constrained")
    extent = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
    shades = ListedColormap(plt.get_cmap("tab10")(range(10)))
    axis.imshow(classes, cmap=shades, vmin=-0.5, vmax=9.5, alpha=0.45, extent=extent, origin="lower")
    white = ListedColormap([(0, 0, 0, 0), (0, 0, 0, 0.55)])
    axis.imshow(borders, cmap=white, extent=extent, origin="lower", interpolation="nearest")
    axis.fill(*placed.T, facecolor="none", edgecolor="black", linewidth=2)
    for (x, y), radius in zip(placed.tolist(), radii.tolist(), strict=True):
        axis.plot(x, y, "k.")
        axis.add_patch(plt.Circle((x, y), radius, facecolor="white", edgecolor="black", alpha=0.8))
    for label in classes.unique().tolist():
        at = (classes == label).nonzero().double().mean(0).long()
        if label == region.prediction:
            at = at // 2  # not behind the triangle
        axis.text(float(u[0, at[1]]), float(v[at[0], 0]), str(label), ha="center", va="center", fontsize=14)
    axis.set(title=f"class {region.prediction} is certified in the whole triangle", xticks=[], yticks=[])
    save(figure, path)


def save(figure: plt.Figure, path: Path) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=100)
    plt.close(figure)
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/nap"), help="folder of the trained network")
    parser.add_argument("--figures", type=Path, default=HERE / "nap", help="folder of the figures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    model = trained()
    save_file(model.state_dict(), options.out / "digits.safetensors")
    frequencies(model, options.figures / "frequency.png")
    rarity(model, options.figures / "rarity.png")
    plane(model, options.figures / "plane.png")


if __name__ == "__main__":
    main()
