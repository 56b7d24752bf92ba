"""The benchmarks' own honesty: nothing wrong is timed, everyone is timed in turn, and files are whole."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
from collections import OrderedDict

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import zbkernels as zb
from zbkernels.benchmarking import command, contestants, runner, table, timing
from zbkernels.benchmarking.cases import (
    SUITES,
    ConvCase,
    DualCase,
    LinearCase,
    ModelCase,
    NapCase,
    PatternCase,
    select,
)
from zbkernels.benchmarking.ceilings import Ceilings
from zbkernels.benchmarking.check import Wrong, relative_error, tolerance
from zbkernels.benchmarking.conv import ConvProblem
from zbkernels.benchmarking.linear import LinearProblem
from zbkernels.benchmarking.models import ModelProblem, TrainingStep, training_step, with_loss
from zbkernels.benchmarking.nap import NapProblem
from zbkernels.benchmarking.onnx_nodes import nodes_of
from zbkernels.benchmarking.runner import Settings
from zbkernels.benchmarking.shape_class import class_of, public_call
from zbkernels.benchmarking.trained_kernel_cases import AngleCase, IterationCase
from zbkernels.benchmarking.trained_kernels import autoencoder, plain_layer
from zbkernels.models import ARCHITECTURES, Architecture, Conv, Linear, Residual, ResNet, build
from zbkernels.ops import OPS

ROOT = pathlib.Path(__file__).resolve().parent.parent
FAST = Settings(threads=1, rounds=2, pause=0.0, min_sample=0.0, ceiling_seconds=0.01)
LIMITS = Ceilings({"float32": 1e11}, 1e10, {"fma float32": "given", "bytes": "given"})

SMALL = [
    ConvCase("max", 2, 3, 4, 9, 8, 3, padding=1),
    ConvCase("avg", 2, 4, 6, 8, 8, 3, padding=1, pool="avg", pool_padding=1, groups=2),
    ConvCase("none", 1, 2, 3, 7, 7, 5, stride=2, padding=2, pool="none"),
    ConvCase("depthwise", 2, 4, 4, 8, 8, 3, padding=1, groups=4),
    ConvCase("overlap", 2, 3, 5, 12, 12, 7, 2, 3, pool_kernel=3, pool_padding=1),
    LinearCase("linear", 5, 17, 9),
]
INFINITE = [
    DualCase("gram", 9, 7, 5, "gram"),
    DualCase("gram-self", 9, 9, 5, "gram", same=True),
    DualCase("gram-erf", 9, 7, 5, "gram", activation="erf"),
    DualCase("matvec", 700, 600, 5, "matvec", 2),
    DualCase("matvec-self", 1100, 1100, 5, "matvec", 1, same=True),
]


@pytest.fixture
def no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``torch.compile`` sit out: it takes seconds a shape and is not what these tests are about."""

    def absent(function: object, device: str) -> None:
        raise contestants.Absent("left out")

    monkeypatch.setattr(contestants, "compiled", absent)


@pytest.fixture
def tiny_model(monkeypatch: pytest.MonkeyPatch) -> ModelCase:
    """Three images through a network that has every kind of block."""
    blocks = (Conv(5, kernel=5), Residual(pool=2), Conv(6, pool=1), Linear(7))
    monkeypatch.setitem(ARCHITECTURES, "tiny", Architecture("tiny", blocks, image=(2, 9, 8)))
    return ModelCase("tiny-b3", "tiny", 3)


def problem(case: ConvCase | LinearCase | NapCase) -> ConvProblem | LinearProblem | NapProblem:
    return runner.problem_of(case, "cpu", 1)


# --- timing


def test_everyone_is_timed_in_turn() -> None:
    calls = []
    times = timing.interleave(
        {name: lambda name=name: calls.append(name) for name in "ABC"}, rounds=4, pause=0.0, min_sample=0.0
    )
    assert calls[:3] == ["A", "B", "C"]  # how long is one call?
    assert calls[3:] == ["A", "A", "B", "B", "C", "C"] * 4  # each sample: a warm-up and the timed call
    assert [len(value.samples) for value in times.values()] == [4, 4, 4]


