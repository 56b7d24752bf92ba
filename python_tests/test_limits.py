"""The limits that docs/limits.md states: what works just within them, and what is said beyond.

Tensors of more than 2^31 elements cost no memory here: they are views of a sparse file, of which a page is touched now
and then, expanded, or on the meta device.
"""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile
import numpy as np
import pytest
import torch

import zbkernels as zb
from zbkernels import _loader
from zbkernels.data import DataError, idx
from zbkernels.data.decode import MOST_PIXELS, open_image
from zbkernels.data.unpack import MOST, TooLarge, gunzip
from zbkernels.experiments import ExperimentError, get, runner
from zbkernels.nap import NapIndex, arrays
from zbkernels.nap.arrays import read_arrays

FAR = 2**31 + 2**10  # elements between rows: more than an int32 counts
pytestmark = pytest.mark.usefixtures("one_thread")
needs_host = pytest.mark.skipif(not _loader.libraries()["_host"].loaded, reason="_host is not built")


@pytest.fixture
def far(tmp_path: Path) -> Callable[..., torch.Tensor]:
    """(rows of a dense tensor) -> the same tensor with FAR elements between its rows."""

    def spread(dense: torch.Tensor) -> torch.Tensor:
        rows, inner = dense.shape[0], dense[0].numel()
        size = (rows - 1) * FAR + inner
        path = tmp_path / f"sparse-{len(list(tmp_path.iterdir()))}"
        with path.open("wb") as file:
            file.truncate(size * dense.element_size())
        flat = torch.from_file(str(path), shared=True, size=size, dtype=dense.dtype)
        view = flat.as_strided(dense.shape, (FAR, *dense.stride()[1:]))
        view.copy_(dense)
        return view

    return spread


def _rows(count: int, words: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**62), 2**62, (count, words), generator=generator)


CALLS: dict[str, Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]] = {
    "conv_relu_pool2d": lambda at: zb.conv_relu_pool2d(
        at(torch.randn(3, 4, 8, 8)), torch.randn(8, 4, 3, 3), padding=1
    ),
    "conv_relu_pool2d, weight": lambda at: zb.conv_relu_pool2d(
        torch.randn(2, 4, 8, 8), at(torch.randn(8, 4, 3, 3))
    ),
    "conv_relu_pool2d_nap": lambda at: zb.conv_relu_pool2d_nap(
        at(torch.randn(2, 3, 8, 8)), torch.randn(4, 3, 3, 3)
    ),
    "linear_relu": lambda at: zb.linear_relu(at(torch.randn(3, 70)), torch.randn(9, 70)),
    "linear_relu, weight": lambda at: zb.linear_relu(torch.randn(3, 70), at(torch.randn(4, 70))),
    "linear_relu_nap": lambda at: zb.linear_relu_nap(at(torch.randn(3, 70)), torch.randn(65, 70)),
    "nap_pack": lambda at: zb.nap_pack(at(torch.randn(3, 130))),
    "nap_unpack": lambda at: zb.nap_unpack(at(_rows(3, 2)), 100),
    "nap_hash": lambda at: zb.nap_hash(at(_rows(3, 5))),
    "nap_group": lambda at: zb.nap_group(at(_rows(4, 2) & 1)),
    "nap_frequency": lambda at: zb.nap_frequency(at(_rows(3, 2)), 128),
    "nap_hamming": lambda at: zb.nap_hamming(at(_rows(3, 4)), at(_rows(4, 4, 1))),
    "nap_topk": lambda at: zb.nap_topk(_rows(2, 4), at(_rows(5, 4, 1)), 3),
    "dual_gram": lambda at: zb.dual_gram(at(torch.randn(4, 6)), torch.randn(3, 6)),
}


@pytest.mark.parametrize("name", CALLS)
def test_offsets_beyond_32_bits(name: str, far: Callable[..., torch.Tensor]) -> None:
    """int64 throughout: elements that lie more than 2^31 elements apart are the ones that are taken."""
    torch.manual_seed(0)
    wanted = CALLS[name](lambda dense: dense)
    torch.manual_seed(0)
    found = CALLS[name](far)
    for one, two in zip(_several(found), _several(wanted), strict=True):
        torch.testing.assert_close(one, two)


def _several(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, tuple) else (result,)


