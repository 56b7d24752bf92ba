"""The least eigenvalue of H∞ from a float32 factor, the preprocessings, and the experiment on both."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor

from zbkernels.experiments import runner, spectra, spectra_claims
from zbkernels.experiments.base import ExperimentError
from zbkernels.experiments.least_eigenvalue import least_eigenvalue
from zbkernels.experiments.packed_cholesky import NotPositiveDefiniteError, PackedCholesky
from zbkernels.experiments.preprocessing import (
    PREPROCESSINGS,
    WHITENING,
    ZERO_MEAN,
    preprocess,
    squared_norm,
    whitened_in_float32,
)
from zbkernels.experiments.progress import Progress
from zbkernels.experiments.tangent_kernel import (
    largest_eigenvalue,
    nearest_pair,
    tangent_matvec,
    tangent_of,
    tangent_tile,
)
from zbkernels.infinite import ntk
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE

pytestmark = pytest.mark.usefixtures("one_thread")


def unit_rows(n: int, d: int, seed: int = 0) -> Tensor:
    """Rows of norm 1 [n, d] float64, all in one half-space, as images are."""
    x = torch.rand(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x / x.norm(dim=1, keepdim=True)


def kernel(x: Tensor) -> Tensor:
    """H∞ by the package's own kernel, float64."""
    return ntk(x * x.shape[1] ** 0.5, w_std=1.0, train="first")


# -- H∞ by tiles ----------------------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(n=st.integers(1, 30), d=st.integers(1, 8), block=st.integers(1, 12), seed=st.integers(0, 99))
def test_the_matvec_is_that_of_the_kernel(n: int, d: int, block: int, seed: int) -> None:
    x = unit_rows(n, d, seed)
    v = torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(tangent_matvec(x, v, block), kernel(x) @ v, rtol=0, atol=1e-12)


def test_cosines_beyond_one_count_as_one() -> None:
    assert tangent_of(torch.tensor([1.0 + 1e-6, 1, 0, -1 - 1e-6])).tolist() == pytest.approx(
        [0.5, 0.5, 0, 0], abs=1e-7
    )


def test_the_largest_eigenvalue_is_that_of_the_kernel() -> None:
    x = unit_rows(60, 30)
    exact = float(torch.linalg.eigvalsh(kernel(x))[-1])
    assert exact * (1 - 1e-6) < largest_eigenvalue(x) <= exact * (1 + 1e-12)


@pytest.mark.parametrize("block", [4, 7, 50])
def test_the_nearest_pair_is_that_of_all_pairs(block: int) -> None:
    x = unit_rows(23, 4)
    x[19] = x[5] + 1e-4
    x[19] /= x[19].norm()
    cosine, later, earlier = nearest_pair(x, block)
    assert {later, earlier} == {19, 5}
    assert cosine == pytest.approx(float(x[19] @ x[5]), abs=1e-14)


# -- the factor -----------------------------------------------------------------------------------------------


def tiles_of(x: Tensor, calls: list[Any] | None = None) -> Any:
    def tile(rows: tuple[int, int], columns: tuple[int, int]) -> Tensor:
        if calls is not None:
            calls.append((rows, columns))
        return tangent_tile(x, rows, columns)

    return tile


