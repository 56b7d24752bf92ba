"""The command ``zb``. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console
from rich.markup import escape

from zbkernels import stopping
from zbkernels._version import __version__
from zbkernels.nap import command as nap_command


class _Stoppable(typer.core.TyperGroup):
    """Ctrl-C and SIGTERM end any command with one line, while it imports what it needs, too."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            _fail("stopped", stopping.exit_code(stop))


app = typer.Typer(
    name="zb",
    cls=_Stoppable,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="zbkernels, fast bias-free ReLU networks: experiments, benchmarks, a check of the installation.",
)
_console = Console(emoji=False)
_errors = Console(stderr=True, emoji=False)

Seeds = Annotated[str | None, typer.Option(help="Comma-separated seeds instead of the preset's: 0,1,2")]
Data = Annotated[
    Path | None, typer.Option(help="Folder of the image sets, in torchvision's layout [ZBKERNELS_DATA]")
]


@app.command("list")
def list_experiments() -> None:
    """List the experiments with their presets."""
    from rich.table import Table

    from zbkernels.experiments import EXPERIMENTS, get

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("experiment", "preset", "what it takes"):
        table.add_column(column)
    for name in EXPERIMENTS:
        experiment = get(name)
        table.add_row(f"[bold]{name}[/]", "", escape(experiment.title))
        for preset, settings in experiment.presets.items():
            table.add_row("", preset, escape(settings.summary))
    _console.print(table)


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="An experiment from `zb list`")],
    preset: Annotated[str, typer.Option(help="smoke, quick, paper, or another in `zb list`")] = "quick",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda[:index]")] = "auto",
    data: Data = None,
    out: Annotated[Path, typer.Option(help="Results go to OUT/NAME-PRESET")] = Path("out"),
    seeds: Seeds = None,
    variant: Annotated[
        list[str] | None, typer.Option(help="Only this kind of network (may be repeated)")
    ] = None,
    form: Annotated[str, typer.Option(help="Zero-bias networks on fused or plain layers")] = "fused",
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            help="zero-image: weights of a torchvision or timm network, as PATH, torchvision:NAME=PATH or "
            "timm:NAME=PATH (may be repeated)"
        ),
    ] = None,
    precision: Annotated[
        str, typer.Option(help="float32, or bfloat16 to train Table 1's rows by autocast")
    ] = "float32",
    engine: Annotated[
        str, typer.Option(help="in-process, or ray: a sweep's runs go to Ray's workers")
    ] = "in-process",
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster (default: Ray on this machine, a worker a core)")
    ] = None,
    time_epochs: Annotated[bool, typer.Option("--time-epochs", help="Also do what `zb time` does")] = False,
    force: Annotated[bool, typer.Option("--force", help="Start over, whatever is there")] = False,
) -> None:
    """Run an experiment. A run that was cut off goes on; a finished one is shown, not repeated."""
    with _one_line_errors("stopped; finished epochs are kept, and the same command goes on from there"):
        from zbkernels.experiments import runner

        folder = runner.run(
            name,
            preset=preset,
            device=device,
            data=data,
            out=out,
            seeds=_seeds(seeds),
            variants=tuple(variant) if variant else None,
            form=form,
            checkpoints=tuple(checkpoint or ()),
            precision=precision,
            engine=engine,
            address=address,
            time_epochs=time_epochs,
            force=force,
        )
        _show(folder)


@app.command("time")
def time_epochs(
    name: Annotated[str, typer.Argument(help="An experiment from `zb list`")],
    preset: Annotated[str, typer.Option(help="smoke, quick or paper")] = "paper",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda[:index]")] = "auto",
    data: Data = None,
    out: Annotated[Path, typer.Option(help="Keeps OUT/NAME-PRESET/timing.json")] = Path("out"),
    seed: Annotated[int, typer.Option(min=0, help="Of the weights and the order of images")] = 0,
) -> None:
    """Time two training epochs of an experiment's zero-bias network on fused, plain and compiled layers, in turn."""
    with _one_line_errors():
        from zbkernels.experiments import epoch_timing, runner

        timing = runner.time_epochs_of(name, preset=preset, device=device, data=data, out=out, seed=seed)
        print(epoch_timing.table(timing))


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="A run's folder, or one that holds several")]) -> None:
    """Write a run's table and figure again from its metrics, and print the table."""
    with _one_line_errors():
        from zbkernels.report import report as rewrite

        for path, _ in rewrite(folder):
            _show(path)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the figure")] = Path("out/demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of both networks")] = 0,
) -> None:
    """Train two small networks on scikit-learn's digits and show what dropping the bias brings."""
    with _one_line_errors():
        from zbkernels.demo import main as run_demo

        run_demo(out, seed, _console)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def bench(context: typer.Context) -> None:
    """Time the ops against their competitors; the options are those of `zb bench --help`."""
    with _one_line_errors():
        from zbkernels.benchmarking.command import main as run_bench

        raise typer.Exit(run_bench(context.args))


@app.command()
def tune(
    ops: Annotated[
        list[str] | None, typer.Argument(help="Public ops (default: all)", metavar="[OP]...")
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            help="suite, rows of `zb bench` by name (mnist1,res9), or a shape in words, such as "
            "'128x64x32x32 -> 128, 3x3 pad 1, max 2' (may be repeated)"
        ),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="float32, float16, ... (may be repeated)")] = None,
    budget: Annotated[
        float | None, typer.Option(min=0, help="Seconds; what they do not reach is said")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be tuned, run no kernel")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Tune again what is in the cache")] = False,
    show: Annotated[bool, typer.Option("--list", help="Show what is in the cache")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Empty the cache")] = False,
) -> None:
    """Measure which configuration of each Triton kernel is the fastest on this GPU, and keep it for later calls.

    Results go to ZBKERNELS_CACHE_DIR, or zbkernels in the user's cache folder. What is there already is not tuned
    again, and a run that is stopped keeps what it finished.
    """
    with _one_line_errors("stopped; what was tuned is kept, and the same command goes on from there"):
        from zbkernels.tuning import command

        if show or clear:
            (command.clear_cache if clear else command.show_cache)(_console)
            return
        rows = command.run(
            ops or (),
            shapes=shapes or (),
            dtypes=dtype or (),
            budget=float("inf") if budget is None else budget,
            dry_run=dry_run,
            force=force,
            console=_console,
        )
        if any(row.state == "failed" for row in rows):
            raise typer.Exit(1)


