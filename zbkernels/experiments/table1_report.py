"""Table 1's Markdown and figure, from the metrics alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zbkernels.experiments import epoch_timing
from zbkernels.experiments.progress import duration
from zbkernels.experiments.table1_claims import kinds_of, pairs_of, verdicts
from zbkernels.report import markdown_table, mean, spread, verdict_table

LABELS = {"with-bias": "with bias", "without-bias": "without bias"}
COLOURS = {"with-bias": "#c2571a", "without-bias": "#1f6f8b"}
_MORE = {
    True: ("#e0a458", "#8c3a3a"),
    False: ("#69b3a2", "#5a5f9e"),
}  # of further kinds, with bias and without


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: accuracies, verdicts, training details, losses, and the time of an epoch."""
    parts = [_heading(metrics), _accuracies(metrics), "## Claims\n"]
    pairs = pairs_of(metrics)
    for title, pair in pairs:
        parts += [f"### {title[0].upper()}{title[1:]}\n"] if len(pairs) > 1 else []
        parts.append(verdict_table(verdicts(pair)))
    parts += ["## Training\n", _training(metrics), "## Losses, mean over the seeds\n", _losses(metrics)]
    if metrics.get("timing"):
        parts += ["## Time of one training epoch\n", epoch_timing.table(metrics["timing"])]
    return "\n".join(parts)


def units_of(metrics: dict[str, Any], variant: str) -> list[dict[str, Any]]:
    return [unit for unit in metrics["units"] if unit["variant"] == variant]


def colours_of(metrics: dict[str, Any]) -> dict[str, str]:
    """Kind -> its colour in figures."""
    more = {bias: iter(colours) for bias, colours in _MORE.items()}
    return {kind["name"]: COLOURS.get(kind["name"]) or next(more[kind["bias"]]) for kind in kinds_of(metrics)}


def _heading(metrics: dict[str, Any]) -> str:
    data, training = metrics["data"], metrics["training"]
    lines = [
        f"# {metrics['experiment']}, preset {metrics['preset']}\n",
        f"- Data: **{data['title']}**, {data['train_images']:,} training images, {data['test_images']:,} for tests.",
        f"- Network: {metrics['architecture']['layers']}; {training['initialisation']}. "
        f"{metrics['architecture'].get('remark', 'The paper gives no sizes')}.",
        f"- Training: {training['optimizer']}, learning rate {training['lr']}, {training['epochs']} epochs, "
        f"batch {training['batch_size']}, {training['loss']}.",
    ]
    if data["note"]:
        lines.append(f"- Note on the data: {data['note']}.")
    if metrics.get("reduced"):
        lines.append(f"- Reduced: {'; '.join(metrics['reduced'])}.")
    if data.get("stand_in_for"):
        lines.append(
            f"- **A result about {data['stand_in']}, in the place of {data['stand_in_for']}. The paper's numbers are "
            "of another image set: they are not shown and not compared.**"
        )
    elif not data["as_in_paper"]:
        lines.append(f"- **{_unlike(metrics)}: its numbers are shown for orientation and are not compared.**")
    return "\n".join(lines) + "\n"


def _unlike(metrics: dict[str, Any]) -> str:
    return "Not the paper's settings" if metrics["data"].get("judged_reduced") else "Not the paper's data"


def _accuracies(metrics: dict[str, Any]) -> str:
    """Test accuracy in %, paper / ours / difference, one column per scalar."""
    comparable = metrics["data"]["as_in_paper"]
    rows = []
    for kind in kinds_of(metrics):
        label, units = kind["label"], units_of(metrics, kind["name"])
        paper = metrics["paper"].get(kind["name"])
        ours = [[unit["sweep"][i]["accuracy"] for unit in units] for i in range(len(metrics["scalars"]))]
        seeds = f"{len(units)} seeds" if len(units) > 1 else f"seed {units[0]['seed']}"
        if paper and not metrics["data"].get("stand_in_for"):
            rows.append([f"{label}: paper", *(f"{value:.2f}" for value in paper)])
        rows.append([f"{label}: ours, {seeds}", *(f"{mean(values):.2f}" for values in ours)])
        if len(units) > 1:
            rows.append([f"{label}: standard deviation", *(f"{spread(values):.2f}" for values in ours)])
        if comparable and paper:
            gaps = [mean(values) - p for values, p in zip(ours, paper, strict=True)]
            rows.append([f"{label}: difference", *(f"{gap:+.2f}" for gap in gaps)])
        if not kind["bias"]:
            changed = [[unit["sweep"][i]["changed"] for unit in units] for i in range(len(ours))]
            rows.append(
                [f"{label}: predictions unlike those at 1, by seed", *(_list(counts) for counts in changed)]
            )
    return markdown_table(["test accuracy (%) at scalar", *(f"{s:g}" for s in metrics["scalars"])], rows)


