"""Datasets of speech that are a list of recordings in a text file, each line with a transcript.

    KaldiReader          wav.scp, segments, text, utt2spk
    CommonVoiceReader    validated.tsv, train.tsv ... beside the folder clips
    LJSpeechReader       metadata.csv beside the folder wavs
    LibriSpeechReader    *.trans.txt beside the recordings
    FleursReader         train.tsv, dev.tsv, test.tsv beside the folder audio
    LhotseCutsReader     cuts.jsonl, cuts.jsonl.gz

Lists are cut by lines, so several workers read a long one. A line that cannot be understood goes to quarantine.
"""

from __future__ import annotations

import posixpath
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Self

import orjson
import pyarrow as pa

from gristmill.audio.batch import AUDIO_FILEPATH, DURATION, OFFSET, TEXT, AudioBatch
from gristmill.audio.read import BATCH_ROWS, BATCH_SECONDS, check_batch_size, cut_table
from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import POSITION, rows_to_table
from gristmill.core.errors import InputError
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage
from gristmill.core.task import EmptyTask, FileGroupTask, FileSlice
from gristmill.io.formats.line_blocks import MAX_LINE_BYTES, read_head
from gristmill.io.formats.plain_text import TEXT_COLUMN, read_text_lines
from gristmill.io.read.composite_reader import CompositeReader
from gristmill.io.read.file_listing import InputFile, Paths, list_files
from gristmill.io.read.file_partitions import BY_LINES, FilePartitioningStage
from gristmill.io.read.files_reader import QUARANTINE, FilesReader
from gristmill.io.storage.file_input import BadRecord, FileInput

Row = dict[str, Any]


class ListReaderStage(FilesReader[FileGroupTask, AudioBatch]):
    """Base: reads a list of recordings, line by line. A layout writes `row`."""

    kind = AudioBatch
    unit = "byte"
    columns: ClassVar[Mapping[str, pa.DataType]] = {AUDIO_FILEPATH: pa.string(), TEXT: pa.string()}
    """The columns that every row has, in order."""

    def __init__(
        self,
        blocksize: int | str | None = None,
        on_bad_record: str = QUARANTINE,
        task_batch_size: int = BATCH_ROWS,
        batch_seconds: float = BATCH_SECONDS,
    ) -> None:
        super().__init__(blocksize=blocksize, on_bad_record=on_bad_record)
        check_batch_size(self.name, task_batch_size, batch_seconds)
        self.task_batch_size, self.batch_seconds = task_batch_size, batch_seconds

    def outputs(self) -> tuple[list[str], Columns]:
        return [], list(self.columns)

    def schema(self, source: FileInput) -> pa.Schema | None:
        return pa.schema([*self.columns.items(), (POSITION, pa.int64())])

    @abstractmethod
    def row(self, source: FileInput, line: str) -> Row | None:
        """The columns of a line; None if it stands for no recording, such as a heading. Raises ValueError."""

    def tables(self, source: FileInput) -> Iterator[pa.Table]:
        for table in read_text_lines(source, MAX_LINE_BYTES):
            rows, positions = [], []
            lines = zip(table.column(TEXT_COLUMN).to_pylist(), table.column(POSITION).to_pylist(), strict=True)
            for line, position in lines:
                try:
                    row = self.row(source, line)
                except (ValueError, KeyError, TypeError, IndexError) as error:
                    source.on_bad(BadRecord(position, f"a line that is not as in {self.name[5:]}: {error}"))
                    continue
                if row is not None:
                    rows.append(row)
                    positions.append(position)
            yield from cut_table(self._table(rows, positions), self.task_batch_size, self.batch_seconds)

    def _table(self, rows: Sequence[Row], positions: Sequence[int]) -> pa.Table:
        named = {name: make_array([row.get(name) for row in rows], kind) for name, kind in self.columns.items()}
        others = rows_to_table([{key: value for key, value in row.items() if key not in named} for row in rows])
        rest = {name: others.column(name) for name in others.column_names}
        return pa.table({**named, **rest, POSITION: make_array(positions, pa.int64())})


