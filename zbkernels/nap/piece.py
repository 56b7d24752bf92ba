"""The affine piece of a piecewise-linear network: the network with each unit held as it is at an anchor.

Where the held units are what the network itself would choose is the piece's region; ``held.py`` says which rows
g(x) > 0 or g(x) >= 0 describe it. The prediction c, the first of the largest logits, adds f_c - f_j >= 0, strict for
the j before c. Everything runs in float64, the weights as they are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from zbkernels.nap.errors import Errors
from zbkernels.nap.held import Held, fused_windows, pool_windows
from zbkernels.nap.rounding import Rounding
from zbkernels.nap.unit_calls import function_name, geometry
from zbkernels.nap.units import Call, Handler, Site, Units, check_visible
from zbkernels.ops._conv_reference import _conv, _pool

UNITS = ("winner", "relu")
PREDICTION = "prediction"  # names the rows f_c - f_j


class NotPiecewiseLinear(ValueError):
    """A network, or a choice of units, of which no affine piece can be told; the message names layer and reason."""


class _Seen(Units):
    """:class:`Units` that refuses, by the layer's name, what is not affine between units."""

    def __init__(self, who: str, model: nn.Module, handler: Handler) -> None:
        super().__init__(model, handler)
        self.who = who

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function_name(func) == "batch_norm" and (
            args[5] if len(args) > 5 else (kwargs or {}).get("training")
        ):
            self._refuse("batch_norm in training")  # before torch refuses a batch of one by another name
        try:
            result = super().__torch_function__(func, types, args, kwargs)
        except NotImplementedError as error:  # of ``Errors``
            raise NotPiecewiseLinear(f"{self.who}: in layer {self._stack[-1]!r}: {error}") from error
        if self.unsupported:
            self._refuse(self.unsupported[0])
        return result

    def _refuse(self, function: str) -> None:
        layer = self._stack[-1] if self._stack else self.model._get_name()
        raise NotPiecewiseLinear(
            f"{self.who}: the model is not piecewise linear: layer {layer!r} calls {function}{_advice(function)}"
        )


def _advice(function: str) -> str:
    if "softmax" in function:
        return "; give the model without it (it does not change the prediction)"
    return "; call model.eval() first" if "training" in function else ""


