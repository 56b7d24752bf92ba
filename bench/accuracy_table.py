"""How exact convolutions are on a CPU: one layer, many layers, and predictions under changes of the contrast.

    python bench/accuracy_table.py          writes bench/results/accuracy.md

Errors are ||y - exact|| / ||exact|| against float64, on numbers from N(0, 1); the tests read the same cases
(python_tests/test_accuracy.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

import zbkernels as zb
from zbkernels.benchmarking.machine import cpu_name
from zbkernels.data.digits import load_digits
from zbkernels.experiments.contrast import SCALARS
from zbkernels.files import write_text
from zbkernels.models.build import build
from zbkernels.models.rows import Architecture, Conv

TABLE = Path(__file__).resolve().parents[1] / "bench/results/accuracy.md"
FILTERS = ((3, 1), (4, 1), (5, 1), (7, 2))  # size, stride
CHANNELS = (16, 64, 256, 512, 1024)
DEPTHS = (4, 8, 16)
PRECISIONS = ("high", "highest")
NETWORK = Architecture("digits", (Conv(32, 3, pool=1), Conv(64, 3, pool=2), Conv(64, 3, pool=2)))


@contextlib.contextmanager
def precision(name: str) -> Iterator[None]:
    before = zb.get_conv_precision()
    zb.set_conv_precision(name)
    try:
        yield
    finally:
        zb.set_conv_precision(before)


def error(y: torch.Tensor, exact: torch.Tensor) -> float:
    return ((y.double() - exact).norm() / exact.norm()).item()


# --- one layer --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Layer:
    """Errors of one convolution by "high", "highest" and torch; ``kernels`` are what ran at the first two.

    ``same``: whether both gave the same bits on contiguous and on channels_last tensors.
    """

    errors: dict[str, float]
    kernels: dict[str, str]
    same: bool


def layer(kernel: int, stride: int, channels: int, outputs: int = 32) -> Layer:
    """A convolution of one image, whose map has 24x24 pixels, without an activation."""
    gen = torch.Generator().manual_seed(channels)
    x = torch.randn(1, channels, 24 * stride, 24 * stride, generator=gen)
    weight = torch.randn(outputs, channels, kernel, kernel, generator=gen)
    exact = F.conv2d(x.double(), weight.double(), None, stride, kernel // 2)
    errors, kernels, same = {}, {}, True
    for name in PRECISIONS:
        with precision(name):
            y, other = (
                zb.conv_relu_pool2d(
                    x.contiguous(memory_format=layout),
                    weight,
                    stride,
                    kernel // 2,
                    pool="none",
                    negative_slope=1.0,
                )
                for layout in (torch.contiguous_format, torch.channels_last)
            )
            kernels[name] = zb.last_kernel().removeprefix("cpu: ")
        errors[name] = error(y, exact)
        same = same and torch.equal(y, other)
    errors["torch"] = error(F.conv2d(x, weight, None, stride, kernel // 2), exact)
    return Layer(errors, kernels, same)


# --- many layers ------------------------------------------------------------------------------------------------


def depth_errors(depth: int, channels: int = 64) -> dict[str, float]:
    """Errors of the features after ``depth`` layers of 3x3 convolution and ReLU, weights of He scale."""
    gen = torch.Generator().manual_seed(depth)
    x = torch.randn(2, 3, 32, 32, generator=gen)
    sizes = [3] + [channels] * depth
    weights = [
        torch.randn(k, c, 3, 3, generator=gen) * (2 / (9 * c)) ** 0.5 for c, k in itertools.pairwise(sizes)
    ]

    def torchs(x: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = F.relu(F.conv2d(x, w.to(x.dtype), padding=1))
        return x

    def ours() -> torch.Tensor:
        y = x
        for w in weights:
            y = zb.conv_relu_pool2d(y, w, padding=1, pool="none")
        return y

    exact = torchs(x.double())
    found = {}
    for name in PRECISIONS:
        with precision(name):
            found[name] = error(ours(), exact)
    return {**found, "torch": error(torchs(x), exact)}


# --- predictions ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Change:
    """An image whose prediction is another one at ``scalar``; ``margin`` is that of the best two logits at 1."""

    image: int
    scalar: float
    before: int
    after: int
    margin: float


def networks() -> dict[str, torch.nn.Sequential]:
    """Zero-bias networks for the digits by name: as initialised, and after some passes over the training images."""
    data = load_digits()
    fresh, trained = (build(NETWORK, (1, 8, 8), 10, seed=0) for _ in range(2))
    optimizer = torch.optim.Adam(trained.parameters(), 1e-3)
    order = torch.Generator().manual_seed(0)
    for _ in range(6):
        for batch in torch.randperm(len(data.train.labels), generator=order).split(64):
            optimizer.zero_grad()
            F.cross_entropy(trained(data.train.images[batch]), data.train.labels[batch]).backward()
            optimizer.step()
    return {"random": fresh.eval(), "trained": trained.eval()}


def changes(model: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor) -> list[Change]:
    """Every prediction that the contrast changes, at the paper's scalars; logits [N, 10] of images [N, 1, 8, 8]."""
    found = []
    with torch.no_grad():
        logits = model(images)
        before = logits.argmax(1)
        best = logits.topk(2).values
        margins = (best[:, 0] - best[:, 1]) / logits.abs().amax(1)
        for scalar in SCALARS[1:]:
            after = model(images * scalar).argmax(1)
            found += [
                Change(i, scalar, int(before[i]), int(after[i]), float(margins[i]))
                for i in (before != after).nonzero().flatten().tolist()
            ]
    return found


