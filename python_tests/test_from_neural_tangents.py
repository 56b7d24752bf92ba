"""The code of docs/from-neural-tangents.md, run in its order, and the names in its tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from zbkernels import infinite
from zbkernels.infinite import activations, predict

PAGE = Path(__file__).resolve().parents[1] / "docs" / "from-neural-tangents.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not PAGE.exists(), reason="an installed package has no docs"),
]


def test_the_page_runs() -> None:
    pytest.importorskip("sklearn")
    names: dict[str, object] = {}
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) == 4
    for text in blocks:
        exec(compile(text, str(PAGE), "exec"), names)
    assert names["T"].shape == (100, 100) and torch.equal(names["T"], names["T"].mT)
    assert names["mean"].shape == (10, 3) and names["covariance"].shape == (10, 10)
    assert names["early"].shape == (3, 10, 3) and not names["early"][0].any()
    assert names["variance"].shape == (10,) and names["posterior"].covariance.shape == (10, 10)
    assert names["std"].shape == (10, 3) and names["rate"] > 0
    assert names["empirical_ntk"].shape == (300, 300)


def test_the_tables_name_what_there_is() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in (
        "relu",
        "leaky_relu:0.1",
        "abs",
        "identity",
        "erf:2",
        "gelu",
        "sin",
        "cos",
        "sigmoid_erf",
        "tanh",
    ):
        activations.named(name)
        assert f'"{name.partition(":")[0]}' in text
    scaled = activations.named("erf:2").with_(scale=3.0, offset=0.5)
    x = torch.tensor([0.3])
    torch.testing.assert_close(scaled(x), 3 * torch.erf(2 * x) + 0.5)
    for name in ("gradient_descent_mse_ensemble", "gp_inference", "max_learning_rate", "Gaussian"):
        assert name in text and hasattr(predict, name)
    for name in (
        "FullyConnected",
        "nngp",
        "ntk",
        "from_callable",
        "LinearizedNet",
        "DifferenceNet",
        "features",
    ):
        assert name in text and hasattr(infinite, name)
