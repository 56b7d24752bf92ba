"""Table 1's Markdown and figure, from the metrics alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zbkernels.experiments import epoch_timing
from zbkernels.experiments.progress import duration
from zbkernels.experiments.table1_claims import verdicts
from zbkernels.report import markdown_table, mean, spread, verdict_table

LABELS = {"with-bias": "with bias", "without-bias": "without bias"}
COLOURS = {"with-bias": "#c2571a", "without-bias": "#1f6f8b"}


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: accuracies, verdicts, training details, losses, and the time of an epoch."""
    parts = [_heading(metrics), _accuracies(metrics), "## Claims\n", verdict_table(verdicts(metrics))]
    parts += ["## Training\n", _training(metrics), "## Losses, mean over the seeds\n", _losses(metrics)]
    if metrics.get("timing"):
        parts += ["## Time of one training epoch\n", epoch_timing.table(metrics["timing"])]
    return "\n".join(parts)


def units_of(metrics: dict[str, Any], variant: str) -> list[dict[str, Any]]:
    return [unit for unit in metrics["units"] if unit["variant"] == variant]


def _heading(metrics: dict[str, Any]) -> str:
    data, training = metrics["data"], metrics["training"]
    lines = [
        f"# {metrics['experiment']}, preset {metrics['preset']}\n",
        f"- Data: **{data['title']}**, {data['train_images']:,} training images, {data['test_images']:,} for tests.",
        f"- Network: {metrics['architecture']['layers']}; {training['initialisation']}. The paper gives no sizes.",
        f"- Training: {training['optimizer']}, learning rate {training['lr']}, {training['epochs']} epochs, "
        f"batch {training['batch_size']}, {training['loss']}.",
    ]
    if data["note"]:
        lines.append(f"- Note on the data: {data['note']}.")
    if not data["as_in_paper"]:
        lines.append(
            "- **Not the paper's data: its numbers are shown for orientation and are not compared.**"
        )
    return "\n".join(lines) + "\n"


def _accuracies(metrics: dict[str, Any]) -> str:
    """Test accuracy in %, paper / ours / difference, one column per scalar."""
    comparable = metrics["data"]["as_in_paper"]
    rows = []
    for variant, label in LABELS.items():
        units = units_of(metrics, variant)
        if not units:
            continue
        paper = metrics["paper"][variant]
        ours = [[unit["sweep"][i]["accuracy"] for unit in units] for i in range(len(paper))]
        seeds = f"{len(units)} seeds" if len(units) > 1 else f"seed {units[0]['seed']}"
        rows.append([f"{label}: paper", *(f"{value:.2f}" for value in paper)])
        rows.append([f"{label}: ours, {seeds}", *(f"{mean(values):.2f}" for values in ours)])
        if len(units) > 1:
            rows.append([f"{label}: standard deviation", *(f"{spread(values):.2f}" for values in ours)])
        if comparable:
            gaps = [mean(values) - p for values, p in zip(ours, paper, strict=True)]
            rows.append([f"{label}: difference", *(f"{gap:+.2f}" for gap in gaps)])
        if variant == "without-bias":
            changed = [[unit["sweep"][i]["changed"] for unit in units] for i in range(len(paper))]
            rows.append(
                [f"{label}: predictions unlike those at 1, by seed", *(_list(counts) for counts in changed)]
            )
    return markdown_table(["test accuracy (%) at scalar", *(f"{s:g}" for s in metrics["scalars"])], rows)


