"""The folders that clips are written to, as users of NeMo Curator know them.

    clips/UUID.mp4                 the clips
    filtered_clips/UUID.mp4        those whose column `filtered` is true
    previews/UUID_FIRST_LAST.webp  animated previews of windows
    metas/v0/UUID.json             what is known of each clip
    ce1_embd_parquet/VIDEO.parquet embeddings, with the columns id and embedding; in place of pickles
    processed_videos/VIDEO.json, processed_clip_chunks/VIDEO_0.json   the films that are done, with their clips
    SOURCE.parquet                 a table of all clips with all columns, one file for each source

The table of a source is written last. The files in the folders are recorded with it, with size and checksum.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import POSITION, is_json, table_to_rows
from gristmill.core.arrow.type_widening import conform_columns
from gristmill.core.task import GatherTask, WrittenFile, WrittenFiles, pack_attached
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.commit import CommitFiles, Fragment, OutputFiles, OutputFormat, safe_file_name
from gristmill.io.write.parquet_format import ParquetFormat, fragment_tables
from gristmill.video.batch import CLIP_ID, END, PREVIEW, SOURCE, START, VIDEO, VIDEO_ID
from gristmill.video.stream_columns import CODEC, DURATION, FPS, HEIGHT, NUM_FRAMES, SIZE, WIDTH

CLIPS, FILTERED_CLIPS, PREVIEWS, METAS = "clips", "filtered_clips", "previews", "metas/v0"
VIDEOS, CHUNKS = "processed_videos", "processed_clip_chunks"
CLIP_LOCATION, FILTERED, WINDOWS = "clip_location", "filtered", "windows"

_EMBEDDING_FOLDERS: Mapping[str, str] = {"cosmos-embed1": "ce1_embd_parquet"}
_RENAMED: Mapping[str, str] = {
    CLIP_ID: "span_uuid", SOURCE: "source_video", WIDTH: "width_source", HEIGHT: "height_source",
    FPS: "framerate_source", CODEC: "video_codec", SIZE: "num_bytes",
}  # fmt: skip
_MOTION = ("motion_score_global_mean", "motion_score_per_patch_min_256")
_NO_META = frozenset({START, END, PREVIEW, POSITION, "transcoding"})


@dataclass(frozen=True)
class ClipLayoutFormat(OutputFormat):
    """The folders of one output."""

    name: str = "clips"
    extension: str = ".parquet"
    extensions: tuple[str, ...] = (".parquet",)
    target_file_size: int | None = None
    upload_clips: bool = True
    embedding_algorithm: str = "cosmos-embed1"
    embeddings: bool = False
    previews: bool = True

    def write_fragment(self, table: pa.Table, file: BinaryIO) -> None:
        ParquetFormat().write_fragment(table, file)

    def join(self, fragments: Sequence[Fragment], schema: pa.Schema, parts: OutputFiles) -> None:
        target = parts.target
        target.remove(target.file(parts.stem + self.extension))  # or it would stand for clips that are not all there
        tables: list[pa.Table] = []
        for table in fragment_tables(fragments, schema, target):
            for start in range(table.num_rows):
                tables.append(self._write_clip(parts, table.slice(start, 1)))
        everything = pa.concat_tables(tables)
        self._write_embeddings(parts, everything)
        for film, rows in _by_film(everything):
            _write_json(parts, f"{VIDEOS}/{film}.json", _film_entry(rows))
            _write_json(parts, f"{CHUNKS}/{film}_0.json", _chunk_entry(rows))
        with parts.create() as file:
            _write_table(everything, file)

    def _write_clip(self, parts: OutputFiles, row: pa.Table) -> pa.Table:
        """Write the files of one clip. Returns its row of the table."""
        values = table_to_rows(row.drop_columns([name for name in (VIDEO,) if name in row.column_names]))[0]
        name = clip_name(values)
        data = row.column(VIDEO)[0].as_py() if VIDEO in row.column_names else None
        folder = FILTERED_CLIPS if values.get(FILTERED) else CLIPS
        location = None
        if data is not None and self.upload_clips:
            location = f"{folder}/{name}.mp4"
            _write_bytes(parts, location, data)
        for preview, content in _previews(name, values) if self.previews else ():
            _write_bytes(parts, f"{PREVIEWS}/{preview}", content)
        meta = clip_meta(values, location and parts.target.file(location))
        _write_json(parts, f"{METAS}/{name}.json", meta)
        left = row.drop_columns([column for column in (VIDEO, PREVIEW) if column in row.column_names])
        return left.append_column(CLIP_LOCATION, make_array([location], pa.string()))

    def _write_embeddings(self, parts: OutputFiles, table: pa.Table) -> None:
        column = next((name for name in table.column_names if name == "embedding" or name.endswith("_embedding")), None)
        if not self.embeddings or column is None:
            return
        ids = [clip_name(row) for row in table_to_rows(table.select(_named(table, (CLIP_ID, VIDEO_ID))))]
        made = pa.table({"id": make_array(ids, pa.string()), "embedding": table.column(column)})
        folder = _EMBEDDING_FOLDERS.get(self.embedding_algorithm, "embd_parquet")
        with parts.attach(f"{folder}/{parts.stem}.parquet") as file:
            _write_table(made, file)

    def names_attached(self, target: OutputDirectory, stem: str) -> list[str]:
        import pyarrow.parquet as pq

        path = target.file(f"{stem}.parquet")
        if not target.exists(path):
            return []
        with target.open(path) as file:
            return list(dict.fromkeys(self._names_of(stem, pq.read_table(file))))

    def _names_of(self, stem: str, table: pa.Table) -> Iterator[str]:
        """All files that there may be for the table of a source."""
        rows = table_to_rows(table)
        for row in rows:
            name = clip_name(row)
            yield from (f"{CLIPS}/{name}.mp4", f"{FILTERED_CLIPS}/{name}.mp4", f"{METAS}/{name}.json")
            yield from (f"{PREVIEWS}/{preview}" for preview, _ in _previews(name, row, names_only=True))
        for film, _ in _by_film(table):
            yield from (f"{VIDEOS}/{film}.json", f"{CHUNKS}/{film}_0.json")
        yield f"{_EMBEDDING_FOLDERS.get(self.embedding_algorithm, 'embd_parquet')}/{stem}.parquet"


def clip_name(row: Mapping[str, Any]) -> str:
    """The name of the files of a clip; of a whole film, that of the film."""
    name = row.get(CLIP_ID) or row.get(VIDEO_ID) or "clip"
    return safe_file_name(str(name).replace("/", "-"))


def clip_meta(row: Mapping[str, Any], location: str | None) -> dict[str, Any]:
    """What is known of a clip, under the names of NeMo Curator where it has one. Columns of pixels and lists of numbers
    are left out."""
    meta = {_RENAMED.get(name, name): value for name, value in row.items() if name not in _NO_META and _is_plain(value)}
    meta |= {"duration_span": [row.get(START), row.get(END)], CLIP_LOCATION: location}
    meta |= {"width": row.get(WIDTH), "height": row.get(HEIGHT), "framerate": row.get(FPS)}
    motion = {name.removeprefix("motion_score_"): meta.pop(name) for name in _MOTION if name in meta}
    if motion:
        meta["motion_score"] = motion
    meta[WINDOWS] = [_without_bytes(window) for window in row.get(WINDOWS) or ()]
    return meta | {"valid": location is not None and bool(row.get(NUM_FRAMES)), "errors": row.get("errors") or {}}


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | dict) or value is None


def _without_bytes(window: Any) -> Any:
    if not isinstance(window, dict):
        return window
    return {name: value for name, value in window.items() if not isinstance(value, bytes)}


def _previews(name: str, row: Mapping[str, Any], names_only: bool = False) -> Iterator[tuple[str, bytes]]:
    """The names and bytes of the previews of a clip, and of its windows."""
    if row.get(PREVIEW) or names_only:
        yield f"{name}.webp", row.get(PREVIEW) or b""
    for window in row.get(WINDOWS) or ():
        if isinstance(window, dict) and (window.get("webp_bytes") or names_only):
            span = f"{window.get('start_frame')}_{window.get('end_frame')}"
            yield f"{name}_{span}.webp", window.get("webp_bytes") or b""


def _by_film(table: pa.Table) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The rows of each film, by its name."""
    films: dict[str, list[dict[str, Any]]] = {}
    names = (VIDEO_ID, SOURCE, CLIP_ID, WIDTH, HEIGHT, FPS, CODEC, DURATION, NUM_FRAMES, FILTERED, CLIP_LOCATION)
    for row in table_to_rows(table.select(_named(table, names))):
        films.setdefault(safe_path(str(row.get(VIDEO_ID) or row.get(SOURCE) or "video")), []).append(row)
    yield from films.items()


