"""Vision transformers (Dosovitskiy et al., 2021) in plain torch, with torchvision's parameter names."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ViTSize:
    """The defaults are ViT-B/16 at 224×224 pixels."""

    width: int = 768
    depth: int = 12
    heads: int = 12
    hidden: int = 3072
    patch: int = 16
    image: int = 224
    classes: int = 1000

    @property
    def tokens(self) -> int:
        """One for each patch, and the class token."""
        return (self.image // self.patch) ** 2 + 1


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself; parameters named as ``nn.MultiheadAttention``'s."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))  # queries, keys, values
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        projected = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        split = projected.view(n, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # each [N, heads, L, width / heads]
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(mixed.transpose(1, 2).reshape(n, length, width))


class EncoderLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, size: ViTSize) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(size.width, eps=1e-6)
        self.self_attention = SelfAttention(size.width, size.heads)
        self.ln_2 = nn.LayerNorm(size.width, eps=1e-6)
        # The names 0 and 3 are torchvision's, which has a dropout after each linear layer.
        self.mlp = nn.Sequential(
            OrderedDict(
                {
                    "0": nn.Linear(size.width, size.hidden),
                    "1": nn.GELU(),
                    "3": nn.Linear(size.hidden, size.width),
                }
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attention(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Encoder(nn.Module):
    def __init__(self, size: ViTSize) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.randn(1, size.tokens, size.width) * 0.02)
        self.layers = nn.Sequential(
            OrderedDict((f"encoder_layer_{index}", EncoderLayer(size)) for index in range(size.depth))
        )
        self.ln = nn.LayerNorm(size.width, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return self.ln(self.layers(x + self.pos_embedding))


class VisionTransformer(nn.Module):
    """Images ``[N, 3, image, image]``, normalised as the checkpoint wants them, to logits ``[N, classes]``.

    Raises:
        ValueError: the image is no whole number of patches, or the width no multiple of the heads.
    """

    def __init__(self, size: ViTSize = ViTSize()) -> None:
        super().__init__()
        if size.image % size.patch or size.width % size.heads:
            raise ValueError(
                f"VisionTransformer: expected the image to be a multiple of the patch and the width of the heads, "
                f"got {size}"
            )
        self.size = size
        self.conv_proj = nn.Conv2d(3, size.width, size.patch, stride=size.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, size.width))
        self.encoder = Encoder(size)
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(size.width, size.classes)))

    def forward(self, x: Tensor) -> Tensor:
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)  # [N, patches, width]
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), patches], 1)
        return self.heads(self.encoder(tokens)[:, 0])
