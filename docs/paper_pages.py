"""Fills each page of docs/papers with the verdicts of the runs in docs/results, between two markers.

    python docs/paper_pages.py          writes the pages anew
    python docs/paper_pages.py --check  fails where a page does not say what the results say

A page's text is written by hand; a line ``<!-- verdicts NAME -->`` takes the claims of docs/results/NAME/table.md, and
``<!-- part NAME: HEADING -->`` what stands there under ``## HEADING``. Both end with ``<!-- end -->``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
_FILLED = re.compile(
    r"(<!-- (?P<kind>verdicts|part) (?P<name>[\w-]+)(?:: (?P<heading>[^\n]*?))? -->\n).*?(<!-- end -->)",
    re.DOTALL,
)


def verdicts_of(name: str) -> str:
    """The tables of claims of a committed run; where there are several, each under the heading it has there.

    Raises:
        ValueError: the run's report has none.
    """
    path = DOCS / "results" / name / "table.md"
    tables: list[tuple[str, str]] = []  # (heading, table)
    heading = ""
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        for line in block.splitlines():
            heading = line.removeprefix("## ") if line.startswith("## ") else heading
        if block.startswith("| claim of the paper |"):
            tables.append((heading, block.strip() + "\n"))
    if not tables:
        raise ValueError(f"{path}: expected a table of claims, found none")
    if len(tables) == 1:
        return tables[0][1]
    return "\n".join(f"**{heading}**\n\n{table}" for heading, table in tables)


def part_of(name: str, heading: str) -> str:
    """What a committed run's report has under ``## heading``, up to the next of these.

    Raises:
        ValueError: the report has no such heading.
    """
    path = DOCS / "results" / name / "table.md"
    for part in path.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        if title == heading:
            return text.strip() + "\n"
    raise ValueError(f"{path}: expected a part headed {heading!r}, found none")


def filled(text: str) -> str:
    """The page with every marked place filled from the results."""

    def contents(found: re.Match[str]) -> str:
        if found["kind"] == "verdicts":
            return verdicts_of(found["name"])
        return part_of(found["name"], found["heading"])

    return _FILLED.sub(lambda found: found[1] + contents(found) + "<!-- end -->", text)


def main(arguments: list[str]) -> int:
    stale = []
    for page in sorted((DOCS / "papers").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        wanted = filled(text)
        if text == wanted:
            continue
        stale.append(page.name)
        if "--check" not in arguments:
            page.write_text(wanted, encoding="utf-8")
    if "--check" in arguments and stale:
        print(f"{', '.join(stale)}: not what docs/results say; python docs/paper_pages.py mends it")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
