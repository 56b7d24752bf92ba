"""The Markdown of the ``convex-region`` experiment, from the metrics alone."""

from __future__ import annotations

from typing import Any

from zbkernels.experiments.combinations import KINDS
from zbkernels.experiments.convex_region_claims import verdicts
from zbkernels.report import markdown_table, mean, verdict_table

LABELS = {"with-bias": "with bias", "without-bias": "without bias"}
_SHARED = {"relu": "ReLU bits", "winner": "winners"}


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: verdicts, how many sets there are, how many of them break."""
    parts = [_heading(metrics), "## Claims\n", verdict_table(verdicts(metrics))]
    parts += ["## Groups of one pattern and one prediction\n", _groups(metrics)]
    parts += ["## Sets that break\n", _broken(metrics)]
    return "\n".join(parts)


def _heading(metrics: dict[str, Any]) -> str:
    data, training = metrics["data"], metrics["training"]
    low, high = (10.0**power for power in metrics["kinds"]["conic"])
    least, most = (10.0**power for power in metrics["kinds"]["extreme"])
    lines = [
        f"# convex-region, preset {metrics['preset']}\n",
        f"- Data: **{data['title']}**; {data['train_images']:,} training images are grouped, accuracy "
        f"is on {data['test_images']:,} "
        "test images.",
        f"- Training: {training['optimizer']}, learning rate {training['lr']}, {training['epochs']} "
        f"epochs, batch "
        f"{training['batch_size']}; {training['initialisation']}.",
        f"- A set is n images of one group. Of each, {metrics['points']:,} combinations of each kind, "
        f"in float32 and in float64: "
        f"*convex*, weights uniform on the simplex; *conic*, these times {low:g} to {high:g}; "
        f"*extreme*, times {least:g} or "
        f"{most:g}.",
        "- A set is broken where a combination leaves the linear piece (the pattern of ReLU bits; "
        "under a pool, of winners), and "
        "its class is broken where one has another prediction.",
    ]
    if data["note"]:
        lines.append(f"- Note on the data: {data['note']}.")
    return "\n".join(lines) + "\n"


def _alike(
    metrics: dict[str, Any],
) -> dict[tuple[str, str, str], list[tuple[dict[str, Any], dict[str, Any]]]]:
    """(network, variant, units) -> what was tried on each seed: (network's result, entry of its ``tried``)."""
    found: dict[tuple[str, str, str], list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for network in metrics["networks"]:
        for tried in network["tried"]:
            key = (network["network"], network["variant"], tried["units"])
            found.setdefault(key, []).append((network, tried))
    return found


def _groups(metrics: dict[str, Any]) -> str:
    alike = _alike(metrics)
    sizes = list(next(iter(alike.values()))[0][1]["at_least"])
    header = ["network", "variant", "inputs share", "seeds", "test accuracy (%)", "groups"]
    header += [*(f"of {size} or more" for size in sizes), "largest"]
    rows = []
    for (name, variant, units), found in alike.items():
        cells = [name, LABELS[variant], _SHARED[units], str(len(found))]
        cells.append(f"{mean([network['accuracy'] for network, _ in found]):.2f}")
        cells.append(f"{mean([tried['groups'] for _, tried in found]):,.0f}")
        cells += [f"{mean([tried['at_least'][size] for _, tried in found]):,.0f}" for size in sizes]
        cells.append(f"{max(tried['largest'] for _, tried in found):,}")
        rows.append(cells)
    return markdown_table(header, rows) + "\nMeans over the seeds; the largest group of all seeds.\n"


def _broken(metrics: dict[str, Any]) -> str:
    header = ["network", "variant", "inputs share", "n", "sets", "certified", "in float32 too"]
    header += [f"{kind}: broken" for kind in KINDS] + [f"{kind}: class broken" for kind in KINDS]
    header += ["float32 alone"]
    rows = []
    for (name, variant, units), found in _alike(metrics).items():
        for size in sorted({entry["vertices"] for _, tried in found for entry in tried["sets"]}):
            entries = [entry for _, tried in found for entry in tried["sets"] if entry["vertices"] == size]

            def add(
                key: str, kind: str, dtype: str = "float64", entries: list[dict[str, Any]] = entries
            ) -> int:
                return sum(entry[kind][dtype][key] for entry in entries)

            only = sum(add("left", kind, "float32") - add("left", kind) for kind in KINDS)
            rows.append(
                [
                    name,
                    LABELS[variant],
                    _SHARED[units],
                    str(size),
                    *(
                        str(sum(entry[key] for entry in entries))
                        for key in ("sets", "certified", "certified_float32")
                    ),
                    *(str(add("broken", kind)) for kind in KINDS),
                    *(str(add("broken_class", kind)) for kind in KINDS),
                    f"{only:+d}" if only else "0",
                ]
            )
    return markdown_table(header, rows) + (
        "\nSets of all seeds, in float64. *Float32 alone*: points outside the piece in float32, less "
        "those in float64. "
        "*Certified*: a cone without biases, a hull with them, in exact terms (zbkernels.nap.certify_hull).\n"
    )
