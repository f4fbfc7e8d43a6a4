"""Files of a target size: those of consecutive sources, in the order of the input, are joined to about that size.

Every source commits files of its own. When the last one is done, small ones are joined, and the ledger gets the rows of
each source in the joined file (`WrittenFile.part`). So a later attempt takes the rows of sources that are still the
same from a joined file. Which files are joined depends on what each source has written alone, so it is the same for
every attempt; a joined file is named after its first source, and after all that is in it, so that no file ever takes
the place of another one with the same name.

    1. note what will be written, and what will not be needed any more (`joined.json`, beside the output)
    2. write the joined files; the ledger gets them
    3. remove what is not needed any more

A run that is killed in between has either the old files or the new ones in its ledger, and both are still there; the
next attempt removes what is left over. The price is that small output is written once more, by the driver.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.records.run_record_store import RecordStore
from gristmill.core.task import digest
from gristmill.io.write.output_schema import decode_schema, in_order, in_threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gristmill.core.task import OutputPart, WrittenFile, WrittenFiles
    from gristmill.io.storage.output_directory import OutputDirectory
    from gristmill.io.write.commit import OutputFormat

JOINED_NAME = r"-joined-[0-9a-f]{12}"
_STATE = "joined.json"
_NUMBER = re.compile(r"-\d{5,}$")


@fast_dataclass(frozen=True, slots=True)
class RowSpan:
    """Some consecutive rows of a file."""

    path: str
    start: int
    rows: int


class JoinedFiles:
    """Joins the files of one output.

    The state holds the joined `files`, each with the sources in it; and, while files are replaced, the `new` ones, the
    `old` ones, and whether the new ones are `recorded` in the ledger.
    """

    def __init__(self, target: OutputDirectory, form: OutputFormat) -> None:
        self.target, self.form = target, form
        self._dropped: set[str] = set()
        self._pending = False
        """Whether files are to be removed when the ledger has the new ones."""

    @property
    def _store(self) -> RecordStore:
        return RecordStore(self.target.records, self.target.storage_options)

    def begin(self, resumed: bool) -> None:
        """Remove what an earlier attempt or run has left over, as far as it is known already."""
        state = self._store.read(_STATE)
        if not state or not (state["new"] or state["old"]):
            return
        if not state["recorded"] and resumed:
            return  # the ledger may have the old files or the new ones
        for name in state["old" if state["recorded"] else "new"]:
            self.target.remove(self.target.file(name))
        self._store.write(_STATE, {"files": state["files"], "new": [], "old": [], "recorded": False})

    def drop(self, file: WrittenFile) -> None:
        """The rows of a source in a joined file are obsolete: it goes when other files have the rest of its rows."""
        if (name := _name(file)) in self._dropped:
            return
        self._dropped.add(name)
        state = self._state()  # noted now, since the ledger may forget the source before files are joined
        self._store.write(_STATE, {**state, "old": sorted({*state["old"], name}), "recorded": False})

    def join(self, outputs: Sequence[WrittenFiles]) -> list[WrittenFiles]:
        """The outputs after joining their files. What is not needed any more is removed by `recorded`."""
        files = [file for output in in_order(outputs) for file in output.written]
        groups = list(self._groups(files))
        new = {self._joined_name(group): group for group in groups if not _is_whole(group)}
        needed = {*new, *(_name(group[0]) for group in groups if _is_whole(group))}
        state = self._state()
        held = {self._stem(file) for file in files}
        replaced = {
            name
            for name, stems in state["files"].items()
            if name.endswith(self.form.extension) and not held.isdisjoint(stems)
        }
        old = {*state["old"], *state["new"], *replaced, *self._dropped, *map(_name, files)} - needed
        self._dropped = set()
        if not new and not old:
            return list(outputs)
        known = {name: stems for name, stems in state["files"].items() if name not in old}
        known |= {name: list(dict.fromkeys(map(self._stem, group))) for name, group in new.items() if len(group) > 1}
        self._store.write(_STATE, {"files": known, "new": sorted(new), "old": sorted(old), "recorded": False})
        self._pending = True
        moved = self._write(new)
        return [
            output.with_written(tuple(moved.get((file.path, file.part), file) for file in output.written))
            for output in outputs
        ]

    def recorded(self) -> None:
        """The ledger has the new files: remove those that they replace."""
        if not self._pending:
            return
        state = self._store.read(_STATE)
        if state:
            self._store.write(_STATE, {**state, "recorded": True})
            for name in state["old"]:
                self.target.remove(self.target.file(name))
            self._store.write(_STATE, {"files": state["files"], "new": [], "old": [], "recorded": False})
        self._pending = False

    def _state(self) -> dict[str, Any]:
        return self._store.read(_STATE) or {"files": {}, "new": [], "old": [], "recorded": False}

    def _groups(self, files: Sequence[WrittenFile]) -> Iterable[list[WrittenFile]]:
        """The files to join. One more is taken while that brings their size nearer to the target, so that all sizes but
        the last are between a half and one and a half of it, if no source's file is larger."""
        group: list[WrittenFile] = []
        size, most = 0, self.form.target_file_size or 0
        for file in files:
            content = file.part.content if file.part else most
            if group and (not file.part or not group[0].part or size + content / 2 > most):
                yield group
                group, size = [], 0
            group.append(file)
            size += content
        if group:
            yield group

    def _write(self, new: dict[str, list[WrittenFile]]) -> dict[tuple[str, OutputPart | None], WrittenFile]:
        """Write the joined files. Returns where the rows of each file are now."""
        with self.target.scratch() as folder:

            def write(name: str) -> list[WrittenFile]:
                group, path = new[name], f"{folder}/{name}" if folder else self.target.file(name)
                schema = decode_schema(group[0].layout) if group[0].layout else None
                with self.target.create(path) as file:
                    self.form.join_files(_spans(group), self.target, file, schema)
                if folder:
                    self.target.replace(path, name)
                return self._placed(group, name, file.size, file.checksum)

            written = in_threads(write, list(new)) if new else []
        return {
            (old.path, old.part): now
            for group, placed in zip(new.values(), written, strict=True)
            for old, now in zip(group, placed, strict=True)
        }

    def _placed(self, group: Sequence[WrittenFile], name: str, size: int, checksum: str) -> list[WrittenFile]:
        """The files of a group as parts of a joined one."""
        placed, start = [], 0
        whole = sum(_part(file).rows for file in group) if len(group) > 1 else 0
        for file in group:
            part = replace(_part(file), start=start, whole=whole)
            start += part.rows
            placed.append(replace(file, path=self.target.file(name), size=size, checksum=checksum, part=part))
        return placed

    def _joined_name(self, group: Sequence[WrittenFile]) -> str:
        parts = [_part(file) for file in group]
        if len(parts) == 1:
            return parts[0].name
        mark = digest((text for part in parts for text in (part.name, part.checksum, str(part.rows))), 6)
        return f"{parts[0].name.removesuffix(self.form.extension)}-joined-{mark}{self.form.extension}"

    def _stem(self, file: WrittenFile) -> str:
        """The name of a source in names of files."""
        name = file.part.name if file.part else _name(file)
        stem = name.removesuffix(self.form.extension)
        return stem if self.form.target_file_size is None else _NUMBER.sub("", stem)


def _is_whole(group: Sequence[WrittenFile]) -> bool:
    """Whether these are all rows of one file, so that nothing has to be written."""
    if len(group) == 1:
        return not group[0].part or not group[0].part.whole
    spans = _spans(group)
    return len(spans) == 1 and spans[0].start == 0 and spans[0].rows == _part(group[0]).whole


def _spans(group: Sequence[WrittenFile]) -> list[RowSpan]:
    """Where the rows of a group are, with a single span for what is one after the other in a file."""
    spans: list[RowSpan] = []
    for file in group:
        part, last = _part(file), spans[-1] if spans else None
        if last and last.path == file.path and last.start + last.rows == part.start:
            spans[-1] = replace(last, rows=last.rows + part.rows)
        else:
            spans.append(RowSpan(file.path, part.start, part.rows))
    return spans


def _part(file: WrittenFile) -> OutputPart:
    assert file.part is not None  # files without are not joined
    return file.part


def _name(file: WrittenFile) -> str:
    return file.path.rpartition("/")[2]
