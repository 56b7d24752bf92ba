"""Averages over units and over ensembles: the measures, and the experiment ``ergodic``."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from zbkernels.experiments import runner
from zbkernels.experiments.exchangeability import ergodic, ergodic_claims
from zbkernels.experiments.exchangeability.ergodic_measures import (
    ANGLE,
    IMAGES,
    POSITIVE,
    ZERO_SUM,
    averages,
    fixed_pairs,
    measure,
)
from zbkernels.experiments.progress import Progress
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE

pytestmark = pytest.mark.usefixtures("one_thread")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kind", [ZERO_SUM, POSITIVE])
def test_fixed_pairs_have_unit_length_and_the_angle(kind: str) -> None:
    x, y = fixed_pairs(30, 5, kind, generator())
    ones = torch.ones(5, dtype=torch.float64)
    torch.testing.assert_close(x.norm(dim=1), ones)
    torch.testing.assert_close(y.norm(dim=1), ones)
    torch.testing.assert_close((x * y).sum(1), math.cos(ANGLE) * ones)
    if kind == ZERO_SUM:
        torch.testing.assert_close(torch.stack([x, y]).sum(2), torch.zeros(2, 5, dtype=torch.float64))
    else:
        assert float(x.min()) >= 0


def test_averages_are_moments_of_the_products() -> None:
    w = torch.randn(6, 5, 7, generator=generator())
    x, y = fixed_pairs(7, 1, POSITIVE, generator())
    p = (w.double() @ x[0]).clamp_min(0) * (w.double() @ y[0]).clamp_min(0)
    found, k, mean = averages(w, x, y), p.mean(1), float(p.mean())
    assert found["spread"] == pytest.approx(float(k.std()) / mean)
    assert found["kernel"] == pytest.approx((k / mean).tolist(), rel=1e-5)
    # The law of total variance, each side estimated without bias: Var K = Var P/n + (1 - 1/n) Cov.
    n, variance = 5, (found["spread"] * mean) ** 2
    want = (found["unit"] / n + (1 - 1 / n) * found["covariance"]) * mean**2
    assert variance == pytest.approx(want, rel=1e-9)
    assert found["effect"] == pytest.approx(n * variance / (found["unit"] * mean**2))


def test_independent_equal_and_mixed_units() -> None:
    g = generator(1)
    x, y = fixed_pairs(9, 4, POSITIVE, g)
    w = torch.randn(2000, 8, 9, generator=g)
    own = averages(w, x, y)
    assert own["effect"] == pytest.approx(1, abs=0.12) and abs(own["covariance"]) < 0.05
    assert 0.2 < own["single"] < 3 and own["spread_of_spread"] < 0.05 * own["spread"]
    same = averages(w[:, :1].expand(-1, 8, -1), x, y)
    assert same["effect"] == pytest.approx(8, rel=1e-2)
    scale = torch.tensor([0.5, 1.5]).repeat(1000)[:, None, None]
    mixed = averages(scale * w, x, y)  # K is A² times its own: Cov P/(E P)² = Var A²/(E A²)² = 0.8²
    assert mixed["covariance"] == pytest.approx(0.64, abs=0.1)
    assert mixed["cosine"] == pytest.approx(own["cosine"], rel=1e-6)
    with pytest.raises(ValueError, match=r"two networks of two units, got \[2000, 1, 9\]"):
        averages(w[:, :1], x, y)
    with pytest.raises(ValueError, match="finite weights and pairs at which some unit is on"):
        averages(w.abs(), -x.abs(), y)


def test_silent_networks_are_left_out_of_the_normalised_kernel() -> None:
    x, y = fixed_pairs(9, 1, POSITIVE, generator())
    w = torch.randn(50, 8, 9, generator=generator(2))
    with_silent = torch.cat([w, -torch.ones(1, 8, 9)])
    assert averages(with_silent, x, y)["cosine"] == pytest.approx(averages(w, x, y)["cosine"])


def test_measuring_takes_the_second_layer_where_it_is_as_wide() -> None:
    x = torch.rand(12, 6, generator=generator())
    common: dict[str, Any] = {"seeds": range(6), "stops": (0, 2), "batch": 4, "pairs": 3}
    wide = measure("adam", 1e-3, (6, 20, 20, 6), x, **common)
    assert [row["step"] for row in wide] == [0, 2] and set(wide[0]) == {
        "step",
        "loss",
        IMAGES,
        ZERO_SUM,
        POSITIVE,
    }
    narrow = measure("adam", 1e-3, (6, 20, 2, 6), x, **common)
    assert set(narrow[0]) == {"step", "loss", IMAGES}
    assert narrow[0][IMAGES] == wide[0][IMAGES]
    doubled = measure("adam", 1e-3, (6, 20, 2, 6), x, **common, scales=torch.full((6,), 2.0))
    assert doubled[0][IMAGES]["spread"] == pytest.approx(wide[0][IMAGES]["spread"], rel=1e-6)


def test_a_slope_is_an_exponent() -> None:
    assert ergodic_claims.slope([(16, 3.0), (32, 3 / math.sqrt(2)), (64, 1.5)]) == pytest.approx(-0.5)


def start(out: Path) -> Path:
    return runner.run("ergodic", preset="smoke", out=out, progress=Progress(Console(quiet=True)))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tmp_path_factory.mktemp("ergodic"))


@pytest.fixture(scope="module")
def metrics(finished: Path) -> dict[str, Any]:
    return json.loads((finished / "metrics.json").read_text())


def verdict(metrics: dict[str, Any], part: str) -> str:
    (found,) = [v for v in ergodic_claims.verdicts(metrics) if part in v.claim]
    return found.verdict


def test_smoke_run(finished: Path, metrics: dict[str, Any]) -> None:
    names = sorted(path.name for path in finished.iterdir() if path.is_file())
    assert names == ["config.json", "figure.png", "metrics.json", "table.md"]
    for part in (
        "Before training",
        "of zero sum",
        "One fixed unit",
        "keep a spread",
    ):
        assert verdict(metrics, part) == HOLDS, part
    text = (finished / "table.md").read_text()
    assert all(line.count("|") == 4 for line in text.split("## Spread")[0].splitlines() if line[:1] == "|")
    assert [(case["kind"], case["rule"]) for case in metrics["cases"]] == [
        *(("equal", name) for name in ("sgd", "adam", "rmsprop", "nadam")),
        ("narrow", "adam"),
        ("mixed", "sgd"),
    ]


def test_a_run_cut_off_takes_up_what_is_there(
    finished: Path, metrics: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (finished / "metrics.json").unlink()
    (finished / "units/mixed-sgd-32/result.json").unlink()
    plain, calls = ergodic.measure, []
    monkeypatch.setattr(ergodic, "measure", lambda *a, **k: calls.append(a) or plain(*a, **k))
    assert json.loads((start(finished.parent) / "metrics.json").read_text()) == metrics
    assert len(calls) == 1


def test_verdicts_follow_the_metrics(metrics: dict[str, Any]) -> None:
    def changed(
        kind: str, key: str, law: Callable[[int], float], steps: int | None = None, error: float = 0.01
    ) -> dict[str, Any]:
        copied = copy.deepcopy(metrics)
        for case in copied["cases"]:
            for found in case["widths"] if case["kind"] == kind else ():
                for row in found["rows"]:
                    for place in ergodic_claims.PLACES:
                        if place in row and steps in (None, row["step"]):
                            row[place][key] = law(found["width"])
                            if key == "spread":
                                row[place]["spread_of_spread"] = error * row[place][key]
        return copied

    last = metrics["stops"][-1]
    assert verdict(changed("equal", "spread", lambda n: n**-0.2, 0), "Before training") == FAILS
    assert verdict(changed("equal", "spread", lambda n: n**-0.5, 0), "Before training") == HOLDS
    for place in ("of zero sum", "of one sign", "first layer, images"):
        assert verdict(changed("equal", "spread", lambda n: n**-0.1, last), place) == FAILS
        assert verdict(changed("equal", "spread", lambda n: n**-0.4, last), place) == HOLDS
        flat = changed("equal", "spread", lambda n: min(n, 32) ** -1.0, last)  # steep, but not at the end
        assert verdict(flat, place) == FAILS
        unsure = changed("equal", "spread", lambda n: min(n, 32) ** -1.0, last, error=0.3)
        assert (
            verdict(unsure, place) == NOT_TESTABLE
        )  # at the end it may fall as before, for all that is known
    assert verdict(changed("equal", "effect", lambda n: 1 - 4 / n, last), "depend on each other") == HOLDS
    assert verdict(changed("equal", "effect", lambda n: 1.0, last), "depend on each other") == FAILS
    assert verdict(changed("equal", "single", lambda n: 9.0), "One fixed unit") == FAILS
    assert verdict(changed("mixed", "spread", lambda n: n**-0.5), "keep a spread") == FAILS
    assert verdict(changed("mixed", "cosine", lambda n: 0.3), "normalised kernel") == FAILS
    for effect, wanted in ((3.0, HOLDS), (1.0, FAILS)):
        assert (
            verdict(changed("narrow", "effect", lambda n, e=effect: e, last), "narrow next layer") == wanted
        )
    without = copy.deepcopy(metrics)
    without["cases"] = [case for case in without["cases"] if case["kind"] != "narrow"]
    assert verdict(without, "narrow next layer") == NOT_TESTABLE


def test_the_error_of_a_slope_is_that_of_repeated_measurements() -> None:
    widths, generator = (16, 32, 64, 128), torch.Generator().manual_seed(0)
    true = [(n, n**-0.5) for n in widths]
    errors = [(n, 0.02 * k * value) for k, (n, value) in enumerate(true, 1)]
    noise = torch.randn(4000, len(widths), generator=generator, dtype=torch.float64)
    slopes = [
        ergodic_claims.slope(
            [(n, v + e * float(z)) for (n, v), (_, e), z in zip(true, errors, row, strict=True)]
        )
        for row in noise
    ]
    found = torch.tensor(slopes).std().item()
    assert ergodic_claims.slope_error(true, errors) == pytest.approx(found, rel=0.05)
