"""The ops on signatures, emulated: packing from each layout of memory, and what is done with packed rows."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from compare import outputs
from emulation import MISSING
from exact import DTYPE_IDS, DTYPES

import zbkernels as zb
from zbkernels import _loader
from zbkernels.ops import OPS

if not _loader.emulated_path().exists():
    pytest.skip(MISSING, allow_module_level=True)
state = _loader.load_emulated()
assert state.loaded, state.reason
ops = torch.ops.zb_emulated
SANITIZER = os.environ.get("ZBKERNELS_SANITIZER", "")

FEATURES = torch.randn(3, 40, 9, 7, generator=torch.Generator().manual_seed(3))
NAP_LAYOUTS = {
    "one run of words": (FEATURES.reshape(-1)[: 5 * 192].view(5, 192), "vectors"),
    "aligned rows": (FEATURES.reshape(-1)[: 7 * 1072].view(7, 1072), "vectors"),
    "aligned rows with gaps": (FEATURES.reshape(-1)[:7552].view(59, 128)[:, :83], "vectors"),
    "more words than a warp makes": (FEATURES.reshape(1, -1), "vectors"),
    "rows that start anywhere": (FEATURES.reshape(-1)[: 29 * 259].view(29, 259), "shifted vectors"),
    "rows within a vector": (FEATURES.reshape(-1)[:7557].view(2519, 3), "shifted vectors"),
    "odd offset, whole words": (FEATURES.reshape(-1)[5 : 5 + 2 * 640].view(2, 640), "shifted vectors"),
    "one row for all": (FEATURES.reshape(-1)[:75].expand(9, 75), "vectors"),
    "channels_last": (FEATURES.contiguous(memory_format=torch.channels_last), "columns"),
    "channels_last of few channels": (
        FEATURES[:, :3].contiguous(memory_format=torch.channels_last),
        "words",
    ),
    "channels_last, batch reversed in memory": (
        FEATURES.permute(1, 0, 2, 3).contiguous(memory_format=torch.channels_last).permute(1, 0, 2, 3),
        "words",
    ),
    "some channels of channels_last": (
        FEATURES.contiguous(memory_format=torch.channels_last)[:, 3:12],
        "columns",
    ),
    "transposed": (FEATURES[0, 0].t(), "words"),
}


@pytest.mark.parametrize("dtype", (*DTYPES, torch.bool), ids=(*DTYPE_IDS, "bool"))
@pytest.mark.parametrize("layout", NAP_LAYOUTS)
def test_nap_pack_of_each_layout(layout: str, dtype: torch.dtype) -> None:
    floats, kernel = NAP_LAYOUTS[layout]
    # The same strides and offset in the other dtype.
    base = floats.as_strided((floats.untyped_storage().nbytes() // 4,), (1,), 0)
    values = (base > 0) if dtype == torch.bool else base.to(dtype)
    x = values.as_strided(floats.shape, floats.stride(), floats.storage_offset())
    got = ops.nap_pack(x)
    assert zb.last_kernel() == f"cuda-emulated: nap_pack {kernel}"
    assert torch.equal(got, OPS["nap_pack"].reference(x))


@pytest.mark.parametrize("units", (1, 5, 15, 16, 17, 64, 83, 128, 1000))
def test_nap_unpack_inverts_nap_pack(units: int) -> None:
    x = torch.randn(41, units, generator=torch.Generator().manual_seed(units)) > 0
    sig = ops.nap_pack(x)
    assert torch.equal(ops.nap_unpack(sig, units), x)
    apart = torch.full((41, 2 * sig.shape[1]), -1)
    apart[:, ::2] = sig
    assert torch.equal(ops.nap_unpack(apart[:, ::2], units), x)


# --- hashes, distances, nearest rows, groups, frequencies ---------------------------------------------------------

SIGNATURE_OPS = {
    "nap_hash": "nap_hash rows",
    "nap_hamming": "nap_hamming bit products",
    "nap_topk": "nap_topk ",
    "nap_group": "nap_group table",
    "nap_frequency": "nap_frequency units",
}


def check(name: str, *args: Any) -> None:
    """The emulated kernel gives what the reference gives, number for number."""
    got, want = outputs(getattr(ops, name)(*args)), outputs(OPS[name].reference(*args))
    for ours, theirs in zip(got, want, strict=True):
        assert ours.dtype == theirs.dtype and ours.is_contiguous()
        assert torch.equal(ours, theirs)


def draw(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("name", SIGNATURE_OPS)
def test_signature_op(name: str) -> None:
    ran = False
    for sample in list(OPS[name].samples())[:: 3 if SANITIZER == "tsan" else 1]:
        check(name, *sample.args)
        getattr(ops, name)(*sample.args)
        ran |= zb.last_kernel().startswith(f"cuda-emulated: {SIGNATURE_OPS[name]}")
    assert ran


@pytest.mark.parametrize("words", (1, 8, 9, 16, 18, 37))
def test_distances_of_whole_and_cut_tiles(words: int) -> None:
    """Chunks in registers and chunks read again, of pairs of words and of single ones; several parts a batch."""
    a, b = draw(45, words), draw(150, words)
    check("nap_hamming", a, b)
    check("nap_hamming", a[:1], b)
    check("nap_topk", a, b, 7)


@pytest.mark.parametrize("queries, k", ((3, 1), (3, 128), (40, 5), (40, 96)))
def test_nearest_of_many_parts(queries: int, k: int) -> None:
    """Parts of several tiles, lists that are cut several times, ties within and across the parts."""
    db = draw(1500 if SANITIZER != "tsan" else 500, 2)
    check("nap_topk", draw(queries, 2), db, k)
    check("nap_topk", draw(queries, 2) & 3, db & 1, k)


@pytest.mark.parametrize("k", (1, 64))
def test_every_row_is_nearer_than_those_before(k: int) -> None:
    """Each of a part's rows enters the lists, of all queries at once."""
    rows = 1280 if not SANITIZER else 320
    bits = torch.arange(rows - 1, -1, -1)
    db = OPS["nap_pack"].reference(
        torch.arange(1280)[None] < bits[:, None]
    )  # [rows, 20]: one bit less on in each
    check("nap_topk", torch.zeros(33, 20, dtype=torch.int64), db, k)


