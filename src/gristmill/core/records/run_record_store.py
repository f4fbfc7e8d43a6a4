"""Store small objects at a URL, for the records of a run. Writes are atomic, and objects are never edited in place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import orjson

from gristmill.core.errors import InputError, cannot_write, explain_storage_error, is_system_error
from gristmill.core.records.remote_storage import open_file_system
from gristmill.core.secret_values import hide_in_urls, remember_secrets, without_secrets


def to_json_line(content: Any) -> bytes:
    """A dict or dataclass as JSON."""
    try:
        return orjson.dumps(content)
    except TypeError:  # file names that are not valid Unicode
        import json

        return json.dumps(asdict(content) if is_dataclass(content) else content, default=str).encode()  # type: ignore[arg-type]


def parse_line(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        import json

        return json.loads(line)


def damaged_records(what: str) -> InputError:
    return InputError(f"the records of this run are damaged: {what}. Start again with another run directory")


@contextmanager
def without_listing_cache(system: Any) -> Iterator[None]:
    """Clear the listing cache of a file system before and after: cached listings miss files of other workers."""
    system.invalidate_cache()
    try:
        yield
    finally:
        system.invalidate_cache()


def refuse_login(url: str) -> None:
    """Raise if the address of an output contains a password, which would be in the name of every file."""
    if hide_in_urls(url) != url:
        raise InputError(
            f"{hide_in_urls(url)}: the address of an output must not contain a password or a signature. Give it as "
            "storage_options, in a recipe as a reference: storage_options: {password: '${env:PASSWORD}'}"
        )


class RecordStore:
    """Small objects at a URL, each written atomically."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        url = os.path.expanduser(url.removeprefix("file://").removeprefix("local://"))  # noqa: PTH111
        self.url = url.rstrip("/")
        local = "://" not in url and "::" not in url
        remember_secrets(storage_options)
        refuse_login(self.url)
        self._place = _Disk(self.url) if local else _Remote(self.url, storage_options or {})

    def write(self, name: str, content: dict[str, Any]) -> None:
        self.put(name, orjson.dumps(without_secrets(content), option=orjson.OPT_INDENT_2))

    def write_lines(self, name: str, lines: Iterable[bytes]) -> None:
        content = bytearray()  # a list of small bytes objects would take ten times the memory
        for line in lines:
            content += line + b"\n"
        self.put(name, bytes(content))

    def put(self, name: str, content: bytes) -> None:
        try:
            self._place.put(name, content)
        except OSError as error:
            raise cannot_write(f"{self.url}/{name}", error) from error

    def read(self, name: str) -> dict[str, Any] | None:
        content = self.get(name)
        return None if content is None else self._object(name, content)

    def get(self, name: str) -> bytes | None:
        return self._place.get(name)

    def last_number(self, folder: str) -> int:
        """The highest number that the name of an object in a folder begins with."""
        numbers = (name.partition("-")[0] for name in self._place.names(folder))
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def lines(self, folder: str) -> Iterator[dict[str, Any]]:
        """The lines of all objects in a folder, in order of their names, which begin with increasing numbers."""
        return (line for _, line in self.parsed_lines(folder))

    def parsed_lines(self, folder: str) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """The same, each with its bytes."""
        for name in sorted(self._place.names(folder)):
            if name.endswith(".jsonl"):
                for number, line in enumerate((self.get(f"{folder}/{name}") or b"").split(b"\n"), 1):
                    if line:
                        yield line, self._object(f"{folder}/{name}, line {number},", line)

    def _object(self, where: str, content: bytes) -> dict[str, Any]:
        try:
            found = parse_line(content)
        except (ValueError, RecursionError) as error:
            raise damaged_records(f"{hide_in_urls(self.url)}/{where} is not JSON ({error})") from error
        if not isinstance(found, dict):
            raise damaged_records(f"{hide_in_urls(self.url)}/{where} is not a JSON object")
        return found


class _Disk:
    """A local directory, without fsspec, which takes 0.1 s to import."""

    def __init__(self, path: str) -> None:
        self._root = Path(path).expanduser().absolute()
        if self._root.is_file():
            raise InputError(f"{path} is a file: a run directory must be a directory or a path that does not exist yet")

    def put(self, name: str, content: bytes) -> None:
        path = self._root / name
        draft = path.with_name(f"{path.name}.{os.urandom(4).hex()}.draft")
        try:
            _write_private(draft, content)
        except FileNotFoundError:
            make_private_directory(path.parent)
            _write_private(draft, content)
        draft.replace(path)

    def get(self, name: str) -> bytes | None:
        path = self._root / name
        return path.read_bytes() if path.exists() else None

    def names(self, folder: str) -> list[str]:
        path = self._root / folder
        return [entry.name for entry in path.iterdir()] if path.is_dir() else []


def make_private_directory(path: Path) -> None:
    """Make a directory for records, which may contain rows and parameters: only its user can read them."""
    if path.is_dir():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)


def _write_private(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


@contextmanager
def _os_errors(what: str = "") -> Iterator[None]:
    """Raise what libraries of object stores raise as an OSError."""
    try:
        yield
    except Exception as error:
        if is_system_error(error):
            raise
        raise OSError(what + explain_storage_error(error)) from error


class _Remote:
    """An object store, in which an object appears when its upload is complete."""

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        self._url = hide_in_urls(url.rstrip("/"))
        self._system, self._root = open_file_system(url, storage_options)

    def put(self, name: str, content: bytes) -> None:
        path = f"{self._root}/{name}"
        with _os_errors():
            self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._system.pipe_file(path, content)

    def get(self, name: str) -> bytes | None:
        try:
            with _os_errors(f"{self._url}/{name} cannot be read: "):
                content: bytes = self._system.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return None
        return content

    def names(self, folder: str) -> list[str]:
        path = f"{self._root}/{folder}"
        with without_listing_cache(self._system), _os_errors(f"{self._url}/{folder} cannot be listed: "):
            if not self._system.exists(path):
                return []
            return [name.rpartition("/")[2] for name in self._system.find(path)]
