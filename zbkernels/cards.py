"""The name under which measured results of a GPU are kept."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

import torch


class Card(NamedTuple):
    """A kind of GPU: results measured on one are taken to hold for every other of its name."""

    name: str
    capability: str  # "9.0"

    @property
    def slug(self) -> str:
        """The card in a file's name, e.g. ``nvidia-h100-80gb-hbm3-9.0``."""
        return "-".join(re.findall(r"[a-z0-9.]+", self.name.lower())) + f"-{self.capability}"


def card_of(device: torch.device) -> Card | None:
    """The card of a device; None for a CPU.

    None as well where CUDA was not started yet: then no tensor can be there but a fake one, and asking for the
    card would start it.
    """
    if device.type != "cuda" or not torch.cuda.is_initialized():
        return None
    return _card(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _card(index: int) -> Card:
    major, minor = torch.cuda.get_device_capability(index)
    return Card(torch.cuda.get_device_name(index), f"{major}.{minor}")
