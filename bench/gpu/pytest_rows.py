"""A pytest plugin (``-p gpu.pytest_rows``) that tells ``process.py`` of each test as a program of ours would.

A test that crashes, hangs or leaves the card unusable then costs that test alone. The tests are taken in the order
in which pytest collects them; ``--begin`` and ``--seconds`` are those of ``rows.py``.
"""

from __future__ import annotations

import collections
import os
import signal
import time

import pytest

from gpu.rows import report_row, say

LIMIT = 60.0  # seconds of one test


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--begin", type=int, default=0)
    parser.addoption("--seconds", type=float, default=600.0)


class Rows:
    """What has become of the tests, by file."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.number = config.getoption("--begin")
        self.end = time.monotonic() + config.getoption("--seconds")
        self.counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        say({"total": len(items)})
        del items[: self.number]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            report_row(report.nodeid or "collection", "failed", _words(report))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if time.monotonic() > self.end:
            self.counts[_file(item.nodeid)]["not reached in time"] += 1
            return True  # done with it: neither run nor reported
        say(
            {
                "start": self.number,
                "name": item.nodeid,
                "optional": False,
                "limit": LIMIT,
                "at": time.monotonic(),
            }
        )
        self.number += 1
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, LIMIT)
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            if _card_is_lost(self.config.getoption("--device", "cpu")):
                print(_words(report), flush=True)
                os._exit(3)
            report_row(report.nodeid, "failed", _words(report))
        if report.failed or report.skipped or report.when == "call":
            self.counts[_file(report.nodeid)][report.outcome] += 1
        if report.when == "teardown":
            signal.setitimer(signal.ITIMER_REAL, 0)
            say({"done": self.number - 1})

    def pytest_sessionfinish(self) -> None:
        for file, counts in self.counts.items():
            note = ", ".join(f"{count} {what}" for what, count in counts.items())
            report_row(file, "passed" if counts["passed"] else "not reached", note)
        say({"end": True})


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Rows(config))


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _words(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return " ".join(str(crash.message if crash else report.longrepr).split())[:300]


def _card_is_lost(device: str) -> bool:
    if not device.startswith("cuda"):
        return False
    import torch

    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False
