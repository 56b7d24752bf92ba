"""Table 1 in the paper's layout, the verdicts on every row, and a panel for each, from the metrics alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zbkernels.experiments.table1_claims import kinds_of, pairs_of, verdicts
from zbkernels.experiments.table1_report import colours_of, draw_accuracies, units_of
from zbkernels.report import NOT_TESTABLE, markdown_table, mean, verdict_table

_PAPER_ROWS = {
    "table1-mnist": "MNIST, FCN",
    "table1-fashion": "Fashion-MNIST, CNN",
    "table1-cifar100": "CIFAR-100, ResNet18",
    "table1-imagenet": "ImageNet, ResNet50",
}


def table(metrics: dict[str, Any]) -> str:
    """The table, what is left out, and every claim that could be judged, row by row."""
    rows = [row for row in metrics["rows"] if "left_out" not in row]
    lines = [f"# {metrics['experiment']}, preset {metrics['preset']}\n", _accuracies(metrics, rows)]
    lines += [f"- {_PAPER_ROWS[row['experiment']]}: {_what(row)}" for row in metrics["rows"]]
    for row in rows:
        pairs = pairs_of(row)
        for title, pair in pairs:
            named = f"{title[0].upper()}{title[1:]}" if len(pairs) > 1 else ""
            lines += [f"\n## {', '.join(filter(None, [_PAPER_ROWS[row['experiment']], named]))}\n"]
            judged = [verdict for verdict in verdicts(pair) if verdict.verdict != NOT_TESTABLE]
            lines.append(verdict_table(judged))
    lines.append("Claims that are not testable here, and why, are in the reports of the rows' own runs.\n")
    return "\n".join(lines)


def _accuracies(metrics: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Mean test accuracy in %; the paper's and the difference where data and settings are the paper's."""
    cells = []
    for row in rows:
        for kind in kinds_of(row):
            units = units_of(row, kind["name"])
            name = f"{_data(row)}, {_network(row)}, {kind['label']}"
            ours = [
                mean([unit["sweep"][i]["accuracy"] for unit in units]) for i in range(len(metrics["scalars"]))
            ]
            paper = row["paper"].get(kind["name"])
            if row["data"]["as_in_paper"] and paper:
                cells.append([f"{name}: paper", *(f"{value:.2f}" for value in paper)])
            cells.append([f"{name}: ours", *(f"{value:.2f}" for value in ours)])
            if row["data"]["as_in_paper"] and paper:
                cells.append(
                    [f"{name}: difference", *(f"{a - b:+.2f}" for a, b in zip(ours, paper, strict=True))]
                )
    return markdown_table(["test accuracy (%) at scalar", *(f"{s:g}" for s in metrics["scalars"])], cells)


def _what(row: dict[str, Any]) -> str:
    """Of what and how many networks a row's numbers are, or why there are none."""
    if "left_out" in row:
        return f"left out: {row['left_out']}."
    seeds = len({unit["seed"] for unit in row["units"]})
    text = f"{row['data']['title']}; {seeds} seed{'s' if seeds > 1 else ''}, preset {row['preset']}."
    if row.get("reduced"):
        text += f" Reduced: {'; '.join(row['reduced'])}."
    if not row["data"]["as_in_paper"]:
        text += " **Not the paper's data and settings: not compared with its numbers.**"
    return text


def _data(row: dict[str, Any]) -> str:
    """A short title that still says what the data are."""
    stand_in = row["data"].get("stand_in")
    return stand_in if stand_in else row["data"]["title"].split(", first ")[0]


def _network(row: dict[str, Any]) -> str:
    return row["architecture"]["name"]


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Accuracy against the scalar, a panel for each row."""
    from matplotlib.figure import Figure

    rows = [row for row in metrics["rows"] if "left_out" not in row]
    high = -(-max(len(rows), 1) // 2)
    canvas = Figure(figsize=(11, 3.9 * high + 0.4), layout="constrained")
    grid = list(canvas.subplots(high, 2, squeeze=False).flat)
    for axes, row in zip(grid, rows, strict=False):
        draw_accuracies(axes, row, colours_of(row))
        axes.set_title(f"{_data(row)}, {_network(row)}", loc="left", fontsize=11)
    for axes in grid[len(rows) :]:
        axes.set_visible(False)
    canvas.suptitle(f"{metrics['experiment']} ({metrics['preset']})", fontsize=12)
    canvas.savefig(path, dpi=130)