def test_short_calls_are_repeated_within_a_sample_and_the_pause_is_kept() -> None:
    times = timing.interleave({"nap": lambda: time.sleep(0.002)}, rounds=2, pause=0.05, min_sample=0.02)[
        "nap"
    ]
    assert 2 <= times.inner <= 10
    assert 0.002 <= times.median < 0.02  # seconds of one call, the pause not counted


def test_median_and_spread() -> None:
    times = timing.Times([1.0, 2.0, 3.0, 4.0, 100.0], 1)
    assert times.median == 3.0
    assert times.spread == pytest.approx(2 / 3)
    assert timing.best({"a": times, "b": timing.Times([1.0], 1)}, ["a", "b", "not timed"]) == "b"
    assert timing.best({"a": times}, []) is None


# --- cases


def test_suite_has_the_operations_of_its_shapes() -> None:
    gflop = {case.name: case.flops / 1e9 for case in SUITES["conv"] if case.mode == "forward"}
    expected = {"mnist1": 0.32, "fashion2": 5.1, "cifar1": 0.45, "cifar2": 19.3, "res9": 19.3, "vgg5": 59.2}
    for name, value in {**expected, "stem": 1.9}.items():
        assert gflop[name] == pytest.approx(value, rel=0.02)


@pytest.mark.parametrize("case", INFINITE, ids=lambda case: case.name)
def test_kernels_of_infinite_networks_are_checked(case: DualCase, no_compile: None) -> None:
    """Ours and the composites agree with float64, blocks at the edge included, and a wrong row is found."""
    prepared = runner.prepare(case, dataclasses.replace(FAST, without=("keops",)))
    assert set(prepared.calls) == {"ours", "eager"} and prepared.absent["compile"] == "left out"
    wrong = prepared.calls["ours"]().clone()
    wrong[prepared.problem.rows[1]] *= 1.5
    assert prepared.problem.error([wrong]) > prepared.tolerance
    assert case.flops == 2 * case.n * case.m * (case.d + case.p)
    args, options = public_call(case)
    assert OPS[case.op].public(*args, **options).shape == (case.n, case.p or case.m)


@pytest.mark.parametrize("mode", ["kernel", "sums"])
def test_kernels_over_angles_are_checked(mode: str, no_compile: None) -> None:
    """Ours and both forms in torch agree with float64, and a wrong value is found."""
    case = AngleCase("k", 3, 40 if mode == "kernel" else 0, 50, 5, mode)
    prepared = runner.prepare(case, FAST)
    shared = {"eager, shared"} if mode == "kernel" else set()
    assert set(prepared.calls) == {"ours", "eager"} | shared
    wrong = prepared.calls["ours"]().clone()
    wrong[2, 3] *= 1.001
    assert prepared.problem.error([wrong]) > prepared.tolerance
    assert case.flops == 3 * 50 * (4 * case.d + 9 * 5)
    args, options = public_call(case)
    assert OPS[case.op].public(*args, **options).shape == (3, 5)


def test_an_iteration_is_checked_and_trains(no_compile: None) -> None:
    """Loss, output and every gradient agree with float64, and go on doing so after steps of the optimizer."""
    case = IterationCase("i", 9, 40, 3)
    prepared = runner.prepare(case, FAST)
    assert set(prepared.calls) == {"ours", "eager"}
    for _ in range(20):
        outputs = list(prepared.calls["ours"]())
    assert prepared.problem.error(outputs) <= prepared.tolerance
    state = prepared.problem.optimizer.state[prepared.problem.weights[0]]
    assert state["step"] >= 22 and state["exp_avg"].abs().max() > 0
    assert prepared.problem.error([outputs[0], outputs[1] * 1.001, *outputs[2:]]) > prepared.tolerance
    with pytest.raises(Wrong, match=r"gradient of weight 3: error 0\.001"):
        prepared.problem.error([*outputs[:-1], outputs[-1] * 1.001])
    with FlopCounterMode(display=False) as counted:
        loss, _ = autoencoder(plain_layer)(prepared.problem.x, *prepared.problem.weights)
        loss.backward()
    assert case.flops == counted.get_total_flops()
    assert class_of(case) == ""


