"""The loader, ``zb doctor`` and the schema generator: no fault of a library may break the import."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from rich.console import Console

import zbkernels
from zbkernels import _loader, doctor
from zbkernels.ops import _backend
from zbkernels.ops._op import OPS

PACKAGE = Path(zbkernels.__file__).resolve().parent
ROOT = PACKAGE.parent
CPU_LIBRARY = PACKAGE / "_C_cpu.so"

needs_library = pytest.mark.skipif(not CPU_LIBRARY.exists(), reason="the CPU library is not built")
needs_sources = pytest.mark.skipif(not (ROOT / "csrc").exists(), reason="not a source tree")

SHOW = """
import zbkernels as zb, torch
for state in zb._loader.libraries().values():
    print(state.name, "loaded" if state.loaded else "absent", "|", state.reason, "|", state.mend)
x = torch.arange(-35.0, 35.0).reshape(2, 35)
print("packed", zb.nap_pack(x).tolist(), "by", zb.explain("nap_pack", x).chosen)
"""
PACKED = f"packed [[0], [{(1 << 35) - 2}]]"  # 0..34 without the zero


def run(code: str, package: Path | None = None, *flags: str) -> subprocess.CompletedProcess[str]:
    """``code`` in a fresh interpreter; a copy in the folder ``package`` comes before the installed one."""
    env = {**os.environ, **({"PYTHONPATH": str(package)} if package else {})}
    env.pop("PYTHONWARNINGS", None)
    command = [sys.executable, *flags, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, cwd=package)


def copy_of_package(folder: Path, libraries: bool = True) -> Path:
    """A copy of the package in ``folder``, with or without its compiled libraries."""
    unwanted = ["__pycache__", *([] if libraries else ["*.so"])]
    shutil.copytree(PACKAGE, folder / "zbkernels", ignore=shutil.ignore_patterns(*unwanted))
    return folder


def line(result: subprocess.CompletedProcess[str], name: str) -> str:
    """The line on library ``name`` that SHOW printed, after the import and the op went well."""
    assert result.returncode == 0, result.stderr
    assert PACKED in result.stdout
    return next(text for text in result.stdout.splitlines() if text.startswith(name))


# --- what is loaded ----------------------------------------------------------------------------------------


@needs_library
def test_libraries_are_loaded_here() -> None:
    states = _loader.libraries()
    assert list(states) == ["_C_cpu", "_C_cuda", "_host"]
    assert states["_C_cpu"].loaded and states["_host"].loaded
    assert states["_C_cpu"].reason == states["_C_cpu"].mend == ""
    build = states["_C_cpu"].build
    assert build["version"] == zbkernels.__version__
    assert set(build) >= {"torch", "python", "compiler", "processor", "nvcc", "cuda_archs", "cuda_note"}
    assert _loader.cpu_capability() in ("avx512_bf16", "avx512", "avx2", "portable")


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is a CUDA build")
def test_cuda_library_is_left_alone_beside_a_cpu_torch() -> None:
    state = _loader.libraries()["_C_cuda"]
    assert not state.loaded
    assert "not a CUDA build" in state.reason and torch.__version__ in state.reason
    assert "install a CUDA build of torch" in state.mend


@needs_library
def test_kernels_of_the_library_stand_at_the_cpu_key() -> None:
    for name in (name for name, op in OPS.items() if not op.composite):
        dump = torch._C._dispatch_dump(f"zb::{name}")
        assert re.search(r"^CPU: .*register\.cpp", dump, re.M), f"{name} has no C++ kernel:\n{dump}"


@needs_library
def test_an_op_the_library_does_not_know_is_said_to_have_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library older than the Python files beside it: the reference runs, and explain says why."""
    monkeypatch.setattr(_backend, "COMPILED", _backend.COMPILED - {("nap_hash", "cpu")})
    sig = torch.ones(2, 1, dtype=torch.int64)
    verdicts = zbkernels.explain("nap_hash", sig).verdicts
    assert verdicts["cpu"] == "_C_cpu has no kernel for nap_hash" and verdicts["reference"] == "chosen"
    with (
        zbkernels.use_backend("cpu"),
        pytest.raises(RuntimeError, match="_C_cpu has no kernel for nap_hash"),
    ):
        zbkernels.nap_hash(sig)


