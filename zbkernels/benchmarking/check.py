"""Is the result right? Nothing is timed before this has said yes."""

from __future__ import annotations

import torch


class Wrong(Exception):
    """A contestant's result is not the reference's; the message says how."""


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """``||out - reference|| / ||reference||`` in float64 (the plain norm where the reference is 0).

    Raises:
        Wrong: the shapes differ, or a NaN or infinity stands where the reference has none.
    """
    if out.shape != reference.shape:
        raise Wrong(f"shape {tuple(out.shape)}, expected {tuple(reference.shape)}")
    difference = torch.linalg.vector_norm(out.double() - reference)
    scale = torch.linalg.vector_norm(reference)
    error = float(difference / scale) if float(scale) > 0 else float(difference)
    if error != error or error == float("inf"):
        raise Wrong("NaN or infinity where the reference has none")
    return error


def equal(out: torch.Tensor, reference: torch.Tensor) -> None:
    """Nothing, of results that have no rounding.

    Raises:
        Wrong: a shape, dtype or value differs.
    """
    if out.shape != reference.shape or out.dtype != reference.dtype:
        expected = f"{reference.dtype} {tuple(reference.shape)}"
        raise Wrong(f"{out.dtype} {tuple(out.shape)}, expected {expected}")
    wrong = int((out.to(reference.device) != reference).sum())
    if wrong:
        raise Wrong(f"{wrong} of {out.numel()} values differ")


def tolerance(torch_error: float, documented: float = 0.0) -> float:
    """The error allowed: eight times torch's own on the same problem, or what the op's contract documents.

    ``torch_error`` 0 (an exact operation) allows nothing beyond ``documented``.
    """
    return max(8 * torch_error, documented)
