"""The pages that have no test of their own: their code, run as a reader would, and their commands, which exist.

Every page of docs with Python code is run by some test; one that is new is named here or in a test of its own.
"""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path

import pytest
import torch
import typer.main
from idx_files import write_idx_set

from zbkernels.cli import app
from zbkernels.experiments import EXPERIMENTS, get

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = (
    "index.md",
    "installation.md",
    "which-kernel.md",
    "measuring.md",
    "composite.md",
    "papers/exchangeability.md",
    "papers/linearized-difference-networks.md",
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not DOCS.exists(), reason="an installed package has no docs"),
]


def blocks(page: Path, kind: str) -> list[str]:
    return [text for found, text in BLOCK.findall(page.read_text(encoding="utf-8")) if found == kind]


def given() -> dict[str, object]:
    """What a paper's page takes for granted: images, a layer, an ensemble's weights."""
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    weights = {
        f"w{i}": normal(out, into) for i, (out, into) in enumerate([(16, 36), (16, 16), (16, 16), (4, 16)], 1)
    }
    return {
        "g": g,
        "images": normal(60, 36).abs(),
        "layer": torch.nn.Linear(36, 16, bias=False, dtype=torch.float64),
        "angles": torch.linspace(0, 3, 5, dtype=torch.float64),
        "weights": normal(3, 6, 36),
        "pixel_variance": normal(36).square(),
        "c": torch.linspace(-1, 1, 5, dtype=torch.float64),
        **{name: normal(5, 36) for name in ("x", "y", "x1", "x2")},
        "labels": torch.arange(5),
        "model": torch.nn.Sequential(
            torch.nn.Linear(36, 8), torch.nn.ReLU(), torch.nn.Linear(8, 36)
        ).double(),
        "torch": torch,
        "math": math,
        **weights,
    }


@pytest.mark.parametrize("name", PAGES)
def test_the_page_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = blocks(DOCS / name, "python")
    assert found
    if name == "composite.md":
        write_idx_set(tmp_path, "MNIST")
        write_idx_set(tmp_path, "FashionMNIST")
        found = [text.replace("path/to/data", str(tmp_path)) for text in found]
    state = torch.get_rng_state()
    names = given() if name.startswith("papers/") else {}
    try:
        for text in found:
            exec(compile(text, name, "exec"), names)
    finally:
        torch.set_rng_state(state)
    printed = capsys.readouterr().out
    if name == "which-kernel.md":
        shown = DOCS.joinpath(name).read_text(encoding="utf-8")
        for line in printed.splitlines():
            if "the tensors are on cpu" in line or "a kernel above comes first" in line:
                assert line in shown
        assert "can't run this call" in printed
    if name == "measuring.md":
        assert re.search(r"[\d.]+ times as fast, by ", printed)


def test_every_page_with_code_is_run_by_a_test() -> None:
    tests = {path: path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")}
    for page in [*DOCS.glob("*.md"), *DOCS.glob("papers/*.md")]:
        if blocks(page, "python"):
            name = page.relative_to(DOCS).as_posix()
            assert any(f'"{name}"' in text for text in tests.values()), f"{page.name}: no test runs its code"


@pytest.mark.parametrize(
    "page", ["installation.md", "measuring.md", "command-line.md", "tuning.md", "results/README.md"]
)
def test_commands_in_pages_exist_with_their_options(page: str) -> None:
    program = typer.main.get_command(app)
    text = (DOCS / page).read_text(encoding="utf-8")
    lines = [
        line for block in blocks(DOCS / page, "") for line in block.splitlines() if line.startswith("zb ")
    ]
    lines += re.findall(r"`(zb [^`]+)`", text)
    assert lines
    for line in lines:
        words = shlex.split(re.split(r"  +|…|\|", line)[0])[1:]
        if words[0].startswith("-"):
            assert words[0] in {"--help"} | {option for each in program.params for option in each.opts}, line
            continue
        if words[0].isupper():
            continue
        assert words[0] in program.commands, line
        if words[0] == "bench":
            continue
        command = program.commands[words[0]]
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {
            "--help"
        }
        options = [word.split("=")[0] for word in words if word.startswith("--")]
        assert set(options) <= known, line
        if words[0] in ("run", "time") and words[1:] and not words[1].isupper():
            assert words[1] in EXPERIMENTS, line
            if "--preset" in words:
                assert words[words.index("--preset") + 1] in get(words[1]).presets, line
