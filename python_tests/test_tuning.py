"""Choosing and tuning Triton configurations, without a card: the cache on disk, the tuner, the command."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner, Result

from zbkernels import cards, tables
from zbkernels.benchmarking.check import Wrong
from zbkernels.benchmarking.shapes import cases_of
from zbkernels.cards import Card
from zbkernels.cli import app
from zbkernels.triton import config, launch, results
from zbkernels.triton.config import Config, choose, overriding
from zbkernels.triton.results import Result as Tuned
from zbkernels.tuning import Prepared, Row, TuningError, Workload, command, tune, workloads
from zbkernels.tuning.tuner import Tuner

CARD = Card("Made-up Card", "9.0")
CPU = torch.device("cpu")
SMALL, LARGE, HUGE = (Config({"BLOCK_M": size}) for size in (16, 64, 256))
KEY = ("some_op", "float32", "M2^10")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, and a CPU that passes for a card."""
    monkeypatch.setenv("ZBKERNELS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cards, "card_of", lambda device: CARD)
    monkeypatch.setattr(results, "triton_version", lambda: "3.7.1")
    monkeypatch.setattr(results, "_read", {})
    monkeypatch.setattr(tables, "_warned", set())
    config.forget()
    yield tmp_path / "cache"
    config.forget()


def chosen(candidates: Sequence[Config] = (SMALL, LARGE)) -> Config:
    return choose("some_op", CPU, torch.float32, "M2^10", lambda: candidates)


def fresh() -> None:
    """As in a new process."""
    results._read.clear()
    config.forget()


# --- what a call takes


def test_the_default_where_nothing_is_tuned_then_what_was_tuned() -> None:
    assert chosen() == SMALL
    results.save(CARD, {KEY: Tuned(LARGE, 1.0, 2.0)})
    assert chosen() == LARGE
    assert chosen([SMALL, HUGE]) == SMALL  # it is no candidate of this call
    assert choose("some_op", CPU, torch.float16, "M2^10", lambda: [SMALL, LARGE]) == SMALL
    assert choose("some_op", CPU, torch.float32, "M2^11", lambda: [SMALL, LARGE]) == SMALL
    fresh()
    assert chosen() == LARGE


def test_shipped_results_come_after_the_users(own_cache: Path, tmp_path: Path, monkeypatch: Any) -> None:
    results.save(CARD, {KEY: Tuned(LARGE, 1.0, 2.0)})
    shipped = tmp_path / "shipped"
    (own_cache / "triton").rename(shipped)
    monkeypatch.setattr(results, "SHIPPED", shipped)
    fresh()
    assert chosen([SMALL, LARGE, HUGE]) == LARGE
    results.save(CARD, {KEY: Tuned(HUGE, 1.0, 2.0)})
    assert chosen([SMALL, LARGE, HUGE]) == HUGE


def test_another_card_or_triton_has_results_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    results.save(CARD, {KEY: Tuned(LARGE, 1.0, 2.0)})
    monkeypatch.setattr(results, "triton_version", lambda: "9.9")
    fresh()
    assert chosen() == SMALL
    monkeypatch.undo()


def test_a_lookup_is_cheap_and_touches_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = (SMALL, LARGE)
    chosen(candidates)
    monkeypatch.setattr(results, "tuned", lambda *args: pytest.fail("asked again"))
    best = min(_seconds(lambda: chosen(candidates)) for _ in range(5))
    assert best < 20e-6  # some microseconds; the bound is for a busy machine


def _seconds(call: Callable[[], object], inner: int = 200) -> float:
    start = time.perf_counter()
    for _ in range(inner):
        call()
    return (time.perf_counter() - start) / inner


def test_what_is_forced_holds_in_its_thread_and_block_only() -> None:
    results.save(CARD, {KEY: Tuned(HUGE, 1.0, 2.0)})
    everyone = [SMALL, LARGE, HUGE]
    elsewhere: list[Config] = []
    with overriding({KEY: LARGE}) as seen:
        assert chosen(everyone) == LARGE
        thread = threading.Thread(target=lambda: elsewhere.append(chosen(everyone)))
        thread.start()
        thread.join()
        with overriding({}) as inner:
            assert chosen(everyone) == SMALL  # a tuner compares with the default, not with what is tuned
        assert chosen([SMALL, HUGE]) == SMALL
    assert elsewhere == [HUGE] and chosen(everyone) == HUGE
    assert inner == {KEY: tuple(everyone)}
    assert seen == {KEY: (SMALL, HUGE)}  # both shapes that were asked have these


# --- files that are no good


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ('{"format": 1, "ca', "Unterminated"),
        ("\x00\xff", ""),
        ("[1, 2]", "not a table"),
        ('{"format": 99}', "format is 99, expected 1"),
        ('{"format": 1, "card": "Other Card"}', "card is 'Other Card', expected 'Made-up Card'"),
        ('{"format": 1, "card": "Made-up Card", "capability": "9.0", "triton": "3.7.1"}', "no list of rows"),
        ('{"format":1,"card":"Made-up Card","capability":"9.0","triton":"3.7.1","rows":[{}]}', "KeyError"),
        ("[" * 100_000, ""),
        ('{"format": 1, "rows": [{"default_ms": Infinity}]}', "expected strict JSON, got Infinity"),
    ],
)
def test_a_file_that_is_no_good_is_ignored_with_one_warning(own_cache: Path, text: str, reason: str) -> None:
    path = own_cache / "triton" / results.file_name(CARD)
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("latin-1"))
    with pytest.warns(RuntimeWarning) as caught:
        assert chosen() == SMALL
    (warning,) = caught
    assert str(path) in str(warning.message) and reason in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh()
        assert chosen() == SMALL
        results.save(CARD, {KEY: Tuned(LARGE, 1.0, 2.0)})  # replaces it
        assert chosen() == LARGE


