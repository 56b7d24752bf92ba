"""The three ways of Section 9.3 of the thesis to make rows of unit norm out of images."""

from __future__ import annotations

import torch
from torch import Tensor

NORMALIZATION, ZERO_MEAN, WHITENING = "normalization", "zero-mean", "whitening"
PREPROCESSINGS = (NORMALIZATION, ZERO_MEAN, WHITENING)
_NULL = 1e-12  # of the largest variance, or norm: what is less is rounding


def preprocess(images: Tensor, how: str) -> tuple[Tensor, int]:
    """Rows of unit norm, and how many directions they span at most.

    ``"normalization"`` divides each image by its norm. ``"zero-mean"`` subtracts each image's mean pixel first.
    ``"whitening"`` does that, then divides the coordinate along each right singular vector of the data by its root mean
    square, then normalises. The thesis does not say what becomes of directions without any variance (MNIST has 72 of
    784, by pixels that are always 0): here they are left out. Nor does it speak of a mean over the data set: none
    is subtracted.

    Args:
        images: [n, …], any float dtype.
        how: one of :data:`PREPROCESSINGS`.

    Returns:
        ([n, d] or, whitened, [n, directions] float64, directions).

    Raises:
        ValueError: an image that is zero, or has one value only where its mean is subtracted, has no direction; or
            another word in ``how``.
    """
    if how not in PREPROCESSINGS:
        raise ValueError(f"preprocess: expected one of {', '.join(PREPROCESSINGS)}, got {how!r}")
    x = images.flatten(1).double()
    if how != NORMALIZATION:
        x = x - x.mean(1, keepdim=True)
    variances, directions = torch.linalg.eigh(x.mT @ x / len(x))
    there = variances > _NULL * variances[-1]
    if how == WHITENING:
        x = x @ (directions[:, there] / variances[there].sqrt())
    norms = x.norm(dim=1, keepdim=True)
    if not bool((norms > _NULL * norms.max()).all()):
        raise ValueError(
            f"preprocess: image {int(norms.argmin())} has no direction after {how!r}: its norm is 0"
        )
    return x / norms, int(there.sum())


def whitened_in_float32(images: Tensor) -> Tensor:
    """The left singular vectors of the images less their means, as a float32 decomposition gives all of them, rows
    normalised: ``"whitening"`` but for the directions without variance, each of which comes out as one of rounding.

    Args:
        images: [n, …], n no less than the pixels.

    Returns:
        [n, pixels] float64.
    """
    x = images.flatten(1).float()
    u = torch.linalg.svd(x - x.mean(1, keepdim=True), full_matrices=False)[0].double()
    return u / u.norm(dim=1, keepdim=True)


def squared_norm(x: Tensor) -> float:
    """‖X‖², the largest eigenvalue of XᵀX, for x [n, d] float64."""
    return float(torch.linalg.eigvalsh(x.mT @ x)[-1])