def test_names_are_unique_within_a_suite_and_mode() -> None:
    keys = [(case.suite, case.name, case.mode) for suite in SUITES.values() for case in suite]
    assert len(keys) == len(set(keys))


def test_a_card_has_rows_of_its_own() -> None:
    cases = select(device="cuda")
    keys = [(case.suite, case.name, case.mode) for case in cases]
    assert len(keys) == len(set(keys)) and len(keys) > len(select())
    filling = {(case.name, case.dtype) for case in cases if case.suite == "conv" and case.n == 512}
    for name in ("cifar2-b512", "res9-b512", "vgg5-b512"):
        assert {(name, "float32"), (f"{name}-f16", "float16"), (f"{name}-bf16", "bfloat16")} <= filling
    assert [case.name for case in select(["conv"], shapes=["res9-b512"], device="cuda:0")] == [
        "res9-b512"
    ] * 2
    with pytest.raises(ValueError, match="unknown shape res9-b512"):
        select(["conv"], shapes=["res9-b512"])


def test_least_bytes() -> None:
    case = ConvCase("c", 1, 1, 1, 4, 4, 3, padding=1)  # x 16, weight 9, y 4 elements
    assert case.min_bytes == 4 * (16 + 9 + 4)
    assert dataclasses.replace(case, mode="train").min_bytes == 4 * (2 * 29 + 9 + 16)
    assert NapCase("p", 2, 65).min_bytes == 2 * 2 * 8 + 2 * 65 * 4
    assert PatternCase("d", 2, 3, 65, "hamming").min_bytes == 5 * 2 * 8 + 6 * 4
    assert PatternCase("t", 2, 3, 65, "topk", 1).min_bytes == 5 * 2 * 8 + 2 * 12
    assert PatternCase("f", 2, 0, 65, "frequency").min_bytes == 2 * 2 * 8 + 65 * 8
    assert PatternCase("h", 2, 0, 65, "hash").min_bytes == 2 * 2 * 8 + 2 * 16
    assert PatternCase("g", 5, 3, 65, "group").min_bytes == 5 * 2 * 8 + 5 * 8 + 3 * 16
    assert PatternCase("t", 2, 3, 65, "topk", 1).counted_words == 2 * 3 * 2
    assert PatternCase("f", 2, 0, 65, "frequency").counted_words == 0


def test_select_refuses_what_is_not_there() -> None:
    assert [case.name for case in select(["nap"], shapes=["pack"])] == ["pack"]
    assert len(select(quick=True)) == 8
    with pytest.raises(ValueError, match="unknown shape mnist9; there are mnist1"):
        select(["conv"], shapes=["mnist9"])
    with pytest.raises(ValueError, match="unknown suite convolution; there are conv, linear, nap, infinite"):
        select(["convolution"])
    with pytest.raises(ValueError, match="unknown mode backward"):
        select(["conv"], modes=["backward"])


# --- the check


@pytest.mark.parametrize("mode", ["forward", "train", "nap"])
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_every_contestant_passes_the_check(no_compile: None, case: ConvCase, mode: str) -> None:
    if mode != "forward" and getattr(case, "pool", "max") != "max":
        pytest.skip("the suite has max pools there")
    prepared = runner.prepare(dataclasses.replace(case, mode=mode), FAST)
    assert {"ours", "eager"} <= set(prepared.calls)
    assert all(error <= prepared.tolerance for error in prepared.errors.values())
    assert set(prepared.absent.values()) <= {"left out", "not installed", "onnx not installed"}


