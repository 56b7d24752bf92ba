"""Drives CMakeLists.txt, the only build description.

Environment:
  ZBKERNELS_CUDA        1 builds the CUDA part or fails, 0 leaves it out; unset builds it where nvcc is found.
  ZBKERNELS_CUDA_ARCHS  CUDA architectures in CMake's notation, for example "80-real;90a-real".
  ZBKERNELS_EMULATION   1 compiles the CUDA kernels for the host too, which tests run (needs nvcc's headers).
  ZBKERNELS_TORCH       folder of the torch package to build against, where the interpreter that builds has none: the
                        libraries fit any Python's torch, so wheels for several Pythons need only one.
  ZBKERNELS_LABEL       local part of the version, such as "cpu" or "cu130" (release/build_wheels.py sets it).
  MAX_JOBS              how many files to compile at once (default: the number of cores).
  CXX, CUDACXX, CUDA_HOME  which compilers to use.

The build folder (build/cmake-*) is kept: a rebuild without build isolation compiles only what changed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.command.egg_info import egg_info

ROOT = Path(__file__).resolve().parent
OLDEST_TORCH = (2, 11)
WHEEL_ARCHS = ("80-real", "86-real", "89-real", "90a-real", "100-real", "120")
DEFAULT_ARCH = "90a-real"
# Only ever in a source tree, by their folder in the build.
FOR_TESTS = {
    "cuda_emulation": ("_C_emulated.so", "_C_emulated_asan.so", "_C_emulated_tsan.so"),
    "sanitizers": ("_C_cpu_asan.so", "_C_cpu_tsan.so", "_host_asan{suffix}", "_host_tsan{suffix}"),
}


def say(text: str) -> None:
    print(f"zbkernels: {text}", flush=True)


def output_of(*command: str) -> str:
    """What a program prints, or "" where it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def torch_folder() -> tuple[Path, str]:
    """Torch's folder and version, without importing it. Exits, with a mend, where there is none."""
    asked = os.environ.get("ZBKERNELS_TORCH")
    if asked:
        folder = Path(os.path.abspath(asked))
        found = re.search(r"^__version__ = '(.+)'", read_text(folder / "version.py"), re.M)
        if found is None:
            sys.exit(f"zbkernels: ZBKERNELS_TORCH must be the folder of a torch package, got {asked!r}")
        return folder, supported(found.group(1))
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        sys.exit(
            "zbkernels: torch is not installed in the environment that builds. Leave out "
            f"--no-build-isolation, or install torch>={OLDEST_TORCH[0]}.{OLDEST_TORCH[1]} first."
        )
    return Path(spec.origin).parent, supported(importlib.metadata.version("torch"))


def supported(torch_version: str) -> str:
    if tuple(int(n) for n in re.findall(r"\d+", torch_version)[:2]) < OLDEST_TORCH:
        sys.exit(
            f"zbkernels: needs torch>={OLDEST_TORCH[0]}.{OLDEST_TORCH[1]} to build, found {torch_version}"
        )
    return torch_version


def read_text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def tool(name: str) -> str:
    """Path of cmake or ninja: from its pip package where that is installed, else from PATH."""
    program = Path(sysconfig.get_path("scripts"), name)
    if program.exists():
        return str(program)
    try:
        module = importlib.import_module(name)
    except ImportError:
        module = None
    folder = getattr(module, "CMAKE_BIN_DIR", None) or getattr(module, "BIN_DIR", None)
    if folder and Path(folder, name).exists():
        return str(Path(folder, name))
    found = shutil.which(name)
    if found is None:
        sys.exit(f"zbkernels: {name} was not found: `pip install {name}`")
    return found


def require_compiler() -> None:
    asked = os.environ.get("CXX")
    candidates = [asked.split()[0]] if asked else ["c++", "g++", "clang++"]
    if not any(map(shutil.which, candidates)):
        sys.exit(
            f"zbkernels: no C++ compiler was found (looked for {', '.join(candidates)}): install one, name it in "
            "CXX, or install a wheel, which needs none"
        )


