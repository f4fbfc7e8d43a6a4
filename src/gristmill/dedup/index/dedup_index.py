"""DedupIndex: what earlier runs have kept, so that later ones need not keep it again.

    versions/000003.json     what the version is made of: additions, each with its files. Written last, never changed
    data/<addition>/*.runs   what a run has added: keys of the rows that it kept (`index_files.py`)
    origins/<hash>           what is told of the input files of an addition (`rerun_detection.py`), a line for each

A version is all additions so far, and a run reads the version that was the last when its rows were read. A new one is
there as soon as its one file is, which is created, never replaced: two runs that add to one index at the same time
cannot both become the next version. The second is told to start again; it then sees what the first has added.

An addition is named by what it was made of. So a run that is killed and started again adds once, and a run that is
repeated finds what it has added before, and is not compared with it.

What is given up: taking single documents out, and merging additions: reading costs a little for each of them. And two
runs that end in the same instant, on a store that cannot create an object only if there is none: one is then lost.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import orjson

from gristmill.core.errors import InputError, PlanError, cannot_write, shorten
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.task import digest
from gristmill.io.storage.output_directory import OutputDirectory

FORMAT = 5  # those before had other hashes, or told in another way what an addition was made of
_VERSIONS, _DATA, _ORIGINS = "versions", "data", "origins"


@fast_dataclass(frozen=True)
class IndexFile:
    """A file of an addition: keys of which the hash is in the range `part` of `of` equal ones."""

    name: str
    size: int
    checksum: str
    rows: int
    part: int
    of: int
    cuts: int
    """The range is cut into so many, to read of a file what is asked for."""


@fast_dataclass(frozen=True)
class IndexAddition:
    """What a run has added."""

    name: str
    snapshot: str
    documents: int
    since: int
    """The version that it came with."""
    named: bool = False
    """Whether somebody has given it the name of its snapshot."""
    source: str = ""
    """A hash of all that was compared, and where that was; none if nothing tells."""
    origins: str = ""
    """The name of the file that tells of its input files, if there were any."""
    run: str = ""
    """The directory of the run that made it, if that had one."""
    mark: str = ""
    """Tells what that run has written from what others write, also those that have a directory of the same name."""
    base: tuple[str, ...] = ()
    """The additions that it was compared with."""
    files: tuple[IndexFile, ...] = field(default=(), repr=False)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> IndexAddition:
        files = tuple(IndexFile(**file) for file in told["files"])
        return cls(**{**told, "base": tuple(told["base"]), "files": files})


@fast_dataclass(frozen=True)
class IndexVersion:
    """One state of an index."""

    number: int = 0
    kind: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    additions: tuple[IndexAddition, ...] = ()

    @property
    def documents(self) -> int:
        return sum(addition.documents for addition in self.additions)

    @property
    def size(self) -> int:
        return sum(addition.size for addition in self.additions)


class DedupIndex:
    """What earlier runs have kept, at any path or URL: a new snapshot is deduplicated against it.

    `snapshot` names what a run adds, and is told of each document that a row was found to be the same as; by default
    it is `v` and the number of the version. A run with the name and the `run_dir` of an earlier one replaces what that
    has added; any other name makes a snapshot of its own. `version` is the version that is read, by default the last.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        snapshot: str | None = None,
        version: int | None = None,
    ) -> None:
        self.path, self.storage_options = os.fspath(path), dict(storage_options or {})
        self.snapshot, self.version = snapshot, version
        self._target = OutputDirectory(path, storage_options)

    @property
    def url(self) -> str:
        return self._target.url

    def is_at(self, other: DedupIndex) -> bool:
        """Whether another stands for the same directory, as far as that can be seen from how they were given."""
        if self._target.local or other._target.local:
            return canonical_url(self.url) == canonical_url(other.url)
        return (self.url, self.storage_options) == (other.url, other.storage_options)

    def data(self, addition: str) -> OutputDirectory:
        """Where the files of an addition are."""
        return OutputDirectory(self._target.file(_DATA, addition), self.storage_options)

    def origins(self, addition: IndexAddition) -> list[str]:
        """What is told of each of the input files of an addition."""
        if not addition.origins:
            return []
        path = self._target.file(_ORIGINS, addition.origins)
        try:
            with self._target.open(path) as file:
                told = file.read().decode().splitlines()
        except (FileNotFoundError, UnicodeDecodeError):
            told = []
        if _name_of(told) != addition.origins:
            raise InputError(
                f"{path}, which tells what files {addition.snapshot!r} was made of, is missing or has changed: restore "
                "it, or make the index anew"
            )
        return told

    # -- looking ---------------------------------------------------------------------------------------

    @property
    def versions(self) -> list[int]:
        """The numbers of the versions that can be read, from the first to the last."""
        try:
            there = self._target.names(_VERSIONS)
        except NotADirectoryError as error:
            raise InputError(f"{self.url} is a file, and an index is a directory: give another path") from error
        names = [name.removesuffix(".json") for name in there if name.endswith(".json")]
        return sorted(int(name) for name in names if name.isdecimal())

    def read(self, version: int | None = None) -> IndexVersion | None:
        """A version, by default the one that the index stands for; None if there is none at all."""
        number = version if version is not None else self.version
        if number is None:
            there = self.versions
            if not there:
                return None
            number = there[-1]
        path = self._path(number)
        try:
            with self._target.open(path) as file:
                told = orjson.loads(file.read())
            if told["format"] != FORMAT:
                raise InputError(
                    f"{path} has format {told['format']}, and this version of Gristmill reads format {FORMAT}: use the "
                    "version that wrote it, or make the index anew"
                )
            additions = tuple(map(IndexAddition.of, told["additions"]))
        except FileNotFoundError as error:
            known = shorten(list(map(str, self.versions)), 12) or "none"
            raise InputError(f"the index at {self.url} has no version {number}. There are: {known}") from error
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} cannot be read: {error!r}. Read an earlier version (DedupIndex(..., version=...)), or "
                "restore the file"
            ) from error
        return IndexVersion(number, told["kind"], told["parameters"], additions)

    def there(self) -> IndexVersion:
        """A version, or an error that says that there is none."""
        found = self.read()
        if found is None:
            raise InputError(f"there is no index at {self.url}. A run with extend={self.path!r} makes one")
        return found

    def __len__(self) -> int:
        """How many documents are known."""
        found = self.read()
        return found.documents if found else 0

    def __bool__(self) -> bool:
        return True

    def info(self) -> dict[str, Any]:
        """What the index is for, and what has been added to it."""
        found = self.there()
        added = [
            {"snapshot": one.snapshot, "version": one.since, "documents": one.documents, "bytes": one.size}
            for one in found.additions
        ]
        return {
            "path": self.url,
            "kind": found.kind,
            "version": found.number,
            "versions": self.versions,
            "documents": found.documents,
            "bytes": found.size,
            "parameters": dict(found.parameters),
            "snapshots": added,
        }

    def check(self) -> list[str]:
        """What is wrong with the files of the version: nothing when they are as they were written. Reads them all."""
        problems = []
        for addition in self.there().additions:
            target = self.data(addition.name)
            there = target.sizes()
            for file in addition.files:
                path = target.file(file.name)
                if file.name not in there:
                    problems.append(f"{path} is missing")
                elif there[file.name] != file.size:
                    problems.append(f"{path} has {there[file.name]:,} bytes, and should have {file.size:,}")
                elif problem := target.checksum_problem(path, file.checksum):
                    problems.append(f"{path} {problem}")
            try:
                self.origins(addition)
            except InputError as error:
                problems.append(str(error))
        return problems

    # -- changing --------------------------------------------------------------------------------------

    def tell_origins(self, told: Sequence[str]) -> str:
        """Write down what is told of the input files of an addition. Returns where."""
        if not told:
            return ""
        name = _name_of(told)
        with suppress(FileExistsError):
            self._create(self._target.file(_ORIGINS, name), "\n".join(told).encode())
        return name

    def publish(self, version: IndexVersion) -> None:
        """Make a version the next one. Raises FileExistsError if there is one of that number."""
        told = {"format": FORMAT, "kind": version.kind, "parameters": dict(version.parameters)}
        told["additions"] = [asdict(addition) for addition in version.additions]
        self._create(self._path(version.number), orjson.dumps(told, option=orjson.OPT_INDENT_2))

    def prune(self, keep: int = 1, unfinished: bool = False) -> list[int]:
        """Remove all versions but the last `keep`, with what only they are made of; returns their numbers. Runs that
        read one of them will fail. `unfinished` also removes what runs have left that did not get to the end: use it
        when no run is adding to the index."""
        if keep < 1:
            raise ValueError(f"prune: keep is {keep!r}, must be 1 or more: to remove an index, delete its directory")
        there = self.versions
        old, kept = there[:-keep], there[-keep:]
        wanted, before = self._additions(kept), self._additions(old)
        data, origins = ({name(one) for one in before} - {name(one) for one in wanted} for name in (_data_of, _told_in))
        if unfinished:
            data |= set(self._target.names(_DATA)) - set(map(_data_of, wanted))
            origins |= set(self._target.names(_ORIGINS)) - set(map(_told_in, wanted))
        for number in old:  # first, so that nobody starts to read what is about to go
            self._target.remove(self._path(number))
        for name in sorted(data):
            self.data(name).remove_all()
        for name in sorted(origins - {""}):
            self._target.remove(self._target.file(_ORIGINS, name))
        return old

    def _additions(self, versions: Sequence[int]) -> list[IndexAddition]:
        found = [self.read(number) for number in versions]
        return [addition for version in found if version for addition in version.additions]

    def _path(self, number: int) -> str:
        return self._target.file(_VERSIONS, f"{number:06}.json")

    def _create(self, path: str, content: bytes) -> None:
        """Create a file, whole or not at all, unless there is one."""
        if self._target.exists(path):
            raise FileExistsError(path)
        try:
            if self._target.local:
                _create_local(Path(path), content)
            else:
                self._create_remote(path, content)
        except FileExistsError:
            raise
        except OSError as error:
            raise cannot_write(path, error) from error

    def _create_remote(self, path: str, content: bytes) -> None:
        try:
            self._target._system.pipe_file(path, content, mode="create")
        except (TypeError, ValueError, NotImplementedError):  # a store that cannot tell: nobody was there just now
            self._target._system.pipe_file(path, content)

    def __repr__(self) -> str:
        return f"<DedupIndex {self.url}>"


def canonical_url(url: str) -> str:
    """A path without links and detours; any other URL as it is."""
    return url if "://" in url else os.path.realpath(url)


def _name_of(told: Sequence[str]) -> str:
    return digest(told, 16)


_data_of, _told_in = attrgetter("name"), attrgetter("origins")


def _create_local(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.draft")
    try:
        draft.write_bytes(content)
        try:
            os.link(draft, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without links: nobody was there just now
            draft.replace(path)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


def check_index_matches(
    stage: str, index: DedupIndex, version: IndexVersion, kind: str, parameters: Mapping[str, Any]
) -> None:
    """Raise if an index was made by a stage of another kind, or with other parameters."""
    if version.kind != kind:
        raise PlanError(
            f"stage {stage!r}: the index at {index.url} is for {version.kind} deduplication, and this is {kind}: "
            "choose another directory"
        )
    names = [name for name in parameters if parameters[name] != version.parameters.get(name)]
    told = [f"{name} is {version.parameters.get(name)!r} there and {parameters[name]!r} here" for name in names]
    if told:
        raise PlanError(
            f"stage {stage!r}: the index at {index.url} was made with other parameters: {'; '.join(told)}. Use the "
            "same, or another index"
        )