@pytest.mark.parametrize(("n", "block"), [(1, 4), (30, 30), (50, 16), (64, 16), (65, 16)])
def test_the_factor_solves_and_multiplies(n: int, block: int) -> None:
    x = unit_rows(n, 12)
    dense, factor = kernel(x), PackedCholesky(n, tiles_of(x.float()), block=block)
    v = torch.randn(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    scale = float(torch.linalg.matrix_norm(dense, 2))
    torch.testing.assert_close(factor.multiply(v), dense @ v, rtol=0, atol=n * scale * 1e-7)
    found = factor.solve((dense @ v).float()).double()
    own = torch.cholesky_solve((dense @ v).float(), torch.linalg.cholesky(dense.float())).double()
    assert float((found - v).norm()) <= 10 * max(float((own - v).norm()), 1e-6)


def test_a_factor_cut_off_goes_on(tmp_path: Path) -> None:
    x, path = unit_rows(50, 12).float(), tmp_path / "factor.bin"
    whole = PackedCholesky(50, tiles_of(x), block=16)

    def cut(done: int, of: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PackedCholesky(50, tiles_of(x), block=16, path=path, on_row=cut)
    calls: list[Any] = []
    again = PackedCholesky(50, tiles_of(x, calls), block=16, path=path)
    assert {rows for rows, _ in calls} == {(32, 48), (48, 50)}
    assert all(torch.equal(a, b) for a, b in zip(again.rows, whole.rows, strict=True))
    calls.clear()
    PackedCholesky(50, tiles_of(x, calls), block=20, path=path)  # other blocks: nothing there is of use
    assert len(calls) == 6


def test_a_full_disk_is_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ExperimentError, match=r"factor\.bin: 0\.0 GB for a Cholesky factor: No space left"):
        PackedCholesky(50, tiles_of(unit_rows(50, 12).float()), block=16, path=tmp_path / "factor.bin")
    assert not list(tmp_path.iterdir())


def test_a_matrix_that_is_not_positive_is_refused() -> None:
    dense = kernel(unit_rows(20, 5)).float()
    dense[11, 11] = 0
    with pytest.raises(NotPositiveDefiniteError, match="pivot 12 of 20"):
        PackedCholesky(20, lambda rows, columns: dense[slice(*rows), slice(*columns)], block=8)


# -- the least eigenvalue -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", PREPROCESSINGS)
def test_the_least_eigenvalue_is_the_dense_one(how: str) -> None:
    images = torch.rand(300, 1, 5, 8, generator=torch.Generator().manual_seed(2)).square()
    x, _ = preprocess(images, how)
    found, vector = least_eigenvalue(x, None, lambda text: None)
    exact = torch.linalg.eigvalsh(kernel(x))
    assert found["value"] == pytest.approx(float(exact[0]), abs=1e-10)
    assert found["next"] == pytest.approx(exact[1:4].tolist(), abs=1e-6)
    own = float((kernel(x) @ vector - found["value"] * vector).norm())
    assert own == pytest.approx(found["residual"], abs=1e-12) and own < 1e-5 * float(exact[0])
    low = (found["float32"] + found["shift"]) * (1 - found["rounding"]) - found["shift"]
    assert 0.999 * float(exact[0]) < low <= float(exact[0]) * (1 + 1e-6)


def test_equal_inputs_have_the_least_eigenvalue_zero() -> None:
    x = unit_rows(120, 20)
    x[70] = x[3]
    found, vector = least_eigenvalue(x, None, lambda text: None)
    assert abs(found["value"]) < 1e-12 and found["largest"] in ([70, 3], [3, 70])
    assert vector.abs()[[3, 70]].tolist() == pytest.approx([2**-0.5] * 2, abs=1e-6)


def test_work_in_a_folder_is_taken_up_and_cleared(tmp_path: Path) -> None:
    x = unit_rows(150, 20)

    def cut(text: str) -> None:
        if text.startswith("float64 product 1"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        least_eigenvalue(x, tmp_path, cut)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "work-factor-0.bin",
        "work-factor-0.json",
        "work-lanczos.safetensors",
    ]
    said: list[str] = []
    found, _ = least_eigenvalue(x, tmp_path, said.append)
    assert not any("Cholesky" in text for text in said) and not list(tmp_path.iterdir())
    assert found["value"] == least_eigenvalue(x, None, said.append)[0]["value"]


# -- preprocessing --------------------------------------------------------------------------------------------


def test_preprocessings_are_the_thesis() -> None:
    images = torch.rand(200, 1, 4, 5, generator=torch.Generator().manual_seed(3))
    images[:, 0, 0, :2] = 0  # pixels without any variance, as MNIST's corners
    for how in PREPROCESSINGS:
        x, _ = preprocess(images, how)
        torch.testing.assert_close(x.norm(dim=1), torch.ones(200, dtype=torch.float64))
        assert squared_norm(x) == pytest.approx(float(torch.linalg.matrix_norm(x, 2)) ** 2)
    assert float(preprocess(images, ZERO_MEAN)[0].sum(1).abs().max()) < 1e-12
    whitened, directions = preprocess(images, WHITENING)
    # 20 pixels less the direction of the mean and one of the two that are equal.
    assert directions == whitened.shape[1] == 18
    centred = images.flatten(1).double() - images.flatten(1).double().mean(1, keepdim=True)
    u = torch.linalg.svd(centred, full_matrices=False)[0][:, :18]
    expected = u / u.norm(dim=1, keepdim=True)
    torch.testing.assert_close(whitened @ whitened.mT, expected @ expected.mT, rtol=0, atol=1e-10)


def test_whitening_in_float32_alone_keeps_directions_of_rounding() -> None:
    images = torch.rand(200, 1, 4, 5, generator=torch.Generator().manual_seed(3))
    exact, directions = preprocess(images, WHITENING)
    assert directions == 19  # but for that of the mean each has variance
    found = whitened_in_float32(images)
    assert found.shape == (200, 20)
    left = found - exact @ torch.linalg.lstsq(exact, found).solution
    assert (
        0.5 < float(left.square().sum()) / (200 / 20) < 2
    )  # one direction in twenty, of nothing but rounding


def test_images_without_a_direction_are_refused() -> None:
    images = torch.rand(4, 1, 2, 2)
    images[2] = 0.7
    with pytest.raises(ValueError, match="image 2 has no direction after 'zero-mean'"):
        preprocess(images, ZERO_MEAN)
    with pytest.raises(ValueError, match="expected one of normalization, zero-mean, whitening, got 'none'"):
        preprocess(images, "none")


# -- the experiment -------------------------------------------------------------------------------------------


def quiet() -> Progress:
    return Progress(Console(quiet=True))


def test_the_smoke_run_and_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(spectra.PLANS, "smoke", spectra.Plan((("digits", (40, 90)),)))
    folder = runner.run("spectra", preset="smoke", device="cpu", out=tmp_path, progress=quiet())
    metrics = json.loads((folder / "metrics.json").read_text())
    assert [(row["how"], row["n"]) for row in metrics["sets"][0]["rows"]] == [
        (how, n) for how in PREPROCESSINGS for n in (40, 90)
    ]
    for row in metrics["sets"][0]["rows"]:
        assert 0 < spectra_claims.lower_bound(row) <= row["least"]["value"] * (1 + 1e-6)
        assert row["least"]["value"] <= row["nearest"]["bound"] + 1e-6
    table = (folder / "table.md").read_text()
    assert "scikit-learn digits" in table and "not run" in table
    assert (folder / "figure.png").stat().st_size > 10_000
    (folder / "metrics.json").unlink()  # as after a cut: every row is there

    def again(*_: Any) -> None:
        raise AssertionError("a finished row was measured again")

    monkeypatch.setattr(spectra, "preprocess", again)
    runner.run("spectra", preset="smoke", device="cpu", out=tmp_path, progress=quiet())
    assert json.loads((folder / "metrics.json").read_text()) == metrics


def test_rows_of_a_printed_set_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(spectra.PLANS, "smoke", spectra.Plan((("digits", (90,)),)))
    monkeypatch.setitem(spectra.PAPER, "digits", (90, dict.fromkeys(PREPROCESSINGS, (60.0, 0.02))))
    monkeypatch.setitem(spectra_claims.TITLES, "digits", "digits")
    monkeypatch.setitem(spectra_claims.WHITENED_WITHIN, "digits", 4.0)
    monkeypatch.setattr(spectra, "WITNESSES", 90)
    folder = runner.run("spectra", preset="smoke", device="cpu", out=tmp_path, progress=quiet())
    metrics = json.loads((folder / "metrics.json").read_text())
    checks = metrics["sets"][0]["checks"]
    for each in metrics["sets"][0]["rows"]:  # where the witnesses are all images
        assert checks["few"][each["how"]] == pytest.approx(each["least"]["value"], abs=1e-9)
        assert each["least"]["value"] < checks["largest"][each["how"]] < 45
    assert len(checks["squared_norms"]) == 2
    assert "90 images of digits" in (folder / "table.md").read_text()


def row(how: str, n: int, norm: float, least: float) -> dict[str, Any]:
    return {
        "how": how,
        "n": n,
        "squared_norm": norm,
        "least": {"value": least, "float32": least, "shift": 0.0, "rounding": 1e-5, "participation": 3.0},
        "nearest": {"bound": least},
    }


def metrics_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    few = dict.fromkeys(PREPROCESSINGS, 0.015)
    checks = {"largest": dict.fromkeys(few, 60.0), "few": few, "squared_norms": [310.0, 320.0]}
    found = {"name": "mnist", "in_place_of": "mnist", "features": 784, "rows": rows, "checks": checks}
    return {"sets": [found]}


def verdict_of(metrics: dict[str, Any], start: str) -> str:
    return next(v.verdict for v in spectra_claims.verdicts(metrics) if v.claim.startswith(start))


def test_verdicts_follow_their_rules() -> None:
    same = metrics_of([row("whitening", 1000, 5.3, 0.03), row("whitening", 60_000, 314.871, 0.02003)])
    assert verdict_of(same, "MNIST, whitening") == HOLDS
    assert verdict_of(same, "MNIST, normalization") == NOT_TESTABLE
    assert verdict_of(same, "λ_min(H∞) is roughly constant") == HOLDS
    assert verdict_of(same, "‖X‖² scales roughly as n/d (of [8]): it grows") == HOLDS
    assert verdict_of(same, "‖X‖² scales roughly as n/d (of [8]): it is within") == HOLDS
    assert verdict_of(same, "With whitening ‖X‖² comes close to the bound for random points: MNIST") == FAILS
    assert verdict_of(same, "Preprocessing") == NOT_TESTABLE
    assert verdict_of(same, "Calculated in float32") == HOLDS
    off = metrics_of([row("normalization", 60_000, 24454.8, 0.0148)])
    assert verdict_of(off, "MNIST, normalization") == FAILS  # the least eigenvalue has other digits
    assert verdict_of(off, "Calculated in float32") == FAILS
    other = metrics_of([row("whitening", 1000, 5.3, 0.05), row("whitening", 60_000, 600.0, 0.02)])
    for claim in (
        "MNIST, whitening",
        "λ_min(H∞) is roughly constant",
        "‖X‖² scales roughly as n/d (of [8]): it grows",
    ):
        assert verdict_of(other, claim) == FAILS
    assert verdict_of({"sets": []}, "λ_min(H∞) is roughly constant") == NOT_TESTABLE
