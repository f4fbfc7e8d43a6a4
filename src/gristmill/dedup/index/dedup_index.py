"""DedupIndex: the keys of rows that earlier runs kept, in numbered versions.

    versions/000003.json     the additions that make up the version, each with its files; written last, never changed
    data/<addition>/*.runs   what one run has added: keys of the rows that it kept (`index_files.py`)
    origins/<hash>           a fingerprint of each input file of an addition, a line each (`rerun_detection.py`)

A version consists of all additions so far. A run reads the version that was the last when its rows had been read. A
version exists as soon as its JSON file does, and that file is created, never replaced: of two runs that add to one
index at the same time, only one can make the next version. The other fails, and sees the addition of the first when it
is started again.

The name of an addition is a hash of what it was made of. So a run that is killed and resumed adds once, and a run that
is repeated finds its own addition and is not compared with it.

Gives up removing single documents, and merging additions: reading costs a little for each addition. On a store that
cannot create an object only if it does not exist, one of two runs that end at the same instant is lost.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

import orjson

from gristmill.core.errors import InputError, PlanError, cannot_write, shorten
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.task import digest
from gristmill.io.storage.output_directory import OutputDirectory

FORMAT = 5  # earlier formats have other hashes, or describe the origin of additions in another way
_VERSIONS, _DATA, _ORIGINS = "versions", "data", "origins"


@fast_dataclass(frozen=True)
class IndexFile:
    """A file of an addition. The hashes of its keys are in range number `part` of `of` equal ranges."""

    name: str
    size: int
    checksum: str
    rows: int
    part: int
    of: int
    cuts: int
    """The range is cut into so many parts, so that a reader need not read the whole file."""


@fast_dataclass(frozen=True)
class IndexAddition:
    """What one run has added to an index."""

    name: str
    snapshot: str
    documents: int
    since: int
    """The first version that has it."""
    named: bool = False
    """Whether the user has named its snapshot."""
    source: str = ""
    """A hash of all compared content and of the paths of the input; empty if unknown."""
    origins: str = ""
    """The file with the fingerprints of its input files, if there were any."""
    run: str = ""
    """The directory of the run that made it, if it had one."""
    mark: str = ""
    """Identifies the output of that run, also among runs whose directories have the same name."""
    base: tuple[str, ...] = ()
    """The names of the additions it was compared with."""
    files: tuple[IndexFile, ...] = field(default=(), repr=False)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> IndexAddition:
        """An addition from its JSON record."""
        files = tuple(IndexFile(**file) for file in record["files"])
        return cls(**{**record, "base": tuple(record["base"]), "files": files})


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
    """An index of the rows that earlier runs kept, at any path or URL; new data is deduplicated against it.

    `snapshot` names what a run adds. The cluster table shows it for each partner that is in the index. The default is
    `v` and the number of the version. A run with the snapshot name and the `run_dir` of an earlier run replaces what
    that run has added; any other name makes a new snapshot. `version` is the version to read, by default the last.
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
        """Whether another index is the same directory, as far as its path or URL tells."""
        if self._target.local or other._target.local:
            return canonical_url(self.url) == canonical_url(other.url)
        return (self.url, self.storage_options) == (other.url, other.storage_options)

    def data(self, addition: str) -> OutputDirectory:
        """The directory of the files of an addition."""
        return OutputDirectory(self._target.file(_DATA, addition), self.storage_options)

    def origins(self, addition: IndexAddition) -> list[str]:
        """The fingerprints of the input files of an addition."""
        if not addition.origins:
            return []
        path = self._target.file(_ORIGINS, addition.origins)
        try:
            with self._target.open(path) as file:
                lines = file.read().decode().splitlines()
        except (FileNotFoundError, UnicodeDecodeError):
            lines = []
        if _origins_name(lines) != addition.origins:
            raise InputError(
                f"{path}, the list of input files of snapshot {addition.snapshot!r}, is missing or has changed. "
                "Restore it, or rebuild the index"
            )
        return lines

    # -- reading ---------------------------------------------------------------------------------------

    @property
    def versions(self) -> list[int]:
        """The numbers of all versions, in ascending order."""
        try:
            files = self._target.names(_VERSIONS)
        except NotADirectoryError as error:
            raise InputError(f"{self.url} is a file, but an index is a directory: choose another path") from error
        names = [name.removesuffix(".json") for name in files if name.endswith(".json")]
        return sorted(int(name) for name in names if name.isdecimal())

    def read(self, version: int | None = None) -> IndexVersion | None:
        """A version, by default the `version` of this index; None if the index does not exist."""
        number = version if version is not None else self.version
        if number is None:
            numbers = self.versions
            if not numbers:
                return None
            number = numbers[-1]
        path = self._path(number)
        try:
            with self._target.open(path) as file:
                record = orjson.loads(file.read())
            if record["format"] != FORMAT:
                raise InputError(
                    f"{path} has format {record['format']}, but this version of Gristmill reads format {FORMAT}: use "
                    "the version that wrote it, or rebuild the index"
                )
            additions = tuple(map(IndexAddition.of, record["additions"]))
        except FileNotFoundError as error:
            known = shorten(list(map(str, self.versions)), 12) or "none"
            raise InputError(f"the index at {self.url} has no version {number}. Its versions: {known}") from error
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} cannot be read: {error!r}. Read an earlier version (DedupIndex(..., version=...)), or "
                "restore the file"
            ) from error
        return IndexVersion(number, record["kind"], record["parameters"], additions)

    def there(self) -> IndexVersion:
        """The version to read. Raises InputError if the index does not exist."""
        version = self.read()
        if version is None:
            raise InputError(f"there is no index at {self.url}. A run with extend={self.path!r} creates it")
        return version

    def __len__(self) -> int:
        """How many documents it holds."""
        version = self.read()
        return version.documents if version else 0

    def __bool__(self) -> bool:
        return True

    def info(self) -> dict[str, Any]:
        """The kind, parameters, versions and snapshots of the index."""
        version = self.there()
        added = [
            {"snapshot": one.snapshot, "version": one.since, "documents": one.documents, "bytes": one.size}
            for one in version.additions
        ]
        return {
            "path": self.url,
            "kind": version.kind,
            "version": version.number,
            "versions": self.versions,
            "documents": version.documents,
            "bytes": version.size,
            "parameters": dict(version.parameters),
            "snapshots": added,
        }

    def check(self) -> list[str]:
        """The problems with the files of the version, if any. Reads all of them."""
        problems = []
        for addition in self.there().additions:
            target = self.data(addition.name)
            sizes = target.sizes()
            for file in addition.files:
                path = target.file(file.name)
                if file.name not in sizes:
                    problems.append(f"{path} is missing")
                elif sizes[file.name] != file.size:
                    problems.append(f"{path} has {sizes[file.name]:,} bytes, but should have {file.size:,}")
                elif problem := target.checksum_problem(path, file.checksum):
                    problems.append(f"{path} {problem}")
            try:
                self.origins(addition)
            except InputError as error:
                problems.append(str(error))
        return problems

    # -- writing ---------------------------------------------------------------------------------------

    def write_origins(self, origins: Sequence[str]) -> str:
        """Write the fingerprints of the input files of an addition. Returns the name of their file."""
        if not origins:
            return ""
        name = _origins_name(origins)
        with suppress(FileExistsError):
            self._create(self._target.file(_ORIGINS, name), "\n".join(origins).encode())
        return name

    def publish(self, version: IndexVersion) -> None:
        """Make a version the next one. Raises FileExistsError if there is one with that number."""
        record = {"format": FORMAT, "kind": version.kind, "parameters": dict(version.parameters)}
        record["additions"] = [asdict(addition) for addition in version.additions]
        self._create(self._path(version.number), orjson.dumps(record, option=orjson.OPT_INDENT_2))

    def prune(self, keep: int = 1, unfinished: bool = False) -> list[int]:
        """Remove all versions but the last `keep`, and the files that only they use. Returns their numbers.

        Runs that read one of them will fail. `unfinished` also removes the files of runs that did not finish: use it
        only when no run is adding to the index.
        """
        if keep < 1:
            raise ValueError(f"prune: keep is {keep!r}, must be 1 or more. To remove an index, delete its directory")
        versions = self.versions
        old, kept = versions[:-keep], versions[-keep:]
        unused, used = self._additions(old), self._additions(kept)
        data = {one.name for one in unused} - {one.name for one in used}
        origins = {one.origins for one in unused} - {one.origins for one in used}
        if unfinished:
            data |= set(self._target.names(_DATA)) - {one.name for one in used}
            origins |= set(self._target.names(_ORIGINS)) - {one.origins for one in used}
        for number in old:  # versions first, so that no run starts to read files that are about to be removed
            self._target.remove(self._path(number))
        for name in sorted(data):
            self.data(name).remove_all()
        for name in sorted(origins - {""}):
            self._target.remove(self._target.file(_ORIGINS, name))
        return old

    def _additions(self, versions: Sequence[int]) -> list[IndexAddition]:
        read = [self.read(number) for number in versions]
        return [addition for version in read if version for addition in version.additions]

    def _path(self, number: int) -> str:
        return self._target.file(_VERSIONS, f"{number:06}.json")

    def _create(self, path: str, content: bytes) -> None:
        """Create a file atomically. Raises FileExistsError if it exists."""
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
        except (TypeError, ValueError, NotImplementedError):  # the store has no create-if-absent; `_create` has looked
            self._target._system.pipe_file(path, content)

    def __repr__(self) -> str:
        return f"<DedupIndex {self.url}>"


def canonical_url(url: str) -> str:
    """A local path without symbolic links; any other URL unchanged."""
    return url if "://" in url else os.path.realpath(url)


def _origins_name(lines: Sequence[str]) -> str:
    return digest(lines, 16)


def _create_local(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.draft")
    try:
        draft.write_bytes(content)
        try:
            os.link(draft, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links; `_create` has looked
            draft.replace(path)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


def check_index_matches(
    stage: str, index: DedupIndex, version: IndexVersion, kind: str, parameters: Mapping[str, Any]
) -> None:
    """Raise PlanError if an index is of another kind than the stage, or has other parameters."""
    if version.kind != kind:
        raise PlanError(
            f"stage {stage!r}: the index at {index.url} is for {version.kind} deduplication, but this stage is {kind}. "
            "Choose another index"
        )
    names = [name for name in parameters if parameters[name] != version.parameters.get(name)]
    differences = [f"{name} is {version.parameters.get(name)!r} there and {parameters[name]!r} here" for name in names]
    if differences:
        raise PlanError(
            f"stage {stage!r}: the index at {index.url} was made with other parameters: {'; '.join(differences)}. Use "
            "the same parameters, or another index"
        )
