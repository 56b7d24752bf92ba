"""The tables that ``zb nap`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table

from zbkernels.nap.certifying import Certificate
from zbkernels.nap.linear import LocalLinearMap, Radii
from zbkernels.nap.neighbours import Neighbours
from zbkernels.nap.recording import Recording
from zbkernels.nap.statistics import Group, PatternStatistics

Shown = Iterator[Table | str]


def _table(title: str, *columns: str, left: int = 1) -> Table:
    table = Table(title=escape(title), title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right")
    return table


def recording_json(recording: Recording) -> dict[str, Any]:
    return {
        "path": str(recording.path),
        "inputs": len(recording),
        "units": recording.units,
        "layers": [layer.to_json() for layer in recording.layers],
        "bytes": sum(known["bytes"] for known in recording.done["files"].values()),
        "accuracy": _accuracy(recording),
        "unsupported": recording.made["unsupported"],
    }


def _accuracy(recording: Recording) -> float | None:
    if recording.labels is None or recording.predictions is None or not len(recording):
        return None
    return 100 * float((recording.labels == recording.predictions).float().mean())


def recording(recording: Recording, title: str) -> Shown:
    table = _table(
        f"{len(recording):,} patterns of {title}", "layer", "kind", "coding", "units", "bits", left=3
    )
    for layer in recording.layers:
        shape = "×".join(map(str, layer.shape))
        table.add_row(
            escape(layer.name), layer.kind, layer.coding, f"{shape} = {layer.units:,}", f"{layer.bits:,}"
        )
    yield table
    values = recording_json(recording)
    accuracy = "" if values["accuracy"] is None else f", predictions right: {values['accuracy']:.2f} %"
    yield escape(f"{recording.path}: {values['bytes'] / 2**20:.1f} MiB{accuracy}")
    if recording.made["unsupported"]:
        said = ", ".join(recording.made["unsupported"])
        yield escape(f"Beside its units the network has {said}: a pattern does not fix a linear piece of it.")


def statistics(recording: Recording, kept: Sequence[PatternStatistics]) -> Shown:
    rows = len(recording)
    state = "" if recording.complete else ", not complete: zb nap record goes on"
    table = _table(
        f"{rows:,} inputs{state}",
        "layer", "coding", "units", "never on", "always on", "patterns", "alone", "biggest group", "purity",
        left=2,
    )  # fmt: skip
    for each in kept:
        table.add_row(
            escape(each.name),
            each.coding,
            f"{each.units:,}",
            f"{each.never:,}",
            "-" if each.always is None else f"{each.always:,}",
            f"{each.patterns:,}",
            f"{each.alone:,}",
            f"{each.largest[0].size:,}" if each.largest else "-",
            "-" if each.purity is None else f"{100 * each.purity:.2f} %",
        )
    yield table
    for each in kept:
        big = [group for group in each.largest if group.size > 1]
        if big:
            yield _groups(each.name, big)
    shared = [each for each in kept if any(one.shared for one in each.classes)]
    for each in shared:
        yield _classes(each)


def _groups(name: str, groups: Sequence[Group]) -> Table:
    table = _table(f"Biggest groups of one pattern: {name}", "inputs", "first row", "labels", left=0)
    table.columns[2].justify = "left"
    for group in groups:
        labels = ", ".join(f"{count:,} of {label}" for label, count in group.labels[:5])
        more = f", {len(group.labels) - 5} more labels" if len(group.labels) > 5 else ""
        table.add_row(f"{group.size:,}", str(group.first), (labels + more) or "-")
    return table


def _classes(each: PatternStatistics) -> Table:
    table = _table(
        f"By class: {each.name}",
        "label",
        "inputs",
        "patterns",
        "share a pattern",
        "with their class only",
        left=0,
    )
    for one in each.classes:
        part = f"{100 * one.pure / one.shared:.1f} %" if one.shared else "-"
        table.add_row(str(one.label), f"{one.inputs:,}", f"{one.patterns:,}", f"{one.shared:,}", part)
    return table


def neighbours_json(
    near: Neighbours, rows: list[int], labels: list[int] | None, recording: Recording
) -> dict[str, Any]:
    def at(values: torch.Tensor | None, i: int) -> list[int] | None:
        return None if values is None else values[near.rows[i]].tolist()

    return {
        "bits": near.bits,
        "layers": [layer.name for layer in near.layers],
        "images": [
            {
                "row": row,
                "label": None if labels is None else labels[i],
                "prediction": None if near.predictions is None else int(near.predictions[i]),
                "rarer_than": float(near.rarer_than[i]),
                "distances": near.distances[i].tolist(),
                "rows": near.rows[i].tolist(),
                "labels": at(recording.labels, i),
                "predictions": at(recording.predictions, i),
            }
            for i, row in enumerate(rows)
        ],
    }


def neighbours(
    near: Neighbours, rows: list[int], labels: list[int] | None, title: str, recording: Recording
) -> Shown:
    values = neighbours_json(near, rows, labels, recording)
    table = _table(
        f"{title}: nearest of {len(recording):,} recorded patterns, in bits of {near.bits:,}",
        "image", "label", "prediction", "distances", "labels there", "rows", "rarer than",
        left=0,
    )  # fmt: skip
    for image in values["images"]:
        table.add_row(
            str(image["row"]),
            _said(image["label"]),
            _said(image["prediction"]),
            " ".join(map(str, image["distances"])),
            " ".join(map(str, image["labels"])) if image["labels"] else "-",
            " ".join(map(str, image["rows"])),
            f"{100 * image['rarer_than']:.1f} %",
        )
    yield table
    if len(near.usual):
        half, most = (int(near.usual[int(q * (len(near.usual) - 1))]) for q in (0.5, 0.95))
        yield (
            f"Recorded inputs have their nearest other at {half} bits in the median, at most {most} for 95 % of them "
            f'(a sample of {len(near.usual)}); "rarer than" says how many of these are nearer.'
        )


def certificates(
    radii: LocalLinearMap,
    hulls: Sequence[Certificate],
    rows: list[int],
    labels: list[int] | None,
    title: str,
    vary: str = "all",
) -> Shown:
    table = _table(
        f"{title}: distance within which pattern and prediction are certain",
        "image", "label", "prediction", "norm", "certified", "to a unit", "to a class", "nearest unit",
        left=0,
    )  # fmt: skip
    for i, row in enumerate(rows):
        label, prediction = "-" if labels is None else str(labels[i]), str(int(radii.predictions[i]))
        table.add_row(str(row), label, prediction, "L2", *_distances(radii.l2, i))
        table.add_row("", "", "", "L∞", *_distances(radii.linf, i))
    yield table
    yield escape(
        radii.lost
        or "Without biases each region is a cone: pattern and prediction also hold for every positive multiple."
    )
    yield from map(escape, _zeros(radii, rows, vary))
    if hulls:
        yield _hulls(hulls)


def _zeros(radii: LocalLinearMap, rows: list[int], vary: str) -> Iterator[str]:
    """Why distances are 0, and what there is to do about it."""
    zero = radii.l2.unit == 0
    for tie, what in (
        (False, "a unit's input is exactly 0 there"),
        (True, "two positions of a max pool's window are exactly tied there"),
    ):
        found = (zero & (radii.l2.tie == tie)).nonzero().flatten().tolist()
        if not found:
            continue
        images = ", ".join(str(rows[i]) for i in found[:5]) + (", …" if len(found) > 5 else "")
        blank = bool((radii.inputs[found] == 0).any())
        hint = "; where a blank border makes it so, try --vary nonzero" if vary == "all" and blank else ""
        yield f"A distance of 0 (image {images}: {radii.l2.unit_name[found[0]]}): {what}{hint}."


def _distances(radii: Radii, i: int) -> tuple[str, ...]:
    other = int(radii.decision_class[i])
    return (
        f"{radii.certified[i] + 0.0:.4g}",  # + 0.0: never "-0"
        f"{radii.unit[i] + 0.0:.4g}",
        f"{radii.decision[i] + 0.0:.4g}" + (f" ({other})" if other >= 0 else ""),
        escape(radii.unit_name[i]),
    )


def _hulls(hulls: Sequence[Certificate]) -> Table:
    table = _table(
        "All combinations of images that share a pattern",
        "images", "vertices", "first row", "class", "certified", "holds in (margin over rounding)",
        left=0,
    )  # fmt: skip
    table.columns[4].justify = table.columns[5].justify = "left"
    for each in hulls:
        about = f"{each.inputs:,}", str(len(each.rows)), str(each.rows[0])
        if each.region is None:
            table.add_row(*about, "-", f"no: {escape(each.reason)}", "-")
            continue
        margins = sorted(
            (str(d).removeprefix("torch."), m) for d, m in each.region.margins.items() if m.holds
        )
        holds = [f"{name} ({margin.relative:.3g}×)" for name, margin in margins]
        table.add_row(
            *about,
            str(each.region.prediction),
            f"every {'conic' if each.region.kind == 'cone' else 'convex'} combination",
            ", ".join(["exact terms", *holds]),
        )
    return table


def _said(value: int | None) -> str:
    return "-" if value is None else str(value)