def test_rows_of_wrong_types_are_ignored(own_cache: Path) -> None:
    results.save(CARD, {KEY: Tuned(LARGE, 1.0, 2.0)})
    path = own_cache / "triton" / results.file_name(CARD)
    whole = json.loads(path.read_text())
    for name, value in [
        ("constants", {"BLOCK_M": "64"}),
        ("constants", [1]),
        ("ms", 0),
        ("ms", 10**400),  # more than a float holds
        ("default_ms", "1"),
        ("op", 3),
        ("num_warps", 1.5),
    ]:
        path.write_text(json.dumps({**whole, "rows": [{**whole["rows"][0], name: value}]}))
        tables._warned.clear()
        fresh()
        with pytest.warns(RuntimeWarning, match="no result"):
            assert chosen() == SMALL


def test_a_folder_that_cannot_be_read_is_ignored_with_a_warning(own_cache: Path) -> None:
    own_cache.write_text("a file where a folder should be")
    with pytest.warns(RuntimeWarning, match="Not a directory"):
        assert chosen() == SMALL
    with pytest.raises(OSError):
        results.save(CARD, {KEY: Tuned(LARGE, 1.0, 2.0)})


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert tables.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("ZBKERNELS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert tables.cache_folder() == Path("/somewhere/zbkernels")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tables.cache_folder() == tmp_path / ".cache" / "zbkernels"


WRITER = """
import sys
from zbkernels.cards import Card
from zbkernels.triton import results
from zbkernels.triton.config import Config
results.triton_version = lambda: "3.7.1"
for index in range(15):
    key = ("some_op", "float32", f"{sys.argv[1]} {index}")
    results.save(Card("Made-up Card", "9.0"), {key: results.Result(Config({"BLOCK_M": 16}), 1.0, 2.0)})
"""


def test_writers_at_the_same_time_lose_nothing(own_cache: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, name]) for name in ("a", "b", "c")]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    found = results.load(CARD)
    assert {key[2] for key in found} == {f"{name} {index}" for name in "abc" for index in range(15)}
    assert sorted(path.suffix for path in (own_cache / "triton").iterdir()) == [".json", ".lock"]


def test_what_is_no_result_file_is_neither_shown_nor_cleared(own_cache: Path) -> None:
    """A writer's file that is not in place yet: without it that writer would fail."""
    results.save(CARD, {KEY: Tuned(LARGE, 1.0, 2.0)})
    (path,) = results.all_files()
    writers, folder = path.with_name(f".{path.stem}-x1y2.json"), path.with_name("folder.json")
    writers.write_text("{")
    folder.mkdir()
    before = set(path.parent.iterdir())
    assert results.all_files() == [path] and results.clear() == [path]
    assert set(path.parent.iterdir()) == before - {path}


# --- the tuner, on an op that is made up: its time is a matter of its configuration