@pytest.mark.parametrize("module", ["onnxruntime", "openvino"])
def test_an_engine_that_is_not_installed_says_so(
    no_compile: None, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    prepared = runner.prepare(SMALL[0], FAST)
    assert prepared.absent[module] == "not installed"
    assert module not in prepared.calls


def test_engines_refuse_bfloat16_by_name(no_compile: None) -> None:
    prepared = runner.prepare(dataclasses.replace(SMALL[0], dtype="bfloat16"), FAST)
    assert prepared.absent["onnxruntime"] == prepared.absent["openvino"] == "no bfloat16 here"


def test_onnx_runtime_sits_out_where_others_are_held_to_an_instruction_set(
    no_compile: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZBKERNELS_CPU_CAPABILITY", "avx2")
    assert runner.prepare(SMALL[0], FAST).absent["onnxruntime"] == "no switch for the instruction set"


def test_a_wrong_result_of_ours_is_never_timed(no_compile: None, monkeypatch: pytest.MonkeyPatch) -> None:
    right = zb.conv_relu_pool2d
    monkeypatch.setattr(zb, "conv_relu_pool2d", lambda *args, **kwargs: right(*args, **kwargs) * 1.0001)
    with pytest.raises(Wrong, match=r"ours: error 0\.0001"):
        runner.prepare(SMALL[0], FAST)
    report = runner.run([SMALL[0]], FAST)
    assert report["rows"] == [] and "ours: error" in report["failed"][0]["error"]


def test_a_wrong_competitor_is_left_out_and_named(no_compile: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contestants, "onnx_runtime", lambda *_: lambda: None)
    monkeypatch.setattr(contestants, "onnx_outputs", lambda _: [torch.zeros(2, 4, 4, 4)])
    prepared = runner.prepare(SMALL[0], FAST)
    assert prepared.absent["onnxruntime"].startswith("wrong: error 1")
    assert "onnxruntime" not in prepared.calls


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_relative_error_refuses_nan_and_inf(wrong: float) -> None:
    with pytest.raises(Wrong, match="NaN or infinity"):
        relative_error(torch.tensor([1.0, wrong]), torch.tensor([1.0, 2.0]).double())
    with pytest.raises(Wrong, match="shape"):
        relative_error(torch.ones(3), torch.ones(2).double())
    assert relative_error(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0]).double()) == pytest.approx(0.1)


def test_tolerance_comes_from_torch_or_the_contract() -> None:
    assert tolerance(1e-7) == pytest.approx(8e-7)
    assert tolerance(1e-7, 1e-5) == 1e-5
    assert tolerance(0.0) == 0.0


def test_a_wrong_signature_bit_is_found() -> None:
    case = dataclasses.replace(SMALL[0], mode="nap")
    made = problem(case)
    y, signature = zb.conv_relu_pool2d_nap(made.x, made.weight, 1, 1)
    assert made.error([y, signature]) < 1e-6
    signature = signature.clone()
    signature[1, 2] ^= 1 << 40
    with pytest.raises(Wrong, match="sign bits differ"):
        made.error([y, signature])


def test_nap_is_exact() -> None:
    made = problem(NapCase("pack", 3, 70))
    out = zb.nap_pack(made.x)
    assert made.error([out]) == 0.0
    out = out.clone()
    out[2, 1] ^= 1
    with pytest.raises(Wrong, match="1 of 6 values differ"):
        made.error([out])


@pytest.mark.parametrize("mode", ["hamming", "topk", "frequency", "hash", "group"])
def test_patterns_are_exact(mode: str, no_compile: None) -> None:
    case = PatternCase(mode, 7, 30, 100, mode, 3)
    prepared = runner.prepare(case, FAST)
    assert {"ours", "eager", "numpy"} <= set(prepared.calls) and set(prepared.errors.values()) == {0.0}
    out = [t.clone() for t in prepared.problem.expected]
    out[-1][-1] += 1
    wrong = "1 of 100 values differ" if mode == "frequency" else r"\d of \d+ values differ|\d\d of 210"
    with pytest.raises(Wrong, match=wrong):
        prepared.problem.error(out)
    with pytest.raises(Wrong, match=r"torch\.float64"):
        prepared.problem.error([t.double() for t in out])


