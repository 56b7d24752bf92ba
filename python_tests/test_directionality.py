"""Nearest images by direction and by distance, angles between images, and the experiment on both."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from zbkernels.data import DataError, Split
from zbkernels.experiments import directionality, directionality_claims, runner
from zbkernels.experiments.angles import (
    BIN,
    Angles,
    by_class_mean,
    median,
    nearer_share,
    obtuse_share,
    resultant,
)
from zbkernels.experiments.contrast import SCALARS
from zbkernels.experiments.direction_pictures import project_two_classes
from zbkernels.experiments.neighbours import (
    CENTRED,
    DIRECTION,
    DISTANCE,
    RULES,
    Accuracies,
    products,
    recheck,
)
from zbkernels.experiments.progress import Progress
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, WITHIN_SPREAD

pytestmark = pytest.mark.usefixtures("one_thread")


def images(count: int, seed: int, classes: int = 3) -> Split:
    """Random images [count, 1, 4, 5] of pixels in (0, 1), each class brighter in other places."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    pixels = torch.rand(count, 1, 4, 5, generator=generator, dtype=torch.float64)
    for label in range(classes):
        pixels[labels == label, :, label] *= 3
    return Split(pixels / 3, labels)


def expected_nearest(train: torch.Tensor, test: torch.Tensor, rule: str, scalar: float) -> torch.Tensor:
    """As the rules are defined, without the formulas that share a product."""
    x, y = scalar * test.flatten(1), train.flatten(1)
    if rule == DISTANCE:
        return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
    if rule == CENTRED:
        x, y = x - y.mean(0), y - y.mean(0)
    return torch.nn.functional.cosine_similarity(x[:, None], y[None], dim=2).argmax(1)


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), scalar=st.sampled_from(SCALARS), block=st.integers(1, 40))
def test_nearest_images_are_those_of_the_definition(rule: str, seed: int, scalar: float, block: int) -> None:
    train, test = images(50, seed), images(30, seed + 1)
    found = products(train.images.flatten(1), test.images.flatten(1), block)
    nearest = torch.cat([part.nearest(rule, scalar) for part in found])
    assert nearest.equal(expected_nearest(train.images, test.images, rule, scalar))


def test_accuracies_are_those_of_the_nearest_labels() -> None:
    train, test = images(60, 0), images(31, 1)
    found = Accuracies(train, test, RULES, (1.0, 0.1))
    for part in products(train.images.flatten(1), test.images.flatten(1), 7):
        found.add(part)
    rows = found.result()
    assert [len(rows[rule]) for rule in RULES] == [1, 2, 2]
    for rule in RULES:
        for row in rows[rule]:
            nearest = expected_nearest(train.images, test.images, rule, row["scalar"])
            labels = train.labels[nearest]
            assert row["accuracy"] == pytest.approx(100 * (labels == test.labels).double().mean().item())
            assert row["commonest_share"] == pytest.approx(100 * labels.bincount().max().item() / 31)
    assert rows[DISTANCE][0]["accuracy"] > 80 > rows[DISTANCE][1]["accuracy"]


def test_directions_do_not_change_with_the_contrast() -> None:
    train, test = images(60, 0), images(20, 1)
    found = recheck(train, test, SCALARS)
    assert found == {"images": 20, "scalars": 11, "changed": 0, "gap": None}


