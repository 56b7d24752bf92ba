"""Neural activation patterns: which units of a network are on, for as many inputs as there are."""

from zbkernels.nap.units import Call, Site, Units, find_units

__all__ = ["Call", "Site", "Units", "find_units"]
