"""The table of measured backends that the package ships for a card, from the rows of ``speed``.

``zbkernels/ops/_choice.py`` reads it; to ship one, copy it to ``zbkernels/choices/`` under its name without "choices-".
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from gpu.process import Part
from gpu.report import BACKENDS, bench_rows

FORMAT = 1


def table(found: dict[str, Any], parts: Sequence[Part]) -> dict[str, Any]:
    """Head and rows; a class that several shapes fall into has the geometric mean of their times.

    A shape counts where every backend was timed: in one interleaved run, so that the times can be compared.
    """
    times: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for row in bench_rows(parts):
        ms = {name: row["times"][f"ours ({name})"]["median_ms"] for name in BACKENDS if _timed(row, name)}
        if row["shape_class"] and len(ms) == len(BACKENDS):
            times.setdefault((row["op"], row["dtype"], row["shape_class"]), []).append(ms)
    return {
        "format": FORMAT,
        "card": found["card"]["name"],
        "capability": found["card"]["capability"],
        "measured_with": {
            "torch": found["torch"],
            "cuda": found["cuda"],
            "triton": found["packages"].get("triton", ""),
            "driver": found["smi"].get("driver_version", ""),
            "source": found["commit"],
        },
        "rows": [
            {
                "op": op,
                "dtype": dtype,
                "shape_class": shape_class,
                "ms": {name: _mean([each[name] for each in measured]) for name in BACKENDS},
            }
            for (op, dtype, shape_class), measured in sorted(times.items())
        ],
    }


def write(folder: pathlib.Path, found: dict[str, Any], parts: Sequence[Part]) -> pathlib.Path | None:
    """``choices-<card>.json``, whole or not there; None where nothing was measured."""
    made = table(found, parts)
    if not made["rows"]:
        return None
    path = folder / f"choices-{slug(made['card'], made['capability'])}.json"
    temporary = folder / f".{path.name}.{os.getpid()}"
    temporary.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)
    return path


def slug(card: str, capability: str) -> str:
    """As ``zbkernels.cards.Card.slug``, which can't be imported here without torch; a test holds the two together."""
    return "-".join(re.findall(r"[a-z0-9.]+", card.lower())) + f"-{capability}"


def _timed(row: dict[str, Any], backend: str) -> bool:
    return f"ours ({backend})" in row["times"]


def _mean(values: Sequence[float]) -> float:
    return float(f"{math.exp(sum(map(math.log, values)) / len(values)):.4g}")
