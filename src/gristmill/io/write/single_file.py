"""Commit an output that is a single file, written by any number of workers.

Each source commits a part, in a directory beside the file. At the end of a run the parts are joined into the file, in
the order of the input, and removed. A run that is resumed and finds further sources takes the earlier ones from where
they are in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gristmill.core.records.sharded_run import refuse_shards
from gristmill.core.stage_roles import Directory
from gristmill.core.task import WrittenFile, WrittenFiles
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.commit import CommitFiles, OutputFormat
from gristmill.io.write.manifest import SingleFileOutput
from gristmill.io.write.output_schema import in_order

_COPY_BYTES = 2**20
_SPAN = "bytes "


class CommitOneFile(CommitFiles):
    """Joins the parts of all sources into one file when the run has succeeded."""

    def __init__(
        self, target: OutputDirectory, form: OutputFormat, fields: Sequence[str] | None = None, *, path: str
    ) -> None:
        super().__init__(target, form, fields)
        self.path = path
        self._folder = SingleFileOutput(path, target.storage_options)
        self._file = self._folder.path

    def has_files(self, files: Sequence[WrittenFile]) -> bool:
        joined = [file for file in files if _span(file)]
        whole = all(self._folder.exists(file.path) and self._folder.size(file.path) == file.size for file in joined)
        return whole and super().has_files([file for file in files if not _span(file)])

    def discard_files(self, files: Sequence[WrittenFile]) -> None:
        super().discard_files([file for file in files if not _span(file)])

    def records_directories(self) -> Sequence[Directory]:
        return [(self._folder.records, self.target.storage_options)]

    def check_shards(self) -> None:
        raise refuse_shards(self, "it is a single file", "Write a directory, and this file in a run over it")

    def complete(self, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> Sequence[WrittenFiles] | None:
        done = list(outputs)
        if done and all(_span(file) for output in done for file in output.written):
            self._folder.write_manifest(done, info)
            return done  # nothing has been added since the file was written
        self._folder.create_directory()
        spans, at = {}, 0
        with self._folder.create(self._file) as out:
            for output in in_order(done):
                start = at
                for chunk in self._content(output):
                    out.write(chunk)
                    at += len(chunk)
                spans[id(output)] = start, at
        self.target.remove_all()
        whole = WrittenFile(self._file, out.size, out.checksum)
        joined = [
            output.with_written((replace(whole, layout=f"{_SPAN}{spans[id(output)][0]} {spans[id(output)][1]}"),))
            for output in done
        ]
        self._folder.write_manifest(joined, info)
        return joined

    def _content(self, output: WrittenFiles) -> Iterator[bytes]:
        """The bytes of one source: its parts, or where it is in the file of an earlier attempt."""
        for file in output.written:
            start, end = _span(file) or (0, file.size)
            for at in range(start, end, _COPY_BYTES):
                yield self.target.read(file.path, at, min(_COPY_BYTES, end - at))


def _span(file: WrittenFile) -> tuple[int, int] | None:
    """Where a source is in the joined file; None for a file of its own."""
    if not file.layout.startswith(_SPAN):
        return None
    start, end = file.layout.removeprefix(_SPAN).split()
    return int(start), int(end)
