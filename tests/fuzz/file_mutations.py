"""Damage to a file that knows what files are like: cut, flip, splice, repeat, swap, and lie about lengths."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

_NUMBERS = [0, 1, -1, 127, 128, 255, 256, 2**15, 2**16, 2**20, 2**31 - 1, -(2**31), 2**32 - 1, 2**40, 2**62, -(2**63)]
_TOKENS = [
    b"\n",
    b"\r\n",
    b"\0",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"<",
    b">",
    b"&",
    b"</",
    b"%",
    b" ",
    b"\xff",
    b"\xef\xbb\xbf",
]

Mutation = Callable[[random.Random, bytearray, Sequence[bytes]], None]


def _span(draw: random.Random, data: bytearray) -> tuple[int, int]:
    """A part of a file: mostly a short one, and often near one of its ends, where headers and footers are."""
    near = draw.choice([len(data), len(data), min(64, len(data)), min(512, len(data))])
    start = draw.randrange(near + 1)
    if draw.random() < 0.3:
        start = len(data) - start
    size = draw.choice([1, 2, 4, 8, draw.randrange(64), draw.randrange(len(data) + 1)])
    return start, min(start + size, len(data))


def cut(draw: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[_span(draw, data)[0] :]


def remove(draw: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    start, end = _span(draw, data)
    del data[start:end]


def flip(draw: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    for _number in range(draw.choice([1, 1, 2, 8])):
        at = _span(draw, data)[0]
        if at < len(data):
            data[at] ^= 1 << draw.randrange(8)


def overwrite(draw: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    start, end = _span(draw, data)
    end = min(end, start + 64)
    data[start:end] = draw.randbytes(end - start) if draw.random() < 0.7 else bytes(end - start)


def insert(draw: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = _span(draw, data)[0]
    data[at:at] = draw.choice(_TOKENS) * draw.choice([1, 1, 2, 100])


def splice(draw: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    other = bytearray(draw.choice(others))
    (start, end), (first, last) = _span(draw, data), _span(draw, other)
    data[start:end] = other[first:last]


def repeat(draw: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    start, end = _span(draw, data)
    times = min(draw.choice([1, 2, 10, 1000]), 200_000 // max(1, end - start))
    data[start:start] = data[start:end] * times


def swap(draw: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    (a, b), (c, d) = sorted([_span(draw, data), _span(draw, data)])
    if b <= c:
        data[a:d] = data[c:d] + data[b:c] + data[a:b]


def lie(draw: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    """Put another number where one may be: binary of any size and order, or the digits of a decimal one."""
    digits = [at for at in range(len(data)) if 48 <= data[at] <= 57][:2000]
    if digits and draw.random() < 0.3:
        at = draw.choice(digits)
        data[at : at + 1] = str(draw.choice(_NUMBERS)).encode()
        return
    form = draw.choice(["<b", "<h", ">h", "<i", ">i", "<q", ">q"])
    size = struct.calcsize(form)
    at = _span(draw, data)[0]
    if at + size <= len(data):
        number = draw.choice([*_NUMBERS, len(data), len(data) + 1])
        data[at : at + size] = (number & (2 ** (8 * size) - 1)).to_bytes(size, "little" if form[0] == "<" else "big")


MUTATIONS: list[Mutation] = [cut, remove, flip, overwrite, insert, splice, repeat, swap, lie, lie]


def damaged(draw: random.Random, corpus: Sequence[bytes]) -> bytes:
    """One of the files with one to four kinds of damage."""
    data = bytearray(draw.choice(corpus))
    for _ in range(draw.choice([1, 1, 2, 4])):
        draw.choice(MUTATIONS)(draw, data, corpus)
    return bytes(data[: 4 * 2**20])
