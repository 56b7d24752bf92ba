"""``zb nap``: activation patterns of a saved network, from the command line. Heavy modules are imported when needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from zbkernels import completion
from zbkernels.console import Console

if TYPE_CHECKING:
    from torch import nn

    from zbkernels.nap.sources import Images

app = typer.Typer(
    name="nap",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Activation patterns of a saved network: record them, count them, compare with them, certify regions.",
)

Model = Annotated[
    str,
    typer.Argument(
        help="A trained network's folder (OUT/RUN/units/NAME), a .safetensors file, a .pt2 file of torch.export.save, "
        "or module:function"
    ),
]
Source = Annotated[
    str,
    typer.Argument(
        help="mnist, fashion-mnist or digits, with :train or :test (the default); a .npy, .npz, .png or .jpg",
        autocompletion=completion.image_sets,
    ),
]
Folder = Annotated[Path, typer.Argument(help="A folder that `zb nap record` wrote")]
ArchitectureName = Annotated[
    str | None,
    typer.Option(
        help="Of weights without a settings.json: fcn-mnist, …", autocompletion=completion.architectures
    ),
]
Data = Annotated[
    Path | None, typer.Option(help="Folder of the image sets, in torchvision's layout [ZBKERNELS_DATA]")
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda[:index]", autocompletion=completion.devices)]
Layers = Annotated[
    list[str] | None, typer.Option("--layer", help="Only this layer; * and ? as in a shell (may be repeated)")
]


def _readable(text: str) -> str:
    """A wrong --pick is a wrong command line."""
    from zbkernels.nap.sources import NapError, picked

    try:
        picked(text)
    except NapError as error:
        raise typer.BadParameter(str(error).removeprefix("--pick: ")) from None
    return text


Pick = Annotated[str, typer.Option(help="Images by number, from 0: 0,5,7-9", callback=_readable)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables")]


@app.command()
def record(
    model: Model,
    images: Source,
    out: Annotated[Path, typer.Option(help="Folder to write")],
    units: Annotated[
        str,
        typer.Option(
            help="relu, output, or winner (the one that fixes the linear piece)",
            autocompletion=completion.choices("relu", "output", "winner"),
        ),
    ] = "relu",
    layer: Layers = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many images")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images at a time")] = 500,
    architecture: ArchitectureName = None,
    data: Data = None,
    device: Device = "auto",
    force: Annotated[bool, typer.Option("--force", help="Start over, whatever is there")] = False,
    as_json: Json = False,
) -> None:
    """Record the pattern of each image. A run that was cut off goes on; a finished one is compared, not repeated."""
    from zbkernels.nap import record as record_patterns
    from zbkernels.nap import show
    from zbkernels.nap.sources import check_model, load_images

    check_model(model)
    given = load_images(images, data).first(limit)
    network = _network(model, given, architecture, device)
    parts = given.images.split(batch)
    loader = parts if given.labels is None else list(zip(parts, given.labels.split(batch), strict=True))
    recording = record_patterns(
        network, loader, units=units, layers=layer, out=out, overwrite=force, progress=not as_json
    )
    _show(as_json, show.recording_json(recording), lambda: show.recording(recording, given.title))


@app.command()
def stats(
    recording: Folder,
    layer: Layers = None,
    top: Annotated[int, typer.Option(min=0, help="How many of the biggest groups to show")] = 5,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read all files and compare checksums first")
    ] = False,
    as_json: Json = False,
) -> None:
    """Distinct patterns, the biggest groups that share one, their purity, and units that never change."""
    from zbkernels.nap import Recording, show
    from zbkernels.nap.statistics import as_json as to_json
    from zbkernels.nap.statistics import statistics

    found = Recording.load(recording, verify=verify)
    kept = statistics(found, layers=layer, top=top)
    values = {"inputs": len(found), "complete": found.complete, "layers": [to_json(each) for each in kept]}
    _show(as_json, values, lambda: show.statistics(found, kept))


@app.command()
def nearest(
    recording: Folder,
    model: Model,
    images: Source,
    pick: Pick = "0-4",
    k: Annotated[int, typer.Option(min=1, help="How many recorded patterns for each image")] = 5,
    layer: Layers = None,
    architecture: ArchitectureName = None,
    data: Data = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """The recorded patterns nearest to those of given images. The least distance tells how rare an image is."""
    from zbkernels.nap import Recording, show
    from zbkernels.nap.neighbours import neighbours
    from zbkernels.nap.sources import check_model, load_images, picked

    found = Recording.load(recording)
    check_model(model)
    given = load_images(images, data)
    rows = picked(pick)
    x = given.rows(rows)
    network = _network(model, given, architecture, device)
    near = neighbours(found, network, x, k=k, layers=layer)
    labels = None if given.labels is None else given.labels[rows].tolist()
    values = show.neighbours_json(near, rows, labels, found)
    _show(as_json, values, lambda: show.neighbours(near, rows, labels, given.title, found))


@app.command()
def certify(
    model: Model,
    images: Source,
    pick: Pick = "0-4",
    hull: Annotated[
        bool,
        typer.Option("--hull", help="Also certify all combinations of the picked images, taken together"),
    ] = False,
    recording: Annotated[
        Path | None,
        typer.Option(
            help="Also certify the combinations of each of this recording's biggest groups, of the same images"
        ),
    ] = None,
    groups: Annotated[int, typer.Option(min=1, help="How many groups of the recording")] = 5,
    vertices: Annotated[int, typer.Option(min=1, help="At most so many images of a group")] = 64,
    vary: Annotated[
        str,
        typer.Option(
            help="Pixels that the distances let change: all, or nonzero ones (not a blank border)",
            autocompletion=completion.choices("all", "nonzero"),
        ),
    ] = "all",
    arithmetic: Annotated[
        str,
        typer.Option(
            help="In which the radius holds: exact, float32 or float64",
            autocompletion=completion.choices("exact", "float32", "float64"),
        ),
    ] = "exact",
    architecture: ArchitectureName = None,
    data: Data = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """How far each image can change and keep pattern and prediction; regions in which whole groups keep them."""
    from zbkernels.nap import show
    from zbkernels.nap.certifying import certify_groups, certify_images, certify_together, images_json
    from zbkernels.nap.sources import NapError, check_model, load_images, picked

    check_model(model)
    given = load_images(images, data)
    rows = picked(pick)
    x = given.rows(rows)
    network = _network(model, given, architecture, device)
    try:
        radii = certify_images(network, x, vary=vary, arithmetic=arithmetic)
        hulls = [certify_together(network, x, rows)] if hull else []
        if recording is not None:
            hulls += certify_groups(network, given, recording, groups, vertices)
    except ValueError as error:
        raise NapError(str(error)) from error
    labels = None if given.labels is None else given.labels[rows].tolist()
    values = {
        "images": images_json(radii, rows, labels),
        "lost": radii.lost,
        "regions": [h.to_json() for h in hulls],
    }
    _show(as_json, values, lambda: show.certificates(radii, hulls, rows, labels, given.title, vary))


def _network(model: str, images: Images, architecture: str | None, device: str) -> nn.Module:
    import torch

    from zbkernels.experiments.runner import device_named
    from zbkernels.nap.sources import load_model

    return load_model(model, images, architecture, torch.device(device_named(device)))


def _show(as_json: bool, values: Any, tables: Callable[[], Iterable[Any]]) -> None:
    if as_json:
        print(json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False))
        return
    console = Console(emoji=False)
    for shown in tables():
        if isinstance(shown, Table):  # its own title would be broken at the table's width
            console.print(f"[bold]{shown.title}[/]", highlight=False)
            shown.title = None
        console.print(shown, highlight=False)
