"""Read interleaved documents. Bytes are left where they are, and noted by file, offset and size.

    InterleavedWebdatasetReader   .tar, also .gz and .zst     MINT-1T: KEY.json and its pictures
    InterleavedParquetReader      .parquet .pq                a row for each item, OBELICS, or what we write ourselves
    ChatJsonlReader               .jsonl .json .ndjson        conversations: `messages` with parts
    InterleavedPdfReader          .pdf                        text and pictures in reading order
    InterleavedHtmlReader         .html .htm                  the content of pages, with their pictures in place

A record that cannot be read goes to quarantine, with its file, its position and the reason; with `on_bad_record="skip"`
it is only counted, with "raise" it stops the run.

Rows may name any file. References out of the folder of the input, and out of `ref_folders`, are dropped and counted
(`refused_refs`). An address of the web is a name: nothing is fetched before an `InterleavedDownloadStage`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import POSITION, table_to_rows
from gristmill.core.batch import SOURCE_FILE
from gristmill.core.errors import InputError
from gristmill.core.secret_values import hide_in_urls
from gristmill.core.stage import ProcessingStage
from gristmill.core.task import FileGroupTask
from gristmill.download.documents.pdf import PdfError
from gristmill.interleaved.batch import DOC_ID, METADATA, SOURCE, InterleavedBatch
from gristmill.interleaved.forms.chat_messages import MESSAGES, items_of_messages
from gristmill.interleaved.forms.document_table import COLUMNS, DOCUMENT_SCHEMA, Document, document_table
from gristmill.interleaved.forms.html_items import HtmlItems, items_of_html
from gristmill.interleaved.forms.item_rows import (
    ITEM_POSITION,
    MODALITY,
    SAMPLE_ID,
    documents_of_rows,
    has_item_rows,
    items_of_lists,
)
from gristmill.interleaved.forms.mint_tar import IMAGE_EXTENSIONS, JSON_EXTENSIONS, MintForm, members_by_key
from gristmill.interleaved.forms.pdf_items import PdfItems
from gristmill.interleaved.item_bytes import allowed_ref, is_web_address, ref_path
from gristmill.interleaved.item_columns import (
    BadDocument,
    as_items,
    build_items,
    item_field,
    joined_text,
    with_fields,
    without_own_placeholders,
)
from gristmill.interleaved.placeholders import ITEMS_COLUMN, TEXT_COLUMN
from gristmill.io.formats import format_detection
from gristmill.io.formats.jsonl import peek_jsonl, read_jsonl
from gristmill.io.formats.parquet import peek_parquet, read_parquet
from gristmill.io.formats.tar import check_tar, read_members
from gristmill.io.read.composite_reader import CompositeReader
from gristmill.io.read.file_listing import Paths
from gristmill.io.read.file_partitions import BY_LINES, BY_MEMBERS
from gristmill.io.read.files_reader import QUARANTINE, SKIP, FilesReader
from gristmill.io.storage.file_input import BadRecord, FileInput, parse_size
from gristmill.samples.batch import DocumentBatch
from gristmill.samples.read import ARCHIVE_EXTENSIONS

TEXTS, IMAGES = "texts", "images"


class InterleavedReaderStage(FilesReader[FileGroupTask, InterleavedBatch]):
    """Base of the stages that read interleaved documents. A form writes `documents`."""

    kind = InterleavedBatch
    own_columns: Sequence[str] = ()

    def __init__(
        self,
        blocksize: int | str | None = None,
        on_bad_record: str = QUARANTINE,
        max_batch_bytes: int | str | None = None,
        ref_folders: Sequence[str] = (),
    ) -> None:
        super().__init__(blocksize=blocksize, on_bad_record=on_bad_record)
        self.max_batch_bytes = None if max_batch_bytes is None else parse_size(max_batch_bytes)
        self.ref_folders = [ref_folders] if isinstance(ref_folders, str) else list(ref_folders)

    def outputs(self) -> tuple[list[str], list[str]]:
        return [], [*COLUMNS, *self.own_columns]

    def empty_batch(self, task: FileGroupTask) -> InterleavedBatch:
        return self.batch(task, DOCUMENT_SCHEMA.empty_table(), {})

    def schema(self, source: FileInput) -> pa.Schema | None:
        return DOCUMENT_SCHEMA

    def tables(self, source: FileInput) -> Iterator[pa.Table]:
        most = self.max_batch_bytes or self.blocksize
        waiting: list[Document] = []
        size = 0
        name = source.path.rpartition("/")[2]
        for document in self.documents(source):
            waiting.append(document)
            size += document.nbytes
            if size >= most:
                yield document_table(waiting, name, self.own_columns)
                waiting, size = [], 0
        if waiting:
            yield document_table(waiting, name, self.own_columns)

    @abstractmethod
    def documents(self, source: FileInput) -> Iterator[Document]:
        """The documents of a file. Those that cannot be read are passed to `source.on_bad`."""

    def folders(self, source: FileInput) -> list[str]:
        """The folders whose files a row of this file may name."""
        return [source.path.rpartition("/")[0] or "/", *self.ref_folders]


class InterleavedWebdatasetReaderStage(InterleavedReaderStage):
    """Reads MINT-1T tars: JSON is read, and pictures are noted by their place in the archive."""

    name = "read_interleaved_webdataset"
    unit = "byte"

    def __init__(self, form: Mapping[str, Any], materialize_on_read: bool = False, **settings: Any) -> None:
        super().__init__(**settings)
        self.form, self.materialize_on_read = dict(form), materialize_on_read
        self.own_columns = list(self.form.get("fields") or ())
        MintForm("", **self.form)

    def schema(self, source: FileInput) -> pa.Schema | None:
        check_tar(source)
        return DOCUMENT_SCHEMA

    def documents(self, source: FileInput) -> Iterator[Document]:
        form = MintForm(hide_in_urls(source.path), **self.form)
        with source.open() as file:
            packed = format_detection.detect_compression(source.path, file.read(64)) is not None
        inside = self.materialize_on_read or packed
        members = read_members(source, with_data=lambda name: inside or form.is_json(name))
        named = (member for member in members if not member.name.rpartition("/")[2].startswith("."))
        for group in members_by_key(named):
            try:
                document, missing = form.document(group)
            except BadDocument as error:
                source.on_bad(BadRecord(group[0].offset, str(error)))
                continue
            if missing:
                self.count("missing_pictures", missing)
            yield document


class InterleavedParquetReaderStage(InterleavedReaderStage):
    """Reads Parquet in one of three forms, which it finds by the columns."""

    name = "read_interleaved_parquet"

    def __init__(self, fields: Sequence[str] | None = None, id_field: str | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.columns, self.id_field = None if fields is None else list(fields), id_field
        self.own_columns = [name for name in self.columns or () if name not in COLUMNS]

    def schema(self, source: FileInput) -> pa.Schema | None:
        schema = peek_parquet(source)
        if schema is None:
            return None
        names = schema.names
        forms = ({SAMPLE_ID, ITEM_POSITION, MODALITY}, {ITEMS_COLUMN}, {TEXTS, IMAGES})
        if not any(form <= set(names) for form in forms):
            raise InputError(
                f"{source.path} holds no interleaved documents: it needs the columns sample_id, position and modality, "
                f"or items, or texts and images. There are: {', '.join(names)}"
            )
        return self._table(source, schema.empty_table(), []).schema

    def tables(self, source: FileInput) -> Iterator[pa.Table]:
        rest: pa.Table | None = None
        bad: list[BadRecord] = []
        for table in read_parquet(source):
            whole = table
            if has_item_rows(table):
                joined = table if rest is None else pa.concat_tables([rest, table], promote_options="default")
                end = _last_document(joined)
                whole, rest = joined.slice(0, end), joined.slice(end)
            if whole.num_rows:
                yield from self._read(source, whole, bad)
        if rest is not None and rest.num_rows:
            yield from self._read(source, rest, bad)

    def documents(self, source: FileInput) -> Iterator[Document]:
        raise AssertionError("tables() reads whole columns")

    def _read(self, source: FileInput, table: pa.Table, bad: list[BadRecord]) -> Iterator[pa.Table]:
        bad.clear()
        yield self._table(source, table, bad)
        for record in bad:
            source.on_bad(record)

    def _table(self, source: FileInput, table: pa.Table, bad: list[BadRecord]) -> pa.Table:
        if has_item_rows(table):
            table = documents_of_rows(table)
        elif ITEMS_COLUMN not in table.column_names:
            table = self._from_lists(table, bad)
        items, refused = settle_refs(as_items(table.column(ITEMS_COLUMN)), source.path, self.folders(source))
        if refused:
            self.count("refused_refs", refused)
        if TEXT_COLUMN not in table.column_names:
            items = without_own_placeholders(items)
        known = set(table.column_names)
        ids = as_one_array(table.column(DOC_ID)).cast(pa.string()) if DOC_ID in known else self._ids(source, table)
        text = table.column(TEXT_COLUMN) if TEXT_COLUMN in known else joined_text(items)
        metadata = table.column(METADATA) if METADATA in known else pa.nulls(table.num_rows, pa.string())
        name = make_array([source.path.rpartition("/")[2]] * table.num_rows, pa.string())
        columns = {DOC_ID: ids, SOURCE: table.column(SOURCE) if SOURCE in known else name, TEXT_COLUMN: text}
        columns |= {ITEMS_COLUMN: items, METADATA: metadata}
        others = [name for name in table.column_names if name not in (*columns, POSITION)]
        others = others if self.columns is None else [name for name in others if name in self.own_columns]
        return pa.table({**columns, **{name: table.column(name) for name in others}, POSITION: table.column(POSITION)})

    def _ids(self, source: FileInput, table: pa.Table) -> pa.Array:
        if self.id_field and self.id_field in table.column_names:
            return as_one_array(table.column(self.id_field)).cast(pa.string())
        return make_array([numbered(source, at) for at in table.column(POSITION).to_pylist()], pa.string())

    def _from_lists(self, table: pa.Table, bad: list[BadRecord]) -> pa.Table:
        """OBELICS: the items of two parallel lists."""
        found, good = [], []
        rows = table_to_rows(table.select([TEXTS, IMAGES, POSITION]))
        for row in rows:
            try:
                found.append(items_of_lists(row[TEXTS] or [], row[IMAGES] or []))
                good.append(True)
            except BadDocument as error:
                bad.append(BadRecord(row[POSITION], str(error)))
                good.append(False)
        table = table.filter(make_array(good, pa.bool_())).drop_columns([TEXTS, IMAGES])
        return table.append_column(ITEMS_COLUMN, build_items(found))


def _last_document(table: pa.Table) -> int:
    """The first row of the last document, which may go on in the next table."""
    ids = as_one_array(table.column(SAMPLE_ID)).cast(pa.string())
    if len(ids) < 2:
        return 0
    changes = pc.indices_nonzero(pc.not_equal(ids[1:], ids[:-1]))
    return int(changes[-1].as_py()) + 1 if len(changes) else 0


def numbered(source: FileInput, position: int) -> str:
    """An id for a document that has none."""
    return f"{source.path.rpartition('/')[2].partition('.')[0]}-{position:08}"


def settle_refs(items: pa.ListArray, beside: str, folders: Sequence[str]) -> tuple[pa.ListArray, int]:
    """The items with references that may be followed, and how many of them were dropped."""
    refs = item_field(items, "ref")
    given = pc.struct_field(refs, "path").to_pylist()
    known: dict[str, str | None] = {}
    for path in given:
        if path is not None and path not in known:
            full = path if is_web_address(path) else ref_path(path, beside)
            known[path] = full if allowed_ref(full, folders) else None
    if all(path == full for path, full in known.items()):
        return items, 0
    paths = [None if path is None else known[path] for path in given]
    keep = make_array([path is not None for path in paths], pa.bool_())
    fields = [make_array(paths, pa.string()), *(pc.struct_field(refs, name) for name in refs.type.names[1:])]
    settled = pa.StructArray.from_arrays(fields, fields=list(refs.type), mask=pc.invert(keep))
    refused = sum(path is not None and known[path] is None for path in given)
    return with_fields(items, ref=settled), refused


class ChatJsonlReaderStage(InterleavedReaderStage):
    """Reads conversations from JSON lines."""

    name = "read_chat_jsonl"
    unit = "byte"

    def __init__(
        self, messages_field: str = MESSAGES, fields: Sequence[str] = (), id_field: str | None = None, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.messages_field, self.own_columns, self.id_field = messages_field, list(fields), id_field

    def schema(self, source: FileInput) -> pa.Schema | None:
        found = peek_jsonl(source, None, strict=self.on_bad_record != SKIP)
        if found is not None and self.messages_field not in found.names:
            raise InputError(
                f"{source.path} has no field {self.messages_field!r}. There are: {', '.join(found.names)}. Name the "
                "field with messages_field=..."
            )
        return DOCUMENT_SCHEMA

    def documents(self, source: FileInput) -> Iterator[Document]:
        for table in read_jsonl(source):
            for row in table_to_rows(table):
                position = row.pop(POSITION)
                try:
                    yield self._document(source, row, position)
                except BadDocument as error:
                    source.on_bad(BadRecord(position, str(error)))

    def _document(self, source: FileInput, row: dict[str, Any], position: int) -> Document:
        messages = row.pop(self.messages_field, None)
        items, refused = items_of_messages(messages, source.path, self.folders(source))
        if refused:
            self.count("refused_refs", refused)
        given = row.get(self.id_field or "id")
        known = {name: value for name, value in row.items() if value is not None}
        size = sum(len(item.get("text") or "") + len(item.get("bytes") or b"") for item in items)
        return Document(
            numbered(source, position) if given is None else str(given),
            position,
            items,
            {name: value for name, value in known.items() if name not in self.own_columns},
            {name: row.get(name) for name in self.own_columns},
            size,
        )


class InterleavedPdfReaderStage(InterleavedReaderStage):
    """Reads PDF files, one document each, or one for each page."""

    name = "read_interleaved_pdf"

    def __init__(self, per: str = "file", limits: Mapping[str, Any] | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        if per not in ("file", "page"):
            raise ValueError(f"per is {per!r}, must be 'file' or 'page'")
        self.per, self.limits = per, dict(limits or {})
        PdfItems(**self.limits)

    def documents(self, source: FileInput) -> Iterator[Document]:
        reader = PdfItems(**self.limits)
        with source.open() as file:
            data = file.read(reader.max_bytes + 1)
        source.on_bytes(len(data))
        name = source.path.rpartition("/")[2]
        try:
            pages = list(reader.pages(data))
        except PdfError as error:
            source.on_bad(BadRecord(0, str(error)))
            return
        for what, number in reader.counts.items():
            self.count(what, number)
        stem = name.rpartition(".")[0] or name
        if self.per == "page":
            for number, items in enumerate(pages):
                yield Document(f"{stem}-{number + 1:05}", number, items, {"page": number + 1, "pages": len(pages)})
            return
        items = [item for page in pages for item in page]
        size = sum(len(item.get("bytes") or b"") for item in items)
        yield Document(stem, 0, items, {"pages": len(pages)}, nbytes=len(data) + size)


class InterleavedHtmlReaderStage(InterleavedReaderStage):
    """Reads pages of HTML, one document each."""

    name = "read_interleaved_html"

    def __init__(self, html: Mapping[str, Any] | None = None, max_bytes: int = 64 * 2**20, **settings: Any) -> None:
        super().__init__(**settings)
        self.html, self.max_bytes = dict(html or {}), max_bytes
        self._algorithm = HtmlItems(**self.html)

    def documents(self, source: FileInput) -> Iterator[Document]:
        with source.open() as file:
            data = file.read(self.max_bytes + 1)
        source.on_bytes(len(data))
        name = source.path.rpartition("/")[2]
        if len(data) > self.max_bytes:
            source.on_bad(BadRecord(0, f"a page of more than max_bytes={self.max_bytes:,} bytes"))
            return
        try:
            items = items_of_html(data, self._algorithm)
        except BadDocument as error:
            source.on_bad(BadRecord(0, str(error)))
            return
        refused = 0
        for item in items:
            ref = item.get("ref")
            if ref and not is_web_address(ref["path"]):
                path = ref_path(ref["path"], source.path)
                allowed = allowed_ref(path, self.folders(source))
                item["ref"], refused = ({"path": path} if allowed else None), refused + (not allowed)
        if refused:
            self.count("refused_refs", refused)
        yield Document(name.rpartition(".")[0] or name, 0, items, nbytes=len(data))


class InterleavedHtmlStage(ProcessingStage[DocumentBatch, InterleavedBatch]):
    """Makes interleaved documents of pages in a column, as downloads of the web have them.

    `url_field` has what the addresses of pictures are relative to; pictures without an absolute address are left out,
    since rows may not name files. Other columns stay. A page that cannot be read goes to quarantine.
    """

    takes_empty = True

    def __init__(
        self, html_field: str = "html", url_field: str = "url", id_field: str | None = None, language: str = "ENGLISH"
    ) -> None:
        super().__init__()
        self.html_field, self.url_field, self.id_field, self.language = html_field, url_field, id_field, language
        self._algorithm = HtmlItems(language)

    def inputs(self) -> tuple[list[str], list[str]]:
        return ["data"], [self.html_field]

    def outputs(self) -> tuple[list[str], list[str]]:
        return ["data"], [DOC_ID, TEXT_COLUMN, ITEMS_COLUMN]

    def process(self, task: DocumentBatch) -> InterleavedBatch:
        found, kept = [], []
        for at, row in enumerate(table_to_rows(task.data)):
            try:
                items = items_of_html(row[self.html_field] or "", self._algorithm, row.get(self.url_field))
            except BadDocument as error:
                position = row.pop(POSITION, None)
                self.set_aside(error, row=row, file=task.metadata.get(SOURCE_FILE), position=position)
                continue
            found.append([item for item in items if "ref" not in item or is_web_address(item["ref"]["path"])])
            kept.append(at)
        rows = task.take(kept)
        named = self.id_field or (DOC_ID if DOC_ID in rows.get_columns() else self.url_field)
        table = rows.data.drop_columns([name for name in (self.html_field, TEXT_COLUMN) if name in rows.get_columns()])
        for name, column in (
            (DOC_ID, rows.data.column(named).cast(pa.string())),
            (ITEMS_COLUMN, build_items(found)),
        ):
            at = table.column_names.index(name) if name in table.column_names else -1
            table = table.append_column(name, column) if at < 0 else table.set_column(at, name, column)
        return InterleavedBatch(table, dataset_name=task.dataset_name, metadata=dict(task.metadata))


# -- what users name ----------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class InterleavedReader(CompositeReader[InterleavedBatch]):
    """Base of the readers of interleaved documents."""

    file_paths: Paths
    files_per_partition: int | None = None
    blocksize: int | str | None = None
    max_batch_bytes: int | str | None = None
    file_extensions: Sequence[str] | None = None
    storage_options: Mapping[str, Any] | None = None
    on_bad_record: str = QUARANTINE
    limit: int | None = None

    def _settings(self) -> dict[str, Any]:
        return {
            "blocksize": self.blocksize, "on_bad_record": self.on_bad_record, "max_batch_bytes": self.max_batch_bytes,
        }  # fmt: skip


@dataclass(eq=False, repr=False)
class InterleavedWebdatasetReader(InterleavedReader):
    """Reads MINT-1T tars: a JSON with `texts` and `images` for each document, and the pictures beside it.

    Pictures stay in the archive until a stage needs them, unless `materialize_on_read`; those of a compressed archive
    are read. `fields` of the JSON become columns, the others are in `metadata`; `per_image_fields` and
    `per_text_fields` are lists with a value for each item. `image_member_field` names the members if `images` does not.
    """

    materialize_on_read: bool = False
    json_extensions: Sequence[str] = JSON_EXTENSIONS
    image_extensions: Sequence[str] = IMAGE_EXTENSIONS
    sample_id_field: str | None = None
    texts_field: str = TEXTS
    images_field: str = IMAGES
    image_member_field: str | None = None
    fields: Sequence[str] | None = None
    per_image_fields: Sequence[str] = ()
    per_text_fields: Sequence[str] = ()

    extensions = ARCHIVE_EXTENSIONS
    split_by = BY_MEMBERS

    def reading_stage(self) -> InterleavedWebdatasetReaderStage:
        form = {
            "texts_field": self.texts_field,
            "images_field": self.images_field,
            "sample_id_field": self.sample_id_field,
            "image_member_field": self.image_member_field,
            "fields": tuple(self.fields or ()),
            "per_image_fields": tuple(self.per_image_fields),
            "per_text_fields": tuple(self.per_text_fields),
            "json_extensions": tuple(self.json_extensions),
            "image_extensions": tuple(self.image_extensions),
        }
        return InterleavedWebdatasetReaderStage(form, self.materialize_on_read, **self._settings())


@dataclass(eq=False, repr=False)
class InterleavedParquetReader(InterleavedReader):
    """Reads Parquet: a row for each item, as NeMo Curator writes it; OBELICS, with lists of texts and images; or a row
    for each document with its items, as we write it. The columns say which.

    Rows of items that make one document follow each other. `ref_folders` are folders that rows may refer to besides
    that of the input; other references are dropped. `id_field` names the column of ids where there is no `doc_id`.
    """

    fields: Sequence[str] | None = None
    id_field: str | None = None
    ref_folders: Sequence[str] = ()

    extensions = format_detection.PARQUET_EXTENSIONS

    def reading_stage(self) -> InterleavedParquetReaderStage:
        return InterleavedParquetReaderStage(
            self.fields, self.id_field, ref_folders=self.ref_folders, **self._settings()
        )


@dataclass(eq=False, repr=False)
class ChatJsonlReader(InterleavedReader):
    """Reads conversations from JSON lines: `messages` with a role and a content that is text or a list of parts.

    `fields` become columns, and the others are in `metadata`. `ref_folders` are folders that parts may refer to besides
    that of the input.
    """

    messages_field: str = MESSAGES
    fields: Sequence[str] = ()
    id_field: str | None = None
    ref_folders: Sequence[str] = ()

    extensions = format_detection.with_compressed_extensions(format_detection.JSONL_EXTENSIONS)
    split_by = BY_LINES

    def reading_stage(self) -> ChatJsonlReaderStage:
        return ChatJsonlReaderStage(
            self.messages_field, self.fields, self.id_field, ref_folders=self.ref_folders, **self._settings()
        )


@dataclass(eq=False, repr=False)
class InterleavedPdfReader(InterleavedReader):
    """Reads PDF files, one document each or one `per="page"`: blocks of text and pictures in reading order.

    A file that is damaged, encrypted, or larger than the limits goes to quarantine. Pictures with a side below
    `min_side` pixels, and those of more than `max_pixels`, are left out and counted; `images=False` leaves out all.
    """

    per: str = "file"
    images: bool = True
    max_pages: int | None = 2000
    max_seconds: float = 60.0
    max_file_bytes: int = 256 * 2**20
    min_side: int = 16
    max_pixels: int = 89_478_485
    password: str | None = None

    extensions = (".pdf",)

    def reading_stage(self) -> InterleavedPdfReaderStage:
        limits = {
            "images": self.images,
            "max_pages": self.max_pages,
            "max_seconds": self.max_seconds,
            "max_bytes": self.max_file_bytes,
            "min_side": self.min_side,
            "max_pixels": self.max_pixels,
            "password": self.password,
        }
        return InterleavedPdfReaderStage(self.per, limits, **self._settings())


@dataclass(eq=False, repr=False)
class InterleavedHtmlReader(InterleavedReader):
    """Reads pages of HTML, one document each: the paragraphs that are content, with the pictures among them.

    Which paragraphs are content is found with the stop words of `language`. A picture is an item with its address; the
    text of its `alt` is in `meta`. `base_url` is what relative addresses are relative to; without it they are files
    beside the page.
    """

    language: str = "ENGLISH"
    base_url: str | None = None
    ref_folders: Sequence[str] = ()

    extensions = (".html", ".htm", ".xhtml")

    def reading_stage(self) -> InterleavedHtmlReaderStage:
        html = {"language": self.language, "base_url": self.base_url}
        return InterleavedHtmlReaderStage(html, ref_folders=self.ref_folders, **self._settings())