def find_nvcc() -> str | None:
    candidates = [os.environ.get("CUDACXX")]
    candidates += [f"{os.environ[v]}/bin/nvcc" for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v)]
    candidates += ["nvcc", "/usr/local/cuda/bin/nvcc"]
    return next((path for c in candidates if c and (path := shutil.which(c))), None)


def visible_archs() -> list[str]:
    """Architectures of the cards in this machine, [] where there is none."""
    listing = output_of("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    numbers = sorted({int(major + minor) for major, minor in re.findall(r"(\d+)\.(\d+)", listing)})
    return ["90a-real" if n == 90 else f"{n}-real" for n in numbers]


def cuda_archs(nvcc: str, for_wheel: bool) -> str:
    """The architectures to compile for, as CMake writes them: what was asked for, else the default."""
    asked = os.environ.get("ZBKERNELS_CUDA_ARCHS", "")
    if asked:
        return ";".join(re.split(r"[;, ]+", asked.strip()))
    wanted = list(WHEEL_ARCHS) if for_wheel else visible_archs() or [DEFAULT_ARCH]
    known = {int(n) for n in re.findall(r"compute_(\d+)", output_of(nvcc, "--list-gpu-arch"))}
    supported = [a for a in wanted if int(re.match(r"\d+", a).group()) in known]
    if not supported:  # a card this compiler does not know: its newest, with PTX that the driver compiles
        supported = [str(max(known))] if known else [DEFAULT_ARCH]
    return ";".join(supported)


def cuda_options(for_wheel: bool) -> dict[str, str]:
    asked = os.environ.get("ZBKERNELS_CUDA", "")
    if asked not in ("", "0", "1"):
        sys.exit(f"zbkernels: ZBKERNELS_CUDA must be 0 or 1, got {asked!r}")
    nvcc = find_nvcc()
    if asked == "1" and nvcc is None:
        sys.exit("zbkernels: ZBKERNELS_CUDA=1, but nvcc was not found: set CUDACXX or CUDA_HOME")
    if asked == "0" or nvcc is None:
        reason = "ZBKERNELS_CUDA=0 at build time" if asked == "0" else "nvcc was not found at build time"
        say(f"CUDA part skipped: {reason}")
        return {"ZB_CUDA": "OFF", "ZB_CUDA_REASON": reason}
    return {
        "ZB_CUDA": "ON" if asked == "1" else "AUTO",
        "ZB_CUDA_ARCHS": cuda_archs(nvcc, for_wheel),
        "CMAKE_CUDA_COMPILER": nvcc,
    }


def emulation_options() -> dict[str, str]:
    nvcc = find_nvcc()
    if os.environ.get("ZBKERNELS_EMULATION", "0") != "1":
        return {"ZB_EMULATION": "OFF"}
    if nvcc is None:
        say("emulation of the CUDA kernels skipped: nvcc was not found, and with it CUDA's headers")
        return {"ZB_EMULATION": "OFF"}
    return {"ZB_EMULATION": "ON", "ZB_NVCC": os.path.realpath(nvcc)}


def cached(build_dir: Path, name: str) -> str | None:
    """A variable of an earlier configuration of this build folder."""
    cache = build_dir / "CMakeCache.txt"
    match = re.search(rf"^{name}:\w+=(.*)$", cache.read_text(), re.M) if cache.exists() else None
    return match.group(1) if match else None


def prune(folder: Path) -> None:
    """Removes build folders whose torch is gone: isolated builds leave them, each has its own torch."""
    for build_dir in folder.glob("cmake-*"):
        torch_dir = cached(build_dir, "ZB_TORCH_DIR")
        if torch_dir and not Path(torch_dir).exists():
            shutil.rmtree(build_dir, ignore_errors=True)


def cmake_build(for_wheel: bool) -> list[Path]:
    """Configures and builds; returns the libraries."""
    import pybind11

    require_compiler()
    torch_dir, torch_version = torch_folder()
    key = hashlib.sha1(str(torch_dir).encode()).hexdigest()[:8]
    prune(ROOT / "build")
    # Another Python's folder for the same torch will do: of the libraries, _host alone depends on the Python.
    new = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}-{key}"
    build_dir = next(iter(sorted((ROOT / "build").glob(f"cmake-*-{key}"))), new)
    version = re.search(r'__version__ = "(.+)"', (ROOT / "zbkernels/_version.py").read_text()).group(1)
    ninja = tool("ninja")
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_MAKE_PROGRAM": ninja,
        "ZB_VERSION": version,
        "ZB_TORCH_DIR": str(torch_dir),
        "ZB_TORCH_VERSION": torch_version,
        "ZB_PYTHON": sys.executable,
        "ZB_PYTHON_VERSION": ".".join(map(str, sys.version_info[:3])),
        "ZB_PYTHON_INCLUDE": sysconfig.get_path("include"),
        "ZB_PYBIND11_INCLUDE": pybind11.get_include(),
        "ZB_EXT_SUFFIX": sysconfig.get_config_var("EXT_SUFFIX"),
        **cuda_options(for_wheel),
        **({"ZB_EMULATION": "OFF"} if for_wheel else emulation_options()),
    }
    compiler = cached(build_dir, "CMAKE_CUDA_COMPILER")
    if compiler and compiler != options.get("CMAKE_CUDA_COMPILER", compiler):
        (build_dir / "CMakeCache.txt").unlink()  # CMake cannot change a compiler within a cache
    defines = [f"-D{name}={value}" for name, value in options.items()]
    cmake = tool("cmake")
    subprocess.run([cmake, "-S", str(ROOT), "-B", str(build_dir), "-G", "Ninja", *defines], check=True)
    jobs = os.environ.get("MAX_JOBS") or str(len(os.sched_getaffinity(0)))
    subprocess.run([cmake, "--build", str(build_dir), "-j", jobs], check=True)
    ninja_targets = output_of(ninja, "-C", str(build_dir), "-t", "targets", "all")
    has_cuda = "_C_cuda.so" in ninja_targets
    names = ["_C_cpu.so", *(["_C_cuda.so"] if has_cuda else []), "_host" + options["ZB_EXT_SUFFIX"]]
    for_tests = FOR_TESTS.items() if options["ZB_EMULATION"] == "ON" else ()
    names += [f"{folder}/{name}" for folder, some in for_tests for name in some]
    return [build_dir / name.format(suffix=options["ZB_EXT_SUFFIX"]) for name in names]


