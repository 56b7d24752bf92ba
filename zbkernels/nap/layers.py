"""What each layer of a network adds to a signature: which units, in which code, at which words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch

from zbkernels.nap.unit_calls import geometry
from zbkernels.nap.units import ROOT, Call, Site
from zbkernels.nap.winners import window_positions
from zbkernels.ops import nap_unpack
from zbkernels.ops.nap_pack import words_for

UNITS = ("relu", "output", "winner")


class RecordingError(ValueError):
    """A pattern cannot be recorded, or a recording not used; the message says what was met and what to do."""


@dataclass(frozen=True)
class Layer:
    """The part of a signature that one unit site gives.

    Attributes:
        name: the site's.
        kind: the site's, such as ``relu`` or ``conv_relu_pool``.
        coding: ``"relu"``: a bit for each pre-activation, value > 0. ``"output"``: a bit for each pooled output.
            ``"winner"``: for each pooled output 0 or 1 + the winner's position in its window.
        shape: of one example's units.
        unit_bits: bits of each unit.
        start: the word of a signature at which the layer starts.
    """

    name: str
    kind: str
    coding: str
    shape: tuple[int, ...]
    unit_bits: int
    start: int = 0

    @property
    def units(self) -> int:
        return math.prod(self.shape)

    @property
    def bits(self) -> int:
        return self.units * self.unit_bits

    @property
    def words(self) -> int:
        return words_for(self.bits)

    def of(self, signatures: torch.Tensor) -> torch.Tensor:
        """This layer's words, int64 [N, words]: a view of signatures [N, all words]."""
        return signatures[:, self.start : self.start + self.words]

    def decode(self, signatures: torch.Tensor) -> torch.Tensor:
        """bool [N, *shape], or int64 [N, *shape] of winner codes, from signatures [N, all words]."""
        on = nap_unpack(self.of(signatures).contiguous(), self.bits)
        if self.coding != "winner":
            return on.unflatten(1, self.shape)
        weights = 1 << torch.arange(self.unit_bits, device=on.device)
        return (on.unflatten(1, (*self.shape, self.unit_bits)) * weights).sum(-1)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "shape": list(self.shape), "bits": self.bits, "words": self.words}

    @staticmethod
    def from_json(value: dict[str, Any]) -> Layer:
        name, kind, coding, unit_bits, start = (
            value[k] for k in ("name", "kind", "coding", "unit_bits", "start")
        )
        shape = tuple(value["shape"])
        if not all(isinstance(text, str) for text in (name, kind, coding)) or coding not in UNITS:
            raise ValueError(f"expected a layer's names to be text, of a coding {', '.join(UNITS)}")
        for size in (*shape, unit_bits, start):
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**63:
                raise ValueError(f"expected a layer's sizes to be whole numbers, got {str(size)[:40]}")
        return Layer(name, kind, coding, shape, unit_bits, start)


def layers_from_json(values: Sequence[dict[str, Any]]) -> tuple[Layer, ...]:
    """The layers of a file's header, whatever it says of them.

    Raises:
        ValueError, KeyError, TypeError: they are no layers, or don't lie one after another.
    """
    layers = tuple(map(Layer.from_json, values))
    start = 0
    for layer in layers:
        if layer.start != start:
            raise ValueError(f"layer {layer.name[:60]!r} starts at word {layer.start}, expected {start}")
        start += layer.words
    return layers


def path_of(name: str) -> str:
    """The module's path in a site's name."""
    return name.partition("#")[0]


def is_rectifier(call: Call) -> bool:
    """Whether what the call returns is a ReLU's output itself, so that a window of zeros means that all are off."""
    if call.kind == "conv_relu_pool":
        return call.args["pool"] == "none" and call.args["negative_slope"] == 0
    return call.kind == "relu" or (call.kind == "linear_relu" and call.args["negative_slope"] == 0)


def layers_of(
    calls: Sequence[tuple[Site, Call]], only_pooled: Iterable[str], units: str
) -> tuple[list[Layer], dict[str, str]]:
    """The layers that a forward pass gives a signature of ``units``, and max pool -> the ReLU that it stands for.

    A plain ReLU whose output goes to max pools alone is coded with the pool, as the fused layer codes both: the
    pattern needs the winner's bit only.
    """
    rectifiers = {site.name for site, call in calls if is_rectifier(call)}
    absorbed = rectifiers & set(only_pooled) if units != "relu" else set()
    stands_for = {
        site.name: call.source.name
        for site, call in calls
        if call.source is not None and call.source.name in absorbed
    }
    layers = [
        _layer(site, call, units, site.name in stands_for)
        for site, call in calls
        if site.name not in absorbed
    ]
    return [layer for layer in layers if layer is not None], stands_for