def test_a_direction_that_does_change_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a constant added the copies are no copies: a broken product must be seen."""
    from zbkernels.experiments import neighbours

    train, test = images(60, 0), images(20, 1)
    plain = neighbours.products
    shift = torch.linspace(0, 1, 20, dtype=torch.float64)
    monkeypatch.setattr(neighbours, "products", lambda y, x, block: plain(y, x + shift, block))
    found = neighbours.recheck(train, test, (1.0, 0.01))
    assert found["changed"] > 0
    assert found["gap"] > 1e-4


def test_bad_images_are_refused() -> None:
    train = images(6, 0).images.flatten(1)
    black = train.clone()
    black[2:4] = 0
    with pytest.raises(ValueError, match="got 2 black training images"):
        next(products(black, train))
    with pytest.raises(ValueError, match="got 2 black test images"):
        next(products(train, black))
    with pytest.raises(ValueError, match=r"products: expected images .* got \[6, 20\] and \[6, 19\]"):
        next(products(train, train[:, 1:]))
    with pytest.raises(ValueError, match="nearest: expected a rule of direction"):
        next(products(train, train)).nearest("angle", 1.0)


def test_angles_are_those_of_the_definition() -> None:
    train, test = images(40, 2), images(24, 3)
    found = Angles(train, test)
    for part in products(train.images.flatten(1), test.images.flatten(1), 5):
        found.add(part)
    result = found.result()
    same = test.labels[:, None] == train.labels
    mean = train.images.flatten(1).mean(0)
    for kind, offset in (("raw", torch.zeros_like(mean)), ("centred", mean)):
        x, y = test.images.flatten(1) - offset, train.images.flatten(1) - offset
        angles = torch.nn.functional.cosine_similarity(x[:, None], y[None], dim=2).acos().rad2deg()
        for part, chosen in (("same", same), ("different", ~same)):
            expected, _ = np.histogram(angles[chosen].numpy(), bins=360, range=(0, 180))
            assert result[kind][part] == expected.tolist()
        if kind == "raw":
            nearest = angles.masked_fill(~same, 999).amin(1).sort().values
            assert result["nearest_own"][1] == pytest.approx(float(nearest[round(0.5 * 23)]), rel=1e-5)
            nearest = angles.masked_fill(same, 999).amin(1).sort().values
            assert result["nearest_other"] == pytest.approx(
                [float(nearest[round(q * 23)]) for q in (0.1, 0.5, 0.9)], rel=1e-5
            )
    to_mean = torch.nn.functional.cosine_similarity(train.images.flatten(1), mean[None]).acos().rad2deg()
    assert result["to_mean"][3] == pytest.approx(float(to_mean.max()))
    assert result["centred"]["resultant"] < result["raw"]["resultant"] < 1


def test_measures_of_angles() -> None:
    def bins(*angles: float) -> list[int]:
        return np.histogram(angles, bins=360, range=(0, 180))[0].tolist()

    assert median(bins(10, 20, 30)) == 20 + BIN / 2
    assert nearer_share(bins(10, 20), bins(30, 40)) == 1
    assert nearer_share(bins(30, 40), bins(10, 20)) == 0
    assert nearer_share(bins(10, 30), bins(20, 20)) == 0.5
    assert nearer_share(bins(10), bins(10)) == 0.5
    assert obtuse_share(bins(10, 90.0), bins(90.6, 170)) == 50
    assert resultant(torch.tensor([[1.0, 0], [3.0, 0]])) == pytest.approx(1)
    assert resultant(torch.tensor([[1.0, 0], [-3.0, 0]])) == pytest.approx(0)
    split = Split(torch.tensor([[1.0, 0], [0.9, 0.1], [0, 1.0]]).view(3, 1, 1, 2), torch.tensor([4, 4, 7]))
    assert by_class_mean(split, split) == 100
    assert by_class_mean(split, Split(split.images, torch.tensor([4, 7, 7]))) == pytest.approx(200 / 3)


def test_the_projection_keeps_rays() -> None:
    train, test = images(60, 0), images(60, 1)
    found = project_two_classes(train, test, ("a", "b", "c"))
    darker = project_two_classes(train, Split(test.images / 4, test.labels), ("a", "b", "c"))
    assert len(set(found["classes"])) == 2
    assert 0 < found["apart"] < 90
    for side, dark in zip(found["sides"], darker["sides"], strict=True):
        np.testing.assert_allclose(np.array(side["points"]) / 4, dark["points"], atol=1e-3)
        assert side["wedge"] == pytest.approx(dark["wedge"], rel=1e-6)
        assert side["at"] in side["points"]
    (_, left, _), (_, right, _) = (side["wedge"] for side in found["sides"])
    assert left < 0 < right  # the bisector of the two means points up


# The experiment


def quiet() -> Progress:
    return Progress(Console(quiet=True))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runner.run("directionality", preset="smoke", out=tmp_path_factory.mktemp("dir"), progress=quiet())


@pytest.fixture(scope="module")
def metrics(finished: Path) -> dict[str, Any]:
    return json.loads((finished / "metrics.json").read_text())


def verdict(metrics: dict[str, Any], part: str) -> str:
    return next(v.verdict for v in directionality_claims.verdicts(metrics) if part in v.claim)


def test_smoke_run(finished: Path, metrics: dict[str, Any]) -> None:
    names = sorted(path.name for path in finished.iterdir() if path.is_file())
    assert names == ["config.json", "figure.png", "metrics.json", "table.md"]
    text = (finished / "table.md").read_text()
    assert "scikit-learn digits" in text
    assert (text.count("**holds**"), text.count(f"**{FAILS}**")) == (6, 1)
    assert verdict(metrics, "One round cone") == FAILS
    (digits,) = metrics["sets"]
    assert digits["accuracies"][DIRECTION][0]["accuracy"] > 95 > digits["accuracies"][DISTANCE][1]["accuracy"]
    assert sum(digits["angles"]["raw"]["same"]) + sum(digits["angles"]["raw"]["different"]) == 1437 * 360


def test_the_figure_has_its_panels(finished: Path) -> None:
    from matplotlib.image import imread

    pixels = (imread(finished / "figure.png")[..., :3] * 255).round().astype(np.int16)
    assert pixels.shape[0] > 1000
    for wanted in ((0xC2, 0x57, 0x1A), (0x1F, 0x6F, 0x8B), (0x7A, 0x5A, 0xA6)):  # the three rules
        assert (np.abs(pixels - np.array(wanted, np.int16)).max(2) <= 12).sum() > 100


def test_a_run_cut_off_takes_up_what_is_there(
    metrics: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(directionality, "project_two_classes", cut)
    with pytest.raises(KeyboardInterrupt):
        runner.run("directionality", preset="smoke", out=tmp_path, progress=quiet())
    monkeypatch.undo()
    monkeypatch.setattr(directionality, "Angles", cut)  # that part is done and is not done again
    folder = runner.run("directionality", preset="smoke", out=tmp_path, progress=quiet())
    assert json.loads((folder / "metrics.json").read_text()) == metrics


def test_image_sets_that_are_absent_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits, mnist = ("digits", 50), ("mnist", 50)
    for sets in ((digits, mnist), (mnist, digits)):
        monkeypatch.setitem(directionality.PLANS, "smoke", directionality.Plan(sets, 100, 10))
        folder = runner.run(
            "directionality",
            preset="smoke",
            data=tmp_path,
            out=tmp_path / sets[0][0],
            variants=(DIRECTION,),
            progress=quiet(),
        )
        found = json.loads((folder / "metrics.json").read_text())
        assert (found["absent"], [part["name"] for part in found["sets"]]) == (["mnist"], ["digits"])
        assert "left out: mnist" in (folder / "table.md").read_text()
        assert found["sets"][0]["test_images"] == 50
        assert verdict(found, "By distance") == verdict(found, "position does") == NOT_TESTABLE
    monkeypatch.setitem(
        directionality.PLANS, "smoke", directionality.Plan((mnist, ("composite", None)), 100, 10)
    )
    with pytest.raises(DataError):
        runner.run("directionality", preset="smoke", data=tmp_path, out=tmp_path / "none", progress=quiet())


def test_verdicts_follow_the_metrics(metrics: dict[str, Any]) -> None:
    def changed(make: Any) -> dict[str, Any]:
        copied = copy.deepcopy(metrics)
        make(copied["sets"][0])
        return copied

    def rule(name: str, index: int, **values: float) -> dict[str, Any]:
        return changed(lambda found: found["accuracies"][name][index].update(values))

    assert verdict(changed(lambda f: f["recheck"].update(changed=1, gap=1e-7)), "keeps its class") == HOLDS
    assert verdict(changed(lambda f: f["recheck"].update(changed=1, gap=0.1)), "keeps its class") == FAILS
    assert verdict(rule(DIRECTION, 0, accuracy=50.0), "as well as position") == FAILS

    def spread_out(found: dict[str, Any]) -> None:
        found["accuracies"][DIRECTION][0]["accuracy"] -= 1
        base = found["subsets"][0]
        found["subsets"] = [copy.deepcopy(base) for _ in range(3)]
        for part, shift in zip(found["subsets"], (-1, 0, 1), strict=True):
            part["accuracies"][DIRECTION][0]["accuracy"] += shift

    assert verdict(changed(spread_out), "as well as position") == WITHIN_SPREAD
    nearer = changed(lambda f: f["angles"]["nearest_own"].__setitem__(1, 60.0))
    assert verdict(nearer, "angles within a class") == FAILS
    assert verdict(changed(lambda f: f["angles"].update(by_class_mean=98.0)), "One round cone") == HOLDS
    assert verdict(rule(DISTANCE, -1, commonest_share=99.0), "By distance") == FAILS
    assert verdict(rule(CENTRED, -1, accuracy=97.0), "After the mean") == FAILS
    assert verdict(changed(lambda f: f["angles"]["to_mean"].__setitem__(3, 95.0)), "one cone about") == FAILS
    still = changed(lambda f: f["angles"]["centred"].update(resultant=0.5))
    assert verdict(still, "one cone about") == FAILS


def test_mnist(data_root: Path, tmp_path: Path) -> None:
    """The first images of MNIST: direction and distance alike, and only one of them at a tenth of the contrast."""
    from zbkernels import data

    some = data.load("mnist", data_root).subset(3_000, 300)
    found = Accuracies(some.train, some.test, (DIRECTION, DISTANCE), (1.0, 0.1))
    for part in products(some.train.images.flatten(1), some.test.images.flatten(1)):
        found.add(part)
    rows = found.result()
    assert min(rows[DIRECTION][0]["accuracy"], rows[DISTANCE][0]["accuracy"]) > 85
    assert rows[DISTANCE][1]["accuracy"] < 40
