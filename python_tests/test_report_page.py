"""The page of `zb report`: whole, self-contained, escaped, and made of whatever folders hold."""

from __future__ import annotations

import base64
import dataclasses
import errno
import hashlib
import html
import json
import os
import re
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from html_pages import Page
from run_folders import HOSTILE, TABLE, cut_off, damaged, finished, network_folder, png, told
from typer.testing import CliRunner, Result

from zbkernels import experiments, report
from zbkernels.cli import app
from zbkernels.experiments.zero_image_figure import about_figure
from zbkernels.models import ARCHITECTURES, build
from zbkernels.reporting import find, read
from zbkernels.reporting.page import page
from zbkernels.reporting.pictures import embedded

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"


def page_of(*folders: Path) -> str:
    return page([read(folder) for folder in find(folders)], made=0)


def zb(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def check_structure(shown: Page) -> None:
    """What every page must be: one file, headings in order, named tables with scopes, pictures with words."""
    ids = [element["id"] for element in shown.elements if element["id"]]
    assert len(ids) == len(set(ids))
    level = 0
    for heading in shown.all("h1", "h2", "h3", "h4", "h5", "h6"):
        assert int(heading.tag[1]) <= level + 1, heading.text
        assert heading.text
        level = int(heading.tag[1])
    assert len(shown.all("h1")) == len(shown.all("main")) == len(shown.all("title")) == 1
    for element in shown.elements:
        assert not any(name.startswith("on") or name == "style" for name in element.attributes), element
        assert element.tag not in ("iframe", "object", "embed", "base", "form") or element["role"] == "search"
        if element.tag == "a":
            target = element["href"]
            assert target.startswith(("https://", "http://")) or target[1:] in ids, target
        elif element.tag == "img":
            assert element["src"].startswith("data:image/png;base64,")
            assert len(element["alt"]) > 20 and element["width"] and element["height"]
        else:
            assert not element["src"] and element["href"] in ("", "data:,")
    assert len(shown.all("script")) == len(shown.all("style")) == 1
    for kind in ("script", "style"):
        (element,) = shown.all(kind)
        text = "".join(element.pieces)
        assert "url(" not in text and "@import" not in text and "fetch(" not in text
        policy = next(meta["content"] for meta in shown.all("meta") if meta["http-equiv"])
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy and "default-src 'none'" in policy
    captions = [element.text for element in shown.all("caption")]
    assert len(captions) == len(shown.all("table")) and all(captions)
    for cell in shown.all("th"):
        assert cell["scope"] == ("col" if "thead" in cell.parents else "row") and cell.text


def test_a_finished_run_is_shown_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch)
    finished(tmp_path / "out/told-paper", seconds=75.0)
    text = page_of(tmp_path)
    shown = Page(text)
    check_structure(shown)
    assert shown.all("h1")[0].text == "2 of 3 claims hold"
    cells = [element.text for element in shown.all("td", "th")]
    for wanted in (
        "88.12",
        "75.07",
        "paper",
        "ours",
        "does not hold",
        "not testable here",
        "1 min 15 s",
        "2.3",
    ):
        assert wanted in cells, wanted
    assert "2 of 3, 1 not testable" in cells
    (figure,) = shown.all("img")
    assert "A grey field" in figure["alt"] and "2 of the 3 claims tested hold" in figure["alt"]
    assert base64.b64decode(figure["src"].split(",")[1]) == png(40, 30)
    assert "0, 1" in [element.text for element in shown.all("dd")]
    deeper = [
        element.tag
        for element in shown.all("h3", "h4", "h5")
        if element.text in ("Of one seed", "And deeper")
    ]
    assert deeper == ["h4", "h5"]


