"""The experiment ``exchangeability``: what it measures, its verdicts, and that it goes on where it was cut off."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from zbkernels.data import load
from zbkernels.exchangeability.optimizers import optimizer
from zbkernels.exchangeability.stacked_mlp import StackedMLP
from zbkernels.experiments import runner
from zbkernels.experiments.exchangeability import symmetry, symmetry_claims
from zbkernels.experiments.exchangeability.ensembles import shrunk, trained
from zbkernels.experiments.exchangeability.symmetry_measures import compare_permuted
from zbkernels.experiments.progress import Progress
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE

pytestmark = pytest.mark.usefixtures("one_thread")

CLAIMS = (
    "Observation 4 with (7)",
    "And it stays there",
    "leaves out does not commute",
    "inner layers are row and column",
    "first layer is exchangeable in its rows",
    "and is not in its columns",
    "last layer is exchangeable in its columns",
    "and is not in its rows",
    "Before training rows and columns",
    "data that tell the coordinates apart",
    "weaker than IID",
    "rows alone change the joint law",
    "One network can tell",
    "level is what it says",
    "it has power",
    "gives one unit longer steps",
)


def test_images_are_shrunk_to_means_of_squares() -> None:
    images = load("digits").train
    x = shrunk(images, 4)
    pixels, _ = images.batch(torch.arange(3))
    assert x.shape == (len(images), 16)
    assert float(x[2, 5]) == pytest.approx(float(pixels[2, 0, 2:4, 2:4].mean()))
    with pytest.raises(ValueError, match="a multiple of 3, got"):
        shrunk(images, 3)


def test_training_is_gradient_descent_on_seeded_batches_with_factors() -> None:
    x = torch.rand(20, 6, generator=torch.Generator().manual_seed(0))
    nets = [StackedMLP.he_normal((6, 5, 6), (1, 2)) for _ in range(3)]
    rule = optimizer("sgd", lr=0.1)
    stops = [
        list(trained(net, rule, x, (0, 3, 5), batch=4, seed=s))
        for net, s in zip(nets, (7, 7, 8), strict=True)
    ]
    assert [step for step, _ in stops[0]] == [0, 3, 5] and stops[0][0][1].shape == (2,)
    assert torch.equal(nets[0].weights[0], nets[1].weights[0])
    assert not torch.equal(nets[0].weights[0], nets[2].weights[0])
    net, plain = (StackedMLP.he_normal((6, 5, 6), (1, 2)) for _ in range(2))
    start = [w.clone() for w in net.weights]
    list(trained(net, rule, x, (1,), batch=0, seed=0, factors=[0.0, 3.0]))
    list(trained(plain, rule, x, (1,), batch=0, seed=0))
    assert torch.equal(net.weights[0], start[0])
    torch.testing.assert_close(
        net.weights[1] - start[1], 3 * (plain.weights[1] - start[1]), rtol=1e-4, atol=1e-6
    )


def test_what_commutes_differs_by_rounding_and_what_does_not_by_more() -> None:
    x = torch.rand(30, 6, generator=torch.Generator().manual_seed(0))
    found = compare_permuted(
        optimizer("rmsprop", lr=1e-3),
        (6, 7, 5, 6),
        x,
        (0, 1, 20),
        runs=2,
        batch=8,
        seed=0,
        dtype=torch.float64,
        bias=True,
        controls=True,
    )
    start, *later = found["rows"]
    assert start["permuted"] == start["inputs"] == start["uneven"] == 0 < start["rounded"] < 1e-15
    for row in later:
        assert row["permuted"] < 1e-14 and row["rounded"] < 1e-14
        assert min(row["inputs"], row["uneven"]) > 1e-4


def start(out: Path) -> Path:
    return runner.run("exchangeability", preset="smoke", out=out, progress=Progress(Console(quiet=True)))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tmp_path_factory.mktemp("exchangeability"))


@pytest.fixture(scope="module")
def metrics(finished: Path) -> dict[str, Any]:
    return json.loads((finished / "metrics.json").read_text())


def verdict(metrics: dict[str, Any], part: str) -> str:
    (found,) = [v for v in symmetry_claims.verdicts(metrics) if part in v.claim]
    return found.verdict


def test_smoke_run(finished: Path, metrics: dict[str, Any]) -> None:
    names = sorted(path.name for path in finished.iterdir() if path.is_file())
    assert names == ["config.json", "figure.png", "metrics.json", "table.md"]
    for part in (*CLAIMS[:1], *CLAIMS[2:10]):
        assert verdict(metrics, part) == HOLDS, part
    assert [found["name"] for found in metrics["ensembles"]] == [
        "start",
        "sgd",
        "adam",
        "rmsprop",
        "nadam",
    ]
    text = (finished / "table.md").read_text()
    assert all(line.count("|") == 4 for line in text.split("## Permuted")[0].splitlines() if line[:1] == "|")
    assert len(symmetry_claims.verdicts(metrics)) == len(CLAIMS)


def test_a_run_cut_off_takes_up_what_is_there(
    finished: Path, metrics: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    before = (finished / "units/power/result.json").read_text()
    (finished / "metrics.json").unlink()
    (finished / "units/power/result.json").unlink()
    monkeypatch.setattr(symmetry, "power", cut)
    with pytest.raises(KeyboardInterrupt):
        start(finished.parent)
    monkeypatch.undo()
    for name in ("compare_permuted", "all_tests", "planted_rule"):  # done, and not done again
        monkeypatch.setattr(symmetry, name, cut)
    assert json.loads((start(finished.parent) / "metrics.json").read_text()) == metrics
    assert (finished / "units/power/result.json").read_text() == before


def changed(metrics: dict[str, Any], make: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    copied = copy.deepcopy(metrics)
    make(copied)
    return copied


def every_layer(metrics: dict[str, Any], make: Callable[[str, dict[str, Any]], Any]) -> dict[str, Any]:
    def go(copied: dict[str, Any]) -> None:
        for found in copied["ensembles"]:
            for layer in found["layers"]:
                make(found["name"], layer)

    return changed(metrics, go)


def test_verdicts_follow_the_metrics(metrics: dict[str, Any]) -> None:
    low, high = 1e-4, 0.5

    def set_p(layer_number: int, side: str, p: float) -> dict[str, Any]:
        def make(_: str, layer: dict[str, Any]) -> None:
            if layer["layer"] == layer_number:
                layer[side]["p"] = p

        return every_layer(metrics, make)

    assert verdict(set_p(3, "rows", low), "inner layers are row") == FAILS
    assert verdict(set_p(1, "rows", low), "first layer is exchangeable") == FAILS
    assert verdict(set_p(1, "columns", high), "and is not in its columns") == FAILS
    assert verdict(set_p(4, "columns", low), "last layer is exchangeable") == FAILS
    assert verdict(set_p(4, "rows", high), "and is not in its rows") == FAILS
    assert verdict(set_p(2, "rows", low), "Before training") == FAILS
    for p, wanted in ((0.025, FAILS), (0.5, HOLDS)):
        rows = changed(
            metrics, lambda found, p=p: found["symmetric"].update(rows=[p] * 12, columns=[0.5] * 12)
        )
        assert verdict(rows, "tell the coordinates apart") == wanted

    def trained_only(key: str, p: float) -> dict[str, Any]:
        def make(name: str, layer: dict[str, Any]) -> None:
            if layer[key] is not None:
                layer[key] = high if name == "start" else p

        return every_layer(metrics, make)

    for key, part, otherwise in (
        ("entries", "weaker than IID", NOT_TESTABLE),
        ("linked", "change the joint law", FAILS),
    ):
        assert verdict(trained_only(key, low), part) == HOLDS
        assert verdict(trained_only(key, high), part) == otherwise
    from_the_start = every_layer(metrics, lambda _, layer: layer.update(entries=layer["entries"] and low))
    assert verdict(from_the_start, "weaker than IID") == FAILS

    def share(of_pixels: float) -> dict[str, Any]:
        def make(_: str, layer: dict[str, Any]) -> None:
            for side in ("rows", "columns"):
                pixels = symmetry_claims.is_of_pixels(metrics, layer["layer"], side)
                layer[side]["single"] = of_pixels if pixels else 0.05

        return every_layer(metrics, make)

    assert (
        verdict(share(0.6), "One network can tell") == HOLDS
        and verdict(share(0.06), "One network can tell") == FAILS
    )

    def distances(found: dict[str, Any], key: str, value: float) -> None:
        for one in found["permuted"]:
            for row in one["float64"]["rows"][1:]:
                if key in row:
                    row[key] = value

    far = changed(metrics, lambda found: distances(found, "permuted", 1e-3))
    assert verdict(far, "Observation 4 with") == verdict(far, "And it stays there") == FAILS
    near = changed(metrics, lambda found: distances(found, "permuted", 1e-17))
    assert verdict(near, "And it stays there") == HOLDS
    assert verdict(changed(metrics, lambda found: distances(found, "uneven", 1e-15)), "not commute") == FAILS

    def rejected(found: dict[str, Any], share: float, planted: bool) -> None:
        for row in found["power"]["rows"]:
            if (row["size"] > 0) == planted:
                row["rejected"] = share * row["trials"]

    assert verdict(changed(metrics, lambda found: rejected(found, 0.5, False)), "level is what") == FAILS
    assert verdict(changed(metrics, lambda found: rejected(found, 0.05, False)), "level is what") == HOLDS
    assert verdict(changed(metrics, lambda found: rejected(found, 0.8, True)), "it has power") == FAILS
    assert verdict(changed(metrics, lambda found: rejected(found, 1.0, True)), "it has power") == HOLDS
    for p, wanted in ((high, FAILS), (low, HOLDS)):
        rule = changed(metrics, lambda found, p=p: [row.update(p=p) for row in found["planted"]["rows"]])
        assert verdict(rule, "longer steps") == wanted
    assert (
        verdict(changed(metrics, lambda found: found["planted"]["rows"].clear()), "longer steps")
        == NOT_TESTABLE
    )


def test_the_smallest_size_found_from_which_on_all_are() -> None:
    assert symmetry_claims.detected([(0.0, 0.05), (0.1, 0.95), (0.2, 0.5), (0.4, 1.0)]) == 0.4
    assert symmetry_claims.detected([(0.0, 0.95), (0.1, 0.95), (0.2, 0.95)]) == 0.1
    assert symmetry_claims.detected([(0.0, 0.05), (0.1, 0.5)]) is None
