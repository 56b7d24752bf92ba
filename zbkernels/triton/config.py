"""Tile sizes and pipeline depths of a Triton kernel, and who chooses them.

An op module lists candidates, the default for the shape first, and asks :func:`choose`. It gets the one that
``zb tune`` measured to be the fastest on this card, where that has been done, else the default. Nothing is ever
timed within an op call.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Config:
    """How one kernel is started: its compile-time block sizes by name, warps of a program, stages of its pipeline."""

    constants: dict[str, int] = field(hash=False)
    num_warps: int = 4
    num_stages: int = 2

    def __str__(self) -> str:
        sizes = " ".join(f"{name}={value}" for name, value in self.constants.items())
        return f"{sizes} warps={self.num_warps} stages={self.num_stages}".lstrip()


Key = tuple[str, str, str]  # op, dtype ("float16"), shape class

# The tuned configuration of each question that was asked, None where there is none. Not found again at each call.
_tuned: dict[tuple[str, torch.device, torch.dtype, str], Config | None] = {}


def choose(
    op: str,
    device: torch.device,
    dtype: torch.dtype,
    shape_class: str,
    candidates: Callable[[], Sequence[Config]],
) -> Config:
    """The configuration to start a kernel of `op` with: a tuned one, else the first candidate, the default.

    shape_class: names what speed depends on, so coarsely that near shapes share it ("K128 C64 3x3 M2^17 max2").
        Where a configuration changes the order of a sum and the op returns signatures, leave the batch and the
        memory format out of it: a pattern must not change with them.
    candidates: few, pruned by shared memory, registers and roofline; the first is right for most shapes. Asked at
        each call, since a tuned configuration that isn't among them is not used: functools.cache keeps it cheap.
    """
    override = _override.get()
    if override is not None:
        return override.choose((op, dtype_name(dtype), shape_class), candidates())
    question = (op, device, dtype, shape_class)
    try:
        tuned = _tuned[question]
    except KeyError:
        from zbkernels.triton import results

        tuned = _tuned[question] = results.tuned(device, (op, dtype_name(dtype), shape_class))
    found = candidates()
    return tuned if tuned is not None and tuned in found else found[0]


def dtype_name(dtype: torch.dtype) -> str:
    """``float16`` of torch.float16."""
    return str(dtype).removeprefix("torch.")


def forget() -> None:
    """Let the next calls look at the results on disk again."""
    _tuned.clear()


class Override:
    """What a tuner forces, and what it has seen asked."""

    def __init__(self, configs: Mapping[Key, Config]) -> None:
        self.configs = configs
        self.seen: dict[Key, tuple[Config, ...]] = {}

    def choose(self, key: Key, found: Sequence[Config]) -> Config:
        """The forced configuration where it may be used, else the default; tuned ones are left aside."""
        before = self.seen.get(key)
        # Asked twice, for two shapes of one class: what is tuned must fit both.
        self.seen[key] = tuple(config for config in found if before is None or config in before)
        config = self.configs.get(key)
        return config if config is not None and config in found else found[0]


# A context variable: another thread's calls are none of the tuner's business.
_override: contextvars.ContextVar[Override | None] = contextvars.ContextVar("override", default=None)


@contextlib.contextmanager
def overriding(configs: Mapping[Key, Config]) -> Iterator[dict[Key, tuple[Config, ...]]]:
    """Within this block and thread `choose` takes `configs`, and the default for what isn't named there.

    Yields what is asked meanwhile: the candidates of each key. (A card's backward pass runs in autograd's own threads,
    unless torch.autograd.set_multithreading_enabled(False) is in force.)
    """
    override = Override(configs)
    token = _override.set(override)
    try:
        yield override.seen
    finally:
        _override.reset(token)
