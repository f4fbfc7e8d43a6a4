"""List the input files of a path, directory, glob or list of these, on any fsspec file system.

Directories are listed recursively; names that start with "." or "_" are skipped, and so are records of runs. A file
that is named explicitly is taken whatever its extension. A path that does not exist, or that has no matching file, is
an error.
"""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from typing import Any, NamedTuple, NoReturn

from gristmill.core.errors import InputError, did_you_mean, explain_storage_error, shorten
from gristmill.core.records.run_location import MANIFEST, PLAN, RECORDS_SUFFIX
from gristmill.core.records.run_record_store import without_listing_cache
from gristmill.io.formats.format_detection import extension_of, reader_for_extension
from gristmill.io.storage.file_input import GLOB_CHARACTERS, file_system

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


class InputFile(NamedTuple):
    """A file to read: its path or URL, its name below the given root, its size if known, and a stamp that changes
    when the file does."""

    path: str
    name: str
    size: int | None
    stamp: str = ""


_ListedFile = tuple[str, int | None, str]
"""Name, size and stamp of a file."""


def as_paths(paths: Paths) -> list[str]:
    """The given paths as a list of strings."""
    return [os.fspath(paths)] if isinstance(paths, str | PathLike) else [os.fspath(path) for path in paths]


def list_files(paths: Paths, extensions: Sequence[str], storage_options: Mapping[str, Any]) -> list[InputFile]:
    """Every file of the paths once, sorted by path. Raises an InputError if there is none."""
    roots = as_paths(paths)
    if not roots:
        raise InputError("the list of input paths is empty: give at least one path")
    files: dict[str, InputFile] = {}
    systems: dict[int, Any] = {}
    with ExitStack() as uncached:
        for root in roots:
            if not root:
                raise InputError("an input path is empty: give a file, a directory or a glob")
            system, path = file_system(root, storage_options)
            if id(system) not in systems:  # once for all paths, which may share a listing
                systems[id(system)] = system
                uncached.enter_context(without_listing_cache(system))
            files.update((item.path, item) for item in _expand(system, root, path, extensions))
    single = len(roots) == 1
    return [
        InputFile(path, item.name if single else path, item.size, item.stamp) for path, item in sorted(files.items())
    ]


def _expand(system: Any, root: str, path: str, extensions: Sequence[str]) -> list[InputFile]:
    try:
        return _list_root(system, root, path, extensions)
    except InputError:
        raise
    except Exception as error:  # each file system raises its own errors
        raise InputError(f"{root} cannot be listed: {explain_storage_error(error)}") from error


def _list_root(system: Any, root: str, path: str, extensions: Sequence[str]) -> list[InputFile]:
    info = _info(system, path)
    if info is None and GLOB_CHARACTERS & set(path):
        return _expand_glob(system, root, path, extensions)
    if info is None:
        _missing_path_error(system, root, path)
    if info["type"] != "directory":
        return [InputFile(_url(root, path), posixpath.basename(path), info.get("size"), content_stamp(info))]
    items = [item for item in _walk(system, path) if not _hidden(_below(item[0], path))]
    return _matching(system, root, _without_records(system, items, path), path, extensions)


def _without_records(system: Any, items: Iterable[_ListedFile], base: str) -> list[_ListedFile]:
    """The files that are not records of a run, which may lie beside the outputs in a directory."""
    found = list(items)
    folders = {folder for name, _, _ in found if (folder := _records_folder(name, base))}
    records = tuple(f"{one}/" for one in folders if any(_info(system, f"{one}/{name}") for name in (PLAN, MANIFEST)))
    return [item for item in found if not item[0].startswith(records)] if records else found


def _records_folder(name: str, base: str) -> str:
    """The first directory of a path, below `base`, that is named like records of a run."""
    head, suffix, _ = _below(name, base).partition(f"{RECORDS_SUFFIX}/")
    return f"{base.rstrip('/')}/{head}{RECORDS_SUFFIX}" if suffix else ""


def _expand_glob(system: Any, root: str, path: str, extensions: Sequence[str]) -> list[InputFile]:
    fixed = path[: min(path.index(mark) for mark in GLOB_CHARACTERS if mark in path)]
    base = fixed.rpartition("/")[0]
    pattern = path[len(base) :].strip("/")
    matches = system.glob(path, detail=True)
    if not matches:
        if _info(system, base or "/") is None:
            _missing_path_error(system, root, base)
        raise InputError(f"{root} matches no file: check the pattern (** matches across directories, * does not)")
    items: list[_ListedFile] = []
    for name, info in sorted(matches.items()):
        items += _walk(system, name) if _is_directory(system, info) else [(name, info.get("size"), content_stamp(info))]
    if not _hidden(pattern):  # unless the pattern asks for hidden files
        items = [item for item in items if not _hidden(_below(item[0], base))]
        items = _without_records(system, items, base)
    return _matching(system, root, items, base, extensions)


