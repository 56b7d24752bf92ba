"""``nap_unpack``: signatures back to one bool a unit, the inverse of ``nap_pack``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zbkernels.ops import _backend
from zbkernels.ops._op import Op, Sample, checked, register
from zbkernels.ops._opaque import opaque_kernels
from zbkernels.ops._shape_class import rows_class
from zbkernels.ops.nap_pack import words_for

SCHEMA = "nap_unpack(Tensor sig, SymInt F) -> Tensor"


def check_signatures(op: str, name: str, sig: Any) -> None:
    """What every op asks of a batch of signatures.

    Raises:
        TypeError: sig is no dense int64 tensor.
        ValueError: it has not two dimensions.
    """
    if not isinstance(sig, torch.Tensor):
        raise TypeError(f"{op}: expected {name} to be a tensor, got {type(sig).__name__}")
    if sig.dtype != torch.int64 or sig.layout != torch.strided:
        raise TypeError(f"{op}: expected {name} of dtype int64 (dense), got {sig.dtype} ({sig.layout})")
    if sig.dim() != 2:
        raise ValueError(f"{op}: expected {name} of shape [N, words], got {list(sig.shape)}")


def check_int(op: str, name: str, value: Any) -> None:
    """Raises TypeError where the value is no int (a symbolic one is)."""
    if not isinstance(value, (int, torch.SymInt)) or isinstance(value, bool):
        raise TypeError(f"{op}: expected {name} to be an int, got {value!r}")


def check(sig: Any, F: Any) -> None:
    check_signatures("nap_unpack", "sig", sig)
    check_int("nap_unpack", "F", F)
    words = (F + 63) // 64
    if F < 0 or words != sig.shape[1]:
        raise ValueError(
            f"nap_unpack: expected sig of ceil(F/64) = {words} words for F = {F}, got {list(sig.shape)}"
        )


def unpack_last(sig: torch.Tensor, bits: int) -> torch.Tensor:
    """int64 [..., words] -> bool [..., bits]."""
    on = (sig.unsqueeze(-1) >> torch.arange(64, device=sig.device)) & 1  # [..., words, 64]
    return on.to(torch.bool).flatten(-2)[..., :bits].contiguous()


def reference(sig: torch.Tensor, F: int) -> torch.Tensor:
    check(sig, F)
    _backend.note_kernel("reference")
    return unpack_last(sig, F)


def fake(sig: torch.Tensor, F: int) -> torch.Tensor:
    check(sig, F)
    return sig.new_empty((sig.shape[0], F), dtype=torch.bool)


def vmap(info: Any, in_dims: tuple[Any, ...], sig: torch.Tensor, F: int) -> tuple[torch.Tensor, int]:
    sig = sig.movedim(in_dims[0], 0)  # [B, N, words]
    return torch.ops.zb.nap_unpack(sig.flatten(0, 1), F).unflatten(0, sig.shape[:2]), 0


def samples(device: str = "cpu", dtype: torch.dtype = torch.int64) -> Iterator[Sample]:
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(-(2**63), 2**63 - 1, shape, generator=g).to(device)

    for units in (1, 7, 63, 64, 65, 70, 127, 128, 129, 1000):
        yield Sample(f"{units} units", (draw(5, words_for(units)), units))
    yield Sample("transposed", (draw(3, 6).t(), 180))
    yield Sample("every other word", (draw(4, 6)[:, ::2], 129))
    yield Sample("expanded", (draw(1, 2).expand(4, 2), 128))
    yield Sample("no rows", (draw(0, 2), 70))
    yield Sample("no units", (draw(3, 0), 0))


def nap_unpack(sig: torch.Tensor, F: int) -> torch.Tensor:
    """Bits of each signature as bools.

    Args:
        sig: int64 [N, ceil(F/64)], any strides; padding bits are ignored.
        F: units (for ``units="winner"`` signatures: bits) of one signature.

    Returns:
        bool [N, F].

    Raises:
        TypeError: sig is no int64 tensor, or F no int.
        ValueError: sig is not of shape [N, ceil(F/64)].
    """
    check(sig, F)
    kernel = _backend.choose_kernel(OP, sig, None, F)
    return torch.ops.zb.nap_unpack(sig, F) if kernel is None else kernel.run(sig, F)


def shape_class(sig: torch.Tensor, F: int) -> str:
    return rows_class(sig.shape[0], F)


TRITON = _backend.triton_kernel("nap_unpack", _backend.triton_function("nap_unpack", "forward"))
KERNELS = (
    _backend.library_kernel("cpu"),
    _backend.library_kernel("cuda"),
    TRITON,
    *_backend.emulated_kernels(_backend.emulated_function("nap_unpack")),
    _backend.reference_kernel(reference),
)

OP = Op(
    "nap_unpack",
    SCHEMA,
    reference,
    samples,
    public=nap_unpack,
    normalise=checked(check),
    kernels=KERNELS,
    dtypes=(torch.int64,),
    shape_class=shape_class,
    opaque=opaque_kernels("nap_unpack", KERNELS, SCHEMA, fake),
)
register(OP, fake=fake, vmap=vmap, cuda_fallback=_backend.or_reference(TRITON, reference))
