"""The ops on packed patterns against exact oracles: hashes, groups, distances, nearest rows, frequencies.

``test_ops.py`` drives them from their samples; here are properties, rows made to collide, sizes that cross the
kernels' blocks, and each instruction set.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import zbkernels as zb
from zbkernels import _loader
from zbkernels.ops import OPS
from zbkernels.ops._op import COMPILED

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

COMMON = settings(max_examples=100, deadline=None, derandomize=True)
WORDS = 2**64
group_module = importlib.import_module("zbkernels.ops.nap_group")


def draw(*shape: int, seed: int = 0, device: str = "cpu") -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, shape, generator=g).to(device)


@st.composite
def small_batches(draw_: Any, most_rows: int, most_words: int) -> torch.Tensor:
    """Rows of few kinds, sliced out of a wider batch or expanded."""
    rows, words = draw_(st.integers(0, most_rows)), draw_(st.integers(0, most_words))
    seed, kinds = draw_(st.integers(0, 1000)), draw_(st.integers(1, 8))
    if draw_(st.booleans()):
        return draw(kinds, words, seed=seed)[torch.arange(rows) * 7 % kinds]
    wide = draw(2 * rows, words + 3, seed=seed) & draw_(st.sampled_from([-1, 1, 3]))
    offset = draw_(st.integers(0, 3))
    return wide[::2, offset : offset + words]


# --- nap_hash -----------------------------------------------------------------------------------------------------


def mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORDS
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORDS
    return x ^ (x >> 31)


def hash_of(row: list[int]) -> list[int]:
    """The definition, in Python's own whole numbers."""
    golden = 0x9E3779B97F4A7C15
    s = [mix((w + (i + 1) * golden) % WORDS) for i, w in enumerate(row)]
    a = (len(row) + sum(s)) % WORDS
    b = mix((golden + sum((x % 2**32) * (x >> 32) for x in s) + a) % WORDS)
    return [mix((a + b) % WORDS), b]


def test_hash_is_the_same_in_every_version(device: str) -> None:
    """Files hold hashes: these values must never change."""
    for row, wanted in (
        ([], [5197578548964807871, -2152535657050944081]),
        ([0], [-5231078377092072979, -9220311401505613671]),
        ([0, 0], [-4067531541786422346, 3370029275356327878]),
        ([-1], [-155025124179889128, 603766806072780765]),
        ([1, 2, 3], [8972678094574002171, -2647982534120412893]),
    ):
        sig = torch.tensor([row], dtype=torch.int64, device=device)
        assert zb.nap_hash(sig).tolist() == [wanted], row


@COMMON
@given(small_batches(40, 19))
def test_hash_against_whole_numbers(sig: torch.Tensor) -> None:
    got = [[h % WORDS for h in row] for row in zb.nap_hash(sig).tolist()]
    assert got == [hash_of([w % WORDS for w in row]) for row in sig.tolist()]


def test_rows_that_are_alike_have_different_hashes(device: str) -> None:
    one_bit = (torch.ones(64, dtype=torch.int64) << torch.arange(64))[:, None]
    rows = [torch.zeros(1, 8, dtype=torch.int64), torch.full((1, 8), -1)]
    for place in range(8):  # one bit on; one bit off; the same word at another place
        padded = torch.zeros(64, 8, dtype=torch.int64)
        padded[:, place] = one_bit[:, 0]
        rows += [padded, ~padded]
    pairs = torch.cat(rows)
    swapped = torch.cat([torch.roll(draw(1, 8), shift, 1) for shift in range(8)])
    distinct = torch.cat([pairs, swapped]).to(device)
    hashes = zb.nap_hash(distinct)
    for column in (0, 1):
        assert len(hashes[:, column].unique()) == len(distinct)
    widths = [zb.nap_hash(torch.zeros(1, w, dtype=torch.int64, device=device)) for w in range(70)]
    assert len(torch.cat(widths).unique(dim=0)) == 70


def test_each_bit_changes_half_of_the_hash(device: str) -> None:
    base = draw(64, 3)
    before = zb.nap_hash(base.to(device)).cpu()
    for bit in (0, 1, 31, 32, 62, 63):
        for place in range(3):
            other = base.clone()
            other[:, place] ^= (1 << bit) if bit < 63 else -(2**63)
            differ = zb.nap_hash(other.to(device)).cpu() ^ before
            flipped = zb.nap_unpack(differ.contiguous(), 128).float().mean().item()
            assert abs(flipped - 0.5) < 0.04, (bit, place, flipped)  # 8192 bits: 7 standard deviations


