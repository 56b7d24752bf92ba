"""Builds the documentation: gathers Markdown from the repository and docstrings from the package, and runs Sphinx.

    python docs/site/build.py [OUT]      (default build/docs; needs pip install 'zbkernels[docs]')

Pages stay where they are in the repository and link to each other there. Here they are copied beside each other, each
link is turned to its copy, and a link to a file that is no page becomes the file's name. A link that leads nowhere, a
page without a place in ``navigation.py`` and every warning of Sphinx are errors.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).resolve().parent))

from navigation import BELOW, NAVIGATION, TITLES

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(__file__).resolve().parent
HOME = "docs/index.md"
# Code, which stays as it is, or a link; a link's text may hold code.
_LINK = re.compile(
    r"^```.*?^```[^\n]*$|(?P<picture>!?)\[(?P<text>(?:[^\[\]\n]|\\.|\n(?!\n))*)\]\((?P<target>[^()\s]+)\)|`[^`\n]+`",
    re.DOTALL | re.MULTILINE,
)
_PAGES = ("*.md", "docs/**/*.md", "bench/**/*.md", "csrc/**/*.md", "examples/**/*.md")
_AWAY = {"README.md": "overview.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}

# Module -> the names to show, or None for its __all__. Later modules do not show again what an earlier one has.
MODULES: dict[str, tuple[str, ...] | None] = {
    "zbkernels": None,
    "zbkernels.nn": None,
    "zbkernels.nn.fusion": None,
    "zbkernels.invariance": None,
    "zbkernels.models": None,
    "zbkernels.nap": None,
    "zbkernels.infinite": None,
    "zbkernels.infinite.activations": (),
    "zbkernels.infinite.predict": (),
    "zbkernels.exchangeability.bounds": (),
    "zbkernels.exchangeability.layer_kernels": (),
    "zbkernels.exchangeability.optimizers": (),
    "zbkernels.exchangeability.pairs": (),
    "zbkernels.exchangeability.permuting": (),
    "zbkernels.exchangeability.row_means": (),
    "zbkernels.exchangeability.stacked_mlp": (),
    "zbkernels.exchangeability.symmetry_tests": (),
    "zbkernels.exchangeability.weight_distributions": (),
    "zbkernels.experiments": None,
    "zbkernels.experiments.runner": ("run", "time_epochs_of"),
    "zbkernels.report": (),
    "zbkernels.reporting": None,
    "zbkernels.data": None,
    "zbkernels.train": (),
    "zbkernels.augment": (),
    "zbkernels.checkpoint": (),
    "zbkernels.distributed": (),
    "zbkernels.tuning": None,
    "zbkernels.benchmarking": None,
    "zbkernels.files": (),
}


def pages() -> list[str]:
    """Every page, by its place in the repository."""
    found = {path.relative_to(ROOT).as_posix() for pattern in _PAGES for path in ROOT.glob(pattern)}
    return sorted(page for page in found if not page.startswith("docs/site/"))


def parts(found: list[str]) -> dict[str, list[str]]:
    """The pages of each part of the site, in its order.

    Raises:
        ValueError: a page has no place, or a place no page.
    """
    left = [page for page in found if page != HOME]
    named = {entry for entries in NAVIGATION.values() for entry in entries if "*" not in entry}
    placed: dict[str, list[str]] = {}
    for part, entries in NAVIGATION.items():
        placed[part] = []
        for entry in entries:
            same = [
                page
                for page in left
                if page == entry or ("*" in entry and page not in named and _matches(page, entry))
            ]
            placed[part] += same
            left = [page for page in left if page not in same]
    if gone := named - set(found) - {HOME}:
        raise ValueError(
            f"{', '.join(sorted(gone))}: named in docs/site/navigation.py, but there is no such page"
        )
    if left:
        raise ValueError(
            f"{', '.join(left)}: no place in docs/site/navigation.py; add each to a part of NAVIGATION"
        )
    return placed


def _matches(page: str, entry: str) -> bool:
    return page.count("/") == entry.count("/") and fnmatch(page, entry)


def place(page: str) -> str:
    """Where a page of the repository stands in the site's sources."""
    return _AWAY.get(page, page.removeprefix("docs/"))


def relinked(text: str, page: str, found: set[str], pictures: set[str]) -> str:
    """The text of a page for its place in the site; pictures that it shows are added to ``pictures``.

    Raises:
        ValueError: a link leads nowhere.
    """

    def turned(link: re.Match[str]) -> str:
        if link["target"] is None:
            return link[0]
        target, _, anchor = link["target"].partition("#")
        if not target or re.match(r"[a-z]+:", link["target"]):
            return link[0]
        where = os.path.normpath((PurePosixPath(page).parent / target).as_posix())
        if where == "docs/api/index.rst":
            return f"{link['picture']}[{link['text']}]({target})"
        if not (ROOT / where).exists():
            raise ValueError(f"{page}: a link to {link['target']}, which is not there")
        if where in found or (link["picture"] and where.startswith("docs/")):
            if link["picture"]:
                pictures.add(where)
            to = os.path.relpath(place(where), PurePosixPath(place(page)).parent)
            return f"{link['picture']}[{link['text']}]({to}{'#' + anchor if anchor else ''})"
        if where.endswith(".png") and where.startswith("docs/"):
            pictures.add(where)
            to = os.path.relpath(place(where), PurePosixPath(place(page)).parent)
            return f"![{link['text']}]({to})" if link["picture"] else f"{{download}}`{link['text']} <{to}>`"
        return link["text"] if where in link["text"] else f"{link['text']} (`{where}`)"

    return _LINK.sub(turned, text)


