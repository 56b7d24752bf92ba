"""Neural activation patterns: which units of a network are on, for as many inputs as there are."""

from zbkernels.nap.hull import Margin, NotCertified, Region, certify_hull
from zbkernels.nap.index import ClassPurity, NapIndex, Pattern
from zbkernels.nap.layers import Layer, RecordingError
from zbkernels.nap.linear import Inequalities, LocalLinearMap, Radii, certified_radius, local_linear_map
from zbkernels.nap.patterns import PatternReader, patterns
from zbkernels.nap.piece import NotPiecewiseLinear
from zbkernels.nap.record import record
from zbkernels.nap.recording import Recording
from zbkernels.nap.shards import index_recording, index_shards, record_index
from zbkernels.nap.specification import (
    Coverage,
    Specification,
    UnitCounts,
    count_units,
    coverage,
    mine_specifications,
)
from zbkernels.nap.units import Call, Site, Units, find_units
from zbkernels.nap.vnnlib import write_specification_vnnlib, write_vnnlib

__all__ = [
    "Call",
    "ClassPurity",
    "Coverage",
    "Inequalities",
    "Layer",
    "LocalLinearMap",
    "Margin",
    "NapIndex",
    "NotCertified",
    "NotPiecewiseLinear",
    "Pattern",
    "PatternReader",
    "Radii",
    "Recording",
    "RecordingError",
    "Region",
    "Site",
    "Specification",
    "UnitCounts",
    "Units",
    "certified_radius",
    "certify_hull",
    "count_units",
    "coverage",
    "find_units",
    "index_recording",
    "index_shards",
    "local_linear_map",
    "mine_specifications",
    "patterns",
    "record",
    "record_index",
    "write_specification_vnnlib",
    "write_vnnlib",
]
