"""Networks with fused ops as ONNX: plain Conv, Relu, MaxPool, and equal results in ONNX Runtime; NAP ops by name."""

from __future__ import annotations

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


def exported(model: nn.Module, x: torch.Tensor, path: Path) -> list[str]:
    """Write the file, compare ONNX Runtime's result, and return the graph's operations."""
    model.eval()
    program = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
    program.save(str(path))
    (actual,) = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(
        None, {program.model.graph.inputs[0].name: x.numpy()}
    )
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(actual), model(x), rtol=1e-4, atol=1e-5)
    return [node.op_type for node in onnx.load(str(path)).graph.node]


def test_layers_become_plain_operations(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        zb.nn.ConvReLUPool2d(1, 4, 3, padding="same"),
        zb.nn.ConvReLUPool2d(4, 4, 3, padding=1, pool="none", negative_slope=0.1),
        zb.nn.ConvReLUPool2d(4, 6, 3, pool="avg", pool_kernel=3, pool_stride=2, count_include_pad=False),
        nn.Flatten(),
        zb.nn.LinearReLU(6 * 2 * 2, 8),
        zb.nn.LinearReLU(8, 3, negative_slope=1.0),
    )
    found = exported(model, torch.randn(2, 1, 14, 14), tmp_path / "net.onnx")
    kept = [name for name in found if name not in ("Reshape", "Transpose", "Identity", "Constant")]
    assert [name.replace("Gemm", "MatMul") for name in kept] == [
        *("Conv", "Relu", "MaxPool", "Conv", "LeakyRelu", "Conv", "Relu", "AveragePool"),
        *("MatMul", "Relu", "MatMul"),
    ]


def test_a_fused_model_and_a_residual_block(tmp_path: Path) -> None:
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
    assert exported(model, torch.randn(1, 1, 8, 8), tmp_path / "net.onnx") == [
        *("Conv", "Add", "Relu"),
        *("Conv", "Relu", "MaxPool"),
    ]


def test_nap_ops_are_refused_by_name() -> None:
    class Pattern(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return zb.nap_pack(x > 0)

    with pytest.raises(torch.onnx.errors.OnnxExporterError, match="zb") as told:
        torch.onnx.export(Pattern(), (torch.randn(2, 70),), dynamo=True, verbose=False)
    assert "nap_pack" in str(told.value)