def test_close_decisions_of_the_pool_pass_no_gradient() -> None:
    """Two candidates nearer than rounding: float64 and float32 may disagree, so nobody is asked."""
    made = problem(dataclasses.replace(SMALL[0], mode="train"))
    pre = torch.full((1, 1, 2, 8), -1.0, dtype=torch.float64)
    pre[..., 0, 0], pre[..., 1, 1] = 2.0, 2.0 - made.margin / 2  # a near tie
    pre[..., 0, 2], pre[..., 1, 3] = 2.0, 2.0 - made.margin * 2  # a clear winner
    pre[..., 0, 4] = made.margin / 2  # barely on
    assert made._unclear(pre).flatten().tolist() == [True, False, True, False]


# --- whole networks


SEQUENCES = {name for name, row in ARCHITECTURES.items() if isinstance(row, Architecture)}


@pytest.mark.parametrize("name", [*sorted(SEQUENCES), "tiny"])
def test_operations_of_a_network_are_those_that_torch_counts(name: str, tiny_model: ModelCase) -> None:
    architecture = ARCHITECTURES[name]
    model = build(architecture, architecture.image, 10, fused=False).to("meta")
    images = torch.empty(3, *architecture.image, device="meta")
    with FlopCounterMode(display=False) as forward:
        loss = model(images).sum()
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    case = ModelCase(name, name, 3)
    step = dataclasses.replace(case, mode="train")
    assert case.flops == forward.get_total_flops()
    assert step.flops == forward.get_total_flops() + backward.get_total_flops()
    weights = sum(weight.numel() for weight in model.parameters())
    assert case.min_bytes == 4 * (images.numel() + 3 * 10 + weights)
    assert step.min_bytes == case.min_bytes + 4 * weights


def test_rows_of_networks_reach_512_images() -> None:
    here, card = (select(["models"], device=device) for device in ("cpu", "cuda"))
    for mode in ("forward", "train"):
        models = {case.model for case in here if case.mode == mode}
        assert models >= SEQUENCES - {"resnet9-small"} and {"resnet18", "resnet50-fixup"} <= models
        assert {case.model for case in card if case.mode == mode and case.n == 512} == SEQUENCES - {
            "resnet9-small"
        }
    assert {case.n for case in here} == {1, 4, 32, 64, 128, 512}
    cases = {case.name: case for case in here}
    assert cases["cnn-fashion-b32"].shape == "32x1x28x28 -> 10, 4 layers, 0.809 M weights"
    assert cases["resnet9-b1"].shape == "1x3x32x32 -> 10, 9 layers, 6.57 M weights"
    assert class_of(here[0]) == ""  # nothing is chosen by measurement for a whole network


@pytest.mark.parametrize("mode", ["forward", "train"])
def test_every_form_of_a_network_passes_the_check(no_compile: None, tiny_model: ModelCase, mode: str) -> None:
    prepared = runner.prepare(dataclasses.replace(tiny_model, mode=mode), FAST)
    assert {"ours", "ours CL", "eager", "eager CL"} <= set(prepared.calls)
    assert prepared.tolerance == 1e-5 and max(prepared.errors.values()) <= 1e-5
    assert set(prepared.absent.values()) <= {"left out", "not installed", "onnx not installed"}
    kernels = prepared.kernels["ours"]
    assert kernels and ("torch" in kernels) == (mode == "train")  # the backward of the linear layer


def test_a_network_of_linear_layers_has_no_channels_last_form(no_compile: None) -> None:
    prepared = runner.prepare(ModelCase("fcn-mnist-b3", "fcn-mnist", 3), FAST)
    assert not any(name.endswith("CL") for name in (*prepared.calls, *prepared.absent))


