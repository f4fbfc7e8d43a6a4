"""The manifest of an output: the files it should hold, with their sizes, checksums and row counts.

It lies beside the output (`core/records/run_location.py`) and is written last, so its presence means that the output is
complete. Of several shards (`core/records/sharded_run.py`) each writes its own; together they are the manifest.
`check_manifest` reports files and shards that are missing, and files that have changed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from gristmill.core.errors import InputError
from gristmill.core.records.run_location import MANIFEST, directory_url, records_beside
from gristmill.core.records.run_record_store import RecordStore
from gristmill.core.task import upgraded_file_entry
from gristmill.io.storage.output_directory import FileSizes, OutputDirectory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gristmill.core.task import WrittenFiles

_SHARD_MANIFEST = re.compile(r"manifest-[0-9]{5,}-of-[0-9]{5,}\.json")
SINGLE_FILE = "single_file"
INDEX_KEY, INDEX_SIZE = "key", "size"
"""The columns of an index of files (`samples/shard_formats.py`)."""

OLD_MANIFEST = "_manifest.json"
"""The manifest of version 0.1, which was in the output."""


class SingleFileOutput(OutputDirectory):
    """An output that is one file, with its records in `FILE.run` beside it."""

    def __init__(self, path: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.path = directory_url(path)
        super().__init__(self.path.rpartition("/")[0] or "/", storage_options)

    @property
    def records(self) -> str:
        return records_beside(self.path)

    def names(self, *folder: str) -> list[str]:
        """The name of the file, if it is there; what else is in its directory is not part of the output."""
        return [self.path.rpartition("/")[2]] if self.exists(self.path) else []

    def write_manifest(self, outputs: Sequence[WrittenFiles], info: Mapping[str, Any]) -> None:
        """Record the file, which has the rows of all sources."""
        whole = next((file for output in outputs for file in output.written), None)
        rows = sum(output.rows for output in outputs)
        name = self.path.rpartition("/")[2]
        entry = (
            {"name": name, "bytes": whole.size, "checksum": whole.checksum, "rows": rows, "part": 0} if whole else {}
        )
        content = {**info, SINGLE_FILE: True, "rows": rows, "files": [entry] if entry else []}
        with self.create(manifest_path(self)) as out:
            out.write(orjson.dumps(content, option=orjson.OPT_INDENT_2))


def output_at(url: str, storage_options: Mapping[str, Any] | None = None) -> OutputDirectory:
    """The output at a URL: a directory, or a single file."""
    manifest = RecordStore(records_beside(url), storage_options).read(MANIFEST) or {}
    return (SingleFileOutput if manifest.get(SINGLE_FILE) else OutputDirectory)(url, storage_options)


def write_manifest(target: OutputDirectory, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> None:
    """Record the files of a run, and those of earlier runs that still exist."""
    shard = info.get("shard")
    path = f"{target.records}/{_shard_manifest(*shard)}" if shard else manifest_path(target)
    before = (_read(target, path) if shard else read_manifest(target)) or {}
    entries = {entry["name"]: entry for entry in before.get("files", [])}
    existing, sizes = set(target.names()), FileSizes(target)
    entries = {
        name: entry
        for name, entry in entries.items()
        if name in existing or ("/" in name and sizes.of(name) is not None)
    }
    rows = 0
    for output in outputs:
        rows += output.rows
        for index, file in enumerate(output.written):
            name = file.path.rpartition("/")[2]
            alone = output.rows if len(output.written) == 1 else None
            entries[name] = {
                "name": name,
                "bytes": file.size,
                "checksum": file.checksum,
                "rows": file.part.whole or file.part.rows if file.part else alone,
                "part": 0 if file.part else index,  # of several sources, which end in any order
            }
            for one in file.attached_files():
                entries[one.name] = {"name": one.name, "bytes": one.size, "checksum": one.checksum}
    content = {**info, "rows": rows, "files": [entries[name] for name in sorted(entries)]}
    with target.create(path) as out:
        out.write(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    for old in () if shard else (target.file(OLD_MANIFEST), *_shard_manifests(target)):
        target.remove(old)


def manifest_path(target: OutputDirectory) -> str:
    return f"{target.records}/{MANIFEST}"


def remove_manifest(target: OutputDirectory) -> None:
    for path in (manifest_path(target), target.file(OLD_MANIFEST), *_shard_manifests(target)):
        target.remove(path)


def read_manifest(target: OutputDirectory) -> dict[str, Any]:
    whole = _read(target, manifest_path(target)) or _read(target, target.file(OLD_MANIFEST)) or {}
    shards = [content for path in _shard_manifests(target) if (content := _read(target, path))]
    if not shards:
        return whole
    entries = {entry["name"]: entry for one in (whole, *shards) for entry in one.get("files", [])}
    rows = sum(one["rows"] for one in shards)
    done = [one["shard"] for one in shards]
    files = [entries[name] for name in sorted(entries)]
    return {**shards[0], "shard": None, "shards": done, "rows": rows, "files": files}


def _read(target: OutputDirectory, path: str) -> dict[str, Any] | None:
    if not target.exists(path):
        return None
    with target.open(path) as file:
        content: dict[str, Any] = orjson.loads(file.read())
    return content


def _shard_manifest(number: int, count: int) -> str:
    return f"manifest-{number:05}-of-{count:05}.json"


def _shard_manifests(target: OutputDirectory) -> list[str]:
    """The manifests of shards beside an output."""
    names = target.record_names()
    return [f"{target.records}/{name}" for name in names if _SHARD_MANIFEST.fullmatch(name)]


def check_manifest(target: OutputDirectory) -> tuple[dict[str, Any], list[str]]:
    """The manifest, and a list of problems, empty if the directory is as it was written."""
    manifest = read_manifest(target)
    if not manifest:
        raise InputError(
            f"{target.url} has no manifest ({manifest_path(target)}): it was not written by Gristmill, or the run did "
            "not complete. Start the run again with the same run_dir to finish it"
        )
    existing = set(target.names()) | _names_in_folders(target, manifest["files"])
    problems = _missing_shards(manifest.get("shards") or [])
    for entry in manifest["files"]:
        name = entry["name"]
        if name not in existing:
            problems.append(f"{name} is missing")
        elif (size := target.size(target.file(name))) != entry["bytes"]:
            problems.append(f"{name} has {size:,} bytes instead of {entry['bytes']:,}")
        elif problem := target.checksum_problem(target.file(name), upgraded_file_entry(entry).get("checksum", "")):
            problems.append(f"{name} {problem}")
    problems += [f"{missing} is missing" for entry in manifest["files"] for missing in _missing_members(target, entry)]
    known = {entry["name"] for entry in manifest["files"]}
    kinds = {_kind(name) for name in known}
    unknown = [name for name in existing - known if _kind(name) in kinds]
    problems += [f"{name} is not in the manifest" for name in sorted(unknown)]
    return manifest, problems


def _names_in_folders(target: OutputDirectory, entries: Iterable[Mapping[str, Any]]) -> set[str]:
    """The files in those folders of the output of which some files are listed, such as clips."""
    folders = {entry["name"].rpartition("/")[0] for entry in entries} - {""}
    return {f"{folder}/{name}" for folder in folders for name in target.sizes(folder)}


def _kind(name: str) -> tuple[str, str]:
    """The folder and the extension of a file."""
    folder, _, base = name.rpartition("/")
    return folder, base.rpartition(".")[2] if folder else base.partition(".")[2]


def folder_of_index(name: str) -> str:
    """The folder whose files a Parquet file may list: images or recordings that are written as files."""
    return name.removesuffix(".parquet") if name.endswith(".parquet") else ""


def _missing_members(target: OutputDirectory, entry: Mapping[str, Any]) -> list[str]:
    """The files that an index lists and that are not there with their size."""
    import pyarrow.parquet as pq

    folder = folder_of_index(entry["name"])
    if not folder or folder not in target.names() or entry["name"] not in target.names():
        return []
    with target.open(target.file(entry["name"])) as file:
        index = pq.ParquetFile(file)
        if not {INDEX_KEY, INDEX_SIZE} <= set(index.schema_arrow.names):
            return []
        listed = index.read([INDEX_KEY, INDEX_SIZE])
    there: dict[str, set[int]] = {}
    for name, size in OutputDirectory(target.file(folder), target.storage_options).sizes().items():
        there.setdefault(f"{folder}/{name.partition('.')[0]}", set()).add(size)
    pairs = zip(listed[INDEX_KEY].to_pylist(), listed[INDEX_SIZE].to_pylist(), strict=True)
    return [key for key, size in pairs if size not in there.get(key.partition(".")[0], ())]


def _missing_shards(done: list[list[int]]) -> list[str]:
    """Shards without a manifest: they are not done."""
    counts = {count for _, count in done}
    if len(counts) > 1:
        return [f"there are manifests of runs in {' and '.join(map(str, sorted(counts)))} shards"]
    numbers = {number for number, _ in done}
    return [
        f"shard {number} of {count} is not done"
        for count in counts
        for number in range(1, count + 1)
        if number not in numbers
    ]