def install_file(source: Path, target: Path) -> None:
    """Copies by renaming, so that a process which has the old library mapped goes on undisturbed."""
    if target.exists() and target.read_bytes() == source.read_bytes():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copy2(source, staged)
    os.replace(staged, target)


class CMakeBuild(build_ext):
    """Builds all libraries at once and puts them in the package (in the source tree if editable)."""

    def run(self) -> None:
        in_place = bool(self.inplace or getattr(self, "editable_mode", False))
        package = ROOT / "zbkernels" if in_place else Path(self.build_lib).resolve() / "zbkernels"
        libraries = cmake_build(for_wheel=not in_place)
        self.installed = [package / library.name for library in libraries]
        for library, target in zip(libraries, self.installed, strict=True):
            install_file(library, target)
        stale = package / "_C_cuda.so"
        if stale not in self.installed:
            stale.unlink(missing_ok=True)  # an older build's: its kernels may not fit this build's ops

    def get_outputs(self) -> list[str]:
        return [str(path) for path in getattr(self, "installed", [])]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class LabelledVersion(egg_info):
    """Adds ``ZBKERNELS_LABEL`` to the version of a wheel, as PEP 440's local part."""

    def finalize_options(self) -> None:
        label = os.environ.get("ZBKERNELS_LABEL", "")
        if label and not re.fullmatch(r"[a-z0-9]+(\.[a-z0-9]+)*", label):
            sys.exit(f"zbkernels: ZBKERNELS_LABEL must be like 'cpu' or 'cu130', got {label!r}")
        if label:
            self.tag_build = f"+{label}"
        super().finalize_options()


class CleanBuild(build):
    """Starts from an empty staging folder: a module that was removed must not live on in the next wheel."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


if __name__ == "__main__":
    setup(
        # Makes the wheel one for this Python and platform; CMake knows the sources.
        ext_modules=[Extension("zbkernels._host", sources=[])],
        cmdclass={"build": CleanBuild, "build_ext": CMakeBuild, "egg_info": LabelledVersion},
    )