def test_a_compiled_network_is_traced_whole(tiny_model: ModelCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contestants, "COMPILER", "eager")
    prepared = runner.prepare(dataclasses.replace(tiny_model, mode="train"), FAST)
    assert {"compile", "compile CL"} <= set(prepared.calls)


def test_a_wrong_gradient_of_a_network_is_found(tiny_model: ModelCase) -> None:
    made = ModelProblem(dataclasses.replace(tiny_model, mode="train"), "cpu", 1)
    assert made.error(made.expected) == 0.0
    wrong = [*made.expected]
    wrong[3] = wrong[3] * (1 + 2 * made.gradient_tolerance)
    with pytest.raises(Wrong, match=r"gradient of weight 2: error .*, allowed"):
        made.error(wrong)
    with pytest.raises(Wrong, match="3 outputs, expected 8"):
        made.error(made.expected[:3])
    wrong = [made.expected[0] * 1.01, *made.expected[1:]]
    assert made.error(wrong) == pytest.approx(0.01)  # of the loss


def test_a_training_step_is_one_step_of_sgd(tiny_model: ModelCase) -> None:
    architecture = ARCHITECTURES["tiny"]
    model = build(architecture, architecture.image, 10)
    before = [weight.detach().clone() for weight in model.parameters()]
    images, labels = torch.randn(3, *architecture.image), torch.tensor([1, 2, 3])
    step = training_step(with_loss(model), model, learning_rate=0.5)
    for _ in range(2):  # gradients of an earlier step must not stay
        for weight, old in zip(model.parameters(), before, strict=True):
            weight.data.copy_(old)
        loss, logits, *grads = TrainingStep(model, step, images, labels)()
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, labels))
    for weight, old, grad in zip(model.parameters(), before, grads, strict=True):
        assert grad.any()
        torch.testing.assert_close(weight.detach(), old - 0.5 * grad)


def test_timed_steps_leave_the_problem_as_it_is(tiny_model: ModelCase, no_compile: None) -> None:
    call = runner.prepare(dataclasses.replace(tiny_model, mode="train"), FAST).calls["ours"]
    first = float(call()[0])
    for _ in range(50):
        last = float(call()[0])
    assert last == pytest.approx(first, rel=1e-4)


def test_a_layer_that_has_no_onnx_operator_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="no operator is known of second, a Tanh"):
        nodes_of(torch.nn.Sequential(OrderedDict(first=torch.nn.ReLU(), second=torch.nn.Tanh())), "x")


def test_a_row_of_a_network_is_whole(tiny_model: ModelCase, no_compile: None) -> None:
    cases = [tiny_model, dataclasses.replace(tiny_model, mode="train")]
    report = runner.run(cases, FAST)
    assert report["failed"] == [] and [row["mode"] for row in report["rows"]] == ["forward", "train"]
    assert all(row["op"] == "model" and row["gflops"] > 0 for row in report["rows"])
    page = table.markdown(report)
    assert "| tiny-b3 | 3x2x9x8 -> 10, 6 layers," in page and "| ratio | images/s | GFLOP/s |" in page
    forward = report["rows"][0]
    times = [forward["times"][name]["median_ms"] for name in ("ours", forward["best_competitor"])]
    assert f" | {3000 / times[0]:.3g} / {3000 / times[1]:.3g} | " in page