def test_what_files_say_is_text_whatever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, title=HOSTILE[0])
    rows = "\n".join(f"| {text} | {text} | {text} |" for text in HOSTILE)
    text = TABLE + "\n\n".join(HOSTILE) + "\n\n".join(f"\n## {text}\n\nx" for text in HOSTILE)
    text += "\n## Claims\n\n| claim of the paper | verdict | measured |\n| --- | --- | --- |\n" + rows
    text += (
        "\n\n| "
        + " | ".join(HOSTILE)
        + " |\n|"
        + " --- |" * len(HOSTILE)
        + f"\n{rows}\n\n```html\n{HOSTILE[2]}\n```\n"
    )
    named = dict(enumerate(HOSTILE))
    run = finished(
        tmp_path / "<b onclick=1>",
        text,
        environment={HOSTILE[1]: HOSTILE[2], "started": named, "torch": HOSTILE[0]},
    )
    metrics = json.loads((run / "metrics.json").read_text())
    (run / "metrics.json").write_text(json.dumps({**metrics, "preset": HOSTILE[2]}))
    unit = cut_off(tmp_path / "other") / "units" / '<img src="x" onerror="1">'
    unit.mkdir()
    (unit / "settings.json").write_text(json.dumps({"epochs": HOSTILE[0]}))
    (unit / "result.json").write_text(HOSTILE[0])
    (tmp_path / "third").mkdir()
    (tmp_path / "third/metrics.json").write_text(json.dumps({"experiment": HOSTILE[2]}))
    made = page_of(tmp_path)
    shown = Page(made)
    check_structure(shown)
    assert "<script>window" not in made and "onerror=&#34;" in made
    for text in HOSTILE[:3]:
        assert made.count(html.escape(text)) + made.count(html.escape(text).replace("&quot;", "&#34;")) > 3, (
            text
        )
    assert all("javascript" not in element["href"] for element in shown.elements)
    assert "{{ 7 * 7 }}" in shown.all("main")[0].text
    assert 'src="https' not in made


def test_runs_that_are_not_whole_are_shown_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch)
    finished(tmp_path / "good")
    cut_off(tmp_path / "half")
    assert (read(tmp_path / "half").name, read(tmp_path / "half").preset) == ("half", "")
    named = read(cut_off(tmp_path.parent / f"{tmp_path.name}-other/table1-mnist-smoke"))
    assert (named.name, named.preset, named.state) == ("table1-mnist", "smoke", "unfinished")
    (tmp_path / "timed").mkdir()
    row = {"form": "fused", "label": "fused layers", "seconds": 1.25, "cpu": 2.0, "kernel": "cpu"}
    about = {"images": 60000, "batch_size": 512, "turn": 20, "threads": 1, "device": "cpu", "torch": "2.13.0"}
    (tmp_path / "timed/timing.json").write_text(json.dumps({"rows": [row], **about}))
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun/config.json").write_text('{"settings": {}}')
    bad = damaged(tmp_path / "bad")
    runs = {run.folder.name: run for run in map(read, find([tmp_path, tmp_path / "good"]))}
    assert len(runs) == 4 + len(bad)
    states = {name: run.state for name, run in runs.items()}
    assert all(states.pop(path.name) == "damaged" for path in bad)
    assert states == {"good": "finished", "half": "unfinished", "begun": "unfinished", "timed": "timed only"}
    assert [(unit.name, unit.done) for unit in runs["half"].units] == [
        ("a", "finished"),
        ("b", "3 of 20 epochs"),
        ("c", "begun"),
    ]
    assert "1 of the 3 units" in runs["half"].notes[0]
    unit = tmp_path / "half/units/b"
    (unit / "checkpoint.json").rename(unit / "checkpoint-before.json")  # from which the run goes on
    assert read(tmp_path / "half").units == runs["half"].units
    shown = Page(page(list(runs.values())))
    check_structure(shown)
    said = shown.all("main")[0].text
    for wanted in (
        "88.12",
        "not JSON",
        "cannot be read",
        "figure.png is not shown: not a PNG file",
        "3 of 20 epochs",
    ):
        assert wanted in said, wanted
    assert said.count("not the metrics of an experiment") >= 4


def test_smoke_runs_are_marked_and_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch)
    run = finished(tmp_path / "paper", seconds=90)
    for preset in ("smoke", "quick"):
        metrics = json.loads((finished(tmp_path / preset) / "metrics.json").read_text())
        (tmp_path / preset / "metrics.json").write_text(json.dumps({**metrics, "preset": preset}))
    badge = "smoke preset: a check that it runs, no verdict on the paper"
    shown = Page(page([read(run), read(tmp_path / "smoke")]))
    check_structure(shown)
    assert shown.all("h1")[0].text == "2 of 3 claims hold"
    assert [element["class"] for element in shown.all("article")] == ["", "smoke"]
    rows = [
        element.text for element in shown.all("tr") if "told" in element.text and "finished" in element.text
    ]
    assert [(badge in text, "not recorded" in text) for text in rows] == [(False, False), (True, True)]
    alone = page([read(tmp_path / "smoke")])
    assert Page(alone).all("h1")[0].text == "1 run" and "claims hold" not in alone.split("</title>")[0]
    assert "do not hold" not in alone and badge in alone
    assert "quick preset" in page([read(tmp_path / "quick")])
    assert f"2 of 3 claims hold ({badge})" in zb("report", tmp_path, "--no-redraw").stdout


