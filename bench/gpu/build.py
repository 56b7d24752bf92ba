"""Builds the CUDA library for the card, or takes the one brought along."""

from __future__ import annotations

import json
import os
import pathlib
import re
import sys
from typing import Any

from gpu import process
from gpu.process import Part

# torch carries pybind11's headers, which is all of it that the build asks for.
STAND_IN = """import importlib.util
import os


def get_include():
    return os.path.join(os.path.dirname(importlib.util.find_spec("torch").origin), "include")
"""


def architecture(found: dict[str, Any]) -> str:
    """The card's, as CMake writes it: ``90a-real``, ``80-real``, ..."""
    number = found["card"].get("capability", "9.0").replace(".", "")
    return "90a-real" if number == "90" else f"{number}-real"


def build(found: dict[str, Any], scratch: pathlib.Path, limit: float, *, rebuild: bool) -> Part:
    """Build in place, unless a library that was brought along holds the card's code already."""
    wanted = architecture(found)
    brought = architectures(process.ROOT / "zbkernels" / "_C_cuda.so")
    if not rebuild and any(runs_on(name, found["card"].get("capability", "9.0")) for name in brought):
        return Part("build", "skipped", f"takes the library brought along, built for {', '.join(brought)}")
    if not found["tools"]["nvcc"]:
        have = f"it holds code for {', '.join(brought)} only" if brought else "no library was brought along"
        return Part("build", "failed", f"no nvcc here, and {have}; this card needs {wanted}")
    environment = {"ZBKERNELS_CUDA": "1", "ZBKERNELS_CUDA_ARCHS": wanted}
    if "pybind11" in found["missing"]:
        folder = scratch / "pybind11_stand_in"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pybind11.py").write_text(STAND_IN)
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(process.ROOT)])
    done = process.run([sys.executable, "setup.py", "build_ext", "--inplace"], limit, environment)
    part = Part("build", "passed", f"built for {wanted} with {found['nvcc_version']}", done.seconds)
    part.tail = "\n".join(done.lines[-60:])
    if done.status != 0:
        part.state, part.summary = "failed", f"{done.ending}: {done.last_line}"
    return part


def runs_on(name: str, capability: str) -> bool:
    """Whether code for an architecture in CMake's words runs on a card of this compute capability.

    Machine code runs on later cards of the same generation, PTX on all later ones, and what was built for one
    architecture's own features (the letter) on that alone.
    """
    match = re.fullmatch(r"(\d+)(\d)([a-z]?)(-real|-virtual)?", name)
    if match is None:
        return False
    major, minor = (int(part) for part in capability.split("."))
    built, letter, kind = (int(match[1]), int(match[2])), match[3], match[4]
    if letter:
        return built == (major, minor)
    return built <= (major, minor) and (built[0] == major or kind != "-real")


def architectures(library: pathlib.Path) -> list[str]:
    """What a built library says it holds code for; [] where there is none. Read without loading it."""
    marker = b"zbkernels-build-info:"
    try:
        data = library.read_bytes()
        start = data.index(marker) + len(marker)
        held = json.loads(data[start : data.index(b"\0", start)]).get("cuda_archs", "")
    except (OSError, ValueError):
        return []
    return [name for name in held.replace(",", ";").split(";") if name]