def _training(metrics: dict[str, Any]) -> str:
    rows = []
    for unit in metrics["units"]:
        last = unit["epochs"][-1]
        rows.append(
            [
                LABELS[unit["variant"]],
                str(unit["seed"]),
                {"fused": "fused layers", "plain": "plain torch layers"}[unit["form"]],
                f"{unit['parameters']:,}",
                duration(unit["train_seconds"]),
                f"{last['train_loss']:.4f}",
                f"{last['test_loss']:.4f}",
                f"{last['test_accuracy']:.2f}",
            ]
        )
    header = [
        "network",
        "seed",
        "form",
        "parameters",
        "training time",
        "train loss",
        "test loss",
        "test accuracy (%)",
    ]
    total = duration(sum(unit["train_seconds"] for unit in metrics["units"]))
    return (
        markdown_table(header, rows) + f"\nTraining time is wall time without evaluation; {total} in all.\n"
    )


def _losses(metrics: dict[str, Any]) -> str:
    variants = [variant for variant in LABELS if units_of(metrics, variant)]
    header = ["epoch"]
    header += [f"{LABELS[variant]}, {kind}" for kind in ("train", "test") for variant in variants]
    rows = []
    for index in range(metrics["training"]["epochs"]):
        row = [str(index + 1)]
        for key in ("train_loss", "test_loss"):
            row += [f"{mean(_at_epoch(metrics, variant, index, key)):.4f}" for variant in variants]
        rows.append(row)
    return markdown_table(header, rows)


def _list(counts: list[int]) -> str:
    return "0" if not any(counts) else " ".join(map(str, counts))


def _at_epoch(metrics: dict[str, Any], variant: str, index: int, key: str) -> list[float]:
    return [unit["epochs"][index][key] for unit in units_of(metrics, variant)]


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Left: accuracy against the scalar, the paper's points beside ours. Right: loss curves."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(11, 4.3), layout="constrained")
    accuracy, loss = canvas.subplots(1, 2)
    scalars = metrics["scalars"]
    for variant, label in LABELS.items():
        units = units_of(metrics, variant)
        if not units:
            continue
        colour = COLOURS[variant]
        ours = [[unit["sweep"][i]["accuracy"] for unit in units] for i in range(len(scalars))]
        accuracy.fill_between(
            scalars, [min(v) for v in ours], [max(v) for v in ours], color=colour, alpha=0.18, lw=0
        )
        accuracy.plot(scalars, [mean(v) for v in ours], color=colour, lw=2, label=f"{label}, ours")
        accuracy.plot(
            scalars,
            metrics["paper"][variant],
            "o",
            mfc="white",
            mec=colour,
            ms=6,
            mew=1.4,
            label=f"{label}, paper",
        )
        epochs = range(1, metrics["training"]["epochs"] + 1)
        for key, style, kind in (("train_loss", (0, (2, 1.5)), "training"), ("test_loss", "-", "test")):
            curve = [mean(_at_epoch(metrics, variant, i - 1, key)) for i in epochs]
            loss.plot(epochs, curve, color=colour, ls=style, lw=1.8, label=f"{label}, {kind}")
    accuracy.set(xscale="log", xlabel="scalar that multiplies the test images", ylabel="test accuracy (%)")
    accuracy.set(ylim=(0, 100))
    accuracy.invert_xaxis()
    accuracy.set_xticks([1, 0.1, 0.01, 0.001, 0.0001], ["1", "0.1", "0.01", "0.001", "0.0001"])
    accuracy.minorticks_off()
    several = len(units_of(metrics, metrics["units"][0]["variant"])) > 1
    band = " (band: range of the seeds)" if several else ""
    accuracy.set_title(f"Accuracy against contrast{band}", loc="left", fontsize=11)
    accuracy.legend(frameon=False, fontsize=9, loc="center right")
    loss.set(xlabel="epoch", ylabel="cross-entropy")
    loss.set_title("Loss", loc="left", fontsize=11)
    loss.xaxis.get_major_locator().set_params(integer=True)
    loss.legend(frameon=False, fontsize=9)
    for axes in (accuracy, loss):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, lw=0.6)
    canvas.suptitle(f"{metrics['experiment']} ({metrics['preset']}): {metrics['data']['title']}", fontsize=12)
    canvas.savefig(path, dpi=150)
