"""The pytest-benchmark front: every bench checks first and then times all contestants interleaved.

pytest-benchmark can only time one callable after the other, and a slow minute of the machine would then hit
one contestant alone. So the fixture ``race`` takes the interleaved medians itself and stores the whole row
(medians, ratios, ceilings, errors, what is absent and why) in ``extra_info``; pytest-benchmark then times
``ours`` once more, for its own table and comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from zbkernels.benchmarking import ceilings as ceiling
from zbkernels.benchmarking import machine
from zbkernels.benchmarking.cases import QUICK, Case, suite_of
from zbkernels.benchmarking.ceilings import Ceilings
from zbkernels.benchmarking.runner import Settings, environment, measure, prepare


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("zbkernels")
    group.addoption("--threads", type=int, default=0, help="threads of every contestant (0: torch's own)")
    group.addoption("--device", default="cpu", help="cpu or cuda")
    group.addoption("--rounds", type=int, default=0, help="samples of each contestant")
    group.addoption("--quick", action="store_true", help="a few rows in about a minute")


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError(
            "pytest bench needs pytest-benchmark (pip install 'zbkernels[bench]'); "
            "`zb bench` prints the same table without it"
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One bench per case of the suite that the file names in ``SUITE``."""
    if "case" not in metafunc.fixturenames:
        return
    cases = suite_of(metafunc.module.SUITE, metafunc.config.getoption("--device"))
    if metafunc.config.getoption("--quick"):
        cases = [case for case in cases if (case.suite, case.name, case.mode) in QUICK]
    metafunc.parametrize("case", cases, ids=[f"{case.name}-{case.mode}" for case in cases])


@pytest.fixture(scope="session")
def settings(pytestconfig: pytest.Config) -> Settings:
    """How this session times, from the command line."""
    return Settings.of(
        quick=pytestconfig.getoption("--quick"),
        device=pytestconfig.getoption("--device"),
        threads=pytestconfig.getoption("--threads"),
        rounds=pytestconfig.getoption("--rounds"),
    )


@pytest.fixture(scope="session")
def limits() -> Ceilings:
    """The best ceilings seen so far in this session; each bench adds a look at its own dtype."""
    return Ceilings({}, 0.0, {})


@pytest.fixture(autouse=True)
def _environment(settings: Settings) -> Iterator[None]:
    with environment(settings):
        yield


@pytest.fixture
def race(benchmark: Any, settings: Settings, limits: Ceilings) -> Callable[[Case], None]:
    """``race(case)``: check everyone, time everyone, keep the row; pytest-benchmark times ``ours``."""

    def run(case: Case) -> None:
        seconds = settings.ceiling_seconds / 3
        limits.merge(ceiling.measure([case.dtype] if case.flops else [], settings.device, seconds=seconds))
        prepared = prepare(case, settings)
        row = measure(prepared, settings, limits)
        benchmark.group = f"{case.suite} {case.mode}"
        benchmark.extra_info.update(row, machine=machine.describe(settings), ceilings=vars(limits).copy())
        benchmark.pedantic(
            prepared.calls["ours"],
            rounds=settings.rounds,
            iterations=row["times"]["ours"]["inner"],
            warmup_rounds=1,
        )

    return run