def _matching(
    system: Any, root: str, items: list[_ListedFile], base: str, extensions: Sequence[str]
) -> list[InputFile]:
    wanted = tuple(extension.lower() for extension in extensions)
    chosen = [item for item in items if item[0].lower().endswith(wanted)]
    if not chosen:
        others = Counter(extension_of(name) or "no extension" for name, _, _ in items)
        raise InputError(f"{root} has no file that ends in {shorten(wanted, 20)}{_other_files_hint(others)}")
    if _is_local(system):
        chosen = [_with_stat(name) for name, _, _ in chosen]
    return [InputFile(_url(root, name), _below(name, base), size, stamp) for name, size, stamp in chosen]


def _with_stat(name: str) -> _ListedFile:
    """A local file with size and stamp. A link to nowhere, or in a circle, has none: its reader says what is wrong."""
    try:
        stat = os.stat(name)  # noqa: PTH116
    except OSError:
        return name, None, ""
    return name, stat.st_size, str(stat.st_mtime_ns)


def content_stamp(info: Mapping[str, Any]) -> str:
    """The metadata of a file that changes with its content, or ""."""
    for key in ("ETag", "etag", "md5", "mtime", "LastModified", "last_modified", "created"):
        if info.get(key):
            return str(info[key])
    return ""


def _other_files_hint(counts: Mapping[str, int]) -> str:
    """Which files there are instead, and how to read them."""
    if not counts:
        return ". It has no files at all (names that start with '.' or '_' are skipped)"
    kinds = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    counted = ", ".join(f"{count} {kind} file{'s' if count > 1 else ''}" for kind, count in kinds[:5])
    reader = reader_for_extension(kinds[0][0])
    way_out = f"use {reader}" if reader else f"to read them anyway, pass file_extensions=[{kinds[0][0]!r}]"
    if kinds[0][0] == "no extension":
        way_out = "to read them anyway, name them in a list"
    return f". There {'is' if kinds[0][1] == 1 else 'are'} {counted}: {way_out}"


def _missing_path_error(system: Any, root: str, path: str) -> NoReturn:
    """Raise an InputError that says which part of a path does not exist, and what exists instead."""
    if root.startswith(("http://", "https://")):  # a server that does not answer is a missing file to fsspec
        raise InputError(f"{root} was not found, or its server cannot be reached: check the address and the network")
    parent, name = posixpath.split(path.rstrip("/"))
    while parent and parent != "/" and _info(system, parent) is None:
        parent, name = posixpath.split(parent)
    names = _names_in(system, parent or "/")
    near = did_you_mean(name, names)
    if not near and names:
        near = f" In {_url(root, parent) or '/'} there are: {shorten(sorted(names), 5)}"
    inner = f" ({name!r} is not in {_url(root, parent) or '/'})" if name != posixpath.basename(path) else ""
    raise InputError(f"{root} does not exist{inner}.{near}".rstrip("."))


def _names_in(system: Any, directory: str) -> list[str]:
    try:
        names = [posixpath.basename(str(name).rstrip("/")) for name in system.ls(directory, detail=False)]
    except (OSError, ValueError, NotImplementedError):
        return []
    return [name for name in names if name and not _hidden(name)]


def _info(system: Any, path: str) -> dict[str, Any] | None:
    try:
        info: dict[str, Any] = system.info(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return info


def _is_directory(system: Any, info: Mapping[str, Any]) -> bool:
    linked = bool(info.get("islink")) and _is_local(system) and os.path.isdir(info["name"])  # noqa: PTH112
    return info["type"] == "directory" or linked


def _is_local(system: Any) -> bool:
    return "file" in ([system.protocol] if isinstance(system.protocol, str) else system.protocol)


def _walk(system: Any, directory: str) -> Iterable[_ListedFile]:
    """Every file below a directory."""
    if _is_local(system):
        return _walk_local(directory)
    infos = system.find(directory, detail=True)
    return [
        (name, info.get("size"), content_stamp(info))
        for name, info in infos.items()
        if info["type"] != "directory" and not name.endswith("/")  # some stores keep empty objects as directories
    ]


def _walk_local(directory: str) -> Iterator[_ListedFile]:
    """Follows links to directories, but not in cycles. A directory that cannot be read is an error."""
    above = {directory: {os.path.realpath(directory)}}

    def fail(error: OSError) -> None:
        raise error

    for here, directories, names in os.walk(directory, followlinks=True, onerror=fail):
        trail = above.pop(here)
        entered = []
        for name in directories:
            path = posixpath.join(here, name)
            real = os.path.realpath(path)
            if not _hidden(name) and real not in trail:
                above[path] = trail | {real}
                entered.append(name)
        directories[:] = entered
        for name in names:
            yield posixpath.join(here, name), None, ""


def _hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.split("/"))


def _below(path: str, base: str) -> str:
    return path.removeprefix(base).lstrip("/")


def _url(root: str, path: str) -> str:
    """The path of a file as a URL like the one it was found under; `zip://x::a.zip` and the like included."""
    if "://" not in root or "://" in path or root.startswith(("file://", "local://")):
        return path
    protocol, _, rest = root.partition("://")
    _, chain, outer = rest.partition("::")
    return f"{protocol}://{path}{chain}{outer}"