def folder_of(path: str) -> str:
    return path.rpartition("/")[0]


@lru_cache(maxsize=32)
def _lines_by_key(path: str, options: tuple[tuple[str, Any], ...], optional: bool) -> Mapping[str, str]:
    """The lines of a small file of Kaldi, by their first word."""
    try:
        with FileInput(FileSlice(path), dict(options)).open() as file:
            lines = file.read().decode("utf-8-sig").splitlines()
    except (InputError, OSError):
        if optional:
            return {}
        raise
    return {key: rest.strip() for key, _, rest in (line.strip().partition(" ") for line in lines) if key}


class KaldiReaderStage(ListReaderStage):
    """Reads wav.scp, or segments, with the text and the speaker of each utterance."""

    name = "read_kaldi"
    columns: ClassVar[Mapping[str, pa.DataType]] = {
        "utt_id": pa.string(), AUDIO_FILEPATH: pa.string(), OFFSET: pa.float64(), DURATION: pa.float64(),
        TEXT: pa.string(), "speaker": pa.string(),
    }  # fmt: skip

    def row(self, source: FileInput, line: str) -> Row | None:
        if not line.strip():
            return None
        folder, options = folder_of(source.path), tuple(source.storage_options.items())
        name, *rest = line.split(None, 1)
        offset = duration = None
        if source.path.rpartition("/")[2].startswith("segments"):
            recording, start, end = rest[0].split()[:3]
            offset, duration = float(start), float(end) - float(start)
            if duration <= 0:
                raise ValueError(f"the segment ends at {end}, before it begins at {start}")
            rest = [_lines_by_key(f"{folder}/wav.scp", options, optional=False)[recording]]
        path = rest[0].strip()
        if path.endswith("|"):
            raise ValueError(f"{path[:80]!r} is a command, and commands are not run: write the path of a file")
        texts, speakers = (_lines_by_key(f"{folder}/{file}", options, optional=True) for file in ("text", "utt2spk"))
        return {
            "utt_id": name, AUDIO_FILEPATH: joined(folder, path), OFFSET: offset,
            DURATION: None if duration is None else round(duration, 6),
            TEXT: texts.get(name), "speaker": speakers.get(name),
        }  # fmt: skip


def joined(folder: str, path: str) -> str:
    """A path below the folder of a list, unless it is absolute or a URL."""
    return path if path.startswith("/") or "://" in path else posixpath.join(folder, path)


@lru_cache(maxsize=32)
def _heading(path: str, options: tuple[tuple[str, Any], ...]) -> list[str]:
    first = read_head(FileInput(FileSlice(path), dict(options))).removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0]
    return first.decode().rstrip("\r").split("\t")


class TsvListReaderStage(ListReaderStage):
    """Base of lists with a heading of column names."""

    path_field: ClassVar[str]
    text_field: ClassVar[str]
    folder: ClassVar[str]

    def heading(self, source: FileInput) -> list[str]:
        names = _heading(source.path, tuple(source.storage_options.items()))
        if self.path_field not in names:
            raise InputError(f"{source.path} has no column {self.path_field!r}, only {', '.join(names)}")
        return names

    def row(self, source: FileInput, line: str) -> Row | None:
        names, values = self.heading(source), line.rstrip("\r").split("\t")
        if values == names or not line.strip():
            return None
        if len(values) != len(names):
            raise ValueError(f"{len(values)} columns, and there are {len(names)} names")
        row: Row = dict(zip(names, values, strict=True))
        path, text = row.pop(self.path_field), row.pop(self.text_field, None)
        if not path:
            raise ValueError(f"no {self.path_field}")
        return {AUDIO_FILEPATH: joined(folder_of(source.path), f"{self.folder}/{path}"), TEXT: text, **row}


class CommonVoiceReaderStage(TsvListReaderStage):
    """Reads a list of Common Voice."""

    name = "read_common_voice"
    path_field, text_field, folder = "path", "sentence", "clips"