@app.command("check-invariance")
def check_invariance(
    model: Annotated[
        str,
        typer.Argument(
            help="As of `zb nap`: a trained network's folder (OUT/RUN/units/NAME), a .safetensors or .pt2 file, "
            "module:function; or one of the package's networks, untrained: resnet9, ..."
        ),
    ],
    images: Annotated[
        str | None,
        typer.Option(help="As of `zb nap`: mnist, digits:train, a .npy, .png ... (default: random)"),
    ] = None,
    shape: Annotated[str | None, typer.Option(help="Of the random images: 3,32,32")] = None,
    count: Annotated[int, typer.Option(min=1, help="How many images")] = 4,
    bias: Annotated[
        bool | None,
        typer.Option("--bias/--no-bias", help="Of an untrained network (default: without, where it can be)"),
    ] = None,
    scalars: Annotated[
        str | None, typer.Option(help="1,0.1,0.0001 (default: Table 1's, and 2, 10, 100)")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Also run it in float16, bfloat16, ..., to see what rounding does")
    ] = None,
    operations: Annotated[
        bool, typer.Option("--operations", help="Show all operations with degrees")
    ] = False,
    architecture: Annotated[
        str | None, typer.Option(help="Of weights without a settings.json: fcn-mnist, ...")
    ] = None,
    data: Data = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda[:index]")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables")] = False,
) -> None:
    """Is f(s x) = s f(x)? Names the first operation that breaks it.

    Exit code 0: predictions are scalar invariant; 1: they are not; 2: it cannot be told (the message says why).
    """
    with _one_line_errors(code=2):
        from zbkernels.invariance import command

        invariant = command.run(
            model,
            images=images,
            shape=shape,
            count=count,
            architecture=architecture,
            bias=bias,
            scalars=scalars,
            dtype=dtype,
            operations=operations,
            data=data,
            device=device,
            as_json=as_json,
        )
    raise typer.Exit(0 if invariant else 1)


class _OneLineErrors(typer.core.TyperGroup):
    """A group of commands that fail as those here do."""

    def invoke(self, ctx: Any) -> Any:
        with _one_line_errors("stopped; what was recorded is kept, and the same command goes on from there"):
            return super().invoke(ctx)


app.add_typer(nap_command.app, name="nap", cls=_OneLineErrors)


@app.command()
def doctor() -> None:
    """Show versions, libraries, devices, which kernel runs for each op, and the mend for each fault."""
    with _one_line_errors():
        from zbkernels.doctor import main as run_doctor

        raise typer.Exit(run_doctor())


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    del version


def _show(folder: Path) -> None:
    """A run's table as text: it stays readable when it is piped into a file."""
    from zbkernels.distributed import speaks

    if not speaks():
        return
    print((folder / "table.md").read_text(encoding="utf-8"))
    print(f"{folder / 'table.md'}  {folder / 'figure.png'}")


def _seeds(text: str | None) -> tuple[int, ...] | None:
    from zbkernels.experiments import ExperimentError

    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ExperimentError(f"--seeds: expected whole numbers separated by commas, got {text!r}") from error


@contextmanager
def _one_line_errors(when_interrupted: str = "stopped", code: int = 1) -> Iterator[None]:
    """Turn errors that are the user's to mend into one line and ``code``; other faults show as they are."""
    from zbkernels.checkpoint import CheckpointError
    from zbkernels.data import DataError
    from zbkernels.distributed import DistributedError
    from zbkernels.experiments import ExperimentError
    from zbkernels.nap import RecordingError
    from zbkernels.nap.sources import NapError
    from zbkernels.report import ReportError
    from zbkernels.train import TrainingError
    from zbkernels.tuning import TuningError

    try:
        yield
    except (
        DataError,
        ExperimentError,
        ReportError,
        TrainingError,
        CheckpointError,
        DistributedError,
        TuningError,
        RecordingError,
        NapError,
    ) as error:
        _fail(str(error), code)
    except ModuleNotFoundError as error:
        extra = (
            "bench"
            if (error.name or "") in {"onnxruntime", "openvino", "pytest_benchmark"}
            else "experiments"
        )
        if (error.name or "").startswith("zbkernels"):
            raise
        _fail(f"{error.name} is not installed: pip install 'zbkernels[{extra}]'", code)
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - lives until the interpreter's last flush
        raise typer.Exit(141) from None
    except OSError as error:
        _fail(str(error), code)
    except KeyboardInterrupt as stop:
        _fail(when_interrupted, stopping.exit_code(stop))


def _fail(message: str, code: int) -> None:
    _errors.print(f"[bold red]zb:[/] {escape(message)}", highlight=False, soft_wrap=True)
    raise typer.Exit(code)


def main() -> None:
    """Entry point of the console script."""
    stopping.heed_sigterm()
    try:
        sys.exit(app())
    except KeyboardInterrupt as stop:  # before a command began, or after it ended
        _errors.print("[bold red]zb:[/] stopped", highlight=False)
        sys.exit(stopping.exit_code(stop))
