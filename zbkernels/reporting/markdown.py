"""Markdown of a report as HTML for the page: escaped, its headings in order, its tables with headers and a name."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, WITHIN_SPREAD

CLAIMS = ("claim of the paper", "verdict", "measured")
VERDICTS = {HOLDS: "holds", WITHIN_SPREAD: "within", FAILS: "fails", NOT_TESTABLE: "untested"}  # -> CSS class
_COMPARES = re.compile(r"\b(paper|thesis|ours|difference)\b")
_SHORT = 20  # characters: a longer cell is words, which read better from the left


@dataclass
class Section:
    """What stands under one heading; the first has none.

    Attributes:
        html: of its paragraphs, lists and tables.
        compares: it has the paper's numbers beside ours.
        claims: it has a table of claims.
    """

    heading: str
    slug: str
    html: str
    compares: bool = False
    claims: bool = False


@dataclass
class Report:
    sections: list[Section] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)


def slug(text: str) -> str:
    """``text`` as part of an id: letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "part"


def render(text: str, prefix: str, level: int = 3) -> Report:
    """The sections of a report in Markdown.

    Args:
        prefix: of every id, so that several reports fit on one page.
        level: of the headings that begin a section; those below follow without a gap.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    report = Report()
    used: Counter[str] = Counter()
    heading = ""
    held: list[Token] = []
    tokens = parser.parse(text)
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token.type == "heading_open" and token.level == 0 and token.tag in ("h1", "h2"):
            if held:
                report.sections.append(_section(heading, held, prefix, level, used, report.verdicts))
            elif heading and token.tag == "h2":  # a heading with nothing below it
                report.sections.append(_section(heading, [], prefix, level, used, report.verdicts))
            heading = _plain(tokens[at + 1]) if token.tag == "h2" else ""
            held = []
            at += 3
            continue
        held.append(token)
        at += 1
    if held or heading:
        report.sections.append(_section(heading, held, prefix, level, used, report.verdicts))
    return report


def _section(
    heading: str, tokens: list[Token], prefix: str, level: int, used: Counter[str], verdicts: Counter[str]
) -> Section:
    base = f"{prefix}--{slug(heading or 'about')}"
    used[base] += 1
    section = Section(heading, base if used[base] == 1 else f"{base}-{used[base]}", "")
    parts: list[str] = []
    before = level  # of the last heading
    at, tables = 0, 0
    while at < len(tokens):
        token = tokens[at]
        if token.type == "table_open":
            end = next(
                i
                for i in range(at, len(tokens))
                if tokens[i].type == "table_close" and tokens[i].level == token.level
            )
            tables += 1
            name = (heading or "Results") + (f", table {tables}" if tables > 1 else "")
            parts.append(_table(tokens[at:end], name, section, verdicts))
            at = end + 1
            continue
        if token.type == "heading_open":
            before = min(int(token.tag[1]) - 2 + level, before + 1, 6)
            parts.append(f"<h{before}>{_inline(tokens[at + 1])}</h{before}>")
            at += 3
            continue
        parts.append(_block(token))
        at += 1
    section.html = "".join(parts)
    return section


def _block(token: Token) -> str:
    if token.type == "inline":
        return _inline(token)
    if token.type in ("fence", "code_block"):
        return f"<pre><code>{escape(token.content)}</code></pre>"
    if token.type == "hr":
        return "<hr>"
    if token.hidden or not token.tag:
        return ""
    if token.nesting == 1 and token.tag == "ol":
        start = token.attrGet("start")
        return f'<ol start="{int(start)}">' if start is not None else "<ol>"
    return f"<{'/' if token.nesting == -1 else ''}{token.tag}>\n"


def _inline(token: Token) -> str:
    """Text, emphasis, code and links to the web; a picture is its description, any other link its text."""
    out: list[str] = []
    closes: list[str] = []
    for child in token.children or []:
        if child.type == "text":
            out.append(escape(child.content))
        elif child.type == "code_inline":
            out.append(f"<code>{escape(child.content)}</code>")
        elif child.type in ("softbreak", "hardbreak"):
            out.append("\n" if child.type == "softbreak" else "<br>")
        elif child.type == "link_open":
            target = str(child.attrGet("href") or "")
            web = target.startswith(("https://", "http://"))
            out.append(f'<a href="{escape(target)}" rel="noopener noreferrer">' if web else "")
            closes.append("</a>" if web else "")
        elif child.type == "link_close":
            out.append(closes.pop() if closes else "")
        elif child.type == "image":
            out.append(escape(child.content))
        elif child.tag in ("strong", "em"):
            out.append(f"<{'/' if child.nesting == -1 else ''}{child.tag}>")
        else:
            out.append(escape(child.content))
    return "".join(out)


def _plain(token: Token) -> str:
    return "".join(
        child.content if child.content else " " if child.type == "softbreak" else ""
        for child in token.children or []
    ).strip()


def _table(tokens: list[Token], name: str, section: Section, verdicts: Counter[str]) -> str:
    rows: list[list[Token]] = []
    aligns = [token.attrGet("style") for token in tokens if token.type == "th_open"]
    for at, token in enumerate(tokens):
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("th_open", "td_open"):
            rows[-1].append(tokens[at + 1])
    head, *body = rows
    titles = [_plain(cell) for cell in head]
    if tuple(titles) == CLAIMS:
        section.claims = True
        return _claims(body, name, verdicts)
    plain = [[_plain(cell) for cell in row] for row in body]
    section.compares |= any(_COMPARES.search(text) for text in (*titles, *(row[0] for row in plain if row)))
    numeric = [
        "right" in str(aligned) and all(len(row[i]) <= _SHORT for row in plain)
        for i, aligned in enumerate(aligns)
    ]
    out = [_open_table(name, "data")]
    for i, cell in enumerate(head):
        kind = ' class="n"' if numeric[i] and i else ""
        out.append(f'<th scope="col"{kind}>{_inline(cell)}</th>' if titles[i] else "<td></td>")
    out.append("</tr></thead><tbody>\n")
    for row, texts in zip(body, plain, strict=True):
        out.append(f"<tr{_row_kind(texts[0] if texts else '')}>")
        for i, cell in enumerate(row):
            if i == 0 and texts[0]:
                out.append(f'<th scope="row">{_inline(cell)}</th>')
            else:
                kind = ' class="n"' if numeric[i] else ""
                out.append(f"<td{kind}>{_inline(cell)}</td>")
        out.append("</tr>\n")
    out.append("</tbody></table></div>\n")
    return "".join(out)


def _row_kind(first: str) -> str:
    for word in ("difference", "paper", "thesis"):
        if re.search(rf"\b{word}\b", first):
            return f' class="{word}"'
    return ""


def _claims(body: list[list[Any]], name: str, verdicts: Counter[str]) -> str:
    out = [_open_table(name, "claims sortable")]
    out += [f'<th scope="col">{title}</th>' for title in ("Claim of the paper", "Verdict", "Measured")]
    out.append("</tr></thead><tbody>\n")
    for claim, verdict, measured in body:
        said = _plain(verdict)
        kind = VERDICTS.get(said, "untested")
        verdicts[kind] += 1
        out.append(
            f'<tr data-verdict="{kind}"><th scope="row">{_inline(claim)}</th>'
            f'<td><span class="verdict {kind}">{escape(said)}</span></td><td>{_inline(measured)}</td></tr>\n'
        )
    out.append("</tbody></table></div>\n")
    return "".join(out)


def _open_table(name: str, kind: str) -> str:
    shown = escape(name)
    return (
        f'<div class="scroll" role="region" aria-label="{shown}" tabindex="0"><table class="{kind}">'
        f'<caption class="unseen">{shown}</caption><thead><tr>'
    )
