"""How ``zb`` fails: one line on stderr that says the mend, a fitting exit code, and the trace with ``zb --debug``.

| exit code | |
| --- | --- |
| 1 | what was asked for cannot be done: missing data, a full disk, a damaged file, a wrong name |
| 2 | the command line is wrong; of ``zb check-invariance`` also: it cannot be told |
| 70 | a fault of this package |
| 130 | stopped by Ctrl-C |
| 141 | the reader of the output has gone |
| 143 | stopped by SIGTERM |
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
import typer.core
from rich.markup import escape

from zbkernels import stopping
from zbkernels.console import Console

USAGE, FAULT, BROKEN_PIPE = 2, 70, 141
_BENCH = {"onnxruntime", "openvino", "pytest_benchmark", "faiss", "pykeops"}
_MENDS = {
    errno.ENOSPC: "free some space, or choose another --out",
    errno.EDQUOT: "free some of your quota, or choose another --out",
    errno.EROFS: "choose an --out that can be written",
    errno.EACCES: "change its permissions, or choose another --out or --data",
    errno.EPERM: "change its permissions, or choose another --out or --data",
    errno.ENOTDIR: "a file stands where a folder is needed; choose another path",
    errno.EEXIST: "a file stands where a folder is needed; choose another path",
    errno.EISDIR: "a folder stands where a file is needed; choose another path",
    errno.ENOENT: "check the path",
}
_errors = Console(stderr=True, emoji=False)
_debug = False


def set_debug(wanted: bool) -> None:
    """Whether errors show their trace above the line."""
    global _debug
    _debug = wanted


def fail(message: str, code: int) -> None:
    """Print ``message`` as one line and end the command with ``code``."""
    if _debug and sys.exc_info()[0] is not None:
        traceback.print_exc()
    line = " ".join(message.split())
    _errors.print(f"[bold red]zb:[/] {escape(line)}", highlight=False, soft_wrap=True)
    raise typer.Exit(code)


@contextmanager
def one_line_errors(when_interrupted: str = "stopped", code: int = 1) -> Iterator[None]:
    """Turn what goes wrong within into one line; ``code`` is that of errors which are the user's to mend."""
    try:
        yield
    except _not_ours():
        raise
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.startswith("zbkernels"):
            _fault(error)
        extra = "bench" if missing in _BENCH else "ray" if missing == "ray" else "experiments"
        fail(f"{missing} is not installed: pip install 'zbkernels[{extra}]'", code)
    except BrokenPipeError:
        _reader_gone()
    except SystemExit as ended:  # of typer's own console, which shows the help
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        _reader_gone()
    except KeyboardInterrupt as stop:
        fail(when_interrupted, stopping.exit_code(stop))
    except typer.Abort:
        fail(when_interrupted, stopping.INTERRUPTED)
    except MemoryError as error:
        fail(
            f"out of memory{f' ({error})' if str(error) else ''}; a smaller batch or preset needs less", code
        )
    except Exception as error:
        if isinstance(error, _mendable()):
            fail(str(error), code)
        if isinstance(
            error, OSError
        ):  # after the mendable ones: some are OSErrors with a message of their own
            fail(os_error(error), code)
        if isinstance(error, RuntimeError) and "memory" in str(error) and "alloc" in str(error).lower():
            fail(f"out of memory ({str(error).splitlines()[0]}); a smaller batch or preset needs less", code)
        _fault(error)


def _reader_gone() -> None:
    """The reader of our output, such as `head`, has seen enough."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - lives until the interpreter's last flush
    raise typer.Exit(BROKEN_PIPE) from None


def os_error(error: OSError) -> str:
    """A system's error as the file, what is wrong with it, and the mend."""
    if error.errno is None or error.strerror is None:
        return str(error)
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    mend = _MENDS.get(error.errno)
    return ": ".join([*names[:1], error.strerror]) + (f"; {mend}" if mend else "")


class Group(typer.core.TyperGroup):
    """The program: a wrong command line, and whatever no command caught, is one line too."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        set_debug(False)
        try:
            with one_line_errors():
                try:
                    code = super().main(
                        args=args,
                        prog_name=prog_name,
                        complete_var=complete_var,
                        standalone_mode=False,
                        windows_expand_args=windows_expand_args,
                        **extra,
                    )
                except _usage_errors() as error:
                    code = _say_usage(error)
        except typer.Exit as ended:
            code = ended.exit_code
        if not standalone_mode:
            return code
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        with one_line_errors():
            return super().invoke(ctx)


class SubGroup(typer.core.TyperGroup):
    """A group of commands that can be taken up again where they were stopped."""

    def invoke(self, ctx: Any) -> Any:
        with one_line_errors("stopped; what was recorded is kept, and the same command goes on from there"):
            return super().invoke(ctx)


def _fault(error: BaseException) -> None:
    ours = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(Path(__file__).parent)
    ]
    where = f" in {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    said = next(iter(str(error).splitlines()), "")
    fail(
        f"{type(error).__name__}{where}: {said} (a fault of zbkernels; `zb --debug ...` shows the trace)",
        FAULT,
    )


def _say_usage(error: Any) -> int:
    """Print a wrong command line's error; returns its exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return USAGE
    context = getattr(error, "ctx", None)
    program = context.command_path if context is not None else "zb"
    said = error.format_message().rstrip(". ")
    if not said[-1:].isalnum() and said[-1:] in "?!":
        fail(f"{said} See `{program} --help`", error.exit_code)
    fail(f"{said}; see `{program} --help`", error.exit_code)
    return error.exit_code


def _not_ours() -> tuple[type[BaseException], ...]:
    """What is no error of a command: its end, and the wrong command lines that the program itself says."""
    return (typer.Exit, *_usage_errors())


def _usage_errors() -> tuple[type[BaseException], ...]:
    # typer carries a click of its own in newer releases: the classes are found through the one that both have
    return (next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"),)


def _mendable() -> tuple[type[BaseException], ...]:
    """Errors whose message is one line for the user."""
    from zbkernels.checkpoint import CheckpointError
    from zbkernels.data import DataError
    from zbkernels.distributed import DistributedError
    from zbkernels.experiments import ExperimentError
    from zbkernels.nap import RecordingError
    from zbkernels.nap.sources import NapError
    from zbkernels.report import ReportError
    from zbkernels.train import TrainingError
    from zbkernels.tuning import TuningError

    return (
        DataError,
        ExperimentError,
        ReportError,
        TrainingError,
        CheckpointError,
        DistributedError,
        TuningError,
        RecordingError,
        NapError,
    )
