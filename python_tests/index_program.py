"""Fills, saves, loads and damages an index with ``_host`` alone: ``index_program.py LIBRARY FILE``, under valgrind."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import numpy as np


def host(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("zbkernels._host", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(library: str, path: str) -> None:
    NapIndex = host(library).NapIndex
    options = {"words": 3, "classes": 4, "predictions": True, "example_ids": True, "start": 2**33}
    rows = np.arange(900, dtype=np.int64).reshape(300, 3) % 501
    labels = np.arange(300, dtype=np.int64) % 4
    index, other = NapIndex(**options), NapIndex(**options)
    for some in (index, other):
        some.insert(rows, labels, labels, None, 2)
    other.insert(rows + 7, labels, labels, np.arange(300, dtype=np.int64), 1)
    index.merge(other, 2)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    index.save(descriptor)
    for verify in (True, False):
        loaded = NapIndex.load(descriptor, path, verify)
        assert loaded.to_bytes() == index.to_bytes() and loaded.examples == index.examples
        assert (loaded.find(rows, 2) == index.find(rows, 1)).all()
        assert (loaded.class_counts() == index.class_counts()).all() and len(loaded.example_ids(0)) > 0
        loaded.insert(rows + 9, labels, labels, None, 2)  # goes on in memory, beside the file
        loaded.verify()
    data = index.to_bytes()
    for damaged in (data[:100], data[: len(data) // 2], data[:1000] + b"x" + data[1001:], b""):
        try:
            NapIndex.from_bytes(damaged)
            raise AssertionError("a damaged index was taken")
        except ValueError:
            pass
    os.close(descriptor)
    print("saved and loaded", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
