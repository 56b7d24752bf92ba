"""The package with the libraries of a sanitizer's build in place of its own, in a folder for PYTHONPATH."""

from __future__ import annotations

import shutil
from pathlib import Path

from emulation import PACKAGE

KINDS = ("asan", "tsan")
MISSING = "no libraries for sanitizers are built: ZBKERNELS_EMULATION=1 python setup.py build_ext --inplace"


def libraries(kind: str) -> dict[str, Path]:
    """By the name that the package knows each under; {} where they are not built."""
    found = {path.name.replace(f"_{kind}", "", 1): path for path in PACKAGE.glob(f"_*_{kind}.*so")}
    found.pop("_C_emulated.so", None)
    return found if len(found) == 2 else {}


def package(kind: str, folder: Path) -> Path:
    target = folder / "zbkernels"
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name, path in libraries(kind).items():
        shutil.copy(path, target / name)
    return folder
