"""What :func:`zbkernels.models.build` was asked for, as plain values: what ``config.json`` holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from zbkernels.models.rows import Architecture, Conv, Linear, Residual, ResNet

_MODEL_TYPE = "zbkernels"
_FORMAT = 1
_LARGEST = 1 << 24  # of any size: beyond, no tensor would fit a machine
_BLOCKS = {"conv": Conv, "residual": Residual, "linear": Linear}


@dataclass(frozen=True)
class Configuration:
    """The arguments of :func:`zbkernels.models.build` but for the seed."""

    architecture: Architecture | ResNet
    image_shape: tuple[int, int, int]
    classes: int
    bias: bool
    fused: bool

    def as_dict(self) -> dict[str, Any]:
        """Strict JSON; the architecture is spelled out, so that it stays what it is when rows change."""
        row = self.architecture
        if isinstance(row, ResNet):
            spelled = {"kind": "resnet", **asdict(row)}
        else:
            names = {kind: name for name, kind in _BLOCKS.items()}
            blocks = [{"kind": names[type(block)], **asdict(block)} for block in row.blocks]
            spelled = {"kind": "blocks", "name": row.name, "blocks": blocks, "image": row.image}
        return {
            "model_type": _MODEL_TYPE,
            "format": _FORMAT,
            "architecture": {
                name: list(value) if isinstance(value, tuple) else value for name, value in spelled.items()
            },
            "image_shape": list(self.image_shape),
            "classes": self.classes,
            "bias": self.bias,
            "fused": self.fused,
        }

    @classmethod
    def from_dict(cls, content: Any) -> Configuration:
        """The inverse, of what anyone may have written.

        Raises:
            ValueError: a name is missing or unknown, or a value is of another type or range; the message says which.
        """
        given = _named("the configuration", content, _FIELDS)
        _expect("model_type", given["model_type"], given["model_type"] == _MODEL_TYPE, repr(_MODEL_TYPE))
        _expect("format", given["format"], type(given["format"]) is int and given["format"] == _FORMAT, "1")
        for name in ("bias", "fused"):
            _expect(name, given[name], type(given[name]) is bool, "true or false")
        return cls(
            _architecture(given["architecture"]),
            _shape("image_shape", given["image_shape"]),
            _size("classes", given["classes"]),
            given["bias"],
            given["fused"],
        )


_FIELDS = ("model_type", "format", *(field.name for field in fields(Configuration)))


def _architecture(content: Any) -> Architecture | ResNet:
    what = "architecture"
    kind = content.get("kind") if isinstance(content, Mapping) else None
    if kind == "resnet":
        given = _named(what, content, ("kind", *(field.name for field in fields(ResNet))))
        alpha = given["alpha"]
        number = type(alpha) in (int, float) and math.isfinite(alpha)
        _expect(f"{what}.alpha", alpha, number and 0 <= alpha <= 1e6, "a number of at least 0")
        return ResNet(
            name=_text(f"{what}.name", given["name"]),
            block=_text(f"{what}.block", given["block"]),
            depths=tuple(_size(f"{what}.depths", each) for each in _list(f"{what}.depths", given["depths"])),
            stem=_text(f"{what}.stem", given["stem"]),
            style=_text(f"{what}.style", given["style"]),
            width=_size(f"{what}.width", given["width"]),
            alpha=alpha,
            image=_shape(f"{what}.image", given["image"]),
        )
    if kind == "blocks":
        given = _named(what, content, ("kind", *(field.name for field in fields(Architecture))))
        blocks = [
            _block(f"{what}.blocks[{index}]", block)
            for index, block in enumerate(_list(f"{what}.blocks", given["blocks"]))
        ]
        name = _text(f"{what}.name", given["name"])
        return Architecture(name, tuple(blocks), _shape(f"{what}.image", given["image"]))
    raise ValueError(f"expected {what}.kind to be 'resnet' or 'blocks', got {_shown(kind)}")


def _block(what: str, content: Any) -> Conv | Residual | Linear:
    kind = content.get("kind") if isinstance(content, Mapping) else None
    make: Callable[..., Conv | Residual | Linear] | None = (
        _BLOCKS.get(kind) if isinstance(kind, str) else None
    )
    if make is None:
        raise ValueError(f"expected {what}.kind to be one of {', '.join(_BLOCKS)}, got {_shown(kind)}")
    names = [field.name for field in fields(make)]  # type: ignore[arg-type]
    given = _named(what, content, ("kind", *names))
    return make(**{name: _size(f"{what}.{name}", given[name]) for name in names})


def _named(what: str, content: Any, names: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise ValueError(f"expected {what} to be names and values, got {_shown(content)}")
    missing = [name for name in names if name not in content]
    unknown = [name for name in content if name not in names]
    faults = [f"missing: {', '.join(missing)}"] if missing else []
    faults += [f"unknown: {', '.join(map(_shown, unknown[:4]))}"] if unknown else []
    if faults:
        raise ValueError(f"expected {what} to have the names {', '.join(names)}; {'; '.join(faults)}")
    return content


def _size(what: str, value: Any) -> int:
    right = type(value) is int and 1 <= value <= _LARGEST
    return _expect(what, value, right, f"a whole number from 1 to {_LARGEST}")


def _shape(what: str, value: Any) -> tuple[int, int, int]:
    right = isinstance(value, list) and len(value) == 3
    channels, height, width = (_size(what, each) for each in _expect(what, value, right, "three sizes"))
    return channels, height, width


def _list(what: str, value: Any) -> list[Any]:
    return _expect(what, value, isinstance(value, list), "a list")


def _text(what: str, value: Any) -> str:
    return _expect(
        what, value, isinstance(value, str) and len(value) <= 200 and value.isprintable(), "a short text"
    )


def _expect(what: str, value: Any, right: bool, expected: str) -> Any:
    if not right:
        raise ValueError(f"expected {what} to be {expected}, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
