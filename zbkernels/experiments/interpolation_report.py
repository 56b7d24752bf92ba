"""Markdown and picture strips of the experiment ``interpolation``, from the metrics alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zbkernels.experiments.interpolation_claims import checks_of, count, total, verdicts
from zbkernels.experiments.pictures import decode
from zbkernels.experiments.units import VARIANTS, WITHOUT_BIAS
from zbkernels.report import markdown_table, mean, spread, verdict_table

LABELS = {"with-bias": "with bias", "without-bias": "without bias"}
NONE = "-"  # in a cell
COLUMNS = 9  # of a strip: two real images and seven between them


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: accuracies, verdicts, all pairs counted, and what was found between them."""
    parts = [_heading(metrics), _accuracies(metrics), "## Claims\n", verdict_table(verdicts(metrics))]
    parts += ["## All pairs with equal prediction and pattern\n", _pairs(metrics)]
    parts += ["## Between the images of a pair\n", _between(metrics)]
    return "\n".join(parts)


def _heading(metrics: dict[str, Any]) -> str:
    training = metrics["training"]
    lines = [f"# {metrics['experiment']}, preset {metrics['preset']}\n"]
    for part in metrics["sets"]:
        data = part["data"]
        lines.append(
            f"- Data: **{data['title']}**, {data['train_images']:,} training images, {data['test_images']:,} for tests;"
            f" {count(part['epochs'], 'epoch')}, batch {part['batch_size']}."
        )
        if data["note"]:
            lines.append(f"  Note on the data: {data['note']}.")
        if not data["as_in_paper"]:
            lines.append("  **Not the paper's data: its accuracy is not compared.**")
    lines += [
        f"- Network: {metrics['architecture']['layers']}; {training['initialisation']}. Of its networks the paper says "
        "that they have 30 neurons.",
        f"- Training: {training['optimizer']}, learning rate {training['lr']}, {training['loss']}. The paper says "
        "nothing of it; the number of epochs and the batch were chosen for its accuracies.",
        "- Pattern: one bit a hidden unit, value > 0. All pairs are found, by grouping equal patterns.",
    ]
    return "\n".join(lines) + "\n"


def _accuracies(metrics: dict[str, Any]) -> str:
    rows = []
    for part in metrics["sets"]:
        name = part["data"]["name"]
        for variant in VARIANTS:
            values = [u["splits"]["test"]["accuracy"] for u in part["units"] if u["variant"] == variant]
            if not values:
                continue
            compared = part["data"]["as_in_paper"] and variant == WITHOUT_BIAS
            paper = metrics["paper"][name] if compared else None
            deviation = spread(values)
            rows.append(
                [
                    f"{name}, {LABELS[variant]}",
                    NONE if paper is None else f"{paper:.2f}",
                    f"{mean(values):.2f}",
                    NONE if paper is None else f"{mean(values) - paper:+.2f}",
                    NONE if deviation is None else f"{deviation:.2f}",
                    str(len(values)),
                ]
            )
    header = ["test accuracy (%)", "paper", "ours", "difference", "standard deviation", "seeds"]
    note = f"\nThe paper's {metrics['paper']['cifar-10']:g} % is on CIFAR-10 and is not compared with another set.\n"
    return markdown_table(header, rows) + note


def _pairs(metrics: dict[str, Any]) -> str:
    rows = []
    for part in metrics["sets"]:
        for unit in part["units"]:
            for split, counts in unit["splits"].items():
                rows.append(
                    [
                        f"{part['data']['name']}, {LABELS[unit['variant']]}, seed {unit['seed']}, {split}",
                        f"{counts['accuracy']:.2f}",
                        *(f"{counts[key]:,}" for key in ("images", "patterns", "pairs", "right", "wrong")),
                        f"{counts['images_in_pairs']:,}",
                        f"{counts['largest_group']:,}",
                    ]
                )
    header = ["network and images", "accuracy (%)", "images", "patterns", "pairs", "both right", "both wrong"]
    header += ["images in a pair", "largest group"]
    return markdown_table(header, rows)


