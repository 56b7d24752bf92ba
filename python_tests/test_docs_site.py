"""The documentation site: built without a warning, a place for every page, every public name in the reference."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "docs" / "site"

if not SITE.exists():
    pytest.skip("an installed package has no docs", allow_module_level=True)
sys.path.insert(0, str(SITE))  # docs/site is no package

import zbkernels  # noqa: E402

# By name: whether ruff takes an import of `build` for ours depends on a folder being there.
site = importlib.import_module("build")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx", reason="pip install 'zbkernels[docs]'")
    pytest.importorskip("myst_parser")
    pytest.importorskip("furo")
    out = tmp_path_factory.mktemp("site") / "html"
    assert site.build(out) == 0, "python docs/site/build.py shows the warnings"
    return out


def test_every_page_has_a_place_and_one_alone() -> None:
    found = site.pages()
    placed = [page for pages in site.parts(found).values() for page in pages]
    assert sorted([*placed, site.HOME]) == found
    with pytest.raises(ValueError, match=r"docs/new-page\.md: no place"):
        site.parts([*found, "docs/new-page.md"])


def test_links_are_turned_and_dead_ones_refused() -> None:
    found, pictures = set(site.pages()), set()

    def turned(text: str, page: str = "docs/papers/exchangeability.md") -> str:
        return site.relinked(text, page, found, pictures)

    assert (
        turned("[a](../results/README.md#part) `[b](nowhere.md)`")
        == "[a](../results/README.md#part) `[b](nowhere.md)`"
    )
    assert turned("[a](docs/nap.md)", "README.md") == "[a](nap.md)"
    assert turned("[`a` b](docs/nap.md)", "README.md") == "[`a` b](nap.md)"
    assert turned("[a](../bench/README.md)", "docs/measuring.md") == "[a](bench/README.md)"
    assert turned("![a](docs/results/demo.png)", "README.md") == "![a](results/demo.png)"
    assert pictures == {"docs/results/demo.png"}
    assert turned("[All rows](bench/results)", "README.md") == "All rows (`bench/results`)"
    assert turned("```\n[a](nowhere.md)\n```") == "```\n[a](nowhere.md)\n```"
    assert turned("[a](https://semver.org) [b](#part)") == "[a](https://semver.org) [b](#part)"
    with pytest.raises(ValueError, match=r"nowhere\.md, which is not there"):
        turned("[a](nowhere.md)")


def test_every_public_name_is_in_the_reference(built: Path) -> None:
    missing = []
    for module in site.MODULES:
        text = (built / "api" / f"{module}.html").read_text(encoding="utf-8")
        for name in site.public_names(module):
            if inspect.ismodule(getattr(importlib.import_module(module), name)):
                continue
            if f'id="{module}.{name}"' not in text and f">{name}</span>" not in text:
                missing.append(f"{module}.{name}")
    assert not missing
    assert set(site.public_names("zbkernels")) == {name for name in zbkernels.__all__ if name[0] != "_"}


def test_every_page_is_built_with_its_title_and_nothing_from_outside(built: Path) -> None:
    for page in site.pages():
        target = built / Path(site.place(page)).with_suffix(".html")
        text = target.read_text(encoding="utf-8")
        assert re.search(r"<h1>\S", text), page
        for outside in re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"', text):
            raise AssertionError(f"{page} asks for {outside}")
    home = (built / "index.html").read_text(encoding="utf-8")
    for part in (*site.NAVIGATION, "Reference"):
        assert part in home
    for module in site.MODULES:
        assert f"{module}.html" in (built / "api/index.html").read_text(encoding="utf-8")
