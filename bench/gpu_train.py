"""Trains a small bias-free network twice, on the fused layers and on plain torch's, timing both interleaved.

Same weights, same batches, so the losses must run together (they part slowly, by rounding that grows).
The images are made on the spot: a fixed pattern for each of ten classes, in noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence

import torch
from torch import nn

from zbkernels.nn import ConvReLUPool2d, LinearReLU

MARK = "GPU-CHECK-RESULT "
STEPS = 40
ALLOWED = 0.02  # relative difference of the two losses at any step


def fused(device: str) -> nn.Sequential:
    """Two blocks, a hidden layer, ten classes: [N, 1, 28, 28] -> [N, 10]."""
    return nn.Sequential(
        ConvReLUPool2d(1, 32, 3, padding=1, device=device),
        ConvReLUPool2d(32, 64, 3, padding=1, device=device),
        nn.Flatten(),
        LinearReLU(64 * 7 * 7, 128, device=device),
        nn.Linear(128, 10, bias=False, device=device),
    )


def plain(device: str) -> nn.Sequential:
    """The same network as torch's users write it."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
        nn.Sequential(nn.Linear(64 * 7 * 7, 128, bias=False), nn.ReLU()),
        nn.Linear(128, 10, bias=False),
    ).to(device)


def train(device: str, batch: int, steps: int) -> dict[str, object]:
    """Train both in step; the result names the largest difference of the losses and the medians of a step."""
    torch.manual_seed(0)
    models = {"fused": fused(device), "plain": plain(device)}
    with torch.no_grad():
        for ours, theirs in zip(models["fused"].parameters(), models["plain"].parameters(), strict=True):
            nn.init.kaiming_normal_(ours, nonlinearity="relu")
            theirs.copy_(ours)
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.003) for name, model in models.items()}
    patterns = torch.randn(10, 1, 28, 28, device=device)
    losses: dict[str, list[float]] = {name: [] for name in models}
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(steps):
        labels = torch.randint(0, 10, (batch,), device=device)
        images = patterns[labels] + torch.randn(batch, 1, 28, 28, device=device)
        for name, model in models.items():
            _wait(device)
            start = time.perf_counter()
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizers[name].zero_grad()
            loss.backward()
            optimizers[name].step()
            _wait(device)
            times[name].append((time.perf_counter() - start) * 1e3)
            losses[name].append(float(loss.detach()))
    pairs = zip(losses["fused"], losses["plain"], strict=True)
    apart = max(abs(a - b) / max(abs(b), 1e-2) for a, b in pairs)
    step_ms = {name: statistics.median(values[steps // 4 :]) for name, values in times.items()}
    first, last = losses["fused"][0], losses["fused"][-1]
    speed = f"step {step_ms['fused']:.3g} ms, plain torch {step_ms['plain']:.3g} ms"
    return {
        "summary": f"loss {first:.3f} -> {last:.3f}, apart by at most {apart:.1e} of it; {speed}",
        "losses": losses,
        "apart": apart,
        "step_ms": step_ms,
        "learned": last < 0.7 * first,
    }


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 where the losses ran together and fell."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--device", default="cuda")
    options.add_argument("--batch", type=int, default=256)
    options.add_argument("--steps", type=int, default=STEPS)
    chosen = options.parse_args(arguments)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    result = train(chosen.device, chosen.batch, chosen.steps)
    print(MARK + json.dumps(result), flush=True)
    return 0 if result["learned"] and result["apart"] < ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