class LJSpeechReaderStage(ListReaderStage):
    """Reads metadata.csv: name, text and normalised text, with bars between them."""

    name = "read_ljspeech"

    def row(self, source: FileInput, line: str) -> Row | None:
        if not line.strip():
            return None
        name, text, *rest = line.rstrip("\r").split("|")
        path = joined(folder_of(source.path), f"wavs/{name}.wav")
        return {AUDIO_FILEPATH: path, TEXT: text, "normalized_text": rest[0] if rest else None}


class LibriSpeechReaderStage(ListReaderStage):
    """Reads *.trans.txt: a name and a text on each line, with the recordings in the same folder."""

    name = "read_librispeech"
    columns: ClassVar[Mapping[str, pa.DataType]] = {**ListReaderStage.columns, "speaker": pa.string()}

    def row(self, source: FileInput, line: str) -> Row | None:
        name, _, text = line.strip().partition(" ")
        if not name:
            return None
        path = f"{folder_of(source.path)}/{name}.flac"
        return {AUDIO_FILEPATH: path, TEXT: text, "speaker": name.partition("-")[0]}


class FleursReaderStage(ListReaderStage):
    """Reads a list of FLEURS: id, file name, text as it was written, text, characters, samples, gender."""

    name = "read_fleurs"

    def __init__(self, filepath_key: str = AUDIO_FILEPATH, text_key: str = TEXT, **settings: Any) -> None:
        super().__init__(**settings)
        self.filepath_key, self.text_key = filepath_key, text_key

    def row(self, source: FileInput, line: str) -> Row | None:
        if not line.strip():
            return None
        _, file, _, text, *_ = line.rstrip("\r").split("\t")
        split = source.path.rpartition("/")[2].partition(".")[0]
        folder = folder_of(source.path)
        path = f"{folder}/{split}/{file}"
        return {AUDIO_FILEPATH: path, TEXT: text, self.filepath_key: path, self.text_key: text}


class LhotseCutsReaderStage(ListReaderStage):
    """Reads the cuts of Lhotse: a JSON object per line."""

    name = "read_lhotse_cuts"
    columns: ClassVar[Mapping[str, pa.DataType]] = {
        "cut_id": pa.string(), AUDIO_FILEPATH: pa.string(), OFFSET: pa.float64(), DURATION: pa.float64(),
        TEXT: pa.string(), "speaker": pa.string(), "lang": pa.string(),
    }  # fmt: skip

    def row(self, source: FileInput, line: str) -> Row | None:
        if not line.strip():
            return None
        cut = orjson.loads(line)
        origin = cut["recording"]["sources"][0]
        if origin.get("type") != "file":
            raise ValueError(f"the recording is of type {origin.get('type')!r}, and only files are read here")
        said = [one for one in cut.get("supervisions") or () if one.get("text")]
        first = said[0] if said else {}
        return {
            "cut_id": cut["id"], AUDIO_FILEPATH: joined(folder_of(source.path), origin["source"]),
            OFFSET: float(cut.get("start") or 0.0), DURATION: float(cut["duration"]),
            TEXT: " ".join(one["text"] for one in said) if said else None,
            "speaker": first.get("speaker"), "lang": first.get("language"),
        }  # fmt: skip


@dataclass(eq=False, repr=False)
class ListReader(CompositeReader[AudioBatch]):
    """Base of the readers of lists."""

    stage_class: ClassVar[type[ListReaderStage]]
    split_by = BY_LINES

    file_paths: Paths
    files_per_partition: int | None = None
    blocksize: int | str | None = None
    file_extensions: Sequence[str] | None = None
    storage_options: Mapping[str, Any] | None = None
    on_bad_record: str = QUARANTINE
    limit: int | None = None
    task_batch_size: int = BATCH_ROWS
    batch_seconds: float = BATCH_SECONDS

    def reading_stage(self) -> ListReaderStage:
        return self.stage_class(self.blocksize, self.on_bad_record, self.task_batch_size, self.batch_seconds)


