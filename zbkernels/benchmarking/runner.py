"""Run problems: check, time interleaved, and make rows of a report."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from zbkernels.benchmarking.cases import Case, ConvCase, DualCase, LinearCase, ModelCase, PatternCase
from zbkernels.benchmarking.ceilings import Ceilings
from zbkernels.benchmarking.check import Wrong, tolerance
from zbkernels.benchmarking.contestants import Absent, torch_threads
from zbkernels.benchmarking.timing import CudaClock, Times, best, interleave
from zbkernels.benchmarking.trained_kernel_cases import AngleCase, IterationCase


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a run is timed.

    ``threads`` 0 keeps torch's own count. ``rounds`` samples of each contestant, ``pause`` seconds before
    each sample (see ``timing.py``), ``min_sample`` seconds at least in one sample. Contestants named in
    ``without`` sit out.
    """

    device: str = "cpu"
    threads: int = 0
    rounds: int = 9
    pause: float = 0.2
    min_sample: float = 0.02
    ceiling_seconds: float = 1.5
    without: tuple[str, ...] = ()

    @classmethod
    def of(cls, *, quick: bool = False, device: str = "cpu", threads: int = 0, rounds: int = 0) -> Settings:
        """The usual settings, or those of ``--quick``; ``rounds`` overrides. A GPU needs no pause."""
        if device.startswith("cuda"):
            return cls(device, threads, rounds or (5 if quick else 20), 0.0, 0.003, 0.5)
        if quick:
            return cls(device, threads, rounds or 3, 0.05, 0.01, 0.5)
        return cls(device, threads, rounds or 9)


@dataclasses.dataclass
class Prepared:
    """A problem whose contestants are built, checked and ready to be timed."""

    case: Case
    problem: Any
    calls: dict[str, Callable[[], Any]]
    ours: list[str]
    absent: dict[str, str]
    errors: dict[str, float]
    tolerance: float
    kernels: dict[str, list[str]]  # of each of ours: what ran; in a training step backward as well


def problem_of(case: Case, device: str, threads: int) -> Any:
    """The problem class of a case's suite, made with its inputs and its float64 reference."""
    if isinstance(case, ConvCase):
        from zbkernels.benchmarking.conv import ConvProblem

        return ConvProblem(case, device, threads)
    if isinstance(case, LinearCase):
        from zbkernels.benchmarking.linear import LinearProblem

        return LinearProblem(case, device, threads)
    if isinstance(case, PatternCase):
        from zbkernels.benchmarking.patterns import PatternProblem

        return PatternProblem(case, device, threads)
    if isinstance(case, DualCase):
        from zbkernels.benchmarking.infinite import DualProblem

        return DualProblem(case, device, threads)
    if isinstance(case, AngleCase):
        from zbkernels.benchmarking.trained_kernels import AngleProblem

        return AngleProblem(case, device, threads)
    if isinstance(case, IterationCase):
        from zbkernels.benchmarking.trained_kernels import IterationProblem

        return IterationProblem(case, device, threads)
    if isinstance(case, ModelCase):
        from zbkernels.benchmarking.models import ModelProblem

        return ModelProblem(case, device, threads)
    from zbkernels.benchmarking.nap import NapProblem

    return NapProblem(case, device, threads)


def prepare(case: Case, settings: Settings) -> Prepared:
    """Build every contestant and check its result; call inside :func:`environment`.

    Raises:
        Wrong: one of *ours* is outside the tolerance, or eager torch is (then the reference is at fault).
            A wrong or failing competitor is left out with the reason.
    """
    import torch

    return prepare_problem(
        problem_of(case, settings.device, settings.threads or torch.get_num_threads()), settings.without
    )


def prepare_problem(problem: Any, without: Sequence[str] = ()) -> Prepared:
    """:func:`prepare` of a problem that is made already."""
    case = problem.case
    prepared = Prepared(case, problem, {}, [], {}, {}, 0.0, {})
    documented = problem.documented_error.get(case.dtype, 0.0)
    # Eager torch first: its own error is the yardstick of the others.
    contestants = sorted(problem.contestants(), key=lambda contestant: contestant.name != "eager")
    for contestant in contestants:
        if contestant.name in without:
            prepared.absent[contestant.name] = "left out"
            continue
        try:
            call = contestant.build()
            error = problem.error(contestant.outputs(call()))
            if contestant.name == "eager":
                prepared.tolerance = tolerance(error, documented)
            if error > prepared.tolerance:
                raise Wrong(f"error {error:.2g}, allowed {prepared.tolerance:.2g}")
        except Wrong as fault:
            if contestant.ours or contestant.name == "eager":
                raise Wrong(f"{contestant.name}: {fault}") from fault
            prepared.absent[contestant.name] = f"wrong: {fault}"
            continue
        except Absent as reason:
            prepared.absent[contestant.name] = str(reason)
            continue
        except Exception as failure:
            if contestant.name in ("ours", "eager"):
                raise
            text = str(failure).strip() or type(failure).__name__
            prepared.absent[contestant.name] = f"failed: {text.splitlines()[0][:120]}"
            continue
        prepared.errors[contestant.name] = error
        prepared.calls[contestant.name] = call
        if contestant.ours:
            prepared.ours.append(contestant.name)
            prepared.kernels[contestant.name] = _kernels(call)
    order = [contestant.name for contestant in problem.contestants() if contestant.name in prepared.calls]
    prepared.calls = {name: prepared.calls[name] for name in order}
    return prepared


