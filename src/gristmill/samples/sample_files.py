"""Samples: an encoded object and the files that belong to it, as WebDataset has them, and the columns they become.

    image_id    string         the key of the sample: its path up to the first dot of the last part
    source      string         the archive, or the file
    image       large_binary   the encoded object, unchanged
    extension   string         its extension as it was written: "jpg", "JPEG", "image.png"
    caption     string         the .txt beside it
    metadata    JSON           the .json beside it, character by character
    label       int or string  the .cls beside it
    sidecars    list           every other file of the sample, with its extension; and a .txt or .json that is not valid

The columns `image_id` and `image` are called as the modality says (`SampleBatch`).

A sample is a run of files with one key. Its object is the first file with an extension of the modality; if there is
none, the first whose extension ends in one (`cam.png`). Further objects are sidecars. When an extension comes twice, a
new sample begins, so no file replaces another.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import orjson
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import MIXED, POSITION, to_array
from gristmill.samples.batch import SampleBatch

SOURCE, EXTENSION = "source", "extension"
CAPTION, METADATA, LABEL, SIDECARS = "caption", "metadata", "label", "sidecars"

TEXT_FILE, JSON_FILE, LABEL_FILE = "txt", "json", "cls"
_ENCODED = ""
"""The key of the encoded object in the dictionary of a row: no column is called so."""

SIDECAR_TYPE = pa.list_(pa.struct([("extension", pa.string()), ("data", pa.large_binary())]))


@dataclass(slots=True)
class SampleFiles:
    """The files of one key, by extension, and the position of the first."""

    key: str
    position: int
    files: dict[str, bytes] = field(default_factory=dict)
    source: str = ""

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.files.values()))

    def object_count(self, extensions: Collection[str]) -> int:
        """How many of the files have one of these extensions."""
        return sum(extension.lower().rpartition(".")[2] in extensions for extension in self.files)

    def object_extension(self, extensions: Collection[str]) -> str | None:
        """The extension of the encoded object, which must be one of these; None if there is none."""
        for extension in self.files:
            if extension.lower() in extensions:
                return extension
        for extension in self.files:
            if extension.lower().rpartition(".")[2] in extensions:
                return extension
        return None


def split_name(name: str) -> tuple[str, str]:
    """The key and the extension of a file in a WebDataset: split at the first dot of the last part of its name."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return folder + slash + stem, extension


def group_samples(files: Iterable[tuple[str, int, bytes]]) -> Iterator[SampleFiles]:
    """Samples from (name, position, bytes) of files."""
    sample: SampleFiles | None = None
    for name, position, data in files:
        key, extension = split_name(name)
        if sample is None or key != sample.key or extension in sample.files:
            if sample is not None:
                yield sample
            sample = SampleFiles(key, position)
        sample.files[extension] = data
    if sample is not None:
        yield sample


def sample_columns(kind: type[SampleBatch]) -> list[str]:
    return [kind.id_column, SOURCE, kind.encoded_column, EXTENSION, CAPTION, METADATA, LABEL, SIDECARS]


def samples_to_table(
    samples: Sequence[SampleFiles], kind: type[SampleBatch], extensions: Collection[str], source: str = ""
) -> pa.Table:
    """The columns of samples, each of which has an object with one of the `extensions`."""
    rows = [_row(sample, extensions) for sample in samples]
    texts = {name: make_array([row[name] for row in rows], pa.string()) for name in (EXTENSION, CAPTION, METADATA)}
    return pa.table(
        {
            kind.id_column: make_array([sample.key for sample in samples], pa.string()),
            SOURCE: make_array([sample.source or source for sample in samples], pa.string()),
            kind.encoded_column: make_array([row[_ENCODED] for row in rows], pa.large_binary()),
            EXTENSION: texts[EXTENSION],
            CAPTION: texts[CAPTION],
            METADATA: pa.ExtensionArray.from_storage(MIXED, texts[METADATA].cast(MIXED.storage_type)),
            LABEL: to_array([row[LABEL] for row in rows]),
            SIDECARS: sidecar_column([row[SIDECARS] for row in rows]),
            POSITION: make_array([sample.position for sample in samples], pa.int64()),
        }
    )


def empty_schema(kind: type[SampleBatch]) -> pa.Schema:
    return samples_to_table([], kind, ()).schema


def _row(sample: SampleFiles, extensions: Collection[str]) -> dict[str, Any]:
    chosen = sample.object_extension(extensions)
    row: dict[str, Any] = dict.fromkeys((CAPTION, METADATA, LABEL))
    rest: dict[str, bytes] = {}
    for extension, data in sample.files.items():
        if extension == chosen:
            row[EXTENSION], row[_ENCODED] = extension, data
            continue
        name, value = _parse_sidecar(extension.lower(), data)
        if name is None or value is None or row[name] is not None:
            rest[extension] = data
        else:
            row[name] = value
    row[SIDECARS] = rest or None
    return row


def _parse_sidecar(extension: str, data: bytes) -> tuple[str | None, Any]:
    """The column that a sidecar goes to, and its value; None for one that cannot be parsed or has no column."""
    try:
        if extension == TEXT_FILE:
            return CAPTION, data.decode()
        if extension == JSON_FILE:
            return METADATA, _json(data.decode())
        if extension == LABEL_FILE:
            text = data.decode().strip()
            return LABEL, int(text) if text.removeprefix("-").isdecimal() and str(int(text)) == text else text
    except (ValueError, RecursionError):
        pass
    return None, None


def _json(text: str) -> str:
    """The text unchanged, so that no digit and no key is lost. Raises ValueError if it is not JSON, such as NaN."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:  # also raised for numbers too large for orjson
        json.loads(text, parse_constant=_no_constant)
    return text


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def sidecar_column(rows: Sequence[dict[str, bytes] | None]) -> pa.Array:
    """A list of extensions and bytes for each row, or null: not a map, which `datasets` cannot load."""
    keys = make_array([key for row in rows for key in row or ()], pa.string())
    values = make_array([value for row in rows for value in (row or {}).values()], pa.large_binary())
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(SIDECAR_TYPE.value_type))
    ends = array("i", accumulate((len(row or ()) for row in rows), initial=0))
    present = make_array([row is not None for row in rows], pa.bool_())
    missing = len(rows) - present.true_count
    validity = present.buffers()[1] if missing else None
    return pa.Array.from_buffers(
        SIDECAR_TYPE, len(rows), [validity, pa.py_buffer(ends.tobytes())], missing, children=[pairs]
    )
