"""The manifest of an output: the files it should hold, with their sizes, checksums and row counts.

It lies beside the output (`core/records/run_location.py`) and is written last, so its presence means that the output is
complete. `check_manifest` reports files that are missing or have changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from gristmill.core.errors import InputError
from gristmill.core.records.run_location import MANIFEST
from gristmill.core.task import upgraded_file_entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gristmill.core.task import WrittenFiles
    from gristmill.io.storage.output_directory import OutputDirectory

OLD_MANIFEST = "_manifest.json"
"""The manifest of version 0.1, which was in the output."""


def write_manifest(target: OutputDirectory, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> None:
    """Record the files of a run, and those of earlier runs that still exist."""
    entries = {entry["name"]: entry for entry in read_manifest(target).get("files", [])}
    existing = set(target.names())
    entries = {name: entry for name, entry in entries.items() if name in existing}
    rows = 0
    for output in outputs:
        rows += output.rows
        for index, file in enumerate(output.written):
            name = file.path.rpartition("/")[2]
            entries[name] = {
                "name": name,
                "bytes": file.size,
                "checksum": file.checksum,
                "rows": output.rows if len(output.written) == 1 else None,
                "part": index,
            }
    content = {**info, "rows": rows, "files": [entries[name] for name in sorted(entries)]}
    with target.create(manifest_path(target)) as out:
        out.write(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    target.remove(target.file(OLD_MANIFEST))


def manifest_path(target: OutputDirectory) -> str:
    return f"{target.records}/{MANIFEST}"


def remove_manifest(target: OutputDirectory) -> None:
    for path in (manifest_path(target), target.file(OLD_MANIFEST)):
        target.remove(path)


def read_manifest(target: OutputDirectory) -> dict[str, Any]:
    for path in (manifest_path(target), target.file(OLD_MANIFEST)):
        if target.exists(path):
            with target.open(path) as file:
                content: dict[str, Any] = orjson.loads(file.read())
            return content
    return {}


def check_manifest(target: OutputDirectory) -> tuple[dict[str, Any], list[str]]:
    """The manifest, and a list of problems, empty if the directory is as it was written."""
    manifest = read_manifest(target)
    if not manifest:
        raise InputError(
            f"{target.url} has no manifest ({manifest_path(target)}): it was not written by Gristmill, or the run did "
            "not complete. Start the run again with the same run_dir to finish it"
        )
    existing = set(target.names())
    problems = []
    for entry in manifest["files"]:
        name = entry["name"]
        if name not in existing:
            problems.append(f"{name} is missing")
        elif (size := target.size(target.file(name))) != entry["bytes"]:
            problems.append(f"{name} has {size:,} bytes instead of {entry['bytes']:,}")
        elif problem := target.checksum_problem(target.file(name), upgraded_file_entry(entry).get("checksum", "")):
            problems.append(f"{name} {problem}")
    known = {entry["name"] for entry in manifest["files"]}
    extensions = {name.partition(".")[2] for name in known}
    unknown = [name for name in existing - known if name.partition(".")[2] in extensions]
    problems += [f"{name} is not in the manifest" for name in sorted(unknown)]
    return manifest, problems