class _KaldiListing(FilePartitioningStage):
    """Lists each wav.scp, or the segments beside it."""

    def files(self) -> Sequence[InputFile]:
        if self._listing is None:
            self._listing = [self._segments_of(file) for file in super().files()]
        return self._listing

    def _segments_of(self, file: InputFile) -> InputFile:
        if file.path.rpartition("/")[2] != "wav.scp":
            return file
        try:
            [segments] = list_files(f"{folder_of(file.path)}/segments", [""], self.storage_options)
        except InputError:
            return file
        return segments._replace(name=f"{file.name.removesuffix('wav.scp')}segments")


class KaldiReader(ListReader):
    """Reads directories of Kaldi: the `segments` in each, or if there are none its `wav.scp`."""

    stage_class, listing_class, extensions = KaldiReaderStage, _KaldiListing, (".scp",)


class CommonVoiceReader(ListReader):
    """Reads lists of Common Voice, such as `validated.tsv`, with the recordings in `clips` beside them."""

    stage_class, extensions = CommonVoiceReaderStage, (".tsv",)


class LJSpeechReader(ListReader):
    """Reads `metadata.csv` of LJSpeech, with the recordings in `wavs` beside it."""

    stage_class, extensions = LJSpeechReaderStage, (".csv",)


class LibriSpeechReader(ListReader):
    """Reads LibriSpeech: directories of recordings with a `*.trans.txt` each."""

    stage_class, extensions = LibriSpeechReaderStage, (".trans.txt",)


class LhotseCutsReader(ListReader):
    """Reads cuts of Lhotse whose recordings are files."""

    stage_class, extensions = LhotseCutsReaderStage, (".jsonl", ".jsonl.gz")


class CreateInitialManifestFleursStage(CompositeStage[EmptyTask, AudioBatch]):
    """Reads a split of FLEURS from `raw_data_dir`: `SPLIT.tsv`, and the recordings in the folder SPLIT.

    With `lang` the files may also be in a folder of that name. Nothing is downloaded: with `auto_download=True` a list
    that is missing is an error that says where to get it.
    """

    _catalogue_kind = "reader"

    def __init__(
        self,
        lang: str,
        split: str,
        raw_data_dir: str,
        filepath_key: str = AUDIO_FILEPATH,
        text_key: str = TEXT,
        auto_download: bool = False,
    ) -> None:
        self.lang, self.split, self.raw_data_dir = lang, split, raw_data_dir
        self.filepath_key, self.text_key, self.auto_download = filepath_key, text_key, auto_download

    def with_(self, stages: Any = None, /, **settings: Any) -> Self:
        """As for other composites; `batch_size` changes nothing, as batches are cut by lines and seconds."""
        settings.pop("batch_size", None)
        return super().with_(stages, **settings)

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        root = str(self.raw_data_dir).rstrip("/")
        paths = [f"{root}/{self.split}.tsv", f"{root}/{self.lang}/{self.split}.tsv"]
        listing = _FleursListing(paths, file_extensions=[".tsv"], split_by=BY_LINES)
        return [listing, FleursReaderStage(self.filepath_key, self.text_key)]


class _FleursListing(FilePartitioningStage):
    """Lists the list of a split, which is in one of two places."""

    def files(self) -> Any:
        if self._listing is None:
            paths = list(self.file_paths)  # type: ignore[arg-type]
            for path in paths:
                try:
                    self.file_paths = [path]
                    return super().files()
                except InputError:
                    continue
                finally:
                    self.file_paths = paths
            raise InputError(
                f"stage {self.name!r}: there is neither {paths[0]} nor {paths[1]}. auto_download downloads nothing: "
                "runs do not depend on a network. On a machine that has one, download https://huggingface.co/datasets/"
                f"google/fleurs/resolve/main/data/{'/'.join(str(paths[1]).split('/')[-2:])}, and the archive of the "
                "split in audio/ beside it, and unpack that beside the list"
            )
        return self._listing
