"""Sphinx settings of the documentation; ``docs/site/build.py`` gathers the sources and calls it."""

from __future__ import annotations

import re
from typing import Any

from zbkernels._version import __version__

project = "zbkernels"
author = "zbkernels contributors"
copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
root_doc = "index"
highlight_language = "none"
smartquotes = False
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]  # a report of a run may skip a level of headings

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True
add_module_names = False
maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"zbkernels {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5cad", "color-brand-content": "#0b5cad"},
    "dark_css_variables": {"color-brand-primary": "#7fb8f5", "color-brand-content": "#7fb8f5"},
}


def _as_written(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """In a docstring |x| is an absolute value, and [N, *shape] a shape: neither is markup of reStructuredText's."""
    for at, line in enumerate(lines):
        pieces = re.split(r"(``.*?``|`[^`]+`)", line)
        plain = (
            re.sub(r"(?<=[\[(])\*(?=\w)|(?<=, )\*(?=\w)", r"\\*", piece.replace("|", "\\|"))
            for piece in pieces
        )
        lines[at] = "".join(
            piece if i % 2 else new for i, (piece, new) in enumerate(zip(pieces, plain, strict=True))
        )


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", _as_written)
