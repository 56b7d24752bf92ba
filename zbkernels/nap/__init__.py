"""Neural activation patterns: which units of a network are on, for as many inputs as there are."""

from zbkernels.nap.layers import Layer, RecordingError
from zbkernels.nap.patterns import PatternReader, patterns
from zbkernels.nap.record import record
from zbkernels.nap.recording import Recording
from zbkernels.nap.units import Call, Site, Units, find_units

__all__ = [
    "Call",
    "Layer",
    "PatternReader",
    "Recording",
    "RecordingError",
    "Site",
    "Units",
    "find_units",
    "patterns",
    "record",
]
