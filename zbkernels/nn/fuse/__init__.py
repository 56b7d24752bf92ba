"""Makes any model run its convolution → ReLU → pool chains as one op: ``zb.fuse(model)``, ``zb.unfuse(model)``.

The way through: :mod:`tracing` (the graph of one forward, and what it rests on) → :mod:`chains` (what one op can do) →
:mod:`gains` (where that is faster) → :mod:`rewritten` (a module that runs it, guarded) → :mod:`apply` (whole models).
"""

from zbkernels.nn.fuse.apply import fuse, unfuse
from zbkernels.nn.fuse.report import Fused, FusionReport, NotFused

__all__ = ["Fused", "FusionReport", "NotFused", "fuse", "unfuse"]