class Piece:
    """The affine pieces of ``model`` at B anchors.

    Args:
        x: anchors [B, ...], finite, of a floating-point dtype.
        units: what a pattern holds. ``"winner"``: the bits of ReLUs and the winners of max pools (of ReLUs that only
            max pools read, the winners' codes alone). ``"relu"``: bits, which fix the piece only without max pools.
        who: the function that messages name.

    Attributes:
        inputs: float64 [B, ...].
        outputs: of the model at the anchors, float64 [B, C].
        predictions: int64 [B], the first of the largest logits.
        held: the layers of units, in order, each held as it is at the anchors.
        names: of the layers of rows, in order; :data:`PREDICTION` is the last.
        strict: bool [B, rows] of each.
        bias: "" where the piece is linear and its region a cone; else what a bias reaches first.

    Raises:
        NotPiecewiseLinear: the units do not fix a piece, or something in the model is not piecewise linear.
        ValueError: inputs or weights that are not finite, or a model that does not return logits [B, C].
    """

    def __init__(
        self,
        model: nn.Module,
        x: torch.Tensor,
        units: str,
        who: str,
        weights: dict[str, torch.Tensor] | None = None,
    ) -> None:
        self.who, self.model, self.units = who, model, units
        self.inputs = check_inputs(who, x)
        self._weights = _weights(who, model) if weights is None else weights
        with torch.no_grad():
            self._look(units)
            self._hold()
            at_zero = self.magnitudes(torch.zeros_like(self.inputs[:, None]))
        reached = [name for name, (m, _) in zip(self.names, at_zero, strict=True) if bool((m > 0).any())]
        self.bias = f"a bias reaches {reached[0]!r}" if reached else ""

    def of_anchor(self, index: int) -> Piece:
        """The piece of one anchor alone, with the weights that the model had."""
        return Piece(self.model, self.inputs[index : index + 1], self.units, self.who, self._weights)

    def fits(self, dtype: torch.dtype) -> bool:
        """Whether each weight is a number of ``dtype``."""
        return all(bool((t == t.to(dtype)).all()) for t in self._weights.values() if t.is_floating_point())

    @property
    def rows(self) -> int:
        """How many rows there are for one anchor."""
        return sum(strict.shape[1] for strict in self.strict)

    def _look(self, units: str) -> None:
        """Run the model as it is: its results, and which activations only max pools read."""
        rectifiers: set[str] = set()
        pools: list[str] = []

        def note(site: Site, call: Call) -> Any:
            pool = call.args.get("pool", "none")
            if call.kind == "max_pool" or pool == "max":
                pools.append(site.name)
            elif pool == "none" and call.args.get("negative_slope", 0.0) == 0:
                rectifiers.add(site.name)
            return call.run()

        seen = _Seen(self.who, self.model, note)
        self.outputs = self._call(seen, self.inputs)
        self._deferred = seen.only_pooled & rectifiers
        check_units(self.who, units, pools)
        # An input and another one, in either order, must not notice each other.
        pair = torch.stack([self.inputs[0], 1 - self.inputs[0]])
        one, other = (self._call(_Seen(self.who, self.model, _as_it_is), x) for x in (pair, pair.flip(0)))
        if not (_close(one[:1], self.outputs[:1]) and _close(one, other.flip(0))):
            raise NotPiecewiseLinear(
                f"{self.who}: the model's result for an input depends on the others of its batch"
            )

    def _hold(self) -> None:
        self.held: list[Held] = []

        def hold(site: Site, z: torch.Tensor, slope: float, window: torch.Tensor | None) -> torch.Tensor:
            held = Held(site.name, slope, window, z)
            self.held.append(held)
            return held.output(z.unsqueeze(1)).squeeze(1)

        outputs = self._run(self.inputs, hold, None)
        self.predictions = outputs.argmax(1)
        self.names = [held.name for held in self.held] + [PREDICTION]
        classes = torch.arange(outputs.shape[1], device=outputs.device)
        self.strict = [held.strict for held in self.held] + [classes < self.predictions.unsqueeze(1)]
        if not _close(outputs, self.outputs):
            raise NotPiecewiseLinear(
                f"{self.who}: the model does something between its units that can't be seen"
            )

    def values(self, points: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """(g [B, T, rows] of each layer of rows, the pieces' outputs [B, T, C]) at ``points`` [B, T, ...].

        ``points[b]`` go through the piece of anchor b, inside its region or not.
        """
        rows: list[torch.Tensor] = []
        outputs = self._through(points, lambda held, z: rows.append(held.rows(z)), None)
        rows.append(outputs.gather(2, self._predicted(points)) - outputs)
        return rows, outputs

    def magnitudes(self, points: torch.Tensor) -> list[tuple[torch.Tensor, Rounding]]:
        """(magnitudes [B, T, rows], what is known of the values behind) of each layer of rows at |``points``|."""
        return self._bounded(points, Errors(None), 0)

    def errors(
        self, points: torch.Tensor, dtype: torch.dtype, *, more: int = 0, grid: bool = True
    ) -> list[tuple[torch.Tensor, Rounding]]:
        """(by how much rows can be off [B, T, rows], what is known of the values behind) of each layer at ``points``.

        Args:
            dtype: in which the model is computed.
            more: roundings of the points themselves.
            grid: find out where values are exact; False to have bounds for all inputs of these magnitudes.
        """
        # A row is a difference, rounded once more in float64, where only its sign is asked for.
        return [
            (e * (1 + 1e-12), known) for e, known in self._bounded(points, Errors(dtype, grid=grid), more)
        ]

    def _bounded(self, points: torch.Tensor, mode: Errors, more: int) -> list[tuple[torch.Tensor, Rounding]]:
        rows: list[tuple[torch.Tensor, Rounding]] = []

        def visit(held: Held, z: torch.Tensor, known: Rounding) -> None:
            rows.append((held.magnitudes(z), known))

        self._through(points, visit, mode, more)
        last, known = self._last
        last = last.unflatten(0, points.shape[:2])
        predicted = self._predicted(points)
        rows.append(((last.gather(2, predicted) + last).scatter(2, predicted, 0.0), known))
        return rows

    def describe(self, layer: int, row: int) -> str:
        """Which unit a row of a layer belongs to."""
        return (
            self.held[layer].describe(row)
            if layer < len(self.held)
            else f"class {row} against the prediction"
        )

    def describe_row(self, row: int) -> str:
        """The same, by the row's number among those of all layers."""
        for layer, strict in enumerate(self.strict):
            if row < strict.shape[1]:
                return self.describe(layer, row)
            row -= strict.shape[1]
        raise IndexError(row)

    def _predicted(self, points: torch.Tensor) -> torch.Tensor:
        return self.predictions[:, None, None].expand(-1, points.shape[1], 1)

    def _through(
        self, points: torch.Tensor, visit: Callable[..., None], mode: Errors | None, more: int = 0
    ) -> torch.Tensor:
        """The held network's outputs [B, T, C]. ``visit(held, z)`` sees each layer's pre-activations [B, T, ...];
        with a mode ``visit(held, their errors or magnitudes, what is known of them)``."""
        batch = points.shape[:2]
        left = iter(self.held)

        def go_on(site: Site, z: torch.Tensor, slope: float, window: torch.Tensor | None) -> torch.Tensor:
            held = next(left, None)
            if held is None or held.name != site.name or z.shape[0] != batch[0] * batch[1]:
                raise NotPiecewiseLinear(
                    f"{self.who}: the model takes another path for other inputs, at {site.name!r}"
                )
            each = z.unflatten(0, batch)
            y = held.output(each).flatten(0, 1)
            if mode is None:
                visit(held, each)
                return y
            known, error = mode.of(z), mode.error(z)
            if error is None:  # magnitudes
                visit(held, each, known)
                return mode.activated(y, None, known, slope)
            error = error.unflatten(0, batch)
            visit(held, error, known)
            return mode.activated(y, held.output(error).flatten(0, 1), known, slope)

        with torch.no_grad():
            outputs = self._run(points.flatten(0, 1), go_on, mode, more)
        if next(left, None) is not None:
            raise NotPiecewiseLinear(f"{self.who}: the model takes another path for other inputs")
        return outputs.unflatten(0, batch)

    def _run(
        self,
        x: torch.Tensor,
        layer: Callable[[Site, torch.Tensor, float, torch.Tensor | None], torch.Tensor],
        mode: Errors | None,
        more: int = 0,
    ) -> torch.Tensor:
        """The model on x, each layer of units (max pool included) replaced by ``layer(site, z, slope, window)``."""

        def handler(site: Site, call: Call) -> Any:
            args, slope, window, g = call.args, 1.0, None, None
            if args.get("return_indices") or call.function.endswith(("_nap", "_with_indices")):
                raise NotPiecewiseLinear(
                    f"{self.who}: {site.name!r} calls {call.function}, which the model reads"
                )
            if call.kind == "conv_relu_pool":
                g = geometry(args)
                z, slope = _conv(args["x"], args["weight"], g), g.negative_slope
                if g.pool == "max":
                    window = fused_windows(g, z.shape[-2:])
            elif call.kind == "linear_relu":
                z, slope = F.linear(args["x"], args["weight"]), args["negative_slope"]
            elif call.kind == "max_pool":
                z, window = call.input, pool_windows(args, call.input.shape[-2:], site.shape[-2:])
                if call.source is not None and call.source.name in self._deferred:
                    slope = 0.0
            else:
                z, slope = call.input, args.get("negative_slope", 0.0)
            if site.name in self._deferred:
                return z  # the max pools behind it do its part
            with torch._C.DisableTorchFunction():
                y = layer(site, z, slope, None if window is None else window.to(z.device))
                if window is not None:
                    shaped, flat = y.unflatten(-1, site.shape[-2:]), y
                    y = shaped
                    if mode:
                        error = mode.error(flat)
                        error = None if error is None else error.unflatten(-1, site.shape[-2:])
                        mode.track(y, error, mode.of(flat))
            if args.get("inplace"):
                with torch._C.DisableTorchFunction():
                    y = mode.write(z, y) if mode else z.copy_(y)
            return _pool(y, g) if g is not None and g.pool == "avg" else y

        if mode:
            x = mode.start(x, more)
        return self._call(_Seen(self.who, self.model, handler), x, mode)

    def _call(self, units: _Seen, x: torch.Tensor, mode: Errors | None = None) -> torch.Tensor:
        with mode or nullcontext(), units:
            y = torch.func.functional_call(self.model, self._weights, (x,))
        if (
            not isinstance(y, torch.Tensor)
            or y.dim() != 2
            or y.shape[0] != x.shape[0]
            or y.dtype != torch.float64
        ):
            got = f"{y.dtype} {list(y.shape)}" if isinstance(y, torch.Tensor) else type(y).__name__
            raise ValueError(f"{self.who}: expected a model that returns logits [{x.shape[0]}, C], got {got}")
        if mode:
            error = mode.error(y)
            self._last = (y if error is None else error, mode.of(y))
        return y


def _weights(who: str, model: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of parameters and buffers, the floating-point ones in float64."""
    check_visible(model)
    weights = {}
    for name, t in [*model.named_parameters(), *model.named_buffers()]:
        if not bool(torch.isfinite(t).all()):
            raise ValueError(f"{who}: expected finite weights, got NaN or infinite values in {name!r}")
        weights[name] = t.detach().to(torch.float64 if t.is_floating_point() else t.dtype, copy=True)
    return weights


def check_inputs(who: str, x: Any) -> torch.Tensor:
    """Inputs [N, ...] in float64, detached.

    Raises:
        ValueError: not a floating-point tensor [N, ...], empty, or not finite.
    """
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.dim() < 2 or x.shape[0] == 0:
        got = f"{x.dtype} {list(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
        raise ValueError(f"{who}: expected at least one input, floating point [N, ...], got {got}")
    if not bool(torch.isfinite(x).all()):
        raise ValueError(f"{who}: expected finite inputs, got NaN or infinite values")
    return x.detach().to(torch.float64, copy=True)


def _as_it_is(site: Site, call: Call) -> Any:
    return call.run()


def check_units(who: str, units: str, pools: list[str]) -> None:
    """Refuse patterns that do not fix the linear piece."""
    if units == "relu" and pools:
        raise NotPiecewiseLinear(
            f"{who}: ReLU bits do not fix the linear piece of this model, since under the same bits the max pool "
            f"{pools[0]!r} can have other winners; expected units='winner'"
        )
    if units == "output":
        raise NotPiecewiseLinear(
            f"{who}: which pooled outputs are on does not fix the linear piece; expected 'winner'"
        )
    if units not in UNITS:
        raise ValueError(f"{who}: expected units to be one of {', '.join(UNITS)}, got {units!r}")


def _close(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Equal but for rounding; the tolerance is far above float64's and far below what a mistake would make."""
    return torch.allclose(got, want, rtol=1e-8, atol=1e-8 * float(want.abs().max()))
