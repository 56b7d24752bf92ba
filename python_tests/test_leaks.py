"""A thousand calls of each op leave nothing behind; and a saved index is clean under valgrind."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from zbkernels import _loader

HERE = Path(__file__).parent


def valgrind_errors(report: Path) -> list[str]:
    """Those that come through _host: what Python and NumPy do among themselves is not our concern."""
    found = []
    for error in ElementTree.parse(report).getroot().iter("error"):
        frames = [
            (f.findtext("obj", ""), f.findtext("fn", "?"), f.findtext("line", ""))
            for f in error.iter("frame")
        ]
        if any("_host" in Path(obj).name for obj, _, _ in frames):
            found.append(
                "\n".join([error.findtext("kind", ""), *(f"  {fn} {line}" for _, fn, line in frames)])
            )
    return found


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="asks glibc's mallinfo2 for the bytes in use"
)
def test_a_thousand_calls_of_each_op_leave_nothing() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(HERE / "leak_program.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    leak = found.pop("a leak of 48 bytes")
    assert leak["bytes"] >= 48, leak
    # Less than the smallest thing there is, a block of 16 bytes or a Python object at every second call.
    faults = {
        name: left
        for name, left in found.items()
        if left["bytes"] > 8 or left["blocks"] > 0.5 or left["tensors"] > 0.01 or left["resident"] > 500
    }
    assert not faults, faults


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
@pytest.mark.skipif(not _loader.libraries()["_host"].loaded, reason="_host is not built")
def test_an_index_is_saved_and_loaded_cleanly_under_valgrind(tmp_path: Path) -> None:
    """memcheck: nothing is read that was not written or is not ours, and no block of ours is lost."""
    state = _loader.libraries()["_host"]
    variables = {**os.environ, "PYTHONMALLOC": "malloc", "OPENBLAS_NUM_THREADS": "1"}
    report = tmp_path / "report.xml"
    command = [
        "valgrind",
        "-q",
        "--leak-check=full",
        "--show-leak-kinds=definite",
        "--errors-for-leak-kinds=definite",
    ]
    command += ["--num-callers=30", "--xml=yes", f"--xml-file={report}"]
    program = [sys.executable, "-I", str(HERE / "index_program.py"), str(state.path), str(tmp_path / "index")]
    done = subprocess.run(
        [*command, *program], env=variables, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0 and "saved and loaded" in done.stdout, done.stderr[-3000:]
    ours = valgrind_errors(report)
    assert not ours, ours[0]
