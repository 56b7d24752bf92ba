"""What importing, calling and compiling the package costs, held as counts and as ratios to torch's own; see
bench/results/cost.md for the times."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import types
from pathlib import Path

import pytest

import zbkernels as zb
from zbkernels import _loader

ROOT = Path(zb.__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(not (ROOT / "bench/cost.py").exists(), reason="not a source tree")

# Parts of other packages that torch may or may not have loaded itself: not ours to load.
FORBIDDEN = (
    "matplotlib",
    "scipy",
    "sklearn",
    "pandas",
    "PIL",
    "rich",
    "typer",
    "safetensors",
    "triton",
    "sympy",
    "ray",
)
MODULES = 65  # the package's own, at import; 55 when this was written
IMPORT_RATIO = 0.15  # of the processor time of `import torch`; 0.04
# Of the time that torch's own operations take on the same tiny input.
RATIOS = {
    ("conv_relu_pool2d", "inference"): 9,
    ("torch.ops.zb.conv_relu_pool2d", "inference"): 6,
    ("nn.ConvReLUPool2d", "inference"): 3,
    ("conv_relu_pool2d", "forward"): 20,
    ("conv_relu_pool2d", "training"): 8,
    ("conv_relu_pool2d_nap", "inference"): 14,
    ("linear_relu", "inference"): 20,
    ("linear_relu", "forward"): 22,
    ("linear_relu", "training"): 8,
    ("nap_pack", "inference"): 5,
    ("nap_hamming", "inference"): 9,
}
LIBRARY_MB = {"_C_cpu.so": 8, "_host": 1.5}
UNITS = {"_C_cpu": 65, "_C_cuda": 50, "_host": 15}


@pytest.fixture(scope="module")
def cost() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("cost", ROOT / "bench/cost.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["cost"] = module  # NamedTuple looks its module up
    spec.loader.exec_module(module)
    return module


def test_import_takes_a_small_part_of_torchs_and_loads_nobody_else(cost: types.ModuleType) -> None:
    found = cost.measure_import(1)
    assert not [name for name in found.new if name.partition(".")[0] in FORBIDDEN]
    assert not found.others, "modules that torch had not loaded"
    assert len(found.new) <= MODULES
    assert found.zbkernels <= IMPORT_RATIO * found.torch


def test_what_is_imported_on_demand_is_what_its_name_says() -> None:
    """In a fresh interpreter: modules come before the names that they could hide."""
    code = """
import zbkernels as zb, sys
assert "zbkernels.nn.fusion" not in sys.modules and "zbkernels.infinite.predict" not in sys.modules
for name in zb.__all__:
    assert name in dir(zb) and getattr(zb, name) is not None, name
for name in zb.infinite.__all__:
    assert name in dir(zb.infinite) and getattr(zb.infinite, name) is not None, name
assert zb.fuse is zb.nn.fusion.fuse and callable(zb.infinite.gradient_flow)
from zbkernels.infinite import *
from zbkernels import *
assert predict is zb.infinite.predict and fuse is zb.fuse
for package in (zb, zb.infinite, zb.nn):
    try:
        package.nothing
    except AttributeError as error:
        assert str(error) == f"module {package.__name__!r} has no attribute 'nothing'"
    else:
        raise AssertionError(package)
"""
    env_path = {"PYTHONPATH": str(ROOT)}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env_path)
    assert told.returncode == 0, told.stderr


@pytest.mark.skipif(_loader.handle("_C_cpu") is None, reason="the CPU kernels are not built")
def test_calls_stay_within_a_multiple_of_torchs(cost: types.ModuleType) -> None:
    for _ in range(3):  # a busy machine can spoil one measurement, a slow call spoils all
        measured = cost.measure_calls(60)
        slow = [
            f"{o.call.name} ({o.call.mode}): {o.ours:.0f} µs, {o.ratio:.1f} times {o.call.torch_name}"
            for o in measured
            if o.ratio > RATIOS[o.call.name, o.call.mode]
        ]
        if not slow:
            break
    assert {(o.call.name, o.call.mode) for o in measured} == set(RATIOS)
    assert not slow


def test_sources_and_libraries_stay_few_and_small(cost: types.ModuleType) -> None:
    sizes = cost.library_sizes()
    if not sizes:
        pytest.skip("nothing is built here")
    for name, limit in LIBRARY_MB.items():
        (size,) = [size for file, size in sizes.items() if file.startswith(name)] or [0]
        assert size <= limit * 1e6, name
    folder = cost.build_folder()
    if folder is None:
        pytest.skip("the build folder is not here")
    counted: dict[str, int] = {}
    for unit in cost.units(folder):
        counted[unit.library] = counted.get(unit.library, 0) + 1
    assert counted.get("_C_cpu", 0) > 10
    assert not {name: counted[name] for name, most in UNITS.items() if counted.get(name, 0) > most}


def test_nvcc_times_by_architecture(cost: types.ModuleType, tmp_path: Path) -> None:
    rows = [
        "source file name , phase name , phase input files , phase output file , arch , tool, metric , unit",
        "a.cu , cudafe++ , a.ii , a.cpp , compute_90a , nvcc , 500.0 , ms",
        "a.cu , cicc , a.ii , a.ptx , compute_90a , nvcc , 9000.0 , ms",  # a compilation that was cut off
        "a.cu , cicc , a.ii , a.ptx , compute_90a , nvcc , 1000.0 , ms",
        "a.cu , ptxas , a.ptx , a.cubin , sm_90a , nvcc , 250.0 , ms",
        "b.cu , ptxas , b.ptx , b.cubin , sm_80 , nvcc , 125.0 , ms",
        " , nvcc (driver) ,  ,  ,  , nvcc , 0.7849 , ms",
    ]
    file = tmp_path / "times.csv"
    file.write_text("\n".join(rows))
    found = cost.nvcc_seconds(file)
    assert {arch: files for arch, (files, _) in found.items()} == {"sm_90a": 1, "sm_80": 1, "": 1}
    seconds = {arch: seconds for arch, (_, seconds) in found.items()}
    assert seconds == pytest.approx({"sm_90a": 1.25, "sm_80": 0.125, "": 0.5007849})