@pytest.mark.skipif(not RESULTS.exists(), reason="an installed package has no docs")
def test_the_figure_of_the_zero_image_is_told_as_it_is() -> None:
    metrics = json.loads((RESULTS / "zero-image/metrics.json").read_text(encoding="utf-8"))
    run = read(RESULTS / "zero-image")
    assert run.about_figure.startswith("A row for each network: trained as usual, trained on a long tail")
    assert run.about_figure.endswith("Known networks below.")
    (first, *_), usual = metrics["networks"], []
    usual = [unit for unit in first["units"] if unit["training"] == "balanced"]
    alone = {"networks": [{**first, "units": usual}], "references": []}
    assert about_figure(alone) == "One network: trained as usual, entropies."


def test_no_runs_still_make_a_page() -> None:
    check_structure(Page(page([])))


def test_folders_are_searched_deep_but_not_through_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch)
    deep = finished(tmp_path / "a/b/c/run")
    finished(tmp_path / "a/b/.hidden/run")
    (tmp_path / "a/loop").symlink_to(tmp_path / "a")
    (deep / "units/one").mkdir(parents=True)
    (deep / "units/one/config.json").write_text("{}")
    assert list(find([tmp_path, deep])) == [deep]
    assert list(find([deep.parent / "run"])) == [deep]


def test_only_what_a_run_left_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch)
    network_folder(tmp_path / "network")
    zb_network = build(ARCHITECTURES["cnn-fashion"], (1, 8, 8), 4)
    zb_network.save_pretrained(tmp_path / "ours")
    assert list(find([tmp_path])) == []
    contents = {
        "settings-are-no-object": '{"settings": 3}',
        "list": "[]",
        "cut": '{"model_type": ',
        "deep": "[" * 9999,
    }
    for name, text in contents.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    (tmp_path / "school/units/algebra").mkdir(parents=True)  # units of another kind
    inside = finished(tmp_path / "school/units/told-paper")
    os.mkfifo(tmp_path / "list/other.json")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe/config.json")
    huge = {"model_type": "bert", "vocabulary": "x" * (2 << 20), "settings": {}}
    (tmp_path / "cut/config.json").write_text(json.dumps(huge))
    assert list(find([tmp_path])) == [inside]
    assert "no finished run" in zb("report", tmp_path / "network").stderr
    begun, cut = tmp_path / "told-a", tmp_path / "told-b"
    for folder, text in ((begun, '{"seconds": 3, "settings": {}}'), (cut, '{"settings": {"experiment": "to')):
        folder.mkdir()
        (folder / "config.json").write_text(text)
    units = cut_off(tmp_path / "told-c")
    assert list(find([tmp_path])) == [inside, begun, cut, units]
    assert [read(each).state for each in (begun, cut, units)] == ["unfinished", "damaged", "unfinished"]


@pytest.mark.parametrize(
    ("seconds", "took"),
    [
        ("NaN", "7.0 s"),
        ("1e999", "7.0 s"),
        ("-1", "7.0 s"),
        ("true", "7.0 s"),
        ('"90"', "7.0 s"),
        ("1" + 400 * "0", "7.0 s"),
        ("90", "1 min 30 s"),
        ("0", "0.0 s"),
    ],
)
def test_a_time_that_is_none_is_not_shown(
    seconds: str, took: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch)
    run = finished(tmp_path / "run")
    metrics = json.loads((run / "metrics.json").read_text())
    units = [
        '{"train_seconds": 7}',
        *(f'{{"train_seconds": {bad}}}' for bad in ("NaN", "1e999", "true", "9" * 400)),
    ]
    (run / "metrics.json").write_text(json.dumps(metrics)[:-1] + f', "units": [{", ".join(units)}]}}')
    (run / "config.json").write_text(f'{{"settings": {{}}, "seconds": {seconds}}}')
    cells = [element.text for element in Page(page_of(run)).all("td")]
    assert took in cells and "not recorded" not in cells
    two = ", ".join(['{"train_seconds": 1e308}'] * 2)  # together more than a float holds
    (run / "metrics.json").write_text(json.dumps(metrics)[:-1] + f', "units": [{two}]}}')
    (run / "config.json").unlink()
    assert "not recorded" in [element.text for element in Page(page_of(run)).all("td")]


