"""Signatures of one batch: what :mod:`zbkernels.nap.record` streams to a file, batch after batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from zbkernels.nap.layers import (
    UNITS,
    Layer,
    RecordingError,
    aliases_of,
    choose,
    is_rectifier,
    layers_of,
    path_of,
)
from zbkernels.nap.units import Call, Site, Units, evaluating
from zbkernels.nap.winners import code_bits, winners
from zbkernels.ops.conv_relu_pool2d_nap import conv_relu_pool2d_nap
from zbkernels.ops.linear_relu_nap import linear_relu_nap
from zbkernels.ops.nap_pack import nap_pack

_RANDOM = ("dropout in training", "batch_norm in training")


class PatternReader:
    """Reads the signatures of a model's units, batch after batch, always of the same layers.

    Args:
        model: any; it is run in evaluation mode and left in its own.
        example: a batch with at least one example, from which the layers are found.
        units: ``"relu"``: each ReLU's pre-activation, value > 0. ``"output"``: of a ReLU and the pool that follows, the
            pooled outputs. ``"winner"``: of a ReLU and the max pool that follows, each window's winner (so that the
            pattern fixes the linear piece); of a max pool alone its winners; of other ReLUs the bits.
        layers: names of the sites that count (``find_units`` lists them), with ``*`` and ``?``; None for all. A name
            that no site has may be that of the module whose output one ReLU or max pool takes: ``fc1`` for
            ``F.relu(self.fc1(x))``, whose site is named after the module that calls it.
        who: the function that messages name.

    Attributes:
        layers: tuple of :class:`Layer`, in the order of the calls.
        aliases: of these layers, name -> the modules by whose names they go, too.
        words: int64 words of a signature.
        classes: of a model that returns logits [N, classes] of at least two; None of others.
        unsupported: other non-linear functions met, as :class:`Units` has them.

    Raises:
        RecordingError: the model has no such layer, or one whose units can't be told for each example.
        TypeError: as :class:`Units`.
    """

    def __init__(
        self,
        model: nn.Module,
        example: torch.Tensor,
        *,
        units: str = "relu",
        layers: Sequence[str] | None = None,
        who: str = "PatternReader",
    ) -> None:
        self.who = who
        if units not in UNITS:
            raise RecordingError(f"{who}: expected units to be one of {', '.join(UNITS)}, got {units!r}")
        if isinstance(layers, str) or not (layers is None or all(isinstance(name, str) for name in layers)):
            raise RecordingError(f"{self.who}: expected layers to be a list of names, got {layers!r}")
        self.model, self.units = model, units
        self.calls: list[tuple[Site, Call]] = []  # of the first pass
        self._rectifiers: set[str] = set()  # sites of this pass that return a ReLU's output
        self._units = Units(model, self._handle)
        self.layers: tuple[Layer, ...] = ()
        self._wanted: dict[str, Layer] = {}
        # One example alone: a unit whose first dimension is 1 now and the batch's size later has the batch there.
        self._rows = 1
        y = self._run(self.prepare(example[:1]))
        is_logits = isinstance(y, torch.Tensor) and y.is_floating_point() and y.dim() == 2 and y.shape[0] == 1
        self.classes = y.shape[1] if is_logits and y.shape[1] > 1 else None
        found, stands_for = layers_of(self.calls, self._units.only_pooled, units)
        aliases = aliases_of(self.calls, stands_for, found)
        self.layers = choose(found, layers, aliases, who)
        self.aliases = {layer.name: aliases[layer.name] for layer in self.layers if layer.name in aliases}
        self.words = sum(layer.words for layer in self.layers)
        self._wanted = {layer.name: layer for layer in self.layers}
        self._absorbed = {relu for pool, relu in stands_for.items() if pool in self._wanted}
        self._paths = {path_of(name) for name in (*self._wanted, *self._absorbed)}
        self._expected = self._sites()
        self._after_relu = {site.name: self._is_after_relu(call) for site, call in self.calls}
        for site, call in self.calls:
            self._check(site, call)
        self.calls = []

    @property
    def unsupported(self) -> list[str]:
        return self._units.unsupported

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        """x on the model's device, and of its dtype where both are floating-point."""
        parameter = next((p for p in self.model.parameters() if p.is_floating_point()), None)
        if parameter is None:
            return x
        return x.to(parameter.device, parameter.dtype if x.is_floating_point() else None)

    def read(self, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Signatures int64 [N, words] on the model's device, and what the model returns.

        Raises:
            RecordingError: the model took another path than for the first batch.
        """
        self._rows = x.shape[0]
        self._found: dict[str, torch.Tensor] = {}
        y = self._run(self.prepare(x))
        if self._sites() != self._expected:
            self._refuse_path()
        used = self._absorbed - self._units.only_pooled
        if used:
            raise RecordingError(
                f"{self.who}: {min(used)} went to its max pool alone for the first example and elsewhere too for "
                "others, so the pool's pattern can't stand for it; use units='relu', or choose other layers"
            )
        return torch.cat([self._found[layer.name] for layer in self.layers], 1), y

    def _run(self, x: torch.Tensor) -> Any:
        self._rectifiers.clear()
        with evaluating(self.model), torch.no_grad(), self._units:
            try:
                y = self.model(x)
            except (RuntimeError, TypeError) as error:
                self._refuse_whole_numbers(x, error)
                raise
        for reason in _RANDOM:
            if any(reason in each for each in self._units.unsupported):
                raise RecordingError(
                    f"{self.who}: the model has {reason} even in evaluation mode (F.dropout needs "
                    "training=self.training), so a pattern would not be the input's alone"
                )
        return y

    def _refuse_whole_numbers(self, x: torch.Tensor, error: Exception) -> None:
        """Images as bytes are no input of a layer with weights; other models take whole numbers (an embedding does)."""
        parameter = next((p for p in self.model.parameters() if p.is_floating_point()), None)
        if parameter is None or x.is_floating_point() or x.is_complex():
            return
        raise RecordingError(
            f"{self.who}: expected inputs that the model takes, {parameter.dtype} as its weights, got {x.dtype} "
            f"{['N', *x.shape[1:]]}, with which it fails ({str(error).splitlines()[0]}); scale bytes as in training, "
            "such as x.float() / 255"
        ) from error

    def _sites(self) -> list[Site]:
        """Those of the modules that count. A skipped call of one of them would rename the later ones."""
        return [site for site in self._units.sites if path_of(site.name) in self._paths]

    def _is_after_relu(self, call: Call) -> bool:
        return call.source is not None and call.source.name in self._rectifiers

    def _refuse_path(self) -> None:
        met = self._sites()
        pairs = zip([*self._expected, None], [*met, None], strict=False)
        wanted, got = next(pair for pair in pairs if pair[0] != pair[1])
        raise RecordingError(
            f"{self.who}: the model takes another path than for the first example: expected {_said(wanted)}, got "
            f"{_said(got)}; a bit would mean another unit, so choose the layers that always run with layers=[…]"
        )

    def _check(self, site: Site, call: Call) -> None:
        if path_of(site.name) not in self._paths:
            return
        layer = self._wanted.get(site.name)
        if self._is_after_relu(call) != self._after_relu[site.name] and site.kind == "max_pool":
            raise RecordingError(
                f"{self.who}: {site.name} (max_pool): its input is a ReLU's output for some inputs and not for "
                "others, so a winner's code would have two meanings; leave it out with layers=[…]"
            )
        batch_dims = {"max_pool": 4, "conv_relu_pool": 4}.get(site.kind)
        if call.input.shape[:1] != (self._rows,) or (batch_dims and call.input.dim() != batch_dims):
            raise RecordingError(
                f"{self.who}: {site.name} ({site.kind}): expected the batch in the first dimension, {self._rows} for "
                f"{self._rows} inputs, got {list(call.input.shape)}; leave it out with layers=[…]"
            )
        fused_winner = layer is not None and site.kind == "conv_relu_pool" and layer.coding == "winner"
        if fused_winner and call.args["negative_slope"] != 0:
            raise RecordingError(
                f"{self.who}: {site.name}: units='winner' of a fused layer needs negative_slope=0, got "
                f"{call.args['negative_slope']}; use plain layers, whose leaky ReLU and max pool are recorded both"
            )

    def _handle(self, site: Site, call: Call) -> Any:
        if is_rectifier(call):
            self._rectifiers.add(site.name)
        if not self.layers:  # the first pass, which only looks
            self.calls.append((site, call))
            return call.run()
        layer = self._wanted.get(site.name)
        if layer is None:
            return call.run()
        self._check(site, call)
        result, self._found[site.name] = _read(layer, call, self._is_after_relu(call))
        return result


def _said(site: Site | None) -> str:
    return "no more units" if site is None else f"{site.name} ({site.kind}, {list(site.shape)})"


def _read(layer: Layer, call: Call, after_relu: bool) -> tuple[Any, torch.Tensor]:
    """(what the model goes on with, int64 [N, words])."""
    wants_signature = call.function.endswith("_nap")  # the model itself does, and goes on with both
    if call.kind == "conv_relu_pool":
        args = {key: value for key, value in call.args.items() if key != "units"}
        y, words = conv_relu_pool2d_nap(**args, units=layer.coding)
        return call.run() if wants_signature else y, words
    if call.kind == "linear_relu":
        y, words = linear_relu_nap(**call.args)
        # Each row of x has a signature of its own, filled up to words; here an example has one.
        return (y, words) if wants_signature else y, words if call.input.dim() == 2 else _pack(y)
    if call.kind == "max_pool":
        codes, y, index = winners(call.args, after_relu)
        words = _pack(y > 0 if layer.coding == "output" else code_bits(codes, layer.unit_bits))
        return (y, index) if call.args["return_indices"] or "with_indices" in call.function else y, words
    words = _pack(call.input)  # before the call, which may be in place
    return call.run(), words


def _pack(values: torch.Tensor) -> torch.Tensor:
    return nap_pack(values if values.dim() > 1 else values.unsqueeze(1))


def patterns(
    model: nn.Module, x: torch.Tensor, *, units: str = "relu", layers: Sequence[str] | None = None
) -> torch.Tensor:
    """The signatures of one batch, int64 [N, words]: Definition 1 of "Scalar Invariant Networks with Zero Bias".

    Layers follow each other in the order in which the model runs them, each from a new word on;
    :class:`PatternReader` says which they are. The model is put in evaluation mode by itself, runs without
    gradients, and is left in its own mode.

    Args:
        model: any ``nn.Module``.
        x: [N, ...], at least one example; moved to the model's device and floating dtype.
        units: ``"relu"``, ``"output"`` or ``"winner"``; see :class:`PatternReader`.
        layers: names of the sites that count, with ``*`` and ``?``; None for all; see :class:`PatternReader`.

    Raises:
        RecordingError: the model has no such layer, or one whose units can't be told for each example.
        TypeError: x is no tensor, or the model runs where Python can't see it.
    """
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"patterns: expected x to be a tensor [N, ...], got {type(x).__name__}")
    if x.dim() < 1 or x.shape[0] < 1:
        raise RecordingError(
            f"patterns: expected x of shape [N, ...] with N of at least 1, got {list(x.shape)}"
        )
    return PatternReader(model, x, units=units, layers=layers, who="patterns").read(x)[0]
