"""Neural activation patterns: which units of a network are on, for as many inputs as there are."""

from zbkernels.nap.index import ClassPurity, NapIndex, Pattern

__all__ = ["ClassPurity", "NapIndex", "Pattern"]
