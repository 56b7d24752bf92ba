"""What is done to a batch of training images before the network sees it.

Every draw comes from torch's global CPU generator, whose state a checkpoint holds: a run that is continued draws what
the uncut run would have drawn, and a card draws what the CPU does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CROPS = ("none", "crop", "crop-flip")
_BORDER = 4  # pixels of black around an image of which a crop of the image's own size is taken


def crop(images: Tensor, *, flip: bool = False) -> Tensor:
    """Each image ``[N, C, H, W]`` moved by up to 4 pixels each way, black coming in; ``flip`` mirrors half of them."""
    n, _, h, w = images.shape
    padded = F.pad(images, (_BORDER,) * 4)
    down, right = (torch.randint(2 * _BORDER + 1, (n, 1), device="cpu") for _ in range(2))
    rows, columns = down + torch.arange(h), right + torch.arange(w)  # [N, H], [N, W]
    if flip:
        mirrored = torch.rand(n) < 0.5
        columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    image = torch.arange(n)[:, None, None]
    rows, columns, image = (
        index.to(images.device) for index in (rows[:, :, None], columns[:, None, :], image)
    )
    moved = padded.permute(0, 2, 3, 1)[image, rows, columns]  # [N, H, W, C]
    return moved.permute(0, 3, 1, 2)


def multiply(images: Tensor, scalars: tuple[float, ...]) -> Tensor:
    """Each image times one of ``scalars``, drawn for it with equal chances (Section 2.5 of the zero-bias paper)."""
    drawn = torch.tensor(scalars, dtype=images.dtype)[torch.randint(len(scalars), (len(images),))]
    return images * drawn.to(images.device)[:, None, None, None]


def mixup(images: Tensor, alpha: float) -> tuple[Tensor, Tensor, float]:
    """λ·images + (1-λ)·partners, λ drawn once per batch from Beta(alpha, alpha) (Zhang et al., mixup).

    Returns:
        the mixed images, the partners' places in the batch (``[N]`` int64), λ. The loss to take is
        λ·loss(labels) + (1-λ)·loss(labels[partners]).
    """
    weight = float(torch.distributions.Beta(alpha, alpha).sample())
    partners = torch.randperm(len(images)).to(images.device)
    return weight * images + (1 - weight) * images[partners], partners, weight
