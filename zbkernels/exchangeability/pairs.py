"""Pairs of inputs at a given angle: by a QR decomposition (Figure 2) and from a data set (Procedure 1).

Both give x and p of equal norm and at a right angle, so that ``y = cos(t) x + sin(t) p`` stands at the angle t to x
and is as long as x, at every t. A layer is then evaluated once, at x and at p, for all angles.

Procedure 1 as printed does not give that. Its lettered steps (for coordinates that sum to 0) lengthen x and p after
they were made equally long, by their sums S_x and S_p, so that y stands at the angle

    atan2(sin(t) |p|, cos(t) |x|)    with |x|² = r² + S_x², |p|² = r² + S_p², r the norm before the steps.

The mended form makes p as long as x after the lettered steps; a multiple of p still sums to 0.

Both forms put all of -S_x into one coordinate. It is then nearly all of x: S_x grows as m and r as √m, so that
Hypothesis 3 (no coordinate dominates) fails, though Proposition 6 asks for it together with sums of 0. The centred form
has both: x less its mean, and a random p at right angles to it and to (1, …, 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

FORMS = ("mended", "printed", "centred")


@dataclass(frozen=True)
class Pairs:
    """Inputs x and what turns them; ``x, p = pairs`` takes both.

    Attributes:
        x, p: [P, m], of one dtype.
        index: int64 [P], the images that x was made from; empty where there are none.
        projected: bool [P], where p was made by projection because x has too few coordinates of 0.
    """

    x: Tensor
    p: Tensor
    index: Tensor
    projected: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        yield self.x
        yield self.p

    def at(self, angles: Tensor) -> Tensor:
        """y = cos(t) x + sin(t) p, [P, A, m], for ``angles`` [A] or [P, A] in radians."""
        t = angles.to(self.x)[..., None]
        return t.cos() * self.x[:, None] + t.sin() * self.p[:, None]


def qr_pairs(
    features: int,
    count: int = 1,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
) -> Pairs:
    """Pairs of unit vectors at a right angle, as Figure 2's: Q of a matrix of entries uniform on [0, 1].

    Args:
        features: m, at least 2.
        count: P.

    Returns:
        x and p, [P, m]. Each x is a multiple of a vector of numbers in [0, 1]: its coordinates have one sign.

    Raises:
        ValueError: fewer than 2 features, or a negative count.
    """
    if features < 2 or count < 0:
        raise ValueError(
            f"qr_pairs: expected features >= 2 and count >= 0, got features={features}, count={count}"
        )
    drawn = torch.rand(count, features, 2, generator=generator, dtype=torch.float64)
    q = torch.linalg.qr(drawn).Q.to(dtype)  # [P, m, 2]
    none = torch.empty(0, dtype=torch.int64)
    return Pairs(q[:, :, 0], q[:, :, 1], none, torch.zeros(count, dtype=torch.bool))


def zero_coordinates(images: Tensor) -> Tensor:
    """How many coordinates Procedure 1 can fill p with: zeros of an image, its last two left out. int64 [N]."""
    return (images.flatten(1)[:, :-2] == 0).sum(1)


def procedure1(
    images: Tensor,
    which: int | Tensor,
    *,
    zero_sum: bool = True,
    form: str = "mended",
    least_zeros: int | None = None,
    generator: torch.Generator | None = None,
) -> Pairs:
    """Inputs from a data set, each with a random p at a right angle to it (Procedure 1 of the paper, Section 5.1).

    Where x is 0, p is uniform on [0, 1], and 0 elsewhere. With ``zero_sum`` (the lettered steps) the last two
    coordinates of x are set to 0 first; then the second last of x and the last of p take the negative sums.

    Args:
        images: [N, ...], floating point, at least 3 coordinates each.
        which: int64 [P] of rows of ``images``, or a number of rows to be drawn uniformly (with repetition).
        zero_sum: do the lettered steps. The centred form has sums of 0 in any case and refuses False.
        form: "mended", with p normalised after the lettered steps; "printed", before them; "centred" (ours): x less
            its mean, p normal less its parts along x and (1, …, 1), so that no coordinate dominates.
        least_zeros: coordinates of 0 from which on an x has a p in the mended form, at least 1. None: √m, with which
            the largest coordinate of p is about m^(-1/4) of its length, where Hypothesis 3 draws the line.

    Returns:
        x and p, [P, m], of the images' dtype; computed in float64. Where an x has fewer coordinates of 0, the mended
        form takes a p that is uniform on [0, 1] at all coordinates but the last two, less its part along x, and
        ``projected`` says so. The printed form takes what there is.

    Raises:
        ValueError: images or rows of the wrong shape or dtype; an unknown form; an x with NaN or infinity, or that is
            0 (or, centred, constant) and has no angle; with form="printed", an x without a coordinate of 0, where the
            paper divides 0 by 0.
    """
    if least_zeros is not None and least_zeros < 1:
        raise ValueError(f"procedure1: expected least_zeros >= 1, got {least_zeros}")
    index = _rows(images, which, zero_sum, form, generator)
    x = images.flatten(1)[index.to(images.device)].double()
    if form == "centred":
        x = x - x.mean(1, keepdim=True)
    elif zero_sum:
        x[:, -2:] = 0
    # less than this is rounding: the mean of equal pixels differs from them by up to one of it a coordinate
    least = torch.finfo(torch.float64).eps * images.flatten(1).shape[1]
    bad = ~x.isfinite().all(1)
    if bad.any():
        raise ValueError(
            f"procedure1: expected finite images, image {index[bad.cpu()][0]} has NaN or infinity"
        )
    bad = x.norm(dim=1) <= least * images.flatten(1)[index.to(images.device)].double().norm(dim=1)
    if bad.any():
        what = "is constant" if form == "centred" else "is 0" + (" but for its last two" if zero_sum else "")
        raise ValueError(f"procedure1: image {index[bad.cpu()][0]} {what}: it has no angle to anything")
    projected = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    if form == "centred":
        p = _centred_directions(x, generator)
    else:
        p, projected = _directions(x, index, form, least_zeros, generator)
        p = _as_long_as(x, p)
        if zero_sum:
            x[:, -2] = -x.sum(1)
            p[:, -1] = -p.sum(1)
        if form == "mended":
            p = _as_long_as(x, p)
    return Pairs(x.to(images.dtype), p.to(images.dtype), index, projected)


def _rows(
    images: Tensor, which: int | Tensor, zero_sum: bool, form: str, generator: torch.Generator | None
) -> Tensor:
    """Check the arguments; the rows of ``images`` to take, int64 [P] on the CPU."""
    if form not in FORMS:
        raise ValueError(f"procedure1: expected form to be one of {', '.join(FORMS)}, got {form!r}")
    if form == "centred" and not zero_sum:
        raise ValueError("procedure1: form='centred' has sums of 0; it cannot go with zero_sum=False")
    if images.dim() < 2 or not images.is_floating_point() or images[:1].numel() < 3 * min(len(images), 1):
        raise ValueError(
            "procedure1: expected floating-point images [N, ...] of at least 3 coordinates, "
            f"got {images.dtype} {list(images.shape)}"
        )
    if isinstance(which, Tensor):
        if which.dim() != 1 or which.dtype != torch.int64:
            raise ValueError(f"procedure1: expected int64 rows [P], got {which.dtype} {list(which.shape)}")
        if len(which) and not 0 <= int(which.min()) <= int(which.max()) < len(images):
            raise ValueError(
                f"procedure1: expected rows from 0 to {len(images) - 1}, got {which.min()} to {which.max()}"
            )
        return which.cpu()
    if not isinstance(which, int) or isinstance(which, bool):
        raise ValueError(f"procedure1: expected rows int64 [P] or a number of rows, got {which!r}")
    if which < 0 or (which and not len(images)):
        raise ValueError(
            f"procedure1: expected a number of rows >= 0, of images, got {which} of {len(images)}"
        )
    return torch.randint(max(len(images), 1), (which,), generator=generator)


def _directions(
    x: Tensor, index: Tensor, form: str, least_zeros: int | None, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Step 2: uniform where x is 0 but for the last two coordinates; and the rows in which it is another p."""
    p = torch.rand(x.shape, generator=generator, dtype=torch.float64).to(x.device)
    p[:, -2:] = 0
    free = x == 0
    zeros = free[:, :-2].sum(1)
    if form == "printed":
        if (zeros == 0).any():
            raise ValueError(
                f"procedure1: image {index[(zeros == 0).cpu()][0]} has no coordinate of 0 but its last two, "
                "so that p is 0 and cannot be normalised; form='mended' takes another p"
            )
        return p * free, zeros < 0
    few = zeros < (math.ceil(x.shape[1] ** 0.5) if least_zeros is None else least_zeros)
    if x.shape[1] < 4:  # one coordinate beside the last two: no room for a projection
        if (zeros == 0).any():
            raise ValueError(
                f"procedure1: image {index[(zeros == 0).cpu()][0]} has no coordinate of 0 but its last two, "
                f"and {x.shape[1]} coordinates leave no room for a p at a right angle; expected 4 or more"
            )
        few = zeros < 0
    turned, head = p, x.clone()
    head[:, -2:] = 0
    for _ in range(2):  # the second time takes off what rounding left
        turned = turned - (turned * head).sum(1, keepdim=True) / head.square().sum(1, keepdim=True) * head
    return torch.where(few[:, None], turned, p * free), few


def _centred_directions(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Normal vectors less their parts along (1, …, 1) and along x, whose sum is 0; as long as x."""
    p = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)
    for _ in range(2):  # the second time takes off what rounding left
        p = p - p.mean(1, keepdim=True)
        p = p - (p * x).sum(1, keepdim=True) / x.square().sum(1, keepdim=True) * x
    return _as_long_as(x, p)


def _as_long_as(x: Tensor, p: Tensor) -> Tensor:
    return p * (x.norm(dim=1) / p.norm(dim=1))[:, None]