# --- nap_group ----------------------------------------------------------------------------------------------------


def groups_by_dict(sig: torch.Tensor) -> tuple[list[int], list[int], list[int]]:
    number: dict[tuple[int, ...], int] = {}
    ids, first, counts = [], [], []
    for n, row in enumerate(map(tuple, sig.tolist())):
        if row not in number:
            number[row] = len(first)
            first.append(n)
            counts.append(0)
        ids.append(number[row])
        counts[number[row]] += 1
    return ids, first, counts


@COMMON
@given(small_batches(60, 11))
def test_groups_against_a_dict(sig: torch.Tensor) -> None:
    got = zb.nap_group(sig)
    assert [t.dtype for t in got] == [torch.int64] * 3
    assert tuple(t.tolist() for t in got) == groups_by_dict(sig)


def test_28_groups_are_numbered_by_first_appearance(device: str) -> None:
    # rusty1s/pytorch_unique #7: the last index of a group in place of its first
    column = torch.tensor([100, 10, 100, 1, 1000, 1, 1000, 1], device=device)[:, None]
    for sig in (column, torch.cat([torch.zeros_like(column), column], 1), -column):
        ids, first, counts = (t.tolist() for t in zb.nap_group(sig))
        assert (ids, first, counts) == ([0, 1, 0, 2, 3, 2, 3, 2], [0, 1, 3, 4], [2, 1, 3, 2])
    assert [t.tolist() for t in zb.nap_group(column[:0])] == [[], [], []]
    kinds = draw(3, 4, device=device)
    sig = kinds[torch.randint(3, (200_000,), generator=torch.Generator().manual_seed(1)).to(device)]
    found = zb.nap_group(sig)
    ids, first, counts = found
    assert torch.equal(sig[first][ids], sig) and counts.sum() == len(sig) and len(first) == 3
    assert torch.equal(counts, torch.bincount(ids)) and first[0] == 0
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(found, zb.nap_group(sig), strict=True))


def test_rows_made_to_share_a_hash_are_told_apart(device: str) -> None:
    """40,320 distinct rows of one 128-bit hash: sorted where the hash says nothing, not compared two by two."""
    rows = group_module.rows_of_one_hash(8).to(device)
    assert len(zb.nap_hash(rows).unique(dim=0)) == 1
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).to(device)
    ids, first, counts = zb.nap_group(torch.cat([rows, rows[order]]))
    assert torch.equal(ids[: len(rows)], torch.arange(len(rows), device=device))
    assert torch.equal(ids[len(rows) :], order)
    assert torch.equal(first, torch.arange(len(rows), device=device)) and bool((counts == 2).all())


def test_hashes_that_fall_into_one_slot_are_grouped(device: str) -> None:
    """Hashes that differ and begin alike: each would walk past all others in a table."""
    candidates = torch.arange(2_000_000)[:, None]
    alike = candidates[(zb.nap_hash(candidates)[:, 0] >> 51) == 5]  # their first 13 bits
    assert len(alike) > 150
    ids, first, _ = zb.nap_group(torch.cat([alike, alike.flip(0)]).to(device))
    wanted = torch.arange(len(alike), device=device)
    assert torch.equal(ids, torch.cat([wanted, wanted.flip(0)])) and torch.equal(first, wanted)


@pytest.mark.parametrize(
    ("rows", "words", "kinds"), [(70_000, 3, 70_000), (90_000, 8, 20_000), (20_000, 70, 9)]
)
def test_groups_across_partitions(rows: int, words: int, kinds: int, device: str) -> None:
    g = torch.Generator().manual_seed(0)
    sig = draw(kinds, words)[torch.randint(kinds, (rows,), generator=g)].to(device)
    for got, want in zip(zb.nap_group(sig), OPS["nap_group"].reference(sig), strict=True):
        assert torch.equal(got, want)


def test_groups_refuse_what_has_no_size() -> None:
    sig = torch.tensor([[[1], [1]], [[1], [2]]])
    with pytest.raises(RuntimeError, match="nap_group: expected batches of one number of groups under vmap"):
        torch.func.vmap(zb.nap_group)(sig)