def test_a_folder_of_odd_text_keeps_no_other_run_from_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a surrogate pair, a name that is not UTF-8, settings nested as deeply as JSON is read, a pipe."""
    told(monkeypatch)
    finished(tmp_path / "runs/good")
    odd = finished(tmp_path / "runs/odd", TABLE.replace("What it is", "What it is \ud800"))
    deep = '{"a": [' * 200 + "]}" * 200
    config = '{"settings": {"experiment": "\\ud800", "deep": %s}, "environment": {"torch": %s, "started": "\\udfff"}}'
    (odd / "config.json").write_text(config % (deep, deep))
    name = os.fsdecode(os.fsencode(tmp_path) + b"/runs/b\xffd")
    finished(Path(name))
    cut = cut_off(tmp_path / "runs/half")
    (cut / "config.json").write_text('{"settings": {"experiment": "\\udc00", "preset": "\\udc00"}}')
    os.mkfifo(cut / "timing.json")
    several = zb("report", tmp_path / "runs")
    assert several.exit_code == 1 and "timing.json: not a file" in several.stderr, several.output
    assert "1 of 4 runs" in several.stderr
    assert f"{tmp_path}/runs/b\\udcffd: finished, 2 of 3 claims hold" in several.stdout
    shown = Page((tmp_path / "runs/report.html").read_text(encoding="utf-8"))
    check_structure(shown)
    assert len(shown.all("article")) == 4
    said = shown.all("main")[0].text
    assert "What it is \ufffd" in said and "/runs/b\ufffdd" in said
    for folder in (odd, name):
        alone = zb("report", folder)
        assert alone.exit_code == 0, alone.output
        assert "| paper | 88.12 | 79.52 |" in alone.stdout
    assert "What it is \\ud800" in zb("report", odd).stdout


def test_pictures_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    path.write_bytes(png(300, 200))
    assert (embedded(path).width, embedded(path).height) == (300, 200)
    bomb = bytearray(png(8, 8))
    bomb[16:24] = struct.pack(">II", 60_000, 60_000)
    path.write_bytes(bomb)
    with pytest.raises(ValueError, match="60,000 × 60,000 pixels"):
        embedded(path)
    path.write_bytes(b"GIF89a" + bytes(100))
    with pytest.raises(ValueError, match="not a PNG"):
        embedded(path)
    image = pytest.importorskip("PIL.Image", reason="pillow makes large pictures smaller")
    path.write_bytes(png(3000, 1500))
    small = embedded(path)
    assert (small.width, small.height) == (2400, 1200)
    path.write_bytes(png(3000, 1500)[:2000])
    with pytest.raises(ValueError, match="cannot be decoded"):
        embedded(path)
    no_palette = bytearray(png(3000, 4))
    no_palette[25] = 3  # of colours in a palette, which is not there
    no_palette[29:33] = struct.pack(">I", zlib.crc32(no_palette[12:29]))
    path.write_bytes(no_palette)
    with pytest.raises(ValueError, match="cannot be decoded"):
        embedded(path)
    noise = image.effect_noise((1500, 1400), 90)
    noise.save(path)
    assert path.stat().st_size > 1_500_000
    assert len(base64.b64decode(embedded(path).uri.split(",")[1])) <= 1_500_000


@pytest.mark.skipif(not RESULTS.exists(), reason="an installed package has no docs")
def test_the_committed_results_are_all_there() -> None:
    runs = [read(folder) for folder in find([RESULTS])]
    folders = sorted(path.parent.name for path in RESULTS.glob("*/metrics.json"))
    assert sorted(run.folder.name for run in runs) == folders
    assert {run.state for run in runs} == {"finished"}
    assert not any(run.notes for run in runs)
    made = page(runs)
    shown = Page(made)
    check_structure(shown)
    tables = [(RESULTS / name / "table.md").read_text(encoding="utf-8") for name in folders]
    hold, fail = (sum(text.count(f"| **{said}") for text in tables) for said in ("holds", "does not hold"))
    assert shown.all("h1")[0].text == f"{hold} of {hold + fail} claims hold"
    assert len(shown.all("article")) == len(folders)
    cells = {element.text for element in shown.all("th", "td")}
    for text in tables:
        for line in text.splitlines():
            if line.startswith("| ") and "---" not in line:
                for cell in re.split(r"(?<!\\)\|", line.strip("| ")):
                    plain = cell.strip().replace("**", "").replace("`", "").replace("*", "").replace("\\", "")
                    assert (
                        plain in cells or plain == "claim of the paper" or plain in ("verdict", "measured")
                    ), plain
    assert len(made) < 16_000_000


def test_the_command_writes_the_page_and_tells_of_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch)
    run = finished(tmp_path / "out/a")
    one = zb("report", run)
    assert one.exit_code == 0, one.output
    assert "| paper | 88.12 | 79.52 |" in one.stdout and str(run / "figure.png") in one.stdout
    assert (run / "table.md").read_text() == TABLE
    assert (run / "figure.png").read_bytes() == png(8, 6)
    assert "2 of 3 claims hold" in (run / "report.html").read_text()
    (run / "table.md").unlink()
    second = finished(tmp_path / "more/b")
    several = zb("report", tmp_path / "out", second, "--no-redraw", "--out", tmp_path / "deep/all.html")
    assert several.exit_code == 0, several.output
    assert f"{run}: finished, 2 of 3 claims hold" in several.stdout
    assert len(Page((tmp_path / "deep/all.html").read_text()).all("article")) == 2
    assert not (run / "table.md").exists()
    damaged(tmp_path / "out/bad")
    told_of = zb("report", tmp_path / "out")
    assert told_of.exit_code == 1
    assert len(told_of.stderr.splitlines()) == 1 and "9 of 10 runs are damaged" in told_of.stderr
    assert len(Page((tmp_path / "out/report.html").read_text()).all("article")) == 10


def test_what_cannot_be_written_again_is_shown_as_it_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch)
    run = finished(tmp_path / "run")

    def refusing(error: Exception) -> Callable[[Path], str]:
        def rewrite(path: Path) -> str:
            raise error

        return rewrite

    for error in (OSError(errno.EROFS, "Read-only file system"), ModuleNotFoundError(name="matplotlib")):
        monkeypatch.setattr("zbkernels.reporting.command.rewrite", refusing(error))
        result = zb("report", run, "--out", tmp_path / "page.html")
        assert result.exit_code == 0, result.output
        said = Page((tmp_path / "page.html").read_text()).all("main")[0].text
        assert "Read-only file system" in said or "matplotlib is not installed" in said
        assert "88.12" in said


def test_a_figure_that_cannot_be_drawn_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch)

    def figure(metrics: dict[str, Any], path: Path) -> None:
        """Write the PNG: nothing."""
        raise KeyError("scalars")

    module = sys.modules[experiments.EXPERIMENTS["told"]]
    monkeypatch.setattr(module, "EXPERIMENT", dataclasses.replace(module.EXPERIMENT, figure=figure))
    run = finished(tmp_path / "run")
    for _ in range(2):
        result = zb("report", run)
        assert result.exit_code == 0, result.output
        assert (run / "table.md").read_text() == TABLE and (run / "figure.png").read_bytes() == png(40, 30)
        said = [element.text for element in Page((run / "report.html").read_text()).all("li")]
        wanted = f"Not drawn again: {run / 'metrics.json'}: table.md and figure.png cannot be made of it"
        assert f"{wanted} (KeyError: 'scalars')." in said
    assert "Not drawn again" not in page_of(run)
    (run / "metrics.json").write_text('{"experiment": "told"}')  # damaged: said once
    assert zb("report", run).exit_code == 1
    assert "Not drawn again" not in (run / "report.html").read_text()


def test_what_is_no_folder_of_runs_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch)
    file = tmp_path / "file"
    file.write_text("")
    (tmp_path / "empty").mkdir()
    run = finished(tmp_path / "run")
    for arguments, wanted in (
        ([tmp_path / "nowhere"], "no such folder"),
        ([file], "a file, expected a folder"),
        ([run, file], "a file, expected a folder"),
        ([tmp_path / "empty"], "no finished run"),
        ([run, "--out", tmp_path], "a folder, expected the name of the page"),
        ([run, "--out", file / "x.html"], "a file stands where a folder is needed"),
    ):
        result = zb("report", *arguments)
        assert result.exit_code == 1, result.output
        assert wanted in result.stderr and len(result.stderr.splitlines()) == 1
    with pytest.raises(report.ReportError, match="not the metrics"):
        report.rewrite(damaged(tmp_path / "bad")[0])