@dataclasses.dataclass
class MadeUpOp:
    """Starts two kernels; ``slow`` seconds by configuration, which ``clock`` reads off instead of waiting."""

    slow: dict[Config, float]
    faults: dict[Config, Exception] = dataclasses.field(default_factory=dict)
    wrong: tuple[Config, ...] = ()
    taken: tuple[Config, Config] = (SMALL, SMALL)
    calls: int = 0

    def __call__(self) -> float:
        self.calls += 1
        first = choose("made_up", CPU, torch.float32, "first", lambda: [SMALL, LARGE, HUGE])
        second = choose("made_up", CPU, torch.float32, "second", lambda: [LARGE, SMALL])
        self.taken = (first, second)
        if first in self.faults and launch._sink is None:  # a launch fails only where there is one
            raise self.faults[first]
        return 0.5 if first in self.wrong else 0.0

    def clock(self, call: Callable[[], object], inner: int) -> float:
        call()
        return self.slow[self.taken[0]] + self.slow[self.taken[1]]

    def workload(self, name: str = "made up") -> Workload:
        return Workload("made_up", name, lambda: Prepared(self, lambda error: error))

    def tuner(self, **options: Any) -> Tuner:
        self.kept: dict[Any, Tuned] = {}
        return Tuner(self.clock, lambda: None, self.kept.__setitem__, rounds=1, **options)


FIRST, SECOND = ("made_up", "float32", "first"), ("made_up", "float32", "second")


def test_the_fastest_of_each_key_is_found_and_kept() -> None:
    op = MadeUpOp({SMALL: 3e-3, LARGE: 1e-3, HUGE: 2e-3})
    rows = tune([op.workload()], op.tuner())
    assert [(row.key, row.state, row.failures) for row in rows] == [
        (FIRST, "tuned", {}),
        (SECOND, "tuned", {}),
    ]
    first, second = op.kept[FIRST], op.kept[SECOND]
    assert first.config == LARGE and first.default_ms == pytest.approx(4.0) and first.ms == pytest.approx(2.0)
    assert first.gain == pytest.approx(2.0)
    # The second key is timed with the first at its best, and its default is the best already.
    assert second.config == LARGE and second.default_ms == second.ms == pytest.approx(2.0)


def test_the_default_stays_where_nothing_is_clearly_faster() -> None:
    op = MadeUpOp({SMALL: 1.00e-3, LARGE: 0.99e-3, HUGE: 2e-3})
    tune([op.workload()], op.tuner())
    assert op.kept[FIRST].config == SMALL and op.kept[FIRST].gain == 1.0


def test_candidates_that_fail_or_are_wrong_are_named_and_left_out() -> None:
    faults = {HUGE: RuntimeError("out of resource: shared memory, Required: 300000\nHardware limit: 232448")}
    op = MadeUpOp({SMALL: 3e-3, LARGE: 1e-3, HUGE: 0.1e-3}, faults, wrong=(LARGE,))
    rows = tune([op.workload()], op.tuner())
    assert rows[0].state == "tuned" and op.kept[FIRST].config == SMALL
    assert rows[0].failures == {
        str(LARGE): "error 0.5, allowed 0",
        str(HUGE): "RuntimeError: out of resource: shared memory, Required: 300000",
    }


def test_a_default_that_fails_is_a_row_and_other_calls_go_on() -> None:
    bad = MadeUpOp({}, {SMALL: Wrong("NaN where the reference has none")})
    good = MadeUpOp({SMALL: 3e-3, LARGE: 1e-3, HUGE: 2e-3})

    def impossible() -> Prepared:
        raise MemoryError("too large")

    calls = [Workload("made_up", "large", impossible), bad.workload("bad"), good.workload("good")]
    rows = tune(calls, good.tuner())
    assert [(row.workload, row.state) for row in rows] == [
        ("large", "failed"),
        ("bad", "failed"),
        ("bad", "failed"),
        ("good", "tuned"),
        ("good", "tuned"),
    ]
    assert rows[0].note == "MemoryError: too large"
    assert rows[1].note == "the default: NaN where the reference has none"


def test_a_device_that_is_lost_ends_it() -> None:
    op = MadeUpOp({SMALL: 3e-3, LARGE: 1e-3, HUGE: 2e-3}, {LARGE: RuntimeError("illegal memory access")})
    tuner = op.tuner()

    def synchronize() -> None:
        if op.taken[0] == LARGE:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    tuner.synchronize = synchronize
    with pytest.raises(TuningError, match=r"unusable after made up with BLOCK_M=64 .*illegal memory access"):
        tune([op.workload()], tuner)


