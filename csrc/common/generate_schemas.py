"""Write the op schemas of ``zbkernels/ops/*.py`` into a C++ header.

The schema of an op stands once, as a module-level string constant named ``SCHEMA`` (or ending in ``_SCHEMA``)
in the op's Python module. It is read with ``ast``: nothing is imported, so the build needs no torch and no
package. The file is rewritten only when its content changes, so that an edit elsewhere in an op module
recompiles nothing.
"""

from __future__ import annotations

import argparse
import ast
from pathlib import Path


def schemas_of(path: Path) -> list[str]:
    """The schema strings of one module, in the order they are written.

    Raises ValueError, naming file and line, for a schema constant that is not a plain string.
    """
    found = []
    for node in ast.parse(path.read_text(encoding="utf-8"), filename=str(path)).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [t.id for t in targets if isinstance(t, ast.Name)]
        if not any(n == "SCHEMA" or n.endswith("_SCHEMA") for n in names):
            continue
        try:
            text = ast.literal_eval(node.value)  # adjacent literals are one constant already
        except ValueError:
            text = None
        if not isinstance(text, str):
            raise ValueError(f"{path}:{node.lineno}: {names[0]} must be a string literal")
        found.append(" ".join(text.split()))
    return found


def header(paths: list[Path]) -> str:
    """The text of ``zb_schemas.h`` for these op modules."""
    schemas: list[str] = []
    for path in sorted(paths):
        for schema in schemas_of(path):
            if schema in schemas:
                raise ValueError(f"{path}: the schema {schema!r} stands twice")
            schemas.append(schema)
    lines = "".join(f'    R"schema({s})schema",\n' for s in schemas)
    return (
        "// Written by csrc/common/generate_schemas.py from zbkernels/ops/*.py.\n"
        "#pragma once\n\n"
        "#include <array>\n\n"
        f"constexpr std::array<const char*, {len(schemas)}> kSchemas = {{\n{lines}}};\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("modules", type=Path, nargs="*")
    args = parser.parse_args()
    text = header(args.modules)
    if args.out.exists() and args.out.read_text(encoding="utf-8") == text:
        return
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
