"""Neural activation patterns: which units of a network are on, for as many inputs as there are."""

from zbkernels.nap.index import ClassPurity, NapIndex, Pattern
from zbkernels.nap.shards import index_recording, index_shards, record_index

__all__ = [
    "ClassPurity",
    "NapIndex",
    "Pattern",
    "index_recording",
    "index_shards",
    "record_index",
]
