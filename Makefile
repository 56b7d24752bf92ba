# make demo     a first look: trains on the embedded digits, measures, draws out/demo/figure.png
# make test     everything that continuous integration runs
# make docs     the documentation site, in build/docs
# make ptxas    bench/results/ptxas.md anew: what the compiler made of each CUDA kernel
# make triton-table  the same of each Triton kernel: bench/results/triton.md
# make accuracy-table  errors by filter, channels and depth, and predictions under contrast: bench/results/accuracy.md
# make memory-table  peak memory of training steps beside eager's: bench/results/memory-cpu.md
# make fuse-table  what fuse gains on well-known networks: bench/results/fuse-architectures.md
# make cost-table  what importing, calling, compiling and testing costs: bench/results/cost.md
# make wheels   the wheels of a release for the interpreter of .venv, checked, in dist/
# make fuzz MINUTES=10 SEED=0  random problems for every op on every backend against float64; failures in out/fuzz
# make sweep    bench/results/sweep.md anew: sizes that cost more an operation than those next to them
# make faults KILLS=200 SEED=0  kills runs, recordings and index saves at random moments: nothing may be lost
# make sanitizers   the emulated CUDA kernels, _C_cpu and _host under sanitizers; of these cases make test takes a tenth
# make hostile COUNT=100 SEED=0   reads damaged and forged files of every format
# make lint | typecheck | format | bench | check-cuda-load | clean
#
# PYTHON=python3.12 picks the interpreter of .venv; else the first found that is 3.10 or newer.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.SILENT:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := test

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
BUILD := $(PY) setup.py -q build_ext --inplace
# What continuous integration compiles: the oldest and the newest architecture whose code paths differ, and the
# CUDA kernels for the host, which the tests run.
TEST_CUDA := ZBKERNELS_CUDA_ARCHS="$${ZBKERNELS_CUDA_ARCHS-80-real;90a-real}" \
             ZBKERNELS_EMULATION="$${ZBKERNELS_EMULATION-1}"
# Processes that share the tests, file by file; each may take a core and up to 2 GB.
TEST_WORKERS ?= 2
# A first look should not wait for nvcc unless there is a card to look at.
DEMO_CUDA := ZBKERNELS_CUDA="$${ZBKERNELS_CUDA-$$(nvidia-smi -L 2>/dev/null | grep -q GPU && echo 1 || echo 0)}"
CXX_FILES := find csrc -name '*.h' -o -name '*.inc' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh'

.PHONY: demo test lint typecheck format build bench docs ptxas triton-table accuracy-table memory-table fuse-table cost-table wheels sweep \
        check-cuda-load clean \
        fuzz fuzz-slice sanitizers faults hostile pytest-main pytest-triton-interpret pytest-triton-aot

# --- environment: each step leaves a file in .venv and is not redone while that is newer ------------------------

$(VENV)/made:
	echo "== making $(VENV)"
	for python in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.10; do
	  if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
	    $$python -m venv $(VENV)
	    touch $@
	    exit 0
	  fi
	done
	echo "zbkernels needs Python 3.10 or newer with its venv module (Debian, Ubuntu: apt install python3-venv)" >&2
	exit 1

# The pinned torch, and the build's tools: with these in place no isolated build has to fetch a torch of its own.
$(VENV)/requirements: requirements-dev.txt | $(VENV)/made
	echo "== installing torch and the build's tools into $(VENV)"
	$(PIP) install -q -r requirements-dev.txt
	touch $@

$(VENV)/for-demo: pyproject.toml setup.py $(VENV)/requirements
	echo "== building and installing zbkernels"
	$(DEMO_CUDA) $(PIP) install -q --no-build-isolation -e '.[experiments]'
	touch $@

$(VENV)/for-test: pyproject.toml setup.py $(VENV)/requirements
	echo "== building and installing zbkernels, its tests' needs, and CUDA code where nvcc is"
	$(TEST_CUDA) $(PIP) install -q --no-build-isolation -e '.[test]'
	touch $@

$(VENV)/for-bench: pyproject.toml setup.py $(VENV)/requirements
	$(PIP) install -q --no-build-isolation -e '.[bench,experiments]'
	touch $@

# --- the commands ------------------------------------------------------------------------------------------------

demo: $(VENV)/for-demo
	$(DEMO_CUDA) $(BUILD) > /dev/null
	$(VENV)/bin/zb demo

# What one core does at a time, side by side; then the rest, which shares the cores itself.
test: build
	$(MAKE) --no-print-directory -j $(TEST_WORKERS) -O lint typecheck pytest-triton-interpret pytest-triton-aot fuzz-slice
	$(MAKE) --no-print-directory pytest-main

