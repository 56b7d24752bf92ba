"""The page: one HTML file that asks for nothing outside itself, and works without its script."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from zbkernels._version import __version__
from zbkernels.experiments import EXPERIMENTS
from zbkernels.experiments.progress import duration
from zbkernels.files import write_text
from zbkernels.reporting import markdown
from zbkernels.reporting.pictures import Picture, embedded
from zbkernels.reporting.runs import FINISHED, STATES, Run

_BAR = 120  # units of the verdicts' bar
_ORDER = ("holds", "within", "fails", "untested")
_DEEPEST = 8  # lists in lists of a setting that are shown
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON and names of files can hold a lone one, UTF-8 cannot


@dataclass
class _Figure:
    name: str
    picture: Picture
    alt: str


@dataclass
class _Shown:
    """A run as the template wants it."""

    run: Run
    id: str
    report: markdown.Report
    figures: list[_Figure]
    facts: list[tuple[str, str]]
    settings: list[tuple[str, str]]

    @property
    def tested(self) -> int:
        return sum(count for kind, count in self.report.verdicts.items() if kind != "untested")

    @property
    def hold(self) -> int:
        return self.report.verdicts["holds"] + self.report.verdicts["within"]

    @property
    def untested(self) -> int:
        return self.report.verdicts["untested"]

    @property
    def share(self) -> float:
        """For sorting: of the claims that hold among those tested; without any, below all."""
        return self.hold / self.tested if self.tested else -1.0

    @property
    def bar(self) -> list[tuple[str, float, float]]:
        """(kind, start, length) of each kind of verdict, along the bar."""
        total = sum(self.report.verdicts.values())
        out, start = [], 0.0
        for kind in _ORDER:
            length = round(_BAR * self.report.verdicts[kind] / total, 2) if total else 0.0
            if length:
                out.append((kind, round(start, 2), length))
            start += length
        return out

    @property
    def took(self) -> str:
        if self.run.seconds is not None:
            return duration(self.run.seconds)
        return "not recorded" if self.run.state == FINISHED else ""

    @property
    def started(self) -> str:
        return _text(self.run.environment.get("started", ""))[:10]

    @property
    def torch(self) -> str:
        return _text(self.run.environment.get("torch", ""))


def write_page(runs: Sequence[Run], out: Path, made: float | None = None) -> None:
    """Write the page of ``runs`` to ``out``, as a whole or not at all.

    Args:
        made: seconds since the epoch that the page says; None: now.

    Raises:
        OSError: ``out`` cannot be written.
    """
    write_text(out, page(runs, made))


def page(runs: Sequence[Run], made: float | None = None) -> str:
    """The HTML of the page. What the runs' files hold is text there, whatever they hold."""
    ranks = {name: rank for rank, name in enumerate(EXPERIMENTS)}
    ordered = sorted(
        runs, key=lambda run: (ranks.get(run.name, len(ranks)), run.name, run.preset, str(run.folder))
    )
    used: Counter[str] = Counter()
    shown = [_shown(run, used) for run in ordered]
    totals: Counter[str] = Counter()
    for each in shown:
        if not each.run.smoke:
            totals.update(each.report.verdicts)
    environment = Environment(
        loader=PackageLoader("zbkernels.reporting", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = (_source(environment, name) for name in ("page.css", "page.js"))
    html = environment.get_template("page.html.jinja").render(
        shown=shown,
        smoke=sum(each.run.smoke and each.tested > 0 for each in shown),
        same=Counter(run.name for run in ordered),
        totals=totals,
        tested=sum(totals[kind] for kind in _ORDER if kind != "untested"),
        hold=totals["holds"] + totals["within"],
        states=[(state, count) for state in STATES if (count := sum(run.state == state for run in ordered))],
        finished=FINISHED,
        version=__version__,
        made=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(made)),
        bar=_BAR,
        style=Markup(style),
        script=Markup(script),
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'",
    )
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", html)


def _shown(run: Run, used: Counter[str]) -> _Shown:
    name = markdown.slug(f"{run.name}-{run.preset}")
    used[name] += 1
    identity = name if used[name] == 1 else f"{name}-{used[name]}"
    try:
        report = markdown.render(run.table or "", identity)
    except Exception as error:  # a file that breaks the parser must not take the other runs away
        report = markdown.Report()
        run.notes.append(f"table.md: cannot be shown ({type(error).__name__})")
    for section in report.sections:
        section.html = Markup(section.html)
    shown = _Shown(run, identity, report, [], _pairs(run.environment), _pairs(run.settings))
    for path in run.figures:
        try:
            picture = embedded(path)
        except (OSError, ValueError) as error:
            run.notes.append(f"{path.name} is not shown: {error}")
            continue
        shown.figures.append(_Figure(path.name, picture, _alt(shown, path)))
    if run.state == FINISHED and not run.figures:
        run.notes.append("There is no figure.png; “zb report” draws it where matplotlib is installed.")
    return shown


def _alt(shown: _Shown, path: Path) -> str:
    """What a reader who does not see the figure is told: what it shows, what came out, where the numbers are."""
    run = shown.run
    parts = [f"Figure of {run.name}"]
    if path.name != "figure.png":
        parts[0] += f", {path.stem.replace('-', ' ').replace('_', ' ')}"
    parts.append(run.title)
    if path.name == "figure.png":
        parts.append(run.about_figure)
    if shown.tested:
        parts.append(f"{shown.hold} of the {shown.tested} claims tested hold")
    if run.badge:
        parts.append(run.badge)
    if shown.report.sections:
        parts.append("The numbers are in the tables of this run")
    return ". ".join(part.rstrip(".") for part in parts if part) + "."


def _pairs(values: dict[str, Any]) -> list[tuple[str, str]]:
    return [(str(key).replace("_", " "), _text(value)) for key, value in values.items()]


def _text(value: Any, depth: int = 0) -> str:
    if value is None:
        return "none"
    if depth > _DEEPEST and isinstance(value, (list, dict)):
        return "…"
    if isinstance(value, list):
        return ", ".join(_text(inner, depth + 1) for inner in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(inner, depth + 1)}" for key, inner in value.items()) or "none"
    return str(value)


def _source(environment: Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _hash(text: str) -> str:
    """The source expression that lets exactly this inline text be used."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
