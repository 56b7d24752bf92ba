"""The Markdown of the ``zero-image`` experiment, from the metrics alone."""

from __future__ import annotations

from typing import Any

from zbkernels.experiments.zero_image_claims import of, preference, verdicts
from zbkernels.experiments.zero_image_trainings import TRAININGS
from zbkernels.report import markdown_table, mean, verdict_table

LABELS = {"with-bias": "with bias", "without-bias": "without bias"}
TOP = 3  # classes shown of a known network


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: verdicts, then each network on the zero image and near it, then known networks."""
    parts = [_heading(metrics), "## Claims\n", verdict_table(verdicts(metrics))]
    for network in metrics["networks"]:
        parts += [f"## {network['name']}: the zero image\n", _facts(network), _zero(network)]
        parts += [f"## {network['name']}: images multiplied by s\n", _near(network)]
        if of(network["units"], "long tail"):
            parts += [f"## {network['name']}: class by class, trained on a long tail\n", _classes(network)]
    if metrics["references"]:
        parts += ["## Known networks\n", _known(metrics["references"])]
    return "\n".join(parts)


def _heading(metrics: dict[str, Any]) -> str:
    lines = [
        f"# zero-image, preset {metrics['preset']}\n",
        "- The paper says that scalar invariant networks are uniform on the zero image, and shows in Figure 4, without "
        "numbers, that ResNets, EfficientNet and ViT are not.",
        "- Entropies are of softmax, over log C: 1 is uniform. N(0): the argmax, of equal logits the first class.",
        f"- Initialisation: {metrics['initialisation']}. Loss: {metrics['loss']}.",
        "- Ways of training (each with and without biases):",
    ]
    lines += [f"  - *{name}*: {what}." for name, what in metrics["ways"].items()]
    notes = {f"{n['data']['title']}: {n['data']['note']}" for n in metrics["networks"] if n["data"]["note"]}
    lines += [f"- Note on the data: {note}." for note in sorted(notes)]
    return "\n".join(lines) + "\n"


def _facts(network: dict[str, Any]) -> str:
    data, training = network["data"], network["training"]
    return (
        f"{data['title']}, {data['train_images']:,} training images; {network['architecture']['layers']}; "
        f"{training['optimizer']}, learning rate {training['lr']:g}, {training['epochs']} epochs, batch "
        f"{training['batch_size']}.\n"
    )


def _groups(network: dict[str, Any]) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """(way of training, kind, its units), where there are any."""
    found = [
        (training, variant, of(network["units"], training, variant))
        for training in TRAININGS
        for variant in LABELS
    ]
    return [group for group in found if group[2]]


def _zero(network: dict[str, Any]) -> str:
    rows = []
    classes = len(network["data"]["classes"])
    for training, variant, units in _groups(network):
        zeros = [unit["zero"] for unit in units]
        farthest = max(abs(p - 1 / classes) for zero in zeros for p in zero["probabilities"])
        rows.append(
            [
                f"{training}, {LABELS[variant]}",
                str(len(units)),
                f"{mean([unit['accuracy'] for unit in units]):.2f}",
                f"1/{classes}" if variant == "without-bias" else "not uniform",
                _each([max(zero["probabilities"]) for zero in zeros], "{:.3f}"),
                f"{farthest:.3f}" if farthest else "0",
                _each([preference(zero) for zero in zeros], "{:.2f}"),
                f"{mean([zero['entropy'] for zero in zeros]):.4f}",
                f"{mean([unit['watched'][0]['zero']['entropy'] for unit in units]):.4f}",
                _each([zero["predicted"] for zero in zeros], "{}"),
            ]
        )
    header = [
        "trained on, kind",
        "seeds",
        "test accuracy (%)",
        "each class: paper",
        "likeliest class: ours",
        f"largest difference from 1/{classes}",
        "likeliest times C",
        "entropy / log C",
        "untrained",
        "N(0)",
    ]
    return markdown_table(header, rows)


def _near(network: dict[str, Any]) -> str:
    rows = []
    for training, variant, units in _groups(network):
        cells = []
        for index in range(len(units[0]["near"])):
            at = [unit["near"][index] for unit in units]
            share = 100 * mean([max(row["shares"]) for row in at])
            accuracy, entropy = mean([row["accuracy"] for row in at]), mean([row["entropy"] for row in at])
            cells.append(f"{accuracy:.1f} / {share:.1f} / {entropy:.3f}")
        rows.append([f"{training}, {LABELS[variant]}", *cells])
    scalars = [row["scalar"] for row in network["units"][0]["near"]]
    header = [
        "accuracy (%) / commonest prediction (%) / mean entropy over log C, at s =",
        *map(_power, scalars),
    ]
    return markdown_table(header, rows)


def _classes(network: dict[str, Any]) -> str:
    """Probabilities for the zero image by class, means over the seeds."""
    ways = ("long tail", "long tail, contrasts", "long tail, black images")
    shown = [(way, of(network["units"], way, variant), variant) for variant in LABELS for way in ways]
    shown = [group for group in shown if group[1]]
    prior = of(network["units"], "long tail")[0]["prior"]
    rows = []
    for index, name in enumerate(network["data"]["classes"]):
        cells = [
            f"{mean([unit['zero']['probabilities'][index] for unit in units]):.3f}" for _, units, _ in shown
        ]
        rows.append([f"{index}: {name}" if name != str(index) else name, f"{prior[index]:.3f}", *cells])
    header = ["class", "share of the long tail", *(f"{way}, {LABELS[variant]}" for way, _, variant in shown)]
    return markdown_table(header, rows)


def _known(references: list[dict[str, Any]]) -> str:
    header = [
        "network",
        "weights",
        "parameters",
        "input",
        "entropy / log C",
        "likeliest times C",
        "likeliest classes",
    ]
    rows = []
    for reference in references:
        weights = f"`{reference['checkpoint']}`" if reference["trained"] else "**none: untrained**"
        if "skipped" in reference:
            rows.append([weights, f"skipped: {reference['skipped']}", *["-"] * 5])
            continue
        for each in reference["inputs"]:
            probabilities = each["probabilities"]
            best = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])[:TOP]
            rows.append(
                [
                    reference["title"],
                    weights,
                    f"{reference['parameters']:,}",
                    each["input"],
                    f"{each['entropy']:.4f}",
                    f"{preference(each):.2f}",
                    ", ".join(f"{label} ({probabilities[label]:.4f})" for label in best),
                ]
            )
    note = (
        "\nA *black picture* is 0 before the mean is taken from it, the *zero tensor* after: the paper does not say "
        "which its zero image is. Weights from a file are taken to be trained ones. Untrained networks are shown for "
        "what they are, and compared with nothing.\n"
    )
    return markdown_table(header, rows) + note


def _each(values: list[Any], form: str) -> str:
    """Every seed's value, or one where they are equal."""
    said = [form.format(value) for value in values]
    return said[0] if len(set(said)) == 1 else " ".join(said)


def _power(scalar: float) -> str:
    return f"{scalar:g}" if scalar > 1e-3 else f"{scalar:.0e}"