def test_nearest_with_keys_of_64_bits() -> None:
    """Rows of 2**17 bits and more leave a key of 32 bits too few for the row's number."""
    q, db = draw(2, 2050), draw(40, 2050)
    db[7], db[31] = q[0] ^ 1, q[0] ^ 2
    check("nap_topk", q, db, 3)
    if SANITIZER != "tsan":
        check("nap_topk", q, db, 40)


def test_more_neighbours_than_a_list_holds() -> None:
    """Pieces of the table of keys: several of the database, and several of the queries."""
    db = draw(4500 if not SANITIZER else 600, 1) & 0xFFFF
    check("nap_topk", draw(65, 1) & 0xFF, db, 129)
    assert zb.last_kernel() == "reference"
    ops.nap_topk(db[:2], db, 129)
    assert zb.last_kernel() == "cuda-emulated: nap_topk pieces"
    check("nap_topk", db[:3], db, len(db))


@pytest.mark.parametrize("words", (1, 2, 3, 8, 70))
def test_groups_of_many_tiles(words: int) -> None:
    distinct = draw(4100 if words < 8 else 150, words)
    check("nap_group", distinct)
    check("nap_group", torch.cat([distinct.flip(0), distinct, distinct[::3]]))
    check("nap_group", distinct[:1].expand(5000, words))


@pytest.mark.parametrize("words", (1, 5, 32, 33))
def test_frequencies_past_the_planes(words: int) -> None:
    """More rows of a thread than its planes count, and a rest; units that are on in every row."""
    down = 256 // max(across for across in (1, 2, 4, 8, 16, 32) if across < 2 * words)
    rows = (31 * 8 * down + 1) * (8 if not SANITIZER and words == 5 else 1) + 3
    sig = draw(97, words).repeat(rows // 97 + 1, 1)[:rows]
    sig[:, 0] |= -(2**63) + 1
    check("nap_frequency", sig, 64 * words)
    check("nap_frequency", sig.t().contiguous().t(), 64 * words - 3)
