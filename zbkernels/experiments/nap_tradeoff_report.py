"""Markdown and figure of the experiment ``nap-tradeoff``, from the metrics alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zbkernels.experiments.interpolation_claims import range_of
from zbkernels.experiments.nap_tradeoff_claims import BANDS, Count, counts_of, in_band, verdicts
from zbkernels.report import markdown_table, mean, verdict_table

_COLOURS = ("#c2571a", "#1f6f8b", "#7a9a01", "#8e44ad", "#b8860b", "#444444", "#d6336c")
_STYLES = ("-", (0, (3, 1.5)), (0, (1, 1)))


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: the paper's three accuracies, verdicts, and every count."""
    parts = [_heading(metrics), _bands(metrics), "## Claims\n", verdict_table(verdicts(metrics))]
    return "\n".join([*parts, "## Every count, mean over the seeds\n", _counts(metrics)])


def _heading(metrics: dict[str, Any]) -> str:
    data, units = metrics["data"], metrics["units"]
    identical = data["identical_pairs"]
    lines = [
        f"# {metrics['experiment']}, preset {metrics['preset']}\n",
        f"- Data: **{data['title']}**, {data['train_images']:,} training images, {data['test_images']:,} for tests.",
        "- Networks: fully connected, without bias, He normal weights; the sizes of the hidden layers name them.",
        *(f"- Training: {training['text']}, cross-entropy." for training in metrics["trainings"]),
        f"- {len(units)} networks, each searched for pairs after several of its epochs.",
        "- A pair: two images with equal prediction and equal pattern (one bit a hidden unit, value > 0). All are "
        "found, by grouping images of equal pattern and prediction.",
        f"- Pairs of identical images, which any network has: {identical['train']:,} of training images, "
        f"{identical['test']:,} of test images.",
    ]
    if data["note"]:
        lines.append(f"- Note on the data: {data['note']}.")
    if not data["as_in_paper"]:
        lines.append("- **Not the paper's data: its claims about accuracies are not judged.**")
    return "\n".join(lines) + "\n"


def _bands(metrics: dict[str, Any]) -> str:
    """What the paper says of three accuracies beside what was counted at them."""
    counts = counts_of(metrics)
    rows = []
    for label, low, high, paper in BANDS:
        found = in_band(counts, low, high)
        train, test = ([getattr(count, split)["pairs"] for count in found] for split in ("train", "test"))
        row = [f"{label} (here {low:g} to {high:g} %)", paper, str(len(found))]
        row += [str(sum(not pairs for pairs in train)) if found else "-"]
        rows.append([*row, *(range_of(pairs) if pairs else "-" for pairs in (train, test))])
    header = ["test accuracy", "paper: pairs", "ours: networks searched", "of these without a pair"]
    header += ["pairs of training images", "pairs of test images"]
    return markdown_table(header, rows)


def _counts(metrics: dict[str, Any]) -> str:
    rows = []
    for (name, training, epoch), group in _moments(metrics):
        train, test = [c.train for c in group], [c.test for c in group]
        rows.append(
            [
                f"{name} units, {training}, epoch {epoch}",
                f"{mean([c.accuracy for c in group]):.2f}",
                range_of([counted["patterns"] for counted in train]),
                range_of([counted["pairs"] for counted in train]),
                range_of([counted["right"] for counted in train]),
                range_of([counted["images_in_pairs"] for counted in train]),
                range_of([counted["pairs"] for counted in test]),
            ]
        )
    header = [
        "network",
        "test accuracy (%)",
        "patterns",
        "pairs",
        "both right",
        "images in a pair",
        "pairs of test images",
    ]
    note = "\nOf training images but for the last column; from the least to the most of the seeds.\n"
    return markdown_table(header, rows) + note


def _moments(metrics: dict[str, Any]) -> Iterator[tuple[tuple[str, str, int], list[Count]]]:
    """The counts of all seeds together: ((network, training, epoch), counts)."""
    found: dict[tuple[str, str, int], list[Count]] = {}
    for count in counts_of(metrics):
        found.setdefault((count.name, count.training, count.epoch), []).append(count)
    yield from found.items()


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Pairs (logarithmic; none at the bottom) against test accuracy, one path for each network, training and seed."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(11.5, 4.8), layout="constrained")
    panels = canvas.subplots(1, 2, sharey=True)
    counts = counts_of(metrics)
    names = list(dict.fromkeys(count.name for count in counts))
    trainings = [training["name"] for training in metrics["trainings"]]
    paths: dict[tuple[str, str, int], list[Count]] = {}
    for count in counts:
        paths.setdefault((count.name, count.training, count.seed), []).append(count)
    most = max([10, *(getattr(count, split)["pairs"] for count in counts for split in ("train", "test"))])
    for axes, split in zip(panels, ("train", "test"), strict=True):
        images = metrics["data"][f"{split}_images"]
        labelled = set()
        for (name, training, _), line in paths.items():
            axes.plot(
                [count.accuracy for count in line],
                [getattr(count, split)["pairs"] for count in line],
                color=_COLOURS[names.index(name) % len(_COLOURS)],
                ls=_STYLES[trainings.index(training) % len(_STYLES)],
                marker="o",
                ms=3,
                lw=1.1,
                clip_on=False,
                label=f"{name} units, {training}" if (name, training) not in labelled else None,
            )
            labelled.add((name, training))
        for at in (30, 80, 90):
            axes.axvline(at, color="#999999", lw=0.8, ls=":")
        axes.set_yscale("symlog", linthresh=1, linscale=0.6)
        axes.set(xlim=(0, 100), ylim=(0, 3 * most), xlabel="test accuracy (%)")
        axes.set_title(
            f"Pairs among {images:,} {'training' if split == 'train' else 'test'} images",
            loc="left",
            fontsize=11,
        )
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, lw=0.6)
    panels[0].set_ylabel("pairs with equal prediction and pattern")
    ticks = [0, *(10**k for k in range(0, 10, 2) if 10**k <= 3 * most)]
    panels[0].set_yticks(ticks, ["none", "1", *(f"{tick:,}" for tick in ticks[2:])])
    canvas.legend(
        *panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8.5
    )
    canvas.suptitle(
        f"{metrics['experiment']} ({metrics['preset']}): {metrics['data']['title']}; dotted: 30, 80 and 90 %",
        fontsize=11,
    )
    canvas.savefig(path, dpi=140)
