"""Markdown and figure of the experiment ``loss-curves``, from the metrics alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zbkernels.experiments.loss_curves_claims import CURVES, both_kinds, distance, verdict
from zbkernels.experiments.table1_report import COLOURS, LABELS
from zbkernels.report import markdown_table, mean, verdict_table

_NONE = "-"  # in a cell


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: what was trained, verdicts, distances, and where each panel's losses stand."""
    lines = [f"# {metrics['experiment']}, preset {metrics['preset']}\n"]
    lines += [_heading(panel) for panel in metrics["panels"]]
    lines += ["\n## Claims\n", verdict_table([verdict(panel) for panel in metrics["panels"]])]
    lines += ["## Distances\n", _distances(metrics)]
    return "\n".join(lines)


def _heading(panel: dict[str, Any]) -> str:
    data, training, source = panel["data"], panel["training"], panel["from"]
    text = (
        f"- {panel['panel']}: **{data['title']}**, {data['train_images']:,} training images; "
        f"{panel['architecture']['name']}, {training['epochs']} epochs of {training['optimizer']}, learning rate "
        f"{training['lr']}, batch {training['batch_size']}; {source['experiment']}, preset {source['preset']}."
    )
    if data.get("stand_in_for"):
        text += f" **A stand-in, not {data['stand_in_for']}.**"
    if panel["reduced"]:
        text += f" Reduced: {'; '.join(panel['reduced'])}."
    return text


def _distances(metrics: dict[str, Any]) -> str:
    rows = []
    for panel in metrics["panels"]:
        if not both_kinds(panel):
            continue
        for key, label in CURVES.items():
            found = distance(panel, key)
            last = {variant: mean([c[-1] for c in panel["curves"][variant][key]]) for variant in LABELS}
            rows.append(
                [
                    f"{panel['panel']} {_short(panel['data'])}, {label}",
                    str(len(panel["curves"]["with-bias"][key])),
                    *(f"{last[variant]:.4f}" for variant in LABELS),
                    f"{100 * found.relative:.2f}",
                    str(found.epoch),
                    _number(found.in_deviations, 1),
                    _number(found.same_seed, 100),
                    _number(found.same_kind, 100),
                ]
            )
    header = ["curve", "seeds", *(f"last loss, {label}" for label in LABELS.values())]
    header += ["means apart, at most (%)", "at epoch", "in standard deviations, at most"]
    header += ["same seed, both kinds (%)", "two seeds of one kind (%)"]
    note = (
        "\nEach distance is the largest over the epochs. Percentages are of the loss with bias (of the first of two of "
        "one kind); the last two columns are means over all such pairs of networks. A network with "
        "bias and the one without of the same seed start from the same weights and see the images in the same order. "
        "The paper shows the curves and gives no number.\n"
    )
    return markdown_table(header, rows) + note


def _number(value: float | None, factor: float) -> str:
    return _NONE if value is None else f"{factor * value:.2f}"


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Two panels a row, as many as there are: losses against the epoch, a thin line for each seed."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels = metrics["panels"]
    rows = -(-len(panels) // 2)
    canvas = Figure(figsize=(11, 3.6 * rows + 0.7), layout="constrained")
    grid = canvas.subplots(rows, 2, squeeze=False).flat
    for axes, panel in zip(grid, panels, strict=False):
        for variant in LABELS:
            for key, style in (("train_loss", (0, (2, 1.5))), ("test_loss", "-")):
                curves = panel["curves"][variant][key]
                if not curves:
                    continue
                epochs = range(1, len(curves[0]) + 1)
                # Without bias above, thinner: where the curves agree, both colours are seen.
                width, order = (2.6, 2) if variant == "with-bias" else (1.2, 3)
                means = [mean(values) for values in zip(*curves, strict=True)]
                for curve in curves if len(curves) > 1 else ():
                    axes.plot(epochs, curve, color=COLOURS[variant], alpha=0.25, lw=0.6, zorder=1)
                axes.plot(epochs, means, color=COLOURS[variant], ls=style, lw=width, zorder=order)
        axes.set(xlabel="epoch", ylabel="cross-entropy")
        axes.set_ylim(0, 1.05 * max((max(line.get_ydata()) for line in axes.get_lines()), default=1))
        axes.xaxis.get_major_locator().set_params(integer=True)
        network = f"{panel['architecture']['name']}, {panel['training']['epochs']} epochs"
        axes.set_title(f"({panel['panel'][-1]}) {_short(panel['data'])}: {network}", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, lw=0.6)
    for axes in list(canvas.axes)[len(panels) :]:
        axes.set_visible(False)
    handles = [
        Line2D(
            [],
            [],
            color=COLOURS[v],
            ls=style,
            lw=2.6 if v == "with-bias" else 1.2,
            label=f"{LABELS[v]}, {kind}",
        )
        for kind, style in (("training", (0, (2, 1.5))), ("test", "-"))
        for v in LABELS
    ]
    canvas.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    canvas.suptitle(f"{metrics['experiment']} ({metrics['preset']})", fontsize=12)
    canvas.savefig(path, dpi=130)


def _short(data: dict[str, Any]) -> str:
    """A title that fits above a panel, and still says what the data are."""
    if data.get("stand_in_for"):
        return f"{data['stand_in']}, not {data['stand_in_for']}"
    return data["title"].split(", first ")[0]
