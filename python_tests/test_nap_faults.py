"""Inputs and models that once gave wrong patterns or certificates without a word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from zbkernels.nap import NotPiecewiseLinear, Recording, RecordingError, certify_hull, patterns, record
from zbkernels.nap.sources import NapError, load_images, picked
from zbkernels.nap.units import UNSEEN, Units

pytestmark = pytest.mark.usefixtures("one_thread")


def _abs(x: torch.Tensor) -> torch.Tensor:
    return x.abs()


def _relu(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


class Scripted(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = torch.jit.script(function)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x[:, :2] * 1.0) + F.relu(x[:, 2:])


def test_a_scripted_function_is_not_certified() -> None:
    """Its halves have classes 0 and 0, and their midpoint has class 1."""
    vertices = torch.tensor([[2.0, 1.0, 1.0, 1.0], [-2.0, 1.0, 1.0, 1.0]])
    with pytest.raises(NotPiecewiseLinear, match="can't be seen"):
        certify_hull(Scripted(_abs), vertices)
    units = Units(Scripted(_relu), lambda site, call: call.run())
    with torch.no_grad(), units:
        units.model(vertices)
    assert units.unsupported == [UNSEEN] and [site.kind for site in units.sites] == ["relu"]


class Shift(nn.Module):
    def __init__(self, by: float, weight: torch.Tensor | None = None) -> None:
        super().__init__()
        self.by, self.weight = by, weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.by if self.weight is None else x @ self.weight


def shifted(by: float, seed: int | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)]
    weight = None if seed is None else torch.randn(8, 8, generator=torch.Generator().manual_seed(seed))
    return nn.Sequential(layers[0], Shift(by, weight), *layers[1:])


@pytest.mark.parametrize("other", [shifted(0.5), shifted(0.0, seed=1)])
def test_a_model_with_another_plain_attribute_is_another_model(tmp_path: Path, other: nn.Module) -> None:
    loader = [torch.randn(5, 4, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    recorded = record(shifted(0.0), loader, out=tmp_path / "R")
    recorded.refuse_other_model(shifted(0.0))
    with pytest.raises(RecordingError, match=r"another model|other model|differ"):
        record(other, loader, out=tmp_path / "R")


def test_a_prediction_of_nan_is_refused(tmp_path: Path) -> None:
    model = shifted(0.0)
    batches = [torch.randn(3, 4), torch.tensor([[1.0] * 4, [float("nan")] * 4])]
    with pytest.raises(RecordingError, match="NaN for input 4"):
        record(model, batches, out=tmp_path / "R")
    kept = record(model, batches, out=tmp_path / "S", predictions=False)
    assert torch.equal(kept.signatures, patterns(model, torch.cat(batches)))


def test_a_changed_header_is_told(tmp_path: Path) -> None:
    record(shifted(0.0), [torch.randn(5, 4)], out=tmp_path / "R")
    header = tmp_path / "R/recording.json"
    text = header.read_text()
    for old, new in (
        ('"kind"', '"kin_"'),
        ('"relu"', '"rely"'),
        ('"rows": 5', '"rows": 6'),
        ('"crc32"', '"crc23"'),
    ):
        assert old in text
        header.write_text(text.replace(old, new))
        with pytest.raises(RecordingError, match=r"recording\.json: cannot be read"):
            Recording.load(tmp_path / "R")
    header.write_text(json.dumps(json.loads(text)))  # spaces and lines do not count
    assert len(Recording.load(tmp_path / "R").signatures) == 5


def test_pictures_of_sixteen_bits(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    deep = np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)
    expected = torch.from_numpy(deep.astype(np.float32) / 65535)
    image.fromarray(deep).save(tmp_path / "deep.png")
    np.save(tmp_path / "deep.npy", deep[None, None])
    for name in ("deep.png", "deep.npy"):
        torch.testing.assert_close(load_images(str(tmp_path / name), None).images[0, 0], expected)


def test_pixels_that_are_no_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "nan.npy", np.full((1, 1, 2, 2), np.nan, np.float32))
    with pytest.raises(NapError, match=r"expected finite pixels, got 4 NaN"):
        load_images(str(tmp_path / "nan.npy"), None)


def test_more_images_than_there_can_be() -> None:
    with pytest.raises(NapError, match="at most a million"):
        picked("0-9999999999")
    assert picked("3,5-6") == [3, 5, 6]