def _training(metrics: dict[str, Any]) -> str:
    rows = []
    labels = {kind["name"]: kind["label"] for kind in kinds_of(metrics)}
    for unit in metrics["units"]:
        last = unit["epochs"][-1]
        rows.append(
            [
                labels[unit["variant"]],
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
    notes = [f"Training time is wall time without evaluation; {total} in all."]
    notes += [
        f"{d['label'].capitalize()}, seed {d['seed']}, did not train: {d['message']}."
        for d in metrics.get("diverged", ())
    ]
    return markdown_table(header, rows) + "\n" + "\n".join(notes) + "\n"


def _losses(metrics: dict[str, Any]) -> str:
    kinds = {kind["name"]: kind["label"] for kind in kinds_of(metrics)}
    header = ["epoch"]
    header += [f"{label}, {split}" for split in ("train", "test") for label in kinds.values()]
    rows = []
    for index in range(metrics["training"]["epochs"]):
        row = [str(index + 1)]
        for key in ("train_loss", "test_loss"):
            row += [f"{mean(_at_epoch(metrics, variant, index, key)):.4f}" for variant in kinds]
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
    colours = colours_of(metrics)
    draw_accuracies(accuracy, metrics, colours)
    several = len({unit["seed"] for unit in metrics["units"]}) > 1
    band = " (band: range of the seeds)" if several else ""
    accuracy.set_title(f"Accuracy against contrast{band}", loc="left", fontsize=11)
    for kind in kinds_of(metrics):
        epochs = range(1, metrics["training"]["epochs"] + 1)
        for key, dashes, split in (("train_loss", (0, (2, 1.5)), "training"), ("test_loss", "-", "test")):
            curve = [mean(_at_epoch(metrics, kind["name"], i - 1, key)) for i in epochs]
            label = f"{kind['label']}, {split}"
            loss.plot(epochs, curve, color=colours[kind["name"]], ls=dashes, lw=1.8, label=label)
    loss.set(xlabel="epoch", ylabel="cross-entropy")
    loss.set_title("Loss", loc="left", fontsize=11)
    loss.xaxis.get_major_locator().set_params(integer=True)
    loss.legend(frameon=False, fontsize=9)
    loss.spines[["top", "right"]].set_visible(False)
    loss.grid(alpha=0.25, lw=0.6)
    title = metrics["data"]["title"].split(", first ")[0]  # what is reduced is in the table
    canvas.suptitle(f"{metrics['experiment']} ({metrics['preset']}): {title}", fontsize=12)
    canvas.savefig(path, dpi=150)


def draw_accuracies(axes: Any, metrics: dict[str, Any], colours: dict[str, str]) -> None:
    """Accuracy against the scalar of every kind, and the paper's points where they are of these data."""
    scalars, kinds, drawn = metrics["scalars"], kinds_of(metrics), []
    for kind in kinds:
        label, colour = kind["label"], colours[kind["name"]]
        units, paper = units_of(metrics, kind["name"]), metrics["paper"].get(kind["name"])
        ours = [[unit["sweep"][i]["accuracy"] for unit in units] for i in range(len(scalars))]
        low, high = [min(v) for v in ours], [max(v) for v in ours]
        axes.fill_between(scalars, low, high, color=colour, alpha=0.18, lw=0)
        axes.plot(scalars, [mean(v) for v in ours], color=colour, lw=2, label=f"{label}, ours")
        if paper and paper not in drawn and not metrics["data"].get("stand_in_for"):
            drawn.append(paper)  # kinds may share the paper's row
            style = {"mfc": "white", "mec": colour, "ms": 6, "mew": 1.4}
            of = label if len(kinds) == 2 else LABELS["with-bias" if kind["bias"] else "without-bias"]
            axes.plot(scalars, paper, "o", label=f"{of}, paper", **style)
    axes.set(xscale="log", xlabel="scalar that multiplies the test images", ylabel="test accuracy (%)")
    axes.set(ylim=(0, 100))
    axes.invert_xaxis()
    axes.set_xticks([1, 0.1, 0.01, 0.001, 0.0001], ["1", "0.1", "0.01", "0.001", "0.0001"])
    axes.minorticks_off()
    where = (
        {"loc": "center right", "fontsize": 9} if len(kinds) <= 2 else {"loc": "upper right", "fontsize": 7}
    )
    axes.legend(edgecolor="none", framealpha=0.7, **where)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
