"""nap_pack and nap_unpack, emulated: the kernel for each layout of memory, and rows of any length."""

from __future__ import annotations

import pytest
import torch
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