def test_what_is_done_is_not_done_again_and_a_dry_run_runs_nothing() -> None:
    op = MadeUpOp({SMALL: 3e-3, LARGE: 1e-3, HUGE: 2e-3})
    rows = tune([op.workload(), op.workload("again")], op.tuner(), dry_run=True)
    assert [(row.key, row.state, row.candidates) for row in rows] == [
        (FIRST, "would tune", 3),
        (SECOND, "would tune", 2),
    ]
    assert op.calls == 2 and not op.kept  # under launch.recording: no kernel starts
    rows = tune([op.workload(), op.workload("again")], op.tuner(), done={FIRST: HUGE})
    assert [(row.key, row.state) for row in rows] == [(FIRST, "cached"), (SECOND, "tuned")]
    assert op.kept[SECOND].ms == pytest.approx(3.0)  # with the first key as it was found


def test_a_budget_that_ends_leaves_the_rest_and_says_so() -> None:
    op = MadeUpOp({SMALL: 3e-3, LARGE: 1e-3, HUGE: 2e-3})
    tuner = op.tuner(deadline=time.monotonic() + 1e9)
    tuner.keep = lambda key, result: setattr(tuner, "deadline", 0.0)
    rows = tune([op.workload(), op.workload("later")], tuner)
    assert [row.state for row in rows] == ["tuned", "not reached", "not reached"]


def test_the_backward_pass_is_tuned_in_its_own_thread() -> None:
    asked: list[int] = []

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            asked.append(threading.get_ident())
            choose("made_up", CPU, torch.float32, "backward", lambda: [SMALL, LARGE])
            return grad

    def step() -> float:
        x = torch.ones(3, requires_grad=True)
        torch.autograd.grad(Square.apply(x).sum(), x)
        return 0.0

    op = MadeUpOp({})
    tuner = op.tuner()
    tuner.clock = lambda call, inner: (call(), 1e-3)[1]
    rows = tune([Workload("made_up", "step", lambda: Prepared(step, lambda error: error))], tuner)
    assert [row.state for row in rows] == ["tuned"] and rows[0].key == ("made_up", "float32", "backward")
    assert set(asked) == {threading.get_ident()}


# --- workloads


