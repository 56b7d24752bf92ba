"""The pages of the papers say what the committed runs say, and name nothing that is not there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from zbkernels.experiments import EXPERIMENTS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs/papers").glob("*.md"))
sys.path.insert(0, str(ROOT / "docs"))

import paper_pages  # noqa: E402 - docs is no package


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_verdicts_of_the_runs(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == paper_pages.filled(text), "python docs/paper_pages.py mends it"
    marks = text.count("<!-- verdicts ") + text.count("<!-- part ")
    assert marks == len(paper_pages._FILLED.findall(text)) == text.count("<!-- end -->")


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "docs/results/README.md", ROOT / "README.md"], ids=lambda page: page.stem
)
def test_links_and_pictures_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_a_change_of_a_verdict_makes_a_page_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = "| claim of the paper | verdict | measured |\n| --- | --- | --- |\n| x | **holds** | 1 |\n"
    report = tmp_path / "results/run/table.md"
    report.parent.mkdir(parents=True)
    report.write_text(f"# run\n\n## A\n\n{claims}")
    monkeypatch.setattr(paper_pages, "DOCS", tmp_path)
    page = paper_pages.filled("text\n<!-- verdicts run -->\n<!-- end -->\n")
    assert claims in page and "**A**" not in page
    report.write_text(f"# run\n\n## A\n\n{claims}\n## B\n\n{claims.replace('holds', 'does not hold')}")
    again = paper_pages.filled(page)
    assert "**A**" in again and "**B**" in again and "**does not hold**" in again
    assert again == paper_pages.filled(again)


def test_a_part_of_a_report_is_taken_by_its_heading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "results/run/table.md"
    report.parent.mkdir(parents=True)
    report.write_text("# run\n\n## A: 1\n\n| a |\n\ntext\n\n## B\n\n| b |\n")
    monkeypatch.setattr(paper_pages, "DOCS", tmp_path)
    page = paper_pages.filled(
        "<!-- part run: A: 1 -->\nold\n<!-- end -->\n<!-- part run: B -->\n<!-- end -->\n"
    )
    assert page == (
        "<!-- part run: A: 1 -->\n| a |\n\ntext\n<!-- end -->\n<!-- part run: B -->\n| b |\n<!-- end -->\n"
    )
    with pytest.raises(ValueError, match="headed 'C'"):
        paper_pages.filled("<!-- part run: C -->\n<!-- end -->\n")


def test_the_readme_lists_every_experiment_with_what_its_committed_run_found() -> None:
    table = (
        (ROOT / "README.md").read_text(encoding="utf-8").split("### What is reproduced")[1].split("\n\n![")[0]
    )
    rows = [
        [cell.strip() for cell in line.split("|")]
        for line in table.splitlines()
        if line.startswith("|") and "| `" in line and "zb run" not in line
    ]
    found = {row[2].strip("`").split()[0]: row[4] for row in rows}
    assert sorted(found) == sorted(EXPERIMENTS)
    for folder in sorted((ROOT / "docs/results").iterdir()):
        if (folder / "table.md").exists():
            text = (folder / "table.md").read_text(encoding="utf-8")
            hold, fail = text.count("| **holds"), text.count("| **does not hold**")
            assert found[folder.name] == f"{hold}/{hold + fail}", folder.name
