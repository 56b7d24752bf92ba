"""Loads the compiled libraries, and keeps the reason where one cannot be loaded.

Three libraries stand beside this file, and each may be missing without taking the others along:

- ``_C_cpu``: CPU kernels; defines the ops, so it is loaded before Python defines what is missing;
- ``_C_cuda``: CUDA kernels; loaded only where torch is a CUDA build, since it needs symbols that others lack;
- ``_host``: a Python extension with what is not a tensor op.

:func:`load` never raises: without any of them the ops still run on their pure-torch reference.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import importlib.machinery
import importlib.util
import json
import mmap
import os
import re
import struct
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from zbkernels._version import __version__

_PACKAGE = Path(__file__).resolve().parent
_MARKER = b"zbkernels-build-info:"
_OLDEST_TORCH = (2, 11)
REBUILD = "pip install --no-build-isolation --no-deps --force-reinstall ."


@dataclass(frozen=True)
class LibraryState:
    """What became of one library.

    ``reason`` says why it is not loaded (or what is unusual although it is), ``mend`` what to do about it;
    both are "" where all is well. ``build`` holds what the file says of its build, readable even where it
    cannot be loaded: version, torch, python, compiler, processor, nvcc, cuda_archs, cuda_note.
    """

    name: str
    path: str | None
    loaded: bool
    reason: str = ""
    mend: str = ""
    build: dict[str, str] = field(default_factory=dict)


_states: dict[str, LibraryState] = {}
_handles: dict[str, ctypes.CDLL] = {}
_tf32 = (False, False)  # what the CUDA kernels were last told


def load() -> None:
    """Loads what can be loaded. Called once, by ``zbkernels/__init__``, before the ops are defined."""
    for name, loader in (("_C_cpu", _load_cpu), ("_C_cuda", _load_cuda), ("_host", _load_host)):
        try:
            _states[name] = loader()
        except Exception as error:  # a fault in here must not cost the user the import
            _states[name] = LibraryState(name, None, False, f"{type(error).__name__}: {error}", REBUILD)
    _announce()


def libraries() -> dict[str, LibraryState]:
    """State of each library by name: ``_C_cpu``, ``_C_cuda``, ``_host``."""
    return dict(_states)


def library_path(device: str = "cpu") -> Path:
    """Where the library of the ops is, for a C++ program that runs an AOTInductor package: what it is to ``dlopen``.

    The CPU library defines the ops ``zb::*`` and needs no Python. The CUDA library adds kernels to them, so a program
    for a GPU loads the CPU library first and then this one.

    Args:
        device: "cpu" or "cuda".

    Raises:
        ValueError: another device.
        FileNotFoundError: the library was not built; the message has the mend.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"library_path: expected device to be 'cpu' or 'cuda', got {device!r}")
    path = _PACKAGE / f"_C_{device}.so"
    if not path.exists():
        switch = "ZBKERNELS_CUDA=1 " if device == "cuda" else ""
        raise FileNotFoundError(f"library_path: {path} was not built. Mend: {switch}{REBUILD}")
    return path


def handle(name: str) -> ctypes.CDLL | None:
    """The loaded library for ctypes calls of its plain C functions, or None where it is not loaded."""
    return _handles.get(name)


def last_kernels() -> list[tuple[int, str]]:
    """For each loaded library of kernels, what it ran last in this thread: (time in monotonic ns, name)."""
    found = []
    for name, device in (("_C_cpu", "cpu"), ("_C_cuda", "cuda"), ("_C_emulated", "cuda-emulated")):
        library = _handles.get(name)
        if library is not None:
            name = _text(library, "zb_last_kernel")
            clock = library.zb_last_kernel_time
            clock.restype = ctypes.c_int64
            if name:
                found.append((clock(), f"{device}: {name}"))
    return found


def emulated_path() -> Path:
    """Where the CUDA kernels compiled for the host are, if they were built (``ZBKERNELS_EMULATION=1``, tests only).

    The environment's ``ZBKERNELS_SANITIZER`` ("asan" or "tsan") picks an instrumented build.
    """
    kind = os.environ.get("ZBKERNELS_SANITIZER", "")
    return _PACKAGE / f"_C_emulated{'_' + kind if kind else ''}.so"