@needs_library
def test_cpu_capability_can_be_lowered() -> None:
    code = "import zbkernels as zb, sys; sys.stdout.write(zb._loader.cpu_capability())"
    env = {**os.environ, "ZBKERNELS_CPU_CAPABILITY": "portable"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert result.stdout == "portable"


def test_last_kernels_are_newest_last_and_per_thread() -> None:
    zbkernels.nap_pack(torch.ones(1, 3))
    first = _loader.last_kernels()
    zbkernels.nap_pack(torch.ones(1, 3))
    second = _loader.last_kernels()
    if _loader.libraries()["_C_cpu"].loaded:
        assert first[0][1].startswith("cpu: ") and second[0][0] > first[0][0]
    else:
        assert first == second == []


# --- the import --------------------------------------------------------------------------------------------


def test_import_before_torch() -> None:
    result = run("import sys, zbkernels as zb; assert 'torch' in sys.modules\n" + SHOW)
    line(result, "_C_cpu")
    assert result.stderr == ""


def test_import_brings_no_heavy_module() -> None:
    heavy = (
        "triton matplotlib sklearn scipy pandas PIL onnxruntime onnx openvino faiss pykeops ray typer rich "
        "click safetensors torchvision hypothesis pytest torch._inductor torch._dynamo torch.utils.cpp_extension"
    )
    code = f"""
import sys, torch
before = set(sys.modules)
import zbkernels
print(sorted(m for m in {heavy.split()} if m in sys.modules and m not in before))
"""
    result = run(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


@needs_library
def test_second_import_is_harmless() -> None:
    again = """
import sys
for name in [n for n in sys.modules if n == "zbkernels" or n.startswith("zbkernels.")]:
    del sys.modules[name]
"""
    result = run(SHOW + again + SHOW)
    line(result, "_C_cpu loaded")
    assert result.stdout.count(PACKED) == 2
    assert result.stdout.count("_C_cpu loaded |  | ") == 2


@needs_library
def test_second_copy_of_the_package_is_harmless(tmp_path: Path) -> None:
    first = copy_of_package(tmp_path)
    switch = f"""
import sys
for name in [n for n in sys.modules if n == "zbkernels" or n.startswith("zbkernels.")]:
    del sys.modules[name]
sys.path[:] = [p for p in sys.path if p not in ("", {str(first)!r})]
sys.path.insert(0, {str(ROOT)!r})
"""
    result = run(SHOW + switch + SHOW + f"assert zb.__file__.startswith({str(ROOT)!r})", first)
    line(result, "_C_cpu")
    assert result.stdout.count(PACKED) == 2
    assert f"another copy of the package had loaded its own: {first}" in result.stdout
    assert "keep one copy" in result.stdout


# --- libraries that are absent or broken -------------------------------------------------------------------


def test_without_libraries_every_op_runs_on_the_reference(tmp_path: Path) -> None:
    result = run(SHOW, copy_of_package(tmp_path, libraries=False), "-W", "error")
    assert "not built" in line(result, "_C_cpu absent") and "pip install" in line(result, "_C_cpu")
    assert "not built" in line(result, "_host absent")
    assert "by reference" in result.stdout
    assert result.stderr == ""  # absent, not broken: nothing to warn of


@needs_library
@pytest.mark.parametrize("content", [b"", b"not a library", None])
def test_damaged_library(tmp_path: Path, content: bytes | None) -> None:
    package = copy_of_package(tmp_path)
    broken = package / "zbkernels" / "_C_cpu.so"
    broken.write_bytes(broken.read_bytes()[:4096] if content is None else content)
    result = run(SHOW, package)
    assert "pip install" in line(result, "_C_cpu absent")
    assert "by reference" in result.stdout
    assert "RuntimeWarning" in result.stderr and "_C_cpu is not loaded" in result.stderr
    if content is None:
        assert "is cut off" in line(result, "_C_cpu")
        assert line(
            run(SHOW, package, "-W", "error"), "_C_cpu absent"
        )  # a warning made an error stops nothing


@needs_library
def test_library_built_for_another_torch(tmp_path: Path) -> None:
    package = copy_of_package(tmp_path)
    library = package / "zbkernels" / "_C_cpu.so"
    content = library.read_bytes()
    assert b"aoti_torch_library_def\0" in content
    library.write_bytes(content.replace(b"aoti_torch_library_def\0", b"aoti_torch_library_dex\0"))
    text = line(run(SHOW, package), "_C_cpu absent")
    assert "undefined symbol: aoti_torch_library_dex" in text
    build = _loader.build_info(library)
    assert f"built with torch {build['torch']}, running torch {torch.__version__}" in text
    assert "build it against the running torch: pip install" in text


@needs_library
def test_torch_that_is_too_old() -> None:
    text = line(run("import torch\ntorch.__version__ = '2.10.1'\n" + SHOW), "_C_cpu absent")
    assert "needs torch 2.11 or newer" in text and "running torch 2.10.1" in text
    assert 'pip install "torch>=2.11"' in text


@needs_library
def test_library_of_another_version_of_the_package(tmp_path: Path) -> None:
    package = copy_of_package(tmp_path)
    (package / "zbkernels" / "_version.py").write_text('__version__ = "99.0"\n')
    text = line(run(SHOW, package), "_C_cpu absent")
    assert f"built for zbkernels {zbkernels.__version__}, while the Python files are 99.0" in text


@needs_library
def test_names_defined_from_python_before() -> None:
    before = """
import torch
library = torch.library.Library("zb", "FRAGMENT")
library.define("nap_pack(Tensor x) -> Tensor")
"""
    text = line(run(before + SHOW), "_C_cpu absent")
    assert "zb::nap_pack was defined from Python before" in text
    assert "import zbkernels before" in text


@needs_library
def test_host_of_another_python(tmp_path: Path) -> None:
    package = copy_of_package(tmp_path)
    host = next((package / "zbkernels").glob("_host.*.so"))
    host.rename(host.with_name("_host.cpython-27-x86_64-linux-gnu.so"))
    result = run(SHOW, package)
    assert "_host.cpython-27-x86_64-linux-gnu.so is for Python" in line(result, "_host absent")
    assert line(result, "_C_cpu loaded")  # one missing piece does not take the rest along


def test_build_info_of_a_foreign_file(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.so"
    foreign.write_bytes(b"zbkernels-build-info:{broken\0")
    assert _loader.build_info(foreign) == {}
    foreign.write_bytes(b"something else")
    assert _loader.build_info(foreign) == {}
    assert _loader.build_info(tmp_path / "missing.so") == {}


# --- zb doctor ---------------------------------------------------------------------------------------------


def doctor_says() -> tuple[int, str]:
    console = Console(record=True, width=200, file=open(os.devnull, "w"))  # noqa: SIM115
    code = doctor.main(console)
    return code, console.export_text()


def test_doctor_shows_everything() -> None:
    code, text = doctor_says()
    assert code == 0
    for title in ("Versions", "CPU", "Libraries", "Devices", "Kernel that would run"):
        assert title in text
    for word in (zbkernels.__version__, torch.__version__, "_C_cpu", "_C_cuda", "_host", "threads"):
        assert word in text
    for op in OPS.values():
        if op.public is not None:
            assert re.search(rf"^{op.name} +(cpu|reference)\b", text, re.M), text


def test_doctor_is_plain_text_in_a_pipe() -> None:
    result = run("import sys; from zbkernels.doctor import main; sys.exit(main())")
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout and "All ops run" in result.stdout


@needs_library
def test_doctor_names_fault_and_mend(tmp_path: Path) -> None:
    package = copy_of_package(tmp_path)
    (package / "zbkernels" / "_C_cpu.so").write_bytes(b"not a library")
    result = run("import sys; from zbkernels.doctor import main; sys.exit(main())", package)
    assert result.returncode == 0, result.stderr  # the reference still runs every op
    assert re.search(r"^fault +_C_cpu: ", result.stdout, re.M)
    assert re.search(r"^mend .*pip install", result.stdout, re.M)


def test_doctor_fails_where_an_op_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, *args: object, **kwargs: object) -> None:
        raise RuntimeError(f"{name} is broken")

    monkeypatch.setattr(zbkernels, "explain", broken)
    code, text = doctor_says()
    assert code == 1
    assert "no kernel runs on cpu for" in text and "Some ops do not run" in text


@pytest.mark.parametrize(
    ("capability", "archs", "fits"),
    [
        ((8, 0), "80-real", True),
        ((8, 6), "80-real", True),  # machine code runs on later minor versions
        ((8, 0), "86-real", False),
        ((9, 0), "80-real", False),
        ((9, 0), "80", True),  # PTX
        ((9, 0), "80-virtual", True),
        ((9, 0), "80-real 90a-real", True),
        ((10, 0), "90a-real", False),
        ((10, 0), "90a", False),  # the letter ties its PTX to 9.0
        ((10, 3), "80-real 100-real", True),
        ((12, 0), "80-real 86-real 89-real 90a-real 100-real 120", True),
        ((13, 0), "80-real 86-real 89-real 90a-real 100-real 120", True),
        ((7, 5), "80-real 120", False),
        ((9, 0), "", True),  # no CUDA part: another line says so
    ],
)
def test_gpu_against_built_architectures(capability: tuple[int, int], archs: str, fits: bool) -> None:
    what, mend = doctor.arch_mismatch(*capability, archs)
    assert (what == "") is fits
    if not fits:
        assert f"capability {capability[0]}.{capability[1]}" in what and archs in what
        assert "ZBKERNELS_CUDA_ARCHS" in mend


# --- schemas -----------------------------------------------------------------------------------------------


@pytest.fixture
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "generate_schemas", ROOT / "csrc/common/generate_schemas.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_sources
def test_schemas_are_those_of_the_ops(generator: ModuleType) -> None:
    found = [s for path in sorted((PACKAGE / "ops").glob("*.py")) for s in generator.schemas_of(path)]
    names = {schema.partition("(")[0] for schema in found}
    assert names == set(OPS)
    for schema in found:
        parsed = torch._C.parse_schema(f"zb::{schema}")
        assert str(getattr(torch.ops.zb, schema.partition("(")[0]).default._schema) == str(parsed)


@needs_sources
def test_schema_must_be_a_literal_and_stand_once(generator: ModuleType, tmp_path: Path) -> None:
    module = tmp_path / "op.py"
    module.write_text(
        'SCHEMA = (\n    "f(Tensor x, "\n    "int n) -> Tensor"\n)\n_BACK_SCHEMA: str = "g() -> ()"\n'
    )
    assert generator.schemas_of(module) == ["f(Tensor x, int n) -> Tensor", "g() -> ()"]
    other = tmp_path / "other.py"
    other.write_text('SCHEMA = "f(Tensor x, int n) -> Tensor"\n')
    with pytest.raises(ValueError, match="stands twice"):
        generator.header([module, other])
    module.write_text("x = 1\nSCHEMA = make()\n")
    with pytest.raises(ValueError, match=r"op\.py:2: SCHEMA must be a string literal"):
        generator.schemas_of(module)


@needs_sources
def test_header_is_rewritten_only_when_it_changes(tmp_path: Path) -> None:
    module, out = tmp_path / "op.py", tmp_path / "zb_schemas.h"
    script = [sys.executable, str(ROOT / "csrc/common/generate_schemas.py"), "--out", str(out), str(module)]
    module.write_text('SCHEMA = "f(Tensor x) -> Tensor"\n')
    subprocess.run(script, check=True)
    assert 'R"schema(f(Tensor x) -> Tensor)schema"' in out.read_text()
    os.utime(out, (1, 1))
    module.write_text('"""Other words."""\nSCHEMA = "f(Tensor x) -> Tensor"\n')
    subprocess.run(script, check=True)
    assert out.stat().st_mtime == 1
    module.write_text('SCHEMA = "f(Tensor x, int n) -> Tensor"\n')
    subprocess.run(script, check=True)
    assert out.stat().st_mtime > 1
