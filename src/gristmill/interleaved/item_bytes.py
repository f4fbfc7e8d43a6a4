"""The bytes of items: in the row, or where a reference says they are.

A reader leaves bytes where they are and notes the file, the offset and the size. They are read when a stage asks for
them: a range of a file, or all of it. Two ranges of one file share an open file.

Rows may name any file, and data must not show what its user never opened: readers of rows drop references that lead
out of the folders that they may (`allowed_ref`). Nothing here fetches from the web: `InterleavedDownloadStage` does.
"""

from __future__ import annotations

import io
import os
import posixpath
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import POSITION, table_to_rows
from gristmill.core.batch import SOURCE_FILE
from gristmill.core.errors import GristmillError, require
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.core.task import FileSlice
from gristmill.image.decode import MAX_PIXELS
from gristmill.interleaved.batch import InterleavedBatch, as_interleaved
from gristmill.interleaved.item_columns import (
    TEXT,
    documents_of,
    item_field,
    keep_items,
    of_kind,
    with_fields,
)
from gristmill.interleaved.placeholders import ITEMS_COLUMN, TEXT_COLUMN
from gristmill.io.storage.file_input import FileInput, OpenFile
from gristmill.samples.argument_checks import check_choice, check_positive
from gristmill.samples.batch import BadSample, DocumentBatch

MAX_ITEM_BYTES = 512 * 2**20
OPEN_FILES = 16

ERROR, WARN, DROP_ROW, DROP_SAMPLE = ON_ERROR = ("error", "warn", "drop_row", "drop_sample")


def is_web_address(path: str | None) -> bool:
    return path is not None and path.lower().startswith(("http://", "https://"))


def allowed_ref(path: str, folders: Sequence[str]) -> bool:
    """Whether a row may name this file: one in the folders, links resolved. An address of the web is a name only."""
    if is_web_address(path):
        return True
    if "\0" in path or "::" in path:
        return False
    if "://" in path:
        inside = any("://" in folder and path.startswith(f"{folder.rstrip('/')}/") for folder in folders)
        return inside and ".." not in path.split("/")
    real = os.path.realpath(path)
    roots = [os.path.realpath(folder) for folder in folders if "://" not in folder]
    return any(os.path.commonpath([real, root]) == root for root in roots)


def ref_path(named: str, beside: str) -> str:
    """The path of a file that a row names, which may be relative to the file that the row is in."""
    if "://" in named or "::" in named or named.startswith("/"):
        return named
    scheme, remote, folder = beside.rpartition("/")[0].partition("://")
    return f"{scheme}://{posixpath.join(folder, named)}" if remote else posixpath.join(scheme, named)


class NotDownloaded(BadSample):
    """An item with an address of the web, whose bytes no stage has fetched."""


class ItemBytes:
    """Reads the bytes of items. Keeps a few files open: the items of an archive follow each other in it."""

    def __init__(self, storage_options: Mapping[str, Any] | None = None, max_bytes: int = MAX_ITEM_BYTES) -> None:
        self.storage_options, self.max_bytes = dict(storage_options or {}), max_bytes
        self._open: OrderedDict[str, OpenFile] = OrderedDict()

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def read(self, ref: Mapping[str, Any] | None) -> bytes | BadSample:
        """What a reference leads to, or why it cannot be had."""
        if ref is None or not ref["path"]:
            return BadSample("no bytes, and no reference to any")
        path: str = ref["path"]
        if is_web_address(path):
            return NotDownloaded(f"{path} was not downloaded: put InterleavedDownloadStage before this stage")
        if ref["member"] is not None and ref["offset"] is None:
            return BadSample(f"{path} has {ref['member']!r} somewhere, and the reference does not say where")
        try:
            data = self._range(path, ref["offset"] or 0, ref["size"])
            return data if ref["frame"] is None or isinstance(data, BadSample) else tiff_frame(data, ref["frame"])
        except (OSError, GristmillError, ValueError) as error:
            return BadSample(f"{path} cannot be read: {error}")

    def _range(self, path: str, offset: int, size: int | None) -> bytes | BadSample:
        if offset < 0 or (size is not None and size < 0):
            return BadSample(f"{path}: a reference to {size} bytes at {offset}")
        if size is not None and size > self.max_bytes:
            return BadSample(f"{path}: {size:,} bytes are more than max_bytes={self.max_bytes:,}")
        file = self._file(path)
        file.seek(offset)
        data = file.read(self.max_bytes + 1 if size is None else size)
        if size is None and len(data) > self.max_bytes:
            return BadSample(f"{path} has more than max_bytes={self.max_bytes:,} bytes")
        if size is not None and len(data) < size:
            return BadSample(f"{path} ends after {len(data):,} of the {size:,} bytes at {offset:,}")
        return data

    def _file(self, path: str) -> OpenFile:
        if path not in self._open:
            while len(self._open) >= OPEN_FILES:
                self._open.popitem(last=False)[1].close()
            self._open[path] = FileInput(FileSlice(path), self.storage_options).open(read_ahead=False)
        self._open.move_to_end(path)
        return self._open[path]


