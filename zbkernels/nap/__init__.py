"""Neural activation patterns: which units of a network are on, for as many inputs as there are."""

from zbkernels.nap.hull import Margin, NotCertified, Region, certify_hull
from zbkernels.nap.layers import Layer, RecordingError
from zbkernels.nap.linear import Inequalities, LocalLinearMap, Radii, certified_radius, local_linear_map
from zbkernels.nap.patterns import PatternReader, patterns
from zbkernels.nap.piece import NotPiecewiseLinear
from zbkernels.nap.record import record
from zbkernels.nap.recording import Recording
from zbkernels.nap.units import Call, Site, Units, find_units

__all__ = [
    "Call",
    "Inequalities",
    "Layer",
    "LocalLinearMap",
    "Margin",
    "NotCertified",
    "NotPiecewiseLinear",
    "PatternReader",
    "Radii",
    "Recording",
    "RecordingError",
    "Region",
    "Site",
    "Units",
    "certified_radius",
    "certify_hull",
    "find_units",
    "local_linear_map",
    "patterns",
    "record",
]
