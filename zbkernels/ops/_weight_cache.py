"""The CPU kernels' packed weights: what is kept, and how to let go of it."""

from __future__ import annotations

from typing import NamedTuple

from zbkernels import _loader


class WeightCacheInfo(NamedTuple):
    """What :func:`weight_cache_info` returns, in the manner of :func:`functools.lru_cache`."""

    hits: int  # calls that found their weight packed already
    misses: int  # calls that packed it
    entries: int  # packed weights that are kept
    bytes: int  # memory that they hold, with the copies that they are compared by


def weight_cache_info() -> WeightCacheInfo:
    """Use of the cache in which CPU convolutions keep packed (and transformed) weights between calls.

    Only inference uses it: in training each step brings new weights. An entry serves a call only where the weight's
    bytes equal those it was made from, so no update of a weight, by whatever way, can be missed. The least recently
    used entries make room when ``$ZBKERNELS_WEIGHT_CACHE_MB`` megabytes are full (a whole number; 256 where it is
    none; 0 switches the cache off; read once, at the first convolution). Weights of less than 1 KiB are not kept.
    All zeros where the CPU library is not loaded.
    """
    return WeightCacheInfo(*_loader.weight_cache())


def clear_weight_cache() -> None:
    """Let go of all packed weights and set the counts of :func:`weight_cache_info` to 0. Calls that run keep theirs."""
    _loader.clear_weight_cache()
