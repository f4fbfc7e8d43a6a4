"""Reads labelled texts, and divides them into parts for training, choosing a threshold, and testing.

A text that occurs again is left out, also if only case, punctuation or white space differ, or a few words: what is
tested must not have been seen in training. The part of a text is drawn by a hash of its words, so it is the same in
every run, and a text stays in its part when others are added.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.arrow.table_conversion import POSITION, table_to_rows
from gristmill.core.errors import ColumnError, InputError, did_you_mean
from gristmill.core.task import FileSlice
from gristmill.io.formats.jsonl import read_jsonl
from gristmill.io.formats.parquet import read_parquet
from gristmill.io.read.file_listing import Paths, list_files
from gristmill.io.storage.file_input import BadRecord, FileInput

PARQUET = (".parquet", ".pq")
EXTENSIONS = (".jsonl", ".json", ".ndjson", ".jsonl.gz", ".jsonl.zst", *PARQUET)
TRAIN, CHOOSE, TEST = "train", "choose", "test"
SHARES = ((TRAIN, 0.8), (CHOOSE, 0.1), (TEST, 0.1))
NEAR_BITS = 3
"""Texts whose SimHashes differ in so many of 64 bits are taken for the same."""

LEAST_WORDS = 8
"""Shorter texts are only compared as a whole: a SimHash of few words says little."""

_NOT_WORD = re.compile(r"[\W_]+")


@dataclass
class LabelledTexts:
    """Texts and the label of each."""

    texts: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    def column(self) -> pa.Array:
        return make_array(self.texts, pa.string())

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class DividedTexts:
    """The parts, and what was left out of them."""

    parts: dict[str, LabelledTexts]
    repeated: int = 0
    near: int = 0


def read_labelled(paths: Paths, text_field: str, label_field: str) -> LabelledTexts:
    """The rows of files that have a text and a label; other rows are left out."""
    found = LabelledTexts()
    for file in list_files(paths, EXTENSIONS, {}):
        columns: set[str] = set()
        for row in _rows(file.path):
            columns.update(row.keys() - {POSITION})
            text, label = row.get(text_field), row.get(label_field)
            if isinstance(text, str) and label is not None:
                found.texts.append(text)
                found.labels.append(_label(label))
        for name in (text_field, label_field):
            if columns and name not in columns:
                hint = did_you_mean(name, columns)
                raise ColumnError(f"{file.path} has no column {name!r}.{hint} There are: {', '.join(sorted(columns))}")
    if not len(found):
        raise InputError(f"there is no row with a text in {text_field!r} and a label in {label_field!r}")
    return found


def _label(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _rows(path: str) -> Iterator[dict[str, Any]]:
    def refuse(record: BadRecord) -> None:
        raise InputError(f"{path} cannot be read at {record.position}: {record.reason}")

    source = FileInput(FileSlice(path), {}, on_bad=refuse)
    for table in (read_parquet if path.lower().endswith(PARQUET) else read_jsonl)(source):
        yield from table_to_rows(table)


def divide(all_texts: LabelledTexts, seed: int = 42) -> DividedTexts:
    """Divide texts into parts that have no text in common."""
    parts = {name: LabelledTexts() for name, _ in SHARES}
    seen: set[bytes] = set()
    repeated = 0
    for text, label in zip(all_texts.texts, all_texts.labels, strict=True):
        key = hashlib.blake2b(_NOT_WORD.sub(" ", text.casefold()).strip().encode(), digest_size=16).digest()
        if key in seen:
            repeated += 1
            continue
        seen.add(key)
        part = parts[_part(key, seed)]
        part.texts.append(text)
        part.labels.append(label)
    near = _remove_near(parts)
    return DividedTexts(parts, repeated, near)


def _part(key: bytes, seed: int) -> str:
    drawn = int.from_bytes(hashlib.blake2b(key, digest_size=8, salt=seed.to_bytes(8, "little")).digest(), "little")
    share = drawn / 2**64
    for name, size in SHARES:
        if share < size:
            return name
        share -= size
    return SHARES[-1][0]


def _remove_near(parts: dict[str, LabelledTexts]) -> int:
    """Remove texts that are nearly those of an earlier part. Returns how many."""
    if kernels is None:
        return 0
    known = _NearTexts()
    removed = 0
    for name, _ in SHARES:
        part = parts[name]
        hashes = _simhashes(part.texts)
        near = [one is not None and known.has(one) for one in hashes]
        removed += sum(near)
        part.texts = [text for text, found in zip(part.texts, near, strict=True) if not found]
        part.labels = [label for label, found in zip(part.labels, near, strict=True) if not found]
        known.add([one for one, found in zip(hashes, near, strict=True) if one is not None and not found])
    return removed


class _NearTexts:
    """SimHashes in bands of 16 bits: of two that differ in 3 bits at most, one of 4 bands is the same."""

    def __init__(self) -> None:
        self.bands: list[dict[int, list[int]]] = [{} for _ in range(NEAR_BITS + 1)]

    def add(self, hashes: Sequence[int]) -> None:
        for one in hashes:
            for number, band in enumerate(self.bands):
                band.setdefault(one >> (16 * number) & 0xFFFF, []).append(one)

    def has(self, one: int) -> bool:
        return any(
            (one ^ other).bit_count() <= NEAR_BITS
            for number, band in enumerate(self.bands)
            for other in band.get(one >> (16 * number) & 0xFFFF, ())
        )


def _simhashes(texts: Sequence[str]) -> list[int | None]:
    data, _ = kernels.simhash(make_array(list(texts), pa.string()), "words", 3, 1)
    numbers = np.frombuffer(data, np.uint64).tolist()
    long = [len(text.split(None, LEAST_WORDS)) >= LEAST_WORDS for text in texts]
    return [number if enough else None for number, enough in zip(numbers, long, strict=True)]
