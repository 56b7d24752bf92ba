"""Runs as they lie in folders: finished, cut off, timed only or damaged. What is wrong with one is said, not raised."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FINISHED, UNFINISHED, TIMED, DAMAGED = "finished", "unfinished", "timed only", "damaged"
STATES = (FINISHED, UNFINISHED, TIMED, DAMAGED)
_MARKS = ("metrics.json", "timing.json")  # either makes a folder a run; so do a run's config.json and units/
SMOKE = "smoke"
BADGES = {
    SMOKE: "smoke preset: a check that it runs, no verdict on the paper",
    "quick": "quick preset: a smaller run than the paper's",
}
_MOST_BYTES = (
    256 << 20
)  # of a JSON or Markdown file that is read: the largest committed metrics have a hundredth
_MOST_CONFIG = 1 << 20  # of a config.json that is looked into before it is known to be a run's
_DEEPEST = 12  # folders below the given one


@dataclass(frozen=True)
class UnitState:
    """One network of a run that is not finished: how far it is."""

    name: str
    done: str


@dataclass
class Run:
    """What one folder holds.

    Attributes:
        state: one of ``STATES``. A damaged run may still have a table and a figure, from before.
        name: of the experiment; where the folder does not say, the folder's own.
        table: Markdown.
        figures: PNG files, the run's own first.
        about_figure: what the experiment says of its figure, for those who do not see it.
        notes: what is wrong or missing, a sentence each.
    """

    folder: Path
    state: str = FINISHED
    name: str = ""
    preset: str = ""
    title: str = ""
    source: str = ""
    table: str | None = None
    figures: list[Path] = field(default_factory=list)
    about_figure: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    units: list[UnitState] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def badge(self) -> str:
        """What keeps its verdicts from being the paper's; "" of a run of the paper's kind."""
        return BADGES.get(self.preset, "")

    @property
    def smoke(self) -> bool:
        """Whether it only shows that the experiment runs: its verdicts do not count."""
        return self.preset == SMOKE


def find(folders: Iterable[Path]) -> Iterator[Path]:
    """The folders of runs in and below ``folders``, each once, in the order of their names.

    What is within a run (its units) is no run, hidden folders and links to folders are not entered, and a folder that
    may not be read is passed over.
    """
    seen: set[Path] = set()
    for top in folders:
        for here, below, files in os.walk(top):
            folder = Path(here)
            marked = (
                any(name in files for name in _MARKS)
                or ("config.json" in files and _is_config(folder / "config.json"))
                or ("units" in below and _has_units(folder / "units"))
            )
            if len(folder.parts) - len(top.parts) >= _DEEPEST:
                below.clear()
            below[:] = sorted(
                name
                for name in below
                if not name.startswith(".")
                and not (marked and name == "units")
                and not (folder / name).is_symlink()
            )
            resolved = folder.resolve()
            if marked and resolved not in seen:
                seen.add(resolved)
                yield folder


def _is_config(path: Path) -> bool:
    """Whether a config.json has settings, as a run's does: other programs, and saved networks, have files of that
    name."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            text = file.read(_MOST_CONFIG)
    except OSError:
        return False
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):  # a damaged one, or only the beginning
        return b'"settings"' in text
    return isinstance(config, dict) and isinstance(config.get("settings"), dict)


def _has_units(folder: Path) -> bool:
    """Whether the folders in units/ are a run's: each of those has its settings from when it begins."""
    try:
        with os.scandir(folder) as entries:
            return any(os.path.isfile(os.path.join(entry.path, "settings.json")) for entry in entries)
    except OSError:
        return False


def read(folder: Path) -> Run:
    """All that ``folder`` says of its run. Never raises on what the files hold."""
    run = Run(folder, name=folder.resolve().name)
    config = _json(run, "config.json")
    metrics = _json(run, "metrics.json")
    timing = _json(run, "timing.json")
    run.settings = _mapping(config.get("settings"))
    run.environment = _mapping(config.get("environment"))
    run.seconds = _duration(config.get("seconds"))
    if run.seconds is None:
        run.seconds = _training_seconds(metrics)
    name = metrics.get("experiment", run.settings.get("experiment"))
    preset = metrics.get("preset", run.settings.get("preset"))
    run.preset = preset if isinstance(preset, str) else ""
    _describe(run, name if isinstance(name, str) else "")
    if os.path.exists(folder / "metrics.json"):
        _read_finished(run, metrics)
    else:
        _read_cut_off(run, timing)
    run.figures = [path for path in sorted(folder.glob("*.png"), key=_figure_first) if os.path.isfile(path)]
    return run