@functools.cache
def load_emulated() -> LibraryState:
    """Loads that library, once, when it is first asked for. It is none of :func:`libraries`: only tests have it."""
    path = emulated_path()
    state = LibraryState("_C_emulated", str(path), False, "it was not built: ZBKERNELS_EMULATION=1 builds it")
    if not path.exists():
        return state
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return dataclasses.replace(state, reason=str(error))
    trouble = _text(library, "zb_registration_error")
    _handles["_C_emulated"] = library
    allow_tf32(*_tf32)
    return dataclasses.replace(state, loaded=not trouble, reason=trouble)


def last_refusals(device: str) -> list[str]:
    """``"kernel: reason"`` for each faster kernel that the last op on "cuda" or "cuda-emulated" could not take."""
    library = _handles.get({"cuda": "_C_cuda", "cuda-emulated": "_C_emulated"}.get(device, ""))
    return _text(library, "zb_last_refusals").splitlines() if library is not None else []


def set_highest_precision(on: bool) -> None:
    """Tells the CPU kernels whether float32 convolutions must be summed directly, in one order."""
    library = _handles.get("_C_cpu")
    if library is not None:
        library.zb_cpu_set_highest_precision(int(on))


def conv_kernel(dtype: str, sizes: Sequence[int], with_units: bool) -> str:
    """The CPU library's kernel for a forward pass of ``conv_relu_pool2d``; "" where it is not loaded.

    ``sizes``: C, K, groups, then pairs: input, filter, stride, padding, dilation, un-pooled map; N, weight strides.
    """
    library = _handles.get("_C_cpu")
    if library is None:
        return ""
    library.zb_cpu_conv_kernel.restype = ctypes.c_char_p
    numbers = (ctypes.c_int64 * len(sizes))(*sizes)
    name: bytes = library.zb_cpu_conv_kernel(dtype.encode(), numbers, int(with_units))
    return name.decode()


@contextlib.contextmanager
def keep_next_call() -> Iterator[Any]:
    """Within, the CPU library's next forward pass in this thread leaves its description in the buffer given."""
    library = _handles.get("_C_cpu")
    if library is None:
        yield None
        return
    buffer = ctypes.create_string_buffer(library.zb_cpu_call_bytes())
    library.zb_cpu_keep_next_call.argtypes = (ctypes.c_void_p,)
    library.zb_cpu_keep_next_call(buffer)
    try:
        yield buffer
    finally:
        library.zb_cpu_keep_next_call(None)


def kept_call_runner(with_residual: bool) -> Any:
    """Runs a description on x, weight and y (before it the residual) at these addresses; returns 0 where it could
    not."""
    library = _handles["_C_cpu"]
    run = library.zb_cpu_run_kept_residual_call if with_residual else library.zb_cpu_run_kept_call
    run.argtypes = (ctypes.c_void_p,) * (5 if with_residual else 4)
    return run


def weight_cache() -> tuple[int, int, int, int]:
    """Hits, misses, entries and bytes of the CPU kernels' packed weights; zeros where they are not loaded."""
    library = _handles.get("_C_cpu")
    counts = (ctypes.c_int64 * 4)()
    if library is not None:
        library.zb_cpu_weight_cache(counts)
    hits, misses, entries, size = counts
    return hits, misses, entries, size


def clear_weight_cache() -> None:
    """Gives the memory of the CPU kernels' packed weights back and sets their counts to 0."""
    library = _handles.get("_C_cpu")
    if library is not None:
        library.zb_cpu_clear_weight_cache()


def allow_tf32(convolution: bool, matmul: bool) -> None:
    """Tells the CUDA kernels whether float32 may be rounded to TF32; until told otherwise it may not."""
    global _tf32
    _tf32 = convolution, matmul
    for name in ("_C_cuda", "_C_emulated"):
        library = _handles.get(name)
        if library is not None:
            library.zb_cuda_allow_tf32(int(convolution), int(matmul))


def cpu_capability() -> str:
    """What the CPU kernels use ("avx512_bf16", "avx512", "avx2", "portable"), "" where they are not loaded."""
    library = _handles.get("_C_cpu")
    return "" if library is None else _text(library, "zb_cpu_capability")