def _named(table: pa.Table, names: Sequence[str]) -> list[str]:
    return [name for name in names if name in table.column_names]


def safe_path(name: str) -> str:
    """A name with its folders, of which none leads out of the directory."""
    parts = [safe_file_name(part) for part in name.split("/") if part not in ("", ".", "..")]
    return "/".join(parts) or "video"


def _film_entry(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = rows[0]
    kept = [clip_name(row) for row in rows if not row.get(FILTERED)]
    filtered = [clip_name(row) for row in rows if row.get(FILTERED)]
    return {
        "video": first.get(SOURCE), "width": first.get(WIDTH), "height": first.get(HEIGHT),
        "framerate": first.get(FPS), "num_total_clips": len(rows), "num_clip_chunks": 1,
        "clips": kept, "filtered_clips": filtered,
    }  # fmt: skip


def _chunk_entry(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    lengths = [row.get(DURATION) or 0.0 for row in rows]
    return {
        "video": rows[0].get(SOURCE), "clip_chunk_index": 0, "num_clips": len(rows),
        "num_clips_filtered": sum(bool(row.get(FILTERED)) for row in rows), "total_clip_duration": sum(lengths),
        "max_clip_duration": max(lengths), "clips": [clip_name(row) for row in rows],
    }  # fmt: skip


def _write_bytes(parts: OutputFiles, name: str, data: bytes) -> None:
    with parts.attach(name) as file:
        file.write(data)


def _write_json(parts: OutputFiles, name: str, value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, indent=2, default=str)
    _write_bytes(parts, name, text.encode() + b"\n")


def _write_table(table: pa.Table, file: Any) -> None:
    import pyarrow.parquet as pq

    plain = [field.with_type(pa.string() if is_json(field.type) else field.type) for field in table.schema]
    pq.write_table(conform_columns(table, pa.schema(plain)), file, compression="zstd")


class CommitClips(CommitFiles):
    """Puts the files of clips in place. A row is found by the table of its source, to which the other files belong."""

    form: ClipLayoutFormat

    def process(self, task: GatherTask) -> WrittenFiles:
        everything: list[Any] = task.data
        fragments = [fragment for fragment in everything if fragment.size]
        if not fragments or self.target.exists(fragments[0].data):  # else this source was committed already
            self._remove_files(self.stem(task))
        return super().process(task)

    def discard_files(self, files: Sequence[WrittenFile]) -> None:
        for file in files:
            if not file.attached and file.path.startswith(self.target.file("")):
                self._remove_files(_stem_of(file))
        super().discard_files(files)

    def complete(self, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> Sequence[WrittenFiles] | None:
        return super().complete(self._each_once([self._with_all_files(output) for output in outputs]), info)

    def _with_all_files(self, output: WrittenFiles) -> WrittenFiles:
        """The output with its clips, if it was recorded when only tables were."""
        if all(file.attached for file in output.written):
            return output
        parts = [OutputFiles(self.target, "", _stem_of(file), self.form) for file in output.written]
        files = zip(output.written, parts, strict=True)
        return output.with_written(
            tuple(
                replace(file, attached=file.attached or pack_attached(part.attached_earlier())) for file, part in files
            )
        )

    def _remove_files(self, stem: str) -> None:
        """Remove the clips of an earlier run of this source, which may not be those of this one."""
        for name in self.form.names_attached(self.target, stem):
            self.target.remove(self.target.file(*name.split("/")))

    def _each_once(self, outputs: Sequence[WrittenFiles]) -> list[WrittenFiles]:
        """The outputs with each file named once. Films of one name, such as a.mp4 and a.mov, have one list of clips:
        it belongs to the film that was written last."""
        attached = {file.path: file.attached_files() for output in outputs for file in output.written}
        counts = Counter(one.name for files in attached.values() for one in files)
        shared = {name: self.target.checksum(self.target.file(name)) for name, count in counts.items() if count > 1}
        if not shared:
            return list(outputs)

        def now(file: WrittenFile) -> WrittenFile:
            own = [one for one in attached[file.path] if one.checksum == shared.get(one.name, one.checksum)]
            return replace(file, attached=pack_attached(own))

        return [output.with_written(tuple(map(now, output.written))) for output in outputs]


def _stem_of(file: WrittenFile) -> str:
    return file.path.rpartition("/")[2].removesuffix(".parquet")
