"""What the shell completes after `zb`, asked for as the shells ask."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from zbkernels.cli import app
from zbkernels.experiments import EXPERIMENTS, get
from zbkernels.models import ARCHITECTURES
from zbkernels.tuning.workloads import OPS

HOW = {
    "bash": lambda line, words: {"COMP_WORDS": line, "COMP_CWORD": str(words)},
    "zsh": lambda line, words: {"_TYPER_COMPLETE_ARGS": line},
    "fish": lambda line, words: {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
}


def completions(line: str, shell: str = "bash") -> list[str]:
    words = len(shlex.split(line)) - (not line.endswith(" "))
    environment = {"_ZB_COMPLETE": f"complete_{shell}", **HOW[shell](line, words)}
    result = CliRunner().invoke(app, [], env=environment, prog_name="zb")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output.split()


@pytest.mark.parametrize("shell", list(HOW))
def test_experiments_complete_in_every_shell(shell: str) -> None:
    shown = re.findall(r"[\w-]+", " ".join(completions("zb run table1-", shell)))
    for name in EXPERIMENTS:
        assert (name in shown) == name.startswith("table1-"), (name, shown)


def test_commands_and_options_complete() -> None:
    assert completions("zb rep") == ["report"]
    assert "--preset" in completions("zb run --p")
    assert "certify" in completions("zb nap c")


def test_presets_and_variants_are_those_of_the_experiment_on_the_line() -> None:
    assert completions("zb run table1-mnist --preset ") == list(get("table1-mnist").presets)
    assert completions("zb time table1-fashion --preset p") == ["paper"]
    assert completions("zb run ldnet-error --preset w") == ["wide"]
    assert set(completions("zb run --preset ")) >= {"smoke", "quick", "paper", "reduced", "wide"}
    assert completions("zb run table1-mnist --variant w") == list(get("table1-mnist").variants)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("zb check-invariance resnet18", [name for name in ARCHITECTURES if name.startswith("resnet18")]),
        ("zb nap record model digits --architecture cnn", ["cnn-fashion"]),
        ("zb tune conv_", [name for name in OPS if name.startswith("conv_")]),
        ("zb run table1-mnist --device ", ["auto", "cpu", "cuda"]),
        ("zb run table1-mnist --form ", ["fused", "plain"]),
        ("zb run table1-mnist --engine ", ["in-process", "ray"]),
        ("zb run table1-mnist --precision b", ["bfloat16"]),
        ("zb nap record model digits --units w", ["winner"]),
        ("zb check-invariance resnet9 --images digits", ["digits", "digits:train", "digits:test"]),
    ],
)
def test_names_complete(line: str, wanted: list[str]) -> None:
    shown = completions(line)
    assert shown[: len(wanted)] == wanted, shown
    assert len(shown) == len(wanted) or "--device" in line  # a card has its own names besides


def test_the_script_is_shown() -> None:
    # The variable, else the shell that runs the tests, says which; it is read when the program is put together.
    named = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [
        sys.executable,
        "-c",
        "from zbkernels.cli import app; app(prog_name='zb')",
        "--show-completion",
        "zsh",
    ]
    shown = subprocess.run(command, env=named, capture_output=True, text=True, check=True).stdout
    assert "#compdef zb" in shown and "_ZB_COMPLETE=complete_zsh" in shown