def _read_finished(run: Run, metrics: dict[str, Any]) -> None:
    from zbkernels.experiments import get

    if run.state != DAMAGED:
        try:
            table = get(run.name).table(metrics)
            if not isinstance(table, str):
                raise TypeError(f"its table is a {type(table).__name__}")
            run.table = table
            about = get(run.name).about_figure
            run.about_figure = about(metrics) if about is not None else run.about_figure
        except Exception as error:  # whatever a damaged file makes a report's arithmetic do
            _damaged(run, f"metrics.json: not the metrics of an experiment ({_said(error)})")
    if run.table is None:
        run.table = _text(run, "table.md")
        if run.table is not None:
            run.notes.append(
                "The tables are those that lie in table.md; they were not made from the metrics."
            )


def _read_cut_off(run: Run, timing: dict[str, Any]) -> None:
    from zbkernels.experiments.epoch_timing import table

    if timing and run.state != DAMAGED:
        try:
            run.table = table(timing)
        except Exception as error:
            _damaged(run, f"timing.json: not the times of an experiment's epochs ({_said(error)})")
    for path in sorted((run.folder / "units").glob("*")):
        if os.path.isdir(path):
            run.units.append(UnitState(path.name, _how_far(run, path)))
    if run.state == DAMAGED:
        return
    if timing and not run.units:
        run.state = TIMED
        return
    run.state = UNFINISHED
    done = sum(unit.done == "finished" for unit in run.units)
    if run.units:
        run.notes.append(
            f"Not finished: {done} of the {len(run.units)} units begun are done. The same “zb run” goes on."
        )
    else:
        run.notes.append("Not finished: there are no metrics. The same “zb run” goes on.")


def _how_far(run: Run, unit: Path) -> str:
    where = f"units/{unit.name}"
    if os.path.exists(unit / "result.json"):
        before = run.state
        _json(run, f"{where}/result.json")
        return "damaged" if run.state == DAMAGED != before else "finished"
    epochs = _json(run, f"{where}/settings.json").get("epochs")
    kept = [name for name in ("checkpoint.json", "checkpoint-before.json") if os.path.exists(unit / name)]
    if not kept:
        return "begun"
    history = _mapping(_json(run, f"{where}/{kept[0]}").get("meta")).get("history")
    done = len(history) if isinstance(history, list) else 0
    return f"{done} of {epochs} epochs" if isinstance(epochs, int) else f"{done} epochs"


def _describe(run: Run, name: str) -> None:
    """Title, source and figure's description of the experiment ``name``, where there is one of that name."""
    from zbkernels.experiments import EXPERIMENTS, get

    if not name:  # a run that was cut off has no file yet that says it, but a folder of its own: NAME-PRESET
        folder = run.name
        name = max((each for each in EXPERIMENTS if folder.startswith(f"{each}-")), key=len, default="")
        run.preset = folder[len(name) + 1 :] if name else ""
    if not name:
        return
    run.name = name
    if name not in EXPERIMENTS:
        return
    experiment = get(name)
    run.title, run.source = experiment.title, experiment.source
    said = " ".join((experiment.figure.__doc__ or "").split("\n\n")[0].split())
    said = said.removeprefix("Write the PNG").lstrip(":. ")
    run.about_figure = said[:1].upper() + said[1:]


def _figure_first(path: Path) -> tuple[bool, str]:
    return path.name != "figure.png", path.name


def _training_seconds(metrics: dict[str, Any]) -> float | None:
    """What the networks' training took together, where the metrics tell it."""
    units = metrics.get("units")
    found = [
        seconds
        for unit in (units if isinstance(units, list) else [])
        if isinstance(unit, dict) and (seconds := _duration(unit.get("train_seconds"))) is not None
    ]
    return _duration(sum(found)) if found else None


def _duration(value: Any) -> float | None:
    """Seconds, where the value of a file can be any."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= sys.float_info.max else None  # no NaN, nor what no float holds


def _json(run: Run, name: str) -> dict[str, Any]:
    """The object in a JSON file of the run; an empty one where there is none, or where it is damaged."""
    text = _text(run, name)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        _damaged(run, f"{name}: not JSON ({_said(error)})")
        return {}
    if not isinstance(value, dict):
        _damaged(run, f"{name}: expected a JSON object, got {type(value).__name__}")
        return {}
    return value


def _text(run: Run, name: str) -> str | None:
    path = run.folder / name
    try:
        if not path.exists():
            return None
        if not path.is_file():  # a pipe would be waited for
            _damaged(run, f"{name}: not a file")
            return None
        size = path.stat().st_size
        if size > _MOST_BYTES:
            _damaged(run, f"{name}: {size:,} bytes, more than the {_MOST_BYTES:,} that are read")
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        _damaged(run, f"{name}: cannot be read ({_said(error)})")
        return None


def _damaged(run: Run, note: str) -> None:
    run.state = DAMAGED
    run.notes.append(note)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