def gather(sources: Path) -> None:
    """Write the site's sources into the empty folder ``sources``."""
    found = pages()
    placed = parts(found)
    pictures: set[str] = set()
    for page in found:
        text = (ROOT / page).read_text(encoding="utf-8")
        _write(sources / place(page), relinked(text, page, set(found), pictures))
    for picture in pictures:
        target = sources / place(picture)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / picture, target)
    contents = []
    for part, its in placed.items():
        head = BELOW.get(part)
        shown = [page for page in its if page != head]
        if head is not None:
            with (sources / place(head)).open("a", encoding="utf-8") as page:
                page.write(
                    _contents(
                        None, [os.path.relpath(place(p), PurePosixPath(place(head)).parent) for p in shown]
                    )
                )
            shown = [head]
        contents.append(_contents(part, [_entry(page) for page in shown]))
        if part == "Knowing what happens":
            contents.append(_contents("Reference", ["api/index.rst"]))
    with (sources / place(HOME)).open("a", encoding="utf-8") as home:
        home.write("".join(contents))
    _write_api(sources / "api")
    shutil.copyfile(SITE / "conf.py", sources / "conf.py")
    shutil.copytree(SITE / "_static", sources / "_static")


def _entry(page: str) -> str:
    return f"{TITLES[page]} <{place(page)}>" if page in TITLES else place(page)


def _contents(caption: str | None, entries: list[str]) -> str:
    options = (f":caption: {caption}\n" if caption else "") + ":maxdepth: 1\n:titlesonly:\n"
    hidden = ":hidden:\n" if caption else ""
    return f"\n\n```{{toctree}}\n{options}{hidden}\n" + "\n".join(entries) + "\n```\n"


def public_names(module_name: str) -> list[str]:
    """What the reference shows of a module: its ``__all__``, or what is defined in it without an underscore."""
    module = importlib.import_module(module_name)
    chosen = MODULES[module_name]
    if chosen:
        return list(chosen)
    if chosen is None:
        return [name for name in module.__all__ if not name.startswith("_")]
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module_name
    ]


def _write_api(folder: Path) -> None:
    seen: set[int] = set()
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        lines = [
            module_name,
            "=" * len(module_name),
            "",
            f".. automodule:: {module_name}",
            "   :no-members:",
            "",
        ]
        for name in public_names(module_name):
            value = getattr(module, name)
            full = f"{module_name}.{name}"
            if inspect.ismodule(value):
                lines += [
                    f"* :doc:`{value.__name__}`" if value.__name__ in MODULES else f"* ``{value.__name__}``",
                    "",
                ]
                continue
            again = id(value) in seen and callable(value)
            seen.add(id(value))
            kind = "class" if inspect.isclass(value) else "function" if callable(value) else "data"
            if isinstance(value, type) and issubclass(value, BaseException):
                kind = "exception"
            if kind == "data":
                lines += [f".. py:data:: {full}", f"   :type: {type(value).__name__}", ""]
                if isinstance(value, dict):
                    lines += [f"   {', '.join(f'``{key}``' for key in value)}", ""]
                elif isinstance(value, (str, tuple)):
                    lines += [f"   ``{value!r}``", ""]
                continue
            lines.append(f".. auto{kind}:: {full}")
            if again:
                lines.append("   :no-index:")
            if kind == "class":
                lines += ["   :members:", "   :show-inheritance:"] if not again else ["   :show-inheritance:"]
            lines.append("")
        _write(folder / f"{module_name}.rst", "\n".join(lines))
    listed = "\n".join(f"   {name}" for name in MODULES)
    title = "Reference"
    text = (
        f"{title}\n{'=' * len(title)}\n\nFrom the docstrings: shapes, dtypes, errors and sources. The ops are also "
        f"``torch.ops.zb.*``.\n\n.. toctree::\n   :maxdepth: 1\n   :titlesonly:\n\n{listed}\n"
    )
    _write(folder / "index.rst", text)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def build(out: Path, jobs: str = "1") -> int:
    """Build the site into ``out``; returns Sphinx's exit status, which is not 0 where anything is wrong."""
    from sphinx.cmd.build import build_main

    sources = out.parent / f".{out.name}-sources"
    shutil.rmtree(sources, ignore_errors=True)
    gather(sources)
    status = build_main(
        [
            "-q",
            "-W",
            "--keep-going",
            "-b",
            "html",
            "-j",
            jobs,
            "-d",
            str(sources / ".doctrees"),
            str(sources),
            str(out),
        ]
    )
    if status == 0:
        shutil.rmtree(sources)
    return status


def main(arguments: list[str]) -> int:
    out = Path(arguments[0]) if arguments else ROOT / "build" / "docs"
    sys.path.insert(0, str(ROOT))
    try:
        status = build(out.resolve())
    except ValueError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 1
    if status == 0:
        print(out / "index.html")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