def _layer(site: Site, call: Call, units: str, stands_for_relu: bool) -> Layer | None:
    if site.kind == "max_pool":
        if units == "winner":
            return Layer(site.name, site.kind, "winner", site.shape, window_positions(call.args).bit_length())
        return Layer(site.name, site.kind, "output", site.shape, 1) if stands_for_relu else None
    if site.kind != "conv_relu_pool" or call.args["pool"] == "none":
        return Layer(site.name, site.kind, "relu", site.shape, 1)
    g = geometry(call.args)
    if units == "winner" and g.pool == "max":
        return Layer(site.name, site.kind, "winner", site.shape, g.unit_bits("winner"))
    if units == "output":
        return Layer(site.name, site.kind, "output", site.shape, 1)
    return Layer(
        site.name, site.kind, "relu", (site.shape[0], *g.map_size(call.args["x"], call.args["weight"])), 1
    )


def named(layer: Layer, pattern: str) -> bool:
    """Whether a name, or a shell pattern, is the layer's."""
    return layer.name == pattern or fnmatchcase(layer.name, pattern)


Aliases = Mapping[str, Sequence[str]]  # layer name -> modules by whose names it goes, too


def aliases_of(
    calls: Sequence[tuple[Site, Call]], stands_for: Mapping[str, str], layers: Sequence[Layer]
) -> dict[str, list[str]]:
    """The modules whose output the layers' units take: of ``F.relu(self.fc1(x))``, ``fc1``.

    Such a unit is named after the module that calls it, as is every other one there: only modules that this one holds
    count, for a ReLU that is a module has a name of its own. A max pool that stands for a ReLU
    goes by what the ReLU takes, and a ReLU behind a max pool that is no layer by what the pool takes.
    """
    names = {layer.name for layer in layers}
    taken: dict[str, list[str]] = {}
    for site, call in calls:
        if site.kind not in ("relu", "leaky_relu", "max_pool"):
            continue
        caller = path_of(site.name)
        taken[site.name] = [each for each in call.after if caller == ROOT or each.startswith(f"{caller}.")]
        passes_on = call.source is not None and (
            stands_for.get(site.name) == call.source.name
            or (call.source.kind == "max_pool" and call.source.name not in names)
        )
        if passes_on and call.source is not None:
            taken[site.name] += taken.get(call.source.name, [])
    return {name: taken[name] for name in taken if name in names and taken[name]}


def find_named(
    layers: Sequence[Layer], wanted: Sequence[str] | None, aliases: Aliases, who: str
) -> tuple[Layer, ...]:
    """The layers of these names (``*``, ``?`` and ``[…]`` as in a shell); None for all.

    An alias counts where no layer has the name itself.

    Raises:
        RecordingError: a wanted name is none of theirs, or the alias of several.
    """
    if wanted is None:
        return tuple(layers)
    found: set[str] = set()
    for pattern in wanted:
        names = {layer.name for layer in layers if named(layer, pattern)}
        if not names:
            names = _by_alias(layers, pattern, aliases, who)
        found |= names
    return tuple(layer for layer in layers if layer.name in found)


def _by_alias(layers: Sequence[Layer], pattern: str, aliases: Aliases, who: str) -> set[str]:
    owners: dict[str, list[str]] = {}
    for layer in layers:
        for alias in aliases.get(layer.name, ()):
            if alias == pattern or fnmatchcase(alias, pattern):
                owners.setdefault(alias, []).append(layer.name)
    for alias, names in owners.items():
        if len(names) > 1:
            raise RecordingError(
                f"{who}: no layer {alias!r}, and its output goes to several: {', '.join(names)}; name one of them"
            )
    if not owners:
        said = ", ".join(
            layer.name + (f" (of {', '.join(aliases[layer.name])})" if layer.name in aliases else "")
            for layer in layers
        )
        raise RecordingError(f"{who}: no layer {pattern!r}; there are {said}")
    return {names[0] for names in owners.values()}


def choose(
    layers: Sequence[Layer], wanted: Sequence[str] | None, aliases: Aliases, who: str
) -> tuple[Layer, ...]:
    """:func:`find_named`, each layer at its first word.

    Raises:
        RecordingError: there are none, or a wanted name is none of theirs.
    """
    if not layers:
        raise RecordingError(f"{who}: the model met no ReLU, leaky ReLU or max pool, so it has no pattern")
    start, chosen = 0, []
    for layer in find_named(layers, wanted, aliases, who):
        chosen.append(replace(layer, start=start))
        start += layer.words
    if start == 0:
        raise RecordingError(f"{who}: layers: expected at least one layer with units, got none")
    return tuple(chosen)
