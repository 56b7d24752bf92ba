"""Fills each page of docs/papers with the verdicts of the runs in docs/results, between two markers.

    python docs/paper_pages.py          writes the pages anew
    python docs/paper_pages.py --check  fails where a page does not say what the results say

A page's text is written by hand; a line ``<!-- verdicts NAME -->`` takes the claims of docs/results/NAME/table.md.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
_FILLED = re.compile(r"(<!-- verdicts (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def verdicts_of(name: str) -> str:
    """The table of claims of a committed run.

    Raises:
        ValueError: the run's table has none.
    """
    path = DOCS / "results" / name / "table.md"
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("| claim of the paper |")]
    if not starts:
        raise ValueError(f"{path}: expected a table of claims, found none")
    rows = []
    for line in lines[starts[0] :]:
        if not line.startswith("|"):
            break
        rows.append(line)
    return "\n".join(rows) + "\n"


def filled(text: str) -> str:
    """The page with every marked place filled from the results."""
    return _FILLED.sub(lambda found: found[1] + verdicts_of(found["name"]) + found[3], text)


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
