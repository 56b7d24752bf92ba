"""What the shell completes after `zb`: names that the package itself knows, each with a word on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Words = Iterator[tuple[str, str]]


def experiments(incomplete: str) -> Words:
    from zbkernels.experiments import EXPERIMENTS, get

    for name in EXPERIMENTS:
        if name.startswith(incomplete):
            yield name, get(name).title


def presets(ctx: Any, incomplete: str) -> Words:
    """Of the experiment that is named on the line; before there is one, of all."""
    from zbkernels.experiments import EXPERIMENTS, get

    name = _experiment(ctx)
    seen = set()
    for experiment in [name] if name else EXPERIMENTS:
        for preset, settings in get(experiment).presets.items():
            if preset.startswith(incomplete) and preset not in seen:
                seen.add(preset)
                yield preset, settings.summary if name else ""


def variants(ctx: Any, incomplete: str) -> Words:
    from zbkernels.experiments import get

    name = _experiment(ctx)
    if name:
        yield from ((variant, "") for variant in get(name).variants if variant.startswith(incomplete))


def _experiment(ctx: Any) -> str | None:
    """The experiment on the line: an argument is not taken yet while an option before the cursor has no value."""
    from zbkernels.experiments import EXPERIMENTS

    words = [ctx.params.get("name"), *ctx.args]
    return next((word for word in words if word in EXPERIMENTS), None)


def architectures(incomplete: str) -> Words:
    from zbkernels.models import ARCHITECTURES

    yield from ((name, "") for name in ARCHITECTURES if name.startswith(incomplete))


def ops(incomplete: str) -> Words:
    from zbkernels.tuning.workloads import OPS

    yield from ((name, "") for name in OPS if name.startswith(incomplete))


def devices(incomplete: str) -> Words:
    import torch

    found = [("auto", "CUDA where there is a device"), ("cpu", ""), ("cuda", "")]
    found += [
        (f"cuda:{index}", torch.cuda.get_device_name(index)) for index in range(torch.cuda.device_count())
    ]
    yield from (word for word in found if word[0].startswith(incomplete))


def image_sets(incomplete: str) -> Words:
    """Of `zb nap` and `zb check-invariance`; files complete as files do."""
    from zbkernels.data import DATASETS

    for name in DATASETS:
        for part in ("", ":train", ":test"):
            if f"{name}{part}".startswith(incomplete):
                yield f"{name}{part}", ""


def choices(*words: str) -> Any:
    """A completer of fixed words."""

    def complete(incomplete: str) -> Words:
        yield from ((word, "") for word in words if word.startswith(incomplete))

    return complete
