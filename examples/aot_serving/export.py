"""Exports a network of fused layers for a C++ program: ``python export.py FOLDER``.

Writes model.pt2 (an AOTInductor package for any batch of at most 1,024 images), and for comparison input.bin (images,
raw float32), logits.bin (raw float32) and signatures.bin (raw int64), as Python computes them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

import zbkernels as zb


class Net(nn.Module):
    """Two blocks of convolution, ReLU and pool, two linear layers, no bias anywhere. Images are [N, 1, 28, 28]."""

    def __init__(self) -> None:
        super().__init__()
        self.first = zb.nn.ConvReLUPool2d(1, 16, 5, padding=2)
        self.second = zb.nn.ConvReLUPool2d(16, 32, 3, padding=1)
        self.hidden = zb.nn.LinearReLU(32 * 7 * 7, 64)
        self.last = zb.nn.LinearReLU(64, 10, negative_slope=1.0)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [N, 10], and which units of the second block are on, as bits: [N, 98] int64."""
        maps, signature = self.second.forward_nap(self.first(images))
        return self.last(self.hidden(maps.flatten(1))), signature


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch", type=int, default=5, help="images in input.bin (default: 5)")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    net = Net().eval()
    example = torch.randn(3, 1, 28, 28)
    batch = torch.export.Dim("batch", min=1, max=1024)
    program = torch.export.export(net, (example,), dynamic_shapes=({0: batch},))
    torch._inductor.aoti_compile_and_package(
        program,
        package_path=str(args.folder / "model.pt2"),
        # The package's own check of its input (see README.md) would refuse one image: torch exports from two on.
        inductor_configs={"aot_inductor.check_lowerbound": False},
    )

    images = torch.randn(args.batch, 1, 28, 28)
    with torch.no_grad():
        logits, signatures = net(images)
    for name, values in (("input", images), ("logits", logits), ("signatures", signatures)):
        (args.folder / f"{name}.bin").write_bytes(values.numpy().tobytes())


if __name__ == "__main__":
    main()
