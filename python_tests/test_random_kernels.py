"""The experiment random-kernels: what it measures, and that its verdicts follow what was measured."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from zbkernels.experiments import runner
from zbkernels.experiments.exchangeability import random_kernels, random_kernels_claims, random_layers
from zbkernels.experiments.exchangeability.procedure_angles import count_zeros, domination, measure_angles
from zbkernels.experiments.progress import Progress
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE

pytestmark = pytest.mark.usefixtures("one_thread")


def start(out: Path, **how: Any) -> Path:
    progress = Progress(Console(quiet=True))
    return runner.run("random-kernels", preset="smoke", out=out, progress=progress, **how)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module")
def metrics(finished: Path) -> dict[str, Any]:
    return json.loads((finished / "metrics.json").read_text())


def verdict(metrics: dict[str, Any], part: str) -> str:
    (found,) = [v for v in random_kernels_claims.verdicts(metrics) if part in v.claim]
    return found.verdict


def test_smoke_run(finished: Path, metrics: dict[str, Any]) -> None:
    names = sorted(path.name for path in finished.iterdir() if path.is_file())
    assert names == ["config.json", "figure.png", "metrics.json", "table.md"]
    for part in (
        "(printed, non-zero",
        "lettered steps make the coordinates",
        "made as long as",
        "less their mean (ours)",
    ):
        found = [v for v in random_kernels_claims.verdicts(metrics) if part in v.claim]
        assert found and all(v.verdict == HOLDS for v in found), part
    for part in ("(printed, zero sums)", "of the inputs that the lettered", "Proposition 6 before"):
        assert verdict(metrics, part) == FAILS, part
    text = (finished / "table.md").read_text()
    claims = text.split("## Figure 2")[0].splitlines()
    assert all(line.count("|") == 4 for line in claims if line[:1] == "|")
    rows = [line for line in text.split("## Errata")[1].splitlines() if line[:1] == "|"]
    assert len(rows) == 2 + len(metrics["errata"])
    assert all(line.replace(r"\|", "").count("|") == 5 for line in rows)


def test_a_run_cut_off_takes_up_what_is_there(
    metrics: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(random_kernels, "measure_angles", cut)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(random_kernels.errata, "measure", lambda: metrics["errata"])  # takes seconds
    monkeypatch.setattr(random_kernels, "kernels_by_size", cut)  # done, and not done again
    monkeypatch.setattr(random_kernels, "kernels_of_data", cut)
    assert json.loads((start(tmp_path) / "metrics.json").read_text()) == metrics


def test_one_density_alone_says_what_it_cannot_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_kernels.errata, "measure", list)
    alone = json.loads((start(tmp_path, variants=("t-1",)) / "metrics.json").read_text())
    for part in (
        "that the text names",
        "β = 0.5, 1, 4, 8",
        "goes to 0 as",
        "third absolute",
        "whatever the size",
    ):
        assert verdict(alone, part) == NOT_TESTABLE, part


def test_verdicts_follow_the_metrics(metrics: dict[str, Any]) -> None:
    def changed(make: Any) -> dict[str, Any]:
        copied = copy.deepcopy(metrics)
        make(copied)
        return copied

    def deviating(density: str, law: Any) -> dict[str, Any]:
        def set_it(copied: dict[str, Any]) -> None:
            for layer in copied["layers"]:
                if layer["density"] == density:
                    for row in layer["sizes"]:
                        row.update(rms=law(row["size"]), rms_by_seed=[law(row["size"])])

        return changed(set_it)

    assert verdict(deviating("beta-inf", lambda _: 0.3), "that the text names") == FAILS
    assert verdict(deviating("beta-4", lambda _: 0.3), "β = 0.5, 1, 4, 8") == FAILS
    assert verdict(deviating("beta-1", lambda _: 0.01), "goes to 0 as") == FAILS
    assert verdict(deviating("beta-1", lambda n: n**-0.5), "goes to 0 as") == HOLDS
    assert verdict(deviating("t-2.5", lambda n: n**-0.1), "third absolute") == FAILS
    assert verdict(deviating("t-1", lambda n: n**-0.5), "whatever the size") == FAILS

    def exact(copied: dict[str, Any]) -> None:
        for found in copied["procedures"]:
            for row in found["at"]:
                row["off"] = 0.0

    assert verdict(changed(exact), "(printed, zero sums)") == HOLDS
    longer = changed(lambda m: m["procedures"][1]["at"][2].update(length_off=0.1))
    assert verdict(longer, "made as long as") == FAILS
    dense = changed(lambda m: m["sets"][0]["zeros"].update(without=1))
    assert verdict(dense, "Every x has a p") == FAILS

    def flat(copied: dict[str, Any]) -> None:
        for row in copied["sets"][0]["hypothesis3"]:
            row["images"]["median"] = row["coordinates"] ** 0.1

    assert verdict(changed(flat), "by images as they are") == FAILS

    def still(copied: dict[str, Any]) -> None:
        for layer in copied["layers"]:
            for row in layer["inputs"]:
                row.update(largest_off=0.02, error_there=0.01)

    assert verdict(changed(still), "Proposition 6 before") == HOLDS


def test_normal_layers_deviate_by_drawing_alone_and_cauchy_layers_more() -> None:
    at = random_layers.angles(7)
    found = {
        name: random_layers.kernels_by_size(name, (40, 640), at, (0, 1, 2))
        for name in ("beta-2", "beta-0.5", "t-1")
    }
    small, large = found["beta-2"]["sizes"]
    assert 2 < small["rms"] / large["rms"] < 8  # √16 = 4
    assert found["beta-0.5"]["sizes"][1]["rms"] < 3 * large["rms"] < found["t-1"]["sizes"][1]["rms"]
    assert found["beta-2"]["shown"] == 640 and len(found["beta-2"]["curves"]) == 3
    assert small["rms"] == pytest.approx(math.sqrt(sum(v**2 for v in small["rms_by_seed"]) / 3))


def test_kernels_at_dominated_inputs_are_those_of_two_weights() -> None:
    """Uniform weights, θ = pi/2: 3/8 where two coordinates are nearly all of x and p, else 1/pi."""
    images = torch.zeros(2, 1, 40, 40)
    images[:, 0, :20] = torch.rand(2, 20, 40, generator=torch.Generator().manual_seed(0))
    at = torch.tensor([math.pi / 2], dtype=torch.float64)
    rows = random_layers.kernels_of_data("beta-inf", images, 1500, at, (0, 1))
    means = {row["inputs"]: row["mean"][0] for row in rows}
    assert means["zero sums, mended"] == pytest.approx(3 / 8, abs=0.025)
    assert means["zero sums, centred"] == pytest.approx(1 / math.pi, abs=0.025)
    assert all(row["largest_off"] == pytest.approx(abs(row["mean"][0] - 1 / math.pi)) for row in rows)


def test_measures_of_inputs() -> None:
    images = torch.zeros(2, 1, 4, 4)
    images[0, 0, :2] = torch.tensor([3.0, 4.0, 0.0, 0.0])
    images[1, 0, 3] = 1.0
    zeros = count_zeros(images)
    assert (zeros["least"], zeros["without"], zeros["few"], zeros["coordinates"]) == (10, 0, 0, 16)
    assert domination(torch.tensor([[3.0, -4.0] + [0.0] * 14])).tolist() == pytest.approx([2 * 4 / 5])
    (printed,) = [x["at"] for x in measure_angles(images[:1], 0) if x["procedure"] == "printed, zero sums"]
    assert max(row["off"] for row in printed) > 0.01 > 1e-12 > max(row["off_formula"] for row in printed)
