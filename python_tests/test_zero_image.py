"""What networks make of the zero image: the measures, the ways of training, the experiment, and its verdicts."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from cut_runs import cut_at
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

from zbkernels import cli
from zbkernels.checkpoint import CheckpointError
from zbkernels.data import Dataset, Split, load
from zbkernels.experiments import ExperimentError, runner, zero_image, zero_image_claims, zero_image_figure
from zbkernels.experiments.progress import Progress
from zbkernels.experiments.zero_image_checkpoints import ZERO_TENSOR, digest, look_at, parse
from zbkernels.experiments.zero_image_measures import (
    NEAR,
    class_shares,
    distribution,
    entropy_ratio,
    near_zero,
    on_zero_image,
)
from zbkernels.experiments.zero_image_trainings import TRAININGS, long_tail, with_black_images
from zbkernels.models import ARCHITECTURES, build
from zbkernels.models.reference import VisionTransformer, ViTSize
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, rewrite

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ViTSize(width=64, depth=1, heads=1, hidden=64, patch=16, image=32, classes=6)
CPU = torch.device("cpu")


def quiet() -> Progress:
    return Progress(Console(quiet=True))


def metrics_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text())


# Measures


def test_entropy_is_one_where_uniform_and_zero_where_certain() -> None:
    assert entropy_ratio([0.25] * 4) == pytest.approx(1)
    assert entropy_ratio([1.0, 0.0, 0.0]) == 0
    assert entropy_ratio([0.5, 0.5, 0, 0]) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="expected at least two classes, got 1"):
        entropy_ratio([1.0])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=12))
def test_distribution_is_softmax(logits: list[float]) -> None:
    found = distribution(torch.tensor(logits))
    total = sum(math.exp(value) for value in logits)
    assert found["probabilities"] == pytest.approx([math.exp(value) / total for value in logits], abs=1e-12)
    assert found["predicted"] == logits.index(max(logits))
    assert found["largest_logit"] == pytest.approx(max(map(abs, logits)))
    assert 0 <= found["entropy"] <= 1 + 1e-12


def test_logits_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="expected finite logits, got 2 others"):
        distribution(torch.tensor([1.0, math.inf, math.nan]))


def test_equal_logits_are_uniform_and_the_first_class() -> None:
    """Equation 11: softmax of zeros is uniform, its argmax is not."""
    model = build(ARCHITECTURES["fcn-mnist"], (1, 8, 8), 10, seed=3)
    found = on_zero_image(model, (1, 8, 8))
    assert found["largest_logit"] == 0
    assert found["probabilities"] == [0.1] * 10
    assert found["predicted"] == 0


def test_near_zero_counts_what_changes() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2))
    linear = model[1]
    assert isinstance(linear, nn.Linear)
    with torch.no_grad():
        linear.weight.copy_(torch.eye(2))
        linear.bias.copy_(torch.tensor([0.0, 0.3]))
    images = torch.tensor([[1.0, 0.0], [0.2, 0.0], [0.0, 1.0], [0.0, 0.0]]).view(4, 1, 1, 2)
    split = Split(images, torch.tensor([0, 1, 1, 1]))
    first, half, least = near_zero(model, split, scalars=(1.0, 0.5, 0.25))
    assert (first["changed"], first["accuracy"], first["shares"]) == (0, 100, [0.25, 0.75])
    assert (half["changed"], half["shares"]) == (0, [0.25, 0.75])
    assert (least["changed"], least["accuracy"], least["shares"]) == (1, 75, [0, 1])
    logits = torch.tensor([[0.25, 0.3], [0.05, 0.3], [0.0, 0.55], [0.0, 0.3]])
    wanted = sum(entropy_ratio(row.softmax(0).tolist()) for row in logits.double()) / 4
    assert least["entropy"] == pytest.approx(wanted)


def test_the_scalars_are_powers_of_two() -> None:
    assert all(math.frexp(scalar)[0] == 0.5 for scalar in NEAR)
    assert NEAR[0] == 1 and sorted(NEAR, reverse=True) == list(NEAR)


# Ways of training


def numbered(per_class: int, classes: int = 5) -> Dataset:
    labels = torch.arange(per_class * classes) % classes
    images = torch.arange(len(labels)).float().view(-1, 1, 1, 1) + 1
    split = Split(images, labels)
    return Dataset("numbers", "numbers", split, split, tuple(map(str, range(classes))), False, "")


def test_a_long_tail_has_a_constant_ratio_between_classes() -> None:
    data = numbered(1000)
    tail = long_tail(data)
    assert tail.train.labels.bincount().tolist() == [10, 32, 100, 316, 1000]
    for label in range(5):  # the first of each class, in their order
        of_class = tail.train.images[tail.train.labels == label].flatten()
        assert of_class.equal(data.train.images[data.train.labels == label].flatten()[: len(of_class)])
    assert tail.train.images.flatten().diff().min() > 0
    assert tail.test is data.test
    assert "long tail: 1,458 training images" in tail.title
    assert min(long_tail(numbered(3)).train.labels.bincount().tolist()) == 1


def test_black_images_have_every_label_equally_often() -> None:
    data = numbered(40)
    mixed = with_black_images(data).train
    assert mixed.images[:200].equal(data.train.images)
    assert not mixed.images[200:].any()
    assert mixed.labels[200:].bincount().tolist() == [4] * 5
    assert len(mixed) == 220


def test_class_shares() -> None:
    assert class_shares(torch.tensor([0, 2, 2, 2]), 4) == [0.25, 0, 0.75, 0]


# The experiment


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("smoke")
    torch.manual_seed(0)
    torch.save(VisionTransformer(SMALL).state_dict(), out / "vit.pth")
    checkpoints = (str(out / "vit.pth"), f"timm:vit_base={out / 'vit.pth'}")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ZBKERNELS_DATA", raising=False)
        patch.setitem(__import__("sys").modules, "timm", None)  # as where it is not installed
        return runner.run("zero-image", preset="smoke", out=out, checkpoints=checkpoints, progress=quiet())


def test_smoke_writes_what_every_run_writes(smoke: Path) -> None:
    names = sorted(path.name for path in smoke.iterdir() if path.is_file())
    assert names == ["config.json", "figure.png", "metrics.json", "table.md"]
    metrics = metrics_of(smoke)
    (network,) = metrics["networks"]
    assert len(network["units"]) == 2 * len(TRAININGS)
    text = (smoke / "table.md").read_text()
    assert (
        text.count("**holds**") + text.count("**does not hold**") + text.count("**not testable here**") == 12
    )


def test_smoke_measures_what_the_kept_networks_say(smoke: Path) -> None:
    from safetensors.torch import load_file

    data = load("digits")
    for unit in metrics_of(smoke)["networks"][0]["units"]:
        bias = unit["variant"] == "with-bias"
        name = f"digits-adam-{unit['training'].replace(',', '').replace(' ', '-')}-{unit['variant']}-seed0"
        model = build(ARCHITECTURES["fcn-mnist"], (1, 8, 8), 10, bias=bias, fused=not bias)
        model.load_state_dict(load_file(smoke / "units" / name / "model.safetensors"))
        with torch.no_grad():
            logits = model.eval()(torch.zeros(1, 1, 8, 8))[0].double()
            wanted = (logits - logits.logsumexp(0)).exp()
            predicted = model(data.test.images).argmax(1)
        assert unit["zero"]["probabilities"] == pytest.approx(wanted.tolist(), abs=1e-9)
        assert unit["near"][0]["shares"] == class_shares(predicted, 10)
        assert len(unit["watched"]) == 1 and unit["watched"][0]["epoch"] == 0
        assert bias or unit["zero"]["largest_logit"] == 0
        assert (unit["prior"][9] > 30 * unit["prior"][0]) == (
            unit["training"] in ("long tail", "long tail, contrasts")
        )


def test_a_checkpoint_in_the_experiment_is_its_models_forward(smoke: Path) -> None:
    given, skipped = metrics_of(smoke)["references"]
    assert "timm does not import here" in skipped["skipped"]
    model = VisionTransformer(SMALL).eval()
    model.load_state_dict(torch.load(smoke.parent / "vit.pth", weights_only=True))
    black = (-torch.tensor([0.485, 0.456, 0.406]) / torch.tensor([0.229, 0.224, 0.225])).view(1, 3, 1, 1)
    wanted = {"black picture, ImageNet normalisation": black, ZERO_TENSOR: torch.zeros(1, 3, 1, 1)}
    assert [each["input"] for each in given["inputs"]] == list(wanted)
    for each, image in zip(given["inputs"], wanted.values(), strict=True):
        with torch.no_grad():
            probabilities = model(image.expand(1, 3, 32, 32))[0].double().softmax(0)
        assert each["probabilities"] == pytest.approx(probabilities.tolist(), abs=1e-6)
    assert given["inputs"][0]["probabilities"] != given["inputs"][1]["probabilities"]
    text = (smoke / "table.md").read_text()
    assert "skipped: timm does not import here (ModuleNotFoundError" in text


def test_checkpoints_are_part_of_the_settings(smoke: Path) -> None:
    config = json.loads((smoke / "config.json").read_text())
    assert config["settings"]["checkpoints"][str(smoke.parent / "vit.pth")] == digest(
        str(smoke.parent / "vit.pth")
    )
    settings = zero_image.EXPERIMENT
    same = runner.settings_for(
        settings, "smoke", "cpu", None, None, "fused", (str(smoke.parent / "vit.pth"),)
    )
    assert not runner.is_finished(smoke, same)  # one checkpoint less


def test_runs_from_before_checkpoints_are_still_finished(tmp_path: Path) -> None:
    wanted = runner.settings_for(zero_image.EXPERIMENT, "smoke", "cpu", None, None, "fused")
    old = runner._json(wanted)
    del old["checkpoints"]
    (tmp_path / "config.json").write_text(json.dumps({"settings": old}))
    (tmp_path / "metrics.json").write_text("{}")
    assert runner.is_finished(tmp_path, wanted)


def test_report_draws_again(smoke: Path) -> None:
    wanted = (smoke / "table.md").read_text()
    (smoke / "figure.png").unlink()
    assert rewrite(smoke) == wanted
    assert (smoke / "figure.png").stat().st_size > 10_000


@pytest.mark.parametrize("variant", ["with-bias", "without-bias"])
def test_a_run_of_one_kind_is_reported(smoke: Path, variant: str, tmp_path: Path) -> None:
    metrics = metrics_of(smoke)
    (network,) = metrics["networks"]
    network["units"] = [unit for unit in network["units"] if unit["variant"] == variant]
    runner.write_report(zero_image.EXPERIMENT, tmp_path, metrics)
    text = (tmp_path / "table.md").read_text()
    assert "networks of this kind were not trained in this run" in text
    assert f"| balanced, {variant.replace('-', ' ')} |" in text


def test_a_cut_off_run_goes_on(smoke: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        runner.run("zero-image", preset="smoke", out=tmp_path, progress=cut_at(quiet(), 300))
    assert not (tmp_path / "zero-image-smoke/metrics.json").exists()
    folder = runner.run("zero-image", preset="smoke", out=tmp_path, progress=quiet())
    for ours, whole in zip(metrics_of(folder)["networks"], metrics_of(smoke)["networks"], strict=True):
        for one, other in zip(ours["units"], whole["units"], strict=True):
            one.pop("train_seconds"), other.pop("train_seconds")
            assert one == other


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere.pth", "nowhere.pth: there is no such file"),
        ("keras:vgg=a.pth", "expected PATH, torchvision:NAME=PATH or timm:NAME=PATH"),
        ("timm:=a.pth", "expected PATH, torchvision:NAME=PATH or timm:NAME=PATH"),
        ("timm:vit=nowhere.pth", "nowhere.pth: there is no such file"),
    ],
)
def test_checkpoints_that_name_nothing_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=f"--checkpoint {text}: {message}"):
        runner.run("zero-image", preset="smoke", out=tmp_path, checkpoints=(text,), progress=quiet())
    assert not list(tmp_path.iterdir())


def test_a_file_whose_name_looks_like_a_package_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a:b=c.pth").write_bytes(b"")
    assert parse("a:b=c.pth").package is None


def test_a_useless_checkpoint_stops_the_run_before_any_training(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(1)}, tmp_path / "odd.pth")
    with pytest.raises(CheckpointError, match="no known network"):
        runner.run("zero-image", preset="smoke", out=tmp_path, checkpoints=(str(tmp_path / "odd.pth"),),
                   progress=quiet())  # fmt: skip
    assert not (tmp_path / "zero-image-smoke/units").exists()


def test_the_command_line_says_which_experiment_takes_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "a.pth").write_bytes(b"")
    arguments = ["run", "table1-mnist", "--preset", "smoke", "--checkpoint", str(tmp_path / "a.pth")]
    result = CliRunner().invoke(cli.app, [*arguments, "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "table1-mnist takes no --checkpoint" in result.output


def test_a_nan_in_a_checkpoint_is_said(tmp_path: Path) -> None:
    state = VisionTransformer(SMALL).state_dict()
    state["heads.head.bias"][2] = math.nan
    torch.save(state, tmp_path / "nan.pth")
    with pytest.raises(CheckpointError, match=r"nan\.pth: .*expected finite logits, got 1 others"):
        look_at(str(tmp_path / "nan.pth"), CPU)


# Verdicts

(
    UNIFORM,
    ARGMAX,
    BIASED,
    IMBALANCE,
    AUGMENTED,
    KNOWN,
    ORDER,
    NEAR_ZERO,
    NEAR_IMBALANCE,
    ONE_CLASS,
    PRIOR,
    DARK,
) = range(12)


def made_unit(training: str, variant: str, **change: Any) -> dict[str, Any]:
    """A unit of two classes as the paper would have it."""
    bias = variant == "with-bias"
    likely = 0.9 if bias else 0.5
    prior = [0.01, 0.99] if "long tail" in training else [0.5, 0.5]
    zero = {
        "probabilities": [likely, 1 - likely],
        "entropy": entropy_ratio([likely, 1 - likely]),
        "largest_logit": 1.1 if bias else 0.0,
        "predicted": 0,
    }
    shares = [1.0, 0.0] if bias else [0.5, 0.5]
    row = {
        "scalar": 2.0**-100,
        "accuracy": 50.0,
        "changed": 10 if bias else 0,
        "shares": shares,
        "entropy": 1.0,
    }
    unit = {
        "training": training,
        "variant": variant,
        "seed": 0,
        "accuracy": 95.0,
        "prior": prior,
        "zero": zero,
    }
    return {**unit, "near": [row], "watched": [{"epoch": 0, "zero": copy.deepcopy(zero)}], **change}


def made(**change: Any) -> dict[str, Any]:
    units = [
        made_unit(training, variant) for training in TRAININGS for variant in ("with-bias", "without-bias")
    ]
    network = {"name": "a network", "data": {"name": "mnist", "title": "MNIST"}, "units": units}
    return {"networks": [network], "references": [], **change}


def verdict(metrics: dict[str, Any], claim: int) -> str:
    return zero_image_claims.verdicts(metrics)[claim].verdict


def every(metrics: dict[str, Any], training: str, variant: str) -> list[dict[str, Any]]:
    return zero_image_claims.of(metrics["networks"][0]["units"], training, variant)


def test_verdicts_where_all_is_as_the_paper_says() -> None:
    found = [verdict.verdict for verdict in zero_image_claims.verdicts(made())]
    assert found[ARGMAX] == FAILS  # as equation 11 is written
    assert found[KNOWN] == found[ORDER] == NOT_TESTABLE
    expected = {PRIOR: FAILS, DARK: FAILS}
    for claim in (UNIFORM, BIASED, IMBALANCE, AUGMENTED, NEAR_ZERO, NEAR_IMBALANCE, ONE_CLASS, PRIOR, DARK):
        assert found[claim] == expected.get(claim, HOLDS), claim


def test_each_claim_can_fail() -> None:
    metrics = made()
    every(metrics, "long tail", "without-bias")[0]["zero"]["largest_logit"] = 1e-30
    assert (verdict(metrics, UNIFORM), verdict(metrics, IMBALANCE)) == (FAILS, FAILS)
    metrics = made()
    every(metrics, "balanced", "without-bias")[0]["watched"][0]["zero"]["largest_logit"] = 1e-30
    assert (verdict(metrics, UNIFORM), verdict(metrics, IMBALANCE)) == (FAILS, HOLDS)
    metrics = made()
    every(metrics, "balanced", "without-bias")[0]["zero"]["predicted"] = 1
    assert verdict(metrics, ARGMAX) == HOLDS
    metrics = made()
    every(metrics, "balanced", "with-bias")[0]["zero"]["probabilities"] = [0.54, 0.46]
    assert verdict(metrics, BIASED) == FAILS
    assert verdict(metrics, AUGMENTED) == NOT_TESTABLE  # nothing to mend
    metrics = made()
    every(metrics, "black images", "with-bias")[0]["zero"]["probabilities"] = [0.54, 0.46]
    assert (verdict(metrics, BIASED), verdict(metrics, AUGMENTED)) == (HOLDS, FAILS)
    metrics = made()
    every(metrics, "contrasts", "without-bias")[0]["near"][0]["changed"] = 1
    assert verdict(metrics, NEAR_ZERO) == FAILS
    metrics = made()
    every(metrics, "long tail", "without-bias")[0]["near"][0]["shares"] = [0.4, 0.6]
    assert verdict(metrics, NEAR_IMBALANCE) == FAILS
    metrics = made()
    every(metrics, "contrasts", "with-bias")[0]["near"][0]["shares"] = [0.99, 0.01]
    assert verdict(metrics, ONE_CLASS) == FAILS
    metrics = made()
    for way in ("long tail", "long tail, contrasts"):
        every(metrics, way, "with-bias")[0]["zero"]["probabilities"] = [0.2, 0.8]
    assert (verdict(metrics, PRIOR), verdict(metrics, DARK)) == (HOLDS, HOLDS)


def test_hardly_trained_networks_and_missing_kinds_are_not_judged() -> None:
    metrics = made()
    every(metrics, "balanced", "with-bias")[0]["accuracy"] = 30.0
    assert verdict(metrics, BIASED) == NOT_TESTABLE
    metrics = made()
    metrics["networks"][0]["units"] = [
        u for u in metrics["networks"][0]["units"] if u["variant"] == "with-bias"
    ]
    assert verdict(metrics, UNIFORM) == verdict(metrics, NEAR_IMBALANCE) == NOT_TESTABLE
    assert verdict(metrics, ONE_CLASS) == HOLDS


def reference(family: str, black: float, zero: float, trained: bool = True) -> dict[str, Any]:
    inputs = [
        {"input": name, "probabilities": [likely, 1 - likely], "entropy": entropy_ratio([likely, 1 - likely])}
        for name, likely in (("black", black), ("zero", zero))
    ]
    return {"family": family, "trained": trained, "inputs": inputs}


def test_figure_4_is_judged_by_trained_checkpoints_alone() -> None:
    as_in_paper = [
        reference("ResNet", 0.7, 0.7),
        reference("EfficientNet", 0.6, 0.6),
        reference("ViT", 0.9, 0.9),
    ]
    assert verdict(made(references=as_in_paper), KNOWN) == HOLDS
    assert verdict(made(references=as_in_paper), ORDER) == HOLDS
    untrained = [{**each, "trained": False} for each in as_in_paper]
    assert (
        verdict(made(references=untrained), KNOWN)
        == verdict(made(references=untrained), ORDER)
        == NOT_TESTABLE
    )
    assert verdict(made(references=as_in_paper[:2]), ORDER) == NOT_TESTABLE
    other = [*as_in_paper[:2], reference("ViT", 0.9, 0.55)]  # on one of the two inputs only
    assert verdict(made(references=other), ORDER) == FAILS
    other = [*as_in_paper[:2], reference("ViT", 0.9, 0.51)]
    assert verdict(made(references=other), KNOWN) == FAILS


def test_a_claim_about_three_families_is_not_judged_by_one() -> None:
    found = zero_image_claims.verdicts(made(references=[reference("ResNet", 0.7, 0.7)]))
    assert found[KNOWN].verdict == found[ORDER].verdict == NOT_TESTABLE
    assert found[KNOWN].measured == (
        "no checkpoint of EfficientNet or ViT was given; likeliest class, times 1/C: ResNet (1 checkpoint) 1.40"
    )
    assert found[ORDER].measured == "no checkpoint of EfficientNet or ViT was given"
    two = [reference("ViT", 0.7, 0.7), reference("ViT", 0.9, 0.9), reference("swin", 0.9, 0.9)]
    assert (
        "ViT (2 checkpoints) 1.40 to 1.80" in zero_image_claims.verdicts(made(references=two))[KNOWN].measured
    )


def test_the_papers_sentences_on_trained_networks_need_its_data() -> None:
    metrics = made()
    metrics["networks"][0]["data"] = {"name": "digits", "title": "scikit-learn digits"}
    found = zero_image_claims.verdicts(metrics)
    for claim in (BIASED, AUGMENTED):
        assert (found[claim].verdict, found[claim].measured) == (
            NOT_TESTABLE,
            "the data are scikit-learn digits",
        )
    assert found[UNIFORM].verdict == found[IMBALANCE].verdict == HOLDS  # theorems


def test_known_networks_have_a_uniform_line_for_each_number_of_classes() -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    known = [{**reference("ViT", 0.9, 0.9), "title": "a"}, {**reference("ResNet", 0.7, 0.7), "title": "b"}]
    known[1]["inputs"] = [{"probabilities": [0.1, 0.2, 0.3, 0.4]}] * 2
    zero_image_figure._draw_known(axes, known)
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}
    assert lines["uniform over 2"] == [0.5, 0.5] and lines["uniform over 4"] == [0.25, 0.25]


def test_presets_train_the_networks_of_table_1() -> None:
    paper = zero_image.EXPERIMENT.presets["paper"]
    assert isinstance(paper, zero_image.ZeroImagePreset)
    assert paper.seeds == (0, 1, 2)
    table1 = {network.data: network for network in paper.networks if network.optimizer == "adadelta"}
    assert {(n.data, n.lr, n.epochs, n.batch_size) for n in table1.values()} == {
        ("mnist", 0.01, 20, 512),
        ("fashion-mnist", 0.01, 20, 128),
    }
    assert dataclasses.replace(table1["mnist"], name="", optimizer="", lr=0) == dataclasses.replace(
        zero_image.MNIST_ADAM, name="", optimizer="", lr=0
    )