@pytest.mark.parametrize("style", ["plain", "fixup", "nf"])
def test_a_residual_network_passes_the_check_and_as_nodes_of_onnx(
    no_compile: None, style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ResNet("tiny-resnet", "bottleneck", (1, 1), "imagenet", style, width=4, image=(2, 33, 30))
    monkeypatch.setitem(ARCHITECTURES, "tiny-resnet", row)
    for mode in ("forward", "train"):
        made = ModelProblem(ModelCase("tiny-resnet-b3", "tiny-resnet", 3, mode), "cpu", 1)
        assert all(expected.any() for expected in made.expected)  # also behind layers that begin at 0
        for contestant in made.contestants():
            if contestant.name in ("ours", "ours CL", "eager"):
                result = contestant.outputs(contestant.build()())
                assert made.error(result) <= 1e-5, (mode, contestant.name)
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    made = ModelProblem(ModelCase("tiny-resnet-b3", "tiny-resnet", 3), "cpu", 1)
    engine = {contestant.name: contestant for contestant in made.contestants()}["onnxruntime"]
    assert made.error(engine.outputs(engine.build()())) <= 1e-5


# --- rows and files


def test_a_row_holds_what_the_readme_promises(no_compile: None, tmp_path: pathlib.Path) -> None:
    saved = []
    report = runner.run(SMALL[:1], FAST, on_row=lambda report: saved.append(len(report["rows"])))
    assert saved == [1, 1]  # kept at once after the row, and at the end
    (row,) = report["rows"]
    promised = (
        "suite name mode shape dtype device threads kernel times absent errors tolerance best_competitor"
    )
    promised += " kernels ratio ratios gflops gbytes_per_s of_ceiling bound load"
    assert set(promised.split()) <= set(row)
    ours = row["times"]["ours"]
    assert set(ours) == {"median_ms", "min_ms", "spread", "rounds", "inner"} and ours["rounds"] == 2
    others = {name: value["median_ms"] for name, value in row["times"].items() if not name.startswith("ours")}
    assert row["best_competitor"] == min(others, key=others.__getitem__)
    assert row["ratio"] == pytest.approx(min(others.values()) / ours["median_ms"])
    assert row["threads"] == 1
    assert report["ceilings"]["flops"]["float32"] > 1e8 and report["ceilings"]["bytes_per_second"] > 1e8
    first = [path.read_bytes() for path in table.save(report, tmp_path, "bench")]
    again = [path.read_bytes() for path in table.save(json.loads(first[0]), tmp_path, "bench")]
    assert first == again  # stable: what was read back is written the same
    assert sorted(os.listdir(tmp_path)) == ["bench.json", "bench.md"]
    assert "| max | 2x3x9x8 -> 4, 3x3 pad 1, max 2 | float32 |" in first[1].decode()


def test_a_training_row_names_the_kernels_of_both_passes(no_compile: None) -> None:
    linear = LinearCase("linear", 5, 17, 9, mode="train")
    conv, linear_kernels = (
        runner.prepare(case, FAST).kernels["ours"]
        for case in (dataclasses.replace(SMALL[0], mode="train"), linear)
    )
    assert len(conv) == len(linear_kernels) == 2 and "torch" not in conv
    assert linear_kernels[1] == "torch"  # whose own the backward is; not a kernel that ran some time before


def test_who_is_left_out_says_so(no_compile: None) -> None:
    prepared = runner.prepare(SMALL[0], dataclasses.replace(FAST, without=("eager CL",)))
    assert prepared.absent["eager CL"] == "left out" and "eager CL" not in prepared.calls


def test_packing_needs_no_numpy(no_compile: None, monkeypatch: pytest.MonkeyPatch) -> None:
    right = problem(NapCase("pack", 3, 70)).expected
    monkeypatch.setitem(sys.modules, "numpy", None)
    prepared = runner.prepare(NapCase("pack", 3, 70), FAST)
    assert torch.equal(prepared.problem.expected, right)
    assert prepared.absent["numpy"] == "not installed" and prepared.errors["ours"] == 0


def test_no_host_name_or_path_in_a_report(no_compile: None) -> None:
    text = json.dumps(runner.run(SMALL[:1], FAST))
    assert os.uname().nodename not in text and str(ROOT) not in text and os.path.expanduser("~") not in text


def test_a_busy_machine_stands_above_the_table(no_compile: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (9.5, 1.0, 1.0))
    report = runner.run(SMALL[:1], FAST)
    assert any("Load average 9.5 to 9.5 on 2 cores: busy" in line for line in table.headline(report))
    report["device"] = "cuda"  # whose rates of a copy and of a read differ
    assert any(line.startswith("Bandwidth: sum ") and "copy " in line for line in table.headline(report))
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 1.0, 1.0))
    assert "busy" not in table.markdown(runner.run(SMALL[:1], FAST))


