"""Folders as runs leave them, made without running anything: finished, cut off, timed and damaged."""

from __future__ import annotations

import json
import struct
import sys
import types
import zlib
from pathlib import Path
from typing import Any

import pytest

from zbkernels import experiments
from zbkernels.experiments import Experiment

HOSTILE = (
    "<script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 1">',
    "</style></script></title><svg onload='window.hacked = 1'>",
    "[a link](javascript:window.hacked=1)",
    "![a picture](https://example.org/x.png)",
    "{{ 7 * 7 }}",
)
TABLE = """# told, preset paper

- What it is.

| accuracy (%) | 1 | 0.1 |
| --- | ---: | ---: |
| paper | 88.12 | 79.52 |
| ours | 88.51 | 75.07 |

## Claims

| claim of the paper | verdict | measured |
| --- | --- | --- |
| one | **holds** | 1 |
| two | **does not hold** | 2 |
| three | **holds within the spread of the seeds** | 3 |
| four | **not testable here** | no data |

## Losses

| epoch | loss |
| --- | ---: |
| 1 | 2.3 |

### Of one seed

#### And deeper
"""


def png(width: int, height: int) -> bytes:
    """A grey picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress((b"\0" + b"\x80" * width) * height, 1)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def told(
    monkeypatch: pytest.MonkeyPatch, title: str = "An experiment that says what its metrics say"
) -> None:
    """Make "told" an experiment whose table is the metrics' own text."""

    def figure(metrics: dict[str, Any], path: Path) -> None:
        """Write the PNG: a grey field."""
        path.write_bytes(png(8, 6))

    module = types.ModuleType("told_experiment")
    module.EXPERIMENT = Experiment(  # type: ignore[attr-defined]
        name="told",
        title=title,
        source="A paper, Section 1",
        presets={},
        variants=(),
        run=lambda context: {},
        table=lambda metrics: metrics["text"],
        figure=figure,
    )
    monkeypatch.setitem(sys.modules, "told_experiment", module)
    monkeypatch.setitem(experiments.EXPERIMENTS, "told", "told_experiment")


def finished(folder: Path, text: str = TABLE, **more: Any) -> Path:
    """A finished run of "told" with a small figure."""
    folder.mkdir(parents=True)
    metrics = {"experiment": "told", "preset": "paper", "text": text}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    config = {"settings": {"experiment": "told", "seeds": [0, 1]}, "environment": {"torch": "2.13.0"}, **more}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "figure.png").write_bytes(png(40, 30))
    return folder


def network_folder(folder: Path) -> Path:
    """What `save_pretrained` leaves, here and elsewhere."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 8}))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def cut_off(folder: Path) -> Path:
    """A run with one unit done, one on the way, and one only begun."""
    for name, files in {
        "a": {"settings.json": {"epochs": 20}, "result.json": {"accuracy": 1}},
        "b": {"settings.json": {"epochs": 20}, "checkpoint.json": {"meta": {"history": [{}, {}, {}]}}},
        "c": {},
    }.items():
        unit = folder / "units" / name
        unit.mkdir(parents=True)
        for file, value in files.items():
            (unit / file).write_text(json.dumps(value))
    return folder


def damaged(folder: Path) -> list[Path]:
    """Runs that are damaged, each in its own way."""
    ways: dict[str, bytes] = {
        "cut": b'{"experiment": "to',
        "list": b"[1, 2]",
        "bytes": b"\xff\xfe\x00",
        "deep": b"[" * 100_000,
        "unknown": b'{"experiment": "nothing-of-that-name"}',
        "no-text": b'{"experiment": "told"}',
        "odd-name": b'{"experiment": ["told"]}',
        "number": b'{"experiment": "told", "text": 3}',
        "empty": b"",
    }
    made = []
    for name, content in ways.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "metrics.json").write_bytes(content)
        made.append(folder / name)
    (folder / "cut" / "table.md").write_text("Numbers from before, 88.12\n")
    (folder / "list" / "figure.png").write_bytes(b"no picture")
    (folder / "bytes" / "config.json").write_text("[[[")
    return made
