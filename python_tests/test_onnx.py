"""Networks with fused ops as ONNX: plain Conv, Relu, MaxPool, and equal results in ONNX Runtime; NAP ops by name.

By both exporters of torch: the newer one, and the one that goes by tracing (``dynamo=False``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import zbkernels as zb

pytest.importorskip("onnxscript")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning"),
]


def exported(
    model: nn.Module, x: torch.Tensor, path: Path, dynamo: bool = True, **options: object
) -> list[str]:
    """Write the file, compare ONNX Runtime's result, and return the graph's operations."""
    model.eval()
    if dynamo:
        program = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
        program.save(str(path))
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error", torch.jit.TracerWarning)  # a size would be baked in
            torch.onnx.export(model, (x,), str(path), dynamo=False, input_names=["x"], **options)
    compare(model, x, path)
    return [node.op_type for node in onnx.load(str(path)).graph.node]


def compare(model: nn.Module, x: torch.Tensor, path: Path) -> None:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (actual,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(actual), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamo", [True, False])
def test_layers_become_plain_operations(tmp_path: Path, dynamo: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        zb.nn.ConvReLUPool2d(1, 4, 3, padding="same"),
        zb.nn.ConvReLUPool2d(4, 4, 3, padding=1, pool="none", negative_slope=0.1),
        zb.nn.ConvReLUPool2d(4, 6, 3, pool="avg", pool_kernel=3, pool_stride=2, count_include_pad=False),
        nn.Flatten(),
        zb.nn.LinearReLU(6 * 2 * 2, 8),
        zb.nn.LinearReLU(8, 3, negative_slope=1.0),
    )
    found = exported(model, torch.randn(2, 1, 14, 14), tmp_path / "net.onnx", dynamo)
    kept = [name for name in found if name not in ("Reshape", "Flatten", "Transpose", "Identity", "Constant")]
    assert [name.replace("Gemm", "MatMul") for name in kept] == [
        *("Conv", "Relu", "MaxPool", "Conv", "LeakyRelu", "Conv", "Relu", "AveragePool"),
        *("MatMul", "Relu", "MatMul"),
    ]


def test_traced_a_batch_may_vary(tmp_path: Path) -> None:
    """With an even kernel's padding, dilations that kernels of one position ignore, and a batch of another size."""
    torch.manual_seed(0)
    model = nn.Sequential(
        zb.nn.ConvReLUPool2d(1, 4, 4, padding="same"),
        zb.nn.ConvReLUPool2d(4, 4, 1, dilation=7, pool="none"),
        zb.nn.ConvReLUPool2d(4, 4, (2, 1), dilation=(2, 9), padding="valid"),
        nn.Flatten(),
        zb.nn.LinearReLU(4 * 2 * 3, 5, 0.2),
    )
    path = tmp_path / "net.onnx"
    exported(model, torch.randn(2, 1, 14, 14), path, False, dynamic_axes={"x": {0: "batch"}})
    compare(model, torch.randn(5, 1, 14, 14), path)


@pytest.mark.parametrize(
    ("layer", "shape"), [(zb.nn.ConvReLUPool2d(1, 2, 3), (1, 8, 8)), (zb.nn.LinearReLU(5, 2), (5,))]
)
def test_traced_without_a_batch(layer: nn.Module, shape: tuple[int, ...], tmp_path: Path) -> None:
    exported(layer, torch.randn(shape), tmp_path / "layer.onnx", False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: zb.conv_relu_pool2d(x, torch.ones(3, 2, 3, 3)),
            "conv_relu_pool2d: expected weight of shape",
        ),
        (lambda x: zb.linear_relu(x, torch.ones(2, 3)), "linear_relu: expected x of shape"),
    ],
)
def test_traced_calls_are_checked(
    call: Callable[[torch.Tensor], torch.Tensor], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        torch.onnx.export(Calling(call), (torch.randn(2, 1, 8, 8),), str(tmp_path / "x.onnx"), dynamo=False)
    assert not torch.jit.is_tracing()


def test_a_trace_for_torchscript_keeps_the_ops() -> None:
    traced = torch.jit.trace(zb.nn.LinearReLU(5, 2), torch.randn(3, 5))
    assert "zb::linear_relu" in str(traced.inlined_graph)


@pytest.mark.parametrize("dynamo", [True, False])
def test_a_fused_model_and_a_residual_block(tmp_path: Path, dynamo: bool) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 3, padding=1, bias=False)
            self.end = zb.nn.ConvReLUPool2d(1, 1, 3, padding=1, pool="none")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.max_pool2d(torch.relu(self.conv(self.end(x, residual=x))), 2)

    torch.manual_seed(0)
    model = Block()
    assert zb.fuse(model)
    assert exported(model, torch.randn(1, 1, 8, 8), tmp_path / "net.onnx", dynamo) == [
        *("Conv", "Add", "Relu"),
        *("Conv", "Relu", "MaxPool"),
    ]


class Calling(nn.Module):
    def __init__(self, call: Callable[[torch.Tensor], object], *layers: nn.Module) -> None:
        super().__init__()
        self.call = call
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> object:
        return self.call(x)


def test_nap_ops_are_refused_by_name() -> None:
    pattern = Calling(lambda x: zb.nap_pack(x > 0))
    with pytest.raises(torch.onnx.errors.OnnxExporterError, match="zb") as told:
        torch.onnx.export(pattern, (torch.randn(2, 70),), dynamo=True, verbose=False)
    assert "nap_pack" in str(told.value)


@pytest.mark.parametrize("name", ["nap_pack", "conv_relu_pool2d_nap", "linear_relu_nap"])
def test_nap_ops_are_refused_by_name_when_traced(name: str, tmp_path: Path) -> None:
    conv, linear = zb.nn.ConvReLUPool2d(1, 2, 3), zb.nn.LinearReLU(8, 4)
    calls = {
        "nap_pack": lambda x: zb.nap_pack(x > 0),
        "conv_relu_pool2d_nap": conv.forward_nap,
        "linear_relu_nap": linear.forward_nap,
    }
    with pytest.raises(torch.onnx.errors.UnsupportedOperatorError, match=f"zb::{name}"):
        torch.onnx.export(
            Calling(calls[name], conv, linear),
            (torch.randn(2, 1, 8, 8),),
            str(tmp_path / "x.onnx"),
            dynamo=False,
        )
