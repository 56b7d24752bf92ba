"""The page on replacing layers by hand: its code, run in its order as a reader would, and its table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import zbkernels as zb

PAGE = Path(__file__).resolve().parents[1] / "docs" / "layers-by-hand.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"^\| (`(?:Conv2d|Linear)\(.*) \| (.*) \|$", re.MULTILINE)

pytestmark = [
    pytest.mark.skipif(not PAGE.exists(), reason="an installed package has no docs"),
    pytest.mark.usefixtures("one_thread"),
]


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) == 5
    names: dict[str, object] = {}
    state = torch.get_rng_state()
    try:
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), names)
    finally:
        torch.set_rng_state(state)
    assert 'Unexpected key(s) in state_dict: "bias"' in capsys.readouterr().out
    x, plain = names["x"], names["plain"]
    for network in (names["ours"], names["short"]):
        torch.testing.assert_close(network(x), plain(x), rtol=1e-4, atol=1e-5)


def test_one_layer_in_place_of_three_shifts_the_keys() -> None:
    plain = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.ReLU(), nn.Conv2d(2, 2, 3, bias=False))
    short = nn.Sequential(zb.nn.ConvReLUPool2d(1, 2, 3, pool="none"), nn.Conv2d(2, 2, 3, bias=False))
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "1.weight"'):
        short.load_state_dict(plain.state_dict())


def test_each_row_of_the_table_is_so() -> None:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert len(rows) == 6
    x = {"Conv2d": torch.randn(2, 3, 12, 12), "Linear": torch.randn(4, 5)}
    given = {"Conv2d": "3, 4, 3, padding=1", "Linear": "5, 6"}
    for left, right in rows:
        kind = "Conv2d" if "Conv2d" in left else "Linear"
        layers = [f"nn.{each.replace('…', given[kind])}" for each in re.findall(r"`([^`]+)`", left)]
        plain = nn.Sequential(*(eval(each, {"nn": nn}) for each in layers))
        right = right.replace("…", "…, bias=False", 1)
        ours = eval(re.findall(r"`([^`]+)`", right)[0].replace("…", given[kind]), vars(zb.nn))
        ours.load_state_dict(plain[0].state_dict())
        torch.testing.assert_close(ours(x[kind]), plain(x[kind]), rtol=1e-4, atol=1e-5)
