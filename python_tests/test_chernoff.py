"""The matrix Chernoff bound of the thesis, the spectra it is held to, and the experiment on both."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from zbkernels.data import load
from zbkernels.experiments import chernoff, chernoff_claims, runner
from zbkernels.experiments.chernoff_bound import SIDES, probability, rate, width_needed
from zbkernels.experiments.chernoff_spectrum import NORMAL, SIGNS, Spectrum, first_images, zeros_and_ones
from zbkernels.experiments.progress import Progress
from zbkernels.infinite import ntk
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("side", SIDES)
@settings(max_examples=50, deadline=None)
@given(delta=st.floats(0.01, 0.99), kappa=st.floats(1, 1e5), width=st.floats(1, 1e6), n=st.integers(1, 10**5))
def test_the_bound_is_the_printed_formula(
    side: str, delta: float, kappa: float, width: float, n: int
) -> None:
    """Equations 38 and 39, written as they are printed."""
    signed = -delta if side == "lower" else delta
    bracket = math.exp(signed) / (1 + signed) ** (1 + signed)
    assert probability(n, width, kappa, delta, side) == pytest.approx(
        n * bracket ** (width / kappa), rel=1e-6
    )
    asked = width_needed(n, kappa, delta, 0.5, side)
    assert probability(n, asked, kappa, delta, side) == pytest.approx(0.5, rel=1e-6)


def test_the_bound_holds_for_sums_of_which_the_law_is_known() -> None:
    """n = 1, X_k = 0 or R with even chances: a binomial sum, so that the tail is known exactly."""
    m, r = 40, 1 / 20  # the mean of the sum is 1
    for delta in (0.2, 0.5, 0.8):
        below = sum(math.comb(m, k) for k in range(m + 1) if k * r <= 1 - delta + 1e-12) / 2**m
        above = sum(math.comb(m, k) for k in range(m + 1) if k * r >= 1 + delta - 1e-12) / 2**m
        assert below <= math.exp(-rate(delta, "lower") / r)
        assert above <= math.exp(-rate(delta, "upper") / r)


@pytest.fixture(scope="module", params=["relu", "erf:2"])
def spectrum(request: pytest.FixtureRequest) -> Spectrum:
    return Spectrum(zeros_and_ones(load("digits").train, 12), request.param)


def test_the_limit_is_the_kernel_of_the_package(spectrum: Spectrum) -> None:
    x = spectrum.inputs.train
    want = ntk(x * x.shape[1] ** 0.5, activation=spectrum.activation, w_std=1.0, train="first")
    torch.testing.assert_close(spectrum.limit[:12], want, rtol=0, atol=1e-12)
    whitened = spectrum.whitened(spectrum.limit[:12])
    torch.testing.assert_close(whitened, torch.eye(12, dtype=torch.float64), rtol=0, atol=1e-9)
    coordinates = spectrum.coordinates.double()
    torch.testing.assert_close((coordinates @ coordinates.T)[:, :12], spectrum.products, rtol=0, atol=1e-6)


def test_a_trial_is_the_sum_of_the_units_kernels(spectrum: Spectrum) -> None:
    """Equations 34 and 35, unit by unit, from the same draws; and the eigenvalues by H∞^(-1/2) itself."""
    (found,) = spectrum.trial((16,), SIGNS, torch.Generator().manual_seed(5))
    slopes = spectrum.slopes(16, torch.Generator().manual_seed(5))[:12].double()
    total = sum(torch.diag(s) @ spectrum.products[:12] @ torch.diag(s) for s in slopes.T) / 16
    values, vectors = torch.linalg.eigh(spectrum.limit[:12])
    root = vectors @ torch.diag(values**-0.5) @ vectors.T
    want = torch.linalg.eigvalsh(root @ total @ root)
    assert (found["low"], found["high"]) == pytest.approx((float(want[0]), float(want[-1])), rel=1e-5)
    assert found["middle"] == pytest.approx(float(want.mean()), rel=1e-5)
    assert found["smallest"] == pytest.approx(float(torch.linalg.eigvalsh(total)[0]), rel=1e-4)


@pytest.mark.parametrize("readout", [SIGNS, NORMAL])
def test_a_wide_layer_is_near_the_limit(spectrum: Spectrum, readout: str) -> None:
    few, many = spectrum.trial((64, 60_000), readout, torch.Generator().manual_seed(0))
    assert few["low"] < 0.8 and few["high"] > 1.2
    assert 0.9 < many["low"] < 1 < many["high"] < 1.1
    assert many["error"] < 0.02 < few["error"]


def test_inputs_are_those_of_the_thesis() -> None:
    split = load("digits").train
    found = zeros_and_ones(split, 10)
    assert found.targets.tolist() == [0.0] * 5 + [1.0] * 5
    zeros = (split.labels == 0).nonzero()[:10, 0]
    images = torch.nn.functional.normalize(split.images.flatten(1).double(), dim=1)
    torch.testing.assert_close(found.train[:5], images[zeros[:5]])
    torch.testing.assert_close(found.test[:5], images[zeros[5:]])
    first = first_images(split, 7)
    assert first.targets.tolist() == (split.labels[:7] % 2).tolist()
    torch.testing.assert_close(first.test, images[7:14])


# The experiment


def start(out: Path, **options: Any) -> Path:
    return runner.run(
        "chernoff",
        preset="smoke",
        out=out,
        progress=Progress(Console(quiet=True)),
        variants=("relu",),
        **options,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tmp_path_factory.mktemp("chernoff"))


@pytest.fixture(scope="module")
def metrics(finished: Path) -> dict[str, Any]:
    return json.loads((finished / "metrics.json").read_text())


def verdict(metrics: dict[str, Any], part: str) -> str:
    (found,) = [v for v in chernoff_claims.verdicts(metrics) if part in v.claim]
    return found.verdict


def test_smoke_run(finished: Path, metrics: dict[str, Any]) -> None:
    names = sorted(path.name for path in finished.iterdir() if path.is_file())
    assert names == ["config.json", "figure.png", "metrics.json", "table.md"]
    for part in ("(36)", "(37)", "E(H_k)", "(38)", "(39)", "(41, 42)", "more than ten times", "c log(n)"):
        assert verdict(metrics, part) == HOLDS, part
    assert verdict(metrics, "N(0, 1/m)") == FAILS
    assert verdict(metrics, "scales as n/d") == NOT_TESTABLE
    first = metrics["cases"][0]
    assert [len(row["low"]) for row in first["widths"]] == [40] * 7 + [8] * 3
    text = (finished / "table.md").read_text()
    assert all(line.count("|") == 4 for line in text.split("## What")[0].splitlines() if line[:1] == "|")


def test_a_run_cut_off_takes_up_what_is_there(
    metrics: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, plain = 0, Spectrum.trial

    def cut(self: Spectrum, *rest: Any) -> Any:
        nonlocal drawn
        drawn += 1
        if drawn == 70:
            raise KeyboardInterrupt
        return plain(self, *rest)

    monkeypatch.setattr(Spectrum, "trial", cut)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path)
    drawn = 100
    assert json.loads((start(tmp_path) / "metrics.json").read_text()) == metrics
    assert drawn == 100 + 100 - 60  # three of the units, of 20 trials each, were there


def test_verdicts_follow_the_metrics(metrics: dict[str, Any]) -> None:
    def changed(make: Any) -> dict[str, Any]:
        copied = copy.deepcopy(metrics)
        make(copied["cases"])
        return copied

    def single(key: str, value: float) -> dict[str, Any]:
        return changed(lambda cases: cases[0]["single"].update({key: value}))

    assert verdict(single("plain", 20.0), "(36)") == FAILS
    assert verdict(single("whitened", 600.0), "(37)") == FAILS
    off = changed(lambda cases: cases[0]["widths"][0].update(middle=[1.5, 1.6, 1.4]))
    assert verdict(off, "E(H_k)") == FAILS
    broken = changed(lambda cases: cases[0]["widths"][-1].update(low=[0.1] * 8, high=[3.0] * 8))
    broken["cases"][0]["kappa"] = 50.0
    assert verdict(broken, "(38)") == verdict(broken, "(39)") == FAILS
    assert verdict(changed(lambda cases: cases[0].update(kappa=5.0)), "more than ten times") == FAILS
    low = changed(lambda cases: cases[0]["widths"][-1].update(smallest=[0.01] * 8))
    assert verdict(low, "(41, 42)") == FAILS

    def far(cases: list[dict[str, Any]]) -> None:
        for row in cases[0]["widths"]:
            row["error"] = [0.5] * len(row["error"])

    assert verdict(changed(far), "close to the IEIN") == FAILS

    def larger(cases: list[dict[str, Any]]) -> None:
        more = copy.deepcopy(cases[-1])
        more.update(inputs=80, norm2=2 * cases[-1]["norm2"])
        cases.append(more)

    two = changed(larger)
    assert verdict(two, "scales as n/d") == FAILS  # it grows as n, but 45 times as large
    assert verdict(two, "md ≥ c'n") == HOLDS
    for case in two["cases"]:
        case["norm2"] /= 20
    assert verdict(two, "scales as n/d") == HOLDS


def test_widths_are_found_between_those_drawn() -> None:
    rows = [{"width": w, "low": [1 - 4 / w**0.5] * 20, "high": [1 + 8 / w**0.5] * 20} for w in (32, 128, 512)]
    case = {"inputs": 10, "kappa": 100.0, "widths": rows}
    assert chernoff_claims.width_measured(case, 0.5, "lower") == pytest.approx(64)
    assert chernoff_claims.width_measured(case, 0.5, "upper") == pytest.approx(256)
    assert chernoff_claims.width_measured(case, 0.9, "lower") is None
    assert chernoff_claims.width_measured(case, 0.1, "lower") is None
    asked = width_needed(10, 100.0, 0.5, chernoff_claims.CHANCE, "lower")
    assert chernoff_claims.looseness(case, 0.5, "lower") == pytest.approx(asked / 64)


def test_the_settings_of_the_paper_preset_reach_the_thesis_inputs() -> None:
    assert any(m.kind == chernoff.PAIR and m.inputs == 100 for m in chernoff.PLANS["paper"])