def test_results_beyond_32_bits_have_their_shapes() -> None:
    x = torch.empty(2**22, 64, 32, 32, device="meta")
    assert zb.conv_relu_pool2d(x, torch.empty(64, 64, 3, 3, device="meta")).shape == (2**22, 64, 15, 15)
    y = zb.linear_relu(torch.empty(2**20, 8, device="meta"), torch.empty(2**20, 8, device="meta"))
    assert y.shape == (2**20, 2**20) and y.numel() > 2**31
    rows = torch.empty(2**30, 2, dtype=torch.int64, device="meta")
    assert zb.nap_hamming(rows, rows).shape == (2**30, 2**30)
    distances, which = zb.nap_topk(rows[:5], rows, 7)
    assert (distances.dtype, which.dtype, distances.shape) == (torch.int32, torch.int64, (5, 7))


def test_a_result_that_no_memory_holds_is_refused_by_its_shape() -> None:
    one = torch.zeros(1, 1)
    for call in (
        lambda: zb.linear_relu(one.expand(2**31, 1), one.expand(2**31, 1)),
        lambda: zb.nap_hamming(*[torch.zeros(1, 1, dtype=torch.int64).expand(2**30, 1)] * 2),
        lambda: zb.conv_relu_pool2d(torch.zeros(1, 1, 1, 1).expand(2**40, 1, 4, 4), torch.zeros(8, 1, 1, 1)),
    ):
        with pytest.raises(RuntimeError, match=r"(?s)out of memory|can't allocate|too large|overflow"):
            call()


def test_signatures_of_two_to_the_31_bits_are_refused_where_distances_are_int32() -> None:
    word = torch.zeros(1, 1, dtype=torch.int64)
    within, beyond = word.expand(1, 2**25 - 1), word.expand(1, 2**25)
    for op in (zb.nap_hamming, lambda a, b: zb.nap_topk(a, b, 1)):
        with pytest.raises(ValueError, match=r"less than 2\*\*31 bits|2\*\*31 bits"):
            op(beyond, beyond)
    # 2^31 - 64 bits, all of them different
    assert int(zb.nap_hamming(within, (word - 1).expand(1, 2**25 - 1))[0, 0]) == 2**31 - 64


def test_windows_and_strides_at_their_ends() -> None:
    x, w = torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 1, 1)
    big = torch.empty(1, 1, 2**16, 2**16, device="meta")
    thin = torch.empty(1, 1, 1, 1, device="meta")
    # the largest window, of 2^30 - 1 positions, takes a code of 32 bits
    y = zb.conv_relu_pool2d(big, thin, pool_kernel=(2**15 - 1, 2**15 - 1))
    assert y.shape == (1, 1, 2, 2)
    with pytest.raises(ValueError, match=r"fewer than 2\^30 positions"):
        zb.conv_relu_pool2d(big, thin, pool_kernel=(2**15, 2**15))
    with pytest.raises(ValueError, match=r"a stride of at most 2\^60"):
        zb.conv_relu_pool2d(x, w, pool_stride=2**60 + 1)
    assert zb.conv_relu_pool2d(x, w, pool_stride=2**60).shape == (1, 1, 1, 1)
    for bad in (
        {"padding": 2**62},
        {"padding": 2**63 - 1},
        {"dilation": 2**62, "weight": torch.zeros(1, 1, 9, 9)},
    ):
        weight = bad.pop("weight", w)
        with pytest.raises((ValueError, RuntimeError)) as caught:
            zb.conv_relu_pool2d(x, weight, **bad)
        assert "conv_relu_pool2d" in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, torch.bool, torch.float8_e4m3fn], ids=str)
def test_other_dtypes_are_refused_by_name(dtype: torch.dtype) -> None:
    x = torch.zeros(1, 1, 4, 4).to(dtype)
    for call in (
        lambda: zb.conv_relu_pool2d(x, x),
        lambda: zb.linear_relu(x[0, 0], x[0, 0]),
        lambda: zb.nap_hamming(x[0, 0], x[0, 0]),
    ):
        with pytest.raises(TypeError, match=re.escape(str(dtype))):
            call()


# --- the index ----------------------------------------------------------------------------------------------------


