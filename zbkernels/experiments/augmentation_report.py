"""Markdown and figure of the experiment ``augmentation``, from the metrics alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zbkernels.experiments.augmentation_claims import accuracies, verdicts
from zbkernels.experiments.progress import duration
from zbkernels.experiments.table1_report import COLOURS, LABELS
from zbkernels.report import markdown_table, mean, spread, verdict_table


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: for each image set accuracies, verdicts and training."""
    lines = [
        f"# {metrics['experiment']}, preset {metrics['preset']}\n",
        "Each time an image is trained on, it is multiplied by one of the eleven scalars, drawn anew: an epoch keeps",
        "its length, so these networks see as many images and make as many steps as those trained on plain images.",
        "The paper describes the outcome in words and gives no numbers.\n",
    ]
    for part in metrics["parts"]:
        lines += [f"## {part['augmented']['data']['title']}\n", _heading(part), _accuracies(part)]
        lines += ["### Claims\n", verdict_table(verdicts(part)), "### Training\n", _training(part)]
    return "\n".join(lines)


def _heading(part: dict[str, Any]) -> str:
    metrics = part["augmented"]
    data, training = metrics["data"], metrics["training"]
    lines = [
        f"- {data['train_images']:,} training images, {data['test_images']:,} for tests.",
        f"- Network: {metrics['architecture']['layers']}; {training['initialisation']}. The paper gives no sizes.",
        f"- Training: {training['optimizer']}, learning rate {training['lr']}, {training['epochs']} epochs, "
        f"batch {training['batch_size']}, {training['loss']}.",
    ]
    if data["note"]:
        lines.append(f"- Note on the data: {data['note']}.")
    if part["plain"] is None:
        lines.append(
            "- Networks trained on plain images: no finished run of Table 1's row stands beside this one."
        )
    elif part["plain"]["preset"] != metrics["preset"]:
        lines.append(
            f"- Networks trained on plain images: those of Table 1, preset {part['plain']['preset']}."
        )
    return "\n".join(lines) + "\n"


def _accuracies(part: dict[str, Any]) -> str:
    scalars = part["augmented"]["scalars"]
    rows, curves = [], {}
    for label, metrics in (("augmented", part["augmented"]), ("plain", part["plain"])):
        for variant in LABELS if metrics is not None else ():
            found = accuracies(metrics, variant)
            if not found:
                continue
            values = list(found.values())
            curves[label, variant] = [mean(v) for v in values]
            seeds = f"{len(values[0])} seed{'s' if len(values[0]) > 1 else ''}"
            name = f"{LABELS[variant]}, {label}"
            rows.append([f"{name}, {seeds}", *(f"{mean(v):.2f}" for v in values)])
            if len(values[0]) > 1:
                rows.append([f"{name}: standard deviation", *(f"{spread(v):.2f}" for v in values)])
    for name, one, other in (
        ("augmented: with minus without", ("augmented", "with-bias"), ("augmented", "without-bias")),
        ("without bias: augmented minus plain", ("augmented", "without-bias"), ("plain", "without-bias")),
        ("with bias: augmented minus plain", ("augmented", "with-bias"), ("plain", "with-bias")),
    ):
        if one in curves and other in curves:
            gaps = [a - b for a, b in zip(curves[one], curves[other], strict=True)]
            rows.append([name, *(f"{gap:+.2f}" for gap in gaps)])
    return markdown_table(["test accuracy (%) at scalar", *(f"{s:g}" for s in scalars)], rows)


def _training(part: dict[str, Any]) -> str:
    rows = []
    for unit in part["augmented"]["units"]:
        last = unit["epochs"][-1]
        rows.append(
            [
                LABELS[unit["variant"]],
                str(unit["seed"]),
                duration(unit["train_seconds"]),
                f"{last['train_loss']:.4f}",
                f"{last['test_loss']:.4f}",
                f"{last['test_accuracy']:.2f}",
            ]
        )
    header = ["augmented network", "seed", "training time", "train loss", "test loss", "test accuracy (%)"]
    note = "\nThe training loss is over multiplied images, most of them nearly black; the test loss is at scalar 1.\n"
    return markdown_table(header, rows) + note


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Accuracy against the scalar, one panel an image set: augmented networks solid, plain ones dotted."""
    from matplotlib.figure import Figure

    parts = metrics["parts"]
    canvas = Figure(figsize=(5.6 * len(parts) + 0.4, 4.8), layout="constrained")
    for axes, part in zip(canvas.subplots(1, len(parts), squeeze=False)[0], parts, strict=True):
        for kind, style, width in (("plain", (0, (1.5, 1.5)), 1.6), ("augmented", "-", 2.2)):
            for variant in LABELS if part[kind] is not None else ():
                found = accuracies(part[kind], variant)
                if not found:
                    continue
                scalars, values, colour = list(found), list(found.values()), COLOURS[variant]
                if kind == "augmented" and len(values[0]) > 1:
                    low, high = [min(v) for v in values], [max(v) for v in values]
                    axes.fill_between(scalars, low, high, color=colour, alpha=0.18, lw=0)
                curve = [mean(v) for v in values]
                label = (
                    f"{LABELS[variant]}, trained on {'multiplied' if kind == 'augmented' else 'plain'} images"
                )
                axes.plot(scalars, curve, color=colour, ls=style, lw=width, label=label)
        axes.set(xscale="log", xlabel="scalar that multiplies the test images", ylabel="test accuracy (%)")
        axes.set(ylim=(0, 100))
        axes.invert_xaxis()
        axes.set_xticks([1, 0.1, 0.01, 0.001, 0.0001], ["1", "0.1", "0.01", "0.001", "0.0001"])
        axes.minorticks_off()
        axes.set_title(part["augmented"]["data"]["title"], loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, lw=0.6)
    lines = {str(line.get_label()): line for axes in canvas.axes for line in axes.get_lines()}
    canvas.legend(
        handles=list(lines.values()), loc="outside lower center", ncols=2, frameon=False, fontsize=9
    )
    canvas.suptitle(f"{metrics['experiment']} ({metrics['preset']})", fontsize=12)
    canvas.savefig(path, dpi=150)
