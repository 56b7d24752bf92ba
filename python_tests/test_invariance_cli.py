"""``zb check-invariance``: what it prints, its exit codes, and how it fails."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from invariance_nets import trained_resnet
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner, Result

from zbkernels.cli import app
from zbkernels.models import ARCHITECTURES, build

pytestmark = pytest.mark.usefixtures("one_thread")


def zb(*arguments: object) -> Result:
    environment = {"ZBKERNELS_DATA": None, "COLUMNS": "200"}
    return CliRunner().invoke(app, ["check-invariance", *map(str, arguments)], env=environment)


def values(*arguments: object, code: int) -> dict:
    result = zb(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def error(*arguments: object) -> str:
    result = zb(*arguments)
    assert result.exit_code == 2, result.output
    (line,) = [line for line in result.output.splitlines() if line.startswith("zb:")]
    assert "Traceback" not in result.output
    return line


def test_untrained_networks_by_name():
    result = zb("cnn-fashion", "--scalars", "1,0.0001")
    assert result.exit_code == 0 and "scalar invariant: f(s·x) = s·f(x)" in result.output
    assert "4 of random images 1×28×28" in result.output and "0.0001" in result.output
    result = zb("cnn-fashion", "--bias", "--scalars", "1,0.0001")
    assert result.exit_code == 1 and "adds the bias 'conv1.bias'" in result.output
    found = values("fcn-mnist", "--bias", "--count", 3, "--scalars", "0.5", "--shape", "1,4,4", code=1)
    assert found["first_break"]["path"] == "fc1" and found["inputs"] == "3 of random images 1×4×4"
    assert found["invariant"] is False and [row["scalar"] for row in found["scalars"]] == [0.5]


@pytest.mark.skipif("resnet18-w16-bn" not in ARCHITECTURES, reason="no network with batch norm is there")
def test_batch_norm_is_found_in_its_networks():
    name = "resnet18-w16-bn"
    found = values(name, "--count", 1, "--scalars", "1,0.1", code=1)
    assert found["first_break"]["kind"] == "batch norm"


def test_dtypes_and_all_operations():
    result = zb("fcn-mnist", "--dtype", "float16", "--scalars", "1,0.0001", "--operations")
    assert result.exit_code == 0 and "in float16" in result.output and "linear_relu" in result.output
    found = values("fcn-mnist", "--dtype", "float16", "--scalars", "0.0001", code=0)
    assert found["dtype"] == "float16" and found["scalars"][0]["below"] > 0


@pytest.mark.parametrize("bias", [False, True])
def test_a_trained_networks_folder_and_its_weights(tmp_path, bias):
    row = ARCHITECTURES["fcn-mnist"]
    model = build(row, (1, 8, 8), 10, bias=bias)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "settings.json").write_text(json.dumps({"architecture": str(row)}))
    found = values(tmp_path, "--scalars", "0.1", code=int(bias))  # images of the shape that the weights fit
    assert found["inputs"] == "4 of random images 1×8×8" and found["filled"] == []
    weights = tmp_path / "model.safetensors"
    found = values(weights, "--architecture", "fcn-mnist", "--images", "digits", "--count", 2, code=int(bias))
    assert found["inputs"] == "2 of scikit-learn digits (8×8), test images" and len(found["scalars"]) == 14


def made() -> nn.Module:
    return trained_resnet()


def test_modules_and_exported_programs(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((2, 3, 12, 12), dtype=np.float32))
    source = f"{__name__}:made"
    found = values(source, "--images", tmp_path / "x.npy", "--scalars", "0.1", code=1)
    assert (found["first_break"]["path"], found["first_break"]["kind"]) == ("bn1", "batch norm")
    program = torch.export.export(made(), (torch.rand(2, 3, 12, 12),))
    torch.export.save(program, tmp_path / "model.pt2")
    found = values(tmp_path / "model.pt2", "--shape", "3,12,12", "--count", 2, "--scalars", "0.1", code=1)
    assert found["first_break"]["kind"] == "batch norm"


class Fails(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, x):
        raise self.error


def failing() -> nn.Module:
    raise KeyError("width")


def leaving() -> nn.Module:
    raise SystemExit(0)


def ok() -> nn.Module:
    return nn.Flatten()


def not_a_number() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 3))
    nn.init.constant_(model[1].weight, float("nan"))
    return model


key, zero, mute = (
    Fails(KeyError("mask")),
    Fails(ZeroDivisionError("division by zero")),
    Fails(AssertionError()),
)


def test_a_networks_own_errors_are_one_line():
    assert "cannot be made (KeyError: 'width')" in error(f"{__name__}:failing")
    assert "cannot be made (SystemExit: 0)" in error(f"{__name__}:leaving")
    where = "does not run on random images 1×28×28 [4, 1, 28, 28]"
    assert f"{where} (KeyError: 'mask')" in error(f"{__name__}:key")
    assert f"{where} (ZeroDivisionError: division by zero)" in error(f"{__name__}:zero")
    assert f"{where} (AssertionError)" in error(f"{__name__}:mute")
    assert "NaN or infinities are in '1.weight'" in error(f"{__name__}:not_a_number")


def test_text_stays_text():
    result = zb(f"{__name__}:ok")
    assert result.exit_code == 0 and f"{__name__}:ok: 0 operations on" in result.output
    assert "nothing:x:ok:heart:" in error("nothing:x:ok:heart:")  # rich knows emoji by such names


def test_errors(tmp_path):
    assert "expected a trained network's folder" in error("nothing-like-it")
    assert "--shape: expected channels,height,width" in error("fcn-mnist", "--shape", "3,32")
    assert "--scalars: expected positive numbers" in error("fcn-mnist", "--scalars", "1,-1")
    assert "--dtype: expected one of float16" in error("fcn-mnist", "--dtype", "int8")
    assert "block 1 pools 2×2" in error("cnn-fashion", "--shape", "1,1,1")
    assert "--bias is for an untrained network" in error(f"{__name__}:made", "--bias")
    assert "does not run on random images 1×28×28" in error(f"{__name__}:made")
    assert "no such function" in error(f"{__name__}:nothing")
    np.save(tmp_path / "zero.npy", np.zeros((1, 1, 28, 28), np.float32))
    assert "expected x that is not 0 everywhere" in error("fcn-mnist", "--images", tmp_path / "zero.npy")
    row = ARCHITECTURES["fcn-mnist"]
    save_file(build(row, (1, 5, 5), 10).state_dict(), tmp_path / "odd.safetensors")
    assert "or its --shape" in error(tmp_path / "odd.safetensors", "--architecture", "fcn-mnist")
