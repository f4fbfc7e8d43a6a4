"""Documents in tars, as MINT-1T and WebDataset have them: `KEY.json` with the parallel lists `texts` and `images`, and
the pictures beside it.

    KEY.json     {"texts": ["A title", null, "..."], "images": [null, "KEY.0.jpg", null], ...}
    KEY.0.jpg    a picture, which the list names

A name in `images` is that of a member of the tar; of a frame, when the only picture is a TIFF of several pages; the
n-th picture of the key, when there are as many as names; or an address of the web. Items of other kinds are written
with their kind, since the two lists have none: `{"kind": "audio", ...}` in `items`, which other readers ignore.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, BinaryIO

import orjson
import pyarrow as pa

from gristmill.core.arrow.table_conversion import POSITION, json_text, table_to_rows
from gristmill.interleaved.batch import DOC_ID, METADATA, SOURCE
from gristmill.interleaved.forms.document_table import Document, parse_object
from gristmill.interleaved.forms.item_rows import items_of_lists
from gristmill.interleaved.item_bytes import is_web_address, tiff_frame
from gristmill.interleaved.item_columns import IMAGE, NAMES, TEXT, BadDocument
from gristmill.interleaved.placeholders import ITEMS_COLUMN, TEXT_COLUMN
from gristmill.io.formats.tar import END_OF_ARCHIVE, TarMember, member_header, member_padding, sample_key
from gristmill.io.write.commit import OutputFormat
from gristmill.io.write.parquet_format import ParquetFormat, fragment_tables
from gristmill.samples.batch import BadSample
from gristmill.samples.shard_formats import split_into_shards, unique_key

if TYPE_CHECKING:
    from gristmill.io.write.commit import Fragment, OutputFiles

JSON_EXTENSIONS = (".json",)
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp", ".avif")
TIFF = (".tif", ".tiff")

MIME = {
    "jpg": "image/jpeg", "jpeg": "image/jpeg", "png": "image/png", "webp": "image/webp", "gif": "image/gif",
    "tif": "image/tiff", "tiff": "image/tiff", "bmp": "image/bmp", "avif": "image/avif", "wav": "audio/wav",
    "flac": "audio/flac", "mp3": "audio/mpeg", "ogg": "audio/ogg", "mp4": "video/mp4", "webm": "video/webm",
}  # fmt: skip
_EXTENSIONS = {mime: extension for extension, mime in reversed(MIME.items())}
_PLAIN = {TEXT: {"kind", "text"}, IMAGE: {"kind", "file"}}
"""What the two lists can say of an item."""
_DIGITS = re.compile(r"(\d+)")


def mime_of(name: str) -> str | None:
    return MIME.get(name.rpartition(".")[2].lower())


def extension_of_mime(mime: str | None) -> str:
    return _EXTENSIONS.get(mime or "", "bin")


@dataclass(frozen=True)
class MintForm:
    """How a document is written down in its JSON."""

    path: str
    texts_field: str = "texts"
    images_field: str = "images"
    sample_id_field: str | None = None
    image_member_field: str | None = None
    fields: tuple[str, ...] = ()
    per_image_fields: tuple[str, ...] = ()
    per_text_fields: tuple[str, ...] = ()
    json_extensions: tuple[str, ...] = JSON_EXTENSIONS
    image_extensions: tuple[str, ...] = IMAGE_EXTENSIONS

    def is_json(self, name: str) -> bool:
        return name.lower().endswith(self.json_extensions)

    def is_image(self, name: str) -> bool:
        return name.lower().endswith(self.image_extensions)

    def document(self, members: Sequence[TarMember]) -> tuple[Document, int]:
        """The document of one key, and how many of its pictures are not in the tar. Raises a BadDocument."""
        described = next((member for member in members if self.is_json(member.name)), None)
        if described is None:
            raise BadDocument(f"{sample_key(members[0].name)!r} has no JSON, only {members[0].name!r}")
        try:
            content = parse_object(described.data or b"")
            items = self._items(content)
        except BadDocument as error:
            raise BadDocument(f"{described.name}: {error}") from error
        pictures = [member for member in members if member is not described and not self.is_json(member.name)]
        missing = self._find_pictures(items, pictures, content)
        taken = {self.texts_field, self.images_field, "items", *self.per_image_fields, *self.per_text_fields}
        rest = {name: value for name, value in content.items() if name not in taken and name not in self.fields}
        key = content.get(self.sample_id_field) if self.sample_id_field else None
        document = Document(
            sample_key(described.name) if key is None else str(key),
            members[0].offset,
            items,
            rest,
            {name: content.get(name) for name in self.fields},
            described.size + sum(len(item.get("bytes") or b"") for item in items),
        )
        return document, missing

    def _items(self, content: Mapping[str, Any]) -> list[dict[str, Any]]:
        if isinstance(content.get("items"), list):
            return [_own_item(item) for item in content["items"]]
        texts, images = content.get(self.texts_field), content.get(self.images_field)
        for field, value in ((self.texts_field, texts), (self.images_field, images)):
            if value is not None and not isinstance(value, list):
                raise BadDocument(f"{field!r} is no list, but {type(value).__name__}")
        if texts is None and images is None:
            raise BadDocument(f"it has neither {self.texts_field!r} nor {self.images_field!r}")
        items = items_of_lists(
            [None] * len(images or ()) if texts is None else texts,
            [None] * len(texts or ()) if images is None else images,
        )
        for kind, fields in ((TEXT, self.per_text_fields), (IMAGE, self.per_image_fields)):
            _add_fields([item for item in items if item["kind"] == kind], fields, content)
        return items

    def _find_pictures(
        self, items: Sequence[dict[str, Any]], pictures: Sequence[TarMember], content: Mapping[str, Any]
    ) -> int:
        """Point each picture to its member. Returns how many are missing."""
        wanted = [item for item in items if item["kind"] != TEXT and item.get("ref")]
        by_name = {one.name[len(sample_key(one.name)) + 1 :]: one for one in pictures}
        by_name |= {one.name.rpartition("/")[2]: one for one in pictures} | {one.name: one for one in pictures}
        by_name |= {_stem(name): one for name, one in [*by_name.items()]}
        named = content.get(self.image_member_field) if self.image_member_field else None
        in_order = sorted(pictures, key=lambda one: _natural(one.name))
        paged = len(pictures) == 1 and pictures[0].name.lower().endswith(TIFF) and len(wanted) > 1
        missing = 0
        for number, item in enumerate(wanted):
            name = item["ref"]["path"]
            if isinstance(named, list) and number < len(named) and isinstance(named[number], str):
                name = named[number]
            elif isinstance(named, str):
                name = named
            found = by_name.get(name) or by_name.get(name.rpartition("/")[2])
            frame = number if paged and found in (None, pictures[0]) else None
            if frame is not None:
                found = pictures[0]
            elif found is None and not is_web_address(name) and len(in_order) == len(wanted):
                found = in_order[number]
            if found is None:
                missing += not is_web_address(name)
                if not is_web_address(name):
                    item["ref"], item["meta"] = None, {**_meta(item), "missing": name}
                continue
            place = {"member": found.name, "offset": found.data_offset, "size": found.size, "frame": frame}
            item["ref"] = {"path": self.path, **place}
            item["mime"] = item.get("mime") or mime_of(found.name)
            if found.data is not None:
                data = found.data if frame is None else tiff_frame(found.data, frame)
                item["bytes"] = None if isinstance(data, BadSample) else data
        return missing


def _meta(item: Mapping[str, Any]) -> dict[str, Any]:
    """What else is known of an item, which our writer has written as text."""
    meta = item.get("meta") or {}
    return dict(meta) if isinstance(meta, Mapping) else parse_object(meta)


def _own_item(given: Any) -> dict[str, Any]:
    """An item as our writer wrote it."""
    if not isinstance(given, Mapping) or not isinstance(given.get("kind"), str):
        raise BadDocument("the list 'items' holds something that has no kind")
    item = {name: given[name] for name in NAMES if given.get(name) is not None and name not in ("bytes", "ref")}
    for name, value in item.items():
        wanted = (int,) if name in ("width", "height") else (int, float) if name in ("start", "end") else (str, dict)
        small = not isinstance(value, int) or abs(value) < 2**31
        if not isinstance(value, wanted) or isinstance(value, bool) or not small:
            raise BadDocument(f"an item has {name} {value!r:.80}")
    if not all(isinstance(item.get(name, ""), str) for name in ("kind", "text", "mime")):
        raise BadDocument("an item has a kind, text or mime that is no text")
    if isinstance(given.get("file"), str):
        item["ref"] = {"path": given["file"]}
    return item


def _add_fields(items: Sequence[dict[str, Any]], fields: Sequence[str], content: Mapping[str, Any]) -> None:
    """Values of parallel lists for each item of one kind. A list may have a place for each item of both kinds."""
    for field in fields:
        values = content.get(field)
        present = [value for value in values if value is not None] if isinstance(values, list) else []
        chosen = values if isinstance(values, list) and len(values) == len(items) else present
        if len(chosen) != len(items):
            raise BadDocument(f"{field!r} has {len(chosen):,} values for {len(items):,} items")
        for item, value in zip(items, chosen, strict=True):
            item["meta"] = {**(item.get("meta") or {}), field: value}


def _stem(name: str) -> str:
    return name.rpartition(".")[0] or name


def _natural(name: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in _DIGITS.split(name)]


def members_by_key(members: Iterable[TarMember]) -> Iterator[list[TarMember]]:
    for _, group in groupby(members, key=lambda member: sample_key(member.name)):
        yield list(group)


# -- writing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MintTarFormat(OutputFormat):
    """Tars of `samples_per_tar` documents."""

    samples_per_tar: int = 1000
    name: str = "interleaved_webdataset"
    extension: str = ".tar"
    extensions: tuple[str, ...] = (".tar",)
    target_file_size: int | None = 0
    """Not None, so that files are numbered: there may be several for a partition."""

    def write_fragment(self, table: pa.Table, file: BinaryIO) -> None:
        ParquetFormat().write_fragment(table, file)

    def join(self, fragments: Sequence[Fragment], schema: pa.Schema, parts: OutputFiles) -> None:
        for shard in split_into_shards(fragment_tables(fragments, schema, parts.target), self.samples_per_tar):
            taken: set[str] = set()
            with parts.create() as tar:
                for table in shard:
                    for at in range(table.num_rows):
                        write_document(tar, table_to_rows(table.slice(at, 1))[0], taken)
                tar.write(END_OF_ARCHIVE)


def write_document(tar: BinaryIO, row: Mapping[str, Any], taken: set[str]) -> None:
    """Write one document, under a key that is not yet `taken`."""
    key = unique_key(_safe_key(row.get(DOC_ID)), taken)
    texts: list[str | None] = []
    images: list[str | None] = []
    own: list[dict[str, Any]] = []
    files: list[tuple[str, bytes]] = []
    for item in row[ITEMS_COLUMN]:
        name: str | None = _file_name(key, len(files), item)
        if item["kind"] != TEXT and item["bytes"] is not None:
            files.append((str(name), item["bytes"]))
        elif item["kind"] != TEXT:
            name = (item["ref"] or {}).get("path")
        texts.append(item["text"] if item["kind"] == TEXT else None)
        images.append(name if item["kind"] == IMAGE else None)
        own.append(_described(item, None if item["kind"] == TEXT else name))
    content: dict[str, Any] = {"texts": texts, "images": images}
    if not all(set(item) == _PLAIN.get(item["kind"]) for item in own):
        content["items"] = own
    left_out = (DOC_ID, SOURCE, TEXT_COLUMN, ITEMS_COLUMN, METADATA, POSITION)
    content |= {name: value for name, value in row.items() if name not in left_out and name not in content}
    metadata = orjson.loads(row[METADATA]) if isinstance(row.get(METADATA), str) else {}
    content = {**{name: value for name, value in metadata.items() if name not in content}, **content}
    for name, data in [(f"{key}.json", json_text(content).encode("utf-8", "surrogatepass")), *files]:
        for piece in (member_header(name, len(data)), data, member_padding(len(data))):
            tar.write(piece)


def _described(item: Mapping[str, Any], file: str | None) -> dict[str, Any]:
    """An item as JSON, without what stands elsewhere."""
    known = {name: item[name] for name in NAMES if name not in ("bytes", "ref", "mime") and item[name] is not None}
    if item["mime"] is not None and item["kind"] != TEXT and mime_of(file or "") != item["mime"]:
        known["mime"] = item["mime"]
    return known | ({} if file is None else {"file": file})


def _file_name(key: str, number: int, item: Mapping[str, Any]) -> str:
    member = (item["ref"] or {}).get("member") or (item["ref"] or {}).get("path") or ""
    extension = member.rpartition(".")[2].lower() if mime_of(member) else extension_of_mime(item["mime"])
    return f"{key}.{number}.{extension}"


def _safe_key(doc_id: Any) -> str:
    """A key without what has a meaning for WebDataset, tar or a file system."""
    text = re.sub(r"[\x00-\x1f\x7f\\]", "_", str(doc_id or "document"))
    parts = ["__" if part == ".." else part for part in text.split("/") if part not in ("", ".")] or ["document"]
    parts[-1] = parts[-1].replace(".", "_")
    return "/".join(parts)
