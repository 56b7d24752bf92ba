"""Makes any model run its convolution → ReLU → pool chains as one op: ``zb.fuse(model)``, ``zb.unfuse(model)``.

The way through: :mod:`tracing` (the graph of one forward, and what it rests on) → :mod:`chains` (what one op can do)
→ :mod:`gains` (where that is faster) → :mod:`rewritten` (a module that runs it, under :mod:`guards`) → :mod:`apply`
(whole models). :mod:`inductor` does the same in what ``torch.compile`` made.
"""

from zbkernels.nn.fusion.apply import fuse, unfuse
from zbkernels.nn.fusion.report import Fused, FusionReport, NotFused

__all__ = ["Fused", "FusionReport", "NotFused", "enable_inductor_pass", "fuse", "unfuse"]


def enable_inductor_pass(enabled: bool = True, *, when: str = "rule") -> None:
    """Have ``torch.compile`` (with Inductor) fuse convolution → ReLU → pool in every graph it compiles from now on.

    In inference and in training: the pass runs before gradients are taken. A pass that was set in
    ``torch._inductor.config.pre_grad_custom_pass`` before stays and runs first. What is compiled already stays as it is
    (``torch.compiler.reset()`` throws it away).

    Args:
        enabled: False puts back what was there before.
        when: "rule" (by what the benchmarks show) or "always".

    Raises:
        ValueError: another ``when``.
    """
    from zbkernels.nn.fusion import inductor  # imports Inductor, which takes its time

    inductor.enable_inductor_pass(enabled, when=when)