def _between(metrics: dict[str, Any]) -> str:
    rows = []
    for variant in VARIANTS:
        for kind, combination, label in (
            ("same pattern", "convex", "same pattern, interpolated"),
            ("same pattern", "conic", "same pattern, interpolated and darkened"),
            ("other pattern", "convex", "other pattern, interpolated"),
        ):
            checks = checks_of(metrics, variant, kind=kind, combination=combination)
            points = sum(check["pairs"] * check["points"] for check in checks)
            if not points:
                continue
            broken = total(checks, "points_broken")
            again = [check["in_float64"] for check in checks if "in_float64" in check]
            rows.append(
                [
                    f"{LABELS[variant]}: {label}",
                    f"{total(checks, 'pairs'):,}",
                    f"{points:,}",
                    f"{total(checks, 'pairs_broken'):,}",
                    f"{total(checks, 'prediction_broken'):,}",
                    f"{100 * broken / points:.4g}",
                    f"{100 * total(checks, 'points_predicted_otherwise') / points:.4g}",
                    f"{max(check['worst_share'] for check in checks):.4g}",
                    str(max(check["most_bits"] for check in checks)),
                    _of(again) if again else NONE,
                ]
            )
    header = ["pairs with equal prediction", "pairs", "points", "pairs broken", "in the prediction"]
    header += ["points broken (%)", "predicted otherwise (%)", "worst pair's points broken (%)"]
    header += ["most units that differ", "broken in float64, of pairs looked at again"]
    note = (
        "\nPairs are drawn from all, each as likely as any other, as many of training as of test images, "
        f"{metrics['points']:,} points each, evenly from one image to the other. Broken: another prediction or another "
        "pattern than the pair's at some point. Darkened: multiplied by 1, 1/2, … 1/256 in turn.\n"
    )
    return markdown_table(header, rows) + note


def _of(again: list[dict[str, Any]]) -> str:
    return f"{total(again, 'pairs_broken'):,} of {total(again, 'pairs'):,}"


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Strips: outermost real images, the others between them; predicted right on the left, wrong on the right."""
    from matplotlib.figure import Figure

    shown = [part for part in metrics["sets"] if part["strips"]]
    rows = max((sum(len(part["strips"][kind]) for part in shown) for kind in ("right", "wrong")), default=0)
    wide, high, head = 13.0, 0.5, 0.5  # of the figure, of a row, and above the rows, in inches
    whole = head + high * max(rows, 3) + 0.3
    canvas = Figure(figsize=(wide, whole))
    for side, kind in enumerate(("right", "wrong")):
        left, width, top = 0.085 + 0.5 * side, 0.335, 1 - head / whole
        title = "Predicted right (as Figure 7)" if kind == "right" else "Predicted wrong (as Figure 8)"
        canvas.text(left + width / 2, 1 - 0.08 / whole, title, ha="center", va="top", fontsize=11)
        for at, ha, text in ((0, "left", "real"), (0.5, "center", "interpolated"), (1, "right", "real")):
            canvas.text(left + at * width, top + 0.03 / whole, text, ha=ha, fontsize=8, color="#666666")
        strips = [(part, strip) for part in shown for strip in part["strips"][kind]]
        for row, (part, strip) in enumerate(strips):
            picture = _strip(part, strip)
            share = width * wide * picture.shape[0] / picture.shape[1] / whole  # so that pixels are square
            axes = canvas.add_axes((left, top - row * high / whole - share, width, share))
            axes.imshow(picture.numpy(), interpolation="nearest", aspect="auto")
            axes.axis("off")
            names = [part["data"]["classes"][label] for label in strip["labels"]]
            axes.text(-0.012, 0.5, names[0], ha="right", va="center", transform=axes.transAxes, fontsize=9)
            axes.text(
                1.012,
                0.5 if kind == "right" else 0.62,
                names[1],
                va="center",
                transform=axes.transAxes,
                fontsize=9,
            )
            if kind == "wrong":
                said = f"predicted: {part['data']['classes'][strip['predicted']]}"
                axes.text(
                    1.012, 0.2, said, va="center", transform=axes.transAxes, fontsize=6.5, color="#b03a2e"
                )
    sets = ", then ".join(part["data"]["title"] for part in shown) or "no zero-bias network was trained"
    canvas.text(0.5, 0.07 / whole, f"{sets} ({metrics['preset']})", ha="center", fontsize=8.5)
    canvas.savefig(path, dpi=130)


def _strip(part: dict[str, Any], strip: dict[str, Any]) -> Tensor:
    """Two images and those between them side by side, [H, W, 3], a wider gap beside the real ones."""
    shape = tuple(part["data"]["image_shape"])
    first, last = (decode(text, shape).expand(3, -1, -1) for text in strip["images"])
    height = first.shape[1]
    gap, wide = (torch.ones(3, height, max(1, round(share * height))) for share in (0.04, 0.15))
    pieces = []
    for column in range(COLUMNS):
        weight = 1 - column / (COLUMNS - 1)  # of the left image
        pieces += [weight * first + (1 - weight) * last, wide if column in (0, COLUMNS - 2) else gap]
    return torch.cat(pieces[:-1], 2).permute(1, 2, 0)
