"""The tutorial's commands and code, run in its order as a reader would."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from zbkernels.cli import app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "nap.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.skipif(not PAGE.exists(), reason="an installed package has no docs")
def test_the_page_runs(tmp_path, monkeypatch):
    from safetensors.torch import save_file

    from zbkernels.data import load_digits
    from zbkernels.models import ARCHITECTURES, build
    from zbkernels.train import TrainConfig, train

    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert [kind for kind, _ in blocks] == ["sh", "sh", "python", "sh", "sh", "sh", "python"]
    model = build(ARCHITECTURES["fcn-mnist"], (1, 8, 8), 10)  # docs/nap_figures.py trains it for longer
    train(model, load_digits(), TrainConfig(epochs=3, batch_size=32, lr=0.002, optimizer="adam"))
    (tmp_path / "out/nap").mkdir(parents=True)
    save_file(model.state_dict(), tmp_path / "out/nap/digits.safetensors")
    names: dict[str, object] = {}
    for kind, text in blocks[1:]:
        if kind == "python":
            exec(compile(text, str(PAGE), "exec"), names)
            continue
        program, *arguments = shlex.split(text.replace("\\\n", " "), comments=True)
        result = CliRunner().invoke(app, arguments)
        assert program == "zb" and result.exit_code == 0, result.output
    for figure in re.findall(r"!\[[^]]*\]\(([^)]*)\)", PAGE.read_text(encoding="utf-8")):
        assert 1000 < (PAGE.parent / figure).stat().st_size < 150_000, figure
