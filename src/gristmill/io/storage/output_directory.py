"""OutputDirectory: a directory that a writer writes to, local or at any fsspec URL.

Files appear atomically. A local file is written under a temporary name and renamed; an upload to an object store
becomes visible only when it is complete, so it is written to its final key. No locks are used: two runs that write the
same file at the same time both succeed, and the last one wins.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import time
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from gristmill.core.errors import PlanError, cannot_write, explain_storage_error
from gristmill.core.records.remote_storage import open_file_system
from gristmill.core.records.run_location import MANIFEST, directory_url, records_beside
from gristmill.core.records.run_record_store import make_private_directory, refuse_login, without_listing_cache
from gristmill.core.secret_values import remember_secrets
from gristmill.io.storage.checksum import KNOWN_CHECKSUM_KINDS, ChecksumWriter, checksum_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gristmill.io.storage.checksum import NewFile


TEMPORARY_DIRECTORY = "_tmp"
WRITE_CHUNK_BYTES = 2**18
_DRAFT_SUFFIX = ".draft"
SWEEP_SECONDS = 1.0
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE of fallocate(2): reserve space without changing the size of the file


class OutputDirectory:
    """A directory to write to. Creating the object does not touch the file system."""

    _run = ""
    """The name of the temporary files of the present run, in the driver."""
    _swept = float("-inf")
    """When drafts and empty directories were last removed."""

    def __init__(self, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> None:
        self.url = directory_url(os.fspath(url))
        self.storage_options = dict(storage_options or {})
        self.local = "://" not in self.url
        refuse_login(self.url)
        remember_secrets(self.storage_options)

    @property
    def records(self) -> str:
        """The directory for what is not data: the manifest, temporary files."""
        return records_beside(self.url)

    @cached_property
    def _system(self) -> Any:
        return open_file_system(self.url, self.storage_options)[0]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_system"}

    def file(self, *parts: str) -> str:
        """The full path of a file in the directory."""
        return "/".join([self.url.rstrip("/"), *parts])

    def temporary(self, *parts: str) -> str:
        """The full path of a temporary file."""
        return "/".join([self.records, TEMPORARY_DIRECTORY, *parts])

    # -- inspecting ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise a PlanError if the directory cannot be written to, as far as this process can see."""
        if not self.local:
            _ = self.records  # raises if there is no room for them
            if self._remote_type() == "file":
                raise PlanError(
                    f"cannot write to {self.url}: it is a file, and the output must be a directory. Choose another path"
                )
            return
        here = self._nearest(Path(self.url))
        if not here.is_dir():
            raise PlanError(
                f"cannot write to {self.url}: {here} is a file, and the output must be a directory. Choose another path"
            )
        beside = self._nearest(Path(self.records))
        for folder in (here, beside):
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PlanError(
                    f"cannot write to {self.url}: no permission to write in {folder}"
                    + ("" if folder == here else ", where the records of the run go")
                    + ". Give this user write permission there, or choose another directory"
                )
        if here.stat().st_dev != beside.stat().st_dev:
            raise PlanError(
                f"cannot write to {self.url}: it is a mount point, and the records of a run are written beside its "
                f"output, on the same disk. Write to a folder in it, such as {self.url}/data"
            )

    @staticmethod
    def _nearest(path: Path) -> Path:
        """The path, or the nearest one above it that exists."""
        while not path.exists() and path != path.parent:
            path = path.parent
        return path

    def _remote_type(self) -> str:
        """What there is at the URL. Raises a PlanError if the store cannot be reached."""
        try:
            with without_listing_cache(self._system):
                return str(self._system.info(self.url)["type"])
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except PermissionError:  # who may write need not be allowed to list
            return ""
        except Exception as error:  # each file system raises its own errors
            raise PlanError(f"cannot write to {self.url}: {explain_storage_error(error)}") from error

    def names(self, *folder: str) -> list[str]:
        """The names of all entries of the directory, sorted."""
        return self._names(self.file(*folder))

    def record_names(self) -> list[str]:
        """The names of all entries beside the directory, among its records."""
        return self._names(self.records)

    def _names(self, place: str) -> list[str]:
        try:
            if self.local:
                return sorted(path.name for path in Path(place).iterdir())
            with without_listing_cache(self._system):
                paths = self._system.ls(place, detail=False)
        except FileNotFoundError:
            return []
        return sorted(name.rstrip("/").rpartition("/")[2] for name in paths)

    def sizes(self, *folder: str) -> dict[str, int]:
        """The size of each file in the directory or in a folder of it, by name."""
        place = self.file(*folder) if folder else self.url
        try:
            if self.local:
                return {entry.name: entry.stat().st_size for entry in os.scandir(place) if entry.is_file()}
            with without_listing_cache(self._system):
                entries = self._system.ls(place, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {entry["name"].rpartition("/")[2]: int(entry.get("size") or 0) for entry in entries}

    def exists(self, path: str) -> bool:
        if self.local:
            return Path(path).exists()
        with without_listing_cache(self._system):
            return bool(self._system.exists(path))

    def size(self, path: str) -> int:
        if self.local:
            return Path(path).stat().st_size
        with without_listing_cache(self._system):
            return int(self._system.size(path))

    def checksum(self, path: str) -> str:
        """Read a file and return its checksum."""
        with self.open(path) as file:
            return checksum_of(file)

    def checksum_problem(self, path: str, checksum: str) -> str | None:
        """What is wrong with a file that should have this checksum; None if it matches."""
        kind = checksum.partition(":")[0]
        if kind not in KNOWN_CHECKSUM_KINDS:
            return f"has a checksum of a kind unknown to this version ({kind or 'none'})"
        with self.open(path) as file:
            return None if checksum_of(file, kind) == checksum else "has changed: its checksum differs"

    # -- reading and writing ---------------------------------------------------------------------------

    def open(self, path: str) -> BinaryIO:
        return cast("BinaryIO", open(path, "rb") if self.local else self._system.open(path, "rb"))

    def read(self, path: str, start: int, length: int) -> bytes:
        """Read `length` bytes of a file from `start` on."""
        if not self.local:
            return cast("bytes", self._system.cat_file(path, start=start, end=start + length))
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(length)

    @contextmanager
    def create(self, path: str) -> Iterator[NewFile]:
        """Open a new file, which appears at `path` when the `with` block ends without error, replacing an older one."""
        create = self._create_local if self.local else self._create_remote
        try:
            with create(path) as file:
                yield cast("NewFile", ChecksumWriter(file))
        except OSError as error:
            raise cannot_write(path, error) from error

    @contextmanager
    def _create_local(self, path: str) -> Iterator[BinaryIO]:
        draft = f"{path}.{os.urandom(4).hex()}{_DRAFT_SUFFIX}"
        try:
            with _open_new(draft) as file:
                yield file
            Path(draft).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(draft).unlink(missing_ok=True)
            raise

    @contextmanager
    def _create_remote(self, path: str) -> Iterator[BinaryIO]:
        file = self._system.open(path, "wb", autocommit=False)
        try:
            yield file
            file.close()
            if hasattr(file, "commit"):
                file.commit()
        except BaseException:
            with suppress(Exception):
                file.discard()
            with suppress(AttributeError):
                file.closed = True  # or fsspec would upload the rest when the object is garbage-collected
            if self.url.startswith("memory:"):  # the only store whose files are visible as soon as they are opened
                self.remove(path)
            raise

    def replace(self, path: str, name: str) -> None:
        """Move a local file into the directory, atomically."""
        Path(path).replace(self.file(name))

    def move(self, path: str, other: str) -> None:
        """Rename a file, if it is still there: atomically, or in an object store by copying it."""
        if self.local:
            Path(other).parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                Path(path).replace(other)
        elif self.exists(path):
            self._system.cp_file(path, other)
            self.remove(path)

    def create_directory(self) -> None:
        try:
            if self.local:
                Path(self.url).mkdir(parents=True, exist_ok=True)
            else:
                self._system.makedirs(self.url, exist_ok=True)
        except OSError as error:
            raise PlanError(str(cannot_write(self.url, error))) from error
        except Exception as error:  # each file system raises its own errors
            raise PlanError(f"cannot write to {self.url}: {explain_storage_error(error)}") from error

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            if self.local:
                Path(path).unlink()
            else:
                self._system.rm_file(path)

    def remove_all(self) -> None:
        """Remove the directory and everything in it."""
        if self.local:
            shutil.rmtree(self.url, ignore_errors=True)
            with suppress(OSError):
                # The parent belongs to the same run, and goes with its last entry: rmdir fails while there are others.
                parent = Path(self.url).parent
                parent.rmdir()
                if parent.parent.name == TEMPORARY_DIRECTORY:
                    parent.parent.rmdir()
                    parent.parent.parent.rmdir()
        else:
            with suppress(FileNotFoundError):
                self._system.rm(self.url, recursive=True)

    # -- the temporary directory -----------------------------------------------------------------------

    def begin_run(self) -> str:
        """A name for the temporary files of a run, until `end_run`."""
        self._run = self.new_temporary_name()
        return self._run

    def end_run(self) -> None:
        """Remove the temporary files of a run that has succeeded: what is left is of attempts that failed."""
        if self._run and self.local:
            shutil.rmtree(self.temporary(self._run), ignore_errors=True)
            self._remove_empty_directories()
        self._run = ""

    def new_temporary_name(self) -> str:
        """A name for the temporary files of one run. It holds host and process id, so that others can see whether the
        run is still alive."""
        return f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"

    @contextmanager
    def scratch(self) -> Iterator[str | None]:
        """A temporary local directory: on the disk of this one if it is local, else None for the system's default."""
        if not self.local:
            yield None
            return
        path = self.temporary(self.new_temporary_name())
        Path(path).mkdir(parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            self._remove_empty_directories()

    def remove_stale_files(self, everything: bool, also: str | None = None) -> None:
        """Remove the temporary files of runs that were killed on this machine and of the run `also`, or of all runs."""
        for run in self._names(self.temporary()):
            if not everything and run != also and not _run_has_ended(run):
                continue
            path = self.temporary(run)
            with suppress(FileNotFoundError):
                if not self.local:
                    self._system.rm(path, recursive=True)
                elif Path(path).is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    Path(path).unlink()
        for name in self._names(self.records) if self.local else ():
            if name.startswith(MANIFEST) and name.endswith(_DRAFT_SUFFIX):
                self.remove(f"{self.records}/{name}")
        if self.local:
            self._remove_empty_directories()

    def remove_drafts(self, run: str = "", paths: Iterable[str] = ()) -> None:
        """Remove the drafts that failed attempts left of these files, and temporary directories that are empty.

        Only now and then: with many small sources this would take longer than their work. `end_run` removes the rest.
        """
        if not self.local or time.monotonic() - self._swept < SWEEP_SECONDS:
            return  # object stores have neither drafts nor empty directories
        self._swept = time.monotonic()
        finished = {path.rpartition("/")[2] for path in paths}
        for draft in self._names(self.temporary(run)) if finished else ():
            if draft.endswith(_DRAFT_SUFFIX) and draft[: -len(_DRAFT_SUFFIX) - 9] in finished:
                self.remove(self.temporary(run, draft))
        self._remove_empty_directories(run)

    def _remove_empty_directories(self, run: str = "") -> None:
        for folder in (self.temporary(run), self.temporary(), *([self.records] if self.records != self.url else [])):
            with suppress(OSError):
                Path(folder).rmdir()


class FileSizes:
    """The sizes of files by their paths below a directory. Each folder is listed once."""

    def __init__(self, target: OutputDirectory) -> None:
        self._target = target
        self._folders: dict[str, dict[str, int]] = {}

    def of(self, name: str) -> int | None:
        """The size of a file; None if it is not there."""
        folder, _, base = name.rpartition("/")
        return self.in_folder(folder).get(base)

    def in_folder(self, folder: str) -> dict[str, int]:
        if folder not in self._folders:
            self._folders[folder] = self._target.sizes(folder) if folder else self._target.sizes()
        return self._folders[folder]


class RecordsDirectory(OutputDirectory):
    """A directory among the records of a run, which may hold rows: only its user can read it. It keeps its temporary
    files in itself."""

    @property
    def records(self) -> str:
        return self.url

    def create_directory(self) -> None:
        if self.local:
            make_private_directory(Path(self.url))
        else:
            super().create_directory()

    @contextmanager
    def _create_local(self, path: str) -> Iterator[BinaryIO]:
        make_private_directory(Path(self.url))
        with super()._create_local(path) as file:
            yield file


def reserve_space(file: BinaryIO, nbytes: int) -> None:
    """Reserve disk space for a new local file of about this size."""
    raw = file.raw_file if isinstance(file, ChecksumWriter) else None
    if isinstance(raw, _NewFile) and nbytes >= WRITE_CHUNK_BYTES:
        raw.reserve(nbytes)


class _NewFile(io.FileIO):
    """A local file that writes at most `WRITE_CHUNK_BYTES` per call; the buffer above it writes the rest.

    For a single write of several megabytes Linux looks for contiguous memory, which takes longer than the write.
    """

    _reserved = False

    def write(self, data: Any, /) -> int:
        return super().write(memoryview(data)[:WRITE_CHUNK_BYTES])

    def reserve(self, nbytes: int) -> None:
        """Allocate disk space at once instead of page by page, if the file system can."""
        if allocate := _fallocate():
            self._reserved = not allocate(self.fileno(), _KEEP_SIZE, 0, nbytes)

    def close(self) -> None:
        if self._reserved and not self.closed:
            with suppress(OSError):  # space that stays reserved does no harm
                self.truncate(os.fstat(self.fileno()).st_size)
        super().close()


@cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """Linux fallocate(2). Python's `os.posix_fallocate` changes the file size, and may write zeros."""
    with suppress(ImportError, AttributeError, OSError):
        import ctypes

        allocate = ctypes.CDLL(None).fallocate
        allocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
        return allocate
    return None


def _open_new(path: str) -> BinaryIO:
    """Create a file and its directory. Retries, since another worker may remove the directory while it is empty."""
    for _ in range(20):
        with suppress(FileNotFoundError):
            return io.BufferedWriter(_NewFile(path, "xb"))
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    return io.BufferedWriter(_NewFile(path, "xb"))


def _run_has_ended(run: str) -> bool:
    """Whether the run with this temporary name was started on this machine by a process that is gone."""
    host, _, pid = run.rpartition("-")[0].rpartition("-")
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