@needs_host
def test_the_largest_index() -> None:
    assert NapIndex(2**25).words == 2**25
    with pytest.raises(ValueError, match="expected 1 to 33554432 words"):
        NapIndex(2**25 + 1)
    assert NapIndex(1, classes=65_534).classes == 65_534
    with pytest.raises(ValueError, match="expected 0 to 65534 classes"):
        NapIndex(1, classes=65_535)
    for start in (2**48, 2**63 - 1, -1):
        with pytest.raises(ValueError, match="start"):
            NapIndex(1, start=start)
    row = torch.zeros(1, 1, dtype=torch.int64)
    index = NapIndex(1, start=2**48 - 2, example_ids=True)
    index.insert(row)
    index.insert(row)
    assert index.example_ids(0).tolist() == [2**48 - 2, 2**48 - 1]
    with pytest.raises(ValueError, match="id"):
        index.insert(row)  # its id would be 2^48
    assert index.examples == 2
    with pytest.raises(ValueError, match="id"):
        NapIndex(1).insert(row, ids=torch.tensor([2**48]))


@needs_host
def test_an_index_file_that_claims_the_most_patterns(tmp_path: Path) -> None:
    """2^32 - 2 patterns are as many as it holds; a header of more is refused, as one that its file does not hold."""
    index = NapIndex(1)
    index.insert(torch.arange(10)[:, None])
    index.save(tmp_path / "a")
    data = bytearray((tmp_path / "a").read_bytes())
    for patterns in (2**32 - 2, 2**32, 2**63):
        struct.pack_into("<Q", data, 48, patterns)
        struct.pack_into("<Q", data, 952, hostile._index_checksum(bytes(data[:952])))
        (tmp_path / "b").write_bytes(data)
        with pytest.raises(ValueError, match="the header contradicts itself"):
            NapIndex.load(tmp_path / "b")


# --- files and the command line -----------------------------------------------------------------------------------


def test_seeds_from_0_to_two_to_the_32() -> None:
    experiment = get("table1-mnist")
    arguments = (experiment, "smoke", "cpu")
    assert runner.settings_for(*arguments, (0, 2**32 - 1), None, "fused").seeds == (0, 2**32 - 1)
    for seed in (-1, 2**32, 10**30):
        with pytest.raises(ExperimentError, match="seeds from 0 to 4294967295"):
            runner.settings_for(*arguments, (seed,), None, "fused")


def test_images_of_more_pixels_than_are_taken(tmp_path: Path) -> None:
    """A header of a few bytes, and no pixels: it is refused before any are read."""
    for width, height in ((MOST_PIXELS, 2), (2**31 - 1, 2**31 - 1), (MOST_PIXELS + 1, 1)):
        chunk = b"IHDR" + struct.pack(">II5B", width, height, 8, 0, 0, 0, 0)
        png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
        (tmp_path / "bomb.png").write_bytes(png + b"\0\0\0\0IDAT" + b"\0" * 4)
        with pytest.raises(ValueError, match=r"pixels"), open_image(tmp_path / "bomb.png"):
            raise AssertionError("opened")


def test_gzip_data_that_unpack_to_more_than_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(bytes(1 << 20))
    assert len(gunzip(packed, 1 << 20)) == 1 << 20 and MOST == 2**30
    with pytest.raises(TooLarge, match="more than 1,048,575 bytes"):
        gunzip(packed, (1 << 20) - 1)
    (tmp_path / "labels.gz").write_bytes(packed)
    monkeypatch.setattr("zbkernels.data.unpack.MOST", 1000)
    monkeypatch.setattr(gunzip, "__defaults__", (1000,))
    with pytest.raises(
        DataError, match=r"labels\.gz: no idx file of such a set: it unpacks to more than 1,000"
    ):
        idx.read_idx(tmp_path / "labels.gz", idx.LABELS_MAGIC, "the source")


def test_headers_of_arrays_that_their_files_do_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shape in ("(4611686018427387904,)", "(100000, 100000)", "(-1, 5)"):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
        magic = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header))
        (tmp_path / "a.npy").write_bytes(magic + header + bytes(64))
        with pytest.raises(ValueError, match=r"wants|shape|header"):
            read_arrays(tmp_path / "a.npy")
    np.savez_compressed(tmp_path / "b.npz", images=np.zeros((1, 1, 1000, 1000), np.float32))
    assert read_arrays(tmp_path / "b.npz")["images"].shape == (1, 1, 1000, 1000)
    monkeypatch.setattr(arrays, "_UNPACKED", 1_000_000)
    with pytest.raises(ValueError, match="it claims to unpack to 4,000,128 bytes, from "):
        read_arrays(tmp_path / "b.npz")
