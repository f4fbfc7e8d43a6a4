"""Copy an output to another directory: the files that its manifest lists, and nothing else.

All files are verified before the first one is copied. What has been copied to a target is noted beside the output, so
that a push which was stopped goes on where it was, and files of an earlier push that are no longer part of the output
are removed from the target. The price is that each file is read twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import Any

from gristmill.core.errors import InputError, PlanError, shorten
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.records.run_location import directory_url, find_outputs
from gristmill.core.records.run_record_store import RecordStore
from gristmill.core.task import digest
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.manifest import check_manifest, folder_of_index, output_at

CARD = "README.md"
_COPY_BYTES = 2**22

OnFile = Callable[[str, int], None]
"""Is told the name and size of each file that is there now."""


@fast_dataclass(frozen=True)
class Pushed:
    """What a push has done."""

    target: str
    copied: int = 0
    nbytes: int = 0
    kept: int = 0
    """Files that an earlier push had copied."""
    removed: int = 0
    """Files of an earlier push that are no longer part of the output."""
    notes: tuple[str, ...] = ()


def verified_output(where: str, options: Mapping[str, Any] | None = None) -> tuple[OutputDirectory, dict[str, Any]]:
    """The output in a directory, or of the run in it, and the entries of its manifest by name, all of them verified."""
    outputs = find_outputs(where, options) or [where]
    if len(outputs) > 1:
        raise InputError(f"{where} has several outputs, push them one by one: {shorten(outputs, 12)}")
    source = output_at(outputs[0], options)
    manifest, problems = check_manifest(source)
    entries = {entry["name"]: entry for entry in manifest["files"]}
    named = [(problem.partition(" ")[0], problem) for problem in problems]
    broken = [problem for name, problem in named if name in entries or "/" in name]
    if broken:
        raise InputError(f"{source.url} is not as it was written: {shorten(broken)}. Run it again to repair it")
    folders = {folder for name in entries if (folder := folder_of_index(name))} & set(source.names())
    for folder in sorted(folders):
        sizes = OutputDirectory(source.file(folder), source.storage_options).sizes()
        for name in sorted(sizes):
            checksum = source.checksum(source.file(folder, name))
            entries[f"{folder}/{name}"] = {"name": f"{folder}/{name}", "bytes": sizes[name], "checksum": checksum}
    others = sorted(set(source.names()) - {name.partition("/")[0] for name in entries} - folders)
    if others:
        raise InputError(
            f"{source.url} has {shorten(others)}, which its manifest does not list. Only listed files are pushed: "
            "move the others away, or copy the folder yourself"
        )
    return source, entries


def push_files(
    source: OutputDirectory,
    entries: Mapping[str, Mapping[str, Any]],
    target: OutputDirectory,
    card: str | None = None,
    on_file: OnFile = lambda name, size: None,
) -> Pushed:
    """Copy verified files to a directory, and the `card` as its README.md unless there is another one."""
    if source.url == target.url:
        raise PlanError(f"{target.url} is the output itself: choose another place to push it to")
    notes = PushNotes(source, target.url)
    there = _sizes(target, entries)
    _refuse_others(target, there, entries, notes.done)
    target.create_directory()
    copied = kept = nbytes = 0
    for name, entry in entries.items():
        if notes.done.get(name) == entry["checksum"] and there.get(name) == entry["bytes"]:
            kept += 1
        else:
            _copy(source, target, name, entry["checksum"])
            notes.add(name, entry["checksum"])
            copied, nbytes = copied + 1, nbytes + entry["bytes"]
        on_file(name, entry["bytes"])
    gone = [name for name in notes.done if name not in entries and name != CARD]
    for name in gone:
        target.remove(target.file(name))
        notes.forget(name)
    card_notes = _push_card(target, notes, card, CARD in there) if card else ()
    return Pushed(target.url, copied, nbytes, kept, len(gone), card_notes)


def _sizes(target: OutputDirectory, entries: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of the files that are there, also of those in folders of the output."""
    found = target.sizes()
    for folder in sorted({name.rpartition("/")[0] for name in entries} - {""}):
        inside = OutputDirectory(target.file(folder), target.storage_options).sizes()
        found |= {f"{folder}/{name}": size for name, size in inside.items()}
    return found


class PushNotes:
    """What has been pushed to one target: the checksum of each file, kept among the records of the output."""

    def __init__(self, source: OutputDirectory, target: str) -> None:
        self._store = RecordStore(source.records, source.storage_options)
        self._name = f"pushed/{digest([directory_url(target)], 8)}.json"
        self._content = self._store.read(self._name) or {"target": target, "files": {}}
        self.done: dict[str, str] = self._content["files"]

    def add(self, name: str, checksum: str) -> None:
        self.done[name] = checksum
        self._store.write(self._name, self._content)

    def forget(self, name: str) -> None:
        del self.done[name]
        self._store.write(self._name, self._content)


def _refuse_others(
    target: OutputDirectory, there: Mapping[str, int], entries: Mapping[str, Any], done: Mapping[str, str]
) -> None:
    """Raise if the target has data that was not pushed from this output: it would be read as part of it."""
    extensions = {name.partition(".")[2] for name in entries}
    others = [name for name in there if name.partition(".")[2] in extensions and name not in {*entries, *done}]
    if others:
        raise InputError(
            f"{target.url} has {shorten(others)}, which would be read as part of this output: choose another target, "
            "or move them away"
        )


def _copy(source: OutputDirectory, target: OutputDirectory, name: str, checksum: str) -> None:
    with source.open(source.file(name)) as old, target.create(target.file(name)) as new:
        shutil.copyfileobj(old, new, _COPY_BYTES)
        if checksum.startswith("xxh128:") and new.checksum != checksum:
            raise InputError(f"{source.file(name)} has changed while it was copied: its checksum differs")


def _push_card(target: OutputDirectory, notes: PushNotes, card: str, exists: bool) -> tuple[str, ...]:
    """Write the card, unless the one that is there was written by someone else."""
    path = target.file(CARD)
    if exists and target.checksum(path) != notes.done.get(CARD):
        return (f"{path} was not replaced, since it was not written by `gristmill push`, or was edited",)
    with target.create(path) as file:
        file.write(card.encode())
    notes.add(CARD, file.checksum)
    return ()
