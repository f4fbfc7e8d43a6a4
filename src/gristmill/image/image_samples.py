"""Samples: an image and the files that belong to it, as WebDataset has them, and the columns they become.

    image_id    string         the key of the sample: its path up to the first dot of the last part
    source      string         the tar, or the file
    image       large_binary   the encoded image, as it was
    extension   string         that of the image, as it was written: "jpg", "JPEG", "image.png"
    caption     string         the .txt beside it
    metadata    JSON           the .json beside it, to the letter
    label       int or string  the .cls beside it
    sidecars    map            every other file of the sample, by extension, and a .txt or .json that cannot be read

A sample is a run of files with one key. Its image is the first whose extension is that of an image; if none is, the
first whose extension ends in one (`cam.png`). Further images are sidecars. When an extension comes twice, a new sample
begins, so nothing takes the place of anything else.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import orjson
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import JSON, POSITION, to_array
from gristmill.image.formats import IMAGE_EXTENSIONS

IMAGE_ID, SOURCE, IMAGE, EXTENSION = "image_id", "source", "image", "extension"
CAPTION, METADATA, LABEL, SIDECARS = "caption", "metadata", "label", "sidecars"
COLUMNS = (IMAGE_ID, SOURCE, IMAGE, EXTENSION, CAPTION, METADATA, LABEL, SIDECARS)

TEXT_FILE, JSON_FILE, LABEL_FILE = "txt", "json", "cls"
SIDECAR_TYPE: pa.DataType = pa.map_(pa.string(), pa.large_binary())


@dataclass(slots=True)
class SampleFiles:
    """The files of one key, by extension, and where the first of them lies."""

    key: str
    position: int
    files: dict[str, bytes] = field(default_factory=dict)
    source: str = ""

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.files.values()))

    def image_count(self) -> int:
        """How many of the files are images."""
        return sum(extension.lower().rpartition(".")[2] in IMAGE_EXTENSIONS for extension in self.files)

    def image_extension(self) -> str | None:
        """The extension of the image; None if there is none."""
        for extension in self.files:
            if extension.lower() in IMAGE_EXTENSIONS:
                return extension
        for extension in self.files:
            if extension.lower().rpartition(".")[2] in IMAGE_EXTENSIONS:
                return extension
        return None


def split_name(name: str) -> tuple[str, str]:
    """The key and the extension of a file in a WebDataset: it is cut at the first dot of its last part."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return folder + slash + stem, extension


def group_samples(files: Iterable[tuple[str, int, bytes]]) -> Iterator[SampleFiles]:
    """Samples from files, each with its name and its place."""
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


def samples_to_table(samples: Sequence[SampleFiles], source: str = "") -> pa.Table:
    """The columns of samples, all of which have an image."""
    rows = [_row(sample) for sample in samples]
    texts = {name: make_array([row[name] for row in rows], pa.string()) for name in (EXTENSION, CAPTION, METADATA)}
    return pa.table(
        {
            IMAGE_ID: make_array([sample.key for sample in samples], pa.string()),
            SOURCE: make_array([sample.source or source for sample in samples], pa.string()),
            IMAGE: make_array([row[IMAGE] for row in rows], pa.large_binary()),
            EXTENSION: texts[EXTENSION],
            CAPTION: texts[CAPTION],
            METADATA: pa.ExtensionArray.from_storage(JSON, texts[METADATA]),
            LABEL: to_array([row[LABEL] for row in rows]),
            SIDECARS: sidecar_column([row[SIDECARS] for row in rows]),
            POSITION: make_array([sample.position for sample in samples], pa.int64()),
        }
    )


def empty_schema() -> pa.Schema:
    return samples_to_table([]).schema


def _row(sample: SampleFiles) -> dict[str, Any]:
    chosen = sample.image_extension()
    row: dict[str, Any] = dict.fromkeys((CAPTION, METADATA, LABEL))
    rest: dict[str, bytes] = {}
    for extension, data in sample.files.items():
        if extension == chosen:
            row[EXTENSION], row[IMAGE] = extension, data
            continue
        name, value = _parse_sidecar(extension.lower(), data)
        if name is None or value is None or row[name] is not None:
            rest[extension] = data
        else:
            row[name] = value
    row[SIDECARS] = rest or None
    return row


def _parse_sidecar(extension: str, data: bytes) -> tuple[str | None, Any]:
    """The column that a sidecar goes to, and its value; None for one that cannot be read or has no column."""
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
    """The text as it is, so that no digit and no key of it is lost; a ValueError if it is not JSON, as NaN is not."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:  # numbers beyond what orjson reads
        json.loads(text, parse_constant=_no_constant)
    return text


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def sidecar_column(rows: Sequence[dict[str, bytes] | None]) -> pa.Array:
    """A map for each row, or null."""
    keys = make_array([key for row in rows for key in row or ()], pa.string())
    values = make_array([value for row in rows for value in (row or {}).values()], pa.large_binary())
    pairs = pa.StructArray.from_arrays([keys, values], fields=[SIDECAR_TYPE.key_field, SIDECAR_TYPE.item_field])
    ends = array("i", accumulate((len(row or ()) for row in rows), initial=0))
    present = make_array([row is not None for row in rows], pa.bool_())
    missing = len(rows) - present.true_count
    validity = present.buffers()[1] if missing else None
    return pa.Array.from_buffers(
        SIDECAR_TYPE, len(rows), [validity, pa.py_buffer(ends.tobytes())], missing, children=[pairs]
    )
