"""The page on scalar invariance: its commands and code, run in its order as a reader would."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from zbkernels.cli import app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "invariance.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.skipif(not PAGE.exists(), reason="an installed package has no docs")
@pytest.mark.usefixtures("one_thread")
def test_the_page_runs(capsys):
    text = PAGE.read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    assert [kind for kind, _ in blocks] == ["sh", *["python"] * 8]
    names: dict[str, object] = {}
    state = torch.get_rng_state()
    try:
        for kind, block in blocks:
            if kind == "python":
                exec(compile(block, str(PAGE), "exec"), names)
                continue
            for line in block.splitlines():
                program, *arguments = shlex.split(line, comments=True)
                result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
                wanted = re.search(r"# exit code (\d)", line)
                assert program == "zb" and result.exit_code == int(wanted[1] if wanted else 0), result.output
    finally:
        torch.set_rng_state(state)
    printed = capsys.readouterr().out
    for said in (
        "not scalar invariant",
        "'1' (BatchNorm2d, native_batch_norm)",
        "homogeneous of degree 3",
        "underflow",
        "at powers of four alone",
    ):
        assert said in printed and said in text
    for figure in re.findall(r"!\[[^]]*\]\(([^)]*)\)", text):
        assert 1000 < (PAGE.parent / figure).stat().st_size < 150_000, figure
    with_norm, dropped, fixup = (found for found in re.findall(r"^\[[\d., ]+\]", printed, re.MULTILINE)[:3])
    assert with_norm != dropped != fixup
