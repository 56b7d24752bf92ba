"""The command ``zb``. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from zbkernels import completion, stopping
from zbkernels._version import __version__
from zbkernels.cli_errors import Group, SubGroup, one_line_errors, set_debug
from zbkernels.console import Console
from zbkernels.nap import command as nap_command

app = typer.Typer(
    name="zb",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="zbkernels, fast bias-free ReLU networks: experiments, benchmarks, a check of the installation.",
)
_console = Console(emoji=False)

Experiment = Annotated[
    str, typer.Argument(help="An experiment from `zb list`", autocompletion=completion.experiments)
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda[:index]", autocompletion=completion.devices)]


def _seeds(text: str | None) -> tuple[int, ...] | None:
    """Raises typer.BadParameter: a wrong command line."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"expected whole numbers separated by commas, got {text!r}") from None


def _readable_seeds(text: str | None) -> str | None:
    _seeds(text)
    return text


Seeds = Annotated[
    str | None,
    typer.Option(help="Comma-separated seeds instead of the preset's: 0,1,2", callback=_readable_seeds),
]
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
    name: Experiment,
    preset: Annotated[
        str,
        typer.Option(help="smoke, quick, paper, or another in `zb list`", autocompletion=completion.presets),
    ] = "quick",
    device: Device = "auto",
    data: Data = None,
    out: Annotated[Path, typer.Option(help="Results go to OUT/NAME-PRESET")] = Path("out"),
    seeds: Seeds = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="Only this kind of network (may be repeated)", autocompletion=completion.variants),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            help="Zero-bias networks on fused or plain layers",
            autocompletion=completion.choices("fused", "plain"),
        ),
    ] = "fused",
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            help="zero-image: weights of a torchvision or timm network, as PATH, torchvision:NAME=PATH or "
            "timm:NAME=PATH (may be repeated)"
        ),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            help="float32, or bfloat16 to train Table 1's rows by autocast",
            autocompletion=completion.choices("float32", "bfloat16"),
        ),
    ] = "float32",
    engine: Annotated[
        str,
        typer.Option(
            help="in-process, or ray: a sweep's runs go to Ray's workers",
            autocompletion=completion.choices("in-process", "ray"),
        ),
    ] = "in-process",
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster (default: Ray on this machine, a worker a core)")
    ] = None,
    time_epochs: Annotated[bool, typer.Option("--time-epochs", help="Also do what `zb time` does")] = False,
    force: Annotated[bool, typer.Option("--force", help="Start over, whatever is there")] = False,
) -> None:
    """Run an experiment. A run that was cut off goes on; a finished one is shown, not repeated."""
    with one_line_errors("stopped; finished epochs are kept, and the same command goes on from there"):
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
    name: Experiment,
    preset: Annotated[
        str, typer.Option(help="smoke, quick or paper", autocompletion=completion.presets)
    ] = "paper",
    device: Device = "auto",
    data: Data = None,
    out: Annotated[Path, typer.Option(help="Keeps OUT/NAME-PRESET/timing.json")] = Path("out"),
    seed: Annotated[int, typer.Option(min=0, help="Of the weights and the order of images")] = 0,
) -> None:
    """Time two training epochs of an experiment's zero-bias network on fused, plain and compiled layers, in turn."""
    with one_line_errors():
        from zbkernels.experiments import epoch_timing, runner

        timing = runner.time_epochs_of(name, preset=preset, device=device, data=data, out=out, seed=seed)
        print(epoch_timing.table(timing))


@app.command()
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Runs' folders, or folders that hold some at any depth", metavar="DIR..."),
    ],
    out: Annotated[Path | None, typer.Option(help="The page [report.html in the first DIR]")] = None,
    redraw: Annotated[
        bool,
        typer.Option(help="First write each finished run's table.md and figure.png again from its metrics"),
    ] = True,
) -> None:
    """Make one HTML page of all runs below folders, with their figures and verdicts. Prints a single run's table.

    Runs that are not finished, and damaged ones, are on the page, too; for damaged ones the exit code is 1.
    """
    with one_line_errors():
        from zbkernels.reporting import command

        command.run(folders, out, redraw)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the figure")] = Path("out/demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of both networks")] = 0,
) -> None:
    """Train two small networks on scikit-learn's digits and show what dropping the bias brings."""
    with one_line_errors():
        from zbkernels.demo import main as run_demo

        run_demo(out, seed, _console)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def bench(context: typer.Context) -> None:
    """Time the ops against their competitors; the options are those of `zb bench --help`."""
    with one_line_errors():
        from zbkernels.benchmarking.command import main as run_bench

        raise typer.Exit(run_bench(context.args))


@app.command()
def tune(
    ops: Annotated[
        list[str] | None,
        typer.Argument(help="Public ops (default: all)", metavar="[OP]...", autocompletion=completion.ops),
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
    with one_line_errors("stopped; what was tuned is kept, and the same command goes on from there"):
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
            "module:function; or one of the package's networks, untrained: resnet9, ...",
            autocompletion=completion.architectures,
        ),
    ],
    images: Annotated[
        str | None,
        typer.Option(
            help="As of `zb nap`: mnist, digits:train, a .npy, .png ... (default: random)",
            autocompletion=completion.image_sets,
        ),
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
        str | None,
        typer.Option(
            help="Of weights without a settings.json: fcn-mnist, ...",
            autocompletion=completion.architectures,
        ),
    ] = None,
    data: Data = None,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables")] = False,
) -> None:
    """Is f(s x) = s f(x)? Names the first operation that breaks it.

    Exit code 0: predictions are scalar invariant; 1: they are not; 2: it cannot be told (the message says why).
    """
    with one_line_errors(code=2):
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


app.add_typer(nap_command.app, name="nap", cls=SubGroup)


@app.command()
def doctor() -> None:
    """Show versions, libraries, devices, which kernel runs for each op, and the mend for each fault."""
    with one_line_errors():
        from zbkernels.doctor import main as run_doctor

        raise typer.Exit(run_doctor())


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit"),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the trace of an error, too")] = False,
) -> None:
    del version
    set_debug(debug)


def _show(folder: Path) -> None:
    """A run's table as text: it stays readable when it is piped into a file."""
    from zbkernels.distributed import speaks

    if not speaks():
        return
    print((folder / "table.md").read_text(encoding="utf-8"))
    print(f"{folder / 'table.md'}  {folder / 'figure.png'}")


def main() -> None:
    """Entry point of the console script."""
    stopping.heed_sigterm()
    try:
        sys.exit(app())
    except KeyboardInterrupt as stop:  # before a command began, or after it ended
        print("zb: stopped", file=sys.stderr)
        sys.exit(stopping.exit_code(stop))