build: $(VENV)/for-test
	$(TEST_CUDA) $(BUILD)

pytest-main: build
	echo "== tests"
	ZBKERNELS_SANITIZER_SHARE=10 $(PY) -m pytest -q -n $(TEST_WORKERS) --dist loadfile --durations=25 --junitxml=out/tests.xml python_tests --ignore-glob='*/test_triton_*'

# Triton's interpreter is switched on for a whole process and breaks compilation there: two processes.
pytest-triton-interpret: build
	echo "== Triton kernels, interpreted"
	TRITON_INTERPRET=1 $(PY) -m pytest -q --junitxml=out/tests-triton-interpret.xml python_tests/test_triton_interpret*.py

pytest-triton-aot: build
	echo "== Triton kernels, compiled ahead of time"
	env -u TRITON_INTERPRET $(PY) -m pytest -q --junitxml=out/tests-triton-aot.xml python_tests/test_triton_aot*.py

# AGAIN="conv 17 cpu-avx2" is one problem once more; FUZZ="--families conv --jobs 2" and the like: python -m fuzz --help.
MINUTES ?= 10
SEED ?= 0
FUZZ ?=
RUN_FUZZ := PYTHONPATH=python_tests $(PY) -m fuzz
fuzz: build
	$(RUN_FUZZ) --seed $(SEED) $(if $(AGAIN),--again $(AGAIN),--minutes $(MINUTES) $(FUZZ))

# Two minutes of one core, the same problems each time.
fuzz-slice: build
	echo "== fuzz"
	$(RUN_FUZZ) --seed 1 --minutes 1.9 --fresh --out out/fuzz-slice

sanitizers: build
	$(PY) -m pytest -q -n $(TEST_WORKERS) --dist loadfile python_tests/test_cuda_emulation.py python_tests/test_sanitizers.py -k sanitize

lint: $(VENV)/for-test
	echo "== lint"
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(CXX_FILES) | xargs $(VENV)/bin/clang-format --dry-run -Werror

typecheck: $(VENV)/for-test
	echo "== types"
	$(PY) -m mypy

format: $(VENV)/for-test
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(CXX_FILES) | xargs $(VENV)/bin/clang-format -i

bench: $(VENV)/for-bench
	$(BUILD) > /dev/null
	mkdir -p out
	$(PY) -m pytest bench --benchmark-json=out/bench.json

# With warnings as errors; the tests build it, too.
docs: $(VENV)/for-test
	$(PY) docs/site/build.py build/docs

# Registers, spills, shared memory and occupancy of each CUDA kernel; needs nvcc, but no GPU.
ptxas: build
	$(PY) bench/ptxas_table.py

# The same of the Triton kernels, with what multiplies and 16-byte accesses, for NVIDIA and AMD; needs no GPU either.
triton-table: build
	env -u TRITON_INTERPRET $(PY) bench/triton_table.py

accuracy-table: build
	$(PY) bench/accuracy_table.py

memory-table: build
	$(PY) bench/memory.py

fuse-table: build
	$(PY) bench/fuse_architectures.py

cost-table: build
	$(PY) bench/cost.py

wheels: $(VENV)/for-test
	$(PY) release/build_wheels.py

# One thread and some minutes of an idle machine.
sweep: build
	$(PY) bench/sweep.py
	$(PY) bench/sweep.py --mode train

KILLS ?= 200
COUNT ?= 100
SEED ?= 0
faults: build
	OMP_NUM_THREADS=1 PYTHONPATH=. $(PY) python_tests/kills.py --kills $(KILLS) --seed $(SEED)

hostile: build
	OMP_NUM_THREADS=1 PYTHONPATH=. $(PY) python_tests/hostile.py --count $(COUNT) --seed $(SEED)

# That _C_cuda loads in a CUDA build of torch and registers its kernels: needs no GPU, but a download of 5 GB.
CUDA_VENV ?= build/cuda-venv
CUDA_TORCH ?= torch>=2.11
check-cuda-load: build
	if [ ! -e $(CUDA_VENV)/made ]; then
	  $(PY) -m venv $(CUDA_VENV)
	  $(CUDA_VENV)/bin/python -m pip install -q "$(CUDA_TORCH)" numpy
	  touch $(CUDA_VENV)/made
	fi
	PYTHONPATH=$(CURDIR) $(CUDA_VENV)/bin/python python_tests/check_cuda_load.py

clean:
	rm -rf build dist out *.egg-info zbkernels/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