def count_bits(repeats: int) -> int:
    """Count the bits of some words in the first cache, over and over on torch's threads; how many words, 0 where the
    CPU kernels are not loaded. What benches time to know how fast bits can be counted."""
    library = _handles.get("_C_cpu")
    if library is None:
        return 0
    library.zb_cpu_count_bits.restype = ctypes.c_int64
    words: int = library.zb_cpu_count_bits(ctypes.c_int64(repeats))
    return words


def build_info(path: Path | str) -> dict[str, str]:
    """What a library's file says of its build, without loading it; {} where it is none of ours."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            start = data.find(_MARKER)
            if start < 0:
                return {}
            start += len(_MARKER)
            return json.loads(data[start : data.find(b"\0", start)])
    except (OSError, ValueError):
        return {}


def torch_build() -> str:
    """The running torch in words, such as "torch 2.13.0+cpu, a CPU build"."""
    if torch.version.cuda:
        kind = f"a build for CUDA {torch.version.cuda}"
    elif torch.version.hip:
        kind = f"a build for ROCm {torch.version.hip}"
    else:
        kind = "a CPU build"
    return f"torch {torch.__version__}, {kind}"


def _load_cpu() -> LibraryState:
    return _load_op_library("_C_cpu", "", "not built: this is a source tree, or the build left it out")


def _load_cuda() -> LibraryState:
    if torch.version.cuda is None:
        path = _PACKAGE / "_C_cuda.so"
        return LibraryState(
            "_C_cuda",
            str(path) if path.exists() else None,
            False,
            f"not loaded: the running torch is not a CUDA build ({torch_build()})",
            "to run on a GPU, install a CUDA build of torch (https://pytorch.org/get-started/locally)",
            build_info(path),
        )
    note = build_info(_PACKAGE / "_C_cpu.so").get("cuda_note") or "the build left it out"
    return _load_op_library("_C_cuda", "CUDA", f"not built: {note}")


def _load_op_library(name: str, key: str, missing: str) -> LibraryState:
    """Loads one library of kernels; ``key`` is the dispatch key that nobody may have filled before."""
    path = _PACKAGE / f"{name}.so"
    copies = _mapped_copies(path.name)
    other = next((copy for copy in copies if not _same_file(copy, path)), None)
    if other is not None and not any(_same_file(copy, path) for copy in copies):
        return _use_other_copy(name, other)
    if not path.exists():
        mend = (
            f"with nvcc on PATH: ZBKERNELS_CUDA=1 {REBUILD}"
            if key == "CUDA"
            else f"with a C++ compiler: {REBUILD}"
        )
        return LibraryState(name, None, False, missing, mend)
    build = build_info(path)
    refusal = _refusal(path, build) or (None if copies else _names_taken(key))
    if refusal:
        return LibraryState(name, str(path), False, refusal[0], refusal[1], build)
    try:
        library = ctypes.CDLL(str(path))  # first, since torch's own call hides what the dynamic linker said
        torch.ops.load_library(str(path))
    except OSError as error:
        reason, mend = _failure(str(error), build)
        return LibraryState(name, str(path), False, reason, mend, build)
    trouble = _text(library, "zb_registration_error")
    if trouble:
        mend = "import zbkernels before anything else that defines ops named zb::*"
        reason = f"its kernels could not be registered: {trouble}"
        return LibraryState(name, str(path), False, reason, mend, build)
    _handles[name] = library
    return LibraryState(name, str(path), True, build=build)


def _load_host() -> LibraryState:
    found = sorted(_PACKAGE.glob("_host.*"))
    if not found:
        missing = "not built: this is a source tree, or the build left it out"
        return LibraryState("_host", None, False, missing, f"with a C++ compiler: {REBUILD}")
    fitting = [_PACKAGE / f"_host{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    path = next((p for p in fitting if p in found), None)
    if path is None:
        build = build_info(found[0])
        reason = f"{found[0].name} is for Python {build.get('python', 'of unknown version')}"
        return LibraryState("_host", str(found[0]), False, reason, REBUILD, build)
    build = build_info(path)
    refusal = _truncated(path)
    if refusal:
        return LibraryState("_host", str(path), False, refusal, REBUILD, build)
    # By its path, so that no import hook finds another copy's.
    spec = importlib.util.spec_from_file_location("zbkernels._host", path)
    assert spec is not None and spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        return LibraryState("_host", str(path), False, str(error), REBUILD, build)
    sys.modules["zbkernels._host"] = module
    return LibraryState("_host", str(path), True, build=build)


def _use_other_copy(name: str, path: str) -> LibraryState:
    """Another copy of the package has defined the ops in this process already: a second one may not."""
    build = build_info(path)
    reason = f"another copy of the package had loaded its own: {path}"
    mend = "keep one copy of zbkernels on sys.path"
    if build.get("version") != __version__:
        reason += f" (version {build.get('version')}, while this is {__version__})"
    _handles[name] = ctypes.CDLL(path)
    return LibraryState(name, path, True, reason, mend, build)


def _refusal(path: Path, build: dict[str, str]) -> tuple[str, str] | None:
    """Reason and mend where it is known beforehand that a library cannot work here."""
    if tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2]) < _OLDEST_TORCH:
        oldest = ".".join(map(str, _OLDEST_TORCH))
        reason = f"needs torch {oldest} or newer{_versions(build)}"
        return reason, f'pip install "torch>={oldest}"'
    truncated = _truncated(path)
    if truncated:
        return truncated, REBUILD
    built_for = build.get("version")
    if built_for is not None and built_for != __version__:
        return f"built for zbkernels {built_for}, while the Python files are {__version__}", REBUILD
    return None


def _truncated(path: Path) -> str:
    """A reason not to load a file that was cut off: the dynamic linker dies of it (SIGBUS), refusing nothing.

    The ELF header tells where its last part, the table of sections, ends. Other files are left to the linker.
    """
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":  # 64-bit, little endian
        return ""
    (offset,) = struct.unpack_from("<Q", header, 40)
    size, count = struct.unpack_from("<HH", header, 58)
    expected, got = offset + size * count, path.stat().st_size
    return f"the file is cut off: expected {expected} bytes, got {got}" if got < expected else ""


def _names_taken(key: str) -> tuple[str, str] | None:
    """Reason and mend where the ops (or, for a key, their kernels) stand already, defined from Python."""
    names = (
        torch._C._dispatch_get_registrations_for_dispatch_key(key)
        if key
        else torch._C._dispatch_get_all_op_names()
    )
    taken = sorted(n for n in names if n.startswith("zb::"))
    if not taken:
        return None
    return (
        f"not loaded: {taken[0]} was defined from Python before, and a name can be defined once only",
        "import zbkernels before anything else that defines ops named zb::*",
    )


def _failure(text: str, build: dict[str, str]) -> tuple[str, str]:
    """Reason and mend for what the dynamic linker said."""
    reason = f"{text}{_versions(build)}"
    if "undefined symbol" in text or "cannot open shared object" in text:
        return reason, f"build it against the running torch: {REBUILD}"
    if "GLIBC" in text or "CXXABI" in text:
        return reason, f"it was built on a newer system; build it on this one: {REBUILD}"
    return reason, f"the file may be damaged; install again, or build it: {REBUILD}"


def _versions(build: dict[str, str]) -> str:
    built_with = build.get("torch", "of unknown version")
    return f" (built with torch {built_with}, running torch {torch.__version__})"


def _text(library: ctypes.CDLL, function_name: str) -> str:
    """What a C function of ours returns: `const char*` without arguments."""
    function = getattr(library, function_name)
    function.restype = ctypes.c_char_p
    return (function() or b"").decode()


def _mapped_copies(file_name: str) -> list[str]:
    """Libraries of ours by this file name that the process has loaded already, from whatever folder."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    paths = dict.fromkeys(re.findall(rf"(/\S.*/{re.escape(file_name)})$", maps, re.M))
    return [path for path in paths if build_info(path)]


def _same_file(a: str | Path, b: str | Path) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:
        return False


def _announce() -> None:
    """Warns of a library that should work here and does not; what is absent by choice stays quiet."""
    for state in _states.values():
        quiet = state.loaded or state.path is None or (state.name == "_C_cuda" and torch.version.cuda is None)
        if not quiet:
            with contextlib.suppress(RuntimeWarning):  # under -W error too the import goes on
                warnings.warn(
                    f"zbkernels: {state.name} is not loaded, slower code takes its place: {state.reason}. "
                    f"Mend: {state.mend}. `zb doctor` has the whole picture.",
                    RuntimeWarning,
                    stacklevel=4,
                )
