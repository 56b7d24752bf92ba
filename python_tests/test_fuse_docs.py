"""The page on fuse: its code, run in its order as a reader would, and what it says of the report."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from plain_architectures import ARCHITECTURES

from zbkernels.nn import fusion

PAGE = Path(__file__).resolve().parents[1] / "docs" / "fuse.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NEEDED = ("onnx", "onnxruntime")


@pytest.mark.skipif(not PAGE.exists(), reason="an installed package has no docs")
@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_page_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    assert len(blocks) == 7
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    state = torch.get_rng_state()
    try:
        for block in blocks:
            if "onnxruntime" in block and not all(map(importlib.util.find_spec, NEEDED)):
                continue
            exec(compile(block, str(PAGE), "exec"), names)
    finally:
        torch.set_rng_state(state)
        fusion.enable_inductor_pass(False)
    printed = capsys.readouterr().out
    first = re.search(r"^```\n(fuse: .*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert first is not None
    for path in "0379":  # each layer has its line in the page and in what was printed
        for shown in (first[1], printed):
            assert re.search(rf"^  (fused|left ) {path}: ", shown, re.MULTILINE)
    assert re.search(r"plain [\d.e+]+ ms, fused [\d.e+]+ ms", printed)


@pytest.mark.skipif(not PAGE.exists(), reason="an installed package has no docs")
def test_the_reasons_in_the_page_are_those_of_the_report() -> None:
    text = PAGE.read_text(encoding="utf-8")
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(fusion.__file__).parent.glob("*.py"))
    for said in (
        "it has a bias",
        "no ReLU follows",
        ", but ",
        "a hook is on it",
        "without its pool: the un-pooled map is used elsewhere",
        "has a forward of its own",
        "asks for the type of a value",
        "its forward cannot be traced: ",
        "its forward draws random numbers",
        "it draws from the generator",
        "its forward changes the attribute ",
        "its leaky ReLU is not in place",
        "a training step",
    ):
        assert said in text and said in sources, said
    assert f"for {len(ARCHITECTURES)} well-known ones" in text
