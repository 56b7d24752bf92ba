"""Programs of ``torch.export.save``, looked through before torch reads them.

``torch.export.load`` unpickles whatever an archive asks for, starts native code that lies in it, and evaluates names
and expressions as source. So an archive is read here first: tensors as plain bytes, a graph of torch's own operators
and of this package's, names that are names, and sizes that are arithmetic. Anything else is refused by name, and torch
is given what was looked through, not the file.
"""

from __future__ import annotations

import io
import json
import logging
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

_MEMBER = re.compile(
    r"archive_format|archive_version|byteorder|\.data/(version|serialization_id)|models/model\.json"
    r"|data/weights/(weight_\d+|model_weights_config\.json)|data/constants/(tensor_\d+|model_constants_config\.json)"
    r"|data/sample_inputs/model\.pt|extra/.*"
)
_OPERATOR = re.compile(
    r"torch\.ops\.(aten|zb)\.\w+\.\w+|math\.(ceil|floor|trunc|sqrt)|torch\.sym_\w+"
    r"|_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|pow|neg|eq|ne|lt|le|gt|ge|and_|or_)"
)
_FILES = re.compile(r"torch\.ops\.aten\.(from_file|save|load)\b.*")  # operators that open a file
_NAME = re.compile(r"[\w.]*")
_WORD = re.compile(r"[A-Za-z_]\w*")
# What an expression of sizes may hold: numbers, symbols and these functions, and no character of any other syntax.
_EXPRESSION = re.compile(r"[\w\s+\-*/%(),<>=&|~']*")
_KNOWN = re.compile(
    r"(s|u|zuf|zf)\d+|Symbol|positive|nonnegative|integer|True|False|oo|int_oo|Integer|Rational|Float|Add|Mul|Mod|Max"
    r"|Min|Eq|Ne|Lt|Le|Gt|Ge|And|Or|Not|FloorDiv|CleanDiv|CeilDiv|PythonMod|ModularIndexing|ToFloat"
    r"|TruncToInt|FloorToInt|CeilToInt|RoundToInt|IntTrueDiv|FloatTrueDiv|Identity"
)
_CONTAINERS = {None, "builtins.tuple", "builtins.list", "builtins.dict"}
_MOST = 1 << 33  # bytes, unpacked


def load_exported(path: Path) -> nn.Module:
    """The program of a ``.pt2`` file as a module.

    Raises:
        ValueError: it holds more than tensors and a graph of known operators; the message names the first such thing.
        OSError, zipfile.BadZipFile, and what else torch raises: it is broken.
    """
    content = io.BytesIO(_looked_through(path))
    log = logging.getLogger("torch.export")
    level = log.level
    log.setLevel(logging.CRITICAL)  # it writes a page about what it then raises
    try:
        return torch.export.load(content).module()
    finally:
        log.setLevel(level)


def _looked_through(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > min(_MOST, 20 * path.stat().st_size):
            raise ValueError("it claims to unpack to far more than it holds")
        content: dict[str, bytes] = {}
        for member in members:
            _, _, name = member.filename.partition(
                "/"
            )  # the folder has the name that the file was saved under
            if name in content or not _MEMBER.fullmatch(name) or ".." in name:
                raise ValueError(f"it holds {member.filename[:80]!r}, which a plain program has not")
            content[name] = archive.read(member)
    graph = "models/model.json"
    if graph not in content:
        raise ValueError("no plain program of this version of torch")
    content[graph] = json.dumps(_checked_program(_json(content[graph]))).encode()
    for name, value in content.items():
        if name.endswith("_config.json"):
            _check_payload(_json(value))
        elif name.endswith(".pt"):
            torch.load(io.BytesIO(value), weights_only=True)  # torch would fall back to a pickle of anything
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, value in content.items():
            archive.writestr(f"program/{name}", value)
    return written.getvalue()


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("its graph is nested too deeply") from None


def _check_payload(config: Any) -> None:
    for name, entry in config["config"].items():
        _check_name(name)
        if entry["use_pickle"] is not False or not re.fullmatch(r"(weight|tensor)_\d+", entry["path_name"]):
            raise ValueError(f"{name[:60]!r} is a pickle, which may be code")


def _checked_program(program: dict[str, Any]) -> dict[str, Any]:
    program["guards_code"] = []  # source of checks of the inputs
    module = program["graph_module"]
    for key in ("metadata", "treespec_namedtuple_fields"):
        module[key] = {}
    _check(program)
    return program


def _check(value: Any, key: str = "") -> None:
    """Whether a value, which the graph has under ``key``, is plain."""
    if isinstance(value, dict):
        for name, entry in value.items():
            _check_name(name)
            if name in ("as_custom_obj", "as_operator", "as_graph", "custom_obj_values") and entry:
                raise ValueError(f"its graph has a value {name!r}, which may be code")
            if name == "metadata":
                entry.clear()
            _check(entry, name)
    elif isinstance(value, list):
        for entry in value:
            _check(entry, key)
    elif isinstance(value, str):
        if key == "target":
            if not _OPERATOR.fullmatch(value) or _FILES.fullmatch(value):
                raise ValueError(
                    f"its graph calls {value[:80]!r}, which is no operator of torch or zbkernels"
                )
        elif key == "expr_str":
            _check_expression(value)
        elif key in ("in_spec", "out_spec"):
            _check_containers(_json(value.encode()))
        elif key not in ("as_string", "as_strings", "torch_version"):  # those are arguments, and never source
            _check_name(value)


def _check_name(text: str) -> None:
    if not _NAME.fullmatch(text) or re.search(r"(^|\.)__\w+__(\.|$)", text):
        raise ValueError(f"its graph has {text[:80]!r} as a name")


def _check_expression(text: str) -> None:
    words = _WORD.findall(text)
    # 9**9**9**9 is arithmetic too, and takes forever.
    small = "<<" not in text and len(re.findall(r"\*\*", text)) == len(re.findall(r"\*\*\d\d?\b", text)) <= 2
    if not small or not _EXPRESSION.fullmatch(text) or not all(map(_KNOWN.fullmatch, words)):
        raise ValueError(f"its graph has a size {text[:80]!r}")


def _check_containers(spec: Any) -> None:
    nodes = [spec[1]]
    while nodes:
        node = nodes.pop()
        if node["type"] not in _CONTAINERS:
            raise ValueError(f"its arguments are in a container {str(node['type'])[:60]!r}")
        nodes += node["children_spec"]
