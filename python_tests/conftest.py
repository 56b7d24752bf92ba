"""Options and fixtures that all tests share."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import zbkernels as zb
from zbkernels import _loader

# Build servers set these to have colours; the tests, and what they start, read plain text.
for _name in ("FORCE_COLOR", "PY_COLORS", "CLICOLOR_FORCE", "GITHUB_ACTIONS", "TTY_COMPATIBLE"):
    os.environ.pop(_name, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device", default="cpu", help="device of the op tests: cpu (default), cuda, cuda:1, ..."
    )
    parser.addoption("--large", action="store_true", help="run tests that need many gigabytes of memory")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share = int(os.environ.get("ZBKERNELS_SANITIZER_SHARE", "1"))
    if os.environ.get("ZBKERNELS_SANITIZER") and share > 1:
        items[:] = _one_of(share, items)
    if config.getoption("--large"):
        return
    for item in items:
        if "large" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs many gigabytes of memory: --large runs it"))


def _one_of(share: int, items: list[pytest.Item]) -> list[pytest.Item]:
    """Of each test the first case and about one in ``share`` of the others, always the same ones, of every kind: a
    sanitizer makes them many times slower, and the cases of one test run the same lines."""
    seen: set[str] = set()
    kept = []
    for item in items:
        test = item.nodeid.partition("[")[0]
        if test not in seen or zlib.crc32(item.nodeid.encode()) % share == 0:
            kept.append(item)
        seen.add(test)
    return kept


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    return request.config.getoption("--device")


@pytest.fixture
def highest_precision() -> Iterator[None]:
    """Direct sums in one order: what tight tolerances and exact comparisons need."""
    zb.set_conv_precision("highest")
    yield
    zb.set_conv_precision("high")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For tests of small networks: two threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with real MNIST and Fashion-MNIST; a test that needs it is skipped where it is missing."""
    root = os.environ.get("ZBKERNELS_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("ZBKERNELS_DATA names no folder with the data sets")
    return Path(root)


@pytest.fixture(autouse=True)
def no_backend_left_forced() -> Iterator[None]:
    yield
    zb.use_backend("auto")


# Exact comparisons are of full float32; what TF32 may do is tested where it is switched on.
torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
_loader.allow_tf32(
    False, False
)  # for tests that call a library's own ops, past what hands it torch's switches
# Under pytest-xdist each worker takes its share of the cores.
_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
torch.set_num_threads(max(1, min(2, (os.cpu_count() or 1) // _workers)))
