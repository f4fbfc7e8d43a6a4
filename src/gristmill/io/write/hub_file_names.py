"""File names as on the Hugging Face hub, such as `train-00000-of-00012.parquet`, which say what is missing.

How many files there are is known when the last source is done, so this is a last step of a run: files are committed
under the names of their sources and then renamed, in the order of the input. What is to be renamed is noted beside the
output first, so that a run which is killed in between finishes this when it is resumed. An object store copies what it
cannot rename.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gristmill.core.records.run_record_store import RecordStore
from gristmill.io.write.output_schema import in_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gristmill.core.task import WrittenFile, WrittenFiles
    from gristmill.io.storage.output_directory import OutputDirectory

SPLIT_NAME = re.compile(r"\w+(\.\w+)*")
"""What the hub takes for the name of a split."""

_JOURNAL, _WAITING = "renames.json", "_renamed"


def check_split(owner: str, split: str | None, mode: str) -> None:
    """Raise unless files can be named after a split."""
    if split is None:
        return
    if not isinstance(split, str) or not SPLIT_NAME.fullmatch(split):
        raise ValueError(f"{owner}: split is {split!r}, must be a name of letters, digits and _, such as 'train'")
    if mode == "append":
        raise ValueError(
            f"{owner}: mode='append' cannot be used with split=, since names say how many files there are. Write to "
            "another directory, or read the old output together with the new input"
        )


class HubFileNames:
    """Names the files of one output."""

    def __init__(self, target: OutputDirectory, split: str, extension: str) -> None:
        self.target, self.split, self.extension = target, split, extension
        self._moves: dict[str, Any] | None = None

    @property
    def _store(self) -> RecordStore:
        return RecordStore(self.target.records, self.target.storage_options)

    def begin(self, resumed: bool) -> None:
        """Finish what an earlier attempt has begun, or forget what an earlier run has left."""
        journal = self._store.read(_JOURNAL)
        if journal is None:
            return
        if resumed:
            self._move(journal)
            return
        for new, _ in journal["moves"].values():
            self.target.remove(self._waiting(new))
        self.forget()

    def forget(self) -> None:
        """The ledger has the new names: what was renamed need not be known any more."""
        self.target.remove(f"{self.target.records}/{_JOURNAL}")
        self._moves = {}

    def find(self, file: WrittenFile, sizes: Mapping[str, int]) -> WrittenFile | None:
        """A file of an earlier attempt, under the name that it has now; None if it is gone."""
        if self._moves is None:
            self._moves = (self._store.read(_JOURNAL) or {}).get("moves", {})
        new, checksum = self._moves.get(_name(file), ("", ""))
        if new and checksum == file.checksum and sizes.get(new) == file.size:
            return replace(file, path=self.target.file(new))
        return file if sizes.get(_name(file)) == file.size else None

    def found(self, outputs: Sequence[WrittenFiles]) -> list[WrittenFiles]:
        """The outputs with the names that their files have now."""
        sizes = self.target.sizes()
        return [output.with_written(tuple(self.find(f, sizes) or f for f in output.written)) for output in outputs]

    def rename(self, outputs: Sequence[WrittenFiles]) -> list[WrittenFiles]:
        """The outputs after their files were renamed. Files with such names that are not among them are removed."""
        found = self.found(outputs)
        by_name = {_name(file): file for output in in_order(found) for file in output.written}
        files = list(by_name.values())
        names = {name: self._numbered(number, len(files)) for number, name in enumerate(by_name)}
        moves = {
            _name(file): [names[_name(file)], file.checksum] for file in files if names[_name(file)] != _name(file)
        }
        if moves:
            journal = {"moves": moves, "parked": sorted(set(moves) & set(names.values())), "step": 1}
            self._store.write(_JOURNAL, journal)
            self._move(journal)
        for name in sorted(set(self.target.names()) - set(names.values())):
            if self._is_numbered(name):
                self.target.remove(self.target.file(name))
        return [
            output.with_written(tuple(replace(f, path=self.target.file(names[_name(f)])) for f in output.written))
            for output in found
        ]

    def _move(self, journal: dict[str, Any]) -> None:
        """Rename files. Those whose name another one is to have are parked first; each step can be repeated."""
        moves, parked = journal["moves"], set(journal["parked"])
        if journal["step"] == 1:
            for old in parked:
                self.target.move(self.target.file(old), self._waiting(moves[old][0]))
            journal["step"] = 2
            self._store.write(_JOURNAL, journal)
        if journal["step"] == 2:
            for old, (new, _) in moves.items():
                place = self._waiting(new) if old in parked else self.target.file(old)
                self.target.move(place, self.target.file(new))
            journal["step"] = 3
            self._store.write(_JOURNAL, journal)
        self._moves = None

    def _waiting(self, name: str) -> str:
        return f"{self.target.records}/{_WAITING}/{name}"

    def _is_numbered(self, name: str) -> bool:
        """Whether a file has a name as this class gives it."""
        pattern = rf"{re.escape(self.split)}-\d{{5,}}-of-\d{{5,}}{re.escape(self.extension)}"
        return re.fullmatch(pattern, name) is not None

    def _numbered(self, number: int, count: int) -> str:
        """The name of a file, by its place among all."""
        return f"{self.split}-{number:05}-of-{count:05}{self.extension}"


def _name(file: WrittenFile) -> str:
    return file.path.rpartition("/")[2]
