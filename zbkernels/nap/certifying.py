"""What ``zb nap certify`` certifies: radii of images, and the combinations of images that share a pattern."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zbkernels.nap.hull import Region, certify_hull
from zbkernels.nap.linear import LocalLinearMap, local_linear_map
from zbkernels.nap.patterns import PatternReader
from zbkernels.nap.recording import Recording
from zbkernels.nap.sources import Images, NapError
from zbkernels.ops import nap_group

VARY = ("all", "nonzero")
ARITHMETIC = {"exact": None, "float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Certificate:
    """Of some images taken together: the region, or why there is none.

    Attributes:
        rows: of the images that are its vertices.
        inputs: how many have the pattern and the prediction; more than there are rows where only some are vertices.
    """

    rows: list[int]
    inputs: int
    region: Region | None
    reason: str

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"rows": self.rows, "inputs": self.inputs}
        if self.region is None:
            return {**value, "certified": False, "reason": self.reason}
        margins = {
            str(dtype).removeprefix("torch."): {
                "holds": margin.holds,
                "relative": margin.relative if math.isfinite(margin.relative) else None,
            }
            for dtype, margin in self.region.margins.items()
        }
        return {
            **value,
            "certified": True,
            "kind": self.region.kind,
            "prediction": self.region.prediction,
            "margins": margins,
            "lost": self.region.lost,
        }


def certify_images(
    model: nn.Module, x: torch.Tensor, *, vary: str = "all", arithmetic: str = "exact"
) -> LocalLinearMap:
    """The linear map around each image and its distances; see :func:`zbkernels.nap.local_linear_map`.

    Args:
        vary: ``"nonzero"``: pixels that are 0 (a blank border) stay so.

    Raises:
        NapError: a word that is none of these.
        ValueError: what can't be certified, and why.
    """
    if vary not in VARY:
        raise NapError(f"--vary: expected one of {', '.join(VARY)}, got {vary!r}")
    if arithmetic not in ARITHMETIC:
        raise NapError(f"--arithmetic: expected one of {', '.join(ARITHMETIC)}, got {arithmetic!r}")
    changes = x != 0 if vary == "nonzero" else None
    return local_linear_map(model, x, vary=changes, dtype=ARITHMETIC[arithmetic])


def images_json(radii: LocalLinearMap, rows: list[int], labels: list[int] | None) -> list[dict[str, Any]]:
    """One object an image; distances that are infinite (no such boundary) are null."""

    def number(value: torch.Tensor) -> float | None:
        return float(value) + 0.0 if bool(value.isfinite()) else None  # never -0.0

    return [
        {
            "row": row,
            "label": None if labels is None else labels[i],
            "prediction": int(radii.predictions[i]),
            **{
                name: {
                    "unit": number(r.unit[i]),
                    "unit_name": r.unit_name[i],
                    "tie": bool(r.tie[i]),
                    "decision": number(r.decision[i]),
                    "decision_class": int(r.decision_class[i]),
                    "certified": number(r.certified[i]),
                }
                for name, r in (("l2", radii.l2), ("linf", radii.linf))
            },
        }
        for i, row in enumerate(rows)
    ]


def certify_together(
    model: nn.Module, x: torch.Tensor, rows: list[int], inputs: int | None = None
) -> Certificate:
    """Every combination of some images, or why not (they differ in pattern or prediction)."""
    try:
        return Certificate(rows, inputs or len(rows), certify_hull(model, x), "")
    except ValueError as error:
        return Certificate(rows, inputs or len(rows), None, str(error))


def certify_groups(
    model: nn.Module, images: Images, folder: Path, groups: int, vertices: int
) -> list[Certificate]:
    """The biggest groups of a recording with one pattern and one prediction, of two images or more.

    Args:
        images: those that were recorded, in their order.
        vertices: of a bigger group only the first so many become vertices.

    Raises:
        NapError: the recording is of other images.
        RecordingError: it is of another model, or broken.
    """
    recording = Recording.load(folder)
    recording.refuse_other_model(model)
    if len(recording) > len(images):
        raise NapError(
            f"{folder}: holds {len(recording):,} inputs, and {images.title} are {len(images):,}; give the images that "
            "were recorded"
        )
    ids, _, _ = nap_group(recording.signatures)
    if recording.predictions is not None:
        pairs = torch.stack([ids, recording.predictions.long()], 1)
        ids, _, _ = nap_group(pairs)
    counts = ids.bincount()
    certificates = []
    for group in counts.argsort(descending=True, stable=True)[:groups].tolist():
        if counts[group] < 2:
            break
        rows = (ids == group).nonzero().flatten()[:vertices].tolist()
        x = images.images[rows]
        reader = PatternReader(
            model, x, units=recording.units, layers=recording.made["choice"], who="certify"
        )
        if not torch.equal(reader.read(x)[0].cpu(), recording.signatures[rows]):
            raise NapError(
                f"{folder}: {images.title} are not the images that were recorded: row {rows[0]} or a later differs"
            )
        certificates.append(certify_together(model, x, rows, int(counts[group])))
    return certificates