def test_groups_refuse_to_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with (
        FakeTensorMode(),
        pytest.raises(RuntimeError, match="nap_group: expected a call outside of CUDA graph"),
    ):
        group_module.check(torch.empty(3, 2, dtype=torch.int64, device="cuda"))
    zb.nap_group(torch.ones(3, 2, dtype=torch.int64))  # a CPU call beside a capture


# --- nap_hamming and nap_topk -------------------------------------------------------------------------------------


def table_of(q: torch.Tensor, db: torch.Tensor) -> np.ndarray:
    bits = [
        np.unpackbits(t.cpu().numpy().view(np.uint8).reshape(len(t), 8 * t.shape[1]), axis=1) for t in (q, db)
    ]
    x, y = (b.astype(np.float32) for b in bits)
    return (x.sum(1)[:, None] + y.sum(1) - 2 * (x @ y.T)).astype(np.int64)


# queries, rows, words: past a group of queries, a tile, a tile's words, a packed chunk of queries, a run, a segment
SIZES = [
    (7, 31, 1),
    (9, 33, 2),
    (6, 700, 5),
    (8, 97, 31),
    (13, 40, 32),
    (5, 70, 513),
    (10, 66, 1030),
    (1030, 64, 3),
]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_distances_and_nearest_rows_across_blocks(size: tuple[int, int, int], device: str) -> None:
    queries, rows, words = size
    q, db = draw(queries, words, device=device), draw(rows, words, seed=1, device=device)
    q[0] = ~db[3]  # every bit differs: sums of bytes must not overflow
    table = table_of(q, db)
    assert table[0, 3] == 64 * words
    assert np.array_equal(zb.nap_hamming(q, db).cpu().numpy(), table)
    order = np.argsort(table, axis=1, kind="stable")
    for k in (1, 5, rows // 2, rows):
        distances, ids = (t.cpu().numpy() for t in zb.nap_topk(q, db, k))
        assert np.array_equal(ids, order[:, :k])
        assert np.array_equal(distances, np.take_along_axis(table, order[:, :k], 1))


def test_26_ties_at_full_size(device: str) -> None:
    # facebookresearch/faiss #808: among equal distances, other rows with another k
    g = torch.Generator().manual_seed(0)
    db = torch.randint(0, 2**16, (100_000, 1), generator=g).to(device)
    q = torch.randint(0, 2**16, (30, 1), generator=g).to(device)
    distances, ids = zb.nap_topk(q, db, 10_000)
    order = np.argsort(table_of(q, db), axis=1, kind="stable")[:, :10_000]
    assert np.array_equal(ids.cpu().numpy(), order)
    for k in (1, 10, 100):
        less = zb.nap_topk(q, db, k)
        assert torch.equal(less[0], distances[:, :k]) and torch.equal(less[1], ids[:, :k])
    shuffled = torch.randperm(30, generator=g).to(device)
    assert torch.equal(zb.nap_topk(q[shuffled], db, 100)[1], ids[shuffled, :100])
    for few in (1, 5, 7):  # other paths for few queries
        assert torch.equal(zb.nap_topk(q[:few], db, 100)[1], ids[:few, :100])
    same = zb.nap_topk(q, db[:1].expand(50_000, 1), 777)[1]
    assert torch.equal(same, torch.arange(777, device=device).expand(30, 777))


@pytest.mark.parametrize("queries", [0, 1, 19, 20, 21, 1000])
def test_25_one_rule_for_every_number_of_queries(queries: int, device: str) -> None:
    # facebookresearch/faiss #3830: right for 19 queries, unwritten memory from 20 on
    q = draw(queries, 2, device=device)
    for rows in (0, 1, 20):
        db = draw(rows, 2, seed=1, device=device)
        for k in (1, 20, 50):
            if k > rows:
                with pytest.raises(
                    ValueError, match=f"nap_topk: expected 0 <= k <= M = {rows} rows of db, got {k}"
                ):
                    zb.nap_topk(q, db, k)
            else:
                distances, ids = zb.nap_topk(q, db, k)
                assert distances.shape == ids.shape == (queries, k)
                order = np.argsort(table_of(q, db), axis=1, kind="stable")[:, :k]
                assert np.array_equal(ids.cpu().numpy(), order)
        assert [t.shape for t in zb.nap_topk(q, db, 0)] == [(queries, 0), (queries, 0)]


def test_a_table_that_fits_nowhere_is_refused() -> None:
    row = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(
        RuntimeError, match=r"(?s)out of memory: no tensor of shape \[1048576, 1073741824\]|allocate"
    ):
        zb.nap_hamming(row.expand(2**20, 1), row.expand(2**30, 1))


@pytest.mark.large
def test_more_than_two_to_the_31_distances(device: str) -> None:
    a, b = draw(50_000, 1, device=device), draw(45_000, 1, seed=1, device=device)
    distances = zb.nap_hamming(a, b)  # 9 GB
    assert torch.equal(distances[-3:], zb.nap_hamming(a[-3:], b))
    assert torch.equal(distances[:, -3:], zb.nap_hamming(a, b[-3:]))


# --- nap_frequency ------------------------------------------------------------------------------------------------


# Groups of 16 to 128 rows, a flush after 255 groups, blocks of 128 words
@pytest.mark.parametrize(
    ("rows", "words"), [(33_000, 1), (16 * 255 + 1, 8), (9000, 3), (700, 130), (127, 129), (40, 300)], ids=str
)
def test_frequencies_across_groups(rows: int, words: int, device: str) -> None:
    sig = draw(rows, words, device=device)
    sig[:, 0] |= 1  # a counter that is full in every group
    bits = np.unpackbits(sig.cpu().numpy().view(np.uint8).reshape(rows, -1), axis=1, bitorder="little")
    wanted = torch.from_numpy(bits.sum(0, dtype=np.int64)).to(device)
    assert torch.equal(zb.nap_frequency(sig, 64 * words), wanted)
    assert torch.equal(zb.nap_frequency(sig, 64 * words - 63), wanted[: 64 * words - 63])
    assert torch.equal(zb.nap_frequency(sig[:, :1], 64), wanted[:64])
    assert torch.equal(
        zb.nap_frequency(sig[:1].expand(1000, words), 64), 1000 * zb.nap_frequency(sig[:1], 64)
    )


# --- instruction sets ---------------------------------------------------------------------------------------------

DIGEST = """
import hashlib, sys, torch, zbkernels as zb
from zbkernels.ops import OPS
digest, kernels = hashlib.sha256(), []
g = torch.Generator().manual_seed(0)
def draw(*shape):
    return torch.randint(-(2**63), 2**63 - 1, shape, generator=g)
for name in ("nap_hamming", "nap_topk", "nap_hash", "nap_frequency", "nap_group"):
    calls = [sample.args for sample in OPS[name].samples()]
    if name == "nap_topk":
        calls += [(draw(9, w), draw(90, w), 40) for w in (7, 16, 40, 520)]
    if name == "nap_frequency":
        calls += [(draw(5000, w), 64 * w - 3) for w in (1, 5, 9)]
    if name == "nap_hamming":
        q = draw(8, 40)
        calls += [(q, ~q)]
    for args in calls:
        result = OPS[name].overload(*args)
        for t in [result] if isinstance(result, torch.Tensor) else result:
            digest.update(t.numpy().tobytes())
    kernels.append(zb.last_kernel())
sys.stdout.write(digest.hexdigest() + " " + ";".join(kernels))
"""


@pytest.mark.skipif(("nap_topk", "cpu") not in COMPILED, reason="the CPU library is not built")
@pytest.mark.parametrize("capability", ["avx512", "avx2", "portable"])
def test_every_instruction_set_gives_the_same_bits(capability: str) -> None:
    if capability == "avx512" and _loader.cpu_capability() != "avx512":
        pytest.skip("this processor has no AVX-512")
    if capability == "avx2" and _loader.cpu_capability() == "portable":
        pytest.skip("this processor has no AVX2")
    env = {**os.environ, "ZBKERNELS_CPU_CAPABILITY": capability}
    run = subprocess.run([sys.executable, "-c", DIGEST], capture_output=True, text=True, env=env, check=True)
    digest, _, kernels = run.stdout.partition(" ")
    assert [kernel.rpartition(" ")[2] for kernel in kernels.split(";")] == [capability] * 5
    assert digest == digest_here()


def digest_here() -> str:
    """Of this process: the best that the processor has, VPOPCNTDQ with it."""
    names: dict[str, Any] = {}
    code = DIGEST.replace("sys.stdout.write(", "found = (")
    exec(compile(code, "digest", "exec"), names)
    return names["found"].partition(" ")[0]


def test_counting_bits_for_the_ceiling() -> None:
    words = _loader.count_bits(3)
    assert words % (3 * 2048) == 0 and (words > 0) == (("nap_topk", "cpu") in COMPILED)
