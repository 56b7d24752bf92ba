"""``zb check-invariance``: the check of a saved network, or of one of the package's own, from the command line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import nn

from zbkernels.checkpoint import CheckpointError
from zbkernels.console import Console
from zbkernels.data import DataError
from zbkernels.experiments.runner import device_named
from zbkernels.invariance.check import SCALARS, check_scalar_invariance
from zbkernels.invariance.copies import fill_zeros_
from zbkernels.invariance.report import InvarianceReport, Operation
from zbkernels.models import ARCHITECTURES, Architecture, ResNet, build
from zbkernels.nap.sources import Images, NapError, check_model, load_images, load_model

_SHAPES = ((1, 28, 28), (3, 32, 32), (1, 8, 8))  # of the data sets on which `zb run` trains
_CLASSES = 10  # of an untrained network
DTYPES = ("float16", "bfloat16", "float32", "float64")


def run(
    model: str,
    *,
    images: str | None = None,
    shape: str | None = None,
    count: int = 4,
    architecture: str | None = None,
    bias: bool | None = None,
    scalars: str | None = None,
    dtype: str | None = None,
    operations: bool = False,
    data: Path | None = None,
    device: str = "auto",
    as_json: bool = False,
) -> bool:
    """Check the network and print what was found; whether it is invariant.

    Raises:
        NapError: the arguments name no network or images, or the network cannot be checked.
    """
    wanted = _numbers(scalars) if scalars is not None else SCALARS
    if dtype not in (None, *DTYPES):
        raise NapError(f"--dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    network, given, filled = _network(model, images, shape, count, architecture, bias, data, device)
    x = given.images.to(device_named(device))
    try:
        if dtype is not None:
            network, x = network.to(getattr(torch, dtype)), x.to(getattr(torch, dtype))
        report = check_scalar_invariance(network, x, wanted)
    except (Exception, SystemExit) as error:  # whatever the network's own code does
        if isinstance(error, (ValueError, TypeError)) and str(error).startswith("check_scalar_invariance: "):
            raise NapError(_reason(error)) from error
        where = f"{given.title} {list(given.images.shape)}"
        raise NapError(f"{model}: does not run on {where} ({_reason(error)})") from error
    inputs = f"{len(given)} of {given.title}"
    if as_json:
        print(
            json.dumps(
                {"model": model, "inputs": inputs, "filled": filled} | report.to_json(),
                indent=2,
                ensure_ascii=False,
                allow_nan=False,
            )
        )
    else:
        _show(report, model, inputs, filled, operations)
    return report.invariant


def _network(
    model: str,
    images: str | None,
    shape: str | None,
    count: int,
    architecture: str | None,
    bias: bool | None,
    data: Path | None,
    device: str,
) -> tuple[nn.Module, Images, list[str]]:
    """The network, what to run it on, and the tensors that were 0 because it is untrained."""
    untrained = model in ARCHITECTURES and not Path(model).exists()
    if not untrained:
        check_model(model)
    chosen = None if images is None else load_images(images, data).first(count)
    if untrained:
        row = ARCHITECTURES[model]
        given = chosen or random_images(_shape(shape) if shape else row.image, count)
        network = _untrained(row, given, bias).to(device_named(device))
        return network, given, fill_zeros_(network)
    if bias is not None:
        raise NapError(
            f"--bias is for an untrained network by name ({', '.join(ARCHITECTURES)}), got {model}"
        )
    if chosen is None and shape is not None:
        chosen = random_images(_shape(shape), count)
    last: NapError | None = None
    for given in (chosen,) if chosen is not None else (random_images(s, count) for s in _SHAPES):
        try:
            return load_model(model, given, architecture, torch.device(device_named(device))), given, []
        except NapError as error:
            if "don't fit" not in str(error):
                raise
            last = error
        except (DataError, CheckpointError, OSError):
            raise
        except (Exception, SystemExit) as error:  # whatever a module, or its function, does
            raise NapError(f"{model}: cannot be made ({_reason(error)})") from error
    raise NapError(f"{last}; or its --shape") from last


def _reason(error: BaseException) -> str:
    """One line; with the kind of error where its message alone, such as that of a KeyError, says little."""
    said = (str(error).strip().splitlines() or [""])[0]
    if said and isinstance(error, (ValueError, TypeError, RuntimeError)):
        return said
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _untrained(row: Architecture | ResNet, images: Images, bias: bool | None) -> nn.Module:
    c, h, w = images.images.shape[1:]
    errors = []
    for form in (False, True) if bias is None else (bias,):  # a batch norm has no form without bias
        try:
            return build(row, (c, h, w), _CLASSES, bias=form).eval()
        except (ValueError, RuntimeError) as error:
            errors.append(error)
    raise NapError(f"{row.name}: {errors[0]}") from errors[0]


def random_images(shape: Sequence[int], count: int) -> Images:
    """Uniform in [0, 1), always the same ones."""
    x = torch.rand(count, *shape, generator=torch.Generator().manual_seed(0))
    return Images(f"random images {'×'.join(map(str, shape))}", x, None)


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if len(shape) != 3 or min(shape) < 1:
        raise NapError(f"--shape: expected channels,height,width such as 3,32,32, got {text!r}")
    return shape


def _numbers(text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 < s < math.inf for s in numbers):
        raise NapError(f"--scalars: expected positive numbers separated by commas, got {text!r}")
    return numbers


def _show(report: InvarianceReport, model: str, inputs: str, filled: list[str], every: bool) -> None:
    console = Console(emoji=False)  # module:function is no picture
    colour = "green" if report.invariant else "red"
    console.print(f"[bold {colour}]{escape(report.verdict)}[/]", highlight=False)
    console.print(escape(f"{model}: {report.count} on {inputs}"), highlight=False)
    if filled:
        many = f" and {len(filled) - 3} more" if len(filled) > 3 else ""
        said = f"untrained: random numbers stand where it starts with zeros ({', '.join(filled[:3])}{many})"
        console.print(escape(said), highlight=False)
    rows = report.operations if every else tuple(_notable(report))
    if rows:
        console.print(_operations(rows, report.first_break), highlight=False)
    scalars = Table(header_style="bold")
    for column in ("scalar", *report.columns):
        scalars.add_column(column, justify="right")
    for row in report.scalars:
        scalars.add_row(f"{row.scalar:g}", *report.cells(row))
    console.print(scalars, highlight=False)
    for line in report.remarks():
        console.print(escape(line), highlight=False)


def _notable(report: InvarianceReport) -> Iterator[Operation]:
    return (op for op in report.operations if op.kind)


def _operations(rows: Sequence[Operation], first: Operation | None) -> Table:
    table = Table(header_style="bold")
    table.add_column("#", justify="right")
    for column in ("module", "class", "operation"):
        table.add_column(column)
    table.add_column("degree", justify="right")
    table.add_column("why")
    for op in rows:
        degree = "any (0)" if op.zero else "none" if op.degree is None else f"{op.degree:.3g}"
        style = "bold" if first is not None and op.index == first.index else ""
        off = f"; off by {op.size}" if op.breaks and math.isfinite(op.deviation) else ""
        cells: list[Any] = [str(op.index), op.path, op.module, op.function, degree, op.reason + off]
        table.add_row(*map(escape, cells), style=style)
    return table
