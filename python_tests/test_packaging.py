"""Building and packaging: what a wheel and an sdist hold, what the libraries ask of torch, what a rebuild compiles.

The tests build with the environment's own tools and reuse the build folder, so they take seconds where the package
has been built here before.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import zbkernels
from zbkernels import _loader

PACKAGE = Path(zbkernels.__file__).resolve().parent
ROOT = PACKAGE.parent

if not (ROOT / "csrc").exists():
    pytest.skip("not a source tree", allow_module_level=True)
pytestmark = [
    pytest.mark.skipif(not (PACKAGE / "_C_cpu.so").exists(), reason="not built here"),
    pytest.mark.skipif(not (shutil.which("c++") or shutil.which("g++")), reason="no C++ compiler"),
]


def build_environment() -> dict[str, str]:
    """The settings of the build that is here: with them another one compiles nothing anew."""
    build = _loader.build_info(PACKAGE / "_C_cuda.so")
    if not build:
        return {**os.environ, "ZBKERNELS_CUDA": "0"}
    return {**os.environ, "ZBKERNELS_CUDA": "1", "ZBKERNELS_CUDA_ARCHS": build["cuda_archs"]}


def build(*command: str) -> str:
    """Runs a build step in the source tree and returns what it printed."""
    result = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=build_environment(),
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def libraries() -> list[str]:
    names = ["_C_cpu.so", "_host" + sysconfig.get_config_var("EXT_SUFFIX")]
    return names + (["_C_cuda.so"] if (PACKAGE / "_C_cuda.so").exists() else [])


def script(name: str) -> types.ModuleType:
    """A script of release/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"release/{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


build_wheels, matrix = script("build_wheels"), script("matrix")
HAS_CUDA = (PACKAGE / "_C_cuda.so").exists()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a release's are made, of what is built here."""
    if not importlib.util.find_spec("auditwheel"):
        pytest.skip("auditwheel is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in build_environment().items():
            patch.setenv(name, value)
        label = build_wheels.cuda_label() if HAS_CUDA else "cpu"
        return build_wheels.build(sys.executable, "cuda" if HAS_CUDA else "cpu", label, folder)


# --- wheel and sdist ------------------------------------------------------------------------------------------


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if not n.endswith("/")}
    info = f"zbkernels-{zbkernels.__version__}+{wheel.name.split('+')[1].split('-')[0]}.dist-info"
    measured = [*PACKAGE.glob("choices/*.json"), *PACKAGE.glob("triton/configs/*.json")]
    templates = PACKAGE.glob("reporting/template/*")
    sources = {f"zbkernels/{p.relative_to(PACKAGE)}" for p in (*PACKAGE.rglob("*.py"), *measured, *templates)}
    expected = sources | {f"zbkernels/{n}" for n in (*libraries(), "py.typed")}
    metadata = {
        f"{info}/{n}"
        for n in ["METADATA", "WHEEL", "RECORD", "top_level.txt", "entry_points.txt", "licenses/LICENSE"]
    }
    assert names - {f"{info}/sboms/auditwheel.cdx.json"} == expected | metadata
    assert build_wheels.faults(wheel) == []


def test_wheel_is_for_this_python_and_platform(wheel: Path) -> None:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    label = (
        rf"cu{_loader.build_info(PACKAGE / '_C_cuda.so')['nvcc'].replace('.', '')[:3]}" if HAS_CUDA else "cpu"
    )
    assert wheel.name.startswith(f"zbkernels-{zbkernels.__version__}+{label}-{tag}-{tag}-manylinux_")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [archive.read(n).decode() for n in archive.namelist() if n.endswith("/METADATA")]
        (entry,) = [archive.read(n).decode() for n in archive.namelist() if n.endswith("/entry_points.txt")]
    required = {
        re.split(r"[ ;<>=(]", r)[0]
        for r in re.findall(r"^Requires-Dist: (.+)$", metadata, re.M)
        if "extra" not in r
    }
    assert required == {"torch", "numpy", "typer", "rich", "safetensors", "jinja2", "markdown-it-py"}
    assert "Requires-Python: >=3.10" in metadata
    assert "zb = zbkernels.cli:main" in entry