def _kernels(call: Callable[[], Any]) -> list[str]:
    """Which kernels of this package a call runs; one that runs more than one says so itself."""
    import zbkernels

    if hasattr(call, "kernels"):
        return call.kernels()
    call()
    return [zbkernels.last_kernel()]


def measure(prepared: Prepared, settings: Settings, ceilings: Ceilings) -> dict[str, Any]:
    """Time a prepared problem and return its row (plain types, ready for JSON)."""
    import torch

    from zbkernels.benchmarking.shape_class import class_of

    cuda = settings.device.startswith("cuda")
    times = interleave(
        prepared.calls,
        rounds=settings.rounds,
        pause=settings.pause,
        min_sample=settings.min_sample,
        clock=CudaClock() if cuda else None,
    )
    case = prepared.case
    competitors = [name for name in times if name not in prepared.ours]
    rival = best(times, competitors)
    ours = times["ours"].median
    counted = case.counted_words if isinstance(case, PatternCase) else 0
    floor, bound = ceilings.floor(case.flops, case.min_bytes, case.dtype, counted)
    return {
        "suite": case.suite,
        "op": case.op,
        "shape_class": class_of(case),
        "name": case.name,
        "mode": case.mode,
        "shape": case.shape,
        "dtype": case.dtype,
        "device": settings.device,
        "threads": settings.threads or torch.get_num_threads(),
        "kernel": " / ".join(prepared.kernels["ours"]),
        "kernels": prepared.kernels,
        "times": {name: value.as_dict() for name, value in times.items()},
        "absent": prepared.absent,
        "errors": prepared.errors,
        "tolerance": prepared.tolerance,
        "best_competitor": rival,
        "ratio": times[rival].median / ours if rival else None,
        "ratios": {name: times[name].median / ours for name in competitors},
        "ours": prepared.ours,
        "flops": case.flops,
        "min_bytes": case.min_bytes,
        "counted_words": counted,
        "gflops": case.flops / ours * 1e-9 if case.flops else None,
        "gbytes_per_s": case.min_bytes / ours * 1e-9,
        "of_ceiling": floor / ours,
        "bound": bound,
        "load": os.getloadavg()[0],
    }


def run(
    cases: Sequence[Case],
    settings: Settings,
    *,
    on_row: Callable[[dict[str, Any]], None] = lambda row: None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """All rows; the ceilings are measured before each (on a card: once), and the best hold for all rows.

    Args:
        on_row: called with the report so far after each row (for saving it at once).
        say: called with one line of progress per step.

    Returns:
        The report: see ``bench/README.md`` for its fields.
    """
    from zbkernels.benchmarking import ceilings as ceiling
    from zbkernels.benchmarking import machine

    dtypes = list(dict.fromkeys(case.dtype for case in cases if case.flops))
    with environment(settings):
        say("measuring the ceilings")
        limits = ceiling.measure(dtypes, settings.device, seconds=settings.ceiling_seconds)
        report = machine.describe(settings)
        report["settings"] = dataclasses.asdict(settings)
        report["rows"], report["failed"] = [], []
        for index, case in enumerate(cases):
            title = f"{case.suite} {case.name} {case.mode} {case.dtype}"
            start = time.perf_counter()
            # Many short looks: a ceiling measured in one busy minute would be too low. A card is ours alone.
            if index and not settings.device.startswith("cuda"):
                seconds = settings.ceiling_seconds / 3
                wanted = [case.dtype] if case.flops else []
                limits.merge(ceiling.measure(wanted, settings.device, seconds=seconds))
            try:
                row = measure(prepare(case, settings), settings, limits)
            except Exception as error:  # one bad row must not lose the others; it stands in the report
                report["failed"].append({"row": title, "error": f"{type(error).__name__}: {error}"})
                say(f"[{index + 1}/{len(cases)}] {title}: FAILED: {error}")
            else:
                report["rows"].append(row)
                rival = row["best_competitor"]
                ratio = f"{row['ratio']:.2f}x {rival}" if rival else "no competitor"
                ours = row["times"]["ours"]["median_ms"]
                spent = time.perf_counter() - start
                say(f"[{index + 1}/{len(cases)}] {title}: {ours:.3g} ms, {ratio} ({spent:.0f} s)")
            report["ceilings"] = dataclasses.asdict(limits)
            on_row(report)
    for row in report["rows"]:
        floor, row["bound"] = limits.floor(row["flops"], row["min_bytes"], row["dtype"], row["counted_words"])
        row["of_ceiling"] = floor / (row["times"]["ours"]["median_ms"] * 1e-3)
    report["ceilings"] = dataclasses.asdict(limits)
    on_row(report)
    return report


@contextlib.contextmanager
def environment(settings: Settings) -> Iterator[None]:
    """Threads for torch; on CUDA also cuDNN autotuning (for the competitors) and no TF32 for anyone."""
    import torch

    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = True, False, False
    try:
        with torch_threads(settings.threads):
            yield
    finally:
        cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before


__all__ = ["Prepared", "Settings", "Times", "environment", "measure", "prepare", "run"]