def test_workloads_are_the_suite_or_shapes_in_words() -> None:
    suite = workloads()
    assert len({call.name for call in suite}) == len(suite)
    assert {call.op for call in suite} == set(workloads.__globals__["OPS"])
    named = workloads(["conv_relu_pool2d"], ["mnist1,res9"], ["float32"])
    assert [call.name for call in named][:2] == [
        "conv forward mnist1 float32 channels_last",
        "conv forward mnist1 float32 contiguous",
    ]
    assert [call.name for call in named if "forward mnist1" in call.name][2:] == [
        "conv forward mnist1 float32 channels_last tf32",
        "conv forward mnist1 float32 contiguous tf32",
    ]
    given = workloads(["linear_relu_nap"], ["512x784 -> 256"], ["float16"])
    assert [call.name for call in given] == ["linear nap 512x784 -> 256 float16"]
    for wrong, message in [
        ({"ops": ["conv2d"]}, "unknown op conv2d"),
        ({"dtypes": ["int8"]}, "unknown dtype int8"),
        ({"shapes": ["mnist9"]}, "unknown shape mnist9"),
        ({"shapes": ["8x8 -> x"]}, "expected a shape such as"),
        ({"ops": ["nap_pack"], "shapes": ["mnist1"]}, "no call of nap_pack has shape mnist1$"),
        ({"ops": ["nap_topk"], "dtypes": ["float16"]}, "no call of nap_topk has dtype float16$"),
        (
            {"shapes": ["res9"], "dtypes": ["bfloat16"]},
            "no call of any op has shape res9 and dtype bfloat16$",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            workloads(**wrong)


def test_tf32_is_allowed_within_its_call_only() -> None:
    switches = torch.backends.cudnn, torch.backends.cuda.matmul
    assert [each.allow_tf32 for each in switches] == [False, False]
    call = workloads.__globals__["_with_tf32"](lambda: [each.allow_tf32 for each in switches])
    assert call() == [True, True]
    assert [each.allow_tf32 for each in switches] == [False, False]


def test_every_shape_in_the_suites_reads_back_from_words() -> None:
    from zbkernels.benchmarking.cases import select

    for case in select(device="cuda"):
        if case.op not in workloads.__globals__["OPS"]:
            continue
        again = next(each for each in cases_of(case.shape, case.dtype) if each.mode == case.mode)
        needs = {"needs_x": case.needs_x} if hasattr(case, "needs_x") else {}
        same = dataclasses.replace(again, name=case.name, **needs)
        if getattr(case, "pool", "") == "none":
            same = dataclasses.replace(same, pool_kernel=case.pool_kernel, pool_stride=case.pool_stride)
        assert same == case


# --- the command


def zb(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["tune", *arguments], env={"COLUMNS": "200"})


def test_without_a_card_it_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = zb()
    assert result.exit_code == 1
    assert "sees no CUDA device" in result.output and "Traceback" not in result.output


@pytest.fixture
def op(monkeypatch: pytest.MonkeyPatch) -> MadeUpOp:
    """A card that is made up, with one call to tune on it."""
    made = MadeUpOp({SMALL: 3e-3, LARGE: 1e-3, HUGE: 2e-3}, {HUGE: RuntimeError("out of resource")})
    machine = command.Machine("cpu", CARD, made.clock, lambda: None)
    monkeypatch.setattr(command, "find_machine", lambda: machine)
    monkeypatch.setattr(command, "workloads", lambda *given: [made.workload()])
    monkeypatch.setattr("zbkernels.cli._console", Console(width=200))
    return made


def test_tune_list_tune_again_and_clear(op: MadeUpOp, own_cache: Path) -> None:
    assert "nothing is tuned" in zb("--list").output
    dry = zb("--dry-run")
    assert dry.exit_code == 0 and "would tune" in dry.output and "3 candidates" in dry.output
    assert not own_cache.exists()
    result = zb()
    assert result.exit_code == 0, result.output
    assert "2.00x" in result.output and "BLOCK_M=64 warps=4 stages=2" in result.output
    assert "left out: made up: BLOCK_M=256 warps=4 stages=2: RuntimeError: out of resource" in result.output
    assert "2 tuned" in result.output
    listed = zb("--list").output
    assert "made-up-card-9.0-triton-3.7.1.json" in listed and "2.00x" in listed
    assert "2 cached" in zb().output
    assert "2 tuned" in zb("--force").output
    assert "deleted" in zb("--clear").output
    assert "nothing is tuned" in zb("--list").output


def test_the_commands_in_the_documentation_name_what_there_is(op: MadeUpOp, monkeypatch: Any) -> None:
    guide = (Path(__file__).resolve().parents[1] / "docs/tuning.md").read_text()
    lines = [line.partition("  ")[0] for line in guide.splitlines() if line.startswith("zb tune")]
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(command, "workloads", lambda *given: asked.append(workloads(*given[:3])) or [])
    for line in lines:
        for part in line.split(" | "):
            result = zb(*shlex.split(part.removeprefix("zb tune")))
            assert result.exit_code == 0, (part, result.output)
    assert len(lines) > 5 and len(asked) > 4


def test_a_call_with_nothing_to_choose_is_said_to_be_one(op: MadeUpOp, monkeypatch: Any) -> None:
    fixed = Workload("nap_pack", "pack", lambda: Prepared(lambda: None, lambda result: 0.0))
    monkeypatch.setattr(command, "workloads", lambda *given: [fixed])
    result = zb("nap_pack")
    assert result.exit_code == 0 and "1 nothing to choose" in result.output


def test_an_interrupt_keeps_what_was_finished(op: MadeUpOp) -> None:
    right, seconds = op.clock, []

    def clock(call: Callable[[], object], inner: int) -> float:
        seconds.append(right(call, inner))
        if results.load(CARD):  # the first key is done
            raise KeyboardInterrupt
        return seconds[-1]

    command.find_machine = lambda: command.Machine(
        "cpu", CARD, clock, lambda: None
    )  # the fixture restores it
    result = zb()
    assert result.exit_code == 130
    assert "what was tuned is kept" in result.output and "1 tuned" in result.output
    command.find_machine = lambda: command.Machine("cpu", CARD, right, lambda: None)
    assert "1 cached, 1 tuned" in zb().output


def test_a_cache_that_cannot_be_written_is_said_before_any_work(op: MadeUpOp, own_cache: Path) -> None:
    own_cache.write_text("")
    result = zb()
    assert result.exit_code == 1 and str(own_cache) in result.output and op.calls == 0


def test_a_failed_row_is_exit_status_one(op: MadeUpOp) -> None:
    op.faults[SMALL] = RuntimeError("no")
    assert zb().exit_code == 1


def test_rows_in_words() -> None:
    console = Console(width=200, record=True)
    command.show([Row("made_up", "made up", None, "failed", "MemoryError: too large")], console)
    assert "failed: made up: MemoryError: too large" in console.export_text()