def plain(model: torch.nn.Sequential) -> torch.nn.Sequential:
    """The same network on torch's own layers."""
    twin = build(NETWORK, (1, 8, 8), 10, fused=False)
    twin.load_state_dict(model.state_dict())
    return twin.eval()


def prediction_changes(model: torch.nn.Sequential, images: torch.Tensor) -> dict[str, list[Change]]:
    found = {}
    for name in PRECISIONS:
        with precision(name):
            found[name] = changes(model, images)
    return {**found, "torch": changes(plain(model), images)}


# --- the table --------------------------------------------------------------------------------------------------

HEADER = """# How exact convolutions are

By float64: ||y - exact|| / ||exact||, numbers from N(0, 1), float32, {cpu}, {capability}, torch {torch}.
`make accuracy-table` writes this file.

"""


def table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    return "".join("| " + " | ".join(row) + " |\n" for row in (head, ["---"] * len(head), *body)) + "\n"


def layer_table() -> str:
    rows = [
        ["filter", "channels", *PRECISIONS, "torch", "highest / torch", "kernel of high", "layouts agree"]
    ]
    for (kernel, stride), channels in ((f, c) for f in FILTERS for c in CHANNELS):
        found = layer(kernel, stride, channels)
        cells = [f"{found.errors[name]:.1e}" for name in (*PRECISIONS, "torch")]
        what = f"{kernel}x{kernel}" + (f" stride {stride}" if stride > 1 else "")
        ratio = found.errors["highest"] / found.errors["torch"]
        agree = "bit by bit" if found.same else "no"
        rows.append([what, str(channels), *cells, f"{ratio:.1f}", found.kernels["high"], agree])
    return table(rows)


def depth_table() -> str:
    rows = [["layers", *PRECISIONS, "torch"]]
    for depth in DEPTHS:
        found = depth_errors(depth)
        rows.append([str(depth), *(f"{found[name]:.1e}" for name in (*PRECISIONS, "torch"))])
    return table(rows)


def prediction_tables() -> str:
    data = load_digits()
    images = torch.cat([data.train.images, data.test.images])
    rows = [["network", "predictions", *(f"changed, {name}" for name in (*PRECISIONS, "torch"))]]
    each = [["network", "sums", "image", "scalar", "at 1", "at the scalar", "margin of the logits at 1"]]
    for name, model in networks().items():
        found = prediction_changes(model, images)
        rows.append(
            [name, str(len(images) * (len(SCALARS) - 1)), *(str(len(list_)) for list_ in found.values())]
        )
        each += [
            [name, sums, str(c.image), f"{c.scalar:g}", str(c.before), str(c.after), f"{c.margin:.1e}"]
            for sums, list_ in found.items()
            for c in list_
        ]
    return table(rows) + (table(each) if len(each) > 1 else "")


def main() -> int:
    text = HEADER.format(
        cpu=cpu_name(), capability=torch.backends.cpu.get_cpu_capability(), torch=torch.__version__
    )
    text += "## One layer\n\nA map of 24x24 pixels, 32 output channels.\n\n" + layer_table()
    text += (
        "## Many layers\n\n3x3 convolutions of 64 channels with ReLU, no bias, 32x32 pixels.\n\n"
        + depth_table()
    )
    scalars = ", ".join(f"{scalar:g}" for scalar in SCALARS[1:])
    text += (
        f"## Predictions under contrast\n\nZero-bias networks ({NETWORK.blocks[0].out}, {NETWORK.blocks[1].out}, "
        f"{NETWORK.blocks[2].out} channels, 3x3) on all of scikit-learn's digits times {scalars}, against the "
        "predictions at 1.\n\n"
    )
    write_text(TABLE, (text + prediction_tables()).rstrip("\n") + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
