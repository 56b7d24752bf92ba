"""Whether a network is scalar invariant, f(s·x) = s·f(x) for s > 0, and which operation breaks it where it is not."""

from zbkernels.invariance.check import SCALARS, check_scalar_invariance
from zbkernels.invariance.report import InvarianceReport, Operation, Output, ScalarRow

__all__ = [
    "SCALARS",
    "InvarianceReport",
    "Operation",
    "Output",
    "ScalarRow",
    "check_scalar_invariance",
]
