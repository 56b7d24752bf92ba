"""What :func:`zbkernels.fuse` did, to be read and to be looked through."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fused:
    """A chain that runs as one op.

    Attributes:
        path: of the convolution or linear layer; for a function, of the module and the function's name.
        chain: such as "conv → relu → max_pool".
        why: what the choice rests on.
        gain: plain time over fused time, where it was measured.
    """

    path: str
    chain: str
    why: str
    gain: float | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.chain} ({self.why})"


@dataclass(frozen=True)
class NotFused:
    """A convolution, linear layer or whole module that stayed as it was, and why."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


@dataclass(frozen=True)
class FusionReport:
    """What was fused and what was not. ``print`` it."""

    fused: tuple[Fused, ...]
    left: tuple[NotFused, ...]

    def __bool__(self) -> bool:
        return bool(self.fused)

    def __str__(self) -> str:
        lines = [f"fuse: {len(self.fused)} fused, {len(self.left)} left as they were"]
        lines += [f"  fused {each}" for each in self.fused] + [f"  left  {each}" for each in self.left]
        return "\n".join(lines)
