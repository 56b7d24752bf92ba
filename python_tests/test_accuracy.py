"""How exact convolutions are: the cases of bench/accuracy_table.py, held to what the precisions promise."""

from __future__ import annotations

import itertools
from types import ModuleType

import bench_tools
import pytest


@pytest.fixture(scope="module")
def accuracy() -> ModuleType:
    return bench_tools.load("accuracy_table")


LAYERS = list(itertools.product(((3, 1), (4, 1), (5, 1), (7, 2)), (16, 64, 256, 512, 1024)))
IDS = [f"{r}x{r}{' stride 2' * (step - 1)}, {c}" for (r, step), c in LAYERS]
layers = pytest.mark.parametrize(("size", "channels"), LAYERS, ids=IDS)


def test_these_are_the_layers_of_the_table(accuracy: ModuleType) -> None:
    assert list(itertools.product(accuracy.FILTERS, accuracy.CHANNELS)) == LAYERS


@layers
def test_high_keeps_its_bound(accuracy: ModuleType, size: tuple[int, int], channels: int) -> None:
    found = accuracy.layer(*size, channels)
    assert found.errors["high"] <= 1e-5
    assert found.same  # bit by bit on contiguous and channels_last tensors


@layers
def test_highest_is_as_exact_as_torch(accuracy: ModuleType, size: tuple[int, int], channels: int) -> None:
    found = accuracy.layer(*size, channels)
    assert "direct" in found.kernels["highest"]
    assert found.errors["highest"] <= 2 * found.errors["torch"], found.errors


@pytest.mark.parametrize("depth", (4, 8, 16))
def test_errors_of_many_layers(accuracy: ModuleType, depth: int) -> None:
    found = accuracy.depth_errors(depth)
    assert found["high"] <= 1e-5
    assert found["highest"] <= 2 * found["torch"], found


def test_no_prediction_changes_with_the_contrast(accuracy: ModuleType) -> None:
    """Zero-bias networks on the embedded digits, as initialised and trained; a near-tie of two logits is free."""
    pytest.importorskip("sklearn")
    from zbkernels.data.digits import load_digits

    images = load_digits().test.images
    for name, model in accuracy.networks().items():
        for sums, changed in accuracy.prediction_changes(model, images).items():
            assert all(change.margin < 1e-5 for change in changed), (name, sums, changed)
            assert len(changed) <= 10, (name, sums, changed)


def test_a_changed_prediction_is_found(accuracy: ModuleType) -> None:
    import torch

    def biased(images: torch.Tensor) -> torch.Tensor:
        """Logits (mean of the image, 0.2): the second wins as soon as the contrast is low."""
        mean = images.flatten(1).mean(1)
        return torch.stack([mean, torch.full_like(mean, 0.2)], 1)

    bright, dark = torch.ones(1, 1, 8, 8), torch.zeros(1, 1, 8, 8)
    found = accuracy.changes(biased, torch.cat([bright, dark]))
    assert {(c.image, c.before, c.after) for c in found} == {(0, 0, 1)}
    assert [c.scalar for c in found] == [s for s in accuracy.SCALARS if s < 0.2]
    assert found[0].margin == pytest.approx(0.8)
