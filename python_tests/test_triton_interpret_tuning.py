"""The tuner over a public op on Triton's interpreter, from the call to what the next call takes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1, set before triton is imported", allow_module_level=True)
pytest.importorskip("triton")

import zbkernels as zb
from zbkernels import cards
from zbkernels.benchmarking.timing import wall_clock
from zbkernels.cards import Card
from zbkernels.triton import config, nap_pack, results
from zbkernels.triton.config import Config, choose
from zbkernels.triton.launch import ceil_div, start
from zbkernels.tuning import tune, workloads
from zbkernels.tuning.tuner import Tuner

CARD = Card("Interpreter", "0.0")
KEY = ("nap_pack", "float32", "made up")
GOOD, OTHER, BROKEN = (Config({"BLOCK_ROWS": rows, "BLOCK_HALVES": 4}) for rows in (1, 4, 3))


@pytest.fixture(autouse=True)
def choosing_op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """nap_pack with three candidates, one of which no kernel can be made of; the configurations that it took."""
    taken: list[Config] = []

    def choosing(
        kernel: Any, _programs: int, x: torch.Tensor, sig: torch.Tensor, rows: int, *rest: Any, **fixed: Any
    ) -> None:
        chosen = choose("nap_pack", x.device, x.dtype, "made up", lambda: (GOOD, OTHER, BROKEN))
        taken.append(chosen)
        fixed |= chosen.constants
        programs = ceil_div(rows, fixed["BLOCK_ROWS"]) * ceil_div(sig.shape[1], fixed["BLOCK_HALVES"])
        start(kernel, programs, x, sig, rows, *rest, **fixed, num_warps=chosen.num_warps)

    monkeypatch.setattr(nap_pack, "start", choosing)
    monkeypatch.setenv("ZBKERNELS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cards, "card_of", lambda device: CARD)
    monkeypatch.setattr(results, "_read", {})
    config.forget()
    yield taken
    config.forget()


def test_a_public_op_is_tuned_and_takes_what_was_found(choosing_op: list[Config]) -> None:
    (call,) = workloads(["nap_pack"], ["10x200"], ["float32"], "cpu")
    clock_says = {GOOD: 2.0, OTHER: 1.0}

    def clock(run: Any, inner: int) -> float:
        wall_clock(run, 1)
        return clock_says[choosing_op[-1]]

    tuner = Tuner(clock, lambda: None, lambda key, result: results.save(CARD, {key: result}), rounds=1)
    (row,) = tune([call], tuner)
    assert (row.key, row.state, list(row.failures)) == (KEY, "tuned", [str(BROKEN)])
    assert results.load(CARD)[KEY].config == OTHER
    x = torch.randn(5, 100)
    with zb.use_backend("triton"):
        packed = zb.nap_pack(x)
    assert choosing_op[-1] == OTHER
    assert torch.equal(packed, zb.nap_pack(x))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, within the interpreter
@pytest.mark.parametrize("shape", ("2x3x8x8 -> 4, 3x3 pad 1, max 2", "3x7 -> 9"))
def test_every_kind_of_workload_runs_and_is_right(shape: str) -> None:
    for call in workloads(shapes=[shape], dtypes=["float32"], device="cpu"):
        prepared = call.prepare()
        assert prepared.error(prepared.call()) < 1e-5, call.name