def test_missing_contestants_stand_in_the_table(no_compile: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    ((_, header, lines),) = table.tables(runner.run(SMALL[:1], FAST))
    assert lines[0][header.index("openvino")] == "not installed"


def test_floor_is_the_largest_of_the_times() -> None:
    assert LIMITS.floor(10**11, 10**9, "float32") == (1.0, "fma")
    assert LIMITS.floor(10**9, 10**10, "float32") == (1.0, "bytes")
    assert LIMITS.floor(0, 10**10, "float32") == (1.0, "bytes")
    assert LIMITS.floor(0, 10**10, "int64", 10**12) == (1.0, "bytes")  # counting was not measured
    counting = dataclasses.replace(LIMITS, popcounts=5e9)
    assert counting.floor(0, 10**10, "int64", 10**10) == (2.0, "popcount")
    assert counting.floor(0, 10**10, "int64", 10**9) == (1.0, "bytes")
    better = Ceilings({"float32": 2e11}, 1e9, {"fma float32": "other", "bytes": "other"}, {"copy": 1e9})
    merged = Ceilings(dict(LIMITS.flops), LIMITS.bytes_per_second, dict(LIMITS.how))
    merged.merge(better)
    assert (merged.flops, merged.bytes_per_second) == ({"float32": 2e11}, 1e10)
    assert merged.how == {"fma float32": "other", "bytes": "given"} and merged.bandwidth == {"copy": 1e9}


# --- the command


def test_command_line_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--shapes", "nosuch"]) == 2
    assert "unknown shape nosuch" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert command.main(["--device", "cuda"]) == 2
        assert "sees no CUDA device" in capsys.readouterr().err


def test_capability_is_held_in_a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def run(line: list[str], *, env: dict[str, str], check: bool) -> subprocess.CompletedProcess[str]:
        seen.update(env, line=line)
        return subprocess.CompletedProcess(line, 7)

    for name in command.CAPABILITIES["avx2"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(subprocess, "run", run)
    assert command.main(["--capability", "avx2", "--shapes", "mnist1"]) == 7
    assert seen["ZBKERNELS_CPU_CAPABILITY"] == "avx2" and seen["ATEN_CPU_CAPABILITY"] == "avx2"
    assert seen["TORCHINDUCTOR_CACHE_DIR"] != os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    assert seen["line"][1:] == ["-m", "zbkernels.benchmarking", "--capability", "avx2", "--shapes", "mnist1"]


def test_command_prints_and_keeps(
    no_compile: None, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--suite",
        "nap",
        "--shapes",
        "pack-small",
        "--threads",
        "1",
        "--quick",
        "--out",
        str(tmp_path),
    ]
    assert command.main([*arguments, "--machine", "a small machine"]) == 0
    assert "pack-small" in capsys.readouterr().out
    report = json.loads((tmp_path / "bench.json").read_text())
    assert report["machine"] == "a small machine" and report["rows"][0]["times"]["numpy"]["rounds"] == 3


def test_pytest_front_keeps_the_whole_row(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pytest_benchmark")
    out = tmp_path / "bench.json"
    line = [
        sys.executable,
        "-m",
        "pytest",
        "bench/bench_nap.py",
        "-q",
        "-p",
        "no:cacheprovider",
        "--threads",
        "1",
    ]
    line += ["-k", "pack-small", "--rounds", "2", f"--benchmark-json={out}"]
    # pytest-benchmark measures nothing in a worker of pytest-xdist, which this process may be but its child is not.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (bench,) = json.loads(out.read_text())["benchmarks"]
    row = bench["extra_info"]
    assert {"ours", "numpy", "eager"} <= set(row["times"]) and row["ratio"] > 0
    assert row["machine"]["versions"]["torch"] and row["ceilings"]["bytes_per_second"] > 0
