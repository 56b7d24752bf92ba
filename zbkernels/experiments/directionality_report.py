"""The Markdown of the ``directionality`` experiment, from the metrics alone: one table for each image set."""

from __future__ import annotations

from typing import Any

from zbkernels.experiments.angles import median, nearer_share, obtuse_share
from zbkernels.experiments.directionality_claims import subset_accuracies, verdicts
from zbkernels.experiments.neighbours import CENTRED, DIRECTION, DISTANCE
from zbkernels.report import markdown_table, mean, spread, verdict_table

LABELS = {
    DIRECTION: "by direction (cosine)",
    DISTANCE: "by distance",
    CENTRED: "by direction, mean subtracted",
}


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: verdicts, then accuracies and angles of each image set."""
    parts = [_heading(metrics), "## Claims\n", verdict_table(verdicts(metrics))]
    for found in metrics["sets"]:
        parts += [f"## {found['title']}\n", _facts(found), _accuracies(metrics, found), _angles(found)]
    return "\n".join(parts)


def _heading(metrics: dict[str, Any]) -> str:
    seeds = [part["seed"] for part in metrics["sets"][0]["subsets"]]
    lines = [
        f"# directionality, preset {metrics['preset']}\n",
        "- No network: a test image gets the label of the training image that is nearest to it, by angle or by "
        "distance. The paper's Figure 1 has no numbers, so there are none to compare with.",
        "- Pairs without a pixel in common are at 90°, to rounding; 0.5° is the width of a bin.",
        "- Test images are multiplied by the scalar, training images are not. Where the mean is subtracted, it is the "
        "mean training image, after the multiplication. (Distances do not change with it.)",
        f"- Everything is over all pairs of test and training images, but for the last column: mean and standard "
        f"deviation over random subsets of {metrics['subset']:,} training images at scalar 1 "
        f"({'seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))}).",
    ]
    if metrics["absent"]:
        lines.append(f"- Not in the data folder, so left out: {', '.join(metrics['absent'])}.")
    return "\n".join(lines) + "\n"


def _facts(found: dict[str, Any]) -> str:
    note = f" Note on the data: {found['note']}." if found["note"] else ""
    return (
        f"{found['train_images']:,} training and {found['test_images']:,} test images of {found['pixels']:,} "
        f"values.{note}\n"
    )


def _accuracies(metrics: dict[str, Any], found: dict[str, Any]) -> str:
    header = ["test accuracy (%) at scalar", *(f"{scalar:g}" for scalar in metrics["scalars"])]
    header.append(f"{min(metrics['subset'], found['train_images']):,} training images")
    rows = []
    for rule, label in LABELS.items():
        if rule not in found["accuracies"]:
            continue
        cells = [f"{row['accuracy']:.2f}" for row in found["accuracies"][rule]]
        if rule == DIRECTION:
            cells *= len(metrics["scalars"])
        of_subsets = subset_accuracies(found, rule)
        deviation = spread(of_subsets)
        cells.append(f"{mean(of_subsets):.2f}" + ("" if deviation is None else f" ± {deviation:.2f}"))
        rows.append([label, *cells])
    return markdown_table(header, rows)


def _angles(found: dict[str, Any]) -> str:
    angles = found["angles"]
    header = ["images", "same class: median angle", "different classes", "smaller within a class (%)"]
    header += ["pairs beyond 90.5° (%)", "length of the mean unit vector"]
    rows = []
    for kind, label in (("raw", "as they are"), ("centred", "mean subtracted")):
        same, different = angles[kind]["same"], angles[kind]["different"]
        rows.append(
            [
                label,
                f"{median(same):.2f}°",
                f"{median(different):.2f}°",
                f"{100 * nearer_share(same, different):.2f}",
                f"{obtuse_share(same, different):.2f}",
                f"{angles[kind]['resultant']:.3f}",
            ]
        )
    low, middle, high, most = angles["to_mean"]
    own, other = (" / ".join(f"{q:.1f}°" for q in angles[key]) for key in ("nearest_own", "nearest_other"))
    check = found["recheck"]
    changed = f"{check['changed']:,}" if check["changed"] else "none"
    return (
        markdown_table(header, rows)
        + f"\nFrom a test image to the nearest of its class {own}, of another class {other} (10, 50 and 90 %). From "
        f"the mean image {low:.1f}° / {middle:.1f}° / {high:.1f}°, at most {most:.1f}°. By the nearest mean direction "
        f"of a class {angles['by_class_mean']:.2f} % are right. Nearest directions found again from "
        f"{check['images']:,} images multiplied by each of {check['scalars']} scalars: {changed} changed.\n"
    )