def tiff_frame(data: bytes, number: int) -> bytes | BadSample:
    """One page of a TIFF, as a TIFF of its own; other pictures as they are."""
    if data[:4] not in (b"II*\0", b"MM\0*"):
        return data
    pillow = require("PIL.Image", "image", "pages of TIFF files")
    try:
        with pillow.open(io.BytesIO(data)) as image:
            image.seek(number)
            if image.width * image.height > MAX_PIXELS:
                return BadSample(
                    f"page {number} has {image.width:,} x {image.height:,} pixels, more than {MAX_PIXELS:,}"
                )
            out = io.BytesIO()
            image.save(out, "TIFF", compression="tiff_deflate")
            return out.getvalue()
    except (OSError, EOFError, ValueError, SyntaxError, MemoryError) as error:
        return BadSample(f"page {number} of a TIFF that cannot be read: {type(error).__name__}: {error}")


def bytes_of(items: pa.ListArray, places: Sequence[int], reader: ItemBytes) -> list[bytes | BadSample]:
    """The bytes of some items, which are counted one after the other over all documents."""
    chosen = make_array(list(places), pa.int64())
    data, refs = (item_field(items, name).take(chosen) for name in ("bytes", "ref"))
    found: list[bytes | BadSample] = []
    for own, ref in zip(data, refs, strict=True):
        found.append(own.as_py() if own.is_valid else reader.read(ref.as_py()))
    return found


class InterleavedMaterializeStage(ProcessingStage[DocumentBatch, InterleavedBatch]):
    """Reads the bytes of items that are only referred to, into the rows.

    `on_materialize_error` says what becomes of a document with an item whose bytes cannot be read: "error" puts the
    document into quarantine, "drop_sample" does the same, "drop_row" drops the item, "warn" keeps it without bytes; all
    count it. Items with an address of the web stay as they are.
    """

    takes_empty = True

    def __init__(
        self,
        kinds: Sequence[str] | None = None,
        on_materialize_error: str = ERROR,
        storage_options: Mapping[str, Any] | None = None,
        max_bytes: int = MAX_ITEM_BYTES,
    ) -> None:
        super().__init__()
        check_choice(self.name, "on_materialize_error", on_materialize_error, ON_ERROR)
        check_positive(self.name, "max_bytes", max_bytes)
        if isinstance(kinds, str):
            raise TypeError(f"kinds is the text {kinds!r}, must be a list of kinds: [{kinds!r}]")
        self.kinds = None if kinds is None else list(kinds)
        self.on_materialize_error, self.storage_options, self.max_bytes = (
            on_materialize_error,
            storage_options,
            max_bytes,
        )
        self._reader: ItemBytes | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_reader": None}

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [ITEMS_COLUMN]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [TEXT_COLUMN, ITEMS_COLUMN]

    def teardown(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def process(self, task: DocumentBatch) -> InterleavedBatch:
        batch = as_interleaved(task)
        items = batch.items()
        wanted = self._wanted(items)
        if not wanted.true_count:
            return batch
        if self._reader is None:
            self._reader = ItemBytes(self.storage_options, self.max_bytes)
        places = pc.indices_nonzero(wanted).to_pylist()
        found = bytes_of(items, places, self._reader)
        bad = {at: one for at, one in zip(places, found, strict=True) if isinstance(one, BadSample)}
        values = make_array([None if isinstance(one, BadSample) else one for one in found], pa.large_binary())
        data = pc.replace_with_mask(as_one_array(item_field(items, "bytes")), wanted, values)
        batch = batch.with_items(with_fields(items, bytes=data))
        return self._without_bad(batch, bad) if bad else batch

    def _wanted(self, items: pa.ListArray) -> pa.Array:
        """Items that are to have bytes and have none."""
        paths = pc.struct_field(item_field(items, "ref"), "path")
        web = make_array([is_web_address(path) for path in paths.to_pylist()], pa.bool_())
        kinds = item_field(items, "kind")
        chosen = pc.invert(of_kind(items, TEXT))
        if self.kinds is not None:
            chosen = pc.is_in(kinds, value_set=make_array(self.kinds, pa.string()))
        return pc.and_(pc.and_(chosen, item_field(items, "bytes").is_null()), pc.invert(web))

    def _without_bad(self, batch: InterleavedBatch, bad: Mapping[int, BadSample]) -> InterleavedBatch:
        items = batch.items()
        self.count("materialize_errors", len(bad))
        if self.on_materialize_error == WARN:
            return batch
        if self.on_materialize_error == DROP_ROW:
            mask = [at not in bad for at in range(len(items.flatten()))]
            return batch.with_items(keep_items(items, make_array(mask, pa.bool_())))
        return without_documents(self, batch, documents_with(items, bad))


def documents_with(items: pa.ListArray, bad: Mapping[int, BadSample]) -> dict[int, BadSample]:
    """The number of each document that has one of these items, with the reason of the first."""
    parents = documents_of(items).to_pylist()
    found: dict[int, BadSample] = {}
    for at, reason in bad.items():
        found.setdefault(parents[at], reason)
    return found


def without_documents(
    stage: ProcessingStage[Any, Any], batch: InterleavedBatch, bad: Mapping[int, BadSample]
) -> InterleavedBatch:
    """The batch without some documents, which go to quarantine with the reason."""
    shown = [name for name in batch.get_columns() if name != ITEMS_COLUMN]
    for at, reason in bad.items():
        row = table_to_rows(batch.data.select(shown).slice(at, 1))[0]
        position = row.pop(POSITION, None)
        stage.set_aside(reason, row=row, file=batch.metadata.get(SOURCE_FILE), position=position)
    return batch.take([at for at in range(batch.num_items) if at not in bad])
