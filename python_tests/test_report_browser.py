"""The page of `zb report` in a browser: contrast and width, what a screen reader is told, search, sort, printing."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browser import Tab, browsing
from run_folders import HOSTILE, TABLE, cut_off, damaged, finished, told

from zbkernels.reporting import find, read, write_page

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
COMMITTED = ("table1-mnist", "spectra", "trained-kernels")  # a plain one, sums and signs, the longest tables

# Every piece of text that is seen, with less contrast to what is behind it than WCAG AA asks for.
FAINT = """
(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].reduce((sum, part, i) => {
    const c = part / 255;
    return sum + [0.2126, 0.7152, 0.0722][i] * (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  }, 0);
  const faint = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    if (element.closest("script, style, option")) continue;
    const style = getComputedStyle(element);
    let behind = element;
    let ground = [0, 0, 0, 0];
    while (behind && (ground = rgb(getComputedStyle(behind).backgroundColor)).length === 4 && ground[3] < 1)
      behind = behind.parentElement;
    const [a, b] = [light(rgb(style.color)), light(ground)].sort((x, y) => y - x);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    if ((a + 0.05) / (b + 0.05) < (large ? 3 : 4.5))
      faint.add(`${element.tagName}.${element.className}: ${style.color}`);
  }
  return [...faint];
})()
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        told(patch)
        finished(folder / "good")
        finished(folder / "hostile", TABLE + "\n\n".join(HOSTILE), environment={HOSTILE[1]: HOSTILE[0]})
        cut_off(folder / "half")
        damaged(folder / "bad")
        committed = [RESULTS / name for name in COMMITTED if (RESULTS / name).exists()]
        out = folder / "report.html"
        write_page([read(run) for run in find([folder, *committed])], out)
    yield out


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browsing(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_and_can_be_read(tab: Tab, page: Path, width: int, dark: bool, tmp_path: Path) -> None:
    tab.events.clear()
    tab.open(page, width=width, dark=dark)
    assert tab.js("document.documentElement.scrollWidth <= innerWidth")
    assert tab.js(FAINT) == []
    assert tab.js("[...document.images].every((image) => image.getBoundingClientRect().width <= innerWidth)")
    assert tab.requests() == [page.as_uri()]
    assert tab.complaints() == []
    assert tab.js("window.hacked") is None
    picture = base64.b64decode(tab("Page.captureScreenshot", format="png")["data"])
    (tmp_path / "page.png").write_bytes(picture)
    assert len(picture) > 20_000
    ground = tab.js("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (max(ground) < 60) == dark


def test_faint_text_is_found(tab: Tab, page: Path) -> None:
    tab.open(page)
    tab.js("document.querySelector('.lead').setAttribute('class', 'faint')")
    tab.js("document.styleSheets[0].insertRule('.faint { color: #999 }')")
    assert tab.js(FAINT) == ["P.faint: rgb(153, 153, 153)"]


@pytest.mark.parametrize("width", [1400, 390])
def test_what_a_screen_reader_is_told(tab: Tab, page: Path, width: int) -> None:
    tab.open(page, width=width)
    nodes = [node for node in tab("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")]

    def of(role: str) -> list[dict[str, Any]]:
        return [node for node in nodes if node.get("role", {}).get("value") == role]

    def name(node: dict[str, Any]) -> str:
        return node.get("name", {}).get("value", "")

    seen = Counter(node.get("role", {}).get("value") for node in nodes)
    for role in (
        "main",
        "navigation",
        "banner",
        "search",
        "status",
        "heading",
        "table",
        "columnheader",
        "rowheader",
    ):
        assert seen[role], role
    assert seen["table"] == tab.js(
        "[...document.querySelectorAll('table')].filter((t) => t.checkVisibility()).length"
    )
    for role in ("heading", "table", "link", "button", "image", "searchbox", "combobox", "article", "region"):
        assert all(name(node) for node in of(role)), role
    levels = [
        prop["value"]["value"]
        for node in of("heading")
        for prop in node["properties"]
        if prop["name"] == "level"
    ]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(len(name(node)) > 20 for node in of("image"))
    assert len({name(node) for node in of("article")}) > 3


def test_search_verdicts_states_and_sort(tab: Tab, page: Path) -> None:
    tab.open(page)
    total = tab.js("document.querySelectorAll('article').length")
    shown = "[...document.querySelectorAll('article')].filter((a) => !a.hidden).length"

    def choose(element: str, value: str) -> None:
        tab.js(
            f"(() => {{ const e = document.getElementById('{element}'); e.value = {value!r};"
            "e.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )

    assert tab.js(shown) == total > 10
    choose("search", "grey field")
    assert 0 < tab.js(shown) < total
    assert f"of {total} runs" in tab.js("document.getElementById('status').textContent")
    choose("search", "nothing has these words")
    assert tab.js(shown) == 0 and not tab.js("document.getElementById('nothing').hidden")
    choose("search", "")
    choose("state", "damaged")
    assert tab.js(shown) == 9
    choose("state", "")
    choose("verdict", "fails")
    rows = "[...document.querySelectorAll('tr[data-verdict]')].filter((row) => row.checkVisibility())"
    assert tab.js(f"{rows}.length > 0 && {rows}.every((row) => row.dataset.verdict === 'fails')")
    assert not tab.js("[...document.images].some((image) => image.checkVisibility())")
    tab.js("document.querySelector('.tools button').click()")
    assert tab.js("new Promise((done) => setTimeout(() => done(" + shown + "), 50))") == total
    first = "document.querySelector('.overview thead th:nth-child(4) button')"
    order = "[...document.querySelectorAll('.overview tbody td:nth-child(4)')].map((cell) => Number(cell.dataset.sort))"
    tab.js(f"{first}.click()")
    assert tab.js(order) == sorted(tab.js(order))
    tab.js(f"{first}.click()")
    assert tab.js(order) == sorted(tab.js(order), reverse=True)
    assert tab.js(f"{first}.parentElement.getAttribute('aria-sort')") == "descending"
    tab("Input.dispatchKeyEvent", type="keyDown", key="/", text="/")
    assert tab.js("document.activeElement.id") == "search"
    assert tab.js("document.activeElement.value") == ""


def test_without_its_script_all_is_there_but_the_tools(tab: Tab, page: Path) -> None:
    tab("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(page)
        assert not tab.js("document.querySelector('.tools').checkVisibility()")
        assert tab.js("[...document.querySelectorAll('article')].every((a) => a.checkVisibility())")
        assert tab.js("document.querySelectorAll('th button').length") == 0
    finally:
        tab("Emulation.setScriptExecutionDisabled", value=False)


def test_it_prints_with_everything_open(tab: Tab, page: Path) -> None:
    tab.open(page)
    printed = base64.b64decode(tab("Page.printToPDF", printBackground=False)["data"])
    assert printed.startswith(b"%PDF") and len(printed) > 50_000
    tab("Emulation.setEmulatedMedia", media="print")
    tab.js("dispatchEvent(new Event('beforeprint'))")
    try:
        assert tab.js("[...document.querySelectorAll('details')].every((part) => part.open)")
        assert not tab.js("document.querySelector('.contents').checkVisibility()")
    finally:
        tab("Emulation.setEmulatedMedia", media="")