def test_wheel_does_not_tell_where_it_was_built(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                assert str(ROOT).encode() + b"/csrc" not in archive.read(name), name


def test_sdist_holds_all_that_a_build_needs(tmp_path: Path) -> None:
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    build("-c", code, str(tmp_path))
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        top = f"zbkernels-{zbkernels.__version__}/"
        names = {m.name.removeprefix(top) for m in tar.getmembers() if m.isfile()}
    wanted = [
        "setup.py",
        "pyproject.toml",
        "CMakeLists.txt",
        "MANIFEST.in",
        "README.md",
        "LICENSE",
        "Makefile",
    ]
    for pattern in ("csrc/**/*", "zbkernels/**/*", "python_tests/**/*"):
        wanted += [str(p.relative_to(ROOT)) for p in ROOT.glob(pattern) if p.is_file()]
    unwanted = re.compile(r"__pycache__|\.pyc$|\.so$|\.o$")
    missing = {n for n in wanted if not unwanted.search(n)} - names
    assert not missing
    assert not {n for n in names if unwanted.search(n)}


def test_wheel_runs_where_there_is_no_compiler(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = venv / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    # pip takes what is on PYTHONPATH for installed.
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([*pip, str(wheel)], check=True, env=clean)
    # torch and the other requirements come from this environment; its .pth files, and with them an editable
    # install of the package, do not.
    site = next((venv / "lib").glob("python*/site-packages"))
    (site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = """
import zbkernels as zb, torch
print(zb.__file__)
print({n: s.loaded for n, s in zb._loader.libraries().items() if n != "_C_cuda"})
x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
want = torch.nn.functional.max_pool2d(torch.nn.functional.conv2d(x, w).relu(), 2)
torch.testing.assert_close(zb.conv_relu_pool2d(x, w), want)
print(zb.explain("conv_relu_pool2d", x, w).chosen, zb.nap_pack(torch.ones(1, 3)).tolist())
"""
    env = {"PATH": str(venv / "bin"), "HOME": str(tmp_path)}
    result = subprocess.run([str(python), "-c", code], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    where, loaded, did = result.stdout.splitlines()
    assert where.startswith(str(site))
    assert loaded == "{'_C_cpu': True, '_host': True}"
    assert did == "cpu [[7]]"
    doctor = subprocess.run(
        [str(venv / "bin" / "zb"), "doctor"], capture_output=True, text=True, env=env, cwd=tmp_path
    )
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr


def test_wheel_passes_the_matrix_on_the_torch_that_is_here(wheel: Path, tmp_path: Path) -> None:
    tests = (
        "python_tests/test_ops.py -k 'test_export or test_opcheck and linear_relu or test_values_against_float64 and "
        "float32 and nap_pack'"
    )
    result = matrix.try_one(tmp_path, sys.executable, wheel, None, tests, [], tmp_path)
    assert result.failed == ""
    assert result.torch.startswith(torch.__version__) and result.libraries.startswith("_C_cpu")
    assert re.match(r"[4-9] passed, \d+ deselected", result.tests), result.tests
    assert not list(tmp_path.iterdir())
    shown = matrix.table([result], tests)
    assert f"| passed | {result.tests} |" in shown and wheel.name in shown and tests in shown


def test_every_word_of_the_matrix_chooses_tests() -> None:
    """A -k expression that matches nothing deselects in silence."""
    file, _, words = matrix.TESTS.partition(" -k ")
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", str(ROOT / file)],
        capture_output=True,
        text=True,
    )
    tests = [line.partition("::")[2] for line in told.stdout.splitlines()]
    for alternative in re.split(r" or (?![^(]*\))", words.strip("'")):
        name, *kinds = re.findall(r"\w+", re.sub(r"\b(and|or)\b", "", alternative))
        for kind in kinds or [name]:
            assert any(name in test and kind in test for test in tests), (alternative, kind)


def test_matrix_tells_what_failed(wheel: Path, tmp_path: Path) -> None:
    broken = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(broken, "w") as target:
        for info in source.infolist():
            target.writestr(info, b"" if info.filename.endswith("_C_cpu.so") else source.read(info))
    result = matrix.try_one(tmp_path, sys.executable, broken, None, "", [], tmp_path)
    assert "AssertionError: _C_cpu: " in result.failed
    assert "| failed |" in matrix.table([result], "")


def test_a_wheel_that_must_not_be_released_is_refused(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "zbkernels-1.0+cpu-cp311-cp311-linux_x86_64.whl"
    host = "_host" + sysconfig.get_config_var("EXT_SUFFIX")
    with zipfile.ZipFile(wrong, "w") as archive:
        archive.write(PACKAGE / "_C_cpu.so", f"zbkernels/{host}")
        archive.write(PACKAGE / "_C_cpu.so", "zbkernels/_C_cpu.so")
        archive.write(PACKAGE / host, "zbkernels/_C_cuda.so")
        archive.write(PACKAGE / host, "zbkernels.libs/libcudart-1234.so.13")
    monkeypatch.setitem(build_wheels.LIMITS_MB, "cuda", 1)
    found = build_wheels.faults(wrong)
    assert [re.sub(r"[\d.]+ MB", "N MB", fault) for fault in found] == [
        "it is labelled +cpu, but _C_cuda.so is in it",
        "it has N MB, more than the 1 that a cuda wheel may have",
        f"it holds the libraries _C_cpu.so, _C_cuda.so, {host}, libcudart-1234.so.13",
        f"{host} asks for libc10.so, libtorch_cpu.so",
        "auditwheel gave it no manylinux tag",
    ]
    monkeypatch.undo()
    for checked, code, faults in ((wheel, 0, 0), (wrong, 1, 4)):
        monkeypatch.setattr(sys, "argv", ["build_wheels.py", "--check", str(checked)])
        assert build_wheels.main() == code
        assert capsys.readouterr().out.count("FAULT") == faults


# --- the build ------------------------------------------------------------------------------------------------


@pytest.fixture
def touched_source() -> Iterator[Path]:
    source = ROOT / "csrc/common/cpu_capability.cpp"
    before = source.stat()
    os.utime(source)
    yield source
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_rebuild_compiles_the_touched_file_only(touched_source: Path) -> None:
    printed = build("setup.py", "-q", "build_ext", "--inplace")
    compiled = re.findall(r"Building \w+ object \S*?(csrc/\S+)\.o\b", printed)
    assert compiled == [str(touched_source.relative_to(ROOT))], printed
    assert "Building" not in build("setup.py", "-q", "build_ext", "--inplace")


def setup_module() -> dict[str, object]:
    """The functions of setup.py, without running it."""
    namespace: dict[str, object] = {"__name__": "setup_functions", "__file__": str(ROOT / "setup.py")}
    exec(compile((ROOT / "setup.py").read_text(), "setup.py", "exec"), namespace)
    return namespace


@pytest.fixture
def nvcc(tmp_path: Path) -> str:
    """A compiler that knows what CUDA 12.8 knows."""
    script = tmp_path / "nvcc"
    archs = "\n".join(f"compute_{n}" for n in (50, 60, 70, 75, 80, 86, 87, 89, 90, 100, 101, 120))
    script.write_text(f"#!/bin/sh\necho '{archs}'\n")
    script.chmod(0o755)
    return str(script)


def test_cuda_architectures(nvcc: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = setup_module()
    archs = functions["cuda_archs"]
    card = {"caps": ""}
    monkeypatch.setitem(
        functions,
        "output_of",
        lambda program, *args: card["caps"] if program == "nvidia-smi" else Path(program).read_text(),
    )
    monkeypatch.delenv("ZBKERNELS_CUDA_ARCHS", raising=False)
    assert archs(nvcc, True) == "80-real;86-real;89-real;90a-real;100-real;120"
    assert archs(nvcc, False) == "90a-real"  # no card to be seen: the stated default
    card["caps"] = "8.0\n9.0\n9.0\n"
    assert archs(nvcc, False) == "80-real;90a-real"
    card["caps"] = "13.0\n"  # newer than the compiler: PTX of the newest it knows
    assert archs(nvcc, False) == "120"
    monkeypatch.setenv("ZBKERNELS_CUDA_ARCHS", "80-real, 90a-real")
    assert archs(nvcc, True) == archs(nvcc, False) == "80-real;90a-real"


def test_torch_of_another_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch_folder = setup_module()["torch_folder"]
    here = torch_folder()
    monkeypatch.setenv("ZBKERNELS_TORCH", str(Path(torch.__file__).parent))
    assert torch_folder() == here
    monkeypatch.setenv("ZBKERNELS_TORCH", str(tmp_path))
    with pytest.raises(SystemExit, match="ZBKERNELS_TORCH must be the folder of a torch package, got "):
        torch_folder()
    (tmp_path / "version.py").write_text("__version__ = '2.10.0+cpu'\n")
    with pytest.raises(SystemExit, match=r"needs torch>=2.11 to build, found 2.10.0\+cpu"):
        torch_folder()


def test_version_stands_once() -> None:
    """Everything else reads zbkernels/_version.py, or is the changelog or a record of what was tried with a version."""
    version = re.escape(zbkernels.__version__)
    files = [
        ROOT / n
        for n in ("setup.py", "pyproject.toml", "CMakeLists.txt", "Makefile", "README.md", "CONTRIBUTING.md")
    ]
    for pattern in (
        "zbkernels/**/*.py",
        "csrc/**/*",
        "release/*",
        "examples/**/*",
        "docs/*.md",
        "bench/*.py",
    ):
        files += [path for path in ROOT.glob(pattern) if path.is_file()]
    stated = [
        str(path.relative_to(ROOT))
        for path in files
        if path.suffix not in (".png", ".pyc")
        and path.name != "wheel-matrix.md"
        and re.search(rf"(?<![\d.]){version}(?![\d.])", path.read_text(encoding="utf-8"))
    ]
    assert stated == ["zbkernels/_version.py"]
    assert f"## {zbkernels.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_cuda_switch(nvcc: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    functions = setup_module()
    options = functions["cuda_options"]
    monkeypatch.setitem(functions, "find_nvcc", lambda: None)
    monkeypatch.delenv("ZBKERNELS_CUDA", raising=False)
    assert options(False) == {"ZB_CUDA": "OFF", "ZB_CUDA_REASON": "nvcc was not found at build time"}
    assert "CUDA part skipped: nvcc was not found" in capsys.readouterr().out
    monkeypatch.setenv("ZBKERNELS_CUDA", "1")
    with pytest.raises(SystemExit, match="nvcc was not found"):
        options(False)
    monkeypatch.setitem(functions, "find_nvcc", lambda: nvcc)
    monkeypatch.setenv("ZBKERNELS_CUDA", "0")
    assert options(False)["ZB_CUDA"] == "OFF"
    monkeypatch.setenv("ZBKERNELS_CUDA", "yes")
    with pytest.raises(SystemExit, match="must be 0 or 1, got 'yes'"):
        options(False)
    monkeypatch.setenv("ZBKERNELS_CUDA", "1")
    assert options(False)["ZB_CUDA"] == "ON"
    monkeypatch.delenv("ZBKERNELS_CUDA")
    assert options(False)["ZB_CUDA"] == "AUTO"


def test_no_compiler_is_said_plainly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    require_compiler = setup_module()["require_compiler"]
    monkeypatch.delenv("CXX", raising=False)
    require_compiler()
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(
        SystemExit, match=r"no C\+\+ compiler was found \(looked for no-such-compiler\).*wheel"
    ):
        require_compiler()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"looked for c\+\+, g\+\+, clang\+\+"):
        require_compiler()


# --- symbols --------------------------------------------------------------------------------------------------

needs_nm = pytest.mark.skipif(not shutil.which("nm"), reason="no nm (binutils)")


def symbols(path: Path, *options: str) -> list[tuple[str, str]]:
    """(kind, name) of each symbol that ``nm`` lists."""
    printed = subprocess.run(["nm", *options, str(path)], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^(?:[0-9a-f]+)? *(\w) (\S.*)$", printed, re.M)


def stable_functions() -> set[str]:
    """The C functions of torch's stable ABI, from its headers."""
    include = Path(torch.__file__).parent / "include/torch/csrc"
    shim = "inductor/aoti_torch"
    headers = (f"{shim}/c/shim.h", f"{shim}/generated/c_shim_aten.h", "stable/c/shim.h")
    text = "".join((include / header).read_text() for header in headers)
    return set(re.findall(r"\b((?:aoti_)?torch_\w+)\s*\(", text))


@needs_nm
@pytest.mark.parametrize("name", ["_C_cpu.so", "_C_cuda.so"])
def test_kernels_use_stable_torch_symbols_only(name: str) -> None:
    path = PACKAGE / name
    if not path.exists():
        pytest.skip(f"{name} is not built")
    undefined = [s for kind, s in symbols(path, "-D", "--undefined-only") if kind == "U"]
    from_torch = {
        s for s in undefined if "@" not in s and not re.match(r"_ZN?K?S|_ZTV?S|_ZTVN10__cxxabiv1", s)
    }
    assert from_torch, "a library of ops that calls nothing of torch"
    assert from_torch <= stable_functions(), from_torch - stable_functions()
    mangled = [s for s in undefined if re.search(r"(2at|3c10|5torch|6caffe2)\d", s)]
    assert not mangled


@needs_nm
def test_host_knows_nothing_of_torch() -> None:
    path = PACKAGE / ("_host" + sysconfig.get_config_var("EXT_SUFFIX"))
    undefined = [s for kind, s in symbols(path, "-D", "--undefined-only") if kind == "U"]
    assert not [s for s in undefined if "torch" in s or "c10" in s]
    needed = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True, check=True).stdout
    assert "torch" not in needed and "RPATH" not in needed and "RUNPATH" not in needed


@needs_nm
def test_libraries_export_their_own_names_only() -> None:
    for name in libraries():
        exported = {s for _, s in symbols(PACKAGE / name, "-D", "--defined-only")}
        assert exported and all(re.match(r"zb_|PyInit__host", s) for s in exported), (name, exported)


@needs_nm
def test_no_code_for_one_instruction_set_can_stand_in_for_another() -> None:
    """A template instantiated in a -mavx512 file and elsewhere is one weak symbol, and the linker keeps either."""
    folders = [f for f in (ROOT / "build").glob("cmake-*") if (f / "CMakeFiles/_C_cpu.dir").exists()]
    objects = [o for f in folders for o in (f / "CMakeFiles/_C_cpu.dir").rglob("*.o")]
    special = [o for o in objects if re.search(r"_avx(2|512|512_bf16)\.cpp\.o$", o.name)]
    if not special:
        pytest.skip("the object files of this build are not here")
    for path in special:
        (isa,) = re.findall(r"_(avx2|avx512|avx512_bf16)\.cpp\.o$", path.name)
        weak = [s for kind, s in symbols(path, "-C", "--defined-only") if kind in "WVu"]
        assert not [s for s in weak if isa not in s], path
