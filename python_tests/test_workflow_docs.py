"""The page on torch's workflows: its code, run in its order as a reader would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).resolve().parents[1] / "docs" / "workflows.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.skipif(not PAGE.exists(), reason="an installed package has no docs")
@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore")
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) == 11
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    state = torch.get_rng_state()
    try:
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), names)
    finally:
        torch.set_rng_state(state)
        torch._dynamo.reset()
    for made in (
        "compiled",
        "again",
        "scaled",
        "average",
        "each_samples",
        "outline",
        "single",
        "normed",
        "pruned",
    ):
        assert made in names
