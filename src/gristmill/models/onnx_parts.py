"""A part of an ONNX model as a model of its own: from some of its values to others.

Only the few fields of the file format that this needs are read, so the package `onnx` is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gristmill.core.errors import InputError

_GRAPH, _NODE, _INITIALIZER, _INPUT, _OUTPUT = 7, 1, 5, 11, 12
_NODE_INPUT, _NODE_OUTPUT, _TENSOR_NAME = 1, 2, 8
_VARINT, _EIGHT, _SIZED, _FOUR = 0, 1, 2, 5
_FLOAT = 1


class _Field(NamedTuple):
    """A field of a message: its number, its content if that has a size, and all of its bytes."""

    number: int
    content: bytes
    whole: bytes


def model_part(model: bytes, inputs: Mapping[str, int], outputs: Sequence[str]) -> bytes:
    """What of a model computes the values `outputs` from the values `inputs`, as a model. Each input has a number of
    dimensions, whose sizes are free. All values are 32-bit floats."""
    fields = list(_fields(model))
    [graph] = [field.content for field in fields if field.number == _GRAPH]
    parts = list(_fields(graph))
    nodes = [field for field in parts if field.number == _NODE]
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if needed & set(_names(node.content, _NODE_OUTPUT)) - inputs.keys():
            kept.append(node.whole)
            needed |= set(_names(node.content, _NODE_INPUT))
    known = {_names(one.content, _TENSOR_NAME)[0]: one.whole for one in parts if one.number == _INITIALIZER}
    made = {name for node in nodes for name in _names(node.content, _NODE_OUTPUT)}
    missing = sorted((needed - made - known.keys() - inputs.keys() - {""}) | (set(outputs) - made))
    if missing:
        raise InputError(f"the model has no values {', '.join(missing)}: it is another one than is expected")
    other = (_NODE, _INITIALIZER, _INPUT, _OUTPUT)
    body = b"".join(field.whole for field in parts if field.number not in other)
    body += b"".join(reversed(kept)) + b"".join(known[name] for name in sorted(needed & known.keys()))
    body += b"".join(_sized(_INPUT, _value(name, size)) for name, size in inputs.items())
    body += b"".join(_sized(_OUTPUT, _value(name, None)) for name in outputs)
    return b"".join(field.whole for field in fields if field.number != _GRAPH) + _sized(_GRAPH, body)


def _names(message: bytes, number: int) -> list[str]:
    return [field.content.decode() for field in _fields(message) if field.number == number]


def _fields(message: bytes) -> Iterator[_Field]:
    at = 0
    while at < len(message):
        start = at
        key, at = _read_number(message, at)
        kind, content = key & 7, b""
        if kind == _VARINT:
            _, at = _read_number(message, at)
        elif kind == _SIZED:
            size, at = _read_number(message, at)
            content, at = message[at : at + size], at + size
        elif kind in (_EIGHT, _FOUR):
            at += 8 if kind == _EIGHT else 4
        else:
            raise InputError("the file is no ONNX model, or a damaged one")
        if at > len(message):
            raise InputError("the file is no ONNX model, or one that was cut short")
        yield _Field(key >> 3, content, message[start:at])


def _read_number(message: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        if at >= len(message) or shift > 63:
            raise InputError("the file is no ONNX model, or a damaged one")
        byte = message[at]
        value, at, shift = value | (byte & 0x7F) << shift, at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _number(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def _sized(number: int, content: bytes) -> bytes:
    return _number(number << 3 | _SIZED) + _number(len(content)) + content


def _value(name: str, dimensions: int | None) -> bytes:
    """The declaration of a value: its name, and that it is a tensor of floats."""
    shape = b"" if dimensions is None else _sized(2, b"".join(_sized(1, b"") for _ in range(dimensions)))
    tensor = _number(1 << 3 | _VARINT) + _number(_FLOAT) + shape
    return _sized(1, name.encode()) + _sized(2, _sized(1, tensor))
