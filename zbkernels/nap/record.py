"""``record``: a model's activation patterns over a whole data set, streamed to a memory-mapped file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from zbkernels._version import __version__
from zbkernels.console import Console
from zbkernels.experiments.progress import Progress
from zbkernels.nap.batches import Batch, batch_crc32, labelled_batches
from zbkernels.nap.fingerprint import fingerprint
from zbkernels.nap.layers import RecordingError
from zbkernels.nap.patterns import PatternReader
from zbkernels.nap.recording import Recording, Writer, check_files, read_header
from zbkernels.nap.resuming import refuse_another, refuse_other_inputs
from zbkernels.ops import _backend


def record(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    units: str = "relu",
    layers: Sequence[str] | None = None,
    out: str | Path | None = None,
    predictions: bool = True,
    overwrite: bool = False,
    progress: bool | Progress = True,
) -> Recording:
    """The signatures of every input of a loader (Definition 1 of "Scalar Invariant Networks with Zero Bias").

    Rows come in the loader's order, so it should not shuffle. The model is put in evaluation mode by itself, runs
    without gradients, and is left in its own mode; the loader's tensors go to its device and, where floating-point, to
    its dtype. Fused layers pack their bits as they compute (in direct sums whatever the precision, so what follows can
    differ by rounding from a plain run), the others from their pre-activations. Memory holds one batch; all else is in
    the files.

    A run cut off, even killed, goes on where it was when the same call is made again, and ends with the very bytes of
    an uncut one (on the same device and number of threads). The inputs already done are read again and compared.

    Args:
        model: any ``nn.Module`` of one input.
        loader: gives batches: x [N, ...], (x,) or (x, labels), labels [N] of integers. Its length need not be known.
        units: ``"relu"``, ``"output"`` or ``"winner"``; see :class:`~zbkernels.nap.patterns.PatternReader`.
        layers: names of the sites that count (``find_units`` lists them), with ``*`` and ``?``; None for all. Of
            ``F.relu(self.fc1(x))`` also ``fc1``; see :class:`~zbkernels.nap.patterns.PatternReader`.
        out: folder to write; None for a temporary one, deleted with the recording.
        predictions: keep the argmax of the model's output where that is [N, classes] with at least two.
        overwrite: start over, whatever is there.
        progress: a bar on a terminal (nothing elsewhere); or a ``Progress`` to count in.

    Returns:
        The complete recording. One that was complete already is returned once its inputs have been compared.

    Raises:
        RecordingError: batches of another form, a model whose units can't be told for each example or change from batch
            to batch, or a folder that holds another model's, loader's or choice's recording.
        TypeError: as :class:`~zbkernels.nap.units.Units`.
    """
    if isinstance(loader, (torch.Tensor, dict, str)) or not isinstance(loader, Iterable):
        raise RecordingError(
            f"record: expected loader to give batches, got {type(loader).__name__}; a DataLoader does, or "
            "[(images, labels)]"
        )
    if isinstance(progress, Progress):
        return _record(model, loader, units, layers, out, predictions, overwrite, progress)
    with Progress(None if progress else Console(quiet=True, emoji=False)) as bar:
        return _record(model, loader, units, layers, out, predictions, overwrite, bar)


def _record(
    model: nn.Module,
    loader: Iterable[Any],
    units: str,
    layers: Sequence[str] | None,
    out: str | Path | None,
    predictions: bool,
    overwrite: bool,
    bar: Progress,
) -> Recording:
    temporary = TemporaryDirectory(prefix="zbkernels-recording-") if out is None else None
    folder = Path(temporary.name if temporary else out)  # type: ignore[arg-type]
    header = None if overwrite else read_header(folder)
    if header is not None:
        check_files(folder, header, verify=True)
    batches = labelled_batches(loader, "record")
    first = next(batches, None)
    if first is None:
        raise RecordingError("record: the loader gave no inputs")
    reader = PatternReader(model, first[0], units=units, layers=layers, who="record")
    made: dict[str, Any] = {
        "units": units,
        "choice": None if layers is None else list(layers),
        "layers": [layer.to_json() for layer in reader.layers],
        "aliases": reader.aliases,
        "words": reader.words,
        "unsupported": list(reader.unsupported),
        "predictions": predictions and reader.classes is not None,
        "model": fingerprint(model),
        "run": _circumstances(reader.prepare(first[0])),
        "loader": _form(loader, *first),
    }
    done = None
    if header is not None:
        refuse_another(folder, header["made"], made)
        made, done = header["made"], header["done"]
    length = made["loader"]["batches"]
    bar.describe("recording patterns")
    bar.expect(length or 0)
    everything = _counted(_chain(first, batches), bar, known=length is not None)
    if done is not None and done["complete"]:
        refuse_other_inputs(folder, everything, done)
    else:
        with Writer(folder, made, done) as writer:
            crc = refuse_other_inputs(folder, everything, done) if done is not None else 0
            for x, labels in everything:
                crc = batch_crc32(x, labels, crc)
                signatures, y = reader.read(x)
                if made["predictions"] and bool((nan := y.isnan().any(1)).any()):
                    row = writer.done["rows"] + int(nan.nonzero()[0])
                    raise RecordingError(
                        f"record: expected logits that are numbers, got NaN for input {row}; mend the input, or pass "
                        "predictions=False to record it as it is"
                    )
                writer.append(signatures, labels, y.argmax(1) if made["predictions"] else None, crc)
            writer.finish()
    result = Recording.load(folder)
    result.keep(temporary)
    return result


def _circumstances(x: torch.Tensor) -> dict[str, Any]:
    """What else decides the bits, by way of rounding."""
    kind = x.device.type
    autocast = str(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None
    return {
        "dtype": str(x.dtype),
        "device": kind,
        "autocast": autocast,
        "backend": _backend._wanted,
        "conv_precision": _backend.get_conv_precision(),
        "torch": torch.__version__,
        "zbkernels": __version__,
    }


def _form(loader: Iterable[Any], x: torch.Tensor, labels: torch.Tensor | None) -> dict[str, Any]:
    """What a loader shows of itself before it has been read."""
    try:
        length = len(loader)  # type: ignore[arg-type]
    except TypeError:
        length = None
    return {
        "batch": x.shape[0],
        "batches": length,
        "shape": list(x.shape[1:]),
        "dtype": str(x.dtype),
        "labels": labels is not None,
        "first_crc32": batch_crc32(x, labels, 0),
    }


def _chain(first: Batch, rest: Iterator[Batch]) -> Iterator[Batch]:
    yield first
    yield from rest


def _counted(batches: Iterator[Batch], bar: Progress, known: bool) -> Iterator[Batch]:
    for batch in batches:
        if not known:
            bar.expect(1)
        yield batch
        bar.batch_done()
